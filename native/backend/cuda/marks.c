/* Marks and gates. A mark is an event recorded on the stream, and one thread that asks the driver for the oldest event of every stream that has marks.
 *
 * Asking, with a back-off, instead of cuLaunchHostFunc: a host function stops its stream until it has run, is not run at all after an error, and all of them
 * share one thread of the driver's, which the gates need. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "backend_cuda.h"

#define ASK_AGAIN_NS 5000 /* at first; doubles up to */
#define ASK_SLOWLY_NS 200000

int cuda_mark(struct gv_stream *s, void (*fn)(void *arg, int status), void *arg) {
    struct gv_backend *b = s->context->b;
    int status = cuda_enter(s->context);
    if (status) return status;
    struct mark *m = malloc(sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    *m = (struct mark){.fn = fn, .arg = arg};
    status = b->driver.event_create(&m->event, CU_EVENT_DISABLE_TIMING);
    if (!status) {
        status = b->driver.event_record(m->event, s->stream);
        if (status) b->driver.event_destroy(m->event);
    }
    if (status) {
        cuda_note_error(s->context, status);
        free(m);
        return status;
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
    return 0;
}

/* Takes the stream's oldest mark if the device has got there. The lock is held, and let go while the driver is asked. */
static struct mark *take_reached(struct gv_backend *b, struct gv_stream *s, int *status) {
    struct mark *m = s->first;
    pthread_mutex_unlock(&b->lock);
    *status = cuda_enter(s->context);
    if (!*status) *status = b->driver.event_query(m->event);
    pthread_mutex_lock(&b->lock);
    if (*status == CUDA_ERROR_NOT_READY) return NULL;
    s->first = m->next;
    if (!s->first) s->last = NULL;
    return m;
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
            int status = 0;
            struct mark *m;
            while (s->first && (m = take_reached(b, s, &status))) {
                any = true;
                pthread_mutex_unlock(&b->lock);
                if (status) cuda_note_error(s->context, status);
                m->fn(m->arg, status);
                b->driver.event_destroy(m->event);
                free(m);
                pthread_mutex_lock(&b->lock);
                s->told++;
                pthread_cond_broadcast(&b->progress);
            }
            /* New streams are put in front of the list meanwhile, never into its middle: find our place again. */
            at = &b->watched;
            while (*at != s) at = &(*at)->next_watched;
            if (s->first || (s->dying && s->gates)) {
                at = &s->next_watched;
                continue;
            }
            *at = s->next_watched;
            s->is_watched = false;
            if (s->dying) {
                b->driver.stream_destroy(s->stream);
                free(s);
            }
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

/* ---- gates ------------------------------------------------------------------------------------------------------------- */

struct gate {
    struct gv_stream *stream;
    uint64_t after; /* marks of the stream that were there before it */
    void (*fn)(void *arg);
    void *arg;
};

/* On the driver's own thread. What the marks before it announce (data that has come back, say) must be on its way before the gate's function is: their events
 * are done by now, and the watcher is about to notice. */
static void run_gate(void *arg) {
    struct gate *g = arg;
    struct gv_stream *s = g->stream;
    struct gv_backend *b = s->context->b;
    pthread_mutex_lock(&b->lock);
    while (s->told < g->after && !b->stopping) pthread_cond_wait(&b->progress, &b->lock);
    pthread_mutex_unlock(&b->lock);
    g->fn(g->arg);
    free(g);
    pthread_mutex_lock(&b->lock);
    s->gates--;
    pthread_mutex_unlock(&b->lock);
}

int cuda_gate(struct gv_stream *s, void (*fn)(void *arg), void *arg) {
    struct gv_backend *b = s->context->b;
    int status = cuda_enter(s->context);
    if (status) return status;
    struct gate *g = malloc(sizeof *g);
    if (!g) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&b->lock);
    *g = (struct gate){s, s->marked, fn, arg};
    s->gates++;
    pthread_mutex_unlock(&b->lock);
    status = b->driver.launch_host(s->stream, run_gate, g);
    if (!status) return 0;
    pthread_mutex_lock(&b->lock);
    s->gates--;
    pthread_mutex_unlock(&b->lock);
    free(g);
    return status;
}

int cuda_marks_start(struct gv_backend *b) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    b->has_watcher = pthread_create(&b->watcher, NULL, watch, b) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return b->has_watcher ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

void cuda_marks_stop(struct gv_backend *b) {
    pthread_mutex_lock(&b->lock);
    b->stopping = true;
    pthread_cond_signal(&b->work);
    pthread_cond_broadcast(&b->progress);
    pthread_mutex_unlock(&b->lock);
    if (b->has_watcher) pthread_join(b->watcher, NULL);
    b->has_watcher = false;
}
