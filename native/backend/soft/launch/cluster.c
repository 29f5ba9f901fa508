/* Thread block clusters: of which a launch is made, and how many of them run at once. The whole device is one group of multiprocessors to them. */
#include "../../../wire/cluster_dims.h"
#include "../module.h"

int soft_cluster_shape(const struct soft_kernel *k, const struct gv_launch *l, uint32_t shape[3]) {
    uint32_t word = l->cluster & GV_CLUSTER_DIMS_MASK, compiled = k->meta->cluster;
    if (compiled && word && word != compiled) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (!word) word = compiled;
    for (int i = 0; i < 3; i++) shape[i] = word ? gv_cluster_dim(word, i) : atomic_load(&k->cluster[i]);
    if (!shape[0] && !shape[1] && !shape[2]) return k->meta->flags & GV_META_KERNEL_NEEDS_CLUSTER ? CUDA_ERROR_INVALID_CLUSTER_SIZE : 0;
    uint64_t blocks = 1;
    for (int i = 0; i < 3; i++) {
        if (!shape[i] || l->grid[i] % shape[i]) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        blocks *= shape[i];
    }
    return blocks <= (atomic_load(&k->nonportable) ? SOFT_CLUSTER_MAX : GV_CLUSTER_PORTABLE) ? 0 : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

int soft_cluster_attribute(struct soft_kernel *k, int32_t attribute, int32_t value) {
    if (attribute == CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE) return 0; /* a hint */
    if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) {
        atomic_store(&k->nonportable, value != 0);
        return 0;
    }
    if (value < 0 || value > (int32_t)GV_CLUSTER_DIM_MAX || k->meta->cluster) return CUDA_ERROR_INVALID_VALUE;
    atomic_store(&k->cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH], (uint32_t)value);
    return 0;
}

int soft_cluster_count(struct gv_module *m, const struct gv_cluster_query *q, int32_t *count) {
    if (q->kernel >= m->n_kernels) return CUDA_ERROR_INVALID_HANDLE;
    const struct soft_kernel *k = &m->kernels[q->kernel];
    uint64_t threads = (uint64_t)q->block[0] * q->block[1] * q->block[2];
    if (!threads || threads > SOFT_MAX_THREADS || q->shared > atomic_load(&k->max_dynamic)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t resident = soft_resident_blocks((uint32_t)threads, (uint64_t)k->meta->static_shared + q->shared);
    if (q->potential) {
        uint64_t most = atomic_load(&k->nonportable) ? SOFT_CLUSTER_MAX : GV_CLUSTER_PORTABLE;
        *count = (int32_t)(resident < most ? resident : most);
        return 0;
    }
    const struct gv_launch l = {.grid = {q->grid[0], q->grid[1], q->grid[2]}, .cluster = q->cluster};
    uint32_t shape[3];
    int rc = soft_cluster_shape(k, &l, shape);
    if (rc) return rc;
    uint64_t blocks = shape[0] ? (uint64_t)shape[0] * shape[1] * shape[2] : 1;
    *count = (int32_t)(resident / blocks);
    return 0;
}
