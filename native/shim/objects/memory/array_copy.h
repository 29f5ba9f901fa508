/* Copies of which at least one side is an array, for copy.c. */
#ifndef SHIM_ARRAY_COPY_H
#define SHIM_ARRAY_COPY_H

#include "objects/array.h"
#include "objects/memory/copy.h"

/* Whether a box lies in its array and begins and ends with texels: 0 or CUDA_ERROR_INVALID_VALUE. */
int array_copy_check(const struct copy_side *side, const struct copy_box *box);
/* Neither side is host memory, and both have been checked. */
int array_copy_device(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait);
/* One side is host memory. */
int array_copy_host(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait);

#endif
