/* Tensor maps: the worker is asked once for the same arguments, and again for others and after it has failed. */
#include "tensor_map_calls.h"

#include "check.h"
#include "fake_session.h"
#include "gv_impl.h"

static CUresult encode(CUtensorMap *map, uintptr_t address, uint32_t rank, uint64_t width, uint32_t box) {
    const uint64_t dims[] = {width, 8, 8}, strides[] = {width * 4, width * 32};
    const uint32_t boxes[] = {box, 4, 4}, steps[] = {1, 1, 1};
    return impl_cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, rank, (void *)address, dims, strides, boxes, steps,
                                       CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static CUresult columns(CUtensorMap *map, uint32_t rank, int lower, uint32_t channels, uint32_t pixels) {
    const uint64_t dims[] = {16, 8, 8, 2}, strides[] = {64, 512, 4096};
    const int low[] = {lower, 0}, high[] = {0, 0};
    const uint32_t steps[] = {1, 1, 1, 1};
    return impl_cuTensorMapEncodeIm2col(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, rank, (void *)4096, dims, strides, low, high, channels, pixels, steps,
                                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static void maps_of_columns(void) {
    CUtensorMap first, other;
    EQUAL(columns(&first, 4, -1, 8, 64), 0);
    EQUAL(columns(&other, 4, -1, 8, 64), 0);
    EQUAL(fake.count[GV_OP_TENSOR_MAP_IM2COL], 1);
    EQUAL(memcmp(&first, &other, sizeof first), 0);
    for (int i = 0; i < 4; i++) {
        EQUAL(columns(&other, i == 0 ? 3 : 4, i == 1 ? 0 : -1, i == 2 ? 4 : 8, i == 3 ? 32 : 64), 0);
        EQUAL(memcmp(&first, &other, sizeof first) != 0, 1);
    }
    EQUAL(fake.count[GV_OP_TENSOR_MAP_IM2COL], 5);
    EQUAL(columns(NULL, 4, 0, 8, 64), CUDA_ERROR_INVALID_VALUE);
    EQUAL(columns(&other, 2, 0, 8, 64), CUDA_ERROR_INVALID_VALUE); /* no dimension of pixels */
    EQUAL(columns(&other, 6, 0, 8, 64), CUDA_ERROR_INVALID_VALUE);
    EQUAL(columns(&other, 4, 0, 0, 64), CUDA_ERROR_INVALID_VALUE);
    EQUAL(columns(&other, 4, 0, 8, 0), CUDA_ERROR_INVALID_VALUE);
    EQUAL(fake.count[GV_OP_TENSOR_MAP_IM2COL], 5);
}

void tensor_maps(void) {
    CUtensorMap first, again, other, moved;
    fake_reset();
    fake.map_status = CUDA_ERROR_INVALID_VALUE;
    EQUAL(encode(&first, 4096, 2, 32, 16), CUDA_ERROR_INVALID_VALUE); /* is not kept */
    fake.map_status = 0;
    EQUAL(encode(&first, 4096, 2, 32, 16), 0);
    EQUAL(fake.count[GV_OP_TENSOR_MAP], 2);
    EQUAL(encode(&again, 4096, 2, 32, 16), 0);
    EQUAL(fake.count[GV_OP_TENSOR_MAP], 2);
    EQUAL(memcmp(&first, &again, sizeof first), 0);
    for (int i = 0; i < 4; i++) {
        EQUAL(encode(&other, i == 0 ? 8192 : 4096, i == 1 ? 3 : 2, i == 2 ? 64 : 32, i == 3 ? 8 : 16), 0);
        EQUAL(memcmp(&first, &other, sizeof first) != 0, 1);
    }
    EQUAL(fake.count[GV_OP_TENSOR_MAP], 6);
    for (int i = 0; i < 3; i++) {
        moved = first;
        EQUAL(impl_cuTensorMapReplaceAddress(&moved, (void *)(uintptr_t)(i < 2 ? 8192 : 12288)), 0);
        EQUAL(memcmp(&first, &moved, sizeof first) != 0, 1);
    }
    EQUAL(fake.count[GV_OP_TENSOR_MAP_ADDRESS], 2);
    for (int i = 0; i < 10000; i++) EQUAL(encode(&other, 16 * (uintptr_t)(i + 1), 2, 32, 16), 0); /* more than are kept */
    EQUAL(encode(&again, 4096, 2, 32, 16), 0);
    EQUAL(memcmp(&first, &again, sizeof first), 0);
    maps_of_columns();
}
