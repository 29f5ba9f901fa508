/* Virtual memory management: physical memory by the client's handles, and where it is mapped. */
#include "state.h"

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
