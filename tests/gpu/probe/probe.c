/* What calls cost at C's speed, and how soon a running kernel and a waiting stream see a host write: `probe PTX`. Prints facts as lines of JSON, each flushed.
 * Needs none of CUDA's headers: everything is looked up in libcuda.so.1 by name; what is not there answers "absent". Built and run by probe.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB ((size_t)1 << 20)
#define CU(name, ...) (((int (*)())need(#name))(__VA_ARGS__))
#define TIMED(n, call) (t0 = now(), results[n] = results[n] ? results[n] : (call), times[n][i] = now() - t0)
#define FACT(name, ...) (printf("{\"fact\": \"" name "\", " __VA_ARGS__), puts("}"), fflush(stdout))

static void *driver;
static int absent(void) { return -1; }
static void *need(const char *name) { return dlsym(driver, name) ? dlsym(driver, name) : (void *)absent; }

static const char *err(int rc) {
    const char *name = "unnamed";
    if (rc > 0) CU(cuGetErrorName, rc, &name);
    return rc ? rc == -1 ? "absent" : name : "ok";
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

int main(int argc, char **argv) {
    static const char *const steps[] = {"reserve",         "create", "map",   "set_access", "unmap",     "release",
                                        "address_free",    "alloc",  "free",  "host_alloc", "host_free", "host_register",
                                        "host_unregister", "launch", "query", "wait_word"};
    enum { N = 9, STEPS = 16 };
    const struct {
        int type, handles, where, device;
        uint64_t win32, flags;
    } prop = {1, 1, 1, 0, 0, 0};
    const struct {
        int where, device, flags;
    } access = {1, 0, 3};
    void *context = NULL, *module = NULL, *spin = NULL, *flag = NULL, *stream = NULL, *host = NULL, *own = aligned_alloc(4096, 128 * MIB);
    uint64_t buffer = 0, at = 0, plain = 0, handle = 0, seen = 0, one = 1, limit = 2000000000;
    const char *named = getenv("PROBE_DRIVER");
    if (argc < 2 || !(driver = dlopen(named ? named : "libcuda.so.1", RTLD_NOW))) return 77;
    int rc = CU(cuInit, 0), results[STEPS];
    if (!rc) rc = CU(cuDevicePrimaryCtxRetain, &context, 0), rc = rc ? rc : CU(cuCtxSetCurrent, context);
    if (!rc) rc = CU(cuModuleLoadData, &module, argv[1]), rc = rc ? rc : CU(cuModuleGetFunction, &spin, module, "spin");
    if (rc) return FACT("stopped", "\"result\": \"%s\"", err(rc)), 3;
    CU(cuModuleGetFunction, &flag, module, "flag"), CU(cuStreamCreate, &stream, 1), CU(cuMemAlloc_v2, &buffer, (size_t)4096);
    int mapped = CU(cuMemHostAlloc, &host, (size_t)4096, 2), given = mapped ? mapped : CU(cuMemHostGetDevicePointer_v2, &seen, host, 0);
    volatile uint32_t *word = host;
    void *params[] = {&buffer, &one, &one};
    memset(own, 1, 128 * MIB);
    for (size_t size = 2 * MIB; size <= 128 * MIB; size *= 64) {
        double times[STEPS][N] = {{0}}, t0;
        memset(results, 0, sizeof results);
        for (int i = 0; i < N; i++) {
            TIMED(0, CU(cuMemAddressReserve, &at, size, (size_t)0, UINT64_C(0), UINT64_C(0)));
            TIMED(1, CU(cuMemCreate, &handle, size, &prop, UINT64_C(0)));
            TIMED(2, CU(cuMemMap, at, size, (size_t)0, handle, UINT64_C(0)));
            TIMED(3, CU(cuMemSetAccess, at, size, &access, (size_t)1));
            TIMED(4, CU(cuMemUnmap, at, size));
            TIMED(5, CU(cuMemRelease, handle));
            TIMED(6, CU(cuMemAddressFree, at, size));
            TIMED(7, CU(cuMemAlloc_v2, &plain, size));
            TIMED(8, CU(cuMemFree_v2, plain));
            TIMED(9, CU(cuMemHostAlloc, &host, size, 0));
            TIMED(10, CU(cuMemFreeHost, host));
            TIMED(11, CU(cuMemHostRegister_v2, own, size, 0));
            TIMED(12, CU(cuMemHostUnregister, own));
            TIMED(13, CU(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
            CU(cuStreamSynchronize, stream);
            TIMED(14, CU(cuStreamQuery, stream));
            TIMED(15, CU(cuStreamWaitValue32_v2, stream, seen, 0, 0));
        }
        for (int n = 0; n < STEPS; n++) {
            qsort(times[n], N, sizeof(double), by_value);
            FACT("cost", "\"step\": \"%s\", \"mib\": %zu, \"us\": %.2f, \"most_us\": %.2f, \"result\": \"%s\"", steps[n], size / MIB, times[n][N / 2],
                 times[n][N - 1], err(results[n]));
        }
    }
    FACT("mapped_memory", "\"allocate\": \"%s\", \"device_pointer\": \"%s\"", err(mapped), err(given));
    if (given) return 0;
    for (int kind = 0; kind < 3; kind++) { /* a kernel that looks at a word; streams that wait for one: 32 and 64 bits */
        uint64_t answer = seen + 128;
        void *look[] = {&seen, &answer, &limit};
        memset((void *)word, 0, 4096);
        if (kind == 0)
            rc = CU(cuLaunchKernel, flag, 1, 1, 1, 1, 1, 1, 0, stream, look, NULL);
        else
            rc = kind == 1 ? CU(cuStreamWaitValue32_v2, stream, seen, 1, 0) : CU(cuStreamWaitValue64_v2, stream, seen, UINT64_C(1), 0);
        if (!rc && kind) rc = CU(cuStreamWriteValue32_v2, stream, answer, 2, 0);
        double t0 = now(), early = 0;
        while (now() < t0 + 100e3) early = early || word[32] ? 1 : 0;
        t0 = now(), *word = 1;
        while (!rc && !word[32] && now() < t0 + 4e6) {
        }
        FACT("host_write", "\"seen_by\": \"%s\", \"result\": \"%s\", \"early\": %.0f, \"answer\": %u, \"us\": %.1f",
             kind == 0   ? "a running kernel"
             : kind == 1 ? "a stream waiting for 32 bits"
                         : "a stream waiting for 64 bits",
             err(rc), early, word[32], now() - t0);
    }
    return 0;
}
