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
