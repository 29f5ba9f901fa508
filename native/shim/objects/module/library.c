/* Libraries: images that belong to no context. Each context that uses one gets a module of its own, loaded when it is first needed. */
#include <stdlib.h>
#include <string.h>

#include "gv_impl.h"
#include "objects/objects.h"

struct library_module {
    struct library_module *next;
    uint32_t ctx;
    struct shim_module *module;
};

static struct shim_module *module_in(const struct shim_library *l, uint32_t ctx) {
    for (const struct library_module *e = l->modules; e; e = e->next) {
        if (e->ctx == ctx) return e->module;
    }
    return NULL;
}

/* ---- kernels ------------------------------------------------------------------------------------------------------- */

static int compare_kernels(const void *a, const void *b) {
    return strcmp((*(struct shim_kernel *const *)a)->name, (*(struct shim_kernel *const *)b)->name);
}

static struct shim_kernel *find_kernel(const struct shim_library *l, const char *name) {
    uint32_t low = 0, high = l->n_kernels;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(name, l->kernels[middle]->name);
        if (!order) return l->kernels[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* Creates the kernels of a library after its first load, sorted by name. They outlive the module that the names come from. */
static int name_kernels(struct shim_library *l, const struct shim_module *m) {
    uint32_t n = m->n_functions;
    l->kernels = calloc(n ? n : 1, sizeof(struct shim_kernel *));
    if (!l->kernels) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        struct shim_kernel *k = object_new(OBJECT_KERNEL);
        if (!k) return CUDA_ERROR_OUT_OF_MEMORY;
        k->library = l;
        k->name = strdup(m->functions[i]->name);
        if (!k->name) return CUDA_ERROR_OUT_OF_MEMORY;
        l->kernels[i] = k;
    }
    qsort(l->kernels, n, sizeof(struct shim_kernel *), compare_kernels);
    for (uint32_t i = 0; i < n; i++) {
        l->kernels[i]->index = i;
        object_publish(l->kernels[i]);
    }
    l->n_kernels = n;
    l->loaded = true;
    return 0;
}

/* ---- loading ------------------------------------------------------------------------------------------------------- */

/* The library's module in a context, loaded now if it has not been; l->lock held. */
static int need_module(struct shim_library *l, struct shim_context *c, const struct jit_options *jit, struct shim_module **out) {
    struct shim_module *m = module_in(l, c->id);
    if (m) {
        *out = m;
        return 0;
    }
    struct library_module *entry = malloc(sizeof *entry);
    if (!entry) return CUDA_ERROR_OUT_OF_MEMORY;
    int rc = module_load(c, &l->image, &l->source, jit, l, &m);
    if (!rc && !l->loaded) rc = name_kernels(l, m);
    if (rc) {
        free(entry);
        return rc;
    }
    *entry = (struct library_module){.next = l->modules, .ctx = c->id, .module = m};
    l->modules = entry;
    *out = m;
    return 0;
}

static int get_module(struct shim_library *l, struct shim_context *c, struct shim_module **out) {
    pthread_mutex_lock(&l->lock);
    int rc = need_module(l, c, NULL, out);
    pthread_mutex_unlock(&l->lock);
    return rc;
}

/* Makes the kernels' names known. Any context will do for that. */
static int need_names(struct shim_library *l) {
    struct shim_context *c;
    struct shim_module *m;
    pthread_mutex_lock(&l->lock);
    bool loaded = l->loaded;
    pthread_mutex_unlock(&l->lock);
    if (loaded) return 0;
    int rc = context_any(&c);
    return rc ? rc : get_module(l, c, &m);
}

static void forget_context(struct shim_library *l, uint32_t ctx) {
    pthread_mutex_lock(&l->lock);
    for (struct library_module **at = &l->modules; *at;) {
        struct library_module *e = *at;
        if (e->ctx != ctx) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        free(e);
    }
    for (uint32_t i = 0; i < l->n_kernels; i++) {
        for (int j = 0; j < KERNEL_CONTEXTS; j++) {
            if (atomic_load(&l->kernels[i]->ctx[j]) == ctx) atomic_store(&l->kernels[i]->ctx[j], 0);
        }
    }
    pthread_mutex_unlock(&l->lock);
}

void library_context_gone(struct shim_context *c) {
    struct shim_module *m;
    while ((m = module_take(c))) {
        if (m->library) forget_context(m->library, c->id);
        module_drop(m);
    }
}

/* What was set on the kernel before this context knew it. */
static void apply_settings(const struct shim_kernel *k, struct shim_function *f) {
    if (!k->settings) return;
    const struct kernel_settings *s = &k->settings[f->context->device];
    if (s->max_dynamic_shared >= 0) function_set_attribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, s->max_dynamic_shared);
    if (s->carveout >= 0) function_set_attribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, s->carveout);
    const int clusters[][2] = {{CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, s->cluster_width},
                               {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, s->cluster_height},
                               {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, s->cluster_depth},
                               {CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, s->nonportable_cluster},
                               {CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, s->cluster_policy}};
    for (size_t i = 0; i < sizeof clusters / sizeof *clusters; i++)
        if (clusters[i][1]) function_set_attribute(f, clusters[i][0], clusters[i][1]);
}

