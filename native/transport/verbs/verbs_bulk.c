/* The ring of payloads over verbs: slices over all rails, in turn. The receiver puts those that came early aside, and has bytes once they are without a gap. */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <string.h>

#include "../../wire/record.h"
#include "verbs.h"

#define PIECE (256u << 10)    /* both sides copy at the same time, and the piece stays in the caches */
#define SPIN_NS 20000         /* within a large payload the next piece is on its way */
#define FULL_SLEEP_NS 1000000 /* a sender that finds its ring full looks again so often */
#define SLEEP_NS 1000000000ll

static bool over(const struct verbs *v) { return gv_link_dead(&v->link) || atomic_load(&v->peer_gone); }

/* ---- sending */

/* A queue with room for one slice, the next in turn; its posting lock is held. NULL: none has. bulk_posting held. */
static struct verbs_queue *next_queue(struct verbs *v) {
    for (uint32_t i = 0; i < v->n_queues; i++) {
        struct verbs_queue *q = &v->bulk[v->next_queue++ % v->n_queues];
        gv_spin_lock(&q->posting);
        if (q->qp && !gv_verbs_queue_broken(q) && gv_verbs_queue_room(q, 1, 1, false)) return q;
        gv_spin_unlock(&q->posting);
    }
    return NULL;
}

/* bulk_posting held. False: there is no room now. */
static bool send_slices(struct verbs *v, uint64_t tail) {
    for (uint64_t start; (start = atomic_load_explicit(&v->bulk_handed_over, memory_order_relaxed)) < tail;) {
        struct verbs_queue *q = next_queue(v);
        if (!q) return false;
        uint64_t end = (start / VERBS_SLICE + 1) * VERBS_SLICE, offset = start & (VERBS_BULK_RING - 1);
        if (end > tail) end = tail;
        struct verbs_write write = {.from = v->out->payloads + offset,
                                    .to = v->peer_payloads + offset,
                                    .size = (uint32_t)(end - start),
                                    .tells = true,
                                    .news = verbs_news(VERBS_ARRIVED, end)};
        bool posted = gv_verbs_queue_post(q, &write, 1, false, atomic_load(&v->bulk_in_control->head));
        gv_spin_unlock(&q->posting);
        if (!posted) return false;
        atomic_store(&v->bulk_handed_over, end);
    }
    return true;
}

static void find_broken(struct verbs *v) {
    for (uint32_t i = 0; i < v->n_queues; i++)
        if (gv_verbs_queue_broken(&v->bulk[i])) gv_verbs_broke(v, &v->bulk[i]);
}

void gv_verbs_push_bulk(struct verbs *v) {
    if (atomic_load_explicit(&v->over_tcp, memory_order_relaxed)) {
        if (gv_verbs_carry_out(v) == VERBS_NO_ROOM) gv_verbs_kick(v);
        return;
    }
    for (;;) {
        if (!gv_spin_try(&v->bulk_posting)) return;
        uint64_t tail = atomic_load(&v->bulk_out_control->tail);
        bool all = !gv_resume_is_up(&v->resume) || send_slices(v, tail);
        gv_spin_unlock(&v->bulk_posting);
        if (!all) {
            gv_verbs_kick(v);
            find_broken(v);
        }
        if (!all || !gv_resume_is_up(&v->resume) || atomic_load(&v->bulk_out_control->tail) == tail) return;
    }
}

static bool wait_room(struct verbs *v) {
    if (v->bulk_tx.broken) {
        gv_link_kill(&v->link, "malformed note: the peer has read what was never sent");
        return false;
    }
    struct gv_ring_control *c = v->bulk_out_control;
    uint64_t seen = v->bulk_tx.head;
    for (int64_t now = gv_now_ns(), spin_end = now + SPIN_NS;; now = gv_now_ns()) {
        if (atomic_load(&c->head) != seen) return true;
        if (over(v)) {
            gv_link_kill(&v->link, "the peer is gone");
            return false;
        }
        gv_verbs_push_bulk(v);
        gv_verbs_poll_bulk(v);
        if (now < spin_end) continue;
        atomic_store(&c->writer_sleeps, GV_RING_ASLEEP);
        if (atomic_load(&c->head) == seen && !over(v)) gv_futex_wait(&c->writer_sleeps, GV_RING_ASLEEP, FULL_SLEEP_NS);
        atomic_store(&c->writer_sleeps, GV_RING_AWAKE);
    }
}

bool gv_verbs_bulk_put(struct verbs *v, const void *data, uint64_t size, bool push) {
    const uint8_t *p = data;
    while (size) {
        bool wake;
        uint64_t n = gv_ring_put(&v->bulk_tx, p, size < PIECE ? size : PIECE, &wake);
        if (gv_link_dead(&v->link)) return false;
        if (n && (push || n < size)) gv_verbs_push_bulk(v);
        if (n == 0 && !wait_room(v)) return false;
        p += n;
        size -= n;
    }
    return true;
}

/* ---- receiving */

/* What was put aside and follows now. bulk_polling held. */
static void take_early(struct verbs *v) {
    for (uint32_t i = 0; i < v->n_early;) {
        if (v->early[i].start != v->bulk_arrived) {
            i++;
            continue;
        }
        v->bulk_arrived = v->early[i].end;
        v->early[i] = v->early[--v->n_early];
        i = 0;
    }
}

