/* Contexts: made and destroyed. */
#include <stdio.h>
#include <stdlib.h>

#include "backend_cuda.h"

int cuda_context_create(struct gv_backend *b, uint32_t device, uint32_t flags, int primary, struct gv_context **out, char *err) {
    /* The limit applies to all contexts of a device together. */
    static _Atomic uint64_t used[GV_MAX_DEVICES];
    struct gv_context *c = calloc(1, sizeof *c);
    struct gv_stream *legacy = calloc(1, sizeof *legacy);
    int status = CUDA_ERROR_OUT_OF_MEMORY;
    if (c && legacy) {
        *c = (struct gv_context){.b = b, .device = b->devices[device], .primary = primary, .legacy = legacy, .used = &used[device]};
        status = primary ? b->driver.primary_retain(&c->context, c->device) : b->driver.context_create(&c->context, flags, c->device);
        if (!status) status = cuda_enter(c);
    }
    if (status) {
        snprintf(err, GV_ERR_SIZE, "the driver could not make a context (error %d)", status);
        free(c);
        free(legacy);
        return status;
    }
    *legacy = (struct gv_stream){.context = c, .stream = CU_STREAM_LEGACY};
    if (!b->first) b->first = c; /* the worker's own context of its first device: it lives as long as the backend */
    *out = c;
    return 0;
}

int cuda_context_limit(struct gv_context *c, uint32_t limit, uint64_t *value) {
    int status = cuda_enter(c);
    size_t now = 0;
    if (!status) status = c->b->driver.context_set_limit((CUlimit)limit, *value);
    if (!status) status = c->b->driver.context_get_limit(&now, (CUlimit)limit);
    if (!status) *value = now;
    return status;
}

void cuda_context_destroy(struct gv_context *c) {
    struct gv_backend *b = c->b;
    /* Marks and gates must not outlive the context; they are called as soon as the device is idle. */
    if (cuda_enter(c) == 0) b->driver.context_synchronize();
    cuda_marks_await(c);
    if (c->primary)
        b->driver.primary_release(c->device);
    else
        b->driver.context_destroy(c->context);
    free(c->legacy);
    free(c);
}
