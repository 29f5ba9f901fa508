/* The soft backend's compiler, with C functions as compiled kernels: the same two in every image that begins with "good", and some that a GPU would end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "compiler.h"
#include "engine/kernel_abi.h"
#include "module_meta.h"

struct fill {
    uint32_t *at;
    uint32_t n, value;
};

/* first(u64 at, u32 n, u32 value), what a launch is given less of it included: the engine's parameters are as long as the kernel's. */
static void first(struct soft_warp *w) {
    struct fill p;
    memcpy(&p, w->params, sizeof p);
    uint32_t i = w->ctaid[0] * w->ntid[0] + w->first_thread;
    for (uint32_t lane = 0; lane < 32; lane++, i++)
        if (w->lanes >> lane & 1 && i < p.n) ((volatile uint32_t *)p.at)[i] = p.value;
}

static void second(struct soft_warp *w) {
    memset(w->shared, 1, w->shared_bytes);
    soft_barrier_sync(w, 0, 0, w->lanes);
}

static void wild(struct soft_warp *w) { *(volatile int *)(uintptr_t)(0x1230 + 4 * w->ctaid[0]) = 1; }

static const struct {
    const char *name;
    void (*entry)(struct soft_warp *);
    uint32_t param_bytes, shared, barrier;
} kernels[] = {{"first", first, 16, 0, 0}, {"second", second, 0, 256, 1}, {"wild", wild, 0, 0, 0}};
#define KERNELS (sizeof kernels / sizeof *kernels)

struct blob_of_all {
    struct gv_meta_header header;
    struct gv_meta_kernel kernels[KERNELS];
    struct gv_meta_param param;
    struct gv_meta_global globals[2];
    char names[128];
};

static int load(void *self, uint64_t module, const void *image, size_t size, void **meta, size_t *meta_size, char *err, size_t err_size) {
    (void)self, (void)module;
    if (size < 5 || memcmp(image, "good", 5) != 0) return snprintf(err, err_size, "not an image"), 200;
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < size; i++) sum = (uint8_t)(sum + ((const uint8_t *)image)[i]); /* all of it is there */
    struct blob_of_all *b = calloc(1, sizeof *b);
    uint32_t used = 0;
    b->header = (struct gv_meta_header){
        .magic = GV_META_MAGIC, .version = GV_META_VERSION, .flags = GV_META_GLOBALS_COMPLETE, .n_kernels = KERNELS, .n_params = 1, .n_globals = 2};
    for (uint32_t i = 0; i < KERNELS; i++) {
        b->kernels[i] = (struct gv_meta_kernel){.name = used,
                                                .n_params = kernels[i].param_bytes ? 1 : 0,
                                                .param_bytes = kernels[i].param_bytes,
                                                .max_threads = 1024,
                                                .static_shared = kernels[i].shared};
        used += (uint32_t)sprintf(b->names + used, "%s", kernels[i].name) + 1;
    }
    b->param.size = 16;
    b->globals[0] = (struct gv_meta_global){.name = used, .align = 16, .size = 1000};
    used += (uint32_t)sprintf(b->names + used, "table") + 1;
    b->globals[1] = (struct gv_meta_global){.name = used, .align = 4, .size = 4};
    used += (uint32_t)sprintf(b->names + used, "counter") + 1;
    b->header.strings_size = used;
    *meta = b;
    *meta_size = (size_t)(b->names + used - (char *)b);
    return 0;
}

static void release(void *self, void *meta) {
    (void)self;
    free(meta);
}

static int bind(void *self, uint64_t module, uint32_t n, const uint64_t *addresses, char *err, size_t err_size) {
    (void)self, (void)module, (void)err, (void)err_size;
    if (n != 2) client_wrong("a module has %u globals, not 2", n);
    memset((void *)(uintptr_t)addresses[0], 7, 1000);
    return 0;
}

static int get(void *self, uint64_t module, uint32_t kernel, const uint32_t block[3], struct soft_code *code, char *err, size_t err_size) {
    (void)self, (void)module, (void)block, (void)err, (void)err_size;
    kernel &= ~SOFT_CAREFUL;
    if (kernel >= KERNELS) client_wrong("kernel %u is asked for, and there are %u", kernel, (unsigned)KERNELS);
    *code = (struct soft_code){.entry = kernels[kernel].entry,
                               .static_shared = kernels[kernel].shared,
                               .dynamic_offset = kernels[kernel].shared,
                               .uses_barrier = kernels[kernel].barrier,
                               .param_bytes = kernels[kernel].param_bytes};
    return 0;
}

static void unload(void *self, uint64_t module) { (void)self, (void)module; }

static int link_them(void *self, uint32_t n, const struct soft_link_input *inputs, void **image, size_t *size, char *err, size_t err_size) {
    (void)self;
    size_t all = 5, at = 5;
    for (uint32_t i = 0; i < n; i++) {
        if (!strcmp(inputs[i].name, "bad")) return snprintf(err, err_size, "input %u is bad", i), 200;
        all += inputs[i].size;
    }
    char *made = calloc(1, all + 1);
    memcpy(made, "good", 5);
    for (uint32_t i = 0; i < n; at += inputs[i++].size) memcpy(made + at, inputs[i].data, inputs[i].size);
    *image = made;
    *size = all;
    return 0;
}

struct soft_compiler *soft_modules(void) {
    static struct soft_compiler table = {NULL, load, release, bind, get, NULL, unload, link_them};
    return &table;
}
