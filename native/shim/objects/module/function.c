/* The driver's calls about functions and kernels. What they answer is in function_attributes.c. */
#include <stdlib.h>

#include "gv_impl.h"
#include "objects/objects.h"

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

/* The function of a query: one of any context, or a kernel's function in the current context (or any other). */
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
