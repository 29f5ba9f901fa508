/* The software GPU through backend.h, with C functions for compiled kernels. Runs one named test, or all. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend.h"
#include "driver_constants.h"
#include "fake_compiler.h"
#include "memory_usage.h"
#include "limits.h"
#include "memory_operation.h"
#include "window.h"

#define MIB (1ull << 20)
#define CHUNK (2 * MIB)
#ifdef __SANITIZE_THREAD__ /* which has little room for programs */
#define WINDOW 0x002000000000ull
#else
#define WINDOW 0x310000000000ull
#endif
#define WINDOW_SIZE (64ull << 30)

static const struct gv_backend_ops *ops = &gv_backend_soft;
static char err[GV_ERR_SIZE];

/* ---- kernels ---- */

struct scale_params {
    uint32_t *data;
    uint32_t factor, n;
};

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

static _Atomic int endless_runs;
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
static _Atomic int met;
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
enum { SCALE, WILD, ENDLESS, SHARES, MEETS };
static struct fake_compiler compiler = {.kernels = kernels, .n_kernels = 5};
static struct soft_compiler table;

/* ---- set up ---- */

static struct gv_backend *backend;
static struct gv_context *ctx;
static uint64_t mem; /* one chunk, backed */

static struct gv_backend_config config(uint32_t n) {
    static const uint32_t devices[] = {0, 1, 2, 3};
    table = fake_table(&compiler);
    return (struct gv_backend_config){.devices = devices, .n_devices = n, .device_memory = 64 * MIB, .memory_usage_fd = -1, .compiler = &table};
}

static struct gv_context *context(uint32_t device) {
    struct gv_context *c;
    CHECK_INT(ops->context_create(backend, device, 0, 1, &c, err), 0);
    return c;
}

static void open_with(const struct gv_backend_config *c) {
    CHECK_INT(ops->open(c, &backend, err), 0);
    if (c->strict) {
        ctx = context(0);
        return;
    }
    CHECK_INT(ops->reserve_window(backend, WINDOW, WINDOW_SIZE), 0);
    ctx = context(0);
    mem = gv_window_part(WINDOW, WINDOW_SIZE, c->n_devices, 0).base;
    CHECK_INT(ops->memory_back(ctx, mem, CHUNK), 0);
}

static void open_plain(void) {
    struct gv_backend_config c = config(1);
    open_with(&c);
}

static void close_all(void) {
    ops->context_destroy(ctx);
    ops->close(backend);
}

static struct gv_stream *stream(uint32_t flags) {
    struct gv_stream *s;
    CHECK_INT(ops->stream_create(ctx, flags, 0, &s), 0);
    return s;
}

/* ---- waiting ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

struct waiter {
    int done, status;
};

static void told(void *arg, int status) {
    struct waiter *w = arg;
    pthread_mutex_lock(&lock);
    w->status = status;
    w->done = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static bool wait_until(const int *flag, int milliseconds) {
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

/* The stream's status once it is idle. */
static int sync_stream(struct gv_stream *s) {
    struct waiter w = {0};
    CHECK_INT(ops->mark(s, told, &w), 0);
    CHECK(wait_until(&w.done, 200000));
    return w.status;
}

/* A gate that stands until it is opened. */
struct door {
    int reached, open;
};

