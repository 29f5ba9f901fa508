/* Receiving payloads over tcp: whoever reads takes the stripes from the channels in turn. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>

#include "../link.h"
#include "tcp_channels.h"

#define TELL_BYTES (1u << 20) /* the peer is told each time so much has come */

uint64_t gv_tcp_bulk_received(struct tcp_bulk *b) { return atomic_load(&b->received); }

/* The channel that the next byte comes over, for one system call. NULL when the link died. */
static struct tcp_channel *enter(struct tcp_bulk *b) {
    struct tcp_channel *c = NULL;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        if (gv_link_dead(b->link)) break;
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

/* Reads all of `size` bytes, or ends early with why: 1 the peer closed, else an errno in *error. */
static size_t receive(int fd, void *into, size_t size, int *error) {
    size_t got = 0;
    *error = 0;
    while (got < size) {
        ssize_t n = recv(fd, (uint8_t *)into + got, size - got, MSG_WAITALL);
        if (n > 0) {
            got += (size_t)n;
        } else if (n == 0) {
            *error = -1;
            break;
        } else if (errno != EINTR) {
            *error = errno;
            break;
        }
    }
    return got;
}

/* The next frame's header. 0, or what receive says; EPROTO: it makes no sense. */
static int read_frame(struct tcp_bulk *b, struct tcp_channel *c) {
    struct tcp_frame frame;
    int error;
    if (receive(c->fd, &frame, sizeof frame, &error) < sizeof frame) return error;
    uint64_t position = atomic_load(&b->received);
    if (frame.magic != TCP_FRAME_MAGIC || frame.position != position || !frame.size || frame.size > TCP_STRIPE - position % TCP_STRIPE) return EPROTO;
    c->unread = frame.size;
    return 0;
}

bool gv_tcp_bulk_read(struct tcp_bulk *b, void *data, uint64_t size) {
    uint8_t *p = data;
    while (size) {
        struct tcp_channel *c = enter(b);
        if (!c) return false;
        int error = c->unread ? 0 : read_frame(b, c);
        if (!error) {
            uint8_t nowhere[16384];
            size_t want = size < c->unread ? size : c->unread;
            if (!p && want > sizeof nowhere) want = sizeof nowhere;
            size_t got = receive(c->fd, p ? p : nowhere, want, &error);
            c->unread -= (uint32_t)got;
            atomic_store(&b->received, atomic_load(&b->received) + got);
            size -= got;
            if (p) p += got;
        }
        if (error == EPROTO)
            gv_link_kill(b->link, "malformed payload on the bulk channel");
        else if (error)
            gv_tcp_channel_cut(b, c, error < 0 ? "the peer closed the bulk channel" : "bulk channel: ", error < 0 ? 0 : error);
        gv_tcp_channel_leave(b, c);
        uint64_t received = atomic_load(&b->received);
        if (received - b->told >= TELL_BYTES) {
            b->told = received;
            b->came(b->link);
        }
    }
    return true;
}
