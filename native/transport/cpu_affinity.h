/* Where threads run. A wake-up often puts the woken thread on the core of the one who woke it, also when another core is idle; two that wait for each
 * other by polling then take turns of some 2 us each, or, where neither gives way, of a whole time slice. */
#ifndef GV_CPU_AFFINITY_H
#define GV_CPU_AFFINITY_H

#include <stdint.h>

/* Moves the calling thread to another of the cores that it may run on, if there is one; what it may run on stays as it was. Does nothing when *last,
 * the time of this thread's last move (0: never), is less than a millisecond ago, for a move costs some 10 us. `here` is the core to leave, from 0. */
void gv_leave_core(int here, int64_t *last);

#endif
