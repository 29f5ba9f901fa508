/* Marks and gates. A mark is an event recorded on the stream; one thread polls the oldest event of every stream with marks, with a back-off.
 *
 * It polls instead of using cuLaunchHostFunc, because a host function blocks its stream until it has run, is not called after an error, and all host
 * functions share one driver thread, which the gates need. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "../../wire/clock.h"
#include "backend_cuda.h"

#define ASK_AGAIN_NS 5000 /* ns between polls at first; doubles up to */
#define ASK_SLOWLY_NS 200000
#define CLOSE_PATIENCE 1000000000 /* ns */

/* ---- marks ------------------------------------------------------------------------------------------------------------- */

/* Records `m` on the stream. When the driver takes no more events, the context is lost: the mark is then called with the error, after those before
 * it. */
static void append(struct gv_stream *s, struct mark *m) {
    struct gv_backend *b = s->context->b;
    int status = cuda_enter(s->context);
    if (!status) status = b->driver.event_create(&m->event, CU_EVENT_DISABLE_TIMING);
    if (!status && (status = b->driver.event_record(m->event, s->stream))) b->driver.event_destroy(m->event);
    if (status) {
        cuda_note_error(s->context, status);
        m->event = NULL;
        m->status = status;
    }
    pthread_mutex_lock(&b->lock);
    if (s->last)
        s->last->next = m;
    else
        s->first = m;
    s->last = m;
    s->marked++;
    if (!s->is_watched) {
        s->is_watched = true;
        s->next_watched = b->watched;
        b->watched = s;
    }
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->lock);
}

int cuda_mark(struct gv_stream *s, void (*fn)(void *arg, int status), void *arg) {
    struct mark *m = malloc(sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    *m = (struct mark){.fn = fn, .arg = arg};
    append(s, m);
    return 0;
}

/* The number of the mark that is queued there next. */
uint64_t cuda_stream_position(struct gv_stream *s) {
    struct gv_backend *b = s->context->b;
    pthread_mutex_lock(&b->lock);
    uint64_t position = s->marked + 1;
    pthread_mutex_unlock(&b->lock);
    return position;
}

/* Marks are taken, and their events destroyed, by the watcher, which is the caller. */
int cuda_stream_passed(struct gv_stream *s, uint64_t position) {
    struct gv_backend *b = s->context->b;
    pthread_mutex_lock(&b->lock);
    struct mark *m = position > s->told && position <= s->marked ? s->first : NULL;
    for (uint64_t at = s->told + 1; m && at < position; at++) m = m->next;
    CUevent event = m ? m->event : NULL;
    pthread_mutex_unlock(&b->lock);
    return event && !cuda_enter(s->context) && !b->driver.event_query(event);
}

/* ---- gates ------------------------------------------------------------------------------------------------------------- */

/* The driver calls no host functions in a lost context, but every queued gate must be called. So each gate is followed by a mark of its own; when
 * that is called with an error and the gate has not begun, one of our threads calls the gate. Later marks wait until it has returned. */
struct gate {
    struct gv_stream *stream;
    uint64_t after; /* number of marks on the stream before it */
    void (*fn)(void *arg);
    void *arg;
    enum { GATE_QUEUED, GATE_RUNNING, GATE_DONE } state; /* under the backend's lock */
    _Atomic bool ours;                                   /* one of our threads calls it; not freed, because the driver may still call it later */
};

static void call_gate(struct gate *g) {
    g->fn(g->arg);
    struct gv_backend *b = g->stream->context->b;
    pthread_mutex_lock(&b->lock);
    g->state = GATE_DONE;
    b->gates_running--;
    pthread_cond_broadcast(&b->progress);
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->lock);
}

/* Runs on the driver's thread. The marks before it (data that has been copied, say) must be called first: their events have completed, and the
 * watcher is about to see that. */
static void run_gate(void *arg) {
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

static void *run_lost_gate(void *arg) {
    call_gate(arg);
    return NULL;
}

/* The gate's own mark is due. Returns whether the gate has returned; calls it if the driver will not. Lock held. */
static bool gate_done(struct gv_backend *b, struct gate *g, int status) {
    if (g->state == GATE_QUEUED && status) {
        g->state = GATE_RUNNING;
        g->ours = true;
        b->gates_running++;
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_lost_gate, g)) {
            pthread_mutex_unlock(&b->lock);
            call_gate(g);
            pthread_mutex_lock(&b->lock);
        } else {
            pthread_detach(thread);
        }
    }
    return g->state == GATE_DONE;
}

