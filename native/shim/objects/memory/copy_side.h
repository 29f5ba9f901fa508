/* The two sides of a copy, and the box between them. */
#ifndef SHIM_COPY_SIDE_H
#define SHIM_COPY_SIDE_H

#include "objects/objects.h"

struct shim_array;

enum copy_where { COPY_HOST, COPY_DEVICE, COPY_ANYWHERE, COPY_ARRAY }; /* ANYWHERE: as the address map says */

struct copy_side {
    enum copy_where where;
    uint64_t address;      /* of the box's first byte */
    uint64_t pitch, slice; /* bytes from row to row, from slice to slice */
    struct shim_array *array;
    uint64_t at[3]; /* of an array: the byte in a row, the row, the slice or layer */
    /* Filled in by copy_box. */
    uint32_t ctx; /* device: the owner */
    struct shim_context *context;
    bool pinned; /* host: allocated or registered */
};

struct copy_box {
    uint64_t width, height, depth; /* width in bytes */
};

#endif
