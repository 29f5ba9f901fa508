/* Sending payloads over tcp: parts wait in a list, from which one thread fills all channels, until the peer says that it has them. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../futex.h"
#include "../link.h"
#include "../resume.h"
#include "../seal/seal.h"
#include "tcp_channels.h"

#define PIECES 16 /* parts in one frame's write */
#define LOOK_NS 1000000000LL

int gv_tcp_bulk_part(struct tcp_bulk *b, const void *data, uint64_t size, void (*done)(void *arg), void *arg) {
    struct tcp_part *p = gv_link_dead(b->link) ? NULL : malloc(sizeof *p);
    if (!p) {
        gv_link_kill(b->link, "out of memory");
        if (done) done(arg);
        return -1;
    }
    *p = (struct tcp_part){.data = data, .size = size, .done = done, .arg = arg};
    if (!done) p->data = memcpy(p->own, data, size);
    pthread_mutex_lock(&b->lock);
    if (b->ended) { /* the sending thread has let go of everything, and will not come by again */
        pthread_mutex_unlock(&b->lock);
        free(p);
        if (done) done(arg);
        return -1;
    }
    p->start = b->queued;
    b->queued += size;
    if (b->last)
        b->last->next = p;
    else
        b->first = p;
    b->last = p;
    pthread_mutex_unlock(&b->lock);
    gv_tcp_wake_sender(b);
    return 0;
}

/* Lets go of the parts that the peer has, of all once the link is dead. The sending thread's alone: nobody else reads what they refer to. Returns how
 * many channels there are. */
static uint32_t let_go(struct tcp_bulk *b, bool all) {
    pthread_mutex_lock(&b->lock);
    b->ended = all;
    uint64_t has = atomic_load(&b->peer_has);
    struct tcp_part *gone = NULL, **end = &gone;
    while (b->first && (all || b->first->start + b->first->size <= has)) {
        struct tcp_part *p = b->first;
        for (uint32_t i = 0; i < b->n; i++)
            if (b->channels[i].at == p) b->channels[i].at = p->next;
        *end = p;
        end = &p->next;
        b->first = p->next;
    }
    *end = NULL;
    if (!b->first) b->last = NULL;
    uint32_t n = b->n;
    pthread_mutex_unlock(&b->lock);
    while (gone) {
        struct tcp_part *p = gone;
        gone = p->next;
        if (p->done) p->done(p->arg);
        free(p);
    }
    return n;
}

/* The bytes of the stream from `position` on, as pieces; how many. Begins to look where it found the channel's last ones. lock held. */
static int gather(const struct tcp_bulk *b, struct tcp_channel *c, uint64_t position, uint64_t size, struct iovec *pieces, int room) {
    int n = 0;
    struct tcp_part *from = c->at && c->at->start <= position ? c->at : b->first;
    for (struct tcp_part *p = from; p && size && n < room; p = p->next) {
        if (p->start + p->size <= position) continue;
        if (n == 0) c->at = p;
        uint64_t offset = position - p->start, part = p->size - offset;
        if (part > size) part = size;
        pieces[n++] = (struct iovec){(void *)(uintptr_t)(p->data + offset), part};
        position += part;
        size -= part;
    }
    return n;
}

enum { NOTHING, WENT, BLOCKED, DOWN };

/* The head of the next frame, of `most` bytes at most. lock held. False: there is nothing to send. */
static bool begin_frame(struct tcp_bulk *b, struct tcp_channel *c, uint64_t most) {
    uint64_t end = (c->next / TCP_STRIPE + 1) * TCP_STRIPE;
    if (end > b->queued) end = b->queued;
    if (c->next >= end) return false;
    if (end - c->next > most) end = c->next + most;
    c->frame = (struct tcp_frame){TCP_FRAME_MAGIC, (uint32_t)(end - c->next), c->next};
    return true;
}

