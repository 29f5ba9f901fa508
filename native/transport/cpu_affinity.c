#define _GNU_SOURCE
#include "cpu_affinity.h"

#include <sched.h>

#include "futex.h"

#define MOVE_EVERY_NS 1000000

void gv_leave_core(int here, int64_t *last) {
    int64_t now = gv_now_ns();
    if (here < 0 || (*last && now - *last < MOVE_EVERY_NS)) return;
    *last = now;
    cpu_set_t before, others;
    if (here >= CPU_SETSIZE || sched_getaffinity(0, sizeof before, &before) != 0) return;
    others = before;
    CPU_CLR((unsigned)here, &others);
    /* The kernel moves a thread at once when its core is no longer allowed, and leaves it where it is when that core is allowed again. */
    if (CPU_COUNT(&others) && sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof before, &before);
}
