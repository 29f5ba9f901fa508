/* Modules of the driver; its answers about their kernels become the metadata that the client uses. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../wire/cluster_dims.h"
#include "../../wire/module_meta.h"
#include "backend_cuda.h"

struct bytes {
    uint8_t *data;
    size_t size, room;
    bool failed;
};

static uint32_t append(struct bytes *b, const void *data, size_t size) {
    if (b->size + size > b->room && !b->failed) {
        size_t room = (b->room ? b->room * 2 : 4096) + size;
        uint8_t *bigger = realloc(b->data, room);
        if (bigger)
            b->data = bigger, b->room = room;
        else
            b->failed = true;
    }
    if (b->failed || !size) return 0;
    size_t at = b->size;
    memcpy(b->data + at, data, size);
    b->size += size;
    return (uint32_t)at;
}

static uint32_t attribute(const struct driver *d, CUfunction f, CUfunction_attribute which) {
    int value = 0;
    return d->function_attribute(&value, which, f) ? 0 : (uint32_t)value;
}

static int describe(struct gv_module *m, void **meta, size_t *meta_size) {
    const struct driver *d = &m->context->b->driver;
    struct bytes kernels = {0}, params = {0}, strings = {0};
    struct gv_meta_header header = {.magic = GV_META_MAGIC, .version = GV_META_VERSION, .n_kernels = m->n_functions};
    int status = 0;
    append(&strings, "", 1);
    for (uint32_t i = 0; i < m->n_functions && !status; i++) {
        CUfunction f = m->functions[i];
        const char *name = NULL;
        status = d->function_name(&name, f);
        if (status) break;
        struct gv_meta_kernel k = {.name = append(&strings, name, strlen(name) + 1),
                                   .first_param = header.n_params,
                                   .max_threads = attribute(d, f, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
                                   .static_shared = attribute(d, f, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
                                   .const_bytes = attribute(d, f, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES),
                                   .local_bytes = attribute(d, f, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
                                   .num_regs = attribute(d, f, CU_FUNC_ATTRIBUTE_NUM_REGS),
                                   .ptx_version = attribute(d, f, CU_FUNC_ATTRIBUTE_PTX_VERSION),
                                   .binary_version = attribute(d, f, CU_FUNC_ATTRIBUTE_BINARY_VERSION),
                                   .flags = attribute(d, f, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET) ? GV_META_KERNEL_NEEDS_CLUSTER : 0};
        gv_cluster_pack(attribute(d, f, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH), attribute(d, f, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT),
                        attribute(d, f, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH), &k.cluster);
        size_t offset, size;
        while (d->function_param(f, k.n_params, &offset, &size) == 0) {
            struct gv_meta_param p = {(uint32_t)offset, (uint32_t)size};
            append(&params, &p, sizeof p);
            if (offset + size > k.param_bytes) k.param_bytes = (uint32_t)(offset + size);
            k.n_params++;
        }
        m->params[i] = (struct cuda_params){k.n_params, k.param_bytes};
        header.n_params += k.n_params;
        append(&kernels, &k, sizeof k);
    }
    header.strings_size = (uint32_t)strings.size;
    struct bytes all = {0};
    append(&all, &header, sizeof header);
    if (kernels.size) append(&all, kernels.data, kernels.size);
    if (params.size) append(&all, params.data, params.size);
    append(&all, strings.data, strings.size);
    if (!status && (all.failed || kernels.failed || params.failed || strings.failed)) status = CUDA_ERROR_OUT_OF_MEMORY;
    free(kernels.data);
    free(params.data);
    free(strings.data);
    if (status) {
        free(all.data);
        return status;
    }
    *meta = all.data;
    *meta_size = all.size;
    return 0;
}

/* A raw PTX text is not terminated on the wire, and the driver takes no size. */
static void *terminated(const void *image, size_t size) {
    char *copy = malloc(size + 1);
    if (!copy) return NULL;
    memcpy(copy, image, size);
    copy[size] = 0;
    return copy;
}

/* Whether kernels may print: they call the device's vprintf, whose name only a compressed image hides. */
static bool may_print(const void *image, size_t size) {
    static const unsigned char fat[] = {0x50, 0xed, 0x55, 0xba};
    return (size >= sizeof fat && !memcmp(image, fat, sizeof fat)) || memmem(image, size, "vprintf", 7);
}

int cuda_module_load(struct gv_context *c, const void *image, size_t size, struct gv_module **out, void **meta, size_t *meta_size, char *err) {
    const struct driver *d = &c->b->driver;
    int status = cuda_enter(c);
    if (status) return status;
    struct gv_module *m = calloc(1, sizeof *m);
    void *copy = terminated(image, size);
    if (!m || !copy) {
        free(m);
        free(copy);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    m->context = c;
    if (may_print(image, size)) c->b->prints = true;
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {err, (void *)(size_t)GV_ERR_SIZE};
    for (int tries = 0; tries < 2; tries++) {
        uint64_t before = cuda_free_memory(c);
        status = d->module_load(&m->module, copy, 2, options, values);
        err[GV_ERR_SIZE - 1] = 0;
        if (status || cuda_take_since(c, before, &m->counted)) break;
        d->module_unload(m->module);
        status = CUDA_ERROR_OUT_OF_MEMORY;
        snprintf(err, GV_ERR_SIZE, "the session has no device memory left for the module's globals and code");
    }
    free(copy);
    if (status) {
        free(m);
        return status;
    }
    status = d->function_count(&m->n_functions, m->module);
    if (!status && m->n_functions) {
        m->functions = calloc(m->n_functions, sizeof *m->functions);
        m->params = calloc(m->n_functions, sizeof *m->params);
        status = m->functions && m->params ? d->functions(m->functions, m->n_functions, m->module) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!status) status = describe(m, meta, meta_size);
    if (status) {
        snprintf(err, GV_ERR_SIZE, "the driver does not describe the module's functions (error %d); gpuvirt needs driver 12.4 or newer", status);
        cuda_module_unload(m);
        return status;
    }
    *out = m;
    return 0;
}

void cuda_module_unload(struct gv_module *m) {
    if (cuda_enter(m->context) == 0) m->context->b->driver.module_unload(m->module);
    cuda_give(m->context, m->counted);
    free(m->functions);
    free(m->params);
    free(m);
}

int cuda_module_global(struct gv_module *m, const char *name, uint64_t *address, uint64_t *size) {
    CUdeviceptr found = 0;
    size_t bytes = 0;
    int status = cuda_enter(m->context);
    if (!status) status = m->context->b->driver.module_global(&found, &bytes, m->module, name);
    *address = found;
    *size = bytes;
    return status;
}

int cuda_kernel_set_attribute(struct gv_module *m, uint32_t kernel, int32_t which, int32_t value) {
    if (kernel >= m->n_functions) return CUDA_ERROR_INVALID_HANDLE;
    int status = cuda_enter(m->context);
    return status ? status : (int)m->context->b->driver.function_set_attribute(m->functions[kernel], (CUfunction_attribute)which, value);
}
