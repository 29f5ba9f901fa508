/* Completion is pushed: a mark on the stream, and an event to the client when the device gets there. */
#include <stdlib.h>

#include "state.h"

struct mark {
    struct worker *w;
    struct worker_stream *stream;
    uint64_t seq;
};

static void reached(void *arg, int status) {
    struct mark *m = arg;
    struct worker *w = m->w;
    struct gv_evt_completed completed = {m->stream->id, m->seq, m->stream->last_bulk, status};
    struct gv_record *out = worker_event(w, GV_OP_COMPLETED, m->stream->ctx, gv_evt_completed_size(&completed));
    if (out) {
        gv_evt_completed_encode(&completed, out + 1);
        gv_send_commit(w->link);
        gv_send_flush(w->link);
    }
    worker_stream_drop(w, m->stream);
    worker_pending_done(w);
    free(m);
}

int worker_mark(struct worker *w, struct worker_stream *s, uint64_t seq) {
    struct mark *m = malloc(sizeof *m);
    if (!m) return -1;
    *m = (struct mark){w, s, seq};
    worker_stream_hold(s);
    worker_pending_add(w);
    int status = w->ops->mark(s->stream, reached, m);
    /* A stream that takes no marks any more still owes the client an answer. */
    if (status) reached(m, status);
    return 0;
}
