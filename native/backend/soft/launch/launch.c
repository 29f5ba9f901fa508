/* Launches: checked when queued, compiled and run on the stream's thread, with the kernels that a kernel launches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "children.h"
#include "../module.h"
#include "../stream.h"

struct launch_op {
    struct op op;
    struct gv_module *module;
    struct soft_bindings *bindings;
    uint32_t kernel, grid[3], block[3], cluster[3], shared, cooperative, params_size;
    char params[] __attribute__((aligned(16)));
};

static int check(const struct gv_launch *l) {
    const struct gv_module *m = l->module;
    if (l->kernel >= m->n_kernels) return CUDA_ERROR_INVALID_HANDLE;
    const struct soft_kernel *k = &m->kernels[l->kernel];
    const uint32_t *g = l->grid, *b = l->block;
    if (!g[0] || !g[1] || !g[2] || g[0] > SOFT_MAX_GRID_X || g[1] > SOFT_MAX_GRID_YZ || g[2] > SOFT_MAX_GRID_YZ) return CUDA_ERROR_INVALID_VALUE;
    if (!b[0] || !b[1] || !b[2] || b[0] > SOFT_MAX_THREADS || b[1] > SOFT_MAX_THREADS || b[2] > SOFT_MAX_BLOCK_Z ||
        b[0] * b[1] * b[2] > SOFT_MAX_THREADS)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t threads = b[0] * b[1] * b[2];
    if (k->meta->max_threads && threads > k->meta->max_threads) return CUDA_ERROR_INVALID_VALUE;
    const uint32_t *want = k->meta->required_threads;
    if (want[0] && (b[0] != want[0] || b[1] != want[1] || b[2] != want[2])) return CUDA_ERROR_INVALID_VALUE;
    if (l->shared > atomic_load(&k->max_dynamic)) return CUDA_ERROR_INVALID_VALUE;
    if (l->params_size < k->meta->param_bytes) return CUDA_ERROR_INVALID_VALUE;
    if (l->cooperative && (uint64_t)g[0] * g[1] * g[2] > soft_resident_blocks(threads, (uint64_t)k->meta->static_shared + l->shared))
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return 0;
}

static const struct soft_code *find(struct gv_module *m, uint32_t kernel, const uint32_t block[3], bool careful) {
    for (struct soft_variant *v = m->kernels[kernel].variants; v; v = v->next)
        if (v->careful == careful && !memcmp(v->block, block, sizeof v->block)) return &v->code;
    return NULL;
}

static const struct soft_code *find_locked(struct gv_module *m, uint32_t kernel, const uint32_t block[3], bool careful) {
    pthread_mutex_lock(&m->lock);
    const struct soft_code *code = find(m, kernel, block, careful);
    pthread_mutex_unlock(&m->lock);
    return code;
}

/* The kernel compiled for this block shape. Two streams may compile the same one at the same time; the compiler's cache answers the second. */
static int compiled(struct gv_module *m, uint32_t kernel, const uint32_t block[3], bool careful, const struct soft_code **out, char *err) {
    const struct soft_code *code = find_locked(m, kernel, block, careful);
    if (code) {
        *out = code;
        return 0;
    }
    const struct soft_compiler *compiler = m->context->backend->compiler;
    struct soft_variant *v = calloc(1, sizeof *v);
    if (!v) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(v->block, block, sizeof v->block);
    v->careful = careful;
    int rc = compiler->kernel_get(compiler->self, m->id, kernel | (careful ? SOFT_CAREFUL : 0), block, &v->code, err, GV_ERR_SIZE);
    if (rc) {
        free(v);
        return rc;
    }
    pthread_mutex_lock(&m->lock);
    code = find(m, kernel, block, careful);
    if (!code) {
        v->next = m->kernels[kernel].variants;
        m->kernels[kernel].variants = v;
        code = &v->code;
        v = NULL;
    }
    pthread_mutex_unlock(&m->lock);
    free(v);
    *out = code;
    return 0;
}

/* Whether the parameters meet the assumptions of the code. */
static bool as_needed(const struct soft_code *code, const char *params) {
    for (uint32_t i = 0; i < code->n_needs; i++)
        if ((unsigned char)params[code->needs[i].offset] & (code->needs[i].size - 1)) return false;
    return true;
}

/* A launch of the program's, or of a kernel's. */
struct work {
    uint32_t kernel, shared, cooperative, params_size;
    const uint32_t *grid, *block, *cluster; /* cluster: NULL: there is none */
    const char *params;
};

static int run(const struct gv_stream *s, struct gv_module *m, const struct work *w, struct soft_children *children, char *err) {
    const struct gv_backend *b = s->context->backend;
    const struct soft_code *code;
    int rc = compiled(m, w->kernel, w->block, false, &code, err);
    if (!rc && !as_needed(code, w->params)) rc = compiled(m, w->kernel, w->block, true, &code, err);
    if (rc) return rc;
    struct soft_launch launch = {.code = code,
                                 .kernel = soft_kernel_name(m, w->kernel),
                                 .dynamic_shared = w->shared,
                                 .cooperative = w->cooperative,
                                 .params = w->params,
                                 .params_size = w->params_size,
                                 .device = (uint32_t)(s->context->device - b->devices),
                                 .heap = s->context->heap,
                                 .console = b->console,
                                 .console_arg = b->console_arg,
                                 .children = children};
    memcpy(launch.grid, w->grid, sizeof launch.grid);
    memcpy(launch.block, w->block, sizeof launch.block);
    if (w->cluster) memcpy(launch.cluster, w->cluster, sizeof launch.cluster);
    return soft_engine_run(b->engine, &launch, err, GV_ERR_SIZE);
}

