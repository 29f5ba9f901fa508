/* Read-ahead: a thread that reads the link while the executor is blocked.
 *
 * It notices that the client is gone. And where the executor waits for the device (too much in flight, a driver call that waits by itself), the
 * device may in turn wait for something that lies in the link behind commands not yet taken: the client's answer to a host function, or its
 * acknowledgement of data that occupies memory or gates a stream. Answers to host functions take effect at once, acknowledgements are handled by the
 * link, and all other records are queued for the executor in their order. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../wire/clock.h"
#include "state.h"

#define LOOK_NS 20000000 /* ns between polls of the link */
/* Longest wait in ns for a record while the executor is blocked, which may want the link back; and the ns for which an offer stands before it is taken. */
#define AHEAD_NS 1000000
#define WATCHED 20 /* looks without an offer, after which it is looked for every LOOK_NS only */

#define OFFERED 1ull
#define TAKEN (1ull << 63)

bool worker_aside_put(struct worker *w, const struct gv_record *record, bool front) {
    struct worker_aside *a = malloc(sizeof *a + record->size);
    if (!a) return false;
    memcpy(a->record, record, record->size);
    a->next = front ? w->aside_first : NULL;
    if (front)
        w->aside_first = a;
    else if (w->aside_last)
        w->aside_last->next = a;
    else
        w->aside_first = a;
    if (!a->next) w->aside_last = a;
    w->aside_bytes += record->size;
    return true;
}

struct worker_aside *worker_aside_take(struct worker *w) {
    struct worker_aside *a = w->aside_first;
    if (!a) return NULL;
    w->aside_first = a->next;
    if (!a->next) w->aside_last = NULL;
    w->aside_bytes -= a->record->size;
    return a;
}

void worker_ahead_begin(struct worker *w) {
    pthread_mutex_lock(&w->ahead_lock);
    w->ahead = true;
    pthread_cond_signal(&w->ahead_changed);
    pthread_mutex_unlock(&w->ahead_lock);
}

void worker_ahead_offer(struct worker *w) {
    atomic_fetch_add(&w->ahead_offer, OFFERED);
    /* Not under the lock, which read-ahead keeps once it has taken the offer. A signal that is lost costs LOOK_NS. */
    if (!atomic_load(&w->ahead_watches)) pthread_cond_signal(&w->ahead_changed);
}

void worker_ahead_retract(struct worker *w) {
    uint64_t offer = atomic_load(&w->ahead_offer) & ~TAKEN, next = offer + OFFERED;
    if (atomic_compare_exchange_strong(&w->ahead_offer, &offer, next)) return;
    worker_ahead_end(w);
    atomic_store(&w->ahead_offer, next);
}

/* Takes an offer that stood at the last look already, at which it was `*seen`. ahead_lock held. Whether there is one. */
static bool take_offer(struct worker *w, uint64_t *seen) {
    uint64_t offer = atomic_load(&w->ahead_offer);
    bool stands = offer & OFFERED, stood = stands && offer == *seen && !(offer & TAKEN);
    *seen = offer;
    if (stood && atomic_compare_exchange_strong(&w->ahead_offer, &offer, offer | TAKEN)) w->ahead = true;
    return stands;
}

/* The lock alone would not do: the thread that lets it go and wants it again has it before one that sleeps has woken up, for seconds where there are idle
 * processors. So it is asked to wait for `ahead_changed`, during which it cannot have it. */
void worker_ahead_end(struct worker *w) {
    atomic_store(&w->ahead_ends, true);
    gv_recv_wake(w->link);
    pthread_mutex_lock(&w->ahead_lock);
    w->ahead = false;
    atomic_store(&w->ahead_ends, false);
    pthread_mutex_unlock(&w->ahead_lock);
}

/* An answer to a host function, which needs no executor. */
static bool is_answer(struct worker *w, const struct gv_record *record) {
    struct gv_cmd_host_done done;
    return record->op == GV_OP_HOST_DONE && !gv_cmd_host_done_decode(&done, record + 1, record->size - (uint32_t)sizeof *record) &&
           worker_host_done(w, done.tag);
}

/* Reads one record, or waits for it at most AHEAD_NS. ahead_lock held: this thread owns the link. False: the next record cannot be taken now. */
static bool read_on(struct worker *w) {
    const struct gv_record *record = gv_recv_peek(w->link);
    if (!record) {
        gv_recv_wait(w->link, AHEAD_NS, 0);
        return true;
    }
    if (is_answer(w, record)) {
        atomic_fetch_add_explicit(&w->commands, 1, memory_order_relaxed);
    } else {
        bool host = worker_waits_for_host(w);
        uint64_t limit = host || atomic_load(&w->outgoing_bytes) ? WORKER_MAX_AHEAD : WORKER_SOME_AHEAD;
        bool fits = w->aside_bytes + record->size <= limit;
        if (!fits && !host) return false; /* back-pressure: the client waits */
        if (!fits || !worker_aside_put(w, record, false)) {
            gv_link_kill(w->link, "too many commands wait behind a host function");
            return true;
        }
    }
    gv_recv_consume(w->link);
    return true;
}

static void *read_ahead(void *arg) {
    struct worker *w = arg;
    uint64_t seen = 0;
    int idle_looks = WATCHED;
    pthread_mutex_lock(&w->ahead_lock);
    while (!atomic_load(&w->stopping)) {
        if (gv_link_dead(w->link)) {
            worker_stop(w);
            break;
        }
        idle_looks = take_offer(w, &seen) ? 0 : idle_looks < WATCHED ? idle_looks + 1 : WATCHED;
        atomic_store(&w->ahead_watches, idle_looks < WATCHED);
        bool reads = w->ahead && !atomic_load(&w->ahead_ends);
        if (reads && read_on(w)) continue;
        struct timespec until = gv_deadline(CLOCK_MONOTONIC, reads || idle_looks < WATCHED ? AHEAD_NS : LOOK_NS);
        pthread_cond_timedwait(&w->ahead_changed, &w->ahead_lock, &until);
    }
    pthread_mutex_unlock(&w->ahead_lock);
    return NULL;
}

int worker_read_ahead_start(struct worker *w) {
    w->has_read_ahead = pthread_create(&w->read_ahead, NULL, read_ahead, w) == 0;
    return w->has_read_ahead ? 0 : -1;
}

void worker_read_ahead_stop(struct worker *w) {
    pthread_mutex_lock(&w->ahead_lock);
    pthread_cond_signal(&w->ahead_changed);
    pthread_mutex_unlock(&w->ahead_lock);
    if (w->has_read_ahead) pthread_join(w->read_ahead, NULL);
    w->has_read_ahead = false;
}
