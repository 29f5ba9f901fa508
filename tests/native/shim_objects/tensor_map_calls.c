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
}
