#define _GNU_SOURCE
#include "backend_fixture.h"

#include <time.h>
#include <unistd.h>

const struct gv_backend_ops *const ops = &gv_backend_soft;
char err[GV_ERR_SIZE];

static void scale(struct soft_warp *w) {
    const struct scale_params *p = w->params;
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t i = w->ctaid[0] * w->ntid[0] + w->first_thread + lane;
        if (w->lanes >> lane & 1 && i < p->n) p->data[i] *= p->factor;
    }
}

static void wild(struct soft_warp *w) {
    if (w->ctaid[0] == 1) *(volatile int *)(uintptr_t)0x1230 = 1;
}

_Atomic int endless_runs;
static void endless(struct soft_warp *w) {
    (void)w;
    atomic_store(&endless_runs, 1);
    for (volatile int i = 0;; i = 1) (void)i;
}

static void shares(struct soft_warp *w) {
    memset(w->shared, 1, w->shared_bytes);
    soft_barrier_sync(w, 0, 0, w->lanes);
}

/* A kernel that ends when four of it run. */
_Atomic int met;
static void meets(struct soft_warp *w) {
    (void)w;
    atomic_fetch_add(&met, 1);
    for (int i = 0; atomic_load(&met) < 4 && i < 100000; i++) usleep(1000);
}

static const struct fake_kernel kernels[] = {{"scale", scale, 16, 0, 0, 0},
                                             {"wild", wild, 0, 0, 0, 0},
                                             {"endless", endless, 0, 0, 0, 0},
                                             {"shares", shares, 0, 1024, 1, 256},
                                             {"meets", meets, 0, 0, 0, 0}};
struct fake_compiler compiler = {.kernels = kernels, .n_kernels = 5};
struct soft_compiler table;

struct gv_backend *backend;
struct gv_context *ctx;
uint64_t mem; /* one chunk, backed */

struct gv_backend_config config(uint32_t n) {
    static const uint32_t devices[] = {0, 1, 2, 3};
    table = fake_table(&compiler);
    return (struct gv_backend_config){.devices = devices, .n_devices = n, .device_memory = 64 * MIB, .memory_usage_fd = -1, .compiler = &table};
}

struct gv_context *context(uint32_t device) {
    struct gv_context *c;
    CHECK_INT(ops->context_create(backend, device, 0, 1, &c, err), 0);
    return c;
}

void open_with(const struct gv_backend_config *c) {
    CHECK_INT(ops->open(c, &backend, err), 0);
    if (c->strict) {
        ctx = context(0);
        return;
    }
    CHECK_INT(ops->reserve_window(backend, WINDOW, WINDOW_SIZE), 0);
    ctx = context(0);
    mem = gv_window_part(WINDOW, WINDOW_SIZE, c->n_devices, 0).base;
    CHECK_INT(ops->memory_back(ctx, mem, CHUNK, true), 0);
}

void open_plain(void) {
    struct gv_backend_config c = config(1);
    open_with(&c);
}

void close_all(void) {
    ops->context_destroy(ctx);
    ops->close(backend);
}

struct gv_stream *stream(uint32_t flags) {
    struct gv_stream *s;
    CHECK_INT(ops->stream_create(ctx, flags, 0, &s), 0);
    return s;
}

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void told(void *arg, int status) {
    struct waiter *w = arg;
    pthread_mutex_lock(&lock);
    w->status = status;
    w->done = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

bool wait_until(const int *flag, int milliseconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(milliseconds % 1000) * 1000000;
    until.tv_sec += milliseconds / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    int rc = 0;
    while (!*flag && !rc) rc = pthread_cond_timedwait(&changed, &lock, &until);
    bool is = *flag;
    pthread_mutex_unlock(&lock);
    return is;
}

int sync_stream(struct gv_stream *s) {
    struct waiter w = {0};
    CHECK_INT(ops->mark(s, told, &w), 0);
    CHECK(wait_until(&w.done, 200000));
    return w.status;
}

void stand(void *arg) {
    struct door *d = arg;
    pthread_mutex_lock(&lock);
    d->reached = 1;
    pthread_cond_broadcast(&changed);
    while (!d->open) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void open_door(struct door *d) {
    pthread_mutex_lock(&lock);
    d->open = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

struct gv_shape line(uint64_t width) { return (struct gv_shape){.width = width, .height = 1, .depth = 1}; }

int to_device(struct gv_stream *s, uint64_t dst, const void *src, uint64_t size) {
    struct gv_shape shape = line(size);
    return ops->copy_to_device(s, dst, src, &shape);
}

int to_host(struct gv_stream *s, void *dst, uint64_t src, uint64_t size) {
    struct gv_shape shape = line(size);
    return ops->copy_to_host(s, dst, src, &shape);
}

struct gv_module *module(void) {
    struct gv_module *m;
    void *meta;
    size_t size;
    CHECK_INT(ops->module_load(ctx, "good", 4, &m, &meta, &size, err), 0);
    CHECK_INT(gv_meta_check(meta, size), 0);
    CHECK_INT(gv_meta_globals(meta)[0].address, compiler.table);
    free(meta);
    return m;
}

int launch(struct gv_stream *s, struct gv_module *m, uint32_t kernel, uint32_t blocks, uint32_t threads, const void *params, uint32_t size) {
    struct gv_launch l = {.module = m, .kernel = kernel, .grid = {blocks, 1, 1}, .block = {threads, 1, 1}, .params = params, .params_size = size};
    return ops->launch(s, &l);
}