int kernel_function(struct shim_kernel *k, struct shim_context *c, struct shim_function **out) {
    for (int i = 0; i < KERNEL_CONTEXTS; i++) {
        if (atomic_load_explicit(&k->ctx[i], memory_order_acquire) == c->id) {
            *out = k->functions[i];
            return 0;
        }
    }
    struct shim_library *l = k->library;
    struct shim_module *m;
    pthread_mutex_lock(&l->lock);
    int rc = need_module(l, c, NULL, &m);
    struct shim_function *f = rc ? NULL : module_find(m, k->name);
    if (!rc && !f) rc = CUDA_ERROR_NOT_FOUND; /* this device took another image, which lacks it */
    if (!rc && !f->kernel) {
        f->kernel = k;
        apply_settings(k, f);
    }
    for (int i = 0; !rc && i < KERNEL_CONTEXTS; i++) {
        uint32_t taken = atomic_load(&k->ctx[i]);
        if (taken == c->id) break;
        if (taken) continue;
        k->functions[i] = f;
        atomic_store_explicit(&k->ctx[i], c->id, memory_order_release);
        break;
    }
    pthread_mutex_unlock(&l->lock);
    *out = f;
    return rc;
}

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static int load(CUlibrary *library, const void *pointer, size_t limit, const char *path, bool preserved, const struct jit_options *jit) {
    struct shim_library *l = object_new(OBJECT_LIBRARY);
    if (!l) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&l->lock, NULL);
    l->source = (struct module_source){.pointer = path ? NULL : pointer, .path = path ? strdup(path) : NULL};
    int rc = image_open(pointer, limit, &l->image);
    if (!rc && !preserved) rc = image_keep(&l->image);
    /* A caller with log buffers needs the compiler's log now. */
    struct shim_context *c;
    struct shim_module *m;
    if (!rc && (jit->error || jit->info) && !context_any(&c)) {
        pthread_mutex_lock(&l->lock);
        rc = need_module(l, c, jit, &m);
        pthread_mutex_unlock(&l->lock);
    }
    if (rc) {
        image_close(&l->image);
        free((void *)l->source.path);
        object_free(l);
        return rc;
    }
    object_publish(l);
    *library = (CUlibrary)l;
    return 0;
}

CUresult impl_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_values, unsigned int n_jit,
                                CUlibraryOption *options, void **values, unsigned int n_options) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!library || !code || (n_options && !options)) return CUDA_ERROR_INVALID_VALUE;
    int rc = session_broken();
    if (rc) return rc;
    struct jit_options jit;
    rc = jit_options_read(n_jit, jit_options, jit_values, &jit);
    bool preserved = false;
    for (unsigned i = 0; i < n_options; i++) {
        if (options[i] == CU_LIBRARY_BINARY_IS_PRESERVED) preserved = !values || values[i];
    }
    return rc ? rc : load(library, code, SIZE_MAX, NULL, preserved, &jit);
}

CUresult impl_cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options, void **jit_values, unsigned int n_jit,
                                    CUlibraryOption *options, void **values, unsigned int n_options) {
    (void)options, (void)values, (void)n_options;
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!library || !path) return CUDA_ERROR_INVALID_VALUE;
    struct jit_options jit;
    int rc = jit_options_read(n_jit, jit_options, jit_values, &jit);
    void *data;
    size_t size;
    if (!rc) rc = image_read_file(path, &data, &size);
    if (rc) return rc;
    rc = load(library, data, size, path, false, &jit);
    free(data);
    return rc;
}

