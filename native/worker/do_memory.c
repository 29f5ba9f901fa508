/* Contexts and memory. */
#include <stdlib.h>

#include "state.h"

int worker_do_context_create(void *worker, const struct gv_record *record, const struct gv_cmd_context_create *c) {
    struct worker *w = worker;
    if (c->device >= w->n_devices) return -1;
    char err[GV_ERR_SIZE] = "";
    struct gv_context *made = NULL;
    struct worker_context *context = calloc(1, sizeof *context);
    int status = context ? w->ops->context_create(w->backend, c->device, c->flags, (int)c->primary, &made, err) : WORKER_OUT_OF_MEMORY;
    if (!status) {
        context->context = made;
        context->id = record->ctx;
        context->device = c->device;
        atomic_init(&context->refs, 1);
        context->legacy = worker_stream_new(context, w->ops->stream_legacy(made), WORKER_LEGACY_STREAM | record->ctx);
        if (!context->legacy || handles_put(&w->contexts, record->ctx, context)) {
            status = context->legacy ? WORKER_INVALID_VALUE : WORKER_OUT_OF_MEMORY;
            free(context->legacy);
            w->ops->context_destroy(made);
        }
    }
    if (status) {
        free(context);
        worker_failed(w, record, status, err[0] ? err : "the context could not be made");
    }
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
    for (uint64_t i = 0; i < w->events.size; i++) {
        struct worker_event *e = handles_at(&w->events, i);
        if (!e || e->ctx != ctx) continue;
        handles_take(&w->events, w->events.ids[i]);
        w->ops->event_destroy(e->event);
        free(e);
    }
    for (uint64_t i = 0; i < w->modules.size; i++) {
        struct worker_module *m = handles_at(&w->modules, i);
        if (!m || m->ctx != ctx) continue;
        handles_take(&w->modules, w->modules.ids[i]);
        w->ops->module_unload(m->module);
        free(m);
    }
}

int worker_do_context_destroy(void *worker, const struct gv_record *record, const struct gv_cmd_context_destroy *c) {
    (void)c;
    struct worker *w = worker;
    struct worker_context *context = handles_take(&w->contexts, record->ctx);
    if (!context) {
        worker_failed(w, record, WORKER_INVALID_CONTEXT, "no such context");
        return 0;
    }
    worker_context_sweep(w, record->ctx);
    w->ops->context_destroy(context->context);
    worker_stream_drop(context->legacy);
    worker_context_drop(context);
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
    int status = context ? w->ops->memory_back(context, c->address, c->size) : WORKER_INVALID_CONTEXT;
    if (!status) atomic_fetch_add(&w->memory_used, c->size);
    return worker_reply(w, record, status, status == WORKER_OUT_OF_MEMORY ? "the device's memory is used up" : NULL, NULL, 0);
}

int worker_do_context_limit(void *worker, const struct gv_record *record, const struct gv_cmd_context_limit *c) {
    struct worker *w = worker;
    struct gv_context *context = memory_context(w, record);
    struct gv_reply_context_limit reply = {.value = c->value};
    int status = context ? w->ops->context_limit(context, c->limit, &reply.value) : WORKER_INVALID_CONTEXT;
    uint8_t body[16];
    gv_reply_context_limit_encode(&reply, body);
    return worker_reply(w, record, status, NULL, body, (uint32_t)gv_reply_context_limit_size(&reply));
}

int worker_do_memory_shrink(void *worker, const struct gv_record *record, const struct gv_cmd_memory_shrink *c) {
    struct worker *w = worker;
    struct gv_context *context = memory_context(w, record);
    int status = context ? w->ops->memory_unback(context, c->address, c->size) : WORKER_INVALID_CONTEXT;
    if (status)
        worker_failed(w, record, status, "memory could not be given back");
    else
        atomic_fetch_sub(&w->memory_used, c->size);
    return 0;
}

int worker_do_memory_alloc(void *worker, const struct gv_record *record, const struct gv_cmd_memory_alloc *c) {
    struct worker *w = worker;
    struct gv_context *context = memory_context(w, record);
    struct gv_reply_memory_alloc reply = {0};
    int status = context ? w->ops->memory_alloc(context, c->size, &reply.address) : WORKER_INVALID_CONTEXT;
    /* Sizes are kept for the figures alone; one that is not kept is not counted. */
    if (!status && !handles_put(&w->allocations, reply.address, (void *)(uintptr_t)c->size)) atomic_fetch_add(&w->memory_used, c->size);
    uint8_t body[16];
    gv_reply_memory_alloc_encode(&reply, body);
    return worker_reply(w, record, status, status == WORKER_OUT_OF_MEMORY ? "the device's memory is used up" : NULL, body,
                        (uint32_t)gv_reply_memory_alloc_size(&reply));
}

int worker_do_memory_free(void *worker, const struct gv_record *record, const struct gv_cmd_memory_free *c) {
    struct worker *w = worker;
    struct gv_context *context = memory_context(w, record);
    int status = context ? w->ops->memory_free(context, c->address) : WORKER_INVALID_CONTEXT;
    if (status)
        worker_failed(w, record, status, "memory could not be freed");
    else
        atomic_fetch_sub(&w->memory_used, (uint64_t)(uintptr_t)handles_take(&w->allocations, c->address));
    return 0;
}

int worker_do_memory_info(void *worker, const struct gv_record *record, const struct gv_cmd_memory_info *c) {
    (void)c;
    struct worker *w = worker;
    struct gv_context *context = memory_context(w, record);
    struct gv_reply_memory_info reply = {0};
    int status = context ? w->ops->memory_info(context, &reply.free, &reply.total) : WORKER_INVALID_CONTEXT;
    uint8_t body[32];
    gv_reply_memory_info_encode(&reply, body);
    return worker_reply(w, record, status, NULL, body, (uint32_t)gv_reply_memory_info_size(&reply));
}
