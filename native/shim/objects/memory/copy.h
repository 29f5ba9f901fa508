/* All copies and fills; copy_calls.c translates the driver's calls to these two functions. */
#ifndef SHIM_COPY_H
#define SHIM_COPY_H

#include "objects/memory/copy_side.h"

/* Finds where a side lies that is no array, and whether the box is in one allocation there that may be used so. */
int copy_check(struct shim_stream *s, struct copy_side *side, const struct copy_box *box, bool written);
/* Queues a copy on a stream; neither side is an array (array_copy.h). `wait`: a synchronous call, which returns when host memory has been read or written. 0 or a CUresult; CUDA_ERROR_INVALID_VALUE outside of
 * an allocation. */
int copy_box(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait);
/* Queues a fill with elements of `element` bytes (1, 2 or 4); width is in elements, pitch in bytes. `wait`: a synchronous call, which returns when managed memory has been filled. */
int copy_fill(struct shim_stream *s, uint64_t dst, uint64_t pitch, unsigned element, uint32_t value, uint64_t width, uint64_t height, bool wait);
/* A command that reads or writes a device side is about to be posted: managed memory there is made ready (managed/). 0 or a CUresult. */
int copy_managed(struct shim_stream *s, const struct copy_side *side, const struct copy_box *box, bool written);

/* Ends a synchronous call that has written to an address: managed memory may be read by the host next. 0 or a CUresult. */
int copy_settle(struct shim_stream *s, uint64_t address);

#endif
