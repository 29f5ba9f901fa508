/* Modules: the compiler reads the image, this file places its globals. */
#include "module.h"

#include "../../wire/cluster_dims.h"
#include "../../wire/image_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GLOBAL_ALIGN 256ull

void soft_module_hold(struct gv_module *m) { atomic_fetch_add(&m->refs, 1); }

void soft_module_drop(struct gv_module *m) {
    if (atomic_fetch_sub(&m->refs, 1) > 1) return;
    struct gv_context *c = m->context;
    struct gv_backend *b = c->backend;
    b->compiler->module_unload(b->compiler->self, m->id);
    if (m->globals) soft_memory_unplace(b, m->globals);
    for (uint32_t i = 0; i < m->n_kernels; i++)
        while (m->kernels[i].variants) {
            struct soft_variant *v = m->kernels[i].variants;
            m->kernels[i].variants = v->next;
            free(v);
        }
    free(m->meta);
    soft_bindings_drop(m->bound);
    soft_bindings_drop(m->written);
    pthread_cond_destroy(&m->rested);
    pthread_mutex_destroy(&m->lock);
    free(m);
    soft_context_drop(c);
}

void soft_module_unload(struct gv_module *m) { soft_module_drop(m); }

/* Gives every global its address inside one piece of memory, at `wanted` (0: anywhere), in the metadata itself. */
static int place_globals(struct gv_module *m, uint64_t wanted, char *err) {
    struct gv_backend *b = m->context->backend;
    const struct gv_meta_header *header = m->meta;
    struct gv_meta_global *globals = (struct gv_meta_global *)gv_meta_globals(m->meta);
    uint64_t size = 0;
    for (uint32_t i = 0; i < header->n_globals; i++) {
        bool managed = globals[i].flags & GV_META_GLOBAL_MANAGED; /* the client maps whole pages of it */
        uint64_t align = managed ? SOFT_PAGE : globals[i].align > GLOBAL_ALIGN ? globals[i].align : GLOBAL_ALIGN;
        if (align > SOFT_PAGE || globals[i].size > m->context->device->share.limit) {
            snprintf(err, GV_ERR_SIZE, "global %s of %llu bytes aligned to %llu does not fit the device", gv_meta_strings(m->meta) + globals[i].name,
                     (unsigned long long)globals[i].size, (unsigned long long)align);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        size = (size + align - 1) & ~(align - 1);
        globals[i].address = size; /* from the start, until that is known */
        size += globals[i].size ? globals[i].size : 1;
        if (managed) size = (size + SOFT_PAGE - 1) & ~(SOFT_PAGE - 1);
    }
    if (!size) return 0;
    int rc = wanted ? soft_memory_place_at(b, m->context->device, size, wanted, &m->globals)
                    : soft_memory_place(b, m->context->device, size, false, &m->globals);
    if (rc) {
        snprintf(err, GV_ERR_SIZE, "no device memory for %llu bytes of module globals", (unsigned long long)size);
        return rc;
    }
    for (uint32_t i = 0; i < header->n_globals; i++) globals[i].address += m->globals->address;
    return 0;
}

static int bind_globals(struct gv_module *m, char *err) {
    const struct gv_meta_header *header = m->meta;
    const struct gv_meta_global *globals = gv_meta_globals(m->meta);
    const struct soft_compiler *compiler = m->context->backend->compiler;
    uint64_t *addresses = malloc(((size_t)header->n_globals + 1) * sizeof *addresses);
    if (!addresses) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < header->n_globals; i++) addresses[i] = globals[i].address;
    int rc = compiler->module_bind(compiler->self, m->id, header->n_globals, addresses, err, GV_ERR_SIZE);
    free(addresses);
    return rc;
}

/* A module around a sound blob, which it takes over. */
static struct gv_module *module_new(struct gv_context *c, uint64_t id, void *meta, size_t size) {
    const struct gv_meta_header *header = meta;
    struct gv_module *m = calloc(1, sizeof *m + header->n_kernels * sizeof m->kernels[0]);
    if (!m) return NULL;
    m->context = c;
    atomic_init(&m->refs, 1);
    m->id = id;
    m->meta = meta;
    m->meta_size = size;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->rested, NULL);
    m->n_kernels = header->n_kernels;
    for (uint32_t i = 0; i < m->n_kernels; i++) {
        m->kernels[i].meta = gv_meta_kernels(meta) + i;
        uint32_t used = m->kernels[i].meta->static_shared;
        atomic_init(&m->kernels[i].max_dynamic, used < SOFT_SHARED_STATIC ? SOFT_SHARED_STATIC - used : 0);
    }
    soft_context_hold(c);
    return m;
}

