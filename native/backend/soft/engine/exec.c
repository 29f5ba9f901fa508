/* The thread pool: callers submit grids and run blocks of them; helpers join when there are more blocks than threads. */
#define _GNU_SOURCE
#include "exec.h"
#include "../driver_constants.h"
#include "../../../wire/clock.h"
#include "exec_private.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RUN_THREADS 65536       /* about so many threads of a grid are taken at once */
#define THREAD_STACK (8u << 20) /* kernels without barriers run on the thread's own stack */

/* ---- the grid's error and text ---- */

void soft_grid_fail(struct grid *g, int error, const struct soft_warp *where, const char *format, ...) {
    struct runner *r = soft_runner_or_null();
    int inside = r ? r->in_helper : 0;
    if (r) r->in_helper = 1;
    pthread_mutex_lock(&g->error_lock);
    if (!g->error) {
        g->error = error;
        char what[320];
        va_list args;
        va_start(args, format);
        vsnprintf(what, sizeof what, format, args);
        va_end(args);
        const char *kernel = g->launch->kernel ? g->launch->kernel : "?";
        if (where)
            snprintf(g->message, sizeof g->message, "%s in kernel %.120s, block (%u,%u,%u), warp %u", what, kernel, where->ctaid[0], where->ctaid[1],
                     where->ctaid[2], where->warp);
        else
            snprintf(g->message, sizeof g->message, "%s in kernel %.120s", what, kernel);
    }
    pthread_mutex_unlock(&g->error_lock);
    atomic_store(&g->stop, true);
    if (r) r->in_helper = inside;
}

static void flush_text(struct grid *g) {
    if (!g->text_used) return;
    if (g->launch->console) {
        g->launch->console(g->launch->console_arg, g->text, g->text_used);
    } else {
        for (size_t at = 0; at < g->text_used;) {
            ssize_t n = write(STDERR_FILENO, g->text + at, g->text_used - at);
            if (n <= 0) break;
            at += (size_t)n;
        }
    }
    g->text_used = 0;
}

void soft_grid_print(struct grid *g, const char *text, size_t size) {
    struct runner *r = soft_runner_or_null();
    int inside = r ? r->in_helper : 0;
    if (r) r->in_helper = 1;
    pthread_mutex_lock(&g->error_lock);
    if (!g->text) g->text = malloc(SOFT_TEXT);
    if (g->text && size <= SOFT_TEXT) {
        if (g->text_used + size > SOFT_TEXT) flush_text(g);
        memcpy(g->text + g->text_used, text, size);
        g->text_used += size;
    }
    pthread_mutex_unlock(&g->error_lock);
    if (r) r->in_helper = inside;
}

/* ---- better code ---- */

void soft_grid_tier(struct grid *g) {
    struct soft_tier *tier = g->launch->code->tier;
    if (atomic_load_explicit(&tier->asked, memory_order_relaxed)) return;
    uint64_t spent = atomic_load_explicit(&tier->spent_ns, memory_order_relaxed) + ((uint64_t)gv_now_ns() - g->began_ns);
    if ((spent < tier->budget_ns && !g->engine->schedule.seeded) || atomic_exchange(&tier->asked, 1)) return;
    uint64_t one = 1;
    /* Cannot block: the eventfd's counter is far from its limit. */
    if (write(tier->wake_fd, &one, sizeof one) != sizeof one) atomic_store(&tier->asked, 0);
}

/* ---- the pool ---- */

/* Under the lock: this thread is inside g from here on. */
static void enter(struct soft_engine *e, struct runner *r, struct grid *g) {
    soft_gate_enter(e, g->gate);
    r->next_running = e->running;
    e->running = r;
    r->core = e->n_running++ % SOFT_MULTIPROCESSORS;
}

static void leave(struct soft_engine *e, struct runner *r, struct grid *g) {
    soft_gate_leave(e, g->gate);
    struct runner **p = &e->running;
    while (*p != r) p = &(*p)->next_running;
    *p = r->next_running;
    e->n_running--;
}

static struct grid *wants_help(struct soft_engine *e) {
    for (struct grid *g = e->grids; g; g = g->later)
        if (!atomic_load_explicit(&g->stop, memory_order_relaxed) && atomic_load_explicit(&g->next, memory_order_relaxed) < g->total &&
            !soft_gate_closed(g->gate))
            return g;
    return NULL;
}

