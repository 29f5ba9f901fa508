/* The driver's calls about modules. */
#include <stdlib.h>

#include "gv_impl.h"
#include "objects/objects.h"

static int load(CUmodule *module, const void *pointer, size_t limit, const char *path, const struct jit_options *jit) {
    struct shim_context *c;
    struct image image;
    struct shim_module *m;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!module || !pointer) return CUDA_ERROR_INVALID_VALUE;
    rc = image_open(pointer, limit, &image);
    /* An image that was read from a file lies in memory of the shim: only its path identifies it. */
    struct module_source source = {.pointer = path ? NULL : pointer, .path = path};
    if (!rc) rc = module_load(c, &image, &source, jit, NULL, &m);
    if (!rc) *module = (CUmodule)m;
    return rc;
}

CUresult impl_cuModuleLoadData(CUmodule *module, const void *image) { return load(module, image, SIZE_MAX, NULL, NULL); }

CUresult impl_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n, CUjit_option *options, void **values) {
    struct jit_options jit;
    int rc = jit_options_read(n, options, values, &jit);
    return rc ? rc : load(module, image, SIZE_MAX, NULL, &jit);
}

CUresult impl_cuModuleLoadFatBinary(CUmodule *module, const void *image) { return load(module, image, SIZE_MAX, NULL, NULL); }

CUresult impl_cuModuleLoad(CUmodule *module, const char *path) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!module || !path) return CUDA_ERROR_INVALID_VALUE;
    void *data;
    size_t size;
    rc = image_read_file(path, &data, &size);
    if (rc) return rc;
    rc = load(module, data, size, path, NULL);
    free(data);
    return rc;
}

static int find(CUmodule module, struct shim_module **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(OBJECT_MODULE, module);
    if (!*out) return CUDA_ERROR_INVALID_HANDLE;
    int rc = session_broken();
    return rc ? rc : context_status((*out)->context);
}

CUresult impl_cuModuleUnload(CUmodule module) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_module *m = object_get(OBJECT_MODULE, module);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    if (m->library) return CUDA_ERROR_NOT_PERMITTED; /* it is unloaded with its library */
    if (!object_retire(m)) return CUDA_ERROR_INVALID_HANDLE;
    module_unload(m);
    return CUDA_SUCCESS;
}

/* Kernels are compiled at their first launch, whatever CUDA_MODULE_LOADING says. */
CUresult impl_cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult impl_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    struct shim_module *m;
    int rc = find(module, &m);
    if (rc) return rc;
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    struct shim_function *f = module_find(m, name);
    if (!f) return CUDA_ERROR_NOT_FOUND;
    *function = (CUfunction)f;
    return CUDA_SUCCESS;
}

CUresult impl_cuModuleGetFunctionCount(unsigned int *count, CUmodule module) {
    struct shim_module *m;
    int rc = find(module, &m);
    if (rc) return rc;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = m->n_functions;
    return CUDA_SUCCESS;
}

CUresult impl_cuModuleEnumerateFunctions(CUfunction *functions, unsigned int n, CUmodule module) {
    struct shim_module *m;
    int rc = find(module, &m);
    if (rc) return rc;
    if (!functions || !n) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n && i < m->n_functions; i++) functions[i] = (CUfunction)m->functions[i];
    return CUDA_SUCCESS;
}

CUresult impl_cuModuleGetGlobal(CUdeviceptr *address, size_t *size, CUmodule module, const char *name) {
    struct shim_module *m;
    int rc = find(module, &m);
    if (rc) return rc;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    return module_global(m, name, address, size);
}
