/* Contexts. */
#include <stdlib.h>

#include "state.h"

int worker_keep_context(struct worker *w, uint32_t id, const struct gv_cmd_context_create *c, struct gv_context *made) {
    struct worker_context *context = calloc(1, sizeof *context);
    if (!context) return CUDA_ERROR_OUT_OF_MEMORY;
    *context = (struct worker_context){.w = w, .context = made, .id = id, .device = c->device, .flags = c->flags, .primary = c->primary};
    atomic_init(&context->refs, 1);
    context->legacy = worker_stream_new(context, w->ops->stream_legacy(made), GV_LEGACY_STREAM(id));
    if (context->legacy && !handles_put(&w->contexts, id, context)) return 0;
    int status = context->legacy ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    if (context->legacy) atomic_fetch_sub(&w->streams_alive, 1);
    free(context->legacy);
    free(context);
    return status;
}

int worker_do_context_create(struct worker *w, const struct gv_record *record, const struct gv_cmd_context_create *c) {
    char err[GV_ERR_SIZE] = "";
    struct gv_context *made = NULL;
    bool room = w->contexts.live < GV_CONTEXTS_MAX;
    int status = room ? w->ops->context_create(w->backend, c->device, c->flags, (int)c->primary, &made, err) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status && (status = worker_keep_context(w, record->ctx, c, made))) w->ops->context_destroy(made);
    if (status) worker_failed(w, record, status, err[0] ? err : "the context could not be made");
    return 0;
}

void worker_context_sweep(struct worker *w, uint32_t ctx) {
    for (uint64_t i = 0; i < w->streams.size; i++) {
        struct worker_stream *s = handles_at(&w->streams, i);
        if (!s || s->context->id != ctx) continue;
        handles_take(&w->streams, s->id);
        w->ops->stream_destroy(s->stream);
        worker_stream_drop(s);
    }
    gv_objects_end_context(w, ctx);
}

int worker_do_context_destroy(struct worker *w, const struct gv_record *record, const struct gv_cmd_context_destroy *c) {
    (void)c;
    struct worker_context *context = handles_take(&w->contexts, record->ctx);
    if (!context) {
        worker_failed(w, record, CUDA_ERROR_INVALID_CONTEXT, "no such context");
        return 0;
    }
    worker_context_sweep(w, record->ctx);
    w->ops->context_destroy(context->context);
    worker_stream_drop(context->legacy);
    worker_context_drop(context);
    return 0;
}

int worker_do_processor_groups(struct worker *w, const struct gv_record *record, const struct gv_cmd_processor_groups *c,
                               struct worker_context *context) {
    uint8_t order[GV_PROCESSOR_GROUPS_MAX] = {0}, groups[GV_PROCESSOR_GROUPS_MAX] = {0}, body[2 * GV_PROCESSOR_GROUPS_MAX + 64];
    uint32_t n = 0;
    (void)c;
    int status = w->ops->processor_groups(context->context, order, groups, &n);
    struct gv_reply_processor_groups reply = {.order = order, .order_size = n, .groups = groups, .groups_size = n};
    gv_reply_processor_groups_encode(&reply, body);
    return worker_reply(w, record, status, NULL, body, (uint32_t)gv_reply_processor_groups_size(&reply));
}