static void stand(void *arg) {
    struct door *d = arg;
    pthread_mutex_lock(&lock);
    d->reached = 1;
    pthread_cond_broadcast(&changed);
    while (!d->open) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void open_door(struct door *d) {
    pthread_mutex_lock(&lock);
    d->open = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static struct gv_shape line(uint64_t width) { return (struct gv_shape){.width = width, .height = 1, .depth = 1}; }

static int to_device(struct gv_stream *s, uint64_t dst, const void *src, uint64_t size) {
    struct gv_shape shape = line(size);
    return ops->copy_to_device(s, dst, src, &shape);
}

static int to_host(struct gv_stream *s, void *dst, uint64_t src, uint64_t size) {
    struct gv_shape shape = line(size);
    return ops->copy_to_host(s, dst, src, &shape);
}

static struct gv_module *module(void) {
    struct gv_module *m;
    void *meta;
    size_t size;
    CHECK_INT(ops->module_load(ctx, "good", 4, &m, &meta, &size, err), 0);
    CHECK_INT(gv_meta_check(meta, size), 0);
    CHECK_INT(gv_meta_globals(meta)[0].address, compiler.table);
    free(meta);
    return m;
}

static int launch(struct gv_stream *s, struct gv_module *m, uint32_t kernel, uint32_t blocks, uint32_t threads, const void *params, uint32_t size) {
    struct gv_launch l = {.module = m, .kernel = kernel, .grid = {blocks, 1, 1}, .block = {threads, 1, 1}, .params = params, .params_size = size};
    return ops->launch(s, &l);
}

/* ---- tests ---- */

static void test_devices(void) {
    static const uint32_t devices[] = {3, 1};
    struct gv_backend_config c = config(2);
    c.devices = devices;
    c.memory = 10 * MIB;
    open_with(&c);
    struct gv_device_info a, b, again;
    CHECK_INT(ops->driver_version(backend), 13000);
    CHECK_INT(ops->device_info(backend, 0, &a), 0);
    CHECK_INT(ops->device_info(backend, 1, &b), 0);
    CHECK_INT(ops->device_info(backend, 2, &b), 101);
    CHECK(!strcmp(a.name, "gpuvirt software GPU"));
    CHECK_INT(a.total_memory, 10 * MIB);
    CHECK_INT(a.attributes[75], 13);
    CHECK_INT(a.attributes[76], 0);
    CHECK_INT(a.attributes[10], 32);
    CHECK_INT(a.attributes[33], 4);
    CHECK_INT(b.attributes[33], 2);
    CHECK(memcmp(a.uuid, b.uuid, 16));
    CHECK(a.has_attribute[1] && a.has_attribute[147] && !a.has_attribute[148] && !a.has_attribute[0]);
    close_all();
    c = config(4);
    c.capability = 90;
    open_with(&c);
    CHECK_INT(ops->device_info(backend, 3, &again), 0);
    CHECK(!memcmp(a.uuid, again.uuid, 16)); /* by the pool's number, not the session's */
    CHECK_INT(again.attributes[75], 9);
    close_all();
    c.n_devices = 17;
    CHECK_INT(ops->open(&c, &backend, err), 101);
}

static void test_memory_limits(void) {
    struct gv_backend_config c = config(2);
    c.memory = 10 * MIB;
    open_with(&c);
    uint64_t free_bytes, total;
    CHECK_INT(ops->memory_info(ctx, &free_bytes, &total), 0);
    CHECK_INT(free_bytes, 8 * MIB);
    CHECK_INT(total, 10 * MIB);
    CHECK_INT(ops->memory_back(ctx, mem + CHUNK, 5 * CHUNK), 2);
    CHECK_INT(ops->memory_back(ctx, mem + CHUNK, 4 * CHUNK), 0);
    CHECK_INT(ops->memory_back(ctx, mem + 5 * CHUNK, CHUNK), 2);
    CHECK_INT(ops->memory_back(ctx, mem, CHUNK), 1);           /* is backed already */
    CHECK_INT(ops->memory_back(ctx, mem + 6 * CHUNK, MIB), 1); /* no chunk */
    struct gv_window_part part = gv_window_part(WINDOW, WINDOW_SIZE, 2, 0), second = gv_window_part(WINDOW, WINDOW_SIZE, 2, 1);
    CHECK_INT(ops->memory_back(ctx, part.worker_base, CHUNK), 1);
    CHECK_INT(ops->memory_back(ctx, second.base, CHUNK), 1); /* another device's */
    struct gv_context *other = context(1);
    CHECK_INT(ops->memory_back(other, second.base, 5 * CHUNK), 0); /* which has a limit of its own */
    CHECK_INT(ops->memory_back(other, second.base + 5 * CHUNK, CHUNK), 2);
    memset((void *)(uintptr_t)(mem + CHUNK), 0x55, CHUNK);
    CHECK_INT(ops->memory_unback(ctx, mem + CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_unback(ctx, mem + CHUNK, CHUNK), 1);
    CHECK_INT(ops->memory_unback(ctx, mem, 3 * CHUNK), 1); /* has a hole */
    CHECK_INT(ops->memory_info(ctx, &free_bytes, &total), 0);
    CHECK_INT(free_bytes, CHUNK);
    CHECK_INT(ops->memory_back(ctx, mem + CHUNK, CHUNK), 0);
    for (uint64_t i = 0; i < CHUNK; i += 8) CHECK_INT(*(uint64_t *)(uintptr_t)(mem + CHUNK + i), 0); /* scrubbed */
    CHECK_INT(ops->memory_alloc(ctx, 100, &total), 801);
    ops->context_destroy(other);
    close_all();
    /* A range that is in use is refused, and another one is taken. */
    c = config(1);
    CHECK_INT(ops->open(&c, &backend, err), 0);
    void *taken = mmap((void *)(uintptr_t)(WINDOW + MIB), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK_INT(ops->reserve_window(backend, WINDOW, WINDOW_SIZE), 1);
    CHECK_INT(ops->reserve_window(backend, WINDOW + WINDOW_SIZE, MIB), 1); /* too small */
    CHECK_INT(ops->reserve_window(backend, WINDOW + WINDOW_SIZE, WINDOW_SIZE), 0);
    munmap(taken, 4096);
    ops->close(backend);
}

static void test_copies(void) {
    open_plain();
    struct gv_stream *s = stream(0);
    static uint8_t in[6 * 10 * 20], out[6 * 10 * 20];
    for (size_t i = 0; i < sizeof in; i++) in[i] = (uint8_t)(i * 7);
    CHECK_INT(to_device(s, mem + 100, in, sizeof in), 0);
    CHECK_INT(to_host(s, out, mem + 100, sizeof out), 0);
    CHECK_INT(sync_stream(s), 0);
    CHECK(!memcmp(in, out, sizeof in));
    /* 5 x 4 x 3 out of 20 x 10 x 6, to where it lies packed, then within the device to another pitch. */
    memset(out, 0, sizeof out);
    struct gv_shape shape = {.width = 5, .height = 4, .depth = 3, .dst_pitch = 5, .dst_slice = 20, .src_pitch = 20, .src_slice = 200};
    CHECK_INT(ops->copy_to_host(s, out, mem + 100 + 3, &shape), 0);
    CHECK_INT(sync_stream(s), 0);
    for (int z = 0; z < 3; z++)
        for (int y = 0; y < 4; y++)
            for (int x = 0; x < 5; x++) CHECK_INT(out[z * 20 + y * 5 + x], in[z * 200 + y * 20 + x + 3]);
    shape = (struct gv_shape){.width = 20, .height = 60, .depth = 1, .dst_pitch = 32, .src_pitch = 20};
    CHECK_INT(ops->copy_device(s, mem + 8192, ctx, mem + 100, ctx, &shape), 0);
    shape = (struct gv_shape){.width = 20, .height = 60, .depth = 1, .dst_pitch = 20, .src_pitch = 32};
    CHECK_INT(ops->copy_to_host(s, out, mem + 8192, &shape), 0);
    CHECK_INT(sync_stream(s), 0);
    CHECK(!memcmp(in, out, sizeof in));
    /* Fills leave the gaps alone. */
    CHECK_INT(ops->fill(s, mem, 0, 1, 0x11, CHUNK, 1), 0);
    CHECK_INT(ops->fill(s, mem, 64, 4, 0xdeadbeef, 3, 5), 0);
    CHECK_INT(ops->fill(s, mem + 12, 64, 2, 0x1234, 1, 5), 0);
    CHECK_INT(sync_stream(s), 0);
    for (int y = 0; y < 5; y++) {
        const uint8_t *row = (const uint8_t *)(uintptr_t)(mem + (uint64_t)y * 64);
        CHECK_INT(*(const uint32_t *)(row + 8), 0xdeadbeef);
        CHECK_INT(*(const uint16_t *)(row + 12), 0x1234);
        CHECK_INT(row[14], 0x11);
    }
    CHECK_INT(ops->fill(s, mem + 1, 0, 4, 0, 1, 1), 1);
    CHECK_INT(ops->fill(s, mem, 0, 3, 0, 1, 1), 1);
    CHECK_INT(to_device(s, mem, in, 0), 0);
    ops->stream_destroy(s);
    close_all();
}

/* Everything outside of what is backed, by a byte, and the gap between two ranges. */
static void test_illegal_copies(void) {
    static char buffer[8192];
    open_plain();
    struct gv_window_part part = gv_window_part(WINDOW, WINDOW_SIZE, 1, 0);
    struct {
        uint64_t address, size;
    } bad[] = {{mem + CHUNK - 99, 100}, {mem - 1, 10}, {part.worker_base, 4}, {0x40, 8}, {UINT64_MAX - 3, 16}, {mem + 3 * CHUNK - 4, 8}};
    for (int i = 0; i < 6; i++) {
        struct gv_context *c = context(0);
        struct gv_stream *s;
        CHECK_INT(ops->stream_create(c, 1, 0, &s), 0);
        CHECK_INT(i % 2 ? to_host(s, buffer, bad[i].address, bad[i].size) : to_device(s, bad[i].address, buffer, bad[i].size), 0);
        CHECK_INT(sync_stream(s), 700);
        CHECK_TEXT(ops->error_text(c), "illegal address");
        ops->stream_destroy(s);
        ops->context_destroy(c);
    }
    CHECK(!*ops->error_text(ctx));
    /* Sticky: later work is skipped, marks say so, another context is fine. */
    struct gv_stream *s = stream(0), *t = stream(1);
    struct gv_shape wide = {.width = 16, .height = 3, .depth = 1, .dst_pitch = CHUNK, .src_pitch = 16};
    CHECK_INT(ops->copy_to_device(s, mem, buffer, &wide), 0);
    CHECK_INT(sync_stream(s), 700);
    memset((void *)(uintptr_t)mem, 5, 16);
    CHECK_INT(to_device(t, mem, buffer, 16), 0);
    CHECK_INT(sync_stream(t), 700);
    CHECK_INT(*(char *)(uintptr_t)mem, 5);
    struct door d = {.open = 1};
    CHECK_INT(ops->gate(t, stand, &d), 0);
    CHECK_INT(sync_stream(t), 700);
    CHECK_INT(d.reached, 1); /* gates run all the same */
    struct gv_context *fine = context(0);
    struct gv_stream *u = ops->stream_legacy(fine);
    CHECK_INT(to_device(u, mem, buffer, 16), 0);
    CHECK_INT(sync_stream(u), 0);
    CHECK_INT(*(char *)(uintptr_t)mem, 0);
    ops->context_destroy(fine);
    ops->stream_destroy(s);
    ops->stream_destroy(t);
    close_all();
}

static void test_launch(void) {
    open_plain();
    struct gv_stream *s = stream(0);
    struct gv_module *m = module();
    uint32_t *data = (uint32_t *)(uintptr_t)mem;
    for (uint32_t i = 0; i < 1000; i++) data[i] = i;
    struct scale_params p = {data, 3, 1000};
    int before = atomic_load(&compiler.compilations);
    struct door d = {0};
    CHECK_INT(ops->gate(s, stand, &d), 0);
    CHECK_INT(launch(s, m, SCALE, 8, 128, &p, sizeof p), 0);
    p.factor = 100; /* the parameters were taken at the call */
    CHECK_INT(data[1], 1);
    open_door(&d);
    CHECK_INT(sync_stream(s), 0);
    for (uint32_t i = 0; i < 1000; i++) CHECK_INT(data[i], 3 * i);
    p.factor = 2;
    CHECK_INT(launch(s, m, SCALE, 8, 128, &p, sizeof p), 0);
    CHECK_INT(launch(s, m, SCALE, 16, 64, &p, sizeof p), 0);
    CHECK_INT(sync_stream(s), 0);
    CHECK_INT(data[999], 12 * 999);
    CHECK_INT(atomic_load(&compiler.compilations) - before, 2); /* once a block shape */
    CHECK(!pthread_equal(compiler.compiled_on, pthread_self()));
    /* What a launch may not be. */
    CHECK_INT(launch(s, m, SCALE, 8, 1025, &p, sizeof p), 1);
    CHECK_INT(launch(s, m, SCALE, 0, 32, &p, sizeof p), 1);
    CHECK_INT(launch(s, m, SCALE, 1, 32, &p, 15), 1);
    CHECK_INT(launch(s, m, 5, 1, 32, NULL, 0), 400);
    CHECK_INT(launch(s, m, SHARES, 1, 257, NULL, 0), 1);
    struct gv_launch l = {.module = m, .kernel = SHARES, .grid = {4, 1, 1}, .block = {256, 1, 1}, .shared = 47 << 10};
    CHECK_INT(ops->launch(s, &l), 0);
    l.shared++;
    CHECK_INT(ops->launch(s, &l), 1);
    CHECK_INT(ops->kernel_set_attribute(m, SHARES, 8, (226 << 10) + 1), 1);
    CHECK_INT(ops->kernel_set_attribute(m, SHARES, 8, -1), 1);
    CHECK_INT(ops->kernel_set_attribute(m, SHARES, 0, 32), 1);
    CHECK_INT(ops->kernel_set_attribute(m, SHARES, 9, 50), 0);
    CHECK_INT(ops->kernel_set_attribute(m, SHARES, 8, 226 << 10), 0);
    l.shared = 226 << 10;
    CHECK_INT(ops->launch(s, &l), 0);
    l.cooperative = 1;
    l.grid[0] = SOFT_MULTIPROCESSORS;
    CHECK_INT(ops->launch(s, &l), 0);
    l.grid[0]++;
    CHECK_INT(ops->launch(s, &l), 720);
    CHECK_INT(sync_stream(s), 0);
    /* A kernel that faults. */
    CHECK_INT(launch(s, m, WILD, 2, 32, NULL, 0), 0);
    CHECK_INT(sync_stream(s), 700);
    CHECK_TEXT(ops->error_text(ctx), "illegal address 0x1230 in kernel wild, block (1,0,0), warp 0");
    ops->module_unload(m);
    ops->stream_destroy(s);
    close_all();
}

static void test_compile_error(void) {
    open_plain();
    struct gv_module *m = module();
    struct gv_stream *s = ops->stream_legacy(ctx);
    compiler.fail_compilation = 1;
    CHECK_INT(launch(s, m, WILD, 2, 32, NULL, 0), 0);
    CHECK_INT(sync_stream(s), 801);
    CHECK_TEXT(ops->error_text(ctx), "no such instruction");
    compiler.fail_compilation = 0;
    ops->module_unload(m);
    close_all();
}

static void test_modules(void) {
    open_plain();
    struct gv_module *m;
    void *meta;
    size_t size;
    CHECK_INT(ops->module_load(ctx, "evil", 4, &m, &meta, &size, err), 200);
    CHECK_TEXT(err, "not an image");
    uint64_t before, after, total, address, bytes;
    ops->memory_info(ctx, &before, &total);
    m = module();
    struct gv_window_part part = gv_window_part(WINDOW, WINDOW_SIZE, 1, 0);
    CHECK(compiler.table >= part.worker_base && compiler.table < part.worker_base + part.worker_size);
    CHECK_INT(ops->module_global(m, "counter", &address, &bytes), 0);
    CHECK_INT(address, compiler.counter);
    CHECK_INT(bytes, 4);
    CHECK_INT(ops->module_global(m, "nothing", &address, &bytes), 500);
    ops->memory_info(ctx, &after, &total);
    CHECK_INT(before - after, 4096);
    char seven[1000];
    struct gv_stream *s = stream(0);
    CHECK_INT(to_host(s, seven, compiler.table, 1000), 0);
    CHECK_INT(sync_stream(s), 0);
    for (int i = 0; i < 1000; i++) CHECK_INT(seven[i], 7);
    struct gv_module *second = module();
    CHECK(compiler.counter != address);
    /* Unloaded while a launch is queued: the launch still runs. */
    struct door d = {0};
    struct scale_params p = {(uint32_t *)(uintptr_t)mem, 5, 1};
    *p.data = 7;
    CHECK_INT(ops->gate(s, stand, &d), 0);
    CHECK_INT(launch(s, m, SCALE, 1, 32, &p, sizeof p), 0);
    int unloads = atomic_load(&compiler.unloads);
    ops->module_unload(m);
    CHECK_INT(atomic_load(&compiler.unloads), unloads);
    open_door(&d);
    CHECK_INT(sync_stream(s), 0);
    CHECK_INT(*p.data, 35);
    CHECK_INT(atomic_load(&compiler.unloads), unloads + 1);
    ops->module_unload(second);
    ops->memory_info(ctx, &after, &total);
    CHECK_INT(before, after);
    ops->stream_destroy(s);
    close_all();
}

/* Who came by, in order. */
static char order[64];
static void note(void *arg) {
    pthread_mutex_lock(&lock);
    strcat(order, arg);
    pthread_mutex_unlock(&lock);
}

static void test_legacy_stream(void) {
    open_plain();
    struct gv_stream *a = stream(0), *b = stream(0), *free_one = stream(1), *legacy = ops->stream_legacy(ctx);
    struct door d = {0}, e = {0};
    order[0] = 0;
    CHECK_INT(ops->gate(a, stand, &d), 0);
    CHECK_INT(ops->gate(a, note, "a"), 0);
    CHECK_INT(ops->gate(legacy, note, "L"), 0); /* waits for a */
    CHECK_INT(ops->gate(b, note, "b"), 0);      /* waits for L */
    CHECK_INT(ops->gate(free_one, note, "f"), 0);
    CHECK_INT(sync_stream(free_one), 0);
    usleep(20000);
    CHECK(!strcmp(order, "f"));
    open_door(&d);
    CHECK_INT(sync_stream(b), 0);
    CHECK(!strcmp(order, "faLb"));
    /* The non-blocking one holds up nobody either. */
    order[0] = 0;
    CHECK_INT(ops->gate(free_one, stand, &e), 0);
    CHECK_INT(ops->gate(legacy, note, "L"), 0);
    CHECK_INT(sync_stream(legacy), 0);
    CHECK(!strcmp(order, "L"));
    open_door(&e);
    /* A destroyed stream's queued work still counts. */
    struct door f = {0};
    order[0] = 0;
    CHECK_INT(ops->gate(a, stand, &f), 0);
    CHECK_INT(ops->gate(a, note, "a"), 0);
    ops->stream_destroy(a);
    CHECK_INT(ops->gate(legacy, note, "L"), 0);
    usleep(20000);
    CHECK(!*order);
    open_door(&f);
    CHECK_INT(sync_stream(legacy), 0);
    CHECK(!strcmp(order, "aL"));
    /* A mark on it waits for blocking streams, and does not make them wait. */
    struct door g = {0};
    struct waiter w = {0};
    CHECK_INT(ops->gate(b, stand, &g), 0);
    CHECK_INT(ops->mark(legacy, told, &w), 0);
    struct gv_stream *c = stream(0);
    CHECK_INT(sync_stream(c), 0);
    CHECK_INT(ops->gate(c, note, "c"), 0);
    CHECK_INT(sync_stream(c), 0);
    CHECK_INT(w.done, 0);
    open_door(&g);
    CHECK(wait_until(&w.done, 200000));
    ops->stream_destroy(b);
    ops->stream_destroy(c);
    ops->stream_destroy(free_one);
    close_all();
}

static void test_events(void) {
    open_plain();
    struct gv_stream *a = stream(1), *b = stream(1);
    struct gv_event *first, *second, *untimed;
    float ms = -1;
    CHECK_INT(ops->event_create(ctx, 0, &first), 0);
    CHECK_INT(ops->event_create(ctx, 0, &second), 0);
    CHECK_INT(ops->event_create(ctx, 2, &untimed), 0);
    CHECK_INT(ops->stream_wait_event(a, first), 0); /* never recorded: done */
    CHECK_INT(sync_stream(a), 0);
    CHECK_INT(ops->event_elapsed(first, second, &ms), 400);
    struct door d = {0};
    CHECK_INT(ops->event_record(first, a), 0);
    CHECK_INT(sync_stream(a), 0); /* it has its time */
    CHECK_INT(ops->gate(a, stand, &d), 0);
    CHECK_INT(ops->event_record(second, a), 0);
    CHECK_INT(ops->event_record(untimed, a), 0);
    CHECK_INT(ops->event_elapsed(first, second, &ms), 600);
    order[0] = 0;
    CHECK_INT(ops->stream_wait_event(b, second), 0);
    CHECK_INT(ops->gate(b, note, "b"), 0);
    usleep(30000);
    CHECK(!*order);
    open_door(&d);
    CHECK_INT(sync_stream(b), 0);
    CHECK(!strcmp(order, "b"));
    CHECK_INT(sync_stream(a), 0);
    CHECK_INT(ops->event_elapsed(first, second, &ms), 0);
    CHECK(ms > 25 && ms < 200000);
    float back;
    CHECK_INT(ops->event_elapsed(second, first, &back), 0);
    CHECK(back == -ms);
    CHECK_INT(ops->event_elapsed(first, untimed, &ms), 400);
    /* A wait holds the record of its own time: recording again, behind a door, does not move it. And the event may go at once. */
    struct door e = {0};
    CHECK_INT(ops->event_record(first, b), 0);
    CHECK_INT(sync_stream(b), 0);
    CHECK_INT(ops->stream_wait_event(a, first), 0);
    CHECK_INT(ops->gate(b, stand, &e), 0);
    CHECK_INT(ops->event_record(first, b), 0);
    CHECK_INT(sync_stream(a), 0);
    CHECK_INT(ops->stream_wait_event(a, first), 0);
    ops->event_destroy(first);
    struct waiter w = {0};
    CHECK_INT(ops->mark(a, told, &w), 0);
    CHECK(!wait_until(&w.done, 20));
    open_door(&e);
    CHECK(wait_until(&w.done, 200000));
    ops->event_destroy(second);
    ops->event_destroy(untimed);
    ops->stream_destroy(a);
    ops->stream_destroy(b);
    close_all();
}

static _Atomic int at_once, most_at_once;
/* Until so many are here at once, or have been; and a little for more to come, if more may. */
static void crowd(void *arg) {
    const int *wanted = arg;
    int n = atomic_fetch_add(&at_once, 1) + 1, most = atomic_load(&most_at_once);
    while (n > most && !atomic_compare_exchange_weak(&most_at_once, &most, n)) {
    }
    for (int i = 0; atomic_load(&most_at_once) < *wanted && i < 100000; i++) usleep(1000);
    usleep(20000);
    atomic_fetch_sub(&at_once, 1);
}

static int count_crowd(int strict) {
    int wanted = strict ? 8 : 12;
    struct gv_backend_config c = config(1);
    c.strict = strict;
    open_with(&c);
    struct gv_stream *s[12];
    most_at_once = 0;
    for (int i = 0; i < 12; i++) {
        s[i] = stream(1);
        CHECK_INT(ops->gate(s[i], crowd, &wanted), 0);
    }
    for (int i = 0; i < 12; i++) {
        CHECK_INT(sync_stream(s[i]), 0);
        ops->stream_destroy(s[i]);
    }
    close_all();
    return most_at_once;
}

static void test_concurrency(void) {
    CHECK_INT(count_crowd(0), 12);
    CHECK_INT(count_crowd(1), 8);
    /* Kernels too. */
    open_plain();
    struct gv_module *m = module();
    struct gv_stream *s[4];
    for (int i = 0; i < 4; i++) {
        s[i] = stream(1);
        CHECK_INT(launch(s[i], m, MEETS, 1, 32, NULL, 0), 0);
    }
    CHECK_INT(sync_stream(s[0]), 0);
    CHECK_INT(atomic_load(&met), 4);
    for (int i = 1; i < 4; i++) CHECK_INT(sync_stream(s[i]), 0);
    for (int i = 0; i < 4; i++) ops->stream_destroy(s[i]);
    ops->module_unload(m);
    close_all();
}

/* Many small operations on many streams from several threads: marks come once each, in order. */
struct many {
    struct gv_stream *s;
    uint64_t at;
    int seen;
};

static void in_order(void *arg, int status) {
    struct many *const *cell = arg;
    struct many *m = *cell;
    CHECK_INT(status, 0);
    m->seen++;
}

static void *pushes(void *arg) {
    struct many *m = arg;
    for (int i = 0; i < 500; i++) {
        CHECK_INT(ops->fill(m->s, m->at + (uint64_t)i * 64, 0, 4, (uint32_t)i, 4, 1), 0);
        CHECK_INT(ops->mark(m->s, in_order, &m), 0);
        if (i % 50 == 0) CHECK_INT(sync_stream(m->s), 0);
    }
    CHECK_INT(sync_stream(m->s), 0);
    CHECK_INT(m->seen, 500);
    return NULL;
}

static void test_many_threads(void) {
    open_plain();
    pthread_t threads[6];
    struct many many[6] = {0};
    for (int i = 0; i < 6; i++) {
        many[i].at = mem + (uint64_t)i * 32768;
        many[i].s = i ? stream((uint32_t)i % 2) : ops->stream_legacy(ctx);
        CHECK(!pthread_create(&threads[i], NULL, pushes, &many[i]));
    }
    for (int i = 0; i < 6; i++) pthread_join(threads[i], NULL);
    for (int i = 1; i < 6; i++) ops->stream_destroy(many[i].s);
    close_all();
}

static int link_none(void *self, uint32_t n, const struct soft_link_input *inputs, void **image, size_t *size, char *text, size_t text_size) {
    (void)self, (void)n, (void)inputs, (void)image, (void)size, (void)text, (void)text_size;
    return 200;
}

/* A count of inputs that wraps to zero in 32 bits, and the most that a payload has room for, plus one. */
static void test_link_counts(void) {
    struct gv_backend_config c = config(1);
    table.link = link_none;
    open_with(&c);
    struct gv_link_part part = {.type = 1, .name = "one", .data = "text", .size = 4};
    struct gv_link_job job = {.inputs = &part, .n_inputs = 0xffffffff};
    static struct gv_link_result result;
    CHECK_INT(ops->link(ctx, &job, &result), 1);
    job.n_inputs = GV_LINK_MAX_INPUTS + 1;
    CHECK_INT(ops->link(ctx, &job, &result), 1);
    job.n_inputs = 1;
    CHECK_INT(ops->link(ctx, &job, &result), 200);
    ops->close(backend);
}

/* ---- stream memory operations ---- */

static int operate(struct gv_stream *s, uint32_t kind, uint64_t address, uint64_t value, uint32_t flags) {
    struct gv_memory_operation o = {.kind = kind, .flags = flags, .address = address, .value = value};
    return ops->memory_operations(s, &o, sizeof o);
}

/* A stream that waits is held up by the first value, and let go by the second. */
static void waits_for(uint32_t kind, uint64_t value, uint32_t flags, uint64_t before, uint64_t after) {
    struct gv_stream *s = stream(1), *t = stream(1);
    struct waiter w = {0};
    uint32_t write = kind == GV_WAIT_VALUE_32 ? GV_WRITE_VALUE_32 : GV_WRITE_VALUE_64;
    CHECK_INT(operate(t, write, mem, before, 0), 0);
    CHECK_INT(sync_stream(t), 0);
    CHECK_INT(operate(s, kind, mem, value, flags), 0);
    CHECK_INT(ops->mark(s, told, &w), 0);
    CHECK_INT(operate(t, write, mem + 8, 1, 0), 0);
    CHECK_INT(sync_stream(t), 0);
    usleep(2000); /* or the test proves less */
    pthread_mutex_lock(&lock);
    CHECK_INT(w.done, 0);
    pthread_mutex_unlock(&lock);
    CHECK_INT(operate(t, write, mem, after, 1), 0);
    CHECK(wait_until(&w.done, 200000));
    CHECK_INT(w.status, 0);
    ops->stream_destroy(s);
    ops->stream_destroy(t);
}

static void test_memory_operations(void) {
    open_plain();
    waits_for(GV_WAIT_VALUE_32, 5, CU_STREAM_WAIT_VALUE_EQ, 6, 5);
    waits_for(GV_WAIT_VALUE_64, 5ull << 32, CU_STREAM_WAIT_VALUE_EQ, 5, 5ull << 32);
    waits_for(GV_WAIT_VALUE_32, 5, CU_STREAM_WAIT_VALUE_GEQ, 4, 7);
    waits_for(GV_WAIT_VALUE_32, 2, CU_STREAM_WAIT_VALUE_GEQ, 0xfffffff0, 3); /* counters that wrap: 2 is after 2^32 - 16 */
    waits_for(GV_WAIT_VALUE_32, 0xfffffff0, CU_STREAM_WAIT_VALUE_GEQ, 0xffffffef, 2);
    waits_for(GV_WAIT_VALUE_64, 1ull << 33, CU_STREAM_WAIT_VALUE_GEQ, 1ull << 32, 1ull << 34);
    waits_for(GV_WAIT_VALUE_32, 6, CU_STREAM_WAIT_VALUE_AND, 9, 4);
    waits_for(GV_WAIT_VALUE_64, 6ull << 40, CU_STREAM_WAIT_VALUE_AND, 6, 2ull << 40);
    waits_for(GV_WAIT_VALUE_32, 0xfffffffe, 3, 1, 2); /* NOR */
    waits_for(GV_WAIT_VALUE_64, ~1ull, 3 | 1u << 30, 1, 2);
    /* A batch, in its order. */
    struct gv_stream *s = stream(1);
    struct gv_memory_operation batch[] = {{GV_WRITE_VALUE_32, 0, mem, 7},
                                          {GV_MEMORY_BARRIER, 0, 0, 0},
                                          {GV_WAIT_VALUE_32, CU_STREAM_WAIT_VALUE_EQ, mem, 7},
                                          {GV_FLUSH_REMOTE_WRITES, 0, 0, 0},
                                          {GV_WRITE_VALUE_64, 1, mem, ~0ull}};
    CHECK_INT(ops->memory_operations(s, batch, sizeof batch), 0);
    CHECK_INT(ops->memory_operations(s, batch, 0), 0);
    CHECK_INT(sync_stream(s), 0);
    CHECK(*(uint64_t *)(uintptr_t)mem == ~0ull);
    /* What a hostile client might send. */
    static struct gv_memory_operation many[GV_MEMORY_OPERATIONS_MAX + 1];
    CHECK_INT(ops->memory_operations(s, batch, sizeof batch - 8), 1);
    CHECK_INT(ops->memory_operations(s, many, sizeof many), 1);
    CHECK_INT(operate(s, 0, mem, 1, 0), 1);
    CHECK_INT(operate(s, 8, mem, 1, 0), 1);
    CHECK_INT(operate(s, GV_WRITE_VALUE_64, mem + 4, 1, 0), 1);
    CHECK_INT(operate(s, GV_WRITE_VALUE_32, mem + CHUNK, 1, 0), 0); /* found out when it is done */
    CHECK_INT(sync_stream(s), 700);
    CHECK(strstr(ops->error_text(ctx), "illegal address") != NULL);
    /* A wait for what never comes ends with the backend, and does not hold it up. */
    struct gv_context *fine = context(0);
    struct gv_stream *never = ops->stream_legacy(fine);
    CHECK_INT(operate(never, GV_WAIT_VALUE_32, mem, 12345, CU_STREAM_WAIT_VALUE_EQ), 0);
    ops->close(backend);
}

static void *open_late(void *door) {
    usleep(20000);
    open_door(door);
    return NULL;
}

static void test_strict(void) {
    struct gv_backend_config c = config(1);
    c.strict = 1;
    open_with(&c);
    CHECK_INT(ops->reserve_window(backend, WINDOW, WINDOW_SIZE), 801);
    CHECK_INT(ops->memory_back(ctx, WINDOW, CHUNK), 801);
    uint64_t a, b, d, free_bytes, total;
    CHECK_INT(ops->memory_alloc(ctx, 40 * MIB, &a), 0);
    CHECK_INT(ops->memory_alloc(ctx, 24 * MIB + 1, &b), 2);
    CHECK_INT(ops->memory_alloc(ctx, 24 * MIB, &b), 0);
    CHECK_INT(ops->memory_alloc(ctx, 1, &d), 2);
    CHECK_INT(ops->memory_alloc(ctx, 0, &d), 1);
    struct gv_stream *s = stream(1);
    CHECK_INT(ops->fill(s, a, 0, 4, 1, 10 * MIB, 1), 0);
    CHECK_INT(ops->fill(s, b + 24 * MIB - 4, 0, 4, 1, 1, 1), 0);
    CHECK_INT(sync_stream(s), 0);
    /* A free waits for the device, and an allocation that needs the memory waits for the free. */
    struct door door = {0};
    CHECK_INT(ops->gate(s, stand, &door), 0);
    CHECK_INT(ops->fill(s, a, 0, 4, 2, 10 * MIB, 1), 0);
    CHECK_INT(ops->memory_free(ctx, a), 0);
    CHECK_INT(ops->memory_free(ctx, a), 1);
    CHECK_INT(ops->memory_free(ctx, b + 4096), 1);
    usleep(20000);
    CHECK_INT(ops->memory_info(ctx, &free_bytes, &total), 0);
    CHECK_INT(free_bytes, 0);
    open_door(&door);
    CHECK_INT(ops->memory_alloc(ctx, 40 * MIB, &a), 0);
    CHECK_INT(sync_stream(s), 0);
    /* So do a module's globals and physical memory, although nobody but the free's thread knows of it any more. */
    pthread_t opener;
    struct door late = {0};
    CHECK_INT(ops->gate(s, stand, &late), 0);
    ops->memory_free(ctx, b);
    CHECK(!pthread_create(&opener, NULL, open_late, &late));
    struct gv_module *m = module();
    pthread_join(opener, NULL);
    ops->module_unload(m);
    CHECK_INT(ops->memory_alloc(ctx, 24 * MIB, &b), 0);
    late = (struct door){0};
    CHECK_INT(ops->gate(s, stand, &late), 0);
    ops->memory_free(ctx, b);
    CHECK(!pthread_create(&opener, NULL, open_late, &late));
    struct gv_physical *physical;
    CHECK_INT(ops->physical_create(ctx, CHUNK, &physical), 0);
    pthread_join(opener, NULL);
    CHECK_INT(ops->physical_destroy(physical), 0);
    ops->stream_destroy(s);
    close_all();
}

static int make_memory_usage(uint64_t total) {
    int fd = memfd_create("memory_usage", 0);
    CHECK(fd >= 0 && !ftruncate(fd, sizeof(struct gv_memory_usage)));
    struct gv_memory_usage *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(l != MAP_FAILED);
    l->magic = GV_MEMORY_USAGE_MAGIC;
    l->version = GV_MEMORY_USAGE_VERSION;
    for (int i = 0; i < GV_MEMORY_USAGE_DEVICES; i++) l->total[i] = total;
    l->limit[5] = l->limit[6] = total;
    munmap(l, sizeof *l);
    return fd;
}

/* Two processes ask for a chunk at a time until there is none: together they get all of it. */
static void test_memory_usage(void) {
    int fd = make_memory_usage(100 * CHUNK);
    struct gv_memory_usage *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    _Atomic int *ready = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int stop[2];
    CHECK(ready != MAP_FAILED && !pipe(stop));
    pid_t children[2];
    for (int child = 0; child < 2; child++) {
        if ((children[child] = fork())) continue;
        struct gv_backend_config c = config(2);
        c.device_memory = 100 * CHUNK;
        c.memory_usage_fd = fd;
        c.memory_usage_slot = (uint32_t)child + 5;
        if (child) c.memory = 30 * CHUNK; /* and one of them has a limit of its own */
        open_with(&c);
        uint64_t got = 1;
        int rc;
        close(stop[1]);
        atomic_fetch_add(ready, 1);
        while (atomic_load(ready) < 2) usleep(1000);
        while (!(rc = ops->memory_back(ctx, mem + got * CHUNK, CHUNK))) got++;
        CHECK_INT(rc, 2);
        CHECK(!child || got <= 30);
        char byte;
        CHECK_INT(read(stop[0], &byte, 1), 0); /* until the parent has looked */
        if (child) _exit(0);                   /* killed, as it were */
        close_all();
        exit(0);
    }
    close(stop[0]);
    for (int i = 0;
         i < 40000 && atomic_load((_Atomic uint64_t *)&l->rows[5].used[0]) + atomic_load((_Atomic uint64_t *)&l->rows[6].used[0]) < 100 * CHUNK; i++)
        usleep(5000);
    usleep(20000);
    CHECK_INT(l->rows[5].used[0] + l->rows[6].used[0], 100 * CHUNK);
    CHECK_INT(l->rows[5].used[1] + l->rows[6].used[1], 0);
    CHECK_INT(l->rows[5].wanted[0] + l->rows[6].wanted[0], 0);
    close(stop[1]);
    int status;
    for (int i = 0; i < 2; i++) CHECK(waitpid(children[i], &status, 0) > 0 && status == 0);
    CHECK_INT(l->rows[5].used[0], 0); /* closed */
    CHECK(l->rows[6].used[0] > 0);
    munmap(l, sizeof *l);
    munmap((void *)ready, 4096);
    struct gv_backend_config c = config(1);
    c.memory_usage_fd = fd;
    c.memory_usage_slot = GV_MEMORY_USAGE_SLOTS;
    CHECK_INT(ops->open(&c, &backend, err), 1);
    close(fd);
}

/* Whatever is running or waiting, close comes back within a few seconds; and when nothing is, it takes everything with it. */
static void test_close_while_busy(void) {
    open_plain();
    CHECK_INT(sync_stream(stream(1)), 0);
    CHECK_INT(sync_stream(ops->stream_legacy(ctx)), 0);
    ops->close(backend);
    open_plain();
    struct gv_module *m = module();
    struct gv_stream *s = stream(1);
    CHECK_INT(launch(s, m, ENDLESS, 4, 32, NULL, 0), 0);
    CHECK_INT(launch(s, m, ENDLESS, 4, 32, NULL, 0), 0);
    while (!atomic_load(&endless_runs)) usleep(1000);
    ops->close(backend);
    open_plain();
    static struct door never;
    CHECK_INT(ops->gate(stream(1), stand, &never), 0);
    CHECK(wait_until(&never.reached, 200000));
    ops->close(backend);
}

static void test_destroyed_context(void) {
    open_plain();
    struct gv_context *c = context(0);
    struct gv_stream *s, *legacy = ops->stream_legacy(c);
    struct gv_event *e;
    struct door d = {0};
    order[0] = 0;
    CHECK_INT(ops->stream_create(c, 0, 0, &s), 0);
    CHECK_INT(ops->event_create(c, 0, &e), 0);
    CHECK_INT(ops->gate(legacy, stand, &d), 0);
    CHECK_INT(ops->gate(legacy, note, "L"), 0);
    CHECK_INT(ops->gate(s, note, "s"), 0);
    ops->context_destroy(c);
    CHECK_INT(ops->gate(s, note, "t"), 0);
    open_door(&d);
    CHECK_INT(sync_stream(s), 0);
    CHECK(!strcmp(order, "Lst"));
    ops->event_destroy(e);
    ops->stream_destroy(s);
    close_all();
}

/* ---- virtual memory management ---- */

static uint64_t left(void) {
    uint64_t free_bytes, total;
    CHECK_INT(ops->memory_info(ctx, &free_bytes, &total), 0);
    return free_bytes;
}

static struct gv_physical *physical(uint64_t size) {
    struct gv_physical *p;
    CHECK_INT(ops->physical_create(ctx, size, &p), 0);
    return p;
}

/* What the device sees there is `first`, `first` + 1... */
static void expect_numbers(struct gv_stream *s, uint64_t at, uint64_t n, uint32_t first) {
    uint32_t *out = calloc(n, 4);
    CHECK_INT(to_host(s, out, at, n * 4), 0);
    CHECK_INT(sync_stream(s), 0);
    for (uint64_t i = 0; i < n; i++) CHECK_INT(out[i], first + i);
    free(out);
}

static void put_numbers(struct gv_stream *s, uint64_t at, uint64_t n, uint32_t first) {
    uint32_t *in = calloc(n, 4);
    for (uint64_t i = 0; i < n; i++) in[i] = first + (uint32_t)i;
    CHECK_INT(to_device(s, at, in, n * 4), 0);
    CHECK_INT(sync_stream(s), 0);
    free(in);
}

/* With and without a window; what is mapped lies somewhere in [at, at + 16 chunks). */
static void use_mappings(uint64_t at, bool windowed) {
    struct gv_stream *s = stream(1);
    uint64_t before = left(), n = CHUNK / 4;
    struct gv_physical *a = physical(CHUNK), *b = physical(2 * CHUNK), *none;
    CHECK_INT(left(), before - 3 * CHUNK);
    CHECK_INT(ops->physical_create(ctx, before, &none), 2);
    CHECK_INT(ops->physical_create(ctx, CHUNK + MIB, &none), 1);
    CHECK_INT(ops->physical_create(ctx, 0, &none), 1);

    /* Side by side, used as one. */
    CHECK_INT(ops->memory_map(a, at, CHUNK), 0);
    CHECK_INT(ops->memory_map(b, at + CHUNK, 2 * CHUNK), 0);
    CHECK_INT(ops->memory_map(a, at + 2 * CHUNK, CHUNK), 1); /* something is there */
    CHECK_INT(ops->memory_map(a, at + 4 * CHUNK, 2 * CHUNK), 1);
    CHECK_INT(ops->memory_map(a, at + MIB, CHUNK), 1);
    CHECK_INT(ops->memory_map(a, 0x7000000000ull, CHUNK), 1); /* nobody's addresses */
    CHECK_INT(ops->physical_destroy(a), 1);
    CHECK_INT(ops->memory_access(backend, at, 3 * CHUNK, 0, 2), 1);
    CHECK_INT(ops->memory_access(backend, at, 3 * CHUNK, 1, 3), 1);
    CHECK_INT(ops->memory_access(backend, at, 2 * CHUNK, 0, 3), 1);
    CHECK_INT(ops->memory_access(backend, at, 4 * CHUNK, 0, 3), 1);
    CHECK_INT(ops->memory_access(backend, at, 3 * CHUNK, 0, 3), 0);
    /* Whoever looks at it from outside of a stream has it until he is done, and may write: so none of what may only be read is given. */
    bool viewed = ops->host_view(backend, at, 3 * CHUNK) != NULL;
    CHECK(viewed || !windowed);
    if (viewed) {
        CHECK_INT(ops->memory_unmap(backend, at, 3 * CHUNK), 1);
        CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 1), 1);
        CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 0), 1);
        ops->host_view_end(backend, at, 3 * CHUNK);
    }
    CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 1), 0);
    CHECK(!ops->host_view(backend, at, 3 * CHUNK));
    CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 3), 0);
    put_numbers(s, at, 3 * n, 1);
    struct gv_module *m = module();
    struct scale_params p = {(uint32_t *)(uintptr_t)(at + CHUNK - 64), 3, 32};
    CHECK_INT(launch(s, m, SCALE, 1, 32, &p, sizeof p), 0);
    CHECK_INT(sync_stream(s), 0);
    for (uint32_t i = 0; i < 32; i++) CHECK_INT(p.data[i], 3 * (n - 16 + i + 1));
    put_numbers(s, at, 3 * n, 1);

    /* What is written stays in the memory, wherever that is. */
    CHECK_INT(ops->memory_unmap(backend, at, 2 * CHUNK), 1);
    CHECK_INT(ops->memory_unmap(backend, at, 4 * CHUNK), 1);
    CHECK_INT(ops->memory_unmap(backend, at + 3 * CHUNK, CHUNK), 1);
    CHECK_INT(ops->memory_unmap(backend, at, 3 * CHUNK), 0);
    CHECK(left() <= before - 3 * CHUNK);
    CHECK_INT(ops->memory_map(b, at + 4 * CHUNK, 2 * CHUNK), 0);
    CHECK_INT(ops->memory_access(backend, at + 4 * CHUNK, 2 * CHUNK, 0, 1), 0);
    expect_numbers(s, at + 4 * CHUNK, 2 * n, 1 + (uint32_t)n);
    /* Twice. The second time it is written, seen the first time; both ways. */
    CHECK_INT(ops->memory_map(b, at + 8 * CHUNK, 2 * CHUNK), 0);
    CHECK_INT(ops->memory_access(backend, at + 8 * CHUNK, 2 * CHUNK, 0, 3), 0);
    expect_numbers(s, at + 8 * CHUNK, 2 * n, 1 + (uint32_t)n);
    put_numbers(s, at + 8 * CHUNK, 2 * n, 77);
    expect_numbers(s, at + 4 * CHUNK, 2 * n, 77);
    CHECK_INT(ops->memory_access(backend, at + 4 * CHUNK, 2 * CHUNK, 0, 3), 0);
    put_numbers(s, at + 4 * CHUNK, 2 * n, 99);
    expect_numbers(s, at + 8 * CHUNK, 2 * n, 99);
    CHECK_INT(ops->memory_unmap(backend, at + 4 * CHUNK, 2 * CHUNK), 0);
    expect_numbers(s, at + 8 * CHUNK, 2 * n, 99);
    CHECK_INT(ops->memory_unmap(backend, at + 8 * CHUNK, 2 * CHUNK), 0);
    /* A part of one that is parked; of a fresh one. */
    CHECK_INT(ops->memory_map(b, at, CHUNK), 0);
    CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 3), 0);
    expect_numbers(s, at, n, 99);
    struct gv_physical *fresh = physical(4 * CHUNK);
    CHECK_INT(ops->memory_map(fresh, at + 12 * CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_access(backend, at + 12 * CHUNK, CHUNK, 0, 3), 0);
    put_numbers(s, at + 12 * CHUNK, n, 5);
    expect_numbers(s, at, n, 99);
    CHECK_INT(ops->memory_unmap(backend, at + 12 * CHUNK, CHUNK), 0);
    CHECK_INT(ops->physical_destroy(fresh), 0);
    CHECK_INT(ops->memory_unmap(backend, at, CHUNK), 0);
    CHECK_INT(ops->physical_destroy(a), 0);
    CHECK_INT(ops->physical_destroy(b), 0);
    ops->module_unload(m);
    CHECK_INT(left(), before);
    ops->stream_destroy(s);
}

