/* Turns where the backend has none of its own, as a driver's kernels cannot be stopped from outside: between turns the executor hands no launch on, and during one only
 * as many as the device has done within some milliseconds, so that little is left to run when the turn ends. A launch counts until the mark behind it is reached. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>

#include "../../wire/clock.h"
#include "../state.h"

#define QUEUE_NS 10000000ll /* of work on the device that launches may be handed on ahead */
#define MOST_AHEAD 1024
#define FIRST_AHEAD 4      /* while it is not known what one takes */
#define LOOK_NS 20000000ll /* between two looks at whether the session is over */
/* A kernel may wait for one that is behind it (a flag, a value that a stream waits for): where nothing ends for so long one more launch is handed on. */
#ifndef STUCK_NS
#define STUCK_NS 100000000ll           /* during a turn; twice as long each time, until the queue is short again */
#define STUCK_STOPPING_NS 5000000000ll /* after it */
#endif

static bool over(struct worker *w) { return atomic_load(&w->stopping) || gv_link_dead(w->link); }

/* ---- under the lock ---- */

static bool enough_queued(const struct worker_gate *g) {
    int64_t most = g->each_ns ? 1 + QUEUE_NS / g->each_ns : FIRST_AHEAD;
    return g->inside >= (most < MOST_AHEAD ? most : MOST_AHEAD);
}

static bool closed(const struct worker_gate *g) { return g->words.may == GV_MUST_WAIT || (g->words.may == GV_MAY_NOW && enough_queued(g)); }

static bool stuck(struct worker_gate *g, int64_t since, int64_t now) {
    if (!g->inside) return false;
    int64_t last = g->last_end > since ? g->last_end : since;
    int64_t patience = g->words.may == GV_MUST_WAIT ? STUCK_STOPPING_NS : STUCK_NS << (g->passed < 16 ? g->passed : 16);
    return now - last > patience;
}

/* ---- launches: the executor, and marks on any thread ---- */

static struct worker_gate *gate_of(struct worker *w, const struct gv_record *record) {
    struct gv_cmd_launch launch;
    if (record->op != GV_OP_LAUNCH || !atomic_load_explicit(&w->turns.on, memory_order_relaxed)) return NULL;
    if (gv_cmd_launch_decode(&launch, record + 1, record->size - (uint32_t)sizeof *record)) return NULL;
    const struct worker_stream *s = handles_get(&w->streams, launch.stream);
    const struct worker_context *c = launch.stream > 1 ? (s ? s->context : NULL) : worker_context(w, record->ctx);
    return c ? &w->turns.gates[c->device] : NULL;
}

/* From here on it counts, so that nobody says meanwhile that all stands still. */
static void enter(struct worker *w, struct worker_gate *g) {
    if (!g->inside++) g->last_end = gv_now_ns();
    g->entered++;
    w->turns.entered = g;
    pthread_cond_signal(&w->turns.tell);
}

bool worker_has_turn(struct worker *w, const struct gv_record *record) {
    struct worker_gate *g = gate_of(w, record);
    if (!g) return true;
    pthread_mutex_lock(&w->turns.lock);
    bool may = !closed(g);
    if (may) {
        g->passed = 0;
        enter(w, g);
    }
    pthread_mutex_unlock(&w->turns.lock);
    return may;
}

void worker_await_turn(struct worker *w, const struct gv_record *record) {
    struct worker_gate *g = gate_of(w, record);
    if (!g) return;
    int64_t since = gv_now_ns();
    pthread_mutex_lock(&w->turns.lock);
    g->waiting++;
    pthread_cond_signal(&w->turns.tell);
    while (closed(g) && !over(w) && !stuck(g, since, gv_now_ns())) {
        if (atomic_load(&w->turns.mark_wanted)) { /* turns have begun since the executor looked, and nothing is said before there are marks */
            pthread_mutex_unlock(&w->turns.lock);
            worker_turns_here(w);
            pthread_mutex_lock(&w->turns.lock);
            continue;
        }
        struct timespec look = gv_deadline(CLOCK_REALTIME, LOOK_NS);
        pthread_cond_timedwait(&w->turns.changed, &w->turns.lock, &look);
    }
    g->passed = closed(g) ? g->passed + 1 : 0;
    g->waiting--;
    enter(w, g);
    pthread_mutex_unlock(&w->turns.lock);
}

struct worker_gate *worker_turn_taken(struct worker *w) {
    struct worker_gate *g = w->turns.entered;
    w->turns.entered = NULL;
    return g;
}

void worker_turn_unused(struct worker *w) {
    struct worker_gate *g = worker_turn_taken(w);
    if (g) worker_turn_end(w, g);
}

void worker_turn_end(struct worker *w, struct worker_gate *g) {
    int64_t now = gv_now_ns();
    pthread_mutex_lock(&w->turns.lock);
    int64_t took = now - g->last_end;
    g->each_ns = g->each_ns ? (3 * g->each_ns + took) / 4 : took;
    g->last_end = now;
    if (!--g->inside) pthread_cond_signal(&w->turns.tell);
    pthread_cond_broadcast(&w->turns.changed);
    pthread_mutex_unlock(&w->turns.lock);
}

