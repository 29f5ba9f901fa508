/* Device memory: the credit of fixed addresses, allocations where the driver chooses them; virtual memory management. */
#include "state.h"

int worker_do_memory_grow(struct worker *w, const struct gv_record *record, const struct gv_cmd_memory_grow *c, struct worker_context *context) {
    bool waits = c->waits && c->needed == c->size;
    struct gv_reply_memory_grow reply = {.size = c->size};
    int status = w->ops->memory_back(context->context, c->address, c->size, waits);
    if (status == CUDA_ERROR_OUT_OF_MEMORY && c->needed && c->needed < c->size) {
        reply.size = c->needed;
        status = w->ops->memory_back(context->context, c->address, c->needed, c->waits);
    }
    if (status) return worker_reply(w, record, status, status == CUDA_ERROR_OUT_OF_MEMORY ? "the device's memory is used up" : NULL, NULL, 0);
    atomic_fetch_add(&w->memory_used, reply.size);
    uint8_t body[16];
    gv_reply_memory_grow_encode(&reply, body);
    return worker_reply(w, record, 0, NULL, body, (uint32_t)gv_reply_memory_grow_size(&reply));
}

int worker_do_memory_shrink(struct worker *w, const struct gv_record *record, const struct gv_cmd_memory_shrink *c, struct worker_context *context) {
    int status = w->ops->memory_unback(context->context, c->address, c->size);
    if (status)
        worker_failed(w, record, status, "memory could not be given back");
    else
        atomic_fetch_sub(&w->memory_used, c->size);
    return 0;
}

int worker_do_memory_alloc(struct worker *w, const struct gv_record *record, const struct gv_cmd_memory_alloc *c, struct worker_context *context) {
    struct gv_reply_memory_alloc reply = {0};
    int status = w->ops->memory_alloc(context->context, c->size, &reply.address);
    /* Sizes are kept for the figures alone; one that is not kept is not counted. */
    if (!status && !handles_put(&w->allocations, reply.address, (void *)(uintptr_t)c->size)) atomic_fetch_add(&w->memory_used, c->size);
    uint8_t body[16];
    gv_reply_memory_alloc_encode(&reply, body);
    return worker_reply(w, record, status, status == CUDA_ERROR_OUT_OF_MEMORY ? "the device's memory is used up" : NULL, body,
                        (uint32_t)gv_reply_memory_alloc_size(&reply));
}

int worker_do_memory_free(struct worker *w, const struct gv_record *record, const struct gv_cmd_memory_free *c, struct worker_context *context) {
    int status = w->ops->memory_free(context->context, c->address);
    if (status)
        worker_failed(w, record, status, "memory could not be freed");
    else
        atomic_fetch_sub(&w->memory_used, (uint64_t)(uintptr_t)handles_take(&w->allocations, c->address));
    return 0;
}

/* ---- virtual memory management: physical memory by the client's handles, and where it is mapped ------------------------------- */

int worker_do_memory_map(struct worker *w, const struct gv_record *record, const struct gv_cmd_memory_map *c) {
    (void)record;
    struct worker_physical *p = handles_get(&w->objects.physicals, c->handle);
    int status = p ? w->ops->memory_map(p->physical, c->address, c->size) : CUDA_ERROR_INVALID_HANDLE;
    if (status) w->map_failed = status;
    return 0;
}

int worker_do_memory_access(struct worker *w, const struct gv_record *record, const struct gv_cmd_memory_access *c) {
    int status = w->ops->memory_access(w->backend, c->address, c->size, c->device, c->rights);
    /* Reports an earlier mapping that failed, because cuMemMap had no answer. */
    if (status && w->map_failed) status = w->map_failed;
    w->map_failed = 0;
    return worker_reply(w, record, status, status == CUDA_ERROR_OUT_OF_MEMORY ? "the server has no room for the mapping" : NULL, NULL, 0);
}
