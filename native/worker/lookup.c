/* Contexts and streams by the client's ids. */
#include <stdlib.h>

#include "state.h"

struct worker_context *worker_context(struct worker *w, uint32_t ctx) { return handles_get(&w->contexts, ctx); }

void worker_context_drop(struct worker_context *c) {
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1) free(c);
}

struct worker_stream *worker_stream(struct worker *w, const struct gv_record *record, uint64_t id) {
    struct worker_stream *s = NULL;
    if (id <= 1) {
        struct worker_context *c = worker_context(w, record->ctx);
        if (c) s = c->legacy;
    } else {
        s = handles_get(&w->streams, id);
    }
    w->current = s;
    if (s) worker_order_command(w, record, s);
    if (s && s->function && record->op != GV_OP_HOST_FUNC && record->op != GV_OP_EVENT_WAIT) worker_host_gate(w, record, s);
    if (!s) {
        worker_failed(w, record, CUDA_ERROR_INVALID_HANDLE, "the command names a stream that does not exist");
        if (record->flags & GV_RECORD_MARK)
            worker_send_completed(w, id <= 1 ? GV_LEGACY_STREAM(record->ctx) : id, record->ctx, record->seq, 0, CUDA_ERROR_INVALID_HANDLE);
    }
    return s;
}

struct worker_stream *worker_stream_new(struct worker_context *c, struct gv_stream *stream, uint64_t id) {
    struct worker_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->stream = stream;
    s->context = c;
    s->id = id;
    atomic_init(&s->refs, 1);
    atomic_fetch_add_explicit(&c->w->streams_alive, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return s;
}

void worker_stream_hold(struct worker_stream *s) { atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); }

void worker_stream_drop(struct worker_stream *s) {
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    struct worker *w = s->context->w;
    worker_context_drop(s->context);
    worker_host_forget(s);
    free(s);
    if (atomic_fetch_sub(&w->streams_alive, 1) < WORKER_MAX_STREAMS) return;
    pthread_mutex_lock(&w->lock);
    if (w->held_up) pthread_cond_signal(&w->room);
    pthread_mutex_unlock(&w->lock);
}
