/* Receiving over tcp: what arrives is read by whoever waits, straight into the buffer that records are handed out from. Senders who are held back until
 * the peer acknowledges wait here, too: nobody else may be reading. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>

#include "../cpu_affinity.h"
#include "tcp.h"

/* A sender waits when so much was sent that the peer has not acknowledged. */
#ifndef UNACKED_LIMIT /* tests make it small */
#define UNACKED_LIMIT (64u << 20)
#endif
/* After so many records, or bytes of them, the peer is told that they came. */
#define ACK_RECORDS 256
#define ACK_BYTES (64u << 10)

/* ---- records */

bool gv_tcp_altered(struct tcp *t) {
    const unsigned *in_a_row = t->framing_in.altered;
    atomic_fetch_add(&t->altered, 1);
    if (in_a_row[0] < GV_ALTERED_MOST && in_a_row[1] < GV_ALTERED_MOST) return false;
    gv_link_kill(&t->link, "frames were altered on their way, again and again: find out what lies between the client and the server");
    return true;
}

/* Whether a whole record lies in the buffer; kills the link when what lies there is none. receiving held. */
static enum gv_framed whole(struct tcp *t) {
    char why[GV_DEATH_TEXT];
    enum gv_framed verdict = gv_framing_look(&t->framing_in, t->buffer, &t->at, t->end, why);
    if (verdict == GV_FRAMED_BAD) gv_link_kill(&t->link, why);
    if (verdict == GV_FRAMED_ALTERED) {
        t->end = t->at; /* what follows it is nothing to go by */
        if (!gv_tcp_altered(t)) gv_resume_cut(&t->resume, "a frame was altered on its way", 0);
    }
    return verdict;
}

