/* What a driver call costs its caller, through whatever libcuda.so.1 the process finds. Prints one JSON object of microseconds.
 *
 *   launch_burst       cuLaunchKernel with 8 parameters, bursts of 256 (below the ring's size), the device drained between bursts
 *   launch_sustained   the same, 20,000 in a row, the final synchronise included
 *   record_burst       cuEventRecord, bursts of 256
 *   wait_idle          cuMemGetInfo-like waiting call on an idle device: cuEventElapsedTime of two recorded events, one round trip each
 *   sync_idle          cuStreamSynchronize right after one cuEventRecord: what a user waits for an empty stream to answer
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char ptx[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                          ".visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 d,\n"
                          "  .param .u32 e, .param .f32 f, .param .f32 g, .param .u32 h)\n{\n ret;\n}\n";

static void *library;

static void *find(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "no %s: %s\n", name, dlerror());
        exit(1);
    }
    return found;
}

#define CALL(name, ...)                                                              \
    do {                                                                             \
        int (*f)() = (int (*)())find(#name);                                         \
        int r = f(__VA_ARGS__);                                                      \
        if (r) {                                                                     \
            fprintf(stderr, #name ": error %d\n", r);                                \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare);
    return values[n / 2];
}

typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*record_fn)(void *, void *);
typedef int (*sync_fn)(void *);
typedef int (*elapsed_fn)(float *, void *, void *);

#define ROUNDS 41
#define BURST 256

int main(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    void *context, *module, *function, *stream, *first, *second;
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, ptx);
    CALL(cuModuleGetFunction, &function, module, "nothing");
    CALL(cuStreamCreate, &stream, 1u);
    CALL(cuEventCreate, &first, 0u);
    CALL(cuEventCreate, &second, 0u);

    launch_fn launch = (launch_fn)find("cuLaunchKernel");
    record_fn record = (record_fn)find("cuEventRecord");
    sync_fn sync = (sync_fn)find("cuStreamSynchronize");
    elapsed_fn elapsed = (elapsed_fn)find("cuEventElapsedTime");
    uint64_t a = 1, b = 2, c = 3;
    uint32_t d = 4, e = 5, h = 8;
    float f = 6, g = 7, ms;
    void *params[8] = {&a, &b, &c, &d, &e, &f, &g, &h};

    double bursts[ROUNDS], records[ROUNDS], waits[ROUNDS * 20], syncs[ROUNDS * 20], sustained[5];
    for (int round = -2; round < ROUNDS; round++) {
        double t = now();
        for (int i = 0; i < BURST; i++) {
            if (launch(function, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL)) return 1;
        }
        t = (now() - t) / BURST;
        if (sync(stream)) return 1;
        if (round >= 0) bursts[round] = t;
    }
    for (int round = -2; round < ROUNDS; round++) {
        double t = now();
        for (int i = 0; i < BURST; i++) {
            if (record(first, stream)) return 1;
        }
        t = (now() - t) / BURST;
        if (sync(stream)) return 1;
        if (round >= 0) records[round] = t;
    }
    for (int round = 0; round < 5; round++) {
        double t = now();
        for (int i = 0; i < 20000; i++) {
            if (launch(function, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL)) return 1;
        }
        if (sync(stream)) return 1;
        sustained[round] = (now() - t) / 20000;
    }
    if (record(first, stream) || record(second, stream) || sync(stream)) return 1;
    for (int i = 0; i < ROUNDS * 20; i++) {
        double t = now();
        if (elapsed(&ms, first, second)) return 1;
        waits[i] = now() - t;
    }
    for (int i = 0; i < ROUNDS * 20; i++) {
        double t = now();
        if (record(first, stream) || sync(stream)) return 1;
        syncs[i] = now() - t;
    }
    printf("{\"launch_burst\": %.3f, \"launch_sustained\": %.3f, \"record_burst\": %.3f, \"wait_idle\": %.3f, \"sync_idle\": %.3f}\n", median(bursts, ROUNDS),
           median(sustained, 5), median(records, ROUNDS), median(waits, ROUNDS * 20), median(syncs, ROUNDS * 20));
    return 0;
}
