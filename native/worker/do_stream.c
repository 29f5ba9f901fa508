/* Streams. */
#include <stdlib.h>

#include "state.h"

int worker_keep_stream(struct worker *w, struct worker_context *context, uint64_t id, struct gv_stream *made) {
    struct worker_stream *s = worker_stream_new(context, made, id);
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    if (id > 1 && !handles_put(&w->streams, id, s)) return 0;
    worker_stream_drop(s);
    return CUDA_ERROR_INVALID_VALUE;
}

int worker_do_stream_destroy(struct worker *w, const struct gv_record *record, const struct gv_cmd_stream_destroy *c) {
    struct worker_stream *s = handles_take(&w->streams, c->stream);
    if (!s) {
        worker_failed(w, record, CUDA_ERROR_INVALID_HANDLE, "no such stream");
        if (record->flags & GV_RECORD_MARK) worker_send_completed(w, c->stream, record->ctx, record->seq, 0, CUDA_ERROR_INVALID_HANDLE);
        return 0;
    }
    /* A mark requested by the command itself is recorded before the stream is destroyed. */
    int bad = record->flags & GV_RECORD_MARK ? worker_mark(w, s, record) : 0;
    w->ops->stream_destroy(s->stream);
    worker_stream_drop(s);
    return bad;
}