static void *helper(void *arg) {
    struct soft_engine *e = arg;
    soft_thread_signals();
    pthread_setname_np(pthread_self(), "soft-core");
    struct runner *r = soft_runner();
    if (!r) return NULL;
    pthread_mutex_lock(&e->lock);
    while (!e->stopping) {
        struct grid *g = wants_help(e);
        if (!g) {
            e->sleeping++;
            pthread_cond_wait(&e->work, &e->lock);
            e->sleeping--;
            continue;
        }
        g->helpers++;
        g->helped++;
        enter(e, r, g);
        pthread_mutex_unlock(&e->lock);
        soft_run_grid(r, g);
        pthread_mutex_lock(&e->lock);
        leave(e, r, g);
        if (!--g->helpers) pthread_cond_signal(&g->left);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

bool soft_engine_settings_known(char *err, size_t size) {
    struct soft_schedule schedule;
    if (!soft_schedule_read(&schedule, err, size)) return false;
    const char *lanes = getenv("GPUVIRT_SOFT_LANES");
    if (!lanes || !*lanes || !strcmp(lanes, "always")) return true;
    snprintf(err, size, "GPUVIRT_SOFT_LANES=%s: it is 'always' or unset", lanes);
    return false;
}

struct soft_engine *soft_engine_create(int helpers) {
    soft_fault_install();
    struct soft_engine *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    if (helpers < 0) {
        cpu_set_t cores;
        helpers = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);
        helpers = helpers > 1 ? helpers - 1 : 0;
    }
    const char *lanes = getenv("GPUVIRT_SOFT_LANES");
    e->eager_lanes = lanes && !strcmp(lanes, "always");
    char unknown[128];
    soft_schedule_read(&e->schedule, unknown, sizeof unknown);
    if (e->schedule.seeded && !e->schedule.cores) helpers = 0;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    soft_gates_open(e);
    e->threads = calloc((size_t)helpers + 1, sizeof *e->threads);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, THREAD_STACK);
    pthread_attr_setguardsize(&attr, SOFT_GUARD);
    for (int i = 0; e->threads && i < helpers; i++)
        if (!pthread_create(&e->threads[e->n_threads], &attr, helper, e)) e->n_threads++;
    pthread_attr_destroy(&attr);
    return e;
}

struct soft_schedule *soft_engine_schedule(struct soft_engine *e) { return &e->schedule; }

