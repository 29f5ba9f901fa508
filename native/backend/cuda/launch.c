/* Launches by the driver, with and without thread block clusters. */
#include <stdlib.h>

#include "../../wire/cluster_dims.h"
#include "backend_cuda.h"

/* ---- clusters ------------------------------------------------------------------------------------------------------ */

#define ATTRIBUTES 4 /* the most that one launch has */

static void set_dims(CUlaunchAttribute *a, CUlaunchAttributeID id, uint32_t word) {
    a->id = id;
    a->value.clusterDim.x = gv_cluster_dim(word, 0); /* that of a preferred cluster has the same form */
    a->value.clusterDim.y = gv_cluster_dim(word, 1);
    a->value.clusterDim.z = gv_cluster_dim(word, 2);
}

/* What the program has named, and nothing else: a cluster of one block is one, too. */
static unsigned attributes(const struct gv_launch *l, CUlaunchAttribute *out) {
    unsigned n = 0;
    if (gv_cluster_blocks(l->cluster)) set_dims(&out[n++], CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, l->cluster);
    if (gv_cluster_blocks(l->preferred_cluster)) set_dims(&out[n++], CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, l->preferred_cluster);
    if (gv_cluster_policy(l->cluster))
        out[n++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
                                       .value.clusterSchedulingPolicyPreference = (CUclusterSchedulingPolicy)gv_cluster_policy(l->cluster)};
    if (l->cooperative) out[n++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    return n;
}

static CUlaunchConfig configuration(const uint32_t *grid, const uint32_t *block, uint32_t shared, CUlaunchAttribute *attrs, unsigned n) {
    return (CUlaunchConfig){.gridDimX = grid[0],
                            .gridDimY = grid[1],
                            .gridDimZ = grid[2],
                            .blockDimX = block[0],
                            .blockDimY = block[1],
                            .blockDimZ = block[2],
                            .sharedMemBytes = shared,
                            .attrs = attrs,
                            .numAttrs = n};
}

static int launch_clustered(const struct driver *d, CUfunction f, CUstream stream, const struct gv_launch *l, void **extra) {
    CUlaunchAttribute attrs[ATTRIBUTES] = {0};
    CUlaunchConfig config = configuration(l->grid, l->block, l->shared, attrs, attributes(l, attrs));
    config.hStream = stream;
    return d->launch_ex(&config, f, NULL, extra);
}

int cuda_cluster_count(struct gv_module *m, const struct gv_cluster_query *q, int32_t *count) {
    const struct driver *d = &m->context->b->driver;
    if (q->kernel >= m->n_functions) return CUDA_ERROR_INVALID_HANDLE;
    int status = cuda_enter(m->context), found = 0;
    if (status) return status;
    CUlaunchAttribute cluster = {0};
    if (q->cluster) set_dims(&cluster, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, q->cluster);
    CUlaunchConfig config = configuration(q->grid, q->block, q->shared, q->cluster ? &cluster : NULL, q->cluster != 0);
    status = q->potential ? d->cluster_size(&found, m->functions[q->kernel], &config) : d->active_clusters(&found, m->functions[q->kernel], &config);
    *count = found;
    return status;
}

/* ---- launches ------------------------------------------------------------------------------------------------------ */

/* The driver takes parameters by the kernel's own count and sizes: what is shorter would be read beyond its end. */
int cuda_launch(struct gv_stream *s, const struct gv_launch *l) {
    const struct driver *d = &s->context->b->driver;
    if (l->kernel >= l->module->n_functions) return CUDA_ERROR_INVALID_HANDLE;
    const struct cuda_params *params = &l->module->params[l->kernel];
    if (l->params_size < params->bytes) return CUDA_ERROR_INVALID_VALUE;
    int status = cuda_enter(s->context);
    if (status) return status;
    CUfunction f = l->module->functions[l->kernel];
    if (l->cooperative && !l->cluster && !l->preferred_cluster) {
        /* This call takes no packed buffer: the parameters' addresses are computed from the function's layout. */
        void **pointers = calloc((size_t)params->n + 1, sizeof *pointers);
        if (!pointers) return CUDA_ERROR_OUT_OF_MEMORY;
        size_t offset, size;
        for (uint32_t n = 0; n < params->n && !status; n++) {
            status = d->function_param(f, n, &offset, &size);
            pointers[n] = (void *)((const char *)l->params + offset);
        }
        if (!status)
            status =
                d->launch_cooperative(f, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared, s->stream, pointers);
        free(pointers);
        return status;
    }
    size_t size = l->params_size;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)l->params, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    if (l->cluster || l->preferred_cluster) return launch_clustered(d, f, s->stream, l, size ? extra : NULL);
    return d->launch(f, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared, s->stream, NULL, size ? extra : NULL);
}
