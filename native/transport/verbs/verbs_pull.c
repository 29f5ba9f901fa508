/* The borrower's side: bytes that the peer has lent are read by our devices, in slices over all rails, a few at a time. What was under way when the queues broke
 * is read again; without a rail the peer is asked for the bytes over the TCP connection. */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>

#include "verbs.h"

#define SPIN_NS 50000
#define READS_BESIDE 2u   /* under way on each queue while records come, which wait on the wire behind the reads' bytes */
#define BESIDE_NS 1000000 /* so long after the last one */
#define SLICES (GV_VERBS_RAILS_MAX * VERBS_READS)
#define IN_VAIN 50u /* times that the queues may break before anything came */

struct slice {
    uint64_t end;
    struct verbs_queue *queue;
    uint64_t read;
};

struct pull {
    uint8_t *to;
    uint64_t from, size;
    const struct verbs_region *region; /* where `to` lies; NULL: in the link's own memory */
    uint64_t asked, done;              /* bytes; done: all before it are there */
    uint32_t generation, in_vain;
    struct slice slices[SLICES]; /* that are under way, in the order of their bytes */
    uint32_t first, n;
};

static bool over(const struct verbs *v) { return gv_link_dead(&v->link) || atomic_load(&v->peer_gone); }

static uint32_t local_key(const struct verbs *v, const struct pull *p, const struct verbs_queue *q) {
    uint32_t rail = (uint32_t)(q->rail - v->rails);
    return (p->region ? p->region->mr[rail] : v->out_mr[rail])->lkey;
}

/* A queue that takes another read, the next in turn; its posting lock is held. NULL: none does. bulk_posting held. */
static struct verbs_queue *next_queue(struct verbs *v, uint32_t most) {
    for (uint32_t i = 0; i < v->n_queues; i++) {
        struct verbs_queue *q = &v->bulk[v->next_queue++ % v->n_queues];
        gv_spin_lock(&q->posting);
        if (q->qp && gv_verbs_queue_may_read(q, most)) return q;
        gv_spin_unlock(&q->posting);
    }
    return NULL;
}

/* How many reads a queue may have under way now. */
static uint32_t reads_now(struct verbs *v) {
    uint64_t received = atomic_load_explicit(&v->received, memory_order_relaxed);
    int64_t now = gv_now_ns();
    if (received != v->seen_received) v->beside_until = now + BESIDE_NS;
    v->seen_received = received;
    return now < v->beside_until ? READS_BESIDE : VERBS_READS;
}

/* bulk_posting held. */
static void ask(struct verbs *v, struct pull *p) {
    uint32_t most = reads_now(v);
    while (p->asked < p->size && p->n < SLICES) {
        struct verbs_queue *q = next_queue(v, most);
        if (!q) return;
        uint64_t size = p->size - p->asked < VERBS_SLICE ? p->size - p->asked : VERBS_SLICE;
        uint64_t read = gv_verbs_queue_read(q, p->to + p->asked, local_key(v, p, q), p->from + p->asked, v->lent.keys[q->peer_rail], (uint32_t)size);
        gv_spin_unlock(&q->posting);
        if (!read) return;
        p->asked += size;
        p->slices[(p->first + p->n++) % SLICES] = (struct slice){p->asked, q, read};
    }
}

/* Forgets slices that have come. bulk_posting held. */
static void settle(struct pull *p) {
    for (; p->n; p->n--, p->first = (p->first + 1) % SLICES) {
        const struct slice *s = &p->slices[p->first];
        gv_spin_lock(&s->queue->posting);
        gv_verbs_queue_may_read(s->queue, 0); /* takes completions */
        bool done = s->queue->reads_done >= s->read;
        gv_spin_unlock(&s->queue->posting);
        if (!done) return;
        p->done = s->end;
        p->in_vain = 0;
    }
}

/* One look: asks for more, takes what has come. */
static void look(struct verbs *v, struct pull *p) {
    gv_spin_lock(&v->bulk_posting);
    if (p->generation != atomic_load(&v->queue_generation)) { /* what those queues had under way has come, or never will */
        p->generation = atomic_load(&v->queue_generation);
        p->asked = p->done;
        p->n = 0;
        p->in_vain++;
    }
    settle(p);
    if (gv_resume_is_up(&v->resume)) ask(v, p);
    gv_spin_unlock(&v->bulk_posting);
    for (uint32_t i = 0; i < v->n_queues; i++)
        if (gv_verbs_queue_broken(&v->bulk[i])) gv_verbs_broke(v, &v->bulk[i]);
    if (p->in_vain > IN_VAIN) gv_link_kill(&v->link, "malformed payload: the memory that the peer has lent cannot be read");
}

