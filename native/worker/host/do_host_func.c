/* Host functions: the client runs one when its stream has come to it, and what is queued behind it waits in a gate until then (host_gate.c). */
#include <stdlib.h>

#include "host_call.h"

#define NON_BLOCKING 1u /* CU_STREAM_NON_BLOCKING */

static void tell(struct host_call *h, int status) {
    struct worker *w = h->w;
    struct gv_evt_call_host event = {.tag = h->tag, .stream = h->stream->id, .bulk = h->stream->last_bulk, .status = status};
    struct gv_record *out = worker_event(w, GV_OP_CALL_HOST, h->stream->context->id, gv_evt_call_host_size(&event));
    if (!out) return;
    gv_evt_call_host_encode(&event, out + 1);
    gv_send_commit(w->link);
    gv_send_flush(w->link);
}

/* The function is due: the client is told its tag, after what the stream has completed before it. */
static void due(struct host_call *h, int status) {
    if (!atomic_load(&h->w->stopping)) tell(h, status);
    worker_stream_drop(h->stream);
    h->stream = NULL;
    host_call_release(h);
}

static void reached(void *arg, int status) {
    struct host_call *h = arg;
    worker_note(h->w, h->stream, h->seq, GV_OP_HOST_FUNC, status);
    worker_order_cover(h->w, h->stream);
    worker_tell_now(h->w, h->stream, status);
    due(h, status);
}

int worker_do_host_func(struct worker *w, const struct gv_record *record, const struct gv_cmd_host_func *c, struct worker_stream *stream) {
    struct host_call *h = malloc(sizeof *h);
    if (!h) return -1;
    *h = (struct host_call){.w = w, .stream = stream, .tag = c->tag, .seq = record->seq, .use = 3};
    pthread_mutex_lock(&w->lock);
    int taken = handles_put(&w->host_calls, c->tag, h);
    if (!taken) w->n_host_calls++;
    pthread_mutex_unlock(&w->lock);
    if (taken) {
        free(h);
        return -1;
    }
    worker_stream_hold(stream);
    worker_host_forget(stream); /* the functions of a stream are run in their order */
    stream->function = h;
    int status = w->ops->mark(stream->stream, reached, h);
    if (status) { /* the function is called with the error, and no stream waits for it */
        worker_host_forget(stream);
        worker_failed(w, record, status, "the host function could not be queued in its stream");
        due(h, status);
    } else if (!(stream->flags & NON_BLOCKING)) { /* work of other streams is behind it too */
        worker_host_gate(w, record, stream);
    }
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
    struct host_call *h = handles_take(&w->host_calls, tag);
    if (h) {
        h->done = true;
        w->n_host_calls--;
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (h) host_call_release(h);
    return h != NULL;
}

int worker_do_host_done(struct worker *w, const struct gv_record *record, const struct gv_cmd_host_done *c) {
    (void)record;
    return worker_host_done(w, c->tag) ? 0 : -1;
}

void worker_host_end(struct worker *w) {
    for (struct host_call *h; (h = handles_pop(&w->host_calls));) host_call_release(h);
    handles_free(&w->host_calls);
}