/* A launch, copies and a fill where nothing may be used, or less than they do; each in a context of its own. */
static void use_what_may_not_be_used(uint64_t at) {
    static char buffer[64];
    struct gv_context *mine = ctx;
    for (int i = 0; i < 5; i++) {
        ctx = context(0);
        struct gv_stream *s = stream(1);
        struct gv_module *m = module();
        struct gv_physical *p = physical(CHUNK);
        struct scale_params params = {(uint32_t *)(uintptr_t)at, 3, 32};
        if (i) CHECK_INT(ops->memory_map(p, at, CHUNK), 0);
        if (i == 2 || i == 3) CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 1), 0);
        if (i == 4) {
            CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 3), 0);
            CHECK_INT(launch(s, m, SCALE, 1, 32, &params, sizeof params), 0);
            CHECK_INT(sync_stream(s), 0);
            CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 0), 0);
        }
        if (i == 3)
            CHECK_INT(to_device(s, at, buffer, sizeof buffer), 0);
        else
            CHECK_INT(launch(s, m, SCALE, 1, 32, &params, sizeof params), 0);
        CHECK_INT(sync_stream(s), 700);
        CHECK(strstr(ops->error_text(ctx), "illegal address"));
        if (i) CHECK_INT(ops->memory_unmap(backend, at, CHUNK), 0);
        CHECK_INT(ops->physical_destroy(p), 0);
        ops->module_unload(m);
        ops->stream_destroy(s);
        ops->context_destroy(ctx);
    }
    ctx = mine;
}

