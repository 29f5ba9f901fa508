/* Sending over tcp: records go into a ring of our own first, which whoever flushes writes to the socket in large pieces; what went out is kept until the
 * peer has it. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "tcp.h"

/* A sender itself writes to the socket whenever so much has gathered: for large bursts nobody else needs to come by. */
#define PUSH_BYTES 16384u

/* Whether the peer should hear what we have. */
static bool owes(const struct tcp *t) { return atomic_load_explicit(&t->tell, memory_order_relaxed); }

/* pushing held. */
static void write_note(struct tcp *t) {
    atomic_store(&t->tell, false); /* before the figures are read: what comes later asks again */
    uint64_t received = atomic_load(&t->received);
    struct tcp_note note = {.record = {.size = sizeof note, .op = GV_RECORD_ACK, .epoch = t->link.epoch, .seq = received},
                            .received = {gv_tcp_bulk_received(&t->bulk)}};
    t->note_size = t->note_left = gv_framing_note(&t->framing_out, &note, t->note);
    if (!t->note_size) gv_link_kill(&t->link, "an acknowledgement could not be sealed");
}

/* Moves committed records to the unacknowledged ones. pushing held. */
static bool take_committed(struct tcp *t) {
    const void *at;
    /* What is committed meanwhile gathers for the next time: sealed at once it would be frames of a record or two, each as dear as a large one. */
    uint64_t until = t->sealed ? atomic_load(&t->control->tail) : UINT64_MAX;
    for (uint64_t n; t->unsent.head < until && (n = gv_ring_span(&t->unsent, &t->tx, &at)) != 0;) {
        n = gv_framing_put(&t->framing_out, &t->unacked, at, n);
        if (!n) {
            gv_link_kill(&t->link, t->sealed ? "out of memory, or records could not be sealed" : "out of memory");
            return false;
        }
        /* Told before there is room again: a sender that is as fast as this loop must be held back all the same. */
        atomic_store(&t->n_unacked, gv_unacked_bytes(&t->unacked));
        t->unsent.head += n;
        gv_ring_release(&t->unsent);
    }
    return true;
}

/* Lets go of what the peer has. pushing held. */
static bool drop_acknowledged(struct tcp *t) {
    if (gv_unacked_drop(&t->unacked, atomic_load(&t->peer_seq))) return true;
    gv_link_kill(&t->link, "malformed record: the peer acknowledges what was never sent");
    return false;
}

/* Sends as much as the socket takes. pushing held. True: all of it. */
static bool send_unacked(struct tcp *t, enum tcp_pushed *result) {
    for (;;) {
        if (!t->note_left && owes(t) && gv_unacked_between(&t->unacked)) write_note(t);
        const void *at;
        uint64_t n = gv_unacked_next(&t->unacked, &at);
        if (!n && !t->note_left) return true;
        struct iovec parts[2] = {{t->note + t->note_size - t->note_left, t->note_left}, {(void *)(uintptr_t)at, n}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t sent = sendmsg(t->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            size_t of_note = (size_t)sent < t->note_left ? (size_t)sent : t->note_left;
            t->note_left -= of_note;
            gv_unacked_sent(&t->unacked, (uint64_t)sent - of_note);
            *result = TCP_PUSHED_ALL;
        } else if (errno == EAGAIN || errno == ENOBUFS) {
            return false;
        } else if (errno != EINTR) {
            gv_resume_cut(&t->resume, "", errno);
            return true;
        }
    }
}

enum tcp_pushed gv_tcp_push(struct tcp *t) {
    enum tcp_pushed result = TCP_NOTHING_LEFT;
    for (;;) {
        if (atomic_exchange(&t->pushing, 1)) return TCP_BUSY;
        bool all = true;
        if (!gv_link_dead(&t->link) && drop_acknowledged(t) && take_committed(t)) {
            if (gv_resume_is_up(&t->resume)) all = send_unacked(t, &result);
            gv_framing_prepare_to_put(&t->framing_out);
            atomic_store(&t->clogged, !all);
            atomic_store_explicit(&t->n_unacked, gv_unacked_bytes(&t->unacked), memory_order_relaxed);
            atomic_store_explicit(&t->unacked_peak, t->unacked.peak, memory_order_relaxed);
        }
        uint64_t head = t->unsent.head;
        bool between = gv_unacked_between(&t->unacked);
        atomic_store(&t->pushing, 0);
        if (!all) return TCP_SOCKET_FULL;
        /* Somebody may have committed, or asked to tell, after we looked and found us still at it. */
        bool up = gv_resume_is_up(&t->resume);
        if ((atomic_load(&t->control->tail) == head && !(up && between && owes(t))) || gv_link_dead(&t->link)) return result;
    }
}

static void wake_writer(struct tcp *t) {
    if (atomic_load(&t->control->reader_sleeps)) gv_wake_sleeper(&t->control->reader_sleeps);
}

void gv_tcp_ack_now(struct tcp *t) {
    atomic_store(&t->tell, true);
    if (gv_tcp_push(t) == TCP_SOCKET_FULL) wake_writer(t);
}

void *gv_tcp_reserve(struct gv_link *link, uint32_t size) {
    struct tcp *t = (struct tcp *)link;
    for (;;) {
        void *room = gv_ring_reserve(&t->tx, size);
        if (room) return room;
        if (gv_link_dead(link)) return NULL;
        if (!link->blocked_since) link->blocked_since = gv_now_ns();
        if (gv_tcp_push(t) == TCP_BUSY) sched_yield();
    }
}

bool gv_tcp_publish(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    if (gv_ring_publish(&t->tx)) gv_wake_sleeper(&t->control->reader_sleeps);
    if (t->tx.tail - t->offered < PUSH_BYTES) return false;
    t->offered = t->tx.tail;
    return atomic_load_explicit(&t->control->head, memory_order_relaxed) + PUSH_BYTES / 2 < t->tx.tail;
}

void gv_tcp_flush(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    if (gv_tcp_push(t) == TCP_SOCKET_FULL) wake_writer(t); /* it waits for the socket, we need not */
}
