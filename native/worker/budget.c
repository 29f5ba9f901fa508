/* Bounded memory: how much may be on its way. The executor waits here, which is the one thing that slows a client down. */
#include <stdlib.h>

#include "state.h"

void *worker_staging(struct worker *w, uint64_t size) {
    pthread_mutex_lock(&w->lock);
    /* One copy larger than the whole budget goes alone. */
    while (!atomic_load(&w->stopping) && w->staging && w->staging + size > WORKER_MAX_STAGING) pthread_cond_wait(&w->changed, &w->lock);
    bool stopping = atomic_load(&w->stopping);
    if (!stopping) w->staging += size;
    pthread_mutex_unlock(&w->lock);
    if (stopping) return NULL;
    void *data = malloc(size ? size : 1);
    if (!data) worker_staging_free(w, NULL, size);
    return data;
}

void worker_staging_free(struct worker *w, void *data, uint64_t size) {
    free(data);
    pthread_mutex_lock(&w->lock);
    w->staging -= size;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void worker_pending_add(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    while (!atomic_load(&w->stopping) && w->pending >= WORKER_MAX_PENDING) pthread_cond_wait(&w->changed, &w->lock);
    w->pending++;
    pthread_mutex_unlock(&w->lock);
}

void worker_pending_done(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    if (w->pending-- >= WORKER_MAX_PENDING) pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}