static int find(CUlibrary library, struct shim_library **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(OBJECT_LIBRARY, library);
    return *out ? session_broken() : CUDA_ERROR_INVALID_HANDLE;
}

CUresult impl_cuLibraryUnload(CUlibrary library) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_library *l = object_get(OBJECT_LIBRARY, library);
    if (!l || !object_retire(l)) return CUDA_ERROR_INVALID_HANDLE;
    for (;;) {
        pthread_mutex_lock(&l->lock);
        struct library_module *e = l->modules;
        if (e) l->modules = e->next;
        pthread_mutex_unlock(&l->lock);
        if (!e) break;
        if (object_retire(e->module)) module_unload(e->module);
        free(e);
    }
    for (uint32_t i = 0; i < l->n_kernels; i++) {
        struct shim_kernel *k = l->kernels[i];
        object_retire(k);
        free(k->settings);
        free(k->name);
        k->settings = NULL;
        k->name = NULL;
        object_free(k);
    }
    free(l->kernels);
    free((void *)l->source.path);
    image_close(&l->image);
    object_free(l);
    return CUDA_SUCCESS;
}

/* ---- what is in it ------------------------------------------------------------------------------------------------- */

CUresult impl_cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    struct shim_library *l;
    int rc = find(library, &l);
    if (rc) return rc;
    if (!kernel || !name) return CUDA_ERROR_INVALID_VALUE;
    rc = need_names(l);
    if (rc) return rc;
    struct shim_kernel *k = find_kernel(l, name);
    if (!k) return CUDA_ERROR_NOT_FOUND;
    *kernel = (CUkernel)k;
    return CUDA_SUCCESS;
}

CUresult impl_cuLibraryGetKernelCount(unsigned int *count, CUlibrary library) {
    struct shim_library *l;
    int rc = find(library, &l);
    if (rc) return rc;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    rc = need_names(l);
    if (!rc) *count = l->n_kernels;
    return rc;
}

CUresult impl_cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int n, CUlibrary library) {
    struct shim_library *l;
    int rc = find(library, &l);
    if (rc) return rc;
    if (!kernels || !n) return CUDA_ERROR_INVALID_VALUE;
    rc = need_names(l);
    for (unsigned i = 0; !rc && i < n && i < l->n_kernels; i++) kernels[i] = (CUkernel)l->kernels[i];
    return rc;
}

CUresult impl_cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    struct shim_library *l;
    struct shim_context *c;
    struct shim_module *m;
    int rc = find(library, &l);
    if (!rc) rc = context_require(&c);
    if (rc) return rc;
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    rc = get_module(l, c, &m);
    if (!rc) *module = (CUmodule)m;
    return rc;
}

CUresult impl_cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name) {
    struct shim_library *l;
    struct shim_context *c;
    struct shim_module *m;
    int rc = find(library, &l);
    if (!rc) rc = context_require(&c);
    if (rc) return rc;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    rc = get_module(l, c, &m);
    return rc ? rc : module_global(m, name, address, size);
}

/* One instance is what the host sees; with modules on several devices it would be no longer clear whose. */
static void warn_of_several(struct shim_library *l, const char *name) {
    pthread_mutex_lock(&l->lock);
    bool several = l->modules && l->modules->next;
    pthread_mutex_unlock(&l->lock);
    if (several) shim_log_once("the managed variable %s: each device that its library is loaded on has one of its own", name);
}

CUresult impl_cuLibraryGetManaged(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name) {
    struct shim_library *l;
    struct shim_context *c;
    struct shim_module *m;
    CUdeviceptr at;
    size_t bytes;
    int rc = find(library, &l);
    if (!rc) rc = name ? context_any(&c) : (int)CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = get_module(l, c, &m);
    if (!rc) rc = module_managed(m, name, &at, &bytes);
    if (rc) return rc;
    warn_of_several(l, name);
    if (address) *address = at;
    if (size) *size = bytes;
    return CUDA_SUCCESS;
}

/* No device has CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS. */
CUresult impl_cuLibraryGetUnifiedFunction(void **out, CUlibrary library, const char *symbol) {
    (void)out, (void)symbol;
    struct shim_library *l;
    int rc = find(library, &l);
    return rc ? rc : CUDA_ERROR_INVALID_VALUE; /* as of devices on which host and device share no function's address */
}