static void test_virtual_memory(void) {
    open_plain();
    uint64_t at = mem + 64 * CHUNK;
    use_mappings(at, true);
    use_what_may_not_be_used(at);
    /* The two kinds of memory keep out of each other's way. */
    struct gv_physical *p = physical(CHUNK);
    CHECK_INT(ops->memory_map(p, mem, CHUNK), 1);
    CHECK_INT(ops->memory_map(p, at, CHUNK), 0);
    CHECK_INT(ops->memory_back(ctx, at, CHUNK), 1);
    CHECK_INT(ops->memory_access(backend, at, CHUNK, 0, 3), 0);
    CHECK_INT(ops->memory_unback(ctx, at, CHUNK), 1);
    CHECK_INT(ops->memory_unmap(backend, mem, CHUNK), 1);
    uint64_t address;
    CHECK_INT(ops->address_reserve(backend, CHUNK, 0, &address), 801);
    CHECK_INT(ops->address_free(backend, at, CHUNK), 1);
    /* What is left ends with the session: mapped, mapped twice, parked. */
    CHECK_INT(ops->memory_map(p, at + CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_map(physical(CHUNK), at + 2 * CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_map(physical(CHUNK), at + 3 * CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_access(backend, at + 3 * CHUNK, CHUNK, 0, 3), 0);
    CHECK_INT(ops->memory_unmap(backend, at + 3 * CHUNK, CHUNK), 0);
    close_all();

    struct gv_backend_config c = config(1);
    c.strict = 1;
    open_with(&c);
    CHECK_INT(ops->address_reserve(backend, 16 * CHUNK, 8 * CHUNK, &at), 0);
    CHECK_INT(at % (8 * CHUNK), 0);
    CHECK_INT(ops->address_reserve(backend, MIB, 0, &address), 1);
    CHECK_INT(ops->address_reserve(backend, CHUNK, 3 * CHUNK, &address), 1);
    CHECK_INT(ops->address_reserve(backend, 1ull << 60, 0, &address), 2);
    use_mappings(at, false);
    p = physical(CHUNK);
    CHECK_INT(ops->memory_map(p, at + 15 * CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_map(p, at + 16 * CHUNK, CHUNK), 1);
    CHECK_INT(ops->address_free(backend, at, 16 * CHUNK), 1);
    CHECK_INT(ops->memory_unmap(backend, at + 15 * CHUNK, CHUNK), 0);
    CHECK_INT(ops->address_free(backend, at, CHUNK), 1);
    CHECK_INT(ops->address_free(backend, at, 16 * CHUNK), 0);
    CHECK_INT(ops->address_reserve(backend, CHUNK, 0, &address), 0);
    close_all();
}

/* One thread maps, moves and shares memory while kernels and copies run in other memory beside it. */
static void test_mapping_while_busy(void) {
    open_plain();
    uint64_t at = mem + 64 * CHUNK;
    struct gv_physical *still = physical(CHUNK), *moving = physical(CHUNK);
    CHECK_INT(ops->memory_map(still, at + CHUNK, CHUNK), 0);
    CHECK_INT(ops->memory_access(backend, at + CHUNK, CHUNK, 0, 3), 0);
    struct gv_stream *s = stream(1), *own = stream(1);
    struct gv_module *m = module();
    static uint32_t ones[1024], out[1024];
    for (int i = 0; i < 1024; i++) ones[i] = 1;
    CHECK_INT(to_device(s, at + CHUNK, ones, sizeof ones), 0);
    struct scale_params p = {(uint32_t *)(uintptr_t)(at + CHUNK), 3, 1024};
    uint32_t expected = 1;
    for (uint32_t round = 0; round < 60; round++) {
        CHECK_INT(launch(s, m, SCALE, 32, 32, &p, sizeof p), 0);
        expected *= 3;
        uint64_t to = at + (round & 1 ? 0 : 2 * CHUNK);
        CHECK_INT(ops->memory_map(moving, to, CHUNK), 0);
        CHECK_INT(ops->memory_access(backend, to, CHUNK, 0, 3), 0);
        if (round) expect_numbers(own, to, 1000, round - 1);
        put_numbers(own, to, 1000, round);
        if (round == 40) { /* from here on in the file */
            CHECK_INT(ops->memory_map(moving, at + 3 * CHUNK, CHUNK), 0);
            CHECK_INT(ops->memory_unmap(backend, at + 3 * CHUNK, CHUNK), 0);
        }
        CHECK_INT(ops->memory_unmap(backend, to, CHUNK), 0);
    }
    CHECK_INT(to_host(s, out, at + CHUNK, sizeof out), 0);
    CHECK_INT(sync_stream(s), 0);
    for (int i = 0; i < 1024; i++) CHECK_INT(out[i], expected);
    ops->module_unload(m);
    ops->stream_destroy(s);
    ops->stream_destroy(own);
    close_all();
}

static void measure(void) {
    open_plain();
    struct gv_stream *s = stream(1);
    struct gv_module *m = module();
    struct scale_params p = {(uint32_t *)(uintptr_t)mem, 1, 32};
    struct timespec t0, t1, t2, t3;
    CHECK_INT(launch(s, m, SCALE, 1, 32, &p, sizeof p), 0);
    CHECK_INT(sync_stream(s), 0);
    clock_gettime(CLOCK_MONOTONIC, &t0);
    for (int i = 0; i < 20000; i++) CHECK_INT(launch(s, m, SCALE, 1, 32, &p, sizeof p), 0);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    CHECK_INT(sync_stream(s), 0);
    clock_gettime(CLOCK_MONOTONIC, &t2);
    for (int i = 0; i < 1000; i++) CHECK_INT(sync_stream(s), 0);
    clock_gettime(CLOCK_MONOTONIC, &t3);
#define US(a, b) (((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) * 1e-3)
    printf("queueing a launch %.2f us, queued and run %.2f us, mark and wake-up %.2f us\n", US(t0, t1) / 20000, US(t0, t2) / 20000,
           US(t2, t3) / 1000);
    ops->module_unload(m);
    ops->stream_destroy(s);
    close_all();
}

static const struct {
    const char *name;
    void (*fn)(void);
} tests[] = {
    {"devices", test_devices},
    {"memory_limits", test_memory_limits},
    {"copies", test_copies},
    {"illegal_copies", test_illegal_copies},
    {"launch", test_launch},
    {"compile_error", test_compile_error},
    {"modules", test_modules},
    {"legacy_stream", test_legacy_stream},
    {"events", test_events},
    {"concurrency", test_concurrency},
    {"many_threads", test_many_threads},
    {"link_counts", test_link_counts},
    {"memory_operations", test_memory_operations},
    {"strict", test_strict},
    {"memory_usage", test_memory_usage},
    {"destroyed_context", test_destroyed_context},
    {"virtual_memory", test_virtual_memory},
    {"mapping_while_busy", test_mapping_while_busy},
    {"measure", measure},
    {"close_while_busy", test_close_while_busy},
};

int main(int argc, char **argv) {
    int ran = 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (argc < 2 || !strcmp(argv[1], tests[i].name)) {
            tests[i].fn();
            ran++;
        }
    CHECK(ran);
    puts("ok");
    return 0;
}
