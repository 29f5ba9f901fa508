/* Streams, events, host functions. */
#include <stdlib.h>

#include "state.h"

int worker_do_stream_create(void *worker, const struct gv_record *record, const struct gv_cmd_stream_create *c) {
    struct worker *w = worker;
    struct worker_context *context = worker_context(w, record->ctx);
    struct gv_stream *made = NULL;
    int status = context ? w->ops->stream_create(context->context, c->flags, c->priority, &made) : WORKER_INVALID_CONTEXT;
    struct worker_stream *s = status ? NULL : worker_stream_new(context, made, c->stream);
    if (!status && (!s || c->stream <= 1 || handles_put(&w->streams, c->stream, s))) {
        w->ops->stream_destroy(made);
        if (s) worker_stream_drop(s);
        status = s ? WORKER_INVALID_VALUE : WORKER_OUT_OF_MEMORY;
    }
    if (status) worker_failed(w, record, status, "the stream could not be made");
    return 0;
}

int worker_do_stream_destroy(void *worker, const struct gv_record *record, const struct gv_cmd_stream_destroy *c) {
    struct worker *w = worker;
    struct worker_stream *s = handles_take(&w->streams, c->stream);
    if (!s) {
        worker_failed(w, record, WORKER_INVALID_HANDLE, "no such stream");
        if (record->flags & GV_RECORD_MARK) worker_send_completed(w, c->stream, record->ctx, record->seq, 0, WORKER_INVALID_HANDLE);
        return 0;
    }
    /* A mark asked for with the command itself goes in front of the end. */
    int bad = record->flags & GV_RECORD_MARK ? worker_mark(w, s, record) : 0;
    w->ops->stream_destroy(s->stream);
    worker_stream_drop(s);
    return bad;
}

int worker_do_fence(void *worker, const struct gv_record *record, const struct gv_cmd_fence *c) {
    worker_stream(worker, record, c->stream);
    return 0;
}

int worker_do_event_create(void *worker, const struct gv_record *record, const struct gv_cmd_event_create *c) {
    struct worker *w = worker;
    struct worker_context *context = worker_context(w, record->ctx);
    struct worker_event *e = calloc(1, sizeof *e);
    int status = !context ? WORKER_INVALID_CONTEXT : !e ? WORKER_OUT_OF_MEMORY : w->ops->event_create(context->context, c->flags, &e->event);
    if (!status && handles_put(&w->events, c->event, e)) {
        w->ops->event_destroy(e->event);
        status = WORKER_INVALID_VALUE;
    }
    if (status) {
        free(e);
        worker_failed(w, record, status, "the event could not be made");
        return 0;
    }
    e->ctx = record->ctx;
    return 0;
}

int worker_do_event_destroy(void *worker, const struct gv_record *record, const struct gv_cmd_event_destroy *c) {
    struct worker *w = worker;
    struct worker_event *e = handles_take(&w->events, c->event);
    if (!e) {
        worker_failed(w, record, WORKER_INVALID_HANDLE, "no such event");
        return 0;
    }
    w->ops->event_destroy(e->event);
    free(e);
    return 0;
}

static struct gv_event *find_event(struct worker *w, uint64_t id) {
    struct worker_event *e = handles_get(&w->events, id);
    return e ? e->event : NULL;
}

int worker_do_event_record(void *worker, const struct gv_record *record, const struct gv_cmd_event_record *c) {
    struct worker *w = worker;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    struct gv_event *event = find_event(w, c->event);
    if (!s) return 0;
    int status = event ? w->ops->event_record(event, s->stream) : WORKER_INVALID_HANDLE;
    if (status) worker_failed(w, record, status, "the event could not be recorded");
    return 0;
}

int worker_do_event_wait(void *worker, const struct gv_record *record, const struct gv_cmd_event_wait *c) {
    struct worker *w = worker;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    struct gv_event *event = find_event(w, c->event);
    if (!s) return 0;
    int status = event ? w->ops->stream_wait_event(s->stream, event) : WORKER_INVALID_HANDLE;
    if (status) worker_failed(w, record, status, "the stream cannot wait for the event");
    return 0;
}

int worker_do_event_elapsed(void *worker, const struct gv_record *record, const struct gv_cmd_event_elapsed *c) {
    struct worker *w = worker;
    struct gv_event *start = find_event(w, c->start), *end = find_event(w, c->end);
    struct gv_reply_event_elapsed reply = {0};
    int status = start && end ? w->ops->event_elapsed(start, end, &reply.milliseconds) : WORKER_INVALID_HANDLE;
    uint8_t body[16];
    gv_reply_event_elapsed_encode(&reply, body);
    return worker_reply(w, record, status, NULL, body, (uint32_t)gv_reply_event_elapsed_size(&reply));
}

/* ---- host functions: the stream stops in a gate until the client has run its function ---------------------------------- */

struct host_call {
    struct worker *w;
    struct worker_stream *stream;
    uint64_t tag, seq;
    int status; /* of the stream when it gets there */
    bool done;
    enum { IN_STREAM, LOOSE, LOOSE_KEPT } kind; /* loose: no stream waits for the answer; kept: a mark may still look at it */
};

static void note_status(void *arg, int status) {
    struct host_call *h = arg;
    worker_note(h->w, h->stream, h->seq, GV_OP_HOST_FUNC, status);
    h->status = status;
    worker_tell(h->w, h->stream, status);
}

static void forget(struct host_call *h) {
    struct worker *w = h->w;
    pthread_mutex_lock(&w->lock);
    handles_take(&w->host_calls, h->tag);
    w->n_host_calls--;
    pthread_mutex_unlock(&w->lock);
    worker_stream_drop(h->stream);
    free(h);
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

int worker_do_host_func(void *worker, const struct gv_record *record, const struct gv_cmd_host_func *c) {
    struct worker *w = worker;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    if (!s) return 0;
    struct host_call *h = malloc(sizeof *h);
    if (!h) return -1;
    *h = (struct host_call){.w = w, .stream = s, .tag = c->tag, .seq = record->seq};
    pthread_mutex_lock(&w->lock);
    int taken = handles_put(&w->host_calls, c->tag, h);
    if (!taken) w->n_host_calls++;
    pthread_mutex_unlock(&w->lock);
    if (taken) {
        free(h);
        return -1;
    }
    worker_stream_hold(s);
    int status = w->ops->mark(s->stream, note_status, h), gated = status ? status : w->ops->gate(s->stream, call_host, h);
    if (!gated) return 0;
    /* The function is still to be called, with the error, but nothing waits for it. */
    h->kind = status ? LOOSE : LOOSE_KEPT;
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
    int kind = h ? h->kind : IN_STREAM;
    if (kind == LOOSE_KEPT) {
        handles_take(&w->host_calls, tag);
        w->n_host_calls--;
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (kind == LOOSE) forget(h);
    return h != NULL;
}

int worker_do_host_done(void *worker, const struct gv_record *record, const struct gv_cmd_host_done *c) {
    (void)record;
    return worker_host_done(worker, c->tag) ? 0 : -1;
}