/* The number of the kernel that an address is; n_kernels or more: none. */
static uint64_t kernel_at(uint64_t address) { return (address - SOFT_KERNEL_BASE) / 16 - 1; }

static int64_t child_bytes(void *module, uint64_t kernel) {
    const struct gv_module *m = module;
    uint64_t number = kernel_at(kernel);
    return number < m->n_kernels ? (int64_t)m->kernels[number].meta->param_bytes : -1;
}

static uint32_t child_check(void *module, const struct soft_child *c) {
    struct gv_module *m = module;
    if (child_bytes(m, c->kernel) < 0) return SOFT_CHILD_INVALID_VALUE;
    struct gv_launch l = {.module = m, .kernel = (uint32_t)kernel_at(c->kernel), .shared = c->shared};
    l.params_size = m->kernels[l.kernel].meta->param_bytes;
    memcpy(l.grid, c->grid, sizeof l.grid);
    memcpy(l.block, c->block, sizeof l.block);
    return check(&l) ? SOFT_CHILD_INVALID_CONFIGURATION : 0;
}

/* Runs the kernel, then those that it has launched, each followed by its own. */
static int launch_run(struct gv_stream *s, struct op *op, char *err) {
    struct launch_op *l = (struct launch_op *)op;
    struct work w = {.kernel = l->kernel,
                     .shared = l->shared,
                     .cooperative = l->cooperative,
                     .params_size = l->params_size,
                     .grid = l->grid,
                     .block = l->block,
                     .cluster = l->cluster,
                     .params = l->params};
    struct soft_children children = {.param_bytes = child_bytes, .check = child_check, .arg = l->module};
    if (l->bindings) soft_bindings_enter(l->module, l->bindings);
    int rc = run(s, l->module, &w, &children, err);
    struct soft_child *next = soft_children_take(&children, NULL);
    while (next && !rc) {
        struct soft_child *c = next;
        w = (struct work){.kernel = (uint32_t)kernel_at(c->kernel), .shared = c->shared, .grid = c->grid, .block = c->block, .params = c->params};
        w.params_size = (uint32_t)child_bytes(l->module, c->kernel);
        rc = run(s, l->module, &w, &children, err);
        next = soft_children_take(&children, c->next);
        free(c);
    }
    soft_children_free(next);
    if (l->bindings) soft_bindings_leave(l->module);
    return rc;
}

static void launch_drop(struct gv_stream *s, struct op *op) {
    (void)s;
    soft_bindings_drop(((struct launch_op *)op)->bindings);
    soft_module_drop(((struct launch_op *)op)->module);
}

/* A launch that was queued behind others has its kernel compiled meanwhile. Most are of a kernel that was launched before: they pay for one load. */
static void precompile(struct gv_stream *s, uint64_t before, struct gv_module *m, uint32_t kernel, const uint32_t block[3]) {
    const struct soft_compiler *compiler = m->context->backend->compiler;
    _Atomic uint32_t *last = &m->kernels[kernel].precompiled;
    uint32_t packed = block[0] | block[1] << 11 | block[2] << 22; /* at most 1024, 1024 and 64 */
    if (!compiler->kernel_precompile || atomic_load_explicit(last, memory_order_relaxed) == packed) return;
    bool there = find_locked(m, kernel, block, false);
    if (!there && soft_stream_passed(s, before)) return; /* the stream compiles it now */
    atomic_store_explicit(last, packed, memory_order_relaxed);
    if (!there) compiler->kernel_precompile(compiler->self, m->id, kernel, block);
}

int soft_launch(struct gv_stream *s, const struct gv_launch *launch) {
    int rc = check(launch);
    uint32_t cluster[3];
    if (!rc) rc = soft_cluster_shape(&launch->module->kernels[launch->kernel], launch, cluster);
    if (rc) return rc;
    struct launch_op *l = soft_op_new(sizeof *l + launch->params_size, OP_WORK, launch_run, launch_drop);
    if (!l) return CUDA_ERROR_OUT_OF_MEMORY;
    l->module = launch->module;
    l->kernel = launch->kernel;
    memcpy(l->grid, launch->grid, sizeof l->grid);
    memcpy(l->block, launch->block, sizeof l->block);
    memcpy(l->cluster, cluster, sizeof l->cluster);
    l->shared = launch->shared;
    l->cooperative = launch->cooperative;
    l->params_size = launch->params_size;
    if (launch->params_size) memcpy(l->params, launch->params, launch->params_size);
    soft_module_hold(l->module);
    l->bindings = soft_bindings_take(l->module);
    uint64_t before = soft_stream_position(s);
    rc = soft_stream_push(s, &l->op);
    if (!rc) precompile(s, before, launch->module, launch->kernel, launch->block);
    return rc;
}