int soft_engine_stop(struct soft_engine *e) {
    for (int tries = 0; tries < 200; tries++) {
        pthread_mutex_lock(&e->lock);
        e->stopping = true;
        pthread_cond_broadcast(&e->work);
        soft_gates_stop(e);
        bool quiet = !e->running;
        for (struct runner *r = e->running; r; r = r->next_running) {
            struct grid *g = r->grid;
            /* A runner that is entering or leaving has no grid; the next try finds it. The grid is not freed while its runner is listed. */
            if (!g) continue;
            if (!atomic_load(&g->stop)) soft_grid_fail(g, CUDA_ERROR_LAUNCH_FAILED, NULL, "stopped");
            if (!atomic_exchange(&r->told_to_stop, true) && pthread_kill(r->thread, SOFT_STOP_SIGNAL)) atomic_store(&r->told_to_stop, false);
        }
        pthread_mutex_unlock(&e->lock);
        if (quiet) return 1;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return 0;
}

void soft_engine_destroy(struct soft_engine *e) {
    for (uint32_t i = 0; i < e->n_threads; i++) pthread_join(e->threads[i], NULL);
    free(e->threads);
    soft_gates_close(e);
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

/* ---- one grid ---- */

static int refuse(char *err, size_t err_size, int error, const char *text) {
    if (err && err_size) snprintf(err, err_size, "%s", text);
    return error;
}

static int check(const struct soft_launch *l, char *err, size_t err_size) {
    const uint32_t *grid = l->grid, *block = l->block;
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > SOFT_MAX_GRID_X || grid[1] > SOFT_MAX_GRID_YZ || grid[2] > SOFT_MAX_GRID_YZ)
        return refuse(err, err_size, CUDA_ERROR_INVALID_VALUE, "grid dimensions out of range");
    if (!block[0] || !block[1] || !block[2] || block[0] > SOFT_MAX_THREADS || block[1] > SOFT_MAX_THREADS || block[2] > SOFT_MAX_BLOCK_Z ||
        block[0] * block[1] * block[2] > SOFT_MAX_THREADS)
        return refuse(err, err_size, CUDA_ERROR_INVALID_VALUE, "block dimensions out of range");
    uint64_t shared = (uint64_t)l->code->dynamic_offset + l->dynamic_shared;
    if (shared > SOFT_SHARED_OPTIN) return refuse(err, err_size, CUDA_ERROR_INVALID_VALUE, "more shared memory than a block can have");
    if (l->params_size < l->code->param_bytes) return refuse(err, err_size, CUDA_ERROR_INVALID_VALUE, "fewer parameters than the kernel has");
    for (int i = 0; i < 3 && l->cluster[0]; i++)
        if (!l->cluster[i] || grid[i] % l->cluster[i])
            return refuse(err, err_size, CUDA_ERROR_INVALID_CLUSTER_SIZE, "the grid is not made of such clusters");
    if ((uint64_t)l->cluster[0] * l->cluster[1] * l->cluster[2] > SOFT_CLUSTER_MAX)
        return refuse(err, err_size, CUDA_ERROR_INVALID_CLUSTER_SIZE, "more blocks than a cluster can have");
    uint64_t total = (uint64_t)grid[0] * grid[1] * grid[2];
    if (l->cooperative && total > soft_resident_blocks(block[0] * block[1] * block[2], shared))
        return refuse(err, err_size, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "more blocks than are resident at once");
    return 0;
}

static void prepare(struct grid *g, struct soft_engine *e, const struct soft_launch *l, const void *params, uint64_t workspace) {
    const struct soft_code *code = l->code;
    g->engine = e;
    g->gate = &e->gates[l->device < SOFT_TURN_DEVICES ? l->device : 0];
    g->launch = l;
    g->threads = l->block[0] * l->block[1] * l->block[2];
    g->warps = (g->threads + SOFT_LANES - 1) / SOFT_LANES;
    for (int i = 0; i < 3; i++) g->model.cluster[i] = l->cluster[0] ? l->cluster[i] : 1;
    g->model.explicit_cluster = l->cluster[0] != 0;
    g->cluster = g->model.cluster[0] * g->model.cluster[1] * g->model.cluster[2];
    g->fibers =
        l->cooperative || g->cluster > 1 || code->uses_barrier > 1 || (code->uses_barrier && g->warps > 1) || (e->schedule.seeded && !code->loops);
    g->shared_bytes = code->dynamic_offset + l->dynamic_shared;
    if (g->shared_bytes < code->static_shared) g->shared_bytes = code->static_shared;
    g->local_stride = (code->local_bytes + 15) & ~15u;
    g->total = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2] / g->cluster;
    uint64_t hands = e->n_threads + 1;
    g->quota = (g->total + hands - 1) / hands;
    /* Blocks that wait for each other are claimed one at a time: one that waits for its predecessor would wait for the predecessor's whole claim. */
    g->longest_run =
        l->cooperative || g->cluster > 1 || code->uses_barrier > 1 || e->schedule.seeded ? 1 : (RUN_THREADS + g->threads - 1) / g->threads;
    if (code->tier) g->began_ns = (uint64_t)gv_now_ns();
    pthread_cond_init(&g->left, NULL);
    pthread_mutex_init(&g->error_lock, NULL);
    struct soft_warp *w = &g->model;
    memcpy(w->nctaid, l->grid, sizeof w->nctaid);
    memcpy(w->ntid, l->block, sizeof w->ntid);
    w->warps = g->warps;
    w->nsmid = SOFT_MULTIPROCESSORS;
    w->shared_bytes = g->shared_bytes;
    w->params = params;
    w->local_stride = g->local_stride;
    w->grid_id = atomic_fetch_add(&e->grid_ids, 1) + 1;
    w->grid_workspace = workspace;
    w->dynamic_shared = l->dynamic_shared;
    w->stop = &g->stop;
}

/* Under the lock: offers the grid to the pool. */
static void offer(struct soft_engine *e, struct grid *g) {
    struct grid **p = &e->grids;
    while (*p) p = &(*p)->later;
    *p = g;
    g->listed = true;
    for (uint64_t i = 1; i < g->total && i <= e->sleeping; i++) pthread_cond_signal(&e->work);
}

void soft_grid_maybe_long(struct grid *g) {
    if (__builtin_ia32_rdtsc() - g->began_cycles < SHORT_CYCLES) return;
    g->alone = false;
    struct soft_engine *e = g->engine;
    pthread_mutex_lock(&e->lock);
    if (!e->stopping) offer(e, g);
    pthread_mutex_unlock(&e->lock);
}

static bool is_short(const struct grid *g) {
    if (g->launch->cooperative || g->launch->code->uses_barrier > 1) return false;
    uint64_t pace = atomic_load_explicit(&g->launch->code->pace, memory_order_relaxed);
    return pace && g->total < SHORT_CYCLES / pace;
}

/* Blocks that took much longer than usual were probably preempted. */
static void note_pace(struct grid *g) {
    _Atomic uint64_t *pace = (_Atomic uint64_t *)&g->launch->code->pace;
    uint64_t old = atomic_load_explicit(pace, memory_order_relaxed);
    uint64_t now = (__builtin_ia32_rdtsc() - g->began_cycles) * (1 + g->helped) / g->total;
    if (old && now > 2 * old) now = 2 * old;
    atomic_store_explicit(pace, now ? now : 1, memory_order_relaxed);
}

