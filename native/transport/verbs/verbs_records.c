/* Records over verbs. A sender's record is posted at once when nothing of its queue is under way; what comes meanwhile gathers, and goes out with one
 * doorbell when there is enough of it, when somebody waits, or when the link's own thread comes by. */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <string.h>

#include "verbs.h"

#define GATHER_BYTES 4096u    /* of records behind one doorbell */
#define FULL_SPIN_NS 20000    /* a sender that finds its ring full looks for so long before it sleeps, */
#define FULL_SLEEP_NS 1000000 /* and then so long at a time */
#define SLEEP_NS 1000000000ll /* a reader looks again at the latest */

/* ---- sending */

/* The ring's bytes that are to go, as writes: two where the ring begins again. Of a pad only the head is sent. */
static uint32_t cut(const struct verbs *v, uint64_t from, uint64_t tail, struct verbs_write writes[2]) {
    uint32_t n = 0;
    while (from != tail && n < 2) {
        uint64_t offset = from & (VERBS_RECORD_RING - 1), end = from - offset + VERBS_RECORD_RING,
                 pad_at = atomic_load_explicit(&v->tx.pad_at, memory_order_relaxed);
        uint64_t next = end < tail ? end : tail, size = next - from;
        if (pad_at >= from && pad_at < next &&
            pad_at / VERBS_RECORD_RING == from / VERBS_RECORD_RING) { /* what follows the pad's head up to the ring's end is nothing */
            size = pad_at + 8 - from;
            next = end;
        }
        writes[n++] = (struct verbs_write){.from = v->out->records + offset,
                                           .to = v->peer_records + offset,
                                           .size = (uint32_t)size,
                                           .tells = true,
                                           .news = verbs_news(VERBS_ARRIVED, next / 8)};
        from = next;
    }
    return n;
}

static bool owes(const struct verbs *v) {
    const struct verbs_queue *q = &v->queue;
    if (atomic_load_explicit(&v->over_tcp, memory_order_relaxed)) return gv_verbs_carrier_owes(v);
    uint64_t told = atomic_load_explicit(&q->told_read, memory_order_relaxed);
    return atomic_load_explicit(&v->in_control->head, memory_order_relaxed) - told >= VERBS_RECORD_RING / 8 || gv_verbs_queue_owes(q);
}

/* queue.posting held. False: there is no room now. */
static bool send_some(struct verbs *v, enum verbs_pushed *result) {
    struct verbs_queue *q = &v->queue;
    gv_verbs_queue_idle(q); /* what is done is known for the next record: it may go at once */
    uint64_t from = atomic_load_explicit(&v->handed_over, memory_order_relaxed), tail = atomic_load(&v->out_control->tail);
    struct verbs_write writes[2];
    uint32_t n = cut(v, from, tail, writes);
    bool note = owes(v);
    if (n && !gv_verbs_queue_room(q, n, n, false)) n = 0;
    if (!n && (!note || !gv_verbs_queue_room(q, 1, 1, true))) return from == tail;
    gv_verbs_queue_post(q, writes, n, note, atomic_load(&v->in_control->head));
    if (n) atomic_store(&v->handed_over, tail);
    *result = VERBS_PUSHED;
    return n || from == tail;
}

enum verbs_pushed gv_verbs_push(struct verbs *v) {
    struct verbs_queue *q = &v->queue;
    enum verbs_pushed result = VERBS_NOTHING_LEFT;
    if (atomic_load_explicit(&v->over_tcp, memory_order_relaxed)) return gv_verbs_carry_out(v);
    for (;;) {
        if (!gv_spin_try(&q->posting)) return VERBS_BUSY;
        bool usable = q->qp && gv_resume_is_up(&v->resume) && !gv_verbs_queue_broken(q), all = !usable || send_some(v, &result);
        uint64_t handed_over = atomic_load(&v->handed_over);
        bool broken = q->qp && gv_verbs_queue_broken(q), owing = usable && owes(v);
        gv_spin_unlock(&q->posting);
        if (broken) gv_verbs_broke(v, q);
        if (!all) return VERBS_NO_ROOM;
        if (!usable || broken || gv_link_dead(&v->link)) return result;
        /* Somebody may have committed, or come to owe, after we looked and found us still at it. */
        if (atomic_load(&v->out_control->tail) == handed_over && !owing) return result;
    }
}

static bool over(const struct verbs *v) { return gv_link_dead(&v->link) || atomic_load(&v->peer_gone); }

static bool wait_room(struct verbs *v) {
    if (v->tx.broken) {
        gv_link_kill(&v->link, "malformed note: the peer has read what was never sent");
        return false;
    }
    struct gv_ring_control *c = v->out_control;
    uint64_t seen = v->tx.head;
    for (int64_t now = gv_now_ns(), spin_end = now + FULL_SPIN_NS;; now = gv_now_ns()) {
        if (atomic_load(&c->head) != seen) return true;
        if (over(v)) {
            gv_link_kill(&v->link, "the peer is gone");
            return false;
        }
        gv_verbs_push(v);
        gv_verbs_poll_records(v);
        if (now < spin_end) continue;
        atomic_store(&c->writer_sleeps, GV_RING_ASLEEP);
        if (atomic_load(&c->head) == seen && !over(v)) gv_futex_wait(&c->writer_sleeps, GV_RING_ASLEEP, FULL_SLEEP_NS);
        atomic_store(&c->writer_sleeps, GV_RING_AWAKE);
    }
}

void *gv_verbs_reserve(struct gv_link *link, uint32_t size) {
    struct verbs *v = (struct verbs *)link;
    for (;;) {
        void *room = gv_ring_reserve(&v->tx, size);
        if (room) return room;
        if (!link->blocked_since) link->blocked_since = gv_now_ns();
        if (!wait_room(v)) return NULL;
    }
}

