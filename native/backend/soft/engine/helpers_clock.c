/* What kernels read of time. */
#include "../../../wire/clock.h"
#include "exec_private.h"

#define SOFT_EXPORT __attribute__((visibility("default")))

SOFT_EXPORT uint64_t soft_globaltimer(struct soft_warp *w) {
    (void)w;
    return (uint64_t)gv_clock_ns(CLOCK_REALTIME);
}
