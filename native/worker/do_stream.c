/* Streams, events, host functions. */
#include <stdlib.h>

#include "state.h"

int worker_do_stream_create(void *worker, const struct gv_record *record, const struct gv_cmd_stream_create *c) {
    struct worker *w = worker;
    struct worker_context *context = worker_context(w, record->ctx);
    struct worker_stream *s = calloc(1, sizeof *s);
    int status = !context ? 201 : !s ? 2 : w->ops->stream_create(context->context, c->flags, c->priority, &s->stream);
    if (!status && handles_put(&w->streams, c->stream, s)) {
        w->ops->stream_destroy(s->stream);
        status = 1;
    }
    if (status) {
        free(s);
        worker_failed(w, record, status, "the stream could not be made");
        return 0;
    }
    s->id = c->stream;
    s->context = context->context;
    s->ctx = record->ctx;
    atomic_store(&s->refs, 1);
    return 0;
}

int worker_do_stream_destroy(void *worker, const struct gv_record *record, const struct gv_cmd_stream_destroy *c) {
    struct worker *w = worker;
    struct worker_stream *s = handles_take(&w->streams, c->stream);
    if (!s) {
        worker_failed(w, record, 400, "no such stream");
        return 0;
    }
    /* A mark asked for with the command itself goes in front of the end. */
    if (record->flags & GV_RECORD_MARK) worker_mark(w, s, record->seq);
    w->ops->stream_destroy(s->stream);
    worker_stream_drop(w, s);
    return 0;
}

int worker_do_fence(void *worker, const struct gv_record *record, const struct gv_cmd_fence *c) {
    worker_stream(worker, record, c->stream);
    return 0;
}

int worker_do_event_create(void *worker, const struct gv_record *record, const struct gv_cmd_event_create *c) {
    struct worker *w = worker;
    struct worker_context *context = worker_context(w, record->ctx);
    struct gv_event *event = NULL;
    int status = context ? w->ops->event_create(context->context, c->flags, &event) : 201;
    if (!status && handles_put(&w->events, c->event, event)) {
        w->ops->event_destroy(event);
        status = 1;
    }
    if (status) worker_failed(w, record, status, "the event could not be made");
    return 0;
}

int worker_do_event_destroy(void *worker, const struct gv_record *record, const struct gv_cmd_event_destroy *c) {
    struct worker *w = worker;
    struct gv_event *event = handles_take(&w->events, c->event);
    if (event)
        w->ops->event_destroy(event);
    else
        worker_failed(w, record, 400, "no such event");
    return 0;
}

int worker_do_event_record(void *worker, const struct gv_record *record, const struct gv_cmd_event_record *c) {
    struct worker *w = worker;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    struct gv_event *event = handles_get(&w->events, c->event);
    if (!s) return 0;
    int status = event ? w->ops->event_record(event, s->stream) : 400;
    if (status) worker_failed(w, record, status, "the event could not be recorded");
    return 0;
}

int worker_do_event_wait(void *worker, const struct gv_record *record, const struct gv_cmd_event_wait *c) {
    struct worker *w = worker;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    struct gv_event *event = handles_get(&w->events, c->event);
    if (!s) return 0;
    int status = event ? w->ops->stream_wait_event(s->stream, event) : 400;
    if (status) worker_failed(w, record, status, "the stream cannot wait for the event");
    return 0;
}

int worker_do_event_elapsed(void *worker, const struct gv_record *record, const struct gv_cmd_event_elapsed *c) {
    struct worker *w = worker;
    struct gv_event *start = handles_get(&w->events, c->start), *end = handles_get(&w->events, c->end);
    struct gv_reply_event_elapsed reply = {0};
    int status = start && end ? w->ops->event_elapsed(start, end, &reply.milliseconds) : 400;
    uint8_t body[16];
    gv_reply_event_elapsed_encode(&reply, body);
    return worker_reply(w, record, status, NULL, body, (uint32_t)gv_reply_event_elapsed_size(&reply));
}

/* ---- host functions: the stream stops in a gate until the client has run its function ---------------------------------- */

struct host_call {
    struct worker *w;
    struct worker_stream *stream;
    uint64_t tag;
    bool done;
};

static void call_host(void *arg) {
    struct host_call *h = arg;
    struct worker *w = h->w;
    struct gv_evt_call_host event = {.tag = h->tag, .stream = h->stream->id, .bulk = h->stream->last_bulk, .status = 0};
    struct gv_record *out = worker_event(w, GV_OP_CALL_HOST, h->stream->ctx, gv_evt_call_host_size(&event));
    if (out) {
        gv_evt_call_host_encode(&event, out + 1);
        gv_send_commit(w->link);
        gv_send_flush(w->link);
        pthread_mutex_lock(&w->lock);
        while (!h->done && !atomic_load(&w->stopping)) pthread_cond_wait(&w->changed, &w->lock);
        pthread_mutex_unlock(&w->lock);
    }
    pthread_mutex_lock(&w->lock);
    handles_take(&w->host_calls, h->tag);
    pthread_mutex_unlock(&w->lock);
    worker_stream_drop(w, h->stream);
    worker_pending_done(w);
    free(h);
}

int worker_do_host_func(void *worker, const struct gv_record *record, const struct gv_cmd_host_func *c) {
    struct worker *w = worker;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    if (!s) return 0;
    struct host_call *h = malloc(sizeof *h);
    if (!h) return -1;
    *h = (struct host_call){w, s, c->tag, false};
    pthread_mutex_lock(&w->lock);
    int taken = handles_put(&w->host_calls, c->tag, h);
    pthread_mutex_unlock(&w->lock);
    if (taken) {
        free(h);
        return -1;
    }
    worker_stream_hold(s);
    worker_pending_add(w);
    int status = w->ops->gate(s->stream, call_host, h);
    if (status) {
        h->done = true; /* the client's function must run all the same, but the executor cannot wait for it */
        call_host(h);
        worker_failed(w, record, status, "the host function could not be queued in its stream");
    }
    return 0;
}

int worker_do_host_done(void *worker, const struct gv_record *record, const struct gv_cmd_host_done *c) {
    (void)record;
    struct worker *w = worker;
    pthread_mutex_lock(&w->lock);
    struct host_call *h = handles_get(&w->host_calls, c->tag);
    if (h) h->done = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return h ? 0 : -1;
}
