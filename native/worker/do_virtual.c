/* Virtual memory management: physical memory by the client's handles, and where it is mapped. */
#include <stdlib.h>

#include "state.h"

int worker_do_memory_create(struct worker *w, const struct gv_record *record, const struct gv_cmd_memory_create *c) {
    struct worker_physical *p = calloc(1, sizeof *p);
    int status = p ? w->ops->physical_create(w->device_contexts[c->device], c->size, &p->physical) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status && handles_put(&w->physicals, c->handle, p)) {
        w->ops->physical_destroy(p->physical);
        status = CUDA_ERROR_INVALID_VALUE;
    }
    if (status) {
        free(p);
    } else {
        p->size = c->size;
        atomic_fetch_add(&w->memory_used, c->size);
    }
    return worker_reply(w, record, status, status == CUDA_ERROR_OUT_OF_MEMORY ? "the device's memory is used up" : NULL, NULL, 0);
}

int worker_do_memory_destroy(struct worker *w, const struct gv_record *record, const struct gv_cmd_memory_destroy *c,
                             struct worker_physical *physical) {
    int status = w->ops->physical_destroy(physical->physical);
    if (status) {
        worker_failed(w, record, status, "physical memory could not be given back");
        return 0;
    }
    handles_take(&w->physicals, c->handle);
    atomic_fetch_sub(&w->memory_used, physical->size);
    free(physical);
    return 0;
}

int worker_do_memory_map(struct worker *w, const struct gv_record *record, const struct gv_cmd_memory_map *c) {
    (void)record;
    struct worker_physical *p = handles_get(&w->physicals, c->handle);
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
