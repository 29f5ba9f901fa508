/* The time of a call at C's speed, for probe.py, which builds this as a library and hands it the driver's functions. */
#include <stdint.h>
#include <time.h>

typedef uint64_t u64;
typedef int function(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64);

static double now(void) { /* microseconds */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Calls f with eleven words, of which it takes as many as it has parameters: the microseconds it took, and its result. */
double timed(function *f, const u64 *a, int *result) {
    double begin = now();
    *result = f(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
    return now() - begin;
}
