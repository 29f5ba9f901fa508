/* What image.c and park.c share: which memory a session has, and how its pages lie in a stream. */
#ifndef SOFT_IMAGE_H
#define SOFT_IMAGE_H

#include "physical.h"
#include "soft.h"

#define RUN_PAGES 64u /* of pages that are not zeros, the most in one run */

/* In front of a run of pages: where it belongs; then the number of the physical memory, the address or position, how many pages. */
enum { RUN_END, RUN_ADDRESS, RUN_PHYSICAL };

/* Calls fn for each range that the client had backed on a device and that is no mapping. memory.lock held. */
void soft_backed_ranges(struct gv_backend *b, uint32_t device, void (*fn)(void *arg, uint64_t address, uint64_t size), void *arg);
/* Gives each physical memory its number in the image. Returns how many there are. memory.lock held, or no stream runs. */
uint32_t soft_number_physicals(struct gv_backend *b);
/* The rights that the pages of one have just now that is not SHARED. memory.lock held, or no stream runs. */
int soft_physical_protection(const struct soft_memory *m, const struct gv_physical *p);

#endif
