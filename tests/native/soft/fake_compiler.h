/* A compiler table whose "compiled kernels" are C functions of the test. */
#ifndef TEST_FAKE_COMPILER_H
#define TEST_FAKE_COMPILER_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "compiler.h"
#include "engine/kernel_abi.h"
#include "module_meta.h"

struct fake_kernel {
    const char *name;
    void (*entry)(struct soft_warp *);
    uint32_t param_bytes, static_shared, uses_barrier, max_threads;
};

struct fake_compiler {
    const struct fake_kernel *kernels;
    uint32_t n_kernels;
    _Atomic int loads, unloads, compilations;
    _Atomic pthread_t compiled_on; /* streams compile at the same time */
    uint64_t table, counter;       /* where the two globals of the last module lie */
    int fail_compilation;
    uint32_t asked, asked_kernel, asked_threads; /* to precompile: how often, and what at last */
};

struct fake_blob {
    struct gv_meta_header header;
    char rest[4096];
};

/* Every module has all kernels, and the globals `table` (1000 bytes of 7) and `counter` (4 bytes). An image that is not "good" is refused. */
static int fake_load(void *self, uint64_t module, const void *image, size_t size, void **meta, size_t *meta_size, char *err, size_t err_size) {
    struct fake_compiler *f = self;
    (void)module;
    if (size < 4 || memcmp(image, "good", 4)) {
        snprintf(err, err_size, "not an image");
        return 200;
    }
    struct fake_blob *b = calloc(1, sizeof *b);
    struct gv_meta_kernel *k = (void *)b->rest;
    struct gv_meta_param *p = (void *)(k + f->n_kernels);
    struct gv_meta_global *g = (void *)(p + f->n_kernels);
    char *strings = (char *)(g + 2);
    uint32_t used = 0;
    b->header = (struct gv_meta_header){.magic = GV_META_MAGIC,
                                        .version = GV_META_VERSION,
                                        .flags = GV_META_GLOBALS_COMPLETE,
                                        .n_kernels = f->n_kernels,
                                        .n_params = f->n_kernels,
                                        .n_globals = 2};
    for (uint32_t i = 0; i < f->n_kernels; i++) {
        const struct fake_kernel *from = &f->kernels[i];
        k[i] = (struct gv_meta_kernel){.name = used,
                                       .first_param = i,
                                       .n_params = from->param_bytes ? 1 : 0,
                                       .param_bytes = from->param_bytes,
                                       .max_threads = from->max_threads ? from->max_threads : 1024,
                                       .static_shared = from->static_shared};
        p[i] = (struct gv_meta_param){0, from->param_bytes};
        used += (uint32_t)sprintf(strings + used, "%s", from->name) + 1;
    }
    g[0] = (struct gv_meta_global){.name = used, .align = 16, .size = 1000};
    used += (uint32_t)sprintf(strings + used, "table") + 1;
    g[1] = (struct gv_meta_global){.name = used, .align = 4, .size = 4};
    used += (uint32_t)sprintf(strings + used, "counter") + 1;
    b->header.strings_size = used;
    *meta = b;
    *meta_size = (size_t)(strings + used - (char *)b);
    atomic_fetch_add(&f->loads, 1);
    return 0;
}

static void fake_release(void *self, void *meta) {
    (void)self;
    free(meta);
}

static int fake_bind(void *self, uint64_t module, uint32_t n, const uint64_t *addresses, char *err, size_t err_size) {
    struct fake_compiler *f = self;
    (void)module, (void)err, (void)err_size;
    CHECK_INT(n, 2);
    CHECK(addresses[0] % 256 == 0 && addresses[1] % 256 == 0 && addresses[0] != addresses[1]);
    f->table = addresses[0];
    f->counter = addresses[1];
    memset((void *)(uintptr_t)f->table, 7, 1000);
    return 0;
}

static int fake_get(void *self, uint64_t module, uint32_t kernel, const uint32_t block[3], struct soft_code *code, char *err, size_t err_size) {
    struct fake_compiler *f = self;
    (void)module, (void)block;
    if (f->fail_compilation) {
        snprintf(err, err_size, "kernel %s: no such instruction", f->kernels[kernel].name);
        return 801;
    }
    const struct fake_kernel *k = &f->kernels[kernel];
    *code = (struct soft_code){.entry = k->entry,
                               .static_shared = k->static_shared,
                               .dynamic_offset = k->static_shared,
                               .uses_barrier = k->uses_barrier,
                               .param_bytes = k->param_bytes};
    atomic_store(&f->compiled_on, pthread_self());
    atomic_fetch_add(&f->compilations, 1);
    return 0;
}

static void fake_precompile(void *self, uint64_t module, uint32_t kernel, const uint32_t block[3]) {
    struct fake_compiler *f = self;
    (void)module;
    f->asked++;
    f->asked_kernel = kernel;
    f->asked_threads = block[0] * block[1] * block[2];
}

static void fake_unload(void *self, uint64_t module) {
    struct fake_compiler *f = self;
    (void)module;
    atomic_fetch_add(&f->unloads, 1);
}

static inline struct soft_compiler fake_table(struct fake_compiler *f) {
    return (struct soft_compiler){f, fake_load, fake_release, fake_bind, fake_get, fake_precompile, fake_unload, NULL};
}

#endif