/* ---- turns begin: what was queued before has no marks ---- */

struct earlier {
    struct worker *w;
    struct worker_gate *gate;
};

static void earlier_reached(void *arg, int status) {
    struct earlier *e = arg;
    (void)status;
    worker_turn_end(e->w, e->gate);
    free(e);
}

static void mark_stream(struct worker *w, struct worker_stream *s, const bool *unmarked) {
    struct worker_gate *g = &w->turns.gates[s->context->device];
    struct earlier *e = unmarked[s->context->device] ? malloc(sizeof *e) : NULL;
    if (!e) return;
    *e = (struct earlier){w, g};
    pthread_mutex_lock(&w->turns.lock);
    if (!g->inside++) g->last_end = gv_now_ns();
    pthread_mutex_unlock(&w->turns.lock);
    if (w->ops->mark(s->stream, earlier_reached, e)) earlier_reached(e, 0);
}

void worker_turns_here(struct worker *w) {
    bool unmarked[GV_MAX_DEVICES] = {0}; /* turns on another device may begin meanwhile, and want marks of their own */
    if (!atomic_exchange(&w->turns.mark_wanted, false)) return;
    pthread_mutex_lock(&w->turns.lock);
    for (uint32_t i = 0; i < w->n_devices; i++) unmarked[i] = w->turns.gates[i].unmarked;
    pthread_mutex_unlock(&w->turns.lock);
    for (uint64_t i = 0; i < w->streams.size; i++) {
        struct worker_stream *s = handles_at(&w->streams, i);
        if (s) mark_stream(w, s, unmarked);
    }
    for (uint64_t i = 0; i < w->contexts.size; i++) {
        struct worker_context *c = handles_at(&w->contexts, i);
        if (c && c->legacy) mark_stream(w, c->legacy, unmarked);
    }
    pthread_mutex_lock(&w->turns.lock);
    for (uint32_t i = 0; i < w->n_devices; i++)
        if (unmarked[i]) w->turns.gates[i].unmarked = false;
    pthread_cond_signal(&w->turns.tell);
    pthread_mutex_unlock(&w->turns.lock);
}

/* ---- words ---- */

static void *teller(void *arg) {
    struct worker *w = arg;
    struct worker_turns *t = &w->turns;
    pthread_mutex_lock(&t->lock);
    while (!t->ending) {
        bool said = false, watch = false;
        for (uint32_t device = 0; device < w->n_devices && !t->ending; device++) {
            struct worker_gate *g = &t->gates[device];
            if (g->words.may == GV_MAY_ALWAYS || g->unmarked) continue;
            uint32_t what = turn_words_next(&g->words, g->inside, g->waiting, g->entered, gv_now_ns()), number = g->words.number;
            watch |= g->words.busy;
            if (!what) continue;
            said = true;
            pthread_mutex_unlock(&t->lock);
            w->turns_said(w->turns_arg, w->ordinals[device], what, number);
            pthread_mutex_lock(&t->lock);
        }
        if (said || t->ending) continue;
        struct timespec until = gv_deadline(CLOCK_REALTIME, GV_TURN_LINGER_NS);
        if (watch)
            pthread_cond_timedwait(&t->tell, &t->lock, &until);
        else
            pthread_cond_wait(&t->tell, &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static bool has_teller(struct worker *w) {
    sigset_t all, before;
    if (w->turns.has_teller) return true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    w->turns.has_teller = !pthread_create(&w->turns.teller, NULL, teller, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return w->turns.has_teller;
}

int worker_turns_hear(struct worker *w, uint32_t ordinal, uint32_t may, uint32_t number) {
    uint32_t device = 0;
    while (device < w->n_devices && w->ordinals[device] != ordinal) device++;
    if (device == w->n_devices || may > GV_MUST_WAIT) return -1;
    struct worker_gate *g = &w->turns.gates[device];
    pthread_mutex_lock(&w->turns.lock);
    bool can = !w->turns.ending && (may == GV_MAY_ALWAYS || has_teller(w)), begin = can && may != GV_MAY_ALWAYS && g->words.may == GV_MAY_ALWAYS;
    if (begin) g->unmarked = true;
    if (can) turn_words_heard(&g->words, may, number, gv_now_ns());
    bool on = false;
    for (uint32_t i = 0; i < w->n_devices; i++) on |= w->turns.gates[i].words.may != GV_MAY_ALWAYS;
    atomic_store(&w->turns.on, on);
    if (begin) atomic_store(&w->turns.mark_wanted, true);
    pthread_cond_broadcast(&w->turns.changed);
    pthread_cond_signal(&w->turns.tell);
    pthread_mutex_unlock(&w->turns.lock);
    if (begin) gv_recv_wake(w->link);
    return can ? 0 : -1;
}

void worker_turns_stop(struct worker *w) {
    pthread_mutex_lock(&w->turns.lock);
    w->turns.ending = true;
    pthread_cond_broadcast(&w->turns.tell);
    pthread_mutex_unlock(&w->turns.lock);
    if (w->turns.has_teller) pthread_join(w->turns.teller, NULL);
}