bool gv_verbs_publish(struct gv_link *link) {
    struct verbs *v = (struct verbs *)link;
    bool sleeps = gv_ring_publish(&v->tx);
    uint64_t handed_over = atomic_load_explicit(&v->handed_over, memory_order_relaxed), asked = handed_over > v->offered ? handed_over : v->offered;
    bool idle = !atomic_load_explicit(&v->queue.under_way, memory_order_relaxed);
    if (idle || v->tx.tail - asked >= GATHER_BYTES) {
        v->offered = v->tx.tail;
        return true;
    }
    if (sleeps) gv_verbs_kick(v);
    return false;
}

void gv_verbs_flush(struct gv_link *link) {
    struct verbs *v = (struct verbs *)link;
    if (gv_verbs_push(v) == VERBS_NO_ROOM) gv_verbs_kick(v);
}

/* ---- receiving */

static void came(void *arg, uint32_t news, uint32_t size) {
    struct verbs *v = arg;
    (void)size;
    if (news >> VERBS_POSITION_BITS == VERBS_ARRIVED) v->arrived = verbs_position(news, v->arrived / 8) * 8;
}

/* queue.polling held. */
void gv_verbs_take_in(struct verbs *v) {
    struct verbs_queue *q = &v->queue;
    if (!q->qp || !gv_verbs_queue_poll(q, came, v)) return;
    if (v->arrived != atomic_load_explicit(&v->in_control->tail, memory_order_relaxed)) atomic_store(&v->in_control->tail, v->arrived);
    gv_verbs_peer_has_read(v->out_control, atomic_load_explicit(&q->note->read, memory_order_acquire));
}

void gv_verbs_poll_records(struct verbs *v) {
    struct verbs_queue *q = &v->queue;
    if (atomic_load_explicit(&v->over_tcp, memory_order_relaxed)) gv_verbs_carry_in(v);
    if (!gv_spin_try(&q->polling)) return;
    gv_verbs_take_in(v);
    bool broken = q->qp && gv_verbs_queue_broken(q);
    gv_spin_unlock(&q->polling);
    if (broken) gv_verbs_broke(v, q);
}

/* Room goes back in large pieces. */
static void give_room(struct verbs *v) {
    gv_ring_release(&v->rx);
    if (owes(v)) gv_verbs_push(v);
}

struct gv_record *gv_verbs_next(struct gv_link *link) {
    struct verbs *v = (struct verbs *)link;
    for (bool looked = false;; looked = true) {
        bool gone = atomic_load_explicit(&v->peer_gone, memory_order_acquire); /* asked first: what came before the end is still read */
        int64_t got = gv_ring_read(&v->rx, v->record, GV_RECORD_MAX);
        if (got > 0) {
            atomic_store_explicit(&v->received, v->record->seq, memory_order_relaxed);
            return v->record;
        }
        if (got < 0) gv_link_kill(link, "malformed record: an impossible size or position in the ring");
        if (looked && gone && got == 0) gv_link_kill(link, "the peer closed the connection");
        if (looked || got < 0) break;
        gv_verbs_poll_records(v);
    }
    give_room(v);
    return NULL;
}

void gv_verbs_release(struct gv_link *link) {
    struct verbs *v = (struct verbs *)link;
    if (v->rx.head - v->rx.released >= VERBS_RECORD_RING / 8 || gv_verbs_queue_owes(&v->queue)) give_room(v);
}

static bool receivable(struct verbs *v) { return gv_ring_readable(&v->rx) || over(v) || atomic_exchange(&v->woken, false); }

/* The next record wakes us. */
static void arm(struct verbs *v) {
    gv_spin_lock(&v->queue.polling);
    gv_verbs_queue_arm(&v->queue);
    gv_verbs_take_in(v);
    gv_spin_unlock(&v->queue.polling);
}

void gv_verbs_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns) {
    struct verbs *v = (struct verbs *)link;
    int64_t now = gv_now_ns(), until = now + timeout_ns, spin_end = now + (spin_ns < timeout_ns ? spin_ns : timeout_ns);
    give_room(v);
    for (;; now = gv_now_ns()) {
        gv_verbs_poll_records(v);
        if (receivable(v)) return;
        if (now >= spin_end) break;
        sched_yield();
    }
    while (now < until) {
        atomic_store(&v->in_control->reader_sleeps, GV_RING_ASLEEP);
        arm(v);
        if (receivable(v)) break;
        int64_t left = until - now < SLEEP_NS ? until - now : SLEEP_NS;
        struct timespec limit = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        struct ibv_comp_channel *channel = v->channel[atomic_load(&v->lead)];
        struct pollfd fds[2] = {{.fd = v->wake_fd, .events = POLLIN}, {.fd = channel->fd, .events = POLLIN}};
        int n = ppoll(fds, 2, &limit, NULL);
        atomic_store(&v->in_control->reader_sleeps, GV_RING_AWAKE);
        uint64_t count;
        if (n > 0 && fds[0].revents && read(v->wake_fd, &count, sizeof count) < 0) n = 0; /* another wake-up took it */
        if (n > 0 && fds[1].revents) gv_verbs_channel_drain(v->library, channel);
        gv_verbs_poll_records(v);
        if (receivable(v)) break;
        now = gv_now_ns();
    }
    atomic_store(&v->in_control->reader_sleeps, GV_RING_AWAKE);
}

void gv_verbs_wake(struct gv_link *link) {
    struct verbs *v = (struct verbs *)link;
    uint64_t one = 1;
    atomic_store(&v->woken, true);
    if (write(v->wake_fd, &one, sizeof one) < 0) return; /* its count is full: it wakes all the same */
}
