/* The gate behind a host function: it is queued only when something comes behind the function that may not begin before it has returned. Functions of a
 * stream that follow each other, with nothing but waits for events between them, are run in their order by the client in any case, and the stream need not
 * stand still for the client's answer to each. */
#include <stdlib.h>

#include "host_call.h"

void host_call_release(struct host_call *h) {
    if (atomic_fetch_sub(&h->use, 1) == 1) free(h);
}

static bool is_done(struct host_call *h) {
    pthread_mutex_lock(&h->w->lock);
    bool done = h->done;
    pthread_mutex_unlock(&h->w->lock);
    return done;
}

static void await_function(void *arg) {
    struct host_call *h = arg;
    pthread_mutex_lock(&h->w->lock);
    while (!h->done && !atomic_load(&h->w->stopping)) pthread_cond_wait(&h->w->changed, &h->w->lock);
    pthread_mutex_unlock(&h->w->lock);
    host_call_release(h);
}

void worker_host_gate(struct worker *w, const struct gv_record *record, struct worker_stream *s) {
    struct host_call *h = s->function;
    if (!h) return;
    s->function = NULL;
    int status = 0;
    if (!is_done(h) && !(status = w->ops->gate(s->stream, await_function, h))) return; /* the gate has the stream's use of it */
    host_call_release(h);
    if (status) worker_failed(w, record, status, "the stream cannot wait for the host function before it");
}

void worker_host_forget(struct worker_stream *s) {
    if (s->function) host_call_release(s->function);
    s->function = NULL;
}
