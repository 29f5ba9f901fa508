/* The software GPU through backend.h, with C functions for compiled kernels. Runs one named test, or all. */
#define _GNU_SOURCE
#include <time.h>
#include <unistd.h>

#include "backend_fixture.h"
#include "limits.h"

static void test_devices(void) {
    static const uint32_t devices[] = {3, 1};
    struct gv_backend_config c = config(2);
    c.devices = devices;
    c.memory = 10 * MIB;
    open_with(&c);
    struct gv_device_info a, b, again;
    CHECK_INT(ops->driver_version(backend), 13040);
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

/* Asked for where a launch is behind others and its code is not there: once for each block shape in a row, and not by launches that run at once. */
static void test_precompile(void) {
    open_plain();
    struct gv_stream *s = stream(CU_STREAM_NON_BLOCKING);
    struct gv_module *m = module();
    struct scale_params p = {(uint32_t *)(uintptr_t)mem, 1, 0};
    uint32_t before = compiler.asked;
    CHECK_INT(launch(s, m, SCALE, 1, 32, &p, sizeof p), 0);
    CHECK_INT(sync_stream(s), 0);
    CHECK_INT(compiler.asked, before);
    struct door d = {0};
    CHECK_INT(ops->gate(s, stand, &d), 0);
    CHECK_INT(launch(s, m, SCALE, 1, 32, &p, sizeof p), 0); /* has been compiled */
    CHECK_INT(compiler.asked, before);
    CHECK_INT(launch(s, m, MEETS, 0, 32, NULL, 0), 1); /* is none */
    CHECK_INT(compiler.asked, before);
    for (int i = 0; i < 3; i++) CHECK_INT(launch(s, m, SCALE, 1, 64, &p, sizeof p), 0);
    CHECK(compiler.asked == before + 1 && compiler.asked_kernel == SCALE && compiler.asked_threads == 64);
    struct gv_launch l = {.module = m, .kernel = SCALE, .grid = {1, 1, 1}, .block = {1, 64, 1}, .params = &p, .params_size = sizeof p};
    CHECK_INT(ops->launch(s, &l), 0); /* as many threads, in another shape */
    CHECK(compiler.asked == before + 2 && compiler.asked_kernel == SCALE && compiler.asked_threads == 64);
    CHECK_INT(launch(s, m, SHARES, 1, 64, NULL, 0), 0);
    CHECK(compiler.asked == before + 3 && compiler.asked_kernel == SHARES && compiler.asked_threads == 64);
    open_door(&d);
    CHECK_INT(sync_stream(s), 0);
    struct door e = {0};
    CHECK_INT(ops->gate(s, stand, &e), 0);
    CHECK_INT(launch(s, m, SCALE, 1, 64, &p, sizeof p), 0);
    CHECK_INT(launch(s, m, SHARES, 1, 64, NULL, 0), 0);
    CHECK_INT(compiler.asked, before + 3);
    table.kernel_precompile = NULL;
    CHECK_INT(launch(s, m, SCALE, 1, 96, &p, sizeof p), 0);
    open_door(&e);
    CHECK_INT(sync_stream(s), 0);
    CHECK_INT(compiler.asked, before + 3);
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
    {"precompile", test_precompile},
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
