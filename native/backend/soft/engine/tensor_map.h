/* The software GPU's own form of a tensor map, in the 128 bytes of a CUtensorMap. */
#ifndef SOFT_TENSOR_MAP_H
#define SOFT_TENSOR_MAP_H

#include <stdint.h>

#define SOFT_TENSOR_MAGIC 0x50614d54 /* "TMaP" */

/* Types of elements, numbered as CUtensorMapDataType is. */
enum { SOFT_TENSOR_F16 = 6, SOFT_TENSOR_BF16 = 9, SOFT_TENSOR_F32_FTZ = 10, SOFT_TENSOR_TF32 = 11, SOFT_TENSOR_TF32_FTZ = 12 };

struct soft_tensor_map {
    uint32_t magic;
    uint8_t type, rank, swizzle,
        fill; /* swizzle: 0, 1 to 3 for 32, 64 and 128 bytes, or 4 for 128 in pieces of 32; fill: 1 puts NaNs where the tensor has no elements */
    uint64_t address;
    uint32_t last[5]; /* the last index of each dimension */
    uint16_t box[5];
    uint8_t step[5];    /* of the elements taken, in the tensor */
    uint8_t im2col;     /* 1: columns of pixels, not boxes */
    uint64_t stride[4]; /* bytes from one index to the next, of the dimensions after the first */
    /* im2col: channels of a pixel, pixels of a column; pixels lie from `lower` on to the dimension's end and `upper` */
    uint16_t channels, pixels;
    int16_t lower[3], upper[3];
    uint64_t rest[3];
};

_Static_assert(sizeof(struct soft_tensor_map) == 128, "the size of a CUtensorMap");

/* Makes a map with the arguments of cuTensorMapEncodeTiled; -1: they do not make sense, or ask for what is missing here (interleaving, the finer swizzles). */
__attribute__((visibility("default"))) int soft_tensor_map_tiled(struct soft_tensor_map *map, uint32_t type, uint32_t rank, uint64_t address,
                                                                 const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                                                 const uint32_t *steps, uint32_t interleave, uint32_t swizzle, uint32_t fill);

/* What makes a map one of cuTensorMapEncodeIm2col. */
struct soft_pixels {
    uint32_t channels, count;
    int32_t lower[3], upper[3];
};
/* The same with the arguments of that function. */
__attribute__((visibility("default"))) int soft_tensor_map_im2col(struct soft_tensor_map *map, uint32_t type, uint32_t rank, uint64_t address,
                                                                  const uint64_t *dims, const uint64_t *strides, const struct soft_pixels *pixels,
                                                                  const uint32_t *steps, uint32_t interleave, uint32_t swizzle, uint32_t fill);

#endif