/* Something has come since `p` was looked at last, or cannot come any more. */
static bool changed(struct verbs *v, void *arg) {
    struct pull *p = arg;
    uint64_t done = p->done;
    uint32_t in_vain = p->in_vain;
    look(v, p);
    return p->done != done || p->in_vain != in_vain || atomic_load(&v->over_tcp) || over(v);
}

/* ---- over TCP */

static uint64_t carried(struct verbs *v) {
    gv_spin_lock(&v->bulk_polling);
    uint64_t came = v->carrier.pull_came;
    gv_spin_unlock(&v->bulk_polling);
    return came;
}

struct question {
    uint64_t size, came;
};

static bool answered(struct verbs *v, void *arg) {
    const struct question *q = arg;
    return carried(v) != q->came || !atomic_load(&v->over_tcp) || !gv_resume_is_up(&v->resume) || over(v);
}

/* As far as the connection goes. */
static void pull_over_tcp(struct verbs *v, struct pull *p) {
    struct question q = {.size = p->size - p->done};
    bool of_device = p->region && p->region->of_device;
    uint8_t *to = of_device ? v->out->bounce : p->to + p->done;
    if (of_device && q.size > VERBS_BOUNCE) q.size = VERBS_BOUNCE;
    uint32_t generation = atomic_load(&v->queue_generation);
    gv_verbs_carrier_ask(v, generation, p->from + p->done, to, q.size);
    while (q.came < q.size && atomic_load(&v->over_tcp) && generation == atomic_load(&v->queue_generation) && !over(v)) {
        if (gv_verbs_carry_out(v) == VERBS_NO_ROOM) gv_verbs_kick(v);
        gv_verbs_poll_bulk(v);
        if (carried(v) == q.came) gv_verbs_bulk_sleep(v, answered, &q);
        q.came = carried(v);
    }
    if (of_device && q.came && !gv_verbs_memory_move(p->region, p->to + p->done, to, q.came, true)) gv_link_kill(&v->link, GV_VERBS_NO_MOVE);
    p->done += q.came;
    p->asked = p->done;
}

/* ---- both */

static bool pull(struct verbs *v, struct pull *p) {
    p->generation = atomic_load(&v->queue_generation);
    while (p->done < p->size) {
        if (over(v)) gv_link_kill(&v->link, "the peer closed the connection");
        if (gv_link_dead(&v->link)) {
            gv_verbs_close_queues(v); /* so that no device writes there later */
            return false;
        }
        if (atomic_load(&v->over_tcp)) {
            pull_over_tcp(v, p);
            continue;
        }
        bool some = changed(v, p);
        for (int64_t end = gv_now_ns() + SPIN_NS; !some && gv_now_ns() < end; sched_yield()) {
            gv_verbs_poll_bulk(v);
            some = changed(v, p);
        }
        if (!some) gv_verbs_bulk_sleep(v, changed, p);
    }
    return true;
}

bool gv_verbs_pull(struct verbs *v, uint8_t *to, uint64_t size) {
    struct verbs_region *region = to ? gv_verbs_memory_use(&v->memory, to, size) : NULL;
    bool good = true;
    for (uint64_t at = 0; to && good && at < size;) {
        uint64_t n = region || size - at < VERBS_BOUNCE ? size - at : VERBS_BOUNCE;
        struct pull p = {.to = region ? to : v->out->bounce, .from = v->lent.at + at, .size = n, .region = region};
        good = pull(v, &p);
        if (good && !region) memcpy(to + at, v->out->bounce, n);
        at += n;
    }
    if (region) gv_verbs_memory_used(&v->memory, region);
    v->lent.at += size;
    if (good && to) atomic_fetch_add_explicit(&v->bytes_pulled, size, memory_order_relaxed);
    if (good && region) atomic_fetch_add_explicit(&v->bytes_in_place, size, memory_order_relaxed);
    return good;
}
