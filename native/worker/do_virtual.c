/* Virtual memory management: physical memory by the client's handles, and where it is mapped. */
#include <stdlib.h>

#include "state.h"

/* Half of the functions is of no use. */
static bool supported(const struct worker *w) { return w->ops->physical_create && w->ops->memory_map && w->ops->memory_access; }

int worker_do_memory_create(void *worker, const struct gv_record *record, const struct gv_cmd_memory_create *c) {
    struct worker *w = worker;
    if (c->device >= w->n_devices) return -1;
    struct worker_physical *p = supported(w) ? calloc(1, sizeof *p) : NULL;
    int status = p              ? w->ops->physical_create(w->device_contexts[c->device], c->size, &p->physical)
                 : supported(w) ? WORKER_OUT_OF_MEMORY
                                : WORKER_NOT_SUPPORTED;
    if (!status && handles_put(&w->physicals, c->handle, p)) {
        w->ops->physical_destroy(p->physical);
        status = WORKER_INVALID_VALUE;
    }
    if (status) {
        free(p);
    } else {
        p->size = c->size;
        atomic_fetch_add(&w->memory_used, c->size);
    }
    return worker_reply(w, record, status, status == WORKER_OUT_OF_MEMORY ? "the device's memory is used up" : NULL, NULL, 0);
}

int worker_do_memory_destroy(void *worker, const struct gv_record *record, const struct gv_cmd_memory_destroy *c) {
    struct worker *w = worker;
    struct worker_physical *p = handles_get(&w->physicals, c->handle);
    int status = p ? w->ops->physical_destroy(p->physical) : WORKER_INVALID_HANDLE;
    if (status) {
        worker_failed(w, record, status, "physical memory could not be given back");
        return 0;
    }
    handles_take(&w->physicals, c->handle);
    atomic_fetch_sub(&w->memory_used, p->size);
    free(p);
    return 0;
}

int worker_do_memory_map(void *worker, const struct gv_record *record, const struct gv_cmd_memory_map *c) {
    (void)record;
    struct worker *w = worker;
    struct worker_physical *p = handles_get(&w->physicals, c->handle);
    int status = p ? w->ops->memory_map(p->physical, c->address, c->size) : WORKER_INVALID_HANDLE;
    if (status) w->map_failed = status;
    return 0;
}

int worker_do_memory_unmap(void *worker, const struct gv_record *record, const struct gv_cmd_memory_unmap *c) {
    struct worker *w = worker;
    int status = supported(w) ? w->ops->memory_unmap(w->backend, c->address, c->size) : WORKER_NOT_SUPPORTED;
    if (status) worker_failed(w, record, status, "memory could not be unmapped");
    return 0;
}

int worker_do_memory_access(void *worker, const struct gv_record *record, const struct gv_cmd_memory_access *c) {
    struct worker *w = worker;
    if (c->device >= w->n_devices) return -1;
    int status = supported(w) ? w->ops->memory_access(w->backend, c->address, c->size, c->device, c->rights) : WORKER_NOT_SUPPORTED;
    /* A mapping that failed is why: nobody waited for that. */
    if (status && w->map_failed) status = w->map_failed;
    w->map_failed = 0;
    return worker_reply(w, record, status, status == WORKER_OUT_OF_MEMORY ? "the server has no room for the mapping" : NULL, NULL, 0);
}

int worker_do_address_reserve(void *worker, const struct gv_record *record, const struct gv_cmd_address_reserve *c) {
    struct worker *w = worker;
    struct gv_reply_address_reserve reply = {0};
    int status = w->ops->address_reserve ? w->ops->address_reserve(w->backend, c->size, c->alignment, &reply.address) : WORKER_NOT_SUPPORTED;
    uint8_t body[16];
    gv_reply_address_reserve_encode(&reply, body);
    return worker_reply(w, record, status, NULL, body, (uint32_t)gv_reply_address_reserve_size(&reply));
}

int worker_do_address_free(void *worker, const struct gv_record *record, const struct gv_cmd_address_free *c) {
    struct worker *w = worker;
    int status = w->ops->address_free ? w->ops->address_free(w->backend, c->address, c->size) : WORKER_NOT_SUPPORTED;
    if (status) worker_failed(w, record, status, "addresses could not be given back");
    return 0;
}
