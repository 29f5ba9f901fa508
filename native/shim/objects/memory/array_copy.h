/* Copies of which a side may be an array, for the driver's calls. */
#ifndef SHIM_ARRAY_COPY_H
#define SHIM_ARRAY_COPY_H

#include "objects/memory/copy.h"

/* As copy_box. */
int array_copy_box(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait);

#endif
