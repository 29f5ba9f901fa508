/* Linking by the driver. */
#include <stdlib.h>
#include <string.h>

#include "backend_cuda.h"

/* Options for the driver: those given, and buffers for its logs. */
struct options {
    CUjit_option names[GV_LINK_MAX_OPTIONS + 4];
    void *values[GV_LINK_MAX_OPTIONS + 4];
    unsigned n;
};

static void add(struct options *o, CUjit_option name, void *value) {
    o->names[o->n] = name;
    o->values[o->n++] = value;
}

static void read_options(struct options *o, const struct gv_link_option *given, uint32_t n) {
    o->n = 0;
    for (uint32_t i = 0; i < n && i < GV_LINK_MAX_OPTIONS; i++) {
        /* Numbers only: a client must not pass addresses of this process. */
        if (gv_link_option_travels(given[i].option)) add(o, (CUjit_option)given[i].option, (void *)(uintptr_t)given[i].value);
    }
}

int cuda_link(struct gv_context *c, const struct gv_link_job *job, struct gv_link_result *out) {
    const struct driver *d = &c->b->driver;
    struct options o;
    CUlinkState state = NULL;
    void *image;
    int status = cuda_enter(c);
    if (status) return status;
    read_options(&o, job->options, job->n_options);
    add(&o, CU_JIT_INFO_LOG_BUFFER, out->info);
    add(&o, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, (void *)sizeof out->info);
    add(&o, CU_JIT_ERROR_LOG_BUFFER, out->error);
    add(&o, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, (void *)sizeof out->error);
    status = d->link_create(o.n, o.names, o.values, &state);
    for (uint32_t i = 0; i < job->n_inputs && !status; i++) {
        const struct gv_link_part *p = &job->inputs[i];
        struct options own;
        read_options(&own, p->options, p->n_options);
        status = d->link_add(state, (CUjitInputType)p->type, (void *)p->data, p->size, p->name, own.n, own.names, own.values);
    }
    if (!status) status = d->link_complete(state, &image, &out->size);
    if (!status) {
        out->image = malloc(out->size ? out->size : 1);
        if (out->image)
            memcpy(out->image, image, out->size);
        else
            status = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (state) d->link_destroy(state); /* the driver writes to the logs' buffers until here */
    out->info[sizeof out->info - 1] = out->error[sizeof out->error - 1] = 0;
    return status;
}