int cuda_gate(struct gv_stream *s, void (*fn)(void *arg), void *arg) {
    struct gv_backend *b = s->context->b;
    struct gate *g = malloc(sizeof *g);
    struct mark *m = malloc(sizeof *m);
    int status = g && m ? cuda_enter(s->context) : CUDA_ERROR_OUT_OF_MEMORY;
    if (g && m) {
        *g = (struct gate){.stream = s, .fn = fn, .arg = arg};
        *m = (struct mark){.gate = g};
        pthread_mutex_lock(&b->lock);
        g->after = s->marked;
        pthread_mutex_unlock(&b->lock);
    }
    if (!status) status = b->driver.launch_host(s->stream, run_gate, g);
    if (status) {
        free(g);
        free(m);
        return status;
    }
    append(s, m);
    return 0;
}

/* ---- the watcher ------------------------------------------------------------------------------------------------------- */

/* Takes the stream's oldest mark if its event has completed. The lock is held, and released while the driver is polled. */
static struct mark *take_reached(struct gv_backend *b, struct gv_stream *s, int *status) {
    struct mark *m = s->first;
    *status = m->status;
    if (m->event) {
        pthread_mutex_unlock(&b->lock);
        *status = cuda_enter(s->context);
        if (!*status) *status = b->driver.event_query(m->event);
        pthread_mutex_lock(&b->lock);
        if (*status == CUDA_ERROR_NOT_READY) return NULL;
    }
    if (m->gate && !gate_done(b, m->gate, *status)) return NULL;
    s->first = m->next;
    if (!s->first) s->last = NULL;
    return m;
}

/* Calls the marks that are due on one stream. Lock held, released meanwhile. Returns whether there were any. */
static bool tell(struct gv_backend *b, struct gv_stream *s) {
    int status = 0;
    struct mark *m;
    bool any = false;
    while (s->first && (m = take_reached(b, s, &status))) {
        any = true;
        pthread_mutex_unlock(&b->lock);
        if (status) cuda_note_error(s->context, status);
        if (m->fn) {
            /* The event has completed already, but only a synchronising call makes the driver write the kernels' output. */
            if (m->event && !status) b->driver.event_synchronize(m->event);
            cuda_console_drain(b);
            m->fn(m->arg, status);
        }
        if (m->event) b->driver.event_destroy(m->event);
        if (m->gate && !m->gate->ours) free(m->gate);
        free(m);
        pthread_mutex_lock(&b->lock);
        s->told++;
        pthread_cond_broadcast(&b->progress);
    }
    return any;
}

static void *watch(void *arg) {
    struct gv_backend *b = arg;
    long pause = ASK_AGAIN_NS;
    pthread_mutex_lock(&b->lock);
    while (!b->stopping) {
        if (!b->watched) {
            pthread_cond_wait(&b->work, &b->lock);
            pause = ASK_AGAIN_NS;
            continue;
        }
        bool any = false;
        for (struct gv_stream **at = &b->watched; *at && !b->stopping;) {
            struct gv_stream *s = *at;
            any |= tell(b, s);
            /* New streams are inserted only at the head of the list meanwhile: continue after our stream. */
            at = &b->watched;
            while (*at != s) at = &(*at)->next_watched;
            if (s->first) {
                at = &s->next_watched;
                continue;
            }
            *at = s->next_watched;
            s->is_watched = false;
            if (s->dying) cuda_stream_free(s);
            pthread_cond_broadcast(&b->progress);
        }
        if (any) {
            pause = ASK_AGAIN_NS;
            continue;
        }
        pthread_mutex_unlock(&b->lock);
        nanosleep(&(struct timespec){0, pause}, NULL);
        pause = pause * 2 < ASK_SLOWLY_NS ? pause * 2 : ASK_SLOWLY_NS;
        pthread_mutex_lock(&b->lock);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

void cuda_marks_await(struct gv_context *c) {
    struct gv_backend *b = c->b;
    pthread_mutex_lock(&b->lock);
    for (bool busy = true; busy && !b->stopping;) {
        busy = false;
        for (const struct gv_stream *s = b->watched; s; s = s->next_watched) busy |= s->context == c;
        if (busy) pthread_cond_wait(&b->progress, &b->lock);
    }
    pthread_mutex_unlock(&b->lock);
}

int cuda_marks_start(struct gv_backend *b) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    b->has_watcher = pthread_create(&b->watcher, NULL, watch, b) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return b->has_watcher ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

bool cuda_marks_stop(struct gv_backend *b) {
    pthread_mutex_lock(&b->lock);
    b->stopping = true;
    pthread_cond_broadcast(&b->work);
    pthread_cond_broadcast(&b->progress);
    pthread_mutex_unlock(&b->lock);
    if (b->has_watcher) pthread_join(b->watcher, NULL);
    b->has_watcher = false;
    struct timespec until = gv_deadline(CLOCK_REALTIME, CLOSE_PATIENCE);
    pthread_mutex_lock(&b->lock);
    while (b->gates_running && pthread_cond_timedwait(&b->progress, &b->lock, &until) == 0) continue;
    bool quiet = !b->gates_running && !b->watched;
    pthread_mutex_unlock(&b->lock);
    return quiet;
}
