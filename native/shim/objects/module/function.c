/* Functions and kernels: what they need, and what may be set on them. Everything is answered from the module's metadata. */
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/objects.h"

#include <stdlib.h>

/* ---- handles ------------------------------------------------------------------------------------------------------- */

int function_resolve(CUfunction handle, struct shim_context *c, struct shim_function **out) {
    struct shim_function *f = object_get(OBJECT_FUNCTION, handle);
    if (f) {
        *out = f;
        return f->ctx == c->id ? 0 : CUDA_ERROR_INVALID_HANDLE;
    }
    struct shim_kernel *k = object_get(OBJECT_KERNEL, handle);
    return k ? kernel_function(k, c, out) : CUDA_ERROR_INVALID_HANDLE;
}

/* A function to be asked about: of any context, a kernel in the current one (or whichever there is). */
static int find_function(CUfunction handle, struct shim_function **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(OBJECT_FUNCTION, handle);
    if (*out) return session_broken();
    struct shim_kernel *k = object_get(OBJECT_KERNEL, handle);
    struct shim_context *c;
    if (!k) return CUDA_ERROR_INVALID_HANDLE;
    int rc = context_any(&c);
    return rc ? rc : kernel_function(k, c, out);
}

static int find_kernel(CUkernel handle, struct shim_kernel **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(OBJECT_KERNEL, handle);
    return *out ? session_broken() : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- attributes ---------------------------------------------------------------------------------------------------- */

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
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: *value = f->settings.cluster_width; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: *value = f->settings.cluster_height; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: *value = f->settings.cluster_depth; break;
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
        if (value < 0 || (int64_t)value + static_shared > most) return CUDA_ERROR_INVALID_VALUE;
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

int function_set_attribute(struct shim_function *f, int attribute, int value) {
    int rc = settings_set(&f->settings, f->context->info, f->meta->static_shared, attribute, value);
    if (rc) return rc;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) atomic_store(&f->max_dynamic_shared, (uint32_t)value);
    struct gv_cmd_kernel_attribute c = {.module = f->module->object.id, .kernel = f->index, .attribute = attribute, .value = value};
    return post_kernel_attribute(f->ctx, 0, &c) ? 0 : post_refused();
}

CUresult impl_cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    struct shim_function *f;
    int rc = find_function(function, &f);
    if (rc) return rc;
    return value ? function_get_attribute(f, (int)attribute, value) : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    struct shim_function *f;
    int rc = find_function(function, &f);
    return rc ? rc : function_set_attribute(f, (int)attribute, value);
}

/* ---- the same for kernels, per device ------------------------------------------------------------------------------ */

/* The kernel's function in a context of that device: the current context if it is one, else the primary one. NULL without an error when there is no such context. */
static int function_on(struct shim_kernel *k, CUdevice device, struct shim_function **out) {
    *out = NULL;
    struct shim_context *c = context_current();
    if (!c || c->device != device || !atomic_load(&c->object.live)) c = context_primary(device);
    if (!c || !atomic_load(&c->object.live)) return 0;
    return kernel_function(k, c, out);
}

