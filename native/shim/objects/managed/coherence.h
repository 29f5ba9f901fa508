/* What keeps the two copies of managed memory coherent, beside what managed.h has for other files. */
#ifndef SHIM_COHERENCE_H
#define SHIM_COHERENCE_H

#include "objects/managed/region.h"

/* For the pager. */
extern const struct page_watch coherence_watch;
/* The host begins to use [address, address + size) of a region, as far as it lies there; region_lock held. 0 or a CUresult. */
int coherence_add(struct region *r, uint64_t address, uint64_t size);
/* Queues copies of stale blocks of [address, address + size) to the host behind what is on the stream; a touch then waits for them. Without effect where nothing is stale. 0 or a CUresult. */
int coherence_prefetch(struct shim_stream *s, uint64_t address, uint64_t size);

#endif
