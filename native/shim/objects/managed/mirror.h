/* Mapped host memory while kernels run: what the host writes reaches a kernel that waits for it, and what a kernel writes reaches the host, without a launch or a wait between. Small ranges only: flags, semaphores,
 * queues. A third copy, of what both sides had last, tells which of them has changed a byte. */
#ifndef SHIM_MIRROR_H
#define SHIM_MIRROR_H

#include "objects/managed/region.h"

#define MIRROR_MOST (64ull << 10) /* bytes of a region */

/* How many regions are mirrored. */
extern _Atomic uint64_t mirrors;

/* Begins for a region all of whose blocks are good; region_lock held. False: out of memory. */
bool mirror_begin(struct region *r);
/* The program has touched a mirrored region; region_lock held. False: the kernel has no memory to make the page accessible. */
bool mirror_touched(struct region *r, uint64_t address, bool write);
/* Queues what the host has changed since; later calls on any stream come after it. The caller is one of the region's users. 0 or a CUresult. */
int mirror_push(struct region *r);
/* The same for all regions, before a kernel that may use them; region_lock held, and released meanwhile. */
void mirror_push_all(void);
/* Makes the two sides equal, for all regions: the program has waited for work. region_lock is not held. */
void mirror_refresh(void);
/* Ends it before the region is freed; region_lock held, and the region has no users. */
void mirror_free(struct region *r);

#endif
