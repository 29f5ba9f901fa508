/* Looks for lost contexts, whose devices write no words (words.c), and destroys streams that have ended: both are calls of the driver, which may wait, so
 * they have a thread that nothing else waits for. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "backend_cuda.h"

#define PROBE_AFTER 5000000 /* ns without progress; doubles up to */
#define PROBE_SLOWLY 50000000

/* Asks the driver for a stream's state. Lock held, released meanwhile; the call may wait as long as one of the executor's. */
static void probe(struct gv_backend *b, struct gv_stream *s) {
    s->is_probed = true;
    b->probed = s->context;
    pthread_mutex_unlock(&b->lock);
    int status = cuda_enter(s->context);
    if (!status) status = b->driver.stream_query(s->stream);
    if (status && status != CUDA_ERROR_NOT_READY) cuda_note_error(s->context, status);
    pthread_mutex_lock(&b->lock);
    s->is_probed = false;
    if (s->dying && !s->is_watched) {
        pthread_mutex_unlock(&b->lock);
        cuda_stream_free(s);
        pthread_mutex_lock(&b->lock);
    }
    b->probed = NULL;
    pthread_cond_broadcast(&b->progress);
}

/* Lock held, released meanwhile. */
static void free_ended(struct gv_backend *b) {
    for (struct gv_stream *s; (s = b->ended);) {
        b->ended = s->next_watched;
        b->probed = s->context;
        pthread_mutex_unlock(&b->lock);
        cuda_stream_free(s);
        pthread_mutex_lock(&b->lock);
        b->probed = NULL;
        pthread_cond_broadcast(&b->progress);
    }
}

/* The stream at this place of the list, which may have become shorter. */
static struct gv_stream *watched_at(const struct gv_backend *b, unsigned place) {
    struct gv_stream *s = b->watched;
    while (s && place--) s = s->next_watched;
    return s;
}

static void *look(void *arg) {
    struct gv_backend *b = arg;
    long pause = PROBE_AFTER;
    uint64_t told = 0;
    pthread_mutex_lock(&b->lock);
    while (!b->stopping) {
        pthread_mutex_unlock(&b->lock);
        nanosleep(&(struct timespec){0, pause}, NULL);
        pthread_mutex_lock(&b->lock);
        free_ended(b);
        bool rests = b->told == told && b->watched;
        told = b->told;
        pause = !rests ? PROBE_AFTER : pause * 2 < PROBE_SLOWLY ? pause * 2 : PROBE_SLOWLY;
        struct gv_stream *s;
        for (unsigned i = 0; rests && !b->stopping && (s = watched_at(b, i)); i++) probe(b, s);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

int cuda_prober_start(struct gv_backend *b) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    b->has_prober = pthread_create(&b->prober, NULL, look, b) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return b->has_prober ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}
