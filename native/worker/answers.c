/* Replies and events to the client. */
#include <stdio.h>
#include <string.h>

#include "state.h"

struct gv_record *worker_event(struct worker *w, uint16_t op, uint32_t ctx, uint64_t body) {
    struct gv_record *out = gv_send_begin(w->link, (uint32_t)(sizeof *out + body), NULL);
    if (!out) return NULL;
    out->op = op;
    out->flags = 0;
    out->ctx = ctx;
    return out;
}

int worker_reply(struct worker *w, const struct gv_record *record, int status, const char *text, const void *body, uint32_t size) {
    struct gv_evt_reply reply = {record->seq, status, text ? text : "", status ? NULL : body, status ? 0 : size};
    struct gv_record *out = worker_event(w, GV_OP_REPLY, 0, gv_evt_reply_size(&reply));
    if (!out) return -1;
    gv_evt_reply_encode(&reply, out + 1);
    gv_send_commit(w->link);
    gv_send_flush(w->link);
    return 0;
}

void worker_rest(struct worker *w) {
    atomic_store(&w->busy, false);
    gv_send_flush(w->link);
}

static bool is_sticky(int status) {
    switch (status) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED: return true;
    default: return false;
    }
}

static void send_failed(struct worker *w, uint32_t ctx, const struct gv_evt_failed *failed) {
    struct gv_record *out = worker_event(w, GV_OP_FAILED, ctx, gv_evt_failed_size(failed));
    if (!out) return;
    gv_evt_failed_encode(failed, out + 1);
    gv_send_commit(w->link);
    gv_send_flush(w->link);
}

void worker_failed(struct worker *w, const struct gv_record *record, int status, const char *text) {
    struct gv_evt_failed failed = {record->seq, record->op, status, is_sticky(status) || gv_is_work(record->op), text ? text : ""};
    send_failed(w, record->ctx, &failed);
}

void worker_note(struct worker *w, struct worker_stream *s, uint64_t seq, uint16_t op, int status) {
    if (!status || atomic_exchange(&s->context->failure_told, true)) return;
    const char *text = w->ops->error_text(s->context->context);
    struct gv_evt_failed failed = {seq, op, status, 1, text ? text : ""};
    send_failed(w, s->context->id, &failed);
}

void worker_event_done(struct worker *w) {
    gv_send_commit(w->link);
    /* Read after the record is committed: an executor that is no longer busy has already flushed, so this thread flushes. */
    if (!atomic_load(&w->busy)) gv_send_flush(w->link);
}

void worker_send_completed(struct worker *w, uint64_t stream, uint32_t ctx, uint64_t upto, uint64_t bulk, int status) {
    struct gv_evt_completed completed = {stream, upto, bulk, status};
    struct gv_record *out = worker_event(w, GV_OP_COMPLETED, ctx, gv_evt_completed_size(&completed));
    if (!out) return;
    gv_evt_completed_encode(&completed, out + 1);
    worker_event_done(w);
}

void worker_send_data(struct worker *w, uint64_t tag, int status, const void *data, uint32_t size) {
    struct gv_evt_data_inline event = {.tag = tag, .status = status, .data = data, .data_size = size};
    struct gv_record *out = worker_event(w, GV_OP_DATA_INLINE, 0, gv_evt_data_inline_size(&event));
    if (!out) return;
    gv_evt_data_inline_encode(&event, out + 1);
    gv_send_commit(w->link);
}