/* Loads an image whose globals are to lie at `globals`, 0: anywhere. */
static int load(struct gv_context *c, const void *image, size_t size, uint64_t globals, struct gv_module **out, char *err) {
    struct gv_backend *b = c->backend;
    const struct soft_compiler *compiler = b->compiler;
    if (!compiler) {
        snprintf(err, GV_ERR_SIZE, "this worker has no compiler for device code");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    uint64_t id = atomic_fetch_add(&b->module_ids, 1) + 1;
    void *read = NULL;
    size_t read_size = 0;
    err[0] = 0;
    int rc = compiler->module_load(compiler->self, id, image, size, &read, &read_size, err, GV_ERR_SIZE);
    if (rc) return rc;
    struct gv_module *m = NULL;
    void *own = read_size >= sizeof(struct gv_meta_header) ? malloc(read_size) : NULL;
    if (own) memcpy(own, read, read_size);
    compiler->release_meta(compiler->self, read);
    if (!own || gv_meta_check(own, read_size)) {
        snprintf(err, GV_ERR_SIZE, "the compiler's metadata of the module is not sound");
        rc = CUDA_ERROR_INVALID_IMAGE;
    } else if (!(m = module_new(c, id, own, read_size))) {
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!m) {
        free(own);
        compiler->module_unload(compiler->self, id);
        return rc;
    }
    rc = place_globals(m, globals, err);
    if (!rc) rc = bind_globals(m, err);
    if (rc) {
        soft_module_drop(m);
        return rc;
    }
    m->n_references = soft_references_count(m);
    *out = m;
    return 0;
}

int soft_module_load(struct gv_context *c, const void *image, size_t size, struct gv_module **out, void **meta, size_t *meta_size, char *err) {
    if (c->backend->strict) nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    int rc = load(c, image, size, 0, out, err);
    if (rc) return rc;
    void *copy = malloc((*out)->meta_size);
    if (!copy) {
        soft_module_drop(*out);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(copy, (*out)->meta, (*out)->meta_size);
    *meta = copy;
    *meta_size = (*out)->meta_size;
    return 0;
}

void soft_save_module(struct gv_module *m, struct gv_image_out *out) {
    gv_image_put(out, m->globals ? m->globals->address : 0);
    gv_image_put(out, m->n_kernels);
    for (uint32_t i = 0; i < m->n_kernels; i++) {
        const struct soft_kernel *k = &m->kernels[i];
        gv_image_put(out, atomic_load(&k->max_dynamic));
        for (int d = 0; d < 3; d++) gv_image_put(out, atomic_load(&k->cluster[d]));
        gv_image_put(out, atomic_load(&k->nonportable));
    }
}

int soft_restore_module(struct gv_context *c, const void *image, size_t size, struct gv_image_in *in, struct gv_module **out, uint32_t *n_kernels,
                        char *err) {
    uint64_t globals = gv_image_get(in, UINT64_MAX);
    int rc = load(c, image, size, globals, out, err);
    if (rc) return rc;
    uint32_t n = *n_kernels = (*out)->n_kernels;
    bool same = gv_image_get(in, UINT32_MAX) == n && (globals != 0) == ((*out)->globals != NULL);
    for (uint32_t i = 0; i < n && same; i++) {
        struct soft_kernel *k = &(*out)->kernels[i];
        atomic_store(&k->max_dynamic, (uint32_t)gv_image_get(in, SOFT_SHARED_OPTIN));
        for (int d = 0; d < 3; d++) atomic_store(&k->cluster[d], (uint32_t)gv_image_get(in, GV_CLUSTER_DIM_MAX));
        atomic_store(&k->nonportable, gv_image_get(in, 1) != 0);
    }
    if (same) return 0;
    snprintf(err, GV_ERR_SIZE, "a module has other kernels or globals than it had");
    soft_module_drop(*out);
    return CUDA_ERROR_INVALID_IMAGE;
}

int soft_module_global(struct gv_module *m, const char *name, uint64_t *address, uint64_t *size) {
    const struct gv_meta_header *header = m->meta;
    const struct gv_meta_global *globals = gv_meta_globals(m->meta);
    for (uint32_t i = 0; i < header->n_globals; i++)
        if (!(globals[i].flags & GV_META_GLOBAL_REFERENCE) && !strcmp(gv_meta_strings(m->meta) + globals[i].name, name)) {
            *address = globals[i].address;
            *size = globals[i].size;
            return 0;
        }
    return CUDA_ERROR_NOT_FOUND;
}

int soft_kernel_set_attribute(struct gv_module *m, uint32_t kernel, int32_t attribute, int32_t value) {
    if (kernel >= m->n_kernels) return CUDA_ERROR_INVALID_HANDLE;
    struct soft_kernel *k = &m->kernels[kernel];
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || (uint64_t)value + k->meta->static_shared > SOFT_SHARED_OPTIN) return CUDA_ERROR_INVALID_VALUE;
        atomic_store(&k->max_dynamic, (uint32_t)value);
        return 0;
    }
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
        return value >= -1 && value <= 100 ? 0 : CUDA_ERROR_INVALID_VALUE; /* a hint */
    if (attribute >= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH && attribute <= CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)
        return soft_cluster_attribute(k, attribute, value);
    return CUDA_ERROR_INVALID_VALUE;
}
