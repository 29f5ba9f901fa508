/* Host functions: the stream waits in a gate until the client has run its function. */
#include <stdlib.h>

#include "state.h"

struct host_call {
    struct worker *w;
    struct worker_stream *stream;
    uint64_t tag, seq;
    int status; /* status of the stream when it reaches the function */
    bool done;
    bool loose;           /* no stream waits for the answer */
    _Atomic unsigned use; /* by the mark that is queued, and by whoever is owed the answer */
};

static void release(struct host_call *h) {
    if (atomic_fetch_sub(&h->use, 1) != 1) return;
    worker_stream_drop(h->stream);
    free(h);
}

static void note_status(void *arg, int status) {
    struct host_call *h = arg;
    worker_note(h->w, h->stream, h->seq, GV_OP_HOST_FUNC, status);
    h->status = status;
    worker_order_cover(h->w, h->stream);
    worker_tell(h->w, h->stream, status);
    release(h);
}

static void forget(struct host_call *h) {
    struct worker *w = h->w;
    pthread_mutex_lock(&w->lock);
    handles_take(&w->host_calls, h->tag);
    w->n_host_calls--;
    pthread_mutex_unlock(&w->lock);
    release(h);
}

static bool tell(struct host_call *h, int status) {
    struct worker *w = h->w;
    struct gv_evt_call_host event = {.tag = h->tag, .stream = h->stream->id, .bulk = h->stream->last_bulk, .status = status};
    struct gv_record *out = worker_event(w, GV_OP_CALL_HOST, h->stream->context->id, gv_evt_call_host_size(&event));
    if (!out) return false;
    gv_evt_call_host_encode(&event, out + 1);
    gv_send_commit(w->link);
    gv_send_flush(w->link);
    return true;
}

static void call_host(void *arg) {
    struct host_call *h = arg;
    struct worker *w = h->w;
    if (!atomic_load(&w->stopping) && tell(h, h->status)) {
        pthread_mutex_lock(&w->lock);
        while (!h->done && !atomic_load(&w->stopping)) pthread_cond_wait(&w->changed, &w->lock);
        pthread_mutex_unlock(&w->lock);
    }
    forget(h);
}

int worker_do_host_func(struct worker *w, const struct gv_record *record, const struct gv_cmd_host_func *c, struct worker_stream *stream) {
    struct host_call *h = malloc(sizeof *h);
    if (!h) return -1;
    *h = (struct host_call){.w = w, .stream = stream, .tag = c->tag, .seq = record->seq, .use = 2};
    pthread_mutex_lock(&w->lock);
    int taken = handles_put(&w->host_calls, c->tag, h);
    if (!taken) w->n_host_calls++;
    pthread_mutex_unlock(&w->lock);
    if (taken) {
        free(h);
        return -1;
    }
    worker_stream_hold(stream);
    int status = w->ops->mark(stream->stream, note_status, h), gated = status;
    if (status)
        release(h);
    else
        gated = w->ops->gate(stream->stream, call_host, h);
    if (!gated) return 0;
    /* The function is called with the error, but no stream waits for it. */
    h->loose = true;
    worker_failed(w, record, gated, "the host function could not be queued in its stream");
    tell(h, gated);
    return 0;
}

bool worker_waits_for_host(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    bool waits = w->n_host_calls != 0;
    pthread_mutex_unlock(&w->lock);
    return waits;
}

bool worker_waits_for_client(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    bool waits = w->n_host_calls || w->n_in_place;
    pthread_mutex_unlock(&w->lock);
    return waits;
}

bool worker_host_done(struct worker *w, uint64_t tag) {
    pthread_mutex_lock(&w->lock);
    struct host_call *h = handles_get(&w->host_calls, tag);
    if (h) h->done = true;
    bool loose = h && h->loose;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (loose) forget(h);
    return h != NULL;
}

int worker_do_host_done(struct worker *w, const struct gv_record *record, const struct gv_cmd_host_done *c) {
    (void)record;
    return worker_host_done(w, c->tag) ? 0 : -1;
}