static void came(void *arg, uint32_t news, uint32_t size) {
    struct verbs *v = arg;
    if (news >> VERBS_POSITION_BITS != VERBS_ARRIVED) return;
    uint64_t end = verbs_position(news, v->bulk_arrived), start = end - size;
    if (size == 0 || size > VERBS_SLICE || start < v->bulk_arrived || v->n_early == VERBS_OUT_OF_ORDER) {
        gv_link_kill(&v->link, "malformed payload: a slice that was not to come");
    } else if (start == v->bulk_arrived) {
        v->bulk_arrived = end;
        take_early(v);
    } else {
        v->early[v->n_early++] = (struct verbs_span){start, end};
    }
}

void gv_verbs_poll_bulk_locked(struct verbs *v) {
    bool any = false;
    uint64_t read = 0;
    for (uint32_t i = 0; i < v->n_queues; i++) gv_verbs_loans_said(v, atomic_load_explicit(&v->bulk[i].note->pulled, memory_order_acquire));
    for (uint32_t i = 0; i < v->n_queues; i++) {
        struct verbs_queue *q = &v->bulk[i];
        if (!q->qp || !gv_verbs_queue_poll(q, came, v)) continue;
        any = true;
        uint64_t said = atomic_load_explicit(&q->note->read, memory_order_acquire);
        if (said > read) read = said; /* each rail's note says what was read when it was written */
    }
    if (!any) return;
    if (v->bulk_arrived != atomic_load_explicit(&v->bulk_in_control->tail, memory_order_relaxed)) {
        atomic_store(&v->bulk_in_control->tail, v->bulk_arrived);
        gv_verbs_wake_reader(&v->bulk_in_control->reader_sleeps, v->bulk_wake_fd);
    }
    gv_verbs_peer_has_read(v->bulk_out_control, read);
}

void gv_verbs_poll_bulk(struct verbs *v) {
    if (atomic_load_explicit(&v->over_tcp, memory_order_relaxed)) gv_verbs_carry_in(v);
    if (!gv_spin_try(&v->bulk_polling)) return;
    gv_verbs_poll_bulk_locked(v);
    gv_spin_unlock(&v->bulk_polling);
    gv_verbs_loans_settle(v);
    find_broken(v);
}

bool gv_verbs_owes_loans(const struct verbs *v) {
    uint64_t pulled = atomic_load(&v->pulled), told = atomic_load(&v->over_tcp) ? atomic_load(&v->carrier.told_pulled) : 0;
    for (uint32_t i = 0; i < v->n_queues; i++) {
        uint64_t said = atomic_load_explicit(&v->bulk[i].told_pulled, memory_order_relaxed);
        if (said > told) told = said;
    }
    return told != pulled;
}

void gv_verbs_tell(struct verbs *v) {
    if (gv_verbs_carrier_owes(v)) gv_verbs_push_bulk(v);
    uint64_t read = atomic_load(&v->bulk_in_control->head), told = 0;
    for (uint32_t i = 0; i < v->n_queues; i++) {
        uint64_t said = atomic_load_explicit(&v->bulk[i].told_read, memory_order_relaxed);
        if (said > told) told = said;
    }
    bool behind = read - told >= VERBS_BULK_RING / 8 || (gv_verbs_owes_loans(v) && !atomic_load(&v->over_tcp));
    for (uint32_t i = 0; i < v->n_queues; i++) {
        struct verbs_queue *q = &v->bulk[i];
        if (!behind && !gv_verbs_queue_owes(q)) continue;
        gv_spin_lock(&q->posting);
        bool room = q->qp && gv_resume_is_up(&v->resume) && !gv_verbs_queue_broken(q) && gv_verbs_queue_room(q, 2, 1, true);
        if (room && gv_verbs_queue_post(q, NULL, 0, true, read)) behind = false;
        gv_spin_unlock(&q->posting);
    }
    if (behind && gv_resume_is_up(&v->resume)) gv_verbs_kick(v); /* the link's own thread tries again */
}

/* The next slice wakes us, or the next read's end; what has come already is taken. */
static void arm(struct verbs *v) {
    gv_spin_lock(&v->bulk_polling);
    for (uint32_t i = 0; i < v->n_queues; i++) {
        struct verbs_queue *q = &v->bulk[i];
        gv_verbs_queue_arm(q);
        gv_spin_lock(&q->posting);
        if (q->reads_posted != q->reads_ended) gv_verbs_queue_arm_sends(q);
        gv_spin_unlock(&q->posting);
    }
    gv_verbs_poll_bulk_locked(v);
    gv_spin_unlock(&v->bulk_polling);
    gv_verbs_loans_settle(v);
    find_broken(v);
}

void gv_verbs_bulk_sleep(struct verbs *v, bool (*ready)(struct verbs *v, void *arg), void *arg) {
    atomic_store(&v->bulk_in_control->reader_sleeps, GV_RING_ASLEEP);
    arm(v);
    if (!ready(v, arg)) {
        struct pollfd fds[GV_VERBS_RAILS_MAX + 1] = {{.fd = v->bulk_wake_fd, .events = POLLIN}};
        for (uint32_t i = 0; i < v->n_rails; i++) fds[i + 1] = (struct pollfd){.fd = v->bulk_channel[i]->fd, .events = POLLIN};
        struct timespec limit = {.tv_sec = SLEEP_NS / 1000000000};
        int n = ppoll(fds, v->n_rails + 1, &limit, NULL);
        uint64_t count;
        if (n > 0 && fds[0].revents && read(v->bulk_wake_fd, &count, sizeof count) < 0) n = 1; /* another wake-up took it */
        for (uint32_t i = 0; n > 0 && i < v->n_rails; i++)
            if (fds[i + 1].revents) gv_verbs_channel_drain(v->library, v->bulk_channel[i]);
    }
    atomic_store(&v->bulk_in_control->reader_sleeps, GV_RING_AWAKE);
}
