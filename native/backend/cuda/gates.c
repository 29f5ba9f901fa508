/* Gates: a stream stops until a function has returned.
 *
 * With words (words.c) the device stops, a mark tells that it has come there, and one of our threads calls the function and opens the gate. Without,
 * the function is a host function of the driver, whose one thread calls those of all streams. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "../../wire/clock.h"
#include "backend_cuda.h"

#define CLOSE_PATIENCE 1000000000 /* ns */

/* The driver calls no host functions in a lost context, but every queued gate must be called. So each gate is followed by a mark of its own (with words:
 * preceded); when that is called with an error and the gate has not begun, one of our threads calls the gate. Later marks wait until it has returned. */
struct gate {
    struct gate *next; /* that is due */
    struct gv_stream *stream;
    uint64_t after;  /* number of marks on the stream before it */
    uint64_t number; /* of the stream's gates */
    void (*fn)(void *arg);
    void *arg;
    enum { GATE_QUEUED, GATE_RUNNING, GATE_DONE } state; /* under the backend's lock */
    _Atomic bool ours;                                   /* one of our threads calls it; not freed, because the driver may still call it later */
};

static void call_gate(struct gate *g) {
    g->fn(g->arg);
    struct gv_backend *b = g->stream->context->b;
    pthread_mutex_lock(&b->lock);
    if (g->stream->words) atomic_store_explicit(&g->stream->words->open, (uint32_t)g->number, memory_order_release);
    g->state = GATE_DONE;
    b->gates_running--;
    pthread_cond_broadcast(&b->progress);
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->lock);
}

/* ---- by the driver's thread -------------------------------------------------------------------------------------------- */

/* The marks before it (data that has been copied, say) must be called first: their events have completed, and the watcher is about to see that. */
void cuda_gate_run(void *arg) {
    struct gate *g = arg;
    if (g->ours) return;
    struct gv_stream *s = g->stream;
    struct gv_backend *b = s->context->b;
    pthread_mutex_lock(&b->lock);
    while (g->state == GATE_QUEUED && !b->stopping && s->told < g->after) pthread_cond_wait(&b->progress, &b->lock);
    bool mine = g->state == GATE_QUEUED && !b->stopping;
    if (mine) {
        g->state = GATE_RUNNING;
        b->gates_running++;
    }
    pthread_mutex_unlock(&b->lock);
    if (mine) call_gate(g);
}

/* ---- by threads of our own --------------------------------------------------------------------------------------------- */

/* Calls gates as they become due; there are as many of these threads as there have been gates at the same time. */
static void *run_due(void *arg) {
    struct gv_backend *b = arg;
    pthread_mutex_lock(&b->lock);
    while (!b->stopping) {
        struct gate *g = b->due;
        if (!g) {
            b->runners_idle++;
            pthread_cond_wait(&b->gate_due, &b->lock);
            b->runners_idle--;
            continue;
        }
        b->due = g->next;
        if (!b->due) b->last_due = NULL;
        pthread_mutex_unlock(&b->lock);
        call_gate(g);
        pthread_mutex_lock(&b->lock);
    }
    b->runners--;
    pthread_cond_broadcast(&b->progress);
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

static bool one_more(struct gv_backend *b) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool made = pthread_create(&thread, NULL, run_due, b) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (made) {
        b->runners++;
        pthread_detach(thread);
    }
    return made;
}

/* Lock held; released while the gate is called where there is no thread for it. */
static void start(struct gv_backend *b, struct gate *g) {
    g->state = GATE_RUNNING;
    g->next = NULL;
    b->gates_running++;
    if (b->last_due)
        b->last_due->next = g;
    else
        b->due = g;
    b->last_due = g;
    unsigned waiting = 0;
    for (const struct gate *d = b->due; d; d = d->next) waiting++;
    if (waiting <= b->runners_idle || one_more(b)) {
        pthread_cond_signal(&b->gate_due);
        return;
    }
    struct gate **at = &b->due, *before = NULL;
    while (*at != g) before = *at, at = &before->next;
    *at = NULL;
    b->last_due = before;
    pthread_mutex_unlock(&b->lock);
    call_gate(g);
    pthread_mutex_lock(&b->lock);
}

bool cuda_gate_done(struct gv_backend *b, struct gate *g, int status) {
    if (g->state == GATE_QUEUED && (status || b->has_words)) {
        if (!b->has_words) g->ours = true;
        start(b, g);
    }
    if (g->state != GATE_DONE) return false;
    if (!g->ours) free(g);
    return true;
}

bool cuda_gates_stop(struct gv_backend *b) {
    for (; b->due; b->due = b->due->next) b->gates_running--; /* not begun: they are not called any more */
    pthread_cond_broadcast(&b->gate_due);
    struct timespec until = gv_deadline(CLOCK_REALTIME, CLOSE_PATIENCE);
    while ((b->gates_running || b->runners) && pthread_cond_timedwait(&b->progress, &b->lock, &until) == 0) continue;
    return !b->gates_running && !b->runners;
}

struct gate *cuda_gate_new(struct gv_stream *s, void (*fn)(void *arg), void *arg) {
    struct gv_backend *b = s->context->b;
    struct gate *g = malloc(sizeof *g);
    if (!g) return NULL;
    pthread_mutex_lock(&b->lock);
    *g = (struct gate){.stream = s, .number = s->gates + 1, .after = s->marked, .fn = fn, .arg = arg};
    pthread_mutex_unlock(&b->lock);
    return g;
}
