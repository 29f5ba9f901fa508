/* Linking: the compiler makes one PTX text of several. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler.h"
#include "soft.h"

int soft_link(struct gv_context *c, const struct gv_link_job *job, struct gv_link_result *out) {
    const struct soft_compiler *compiler = c->backend->compiler;
    if (!compiler) {
        snprintf(out->error, sizeof out->error, "this worker has no compiler for device code");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (job->n_inputs > GV_LINK_MAX_INPUTS) return CUDA_ERROR_INVALID_VALUE;
    struct soft_link_input *inputs = calloc((size_t)job->n_inputs + 1, sizeof *inputs);
    if (!inputs) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < job->n_inputs; i++) {
        const struct gv_link_part *part = &job->inputs[i];
        inputs[i] = (struct soft_link_input){.type = part->type, .name = part->name, .data = part->data, .size = part->size};
    }
    void *linked = NULL;
    size_t size = 0;
    int rc = compiler->link(compiler->self, job->n_inputs, inputs, &linked, &size, out->error, sizeof out->error);
    free(inputs);
    if (rc) return rc;
    out->image = malloc(size);
    if (out->image) {
        memcpy(out->image, linked, size);
        out->size = size;
        snprintf(out->info, sizeof out->info, "info    : %u inputs linked to %zu bytes of PTX, which a software GPU runs\n", job->n_inputs, size);
    }
    compiler->release_meta(compiler->self, linked);
    return out->image ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}