int soft_engine_run(struct soft_engine *e, const struct soft_launch *l, char *err, size_t err_size) {
    int rc = check(l, err, err_size);
    if (rc) return rc;
    struct runner *r = soft_runner();
    if (!r) return refuse(err, err_size, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "no memory for a thread's state");
    char small[4096] __attribute__((aligned(64))), *params = small;
    size_t whole = ((size_t)l->params_size + 63) & ~(size_t)63;
    if (whole > sizeof small && !(params = aligned_alloc(64, whole)))
        return refuse(err, err_size, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "no memory for parameters");
    if (l->params_size) memcpy(params, l->params, l->params_size);
    uint64_t workspace[32] __attribute__((aligned(64))) = {0};
    struct grid g = {0};
    prepare(&g, e, l, params, l->cooperative ? (uint64_t)(uintptr_t)workspace : 0);
    g.caller = r;

    pthread_mutex_lock(&e->lock);
    soft_gate_await(e, g.gate, &g.stop);
    bool stopping = e->stopping, shared = !stopping && g.total > 1 && e->n_threads;
    if (!stopping) enter(e, r, &g);
    if (shared) {
        g.began_cycles = __builtin_ia32_rdtsc();
        g.alone = is_short(&g);
        if (!g.alone) offer(e, &g);
    }
    pthread_mutex_unlock(&e->lock);
    if (!stopping) {
        soft_run_grid(r, &g);
        pthread_mutex_lock(&e->lock);
        leave(e, r, &g);
        if (g.listed) {
            struct grid **p = &e->grids;
            while (*p != &g) p = &(*p)->later;
            *p = g.later;
            while (g.helpers) pthread_cond_wait(&g.left, &e->lock);
        }
        pthread_mutex_unlock(&e->lock);
        if (shared) note_pace(&g);
    } else {
        soft_grid_fail(&g, CUDA_ERROR_LAUNCH_FAILED, NULL, "stopped");
    }
    if (l->code->tier) {
        soft_grid_tier(&g);
        atomic_fetch_add_explicit(&l->code->tier->spent_ns, (uint64_t)gv_now_ns() - g.began_ns, memory_order_relaxed);
    }
    flush_text(&g);
    if (g.error && err && err_size) snprintf(err, err_size, "%s", g.message);
    free(g.text);
    if (params != small) free(params);
    pthread_cond_destroy(&g.left);
    pthread_mutex_destroy(&g.error_lock);
    return g.error;
}

/* ---- on its own ---- */

static pthread_once_t own_once = PTHREAD_ONCE_INIT;
static struct soft_engine *own_engine;
static struct soft_heap *own_heap;

static void own_create(void) {
    own_engine = soft_engine_create(-1);
    own_heap = soft_heap_create(8u << 20, NULL);
}

static void own_console(void *arg, const char *text, size_t size) {
    (void)arg;
    fwrite(text, 1, size, stdout);
    fflush(stdout);
}

/* Another seed, for a process whose environment has GPUVIRT_SOFT_SCHEDULE; between two launches. What the grids since the last one drew, as one number. */
__attribute__((visibility("default"))) uint64_t soft_exec_schedule(uint64_t seed) {
    pthread_once(&own_once, own_create);
    if (!own_engine) return 0;
    struct soft_schedule *s = &own_engine->schedule;
    s->seed = seed;
    atomic_store(&s->begun, 0);
    return atomic_exchange(&s->passed, 0);
}

__attribute__((visibility("default"))) int soft_exec_launch(const struct soft_code *code, const uint32_t grid[3], const uint32_t block[3],
                                                            const uint32_t cluster[3], uint32_t dynamic_shared, uint32_t cooperative,
                                                            const void *params, uint32_t params_size, char *err, uint32_t err_size) {
    if (!soft_engine_settings_known(err, err_size)) return CUDA_ERROR_INVALID_VALUE;
    pthread_once(&own_once, own_create);
    if (!own_engine) return refuse(err, err_size, CUDA_ERROR_OUT_OF_MEMORY, "no memory for the engine");
    struct soft_launch l = {.code = code,
                            .kernel = "test",
                            .dynamic_shared = dynamic_shared,
                            .cooperative = cooperative,
                            .params = params,
                            .params_size = params_size,
                            .heap = own_heap,
                            .console = own_console};
    memcpy(l.grid, grid, sizeof l.grid);
    memcpy(l.block, block, sizeof l.block);
    memcpy(l.cluster, cluster, sizeof l.cluster);
    return soft_engine_run(own_engine, &l, err, err_size);
}