bool gv_tcp_fill(struct tcp *t) {
    if (!gv_resume_is_up(&t->resume)) return false;
    if (t->at && (t->at == t->end || TCP_BUFFER_SIZE - t->at < FRAME_MOST)) {
        memmove(t->buffer, t->buffer + t->at, t->end - t->at);
        t->end -= t->at;
        t->at = 0;
    }
    for (;;) {
        ssize_t n = recv(t->fd, t->buffer + t->end, TCP_BUFFER_SIZE - t->end, MSG_DONTWAIT);
        if (n > 0) {
            t->end += (size_t)n;
            return true;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return false;
        if (n == 0)
            gv_resume_cut(&t->resume, t->at == t->end ? "the peer closed the connection" : "the peer closed the connection within a record", 0);
        else
            gv_resume_cut(&t->resume, "", errno);
        return true;
    }
}

/* The peer says what it has. False: that is nonsense. */
static bool acknowledged(struct tcp *t, const struct gv_record *record) {
    struct gv_received received;
    if (record->size != sizeof(struct tcp_note) || record->op != GV_RECORD_ACK) return false;
    memcpy(&received, record + 1, sizeof received);
    if (record->seq > atomic_load_explicit(&t->peer_seq, memory_order_relaxed)) atomic_store(&t->peer_seq, record->seq);
    if (atomic_load_explicit(&t->held_back, memory_order_relaxed) & 1) {
        atomic_store(&t->held_back, (atomic_load(&t->held_back) & ~1u) + 2);
        gv_futex_wake(&t->held_back, INT_MAX);
    }
    return gv_tcp_bulk_peer_has(&t->bulk, received.bulk);
}

/* The next record of the session; receiving held. */
static struct gv_record *next(struct tcp *t) {
    for (;;) {
        enum gv_framed verdict = whole(t);
        if (verdict == GV_FRAMED_PART) {
            if (!gv_tcp_fill(t)) return NULL;
        } else if (verdict == GV_FRAMED_RECORD) {
            struct gv_record *record = (struct gv_record *)(void *)(t->buffer + t->at);
            if (record->op != GV_RECORD_ACK && record->op != GV_RECORD_RESUME) return record;
            size_t size = record->size;
            if (!acknowledged(t, record)) {
                gv_link_kill(&t->link, "malformed record: an acknowledgement that makes no sense");
                return NULL;
            }
            t->at = gv_framing_behind(&t->framing_in, t->at, size);
        }
        if (gv_link_dead(&t->link)) return NULL;
    }
}

static void now_reading(struct tcp *t) {
    uint64_t self = (uint64_t)pthread_self();
    if (atomic_load_explicit(&t->reader, memory_order_relaxed) != self) atomic_store_explicit(&t->reader, self, memory_order_relaxed);
}

struct gv_record *gv_tcp_next(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    now_reading(t);
    gv_spin_lock(&t->receiving);
    struct gv_record *record = next(t);
    if (record) {
        t->current = record->size;
        t->records_untold++;
        t->bytes_untold += record->size;
        /* One that comes again in a frame is not the last that we have. */
        if (record->seq > atomic_load_explicit(&t->received, memory_order_relaxed))
            atomic_store_explicit(&t->received, record->seq, memory_order_relaxed);
    }
    gv_spin_unlock(&t->receiving);
    return record;
}

void gv_tcp_release(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    gv_spin_lock(&t->receiving);
    t->at = gv_framing_behind(&t->framing_in, t->at, t->current);
    t->current = 0;
    if (t->at == t->end) t->at = t->end = 0;
    gv_spin_unlock(&t->receiving);
    if (t->records_untold < ACK_RECORDS && t->bytes_untold < ACK_BYTES) return;
    t->records_untold = 0;
    t->bytes_untold = 0;
    gv_tcp_ack_now(t);
}

/* Whether something is there to be read, or has happened. */
static bool receivable(struct tcp *t) {
    if (atomic_exchange(&t->woken, false) || gv_link_dead(&t->link)) return true;
    gv_spin_lock(&t->receiving);
    bool some = whole(t) != GV_FRAMED_PART || gv_tcp_fill(t);
    if (!some) gv_framing_prepare_to_look(&t->framing_in);
    gv_spin_unlock(&t->receiving);
    return some;
}

/* Whether the packets from the peer come in on this very core: over the loopback device it sent them from here. */
static void make_way(struct tcp *t) {
    int cpu = -1, here = sched_getcpu();
    socklen_t size = sizeof cpu;
    if (getsockopt(t->fd, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &size) == 0 && cpu == here) gv_leave_core(here, &t->moved_at);
}

void gv_tcp_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns) {
    struct tcp *t = (struct tcp *)link;
    now_reading(t);
    int64_t now = gv_now_ns(), until = now + timeout_ns, spin_end = now + (spin_ns < timeout_ns ? spin_ns : timeout_ns);
    for (;;) {
        if (receivable(t)) return;
        now = gv_now_ns();
        if (now >= spin_end) break;
        /* Who spins keeps others from this core: the peer, or a stream's thread. */
        if (t->makes_way) make_way(t);
        sched_yield();
    }
    while (now < until) {
        int64_t left = until - now;
        struct timespec limit = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        struct pollfd fds[2] = {{.fd = t->wake_fd, .events = POLLIN}, {.fd = t->fd, .events = POLLIN}};
        int n = ppoll(fds, gv_resume_is_up(&t->resume) ? 2 : 1, &limit, NULL);
        if (n > 0 && fds[0].revents) {
            uint64_t count;
            if (read(t->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN) gv_link_kill_errno(link, "", errno);
        }
        if (receivable(t)) return;
        now = gv_now_ns();
    }
}

void gv_tcp_wake(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    uint64_t one = 1;
    atomic_store(&t->woken, true);
    if (write(t->wake_fd, &one, sizeof one) < 0) return; /* its count is full: it wakes all the same */
}

/* ---- back-pressure */

/* Back-pressure: whether this thread must wait for acknowledgements. The last thread to look for records is the reader and is exempt, or nobody
 * would read the acknowledgements that the others wait for. */
static bool held_back(struct tcp *t) {
    return atomic_load_explicit(&t->n_unacked, memory_order_relaxed) >= UNACKED_LIMIT &&
           atomic_load_explicit(&t->reader, memory_order_relaxed) != (uint64_t)pthread_self();
}

static void await_acknowledgement(struct tcp *t) {
    uint32_t seen = atomic_load(&t->held_back) | 1;
    atomic_store(&t->held_back, seen);
    /* Nobody may be reading just now. Acknowledgements that come before the next record are taken here as well as there. */
    gv_spin_lock(&t->receiving);
    next(t);
    gv_spin_unlock(&t->receiving);
    gv_tcp_push(t); /* what was acknowledged is let go of here */
    if (held_back(t) && !gv_link_dead(&t->link)) gv_futex_wait(&t->held_back, seen, 2000000);
}

int64_t gv_tcp_admit(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    if (!held_back(t)) return 0;
    int64_t since = gv_now_ns();
    while (held_back(t) && !gv_link_dead(link)) await_acknowledgement(t);
    return since;
}
