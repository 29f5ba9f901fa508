/* Clocks in nanoseconds, and points in time for pthread_cond_timedwait. */
#ifndef GV_CLOCK_H
#define GV_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t gv_clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Time since some fixed point, the same for all processes of the host; it never goes back. */
static inline int64_t gv_now_ns(void) { return gv_clock_ns(CLOCK_MONOTONIC); }

/* `ns` from now by the clock that the condition variable was made with: CLOCK_REALTIME unless pthread_condattr_setclock said otherwise. */
static inline struct timespec gv_deadline(clockid_t clock, int64_t ns) {
    int64_t at = gv_clock_ns(clock) + ns;
    return (struct timespec){.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
}

#endif