static void hand_out(struct tcp_bulk *b, const struct tcp_frame *frame) {
    uint64_t end = frame->position + frame->size;
    if (end > atomic_load(&b->handed_out)) atomic_store(&b->handed_out, end);
}

/* What of a plain frame is still to go, as pieces: how many. 0: there is nothing. lock held. */
static int plain_frame(struct tcp_bulk *b, struct tcp_channel *c, struct iovec *pieces) {
    if (!c->head_left && !c->frame_left) {
        if (!begin_frame(b, c, TCP_STRIPE)) return 0;
        c->head_left = sizeof c->frame;
        c->frame_left = c->frame.size;
        hand_out(b, &c->frame);
    }
    pieces[0] = (struct iovec){(uint8_t *)(&c->frame + 1) - c->head_left, c->head_left};
    return 1 + gather(b, c, c->next, c->frame_left, pieces + 1, PIECES);
}

/* What the next sealed frame is made of, as pieces: how many. 0: there is nothing. lock held. */
static int next_sealed(struct tcp_bulk *b, struct tcp_channel *c, struct iovec *pieces) {
    if (!begin_frame(b, c, TCP_SEALED_MOST)) return 0;
    int n = gather(b, c, c->next, c->frame.size, pieces, PIECES);
    c->frame.size = 0;
    for (int i = 0; i < n; i++) c->frame.size += (uint32_t)pieces[i].iov_len;
    hand_out(b, &c->frame);
    return n;
}

/* Seals them where the frame goes out from. False: that failed. */
static bool seal_frame(struct tcp_channel *c, const struct iovec *pieces, int n) {
    if (!c->sealed) c->sealed = malloc(sizeof c->frame + TCP_SEALED_MOST + GV_SEAL_TAG);
    if (!c->sealed) return false;
    uint8_t *body = c->sealed + sizeof c->frame;
    memcpy(c->sealed, &c->frame, sizeof c->frame);
    c->sealed_left = (uint32_t)sizeof c->frame + c->frame.size + GV_SEAL_TAG;
    return gv_seal_seal(c->keys.out, c->keys.next_out++, &c->frame, sizeof c->frame, pieces, n, body, body + c->frame.size);
}

/* So many bytes more have gone. lock held. */
static void went(struct tcp_bulk *b, struct tcp_channel *c, uint32_t channel, uint32_t sent) {
    if (c->keys.out) {
        c->sealed_left -= sent;
        if (c->sealed_left) return;
        c->next += c->frame.size;
    } else {
        uint32_t of_head = sent < c->head_left ? sent : c->head_left;
        c->head_left -= of_head;
        c->frame_left -= sent - of_head;
        c->next += sent - of_head;
        if (c->head_left || c->frame_left) return;
    }
    c->next = gv_tcp_first_of(c->next, channel, b->n);
}

/* Sends some of what the channel is to carry next. */
static int send_some(struct tcp_bulk *b, struct tcp_channel *c, uint32_t channel) {
    struct iovec pieces[PIECES + 1];
    pthread_mutex_lock(&b->lock);
    bool sealed = c->keys.out, halfway = sealed && c->sealed_left;
    int n = !c->up || halfway ? 0 : sealed ? next_sealed(b, c, pieces) : plain_frame(b, c, pieces);
    if (!c->up || (!n && !halfway)) {
        int outcome = c->up ? NOTHING : DOWN;
        pthread_mutex_unlock(&b->lock);
        return outcome;
    }
    c->users++;
    if (!halfway) atomic_store(&b->reading, c->next);
    pthread_mutex_unlock(&b->lock);

    bool good = true;
    if (sealed) {
        good = halfway || seal_frame(c, pieces, n);
        atomic_store(&b->reading, UINT64_MAX);
        uint32_t size = (uint32_t)sizeof c->frame + c->frame.size + GV_SEAL_TAG;
        pieces[0] = (struct iovec){c->sealed + size - c->sealed_left, c->sealed_left};
        n = 1;
    }
    if (!good) {
        gv_link_kill(b->link, "a payload could not be sealed: out of memory, or the library failed");
        gv_tcp_channel_leave(b, c);
        return DOWN;
    }
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)n};
    ssize_t sent = sendmsg(c->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    int error = sent < 0 ? errno : 0;
    atomic_store(&b->reading, UINT64_MAX);

    pthread_mutex_lock(&b->lock);
    if (sent > 0) went(b, c, channel, (uint32_t)sent);
    pthread_mutex_unlock(&b->lock);
    bool blocked = error == EAGAIN || error == ENOBUFS, cut = error && !blocked && error != EINTR;
    if (cut) gv_tcp_channel_cut(b, c, "bulk channel: ", error);
    gv_tcp_channel_leave(b, c);
    return cut ? DOWN : blocked ? BLOCKED : WENT;
}

