/* Completions that are held back: until the payload that they name has been received, until the copies of other streams that theirs is ordered after
 * have their bytes, and until the thread that posted the command has said what it is ordered after. */
#include <pthread.h>
#include <stdlib.h>

#include "session/session_state.h"

#define HELD_MAX (1u << 20)
#define BUCKETS 256u
#ifndef COMPLETIONS_STEP /* a test counts what a flood costs */
#define COMPLETIONS_STEP() ((void)0)
#endif

struct held {
    uint64_t arrival; /* counts completions that were held, of all streams */
    uint64_t upto, bulk;
    uint64_t behind; /* of EXPECT_BEHIND */
    int status;
    struct held *next;
};

/* A stream's completions, in their order: while the first is held, so are those behind it. */
struct queue {
    uint64_t stream;
    struct held *first, *last;
    struct held *failed; /* the first with a status, if it is not tried yet: copies that the others wait for may never come because of it */
    struct queue *in_bucket;
    struct queue *next, *previous; /* in the list of all */
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct queue *buckets[BUCKETS];
/* By the arrival of their first: what a program sees of several streams is the order in which the server said it. */
static struct queue *all, *all_last;
static uint64_t arrivals;
static _Atomic size_t n_held;

static struct queue **find(uint64_t stream) {
    struct queue **at = &buckets[(stream ^ stream >> 8 ^ stream >> 16) % BUCKETS];
    while (*at && (*at)->stream != stream) at = &(*at)->in_bucket;
    return at;
}

/* lock held. */
static enum expect_outcome attempt(const struct queue *q, struct held *h) {
    COMPLETIONS_STEP();
    if (h->bulk > atomic_load(&session.received)) return EXPECT_RECEIVING;
    uint64_t receiving;
    enum expect_outcome outcome = stream_publish(q->stream, h->upto, h->status, &receiving, &h->behind);
    if (outcome == EXPECT_RECEIVING) h->bulk = receiving; /* has not been received: that is counted with this lock held */
    return outcome;
}

static bool is_over(enum expect_outcome outcome) { return outcome == EXPECT_ENDED || outcome == EXPECT_MISSING; }

static void unlist(struct queue *q) {
    *(q->previous ? &q->previous->next : &all) = q->next;
    *(q->next ? &q->next->previous : &all_last) = q->previous;
}

/* before: NULL: as the last. */
static void list(struct queue *q, struct queue *before) {
    q->next = before;
    q->previous = before ? before->previous : all_last;
    *(q->previous ? &q->previous->next : &all) = q;
    *(before ? &before->previous : &all_last) = q;
}

static void remove_queue(struct queue *q) {
    *find(q->stream) = q->in_bucket;
    unlist(q);
    free(q);
}

/* The queue of a stream, an empty one where there was none. NULL: no memory. */
static struct queue *queue_of(uint64_t stream) {
    struct queue **at = find(stream), *q = *at;
    if (q || !(q = calloc(1, sizeof *q))) return q;
    q->stream = stream;
    *at = q;
    list(q, NULL);
    return q;
}

/* The completion is counted before it is tried: whoever makes it possible and finds nothing held has done so before the try. lock held. */
static bool hold(uint64_t stream, struct held new, enum expect_outcome *outcome) {
    struct queue *q = atomic_load(&n_held) < HELD_MAX ? queue_of(stream) : NULL;
    struct held *last = q ? q->last : NULL;
    if (!q) return false;
    atomic_fetch_add(&n_held, 1);
    /* A stream's completions keep their order, also when a later one names no payload. */
    if (last && last->bulk > new.bulk) new.bulk = last->bulk;
    *outcome = attempt(q, &new);
    bool done = is_over(*outcome), kept = true;
    /* Two that wait for the same are one, if no other stream's has come between them. */
    if (!done && last && last->bulk == new.bulk && last->behind == new.behind && last->arrival == arrivals) {
        if (new.upto > last->upto) last->upto = new.upto;
        if (new.status) last->status = new.status;
        if (new.status && !q->failed) q->failed = last;
        done = true;
    }
    struct held *h = done ? NULL : malloc(sizeof *h);
    if (h) {
        *h = new;
        h->arrival = ++arrivals;
        *(last ? &last->next : &q->first) = h;
        q->last = h;
        if (h->status && !q->failed) q->failed = h;
    } else {
        kept = done;
        atomic_fetch_sub(&n_held, 1);
        if (!q->first) remove_queue(q);
    }
    return kept;
}

void completion_publish(uint64_t stream, uint64_t upto, uint64_t bulk, int status) {
    enum expect_outcome outcome = EXPECT_RECEIVING;
    uint64_t receiving, behind;
    if (bulk <= atomic_load(&session.received) && !atomic_load(&n_held)) outcome = stream_publish(stream, upto, status, &receiving, &behind);
    bool kept = true;
    if (!is_over(outcome)) {
        pthread_mutex_lock(&lock);
        /* Of a stream that there is not nothing is held: as many as the server likes to name. */
        if (stream_is_known(stream)) kept = hold(stream, (struct held){.upto = upto, .bulk = bulk, .status = status}, &outcome);
        pthread_mutex_unlock(&lock);
    }
    if (outcome == EXPECT_MISSING) expect_missing();
    if (!kept) session_lost("too many completions wait for data that does not come", NULL);
}

/* Whether the queue's first can be taken out now. lock held. */
static bool first_is_over(struct queue *q, bool *missing) {
    enum expect_outcome outcome = attempt(q, q->first);
    if (!is_over(outcome) && q->failed && q->failed != q->first && is_over(attempt(q, q->failed))) {
        q->failed = NULL; /* the stream has its status: the first no longer waits for copies */
        outcome = attempt(q, q->first);
    }
    *missing |= outcome == EXPECT_MISSING;
    return is_over(outcome);
}

/* Takes out the first of a queue, which then has its place by the next one. Returns the queue to go on with. lock held. */
static struct queue *take_first(struct queue *q) {
    struct queue *next = q->next, *before = next;
    struct held *h = q->first;
    if (!(q->first = h->next)) q->last = NULL;
    if (q->failed == h) q->failed = NULL;
    free(h);
    atomic_fetch_sub(&n_held, 1);
    if (!q->first) {
        remove_queue(q);
        return next;
    }
    while (before && before->first->arrival < q->first->arrival) before = before->next;
    if (before == next) return q;
    unlist(q);
    list(q, before);
    return next;
}

/* Whether one turned out to be false; lock held. */
static bool publish_held(void) {
    bool missing = false;
    for (struct queue *q = all; q;) q = first_is_over(q, &missing) ? take_first(q) : q->next;
    return missing;
}

void completions_retry(void) {
    if (!atomic_load(&n_held)) return;
    pthread_mutex_lock(&lock);
    bool missing = publish_held();
    pthread_mutex_unlock(&lock);
    if (missing) expect_missing();
    progress_changed();
}

void completions_received(uint64_t number) {
    pthread_mutex_lock(&lock);
    atomic_store(&session.received, number);
    bool missing = publish_held();
    pthread_mutex_unlock(&lock);
    if (missing) expect_missing();
    progress_changed();
}

int completions_inline(uint64_t tag, int status, const void *data, uint32_t size) {
    if (!host_write_begin()) return 0;
    pthread_mutex_lock(&lock); /* the other thread that publishes completions must find the copy whole or open */
    int bad = expect_inline(tag, status, data, size);
    pthread_mutex_unlock(&lock);
    host_write_end();
    completions_retry();
    return bad;
}

/* Another thread of the parent may have held the lock. */
void completions_in_child(void) { atomic_store(&n_held, 0); }

/* ---- what makes some possible -------------------------------------------------------------------------------------- */

void session_stream_posted(struct session_stream *s, uint64_t seq, bool marked, bool fence) {
    stream_note_posted(s, seq, marked, fence);
    completions_retry();
}

void session_stream_remove(struct session_stream *s) {
    stream_forget(s);
    completions_retry();
}

void completions_context_failed(uint32_t ctx, int status) {
    stream_context_failed(ctx, status);
    completions_retry();
}
