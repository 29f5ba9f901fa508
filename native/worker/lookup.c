/* Contexts and streams by the client's ids. */
#include <stdlib.h>

#include "state.h"

struct worker_context *worker_context(struct worker *w, uint32_t ctx) { return handles_get(&w->contexts, ctx); }

struct worker_stream *worker_stream(struct worker *w, const struct gv_record *record, uint64_t id) {
    struct worker_stream *s = NULL;
    if (id <= 1) {
        struct worker_context *c = worker_context(w, record->ctx);
        if (c) s = c->legacy;
    } else {
        s = handles_get(&w->streams, id);
    }
    if (!s) worker_failed(w, record, 400, "the command names a stream that does not exist");
    w->current = s;
    return s;
}

void worker_stream_hold(struct worker_stream *s) { atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); }

void worker_stream_drop(struct worker *w, struct worker_stream *s) {
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    (void)w;
    free(s);
}
