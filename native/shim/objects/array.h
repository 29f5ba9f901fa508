/* CUDA arrays, for what copies them (memory/array_copy.c) and reads them (texture.c). */
#ifndef SHIM_ARRAY_H
#define SHIM_ARRAY_H

#include "objects/objects.h"

#define ARRAY_LEVELS 18u /* of the widest mipmapped array that there can be */

/* An array, a mipmapped array, or a level of one. */
struct shim_array {
    struct object object;
    struct shim_context *context;
    uint32_t ctx;
    CUDA_ARRAY3D_DESCRIPTOR shape; /* as the program gave it */
    unsigned levels;               /* of a mipmapped array; 0: an array */
    bool is_level;                 /* it ends with its mipmapped array */
    struct shim_array **of_level;  /* of a mipmapped array: those that were asked for, under the lock of array.c */
};

/* The live array behind a handle, of a context that lives. A mipmapped array is none. 0 or a CUresult. */
int array_find(CUarray handle, struct shim_array **out);
int array_find_levels(CUmipmappedArray handle, struct shim_array **out);
/* Bytes of a texel; of a component, 0 for a format that is not supported. */
unsigned array_texel(const struct shim_array *a);
unsigned array_format_size(CUarray_format format);
/* Rows, and slices or layers, of an array: at least 1. */
uint64_t array_rows(const struct shim_array *a);
uint64_t array_slices(const struct shim_array *a);

#endif
