/* What a driver call costs its caller, through whatever libcuda.so.1 the process finds. Prints one JSON object: microseconds, and GB/s for copies.
 *
 *   launch_burst             cuLaunchKernel with 8 parameters, bursts of 256 (below the ring's size), the device drained between bursts
 *   launch_sustained         the same, 20,000 in a row, the final synchronise included
 *   record_burst             cuEventRecord, bursts of 256
 *   isolated, isolated_p90   cuEventRecord alone, 200 us of the program's own work before each: median and 90th percentile
 *   isolated_idle            the same, 10 ms of sleep before each
 *   wait_awake               cuEventElapsedTime of two recorded events, one answer each, calls one after the other
 *   wait_idle                the same, 10 ms of sleep before each
 *   sync                     cuEventRecord and cuStreamSynchronize: what an empty stream takes to answer
 *   h2d, d2h                 cuMemcpyHtoD with a synchronise behind it, cuMemcpyDtoH: malloc'ed memory
 *   h2d_pinned, d2h_pinned   the same with memory of cuMemAllocHost
 *   memcpy                   the same bytes from one such buffer to another within this process
 *
 * With -DTINY it only shows that it works. Build: cc -O2 tests/bench/calls.c -ldl -o calls */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char ptx[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                          ".visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 d,\n"
                          "  .param .u32 e, .param .f32 f, .param .f32 g, .param .u32 h)\n{\n ret;\n}\n";

#ifdef TINY
#define ROUNDS 3
#define SUSTAINED 500
#define COPY_SIZE (1u << 20)
#else
#define ROUNDS 41
#define SUSTAINED 20000
#define COPY_SIZE (64u << 20)
#endif
#define BURST 256
#define REPEATS 5
#define WAITS 25  /* calls one after the other */
#define SKIPPED 5 /* of them, while the worker wakes up */
#define COPIES 5

static void *library, *stream, *function, *first, *second;
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*record)(void *, void *);
static int (*sync_stream)(void *);
static int (*sync_context)(void);
static int (*elapsed)(float *, void *, void *);
static int (*copy_in)(uint64_t, const void *, size_t);
static int (*copy_out)(void *, uint64_t, size_t);

static void must(int result, const char *what) {
    if (!result) return;
    fprintf(stderr, "%s: error %d\n", what, result);
    exit(1);
}

static void find(void *into, const char *name) {
    void *found = dlsym(library, name);
    must(!found, name);
    memcpy(into, &found, sizeof found);
}

#define CALL(name, ...)              \
    do {                             \
        int (*f)();                  \
        find(&f, #name);             \
        must(f(__VA_ARGS__), #name); \
    } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare);
    return values[n / 2];
}

static void put(const char *name, double value) {
    static int n;
    printf("%s\"%s\": %.3f", n++ ? ", " : "{", name, value);
}