CUresult impl_cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
    struct shim_kernel *k;
    struct shim_function *f;
    int rc = find_kernel(kernel, &k);
    if (rc) return rc;
    if (!device_info(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    rc = function_on(k, device, &f);
    if (rc) return rc;
    return f ? function_get_attribute(f, (int)attribute, value) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult impl_cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
    struct shim_kernel *k;
    struct shim_function *f;
    int rc = find_kernel(kernel, &k);
    if (rc) return rc;
    const struct gv_device_info *info = device_info(device);
    if (!info) return CUDA_ERROR_INVALID_DEVICE;
    rc = function_on(k, device, &f);
    if (rc) return rc;
    struct shim_library *l = k->library;
    pthread_mutex_lock(&l->lock);
    if (!k->settings) {
        k->settings = malloc((size_t)device_count() * sizeof *k->settings);
        for (int i = 0; k->settings && i < device_count(); i++) k->settings[i] = KERNEL_SETTINGS_DEFAULT;
    }
    rc = k->settings ? settings_set(&k->settings[device], info, f ? f->meta->static_shared : 0, (int)attribute, value) : CUDA_ERROR_OUT_OF_MEMORY;
    /* In every context of that device that has it already. */
    for (int i = 0; !rc && i < KERNEL_CONTEXTS; i++) {
        if (atomic_load(&k->ctx[i]) && k->functions[i]->context->device == device)
            rc = function_set_attribute(k->functions[i], (int)attribute, value);
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

CUresult impl_cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device) {
    struct shim_kernel *k;
    int rc = find_kernel(kernel, &k);
    if (rc) return rc;
    if (!device_info(device)) return CUDA_ERROR_INVALID_DEVICE;
    return (int)config < 0 || config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; /* a preference that changes no result */
}

CUresult impl_cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    struct shim_kernel *k;
    struct shim_context *c;
    struct shim_function *f;
    int rc = find_kernel(kernel, &k);
    if (!rc) rc = context_require(&c);
    if (rc) return rc;
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    rc = kernel_function(k, c, &f);
    if (!rc) *function = (CUfunction)f;
    return rc;
}

CUresult impl_cuKernelGetLibrary(CUlibrary *library, CUkernel kernel) {
    struct shim_kernel *k;
    int rc = find_kernel(kernel, &k);
    if (rc) return rc;
    if (!library) return CUDA_ERROR_INVALID_VALUE;
    *library = (CUlibrary)k->library;
    return CUDA_SUCCESS;
}

CUresult impl_cuKernelGetName(const char **name, CUkernel kernel) {
    struct shim_kernel *k;
    int rc = find_kernel(kernel, &k);
    if (rc) return rc;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = k->name;
    return CUDA_SUCCESS;
}

/* ---- parameters and the rest --------------------------------------------------------------------------------------- */

int function_param_info(const struct shim_function *f, size_t index, size_t *offset, size_t *size) {
    if (!offset || index >= f->meta->n_params) return CUDA_ERROR_INVALID_VALUE;
    *offset = f->params[index].offset;
    if (size) *size = f->params[index].size;
    return 0;
}

CUresult impl_cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
    struct shim_function *f;
    int rc = find_function(function, &f);
    return rc ? rc : function_param_info(f, index, offset, size);
}

CUresult impl_cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size) {
    return impl_cuFuncGetParamInfo((CUfunction)kernel, index, offset, size);
}

CUresult impl_cuFuncGetParamCount(CUfunction function, size_t *count) {
    struct shim_function *f;
    int rc = find_function(function, &f);
    if (rc) return rc;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = f->meta->n_params;
    return CUDA_SUCCESS;
}

CUresult impl_cuKernelGetParamCount(CUkernel kernel, size_t *count) { return impl_cuFuncGetParamCount((CUfunction)kernel, count); }

CUresult impl_cuFuncGetModule(CUmodule *module, CUfunction function) {
    struct shim_function *f;
    int rc = find_function(function, &f);
    if (rc) return rc;
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    *module = (CUmodule)f->module;
    return CUDA_SUCCESS;
}

CUresult impl_cuFuncGetName(const char **name, CUfunction function) {
    struct shim_function *f;
    int rc = find_function(function, &f);
    if (rc) return rc;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = f->name;
    return CUDA_SUCCESS;
}

CUresult impl_cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
    struct shim_function *f;
    int rc = find_function(function, &f);
    if (rc) return rc;
    return (int)config < 0 || config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult impl_cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config) {
    struct shim_function *f;
    int rc = find_function(function, &f);
    if (rc) return rc;
    return (int)config < 0 || config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult impl_cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function) {
    struct shim_function *f;
    int rc = find_function(function, &f);
    if (rc) return rc;
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

CUresult impl_cuFuncLoad(CUfunction function) {
    struct shim_function *f;
    return find_function(function, &f);
}
