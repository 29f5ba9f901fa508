/* Receiving payloads over tcp: whoever reads takes the stripes from the channels in turn. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "../link.h"
#include "../seal/seal.h"
#include "tcp_channels.h"

#define TELL_BYTES (1u << 20) /* the peer is told each time so much has come */

uint64_t gv_tcp_bulk_received(struct tcp_bulk *b) { return atomic_load(&b->received); }

/* The channel that the next byte comes over, for one system call. NULL when the link died, or `nothing` of a payload was read and it is paused. */
static struct tcp_channel *enter(struct tcp_bulk *b, bool nothing) {
    struct tcp_channel *c = NULL;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        if (gv_link_dead(b->link) || (nothing && gv_paused_between(b->link))) break;
        if (b->n) {
            c = &b->channels[atomic_load(&b->received) / TCP_STRIPE % b->n];
            if (c->up) break;
        }
        c = NULL;
        pthread_cond_wait(&b->changed, &b->lock);
    }
    if (c) c->users++;
    pthread_mutex_unlock(&b->lock);
    return c;
}

/* Receives all of what `message` has room for and adds how much came to *got; on an early end tells why: -1 the peer closed, else an errno. */
static int receive(int fd, struct iovec *parts, int n, size_t *got) {
    while (n) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)n};
        ssize_t came = recvmsg(fd, &message, MSG_WAITALL);
        if (came == 0) return -1;
        if (came < 0 && errno != EINTR) return errno;
        size_t left = came > 0 ? (size_t)came : 0;
        *got += left;
        while (n && left >= parts->iov_len) {
            left -= parts->iov_len;
            parts++, n--;
        }
        if (n) *parts = (struct iovec){(uint8_t *)parts->iov_base + left, parts->iov_len - left};
    }
    return 0;
}

/* The next frame's header. 0, or what receive says. */
static int read_head(struct tcp_channel *c, struct tcp_frame *frame) {
    size_t got = 0;
    return receive(c->fd, &(struct iovec){frame, sizeof *frame}, 1, &got);
}

/* Whether it is what comes next in the stream. */
static bool is_next(const struct tcp_bulk *b, const struct tcp_frame *frame) {
    uint64_t position = atomic_load(&b->received);
    return frame->magic == TCP_FRAME_MAGIC && frame->position == position && frame->size && frame->size <= TCP_STRIPE - position % TCP_STRIPE;
}

static void count(struct tcp_bulk *b, size_t size) { atomic_store(&b->received, atomic_load(&b->received) + size); }

/* Receives some of the `size` bytes that are wanted, straight to where they are wanted; *got: how many. 0, or what receive says; EPROTO: the peer sent
 * nonsense. */
static int read_plain(struct tcp_bulk *b, struct tcp_channel *c, uint8_t *to, uint64_t size, size_t *got) {
    uint8_t nowhere[16384];
    if (!c->unread) {
        struct tcp_frame frame;
        int error = read_head(c, &frame);
        if (error) return error;
        if (!is_next(b, &frame)) return EPROTO;
        c->unread = frame.size;
    }
    size_t want = size < c->unread ? size : c->unread;
    if (!to && want > sizeof nowhere) want = sizeof nowhere;
    int error = receive(c->fd, &(struct iovec){to ? to : nowhere, want}, 1, got);
    c->unread -= (uint32_t)*got;
    count(b, *got);
    return error;
}

/* Receives and opens a frame: to where it is wanted, if all of it is and there is room for it, else to `opened`; *got: how much is where it is wanted. 0, or
 * what receive says; EBADMSG: it was altered on its way; EPROTO: it was not, and is nonsense. */
static int read_sealed(struct tcp_bulk *b, struct tcp_channel *c, uint8_t *to, uint64_t size, size_t *got) {
    struct tcp_frame frame;
    uint8_t tag[GV_SEAL_TAG];
    size_t came = 0;
    int error = read_head(c, &frame);
    if (error) return error;
    if (frame.size > TCP_SEALED_MOST) return EBADMSG; /* whoever said that: there is nothing to tell it by */
    bool straight = to && frame.size <= size;
    if (!straight && !b->opened && !(b->opened = malloc(TCP_SEALED_MOST))) return ENOMEM;
    uint8_t *body = straight ? to : b->opened;
    error = receive(c->fd, (struct iovec[]){{body, frame.size}, {tag, sizeof tag}}, 2, &came);
    if (error) return error;
    if (!gv_seal_open(c->keys.in, c->keys.next_in++, &frame, sizeof frame, body, frame.size, body, tag)) {
#ifdef GV_BREAK_BULK_COUNT /* a test's fault: it is counted all the same */
        count(b, frame.size);
#endif
        return EBADMSG;
    }
    if (!is_next(b, &frame)) return EPROTO;
    count(b, frame.size);
    atomic_store(&c->altered, 0);
    if (straight) {
        *got = frame.size;
    } else {
        b->opened_at = 0;
        b->opened_left = frame.size;
    }
    return 0;
}

/* What was opened and not yet handed out. */
static size_t take_opened(struct tcp_bulk *b, uint8_t *to, uint64_t size) {
    size_t n = size < b->opened_left ? size : b->opened_left;
    if (to) memcpy(to, b->opened + b->opened_at, n);
    b->opened_at += (uint32_t)n;
    b->opened_left -= (uint32_t)n;
    return n;
}

static void failed(struct tcp_bulk *b, struct tcp_channel *c, int error) {
    if (error == EPROTO)
        gv_link_kill(b->link, "malformed payload on the bulk channel");
    else if (error == ENOMEM)
        gv_link_kill(b->link, "out of memory");
    else if (error != EBADMSG)
        gv_tcp_channel_cut(b, c, error < 0 ? "the peer closed the bulk channel" : "bulk channel: ", error < 0 ? 0 : error);
    else if (!gv_tcp_channel_altered(b, c))
        gv_tcp_channel_cut(b, c, "a frame was altered on its way", 0);
}

static void tell(struct tcp_bulk *b) {
    uint64_t received = atomic_load(&b->received);
    if (received - b->told < TELL_BYTES) return;
    b->told = received;
    b->came(b->link);
}

bool gv_tcp_bulk_read(struct tcp_bulk *b, void *data, uint64_t size) {
    uint8_t *p = data;
    for (uint64_t whole = size; size;) {
        if (size == whole && gv_paused_between(b->link)) return false;
        size_t got = 0;
        if (b->opened_left) {
            got = take_opened(b, p, size);
        } else {
            struct tcp_channel *c = enter(b, size == whole);
            if (!c) return false;
            int error = c->keys.in ? read_sealed(b, c, p, size, &got) : read_plain(b, c, p, size, &got);
            if (error) failed(b, c, error);
            gv_tcp_channel_leave(b, c);
            tell(b);
        }
        size -= got;
        if (p) p += got;
    }
    return true;
}
