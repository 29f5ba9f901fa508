// Tensor maps: opaque descriptors, of which the program knows the size and that they differ.
#include "conformance.h"
#include <utility>

CASE(tiled, "cuTensorMapEncodeTiled") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= 9);
    CUdeviceptr memory = allocate(64 * 64 * 4);
    alignas(64) CUtensorMap small = garbage<CUtensorMap>(), again, large = garbage<CUtensorMap>();
    std::memset(&again, 0x3c, sizeof again);
    const cuuint64_t sizes[] = {64, 64}, pitches[] = {256};
    const cuuint32_t small_box[] = {16, 8}, large_box[] = {32, 8}, steps[] = {1, 1}, no_box[] = {0, 8};
    auto encode = [&](CUtensorMap *map, void *address, const cuuint32_t *box) {
        return cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, address, sizes, pitches, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                      CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    void *address = reinterpret_cast<void *>(memory);
    CHECK(encode(&small, address, small_box));
    CHECK(encode(&again, address, small_box));
    CHECK(encode(&large, address, large_box));
    EXPECT(std::memcmp(&small, &again, sizeof small) == 0 && std::memcmp(&small, &large, sizeof small) != 0);
    REFUSED(encode(nullptr, address, small_box), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTensorMapEncodeTiled(&small, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 9, address, sizes, pitches, small_box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            CUDA_ERROR_INVALID_VALUE); // of nine dimensions
    REFUSED(encode(&small, address, no_box), CUDA_ERROR_INVALID_VALUE);
    REFUSED(encode(&small, static_cast<char *>(address) + 1, small_box), CUDA_ERROR_INVALID_VALUE); // not aligned
}

// Columns of pixels: of images of 8 x 8 pixels with 16 channels.
CASE(im2col, "cuTensorMapEncodeIm2col") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= 9);
    CUdeviceptr memory = allocate(2 * 64 * 16 * 4);
    alignas(64) CUtensorMap few = garbage<CUtensorMap>(), again, many = garbage<CUtensorMap>();
    std::memset(&again, 0x3c, sizeof again);
    const cuuint64_t sizes[] = {16, 8, 8, 2}, pitches[] = {64, 512, 4096};
    const cuuint32_t steps[] = {1, 1, 1, 1};
    const int lower[] = {-1, -1}, upper[] = {-1, -1}, far[] = {-1000, -1};
    auto encode = [&](CUtensorMap *map, void *address, cuuint32_t rank, const int *corner, cuuint32_t channels, cuuint32_t pixels) {
        return cuTensorMapEncodeIm2col(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, rank, address, sizes, pitches, corner, upper, channels, pixels, steps,
                                       CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    void *address = reinterpret_cast<void *>(memory);
    CHECK(encode(&few, address, 4, lower, 8, 16));
    CHECK(encode(&again, address, 4, lower, 8, 16));
    CHECK(encode(&many, address, 4, lower, 8, 64));
    EXPECT(std::memcmp(&few, &again, sizeof few) == 0 && std::memcmp(&few, &many, sizeof few) != 0);
    REFUSED(encode(nullptr, address, 4, lower, 8, 16), CUDA_ERROR_INVALID_VALUE);
    REFUSED(encode(&few, address, 2, lower, 8, 16), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTensorMapEncodeIm2col(&few, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, address, sizes, pitches, lower, upper, 8, 1025, steps,
                                    CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            CUDA_ERROR_INVALID_VALUE); // more pixels than a column has
    REFUSED(encode(&few, address, 4, lower, 257, 16), CUDA_ERROR_INVALID_VALUE);
    REFUSED(encode(&few, address, 4, far, 8, 16), CUDA_ERROR_INVALID_VALUE);                            // corners have few bits
    REFUSED(encode(&few, static_cast<char *>(address) + 1, 4, lower, 8, 16), CUDA_ERROR_INVALID_VALUE); // not aligned
}

// The map of a tensor at one address becomes that of the same tensor at another.
CASE(moved, "cuTensorMapReplaceAddress") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= 9);
    CUdeviceptr here = allocate(64 * 64 * 4), there = allocate(64 * 64 * 4);
    const cuuint64_t sizes[] = {64, 64}, pitches[] = {256};
    const cuuint32_t box[] = {16, 8}, steps[] = {1, 1};
    alignas(64) CUtensorMap one, other;
    for (auto [map, address] : {std::pair{&one, here}, {&other, there}})
        CHECK(cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, reinterpret_cast<void *>(address), sizes, pitches, box, steps,
                                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    EXPECT(std::memcmp(&one, &other, sizeof one) != 0);
    CHECK(cuTensorMapReplaceAddress(&one, reinterpret_cast<void *>(there)));
    EXPECT(std::memcmp(&one, &other, sizeof one) == 0);
    REFUSED(cuTensorMapReplaceAddress(&one, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTensorMapReplaceAddress(&one, reinterpret_cast<void *>(there + 1)), CUDA_ERROR_INVALID_VALUE); // not aligned
    UNCHECKED_BY_THE_DRIVER(cuTensorMapReplaceAddress(nullptr, reinterpret_cast<void *>(there)), CUDA_ERROR_INVALID_VALUE);
}
