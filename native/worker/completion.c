/* Completions are pushed: a mark is recorded on the stream, and the client gets an event when the device has reached it. Marks also count the
 * commands in flight: commands without a mark are counted, and every WORKER_COUNT_EVERY of them get a mark from the worker. The completed number of a
 * stream only grows: where its next mark is due already, the client is told that one instead. */
#include <stdlib.h>

#include "state.h"

void worker_pending_add(struct worker *w, uint64_t count) {
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->pending, atomic_load(&w->pending) + count);
    pthread_mutex_unlock(&w->lock);
}

void worker_pending_done(struct worker *w, uint64_t count) {
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->pending, atomic_load(&w->pending) - count);
    if (w->held_up) pthread_cond_signal(&w->room);
    if (w->reader_waits) pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void worker_room_again(struct worker *w) { worker_pending_done(w, 0); }

bool worker_has_room(struct worker *w) {
    return atomic_load_explicit(&w->pending, memory_order_relaxed) < WORKER_MAX_PENDING &&
           atomic_load_explicit(&w->streams_alive, memory_order_relaxed) < WORKER_MAX_STREAMS &&
           atomic_load_explicit(&w->staging.in_use, memory_order_relaxed) - atomic_load_explicit(&w->early_bytes, memory_order_relaxed) <
               WORKER_MAX_STAGING;
}

void worker_await_room(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    w->held_up = true;
    while (!worker_has_room(w) && !atomic_load(&w->stopping)) pthread_cond_wait(&w->room, &w->lock);
    w->held_up = false;
    pthread_mutex_unlock(&w->lock);
}

void worker_stop(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->stopping, true);
    pthread_cond_broadcast(&w->changed);
    pthread_cond_broadcast(&w->sendable);
    pthread_cond_broadcast(&w->room);
    pthread_mutex_unlock(&w->lock);
}

struct mark {
    struct worker *w;
    struct worker_stream *stream;
    uint64_t seq, count;
    uint16_t op;
    bool wanted;              /* whether the client asked for it */
    struct worker_gate *gate; /* of the launch that it is behind, where there are turns; else NULL */
};

void worker_tell(struct worker *w, struct worker_stream *s, int status) {
    if (status || !w->ops->mark_follows || !w->ops->mark_follows(s->stream)) worker_tell_now(w, s, status);
}

void worker_tell_now(struct worker *w, struct worker_stream *s, int status) {
    if (!s->unreported) return;
    worker_order_cover(w, s);
    uint64_t upto = s->unreported;
    s->unreported = 0;
    worker_send_completed(w, s->id, s->context->id, upto, s->last_bulk, status);
}

static void end(struct mark *m) {
    if (m->gate) worker_turn_end(m->w, m->gate);
    worker_pending_done(m->w, m->count);
    worker_stream_drop(m->stream);
    free(m);
}

static void reached(void *arg, int status) {
    struct mark *m = arg;
    worker_note(m->w, m->stream, m->seq, m->op, status);
    if (m->wanted) m->stream->unreported = m->seq;
    worker_tell(m->w, m->stream, status);
    end(m);
}

static int mark(struct worker *w, struct worker_stream *s, const struct gv_record *record, bool wanted) {
    struct mark *m = malloc(sizeof *m);
    if (!m) return -1;
    *m = (struct mark){w, s, record->seq, (uint64_t)s->uncounted + 1, record->op, wanted, worker_turn_taken(w)};
    s->uncounted = 0;
    worker_stream_hold(s);
    worker_pending_add(w, m->count);
    int status = w->ops->mark(s->stream, reached, m);
    if (!status) return 0;
    /* A stream that takes no more marks must still answer the client. */
    worker_note(w, s, m->seq, m->op, status);
    if (wanted) worker_send_completed(w, s->id, s->context->id, m->seq, 0, status);
    end(m);
    return 0;
}

/* How many commands this one counts as: what a launch carries, the backend keeps. The bytes of copies are staging memory, and counted there. */
static uint32_t weight(const struct gv_record *record) { return record->op == GV_OP_COPY_IN ? 1 : 1 + record->size / WORKER_PENDING_BYTES; }

int worker_mark(struct worker *w, struct worker_stream *s, const struct gv_record *record) {
    worker_host_gate(w, record, s);
    s->uncounted += weight(record) - 1;
    return mark(w, s, record, true);
}

int worker_count(struct worker *w, struct worker_stream *s, const struct gv_record *record) {
    s->uncounted += weight(record);
    return s->uncounted < WORKER_COUNT_EVERY && !w->turns.entered ? 0 : mark(w, s, record, false);
}