/* Whether a channel on which nobody may be reading just now was cut: its peer waits for what was lost, and would for ever. Or its host is silent. */
static void look_after(struct tcp_bulk *b, struct tcp_channel *c) {
    pthread_mutex_lock(&b->lock);
    bool up = c->up;
    if (up) c->users++;
    pthread_mutex_unlock(&b->lock);
    if (!up) return;
    struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
    bool cut = poll(&p, 1, 0) > 0 && p.revents;
    if (cut && !gv_resume_final(b->link->resume))
        gv_tcp_channel_cut(b, c, "the peer closed the bulk channel", 0);
    else if (gv_host_silent(&c->silence, c->fd))
        gv_tcp_channel_cut(b, c, "bulk channel: ", ETIMEDOUT);
    gv_tcp_channel_leave(b, c);
}

void *gv_tcp_send_parts(void *arg) {
    struct tcp_bulk *b = arg;
    int64_t looked = 0;
    while (!gv_link_dead(b->link)) {
        struct pollfd fds[TCP_CHANNELS_MAX + 1] = {{.fd = b->wake_fd, .events = POLLIN}};
        struct tcp_channel *watched[TCP_CHANNELS_MAX + 1];
        nfds_t n = 1;
        bool went = false;
        atomic_store(&b->sleeping, true); /* before it is looked whether there is work: what comes later wakes us */
        uint32_t channels = let_go(b, false);
        for (uint32_t i = 0; i < channels; i++) {
            struct tcp_channel *c = &b->channels[i];
            int outcome = send_some(b, c, i);
            went = went || outcome == WENT;
            /* Where a cut is the end, whoever next sends or receives finds it: until then it would only keep us awake. */
            bool watch = !gv_resume_final(b->link->resume);
            if (outcome == DOWN || (outcome != BLOCKED && !watch)) continue;
            watched[n] = c;
            fds[n++] = (struct pollfd){.fd = c->fd, .events = (short)((outcome == BLOCKED ? POLLOUT : 0) | (watch ? POLLRDHUP : 0))};
        }
        int64_t now = gv_now_ns();
        if (now - looked >= LOOK_NS) {
            looked = now;
            for (uint32_t i = 0; i < channels; i++) look_after(b, &b->channels[i]);
        }
        if (went || poll(fds, n, LOOK_NS / 1000000) <= 0) continue;
        if (fds[0].revents) {
            uint64_t count;
            if (read(b->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN) gv_link_kill_errno(b->link, "", errno);
        }
        for (nfds_t i = 1; i < n; i++)
            if (fds[i].revents & ~POLLOUT) look_after(b, watched[i]);
    }
    let_go(b, true);
    return NULL;
}

bool gv_tcp_bulk_peer_has(struct tcp_bulk *b, uint64_t position) {
    if (position <= atomic_load(&b->peer_has)) return true;
    if (position > atomic_load(&b->handed_out)) return false;
    /* What the peer has is its owner's again, and the peer may have it before the call that sent it has returned: that call never waits. */
    while (atomic_load(&b->reading) < position) sched_yield();
    atomic_store(&b->peer_has, position);
    gv_tcp_wake_sender(b);
    return true;
}
