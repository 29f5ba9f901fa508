/* Attributes of functions: resources that the metadata name, and settings. */
#include "gv_client.h"
#include "objects/objects.h"
#include "wire/cluster_dims.h"

static int required_cluster(const struct shim_function *f, int dimension, int set) {
    return f->meta->cluster ? (int)gv_cluster_dim(f->meta->cluster, dimension) : set;
}

int function_get_attribute(const struct shim_function *f, int attribute, int *value) {
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = (int)f->max_threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)f->meta->static_shared; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = (int)f->meta->const_bytes; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = (int)f->meta->local_bytes; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = (int)f->meta->num_regs; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = (int)f->meta->ptx_version; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = (int)f->meta->binary_version; break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = (int)atomic_load(&f->max_dynamic_shared); break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = f->settings.carveout; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: *value = (f->meta->flags & GV_META_KERNEL_NEEDS_CLUSTER) != 0; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: *value = required_cluster(f, 0, f->settings.cluster_width); break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: *value = required_cluster(f, 1, f->settings.cluster_height); break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: *value = required_cluster(f, 2, f->settings.cluster_depth); break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: *value = f->settings.nonportable_cluster; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: *value = f->settings.cluster_policy; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return 0;
}

int settings_set(struct kernel_settings *settings, const struct gv_device_info *info, uint32_t static_shared, int attribute, int value) {
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: {
        int most = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
        if (!most) most = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
        if (value < 0 || (int64_t)value + static_shared > most) {
            call_because("%d bytes of dynamic and %u of static shared memory, of %d at most", value, static_shared, most);
            return CUDA_ERROR_INVALID_VALUE;
        }
        settings->max_dynamic_shared = value;
        return 0;
    }
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
        settings->carveout = value;
        return 0;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
        if (value < 0) return CUDA_ERROR_INVALID_VALUE;
        settings->cluster_width = value;
        return 0;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
        if (value < 0) return CUDA_ERROR_INVALID_VALUE;
        settings->cluster_height = value;
        return 0;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        if (value < 0) return CUDA_ERROR_INVALID_VALUE;
        settings->cluster_depth = value;
        return 0;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        if (value != 0 && value != 1) return CUDA_ERROR_INVALID_VALUE;
        settings->nonportable_cluster = value;
        return 0;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        if (value < 0 || value > CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING) return CUDA_ERROR_INVALID_VALUE;
        settings->cluster_policy = value;
        return 0;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static bool is_required_cluster(int attribute) {
    return attribute >= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH && attribute <= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH;
}

static bool is_of_clusters(int attribute) {
    return is_required_cluster(attribute) || attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED ||
           attribute == CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
}

int function_set_attribute(struct shim_function *f, int attribute, int value) {
    if (is_required_cluster(attribute) && f->meta->cluster) return CUDA_ERROR_INVALID_VALUE; /* the kernel was compiled for its clusters */
    int rc = settings_set(&f->settings, f->context->info, f->meta->static_shared, attribute, value);
    if (rc) return rc;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) atomic_store(&f->max_dynamic_shared, (uint32_t)value);
    /* A device without clusters does not know them; a launch that needs one is refused (cluster.c). */
    if (is_of_clusters(attribute) && !device_attribute(f->context->info, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)) return 0;
    struct gv_cmd_kernel_attribute c = {.module = f->module->object.id, .kernel = f->index, .attribute = attribute, .value = value};
    return post_kernel_attribute(f->ctx, 0, &c) ? 0 : post_refused();
}

int function_param_info(const struct shim_function *f, size_t index, size_t *offset, size_t *size) {
    if (!offset || index >= f->meta->n_params) return CUDA_ERROR_INVALID_VALUE;
    *offset = f->params[index].offset;
    if (size) *size = f->params[index].size;
    return 0;
}
