#define _GNU_SOURCE
#include "image_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

#define DIGEST_SEED 0x67707576697274ull /* "gpuvirt" */
#define DIGEST_FACTOR 0x9e3779b97f4a7c15ull

/* Against accidents, not against somebody who means it. `size` is a multiple of 8. */
static uint64_t digest_of(uint64_t digest, const uint8_t *data, size_t size) {
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word;
        memcpy(&word, data + at, 8);
        digest = (digest ^ word) * DIGEST_FACTOR;
        digest ^= digest >> 29;
    }
    return digest;
}

static uint64_t padding(uint64_t size) { return (8 - size % 8) % 8; }

/* Until the descriptor is ready; false: it took too long. */
static bool await(int fd, short events, int64_t until) {
    for (;;) {
        int64_t left = until - gv_now_ns();
        if (left <= 0) return false;
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, (int)(left / 1000000 < 1000 ? left / 1000000 + 1 : 1000));
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
    }
}

/* A write that blocks would know no deadline. */
static void do_not_block(int fd) {
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

/* ---- out ---- */

bool gv_image_out_open(struct gv_image_out *out, int fd, int64_t until) {
    do_not_block(fd);
    *out = (struct gv_image_out){.fd = fd, .until = until, .digest = DIGEST_SEED, .buffer = malloc(GV_IMAGE_BUFFER)};
    return out->buffer;
}

void gv_image_out_fail(struct gv_image_out *out, const char *why) {
    if (out->failed) return;
    out->failed = true;
    snprintf(out->why, sizeof out->why, "%s", why);
}

static void out_errno(struct gv_image_out *out, const char *what) {
    char reason[80], why[GV_IMAGE_WHY];
    snprintf(why, sizeof why, "%s: %s", what, strerror_r(errno, reason, sizeof reason));
    gv_image_out_fail(out, why);
}

static void write_out(struct gv_image_out *out) {
    for (size_t at = 0; at < out->filled && !out->failed;) {
        if (!await(out->fd, POLLOUT, out->until)) {
            gv_image_out_fail(out, "whoever reads the image took too long");
            break;
        }
        ssize_t n = write(out->fd, out->buffer + at, out->filled - at);
        if (n > 0)
            at += (size_t)n;
        else if (n < 0 && errno != EINTR && errno != EAGAIN)
            out_errno(out, "the image could not be written");
    }
    out->filled = 0;
}

void gv_image_put_bytes(struct gv_image_out *out, const void *data, uint64_t size) {
    const uint8_t *from = data;
    uint64_t pad = padding(size);
    out->bytes += size + pad;
    while ((size || pad) && !out->failed) {
        size_t room = GV_IMAGE_BUFFER - out->filled, n = size < room ? (size_t)size : room;
        if (n) memcpy(out->buffer + out->filled, from, n);
        from += n;
        size -= n;
        out->filled += n;
        if (!size && pad) { /* the buffer's size is a multiple of 8, so there is room for it */
            memset(out->buffer + out->filled, 0, pad);
            out->filled += pad;
            pad = 0;
        }
        if (out->filled < GV_IMAGE_BUFFER) continue;
        out->digest = digest_of(out->digest, out->buffer, out->filled);
        write_out(out);
    }
}

void gv_image_put(struct gv_image_out *out, uint64_t value) { gv_image_put_bytes(out, &value, sizeof value); }

bool gv_image_out_close(struct gv_image_out *out) {
    if (!out->failed) {
        out->digest = digest_of(out->digest, out->buffer, out->filled);
        write_out(out);
        memcpy(out->buffer, &out->digest, sizeof out->digest);
        out->filled = sizeof out->digest;
        write_out(out);
    }
    free(out->buffer);
    out->buffer = NULL;
    return !out->failed;
}

/* ---- in ---- */

bool gv_image_in_open(struct gv_image_in *in, int fd, int64_t until) {
    do_not_block(fd);
    *in = (struct gv_image_in){.fd = fd, .until = until, .digest = DIGEST_SEED, .buffer = malloc(GV_IMAGE_BUFFER)};
    return in->buffer;
}

void gv_image_in_fail(struct gv_image_in *in, const char *why) {
    if (in->failed) return;
    in->failed = true;
    snprintf(in->why, sizeof in->why, "%s", why);
}

/* At least eight bytes. */
static void read_in(struct gv_image_in *in) {
    memmove(in->buffer, in->buffer + in->at, in->end - in->at);
    in->end -= in->at;
    in->at = 0;
    while (in->end < 8 && !in->failed) {
        if (!await(in->fd, POLLIN, in->until)) {
            gv_image_in_fail(in, "whoever writes the image took too long");
            break;
        }
        ssize_t n = read(in->fd, in->buffer + in->end, GV_IMAGE_BUFFER - in->end);
        if (n > 0)
            in->end += (size_t)n;
        else if (n == 0 || (errno != EINTR && errno != EAGAIN))
            gv_image_in_fail(in, "the image broke off");
    }
}

bool gv_image_get_bytes(struct gv_image_in *in, void *data, uint64_t size) {
    uint8_t *to = data;
    uint64_t left = size, whole = size + padding(size);
    if (whole < size) gv_image_in_fail(in, "the image has an impossible size");
    while (whole && !in->failed) {
        if (in->end - in->at < 8) read_in(in);
        size_t there = (in->end - in->at) & ~(size_t)7, n = whole < there ? (size_t)whole : there;
        if (in->failed) break;
        size_t useful = left < n ? (size_t)left : n;
        in->digest = digest_of(in->digest, in->buffer + in->at, n);
        memcpy(to, in->buffer + in->at, useful);
        in->at += n;
        in->bytes += n;
        to += useful;
        left -= useful;
        whole -= n;
    }
    if (in->failed && size) memset(data, 0, size);
    return !in->failed;
}

void *gv_image_get_block(struct gv_image_in *in, uint64_t size) {
    uint8_t *block = NULL;
    uint64_t have = 0;
    do { /* a size alone is no reason to take memory */
        uint64_t more = have ? have : GV_IMAGE_BUFFER;
        if (more > size - have) more = size - have;
        uint8_t *larger = realloc(block, have + more + 1);
        if (!larger) gv_image_in_fail(in, "the server is out of memory");
        if (!larger || !gv_image_get_bytes(in, larger + have, more)) {
            free(larger ? larger : block);
            return NULL;
        }
        block = larger;
        have += more;
    } while (have < size);
    block[size] = 0;
    return block;
}

uint64_t gv_image_get(struct gv_image_in *in, uint64_t most) {
    uint64_t value;
    if (!gv_image_get_bytes(in, &value, sizeof value)) return 0;
    if (value <= most) return value;
    gv_image_in_fail(in, "a number of the image is larger than it can be");
    return 0;
}

bool gv_image_in_close(struct gv_image_in *in) {
    uint64_t expected = in->digest, found = 0;
    if (!in->failed && gv_image_get_bytes(in, &found, sizeof found) && found != expected)
        gv_image_in_fail(in, "the image is damaged: its digest is another");
    free(in->buffer);
    in->buffer = NULL;
    return !in->failed;
}