static void launches(int n) {
    static uint64_t a = 1, b = 2, c = 3;
    static uint32_t d = 4, e = 5, h = 8;
    static float f = 6, g = 7;
    void *params[8] = {&a, &b, &c, &d, &e, &f, &g, &h};
    for (int i = 0; i < n; i++) must(launch(function, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}

static void records(int n) {
    for (int i = 0; i < n; i++) must(record(first, stream), "cuEventRecord");
}

static void synchronise(void) { must(sync_stream(stream), "cuStreamSynchronize"); }

/* ---- calls that are not awaited */

static void bursts(const char *name, void (*calls)(int)) {
    double times[ROUNDS];
    for (int round = -2; round < ROUNDS; round++) {
        double t = now();
        calls(BURST);
        t = now() - t;
        synchronise();
        if (round >= 0) times[round] = t / BURST;
    }
    put(name, median(times, ROUNDS));
}

static void sustained(void) {
    double times[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        double t = now();
        launches(SUSTAINED);
        synchronise();
        times[i] = (now() - t) / SUSTAINED;
    }
    put("launch_sustained", median(times, REPEATS));
}

static void isolated(void) {
    double times[ROUNDS * 20];
    int n = ROUNDS * 20;
    for (int i = 0; i < n; i++) {
        for (double until = now() + 200; now() < until;) {
        }
        double t = now();
        records(1);
        times[i] = now() - t;
    }
    put("isolated", median(times, n));
    put("isolated_p90", times[n * 9 / 10]);
    for (int i = 0; i < ROUNDS; i++) {
        usleep(10000);
        double t = now();
        records(1);
        times[i] = now() - t;
    }
    put("isolated_idle", median(times, ROUNDS));
    synchronise();
}

/* ---- calls that are */

static double one_wait(void) {
    float ms;
    double t = now();
    must(elapsed(&ms, first, second), "cuEventElapsedTime");
    return now() - t;
}

static void waits(void) {
    double times[ROUNDS * WAITS];
    int n = 0;
    must(record(first, stream) || record(second, stream), "cuEventRecord");
    synchronise();
    for (int round = 0; round < ROUNDS; round++) {
        usleep(1000);
        for (int i = 0; i < WAITS; i++) {
            double t = one_wait();
            if (i >= SKIPPED) times[n++] = t;
        }
    }
    put("wait_awake", median(times, n));
    for (n = 0; n < ROUNDS; n++) {
        usleep(10000);
        times[n] = one_wait();
    }
    put("wait_idle", median(times, n));
    for (n = 0; n < ROUNDS * WAITS; n++) {
        double t = now();
        records(1);
        synchronise();
        times[n] = now() - t;
    }
    put("sync", median(times, n));
}

/* ---- copies */

static void copies(const char *in, const char *out, void *memory, uint64_t device) {
    double to[COPIES], from[COPIES];
    for (int i = -1; i < COPIES; i++) {
        double start = now();
        must(copy_in(device, memory, COPY_SIZE), "cuMemcpyHtoD");
        must(sync_context(), "cuCtxSynchronize");
        double half = now();
        must(copy_out(memory, device, COPY_SIZE), "cuMemcpyDtoH");
        double end = now();
        if (i < 0) continue;
        to[i] = COPY_SIZE / (half - start) / 1e3;
        from[i] = COPY_SIZE / (end - half) / 1e3;
    }
    put(in, median(to, COPIES));
    put(out, median(from, COPIES));
}

static void bulk(void) {
    uint64_t device;
    void *pinned, *pageable = malloc(COPY_SIZE), *other = malloc(COPY_SIZE);
    must(!pageable || !other, "malloc");
    memset(pageable, 1, COPY_SIZE);
    memset(other, 2, COPY_SIZE);
    CALL(cuMemAlloc_v2, &device, (size_t)COPY_SIZE);
    CALL(cuMemAllocHost_v2, &pinned, (size_t)COPY_SIZE);
    memset(pinned, 3, COPY_SIZE);
    copies("h2d", "d2h", pageable, device);
    copies("h2d_pinned", "d2h_pinned", pinned, device);
    double times[COPIES];
    for (int i = 0; i < COPIES; i++) {
        double t = now();
        memcpy(other, pageable, COPY_SIZE);
        __asm__ volatile("" ::"r"(other) : "memory");
        times[i] = COPY_SIZE / (now() - t) / 1e3;
    }
    put("memcpy", median(times, COPIES));
    free(pageable);
    free(other);
}

int main(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    void *context, *module;
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, ptx);
    CALL(cuModuleGetFunction, &function, module, "nothing");
    CALL(cuStreamCreate, &stream, 1u);
    CALL(cuEventCreate, &first, 0u);
    CALL(cuEventCreate, &second, 0u);
    find(&launch, "cuLaunchKernel");
    find(&record, "cuEventRecord");
    find(&sync_stream, "cuStreamSynchronize");
    find(&sync_context, "cuCtxSynchronize");
    find(&elapsed, "cuEventElapsedTime");
    find(&copy_in, "cuMemcpyHtoD_v2");
    find(&copy_out, "cuMemcpyDtoH_v2");
    bursts("launch_burst", launches);
    sustained();
    bursts("record_burst", records);
    isolated();
    waits();
    bulk();
    printf("}\n");
    return 0;
}
