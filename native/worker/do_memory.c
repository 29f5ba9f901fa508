/* Contexts and memory. */
#include <stdlib.h>

#include "state.h"

int worker_do_context_create(void *worker, const struct gv_record *record, const struct gv_cmd_context_create *c) {
    struct worker *w = worker;
    if (!w->attached || c->device >= w->n_devices) return -1;
    char err[GV_ERR_SIZE] = "";
    struct worker_context *context = calloc(1, sizeof *context);
    struct worker_stream *legacy = calloc(1, sizeof *legacy);
    int status = context && legacy ? w->ops->context_create(w->backend, c->device, c->flags, (int)c->primary, &context->context, err) : 2;
    if (!status && handles_put(&w->contexts, record->ctx, context)) {
        w->ops->context_destroy(context->context);
        status = 1;
    }
    if (status) {
        free(context);
        free(legacy);
        worker_failed(w, record, status, err[0] ? err : "the context could not be made");
        return 0;
    }
    context->device = c->device;
    context->legacy = legacy;
    *legacy = (struct worker_stream){.stream = w->ops->stream_legacy(context->context),
                                     .context = context->context,
                                     .id = 0xffff000000000000ull | record->ctx,
                                     .ctx = record->ctx,
                                     .legacy = true};
    atomic_store(&legacy->refs, 1);
    return 0;
}

int worker_do_context_destroy(void *worker, const struct gv_record *record, const struct gv_cmd_context_destroy *c) {
    (void)c;
    struct worker *w = worker;
    struct worker_context *context = handles_take(&w->contexts, record->ctx);
    if (!context) {
        worker_failed(w, record, 201, "no such context");
        return 0;
    }
    w->ops->context_destroy(context->context);
    worker_stream_drop(w, context->legacy);
    free(context);
    return 0;
}

/* The context whose device a memory command means. */
static struct gv_context *memory_context(struct worker *w, const struct gv_record *record) {
    struct worker_context *c = worker_context(w, record->ctx);
    return c ? c->context : NULL;
}

int worker_do_memory_grow(void *worker, const struct gv_record *record, const struct gv_cmd_memory_grow *c) {
    struct worker *w = worker;
    struct gv_context *context = memory_context(w, record);
    int status = context ? w->ops->memory_back(context, c->address, c->size) : 201;
    return worker_reply(w, record, status, status == 2 ? "the device's memory is used up" : NULL, NULL, 0);
}

int worker_do_memory_shrink(void *worker, const struct gv_record *record, const struct gv_cmd_memory_shrink *c) {
    struct worker *w = worker;
    struct gv_context *context = memory_context(w, record);
    int status = context ? w->ops->memory_unback(context, c->address, c->size) : 201;
    if (status) worker_failed(w, record, status, "memory could not be given back");
    return 0;
}

int worker_do_memory_alloc(void *worker, const struct gv_record *record, const struct gv_cmd_memory_alloc *c) {
    struct worker *w = worker;
    struct gv_context *context = memory_context(w, record);
    struct gv_reply_memory_alloc reply = {0};
    int status = context ? w->ops->memory_alloc(context, c->size, &reply.address) : 201;
    uint8_t body[16];
    gv_reply_memory_alloc_encode(&reply, body);
    return worker_reply(w, record, status, NULL, body, (uint32_t)gv_reply_memory_alloc_size(&reply));
}

int worker_do_memory_free(void *worker, const struct gv_record *record, const struct gv_cmd_memory_free *c) {
    struct worker *w = worker;
    struct gv_context *context = memory_context(w, record);
    int status = context ? w->ops->memory_free(context, c->address) : 201;
    if (status) worker_failed(w, record, status, "memory could not be freed");
    return 0;
}

int worker_do_memory_info(void *worker, const struct gv_record *record, const struct gv_cmd_memory_info *c) {
    (void)c;
    struct worker *w = worker;
    struct gv_context *context = memory_context(w, record);
    struct gv_reply_memory_info reply = {0};
    int status = context ? w->ops->memory_info(context, &reply.free, &reply.total) : 201;
    uint8_t body[32];
    gv_reply_memory_info_encode(&reply, body);
    return worker_reply(w, record, status, NULL, body, (uint32_t)gv_reply_memory_info_size(&reply));
}
