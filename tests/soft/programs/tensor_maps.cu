// Tensor maps made by the driver: tiles of a matrix copied to shared memory and back by the copy engine, transposed on the way, edges included.
#include <cuda.h>
#include "program.h"

#define TILE 32

__device__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

__global__ void turn(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out) {
    __shared__ alignas(128) float tile[TILE][TILE], turned[TILE][TILE];
    __shared__ alignas(8) unsigned long long barrier;
    int x = blockIdx.x * TILE, y = blockIdx.y * TILE;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
        asm volatile("fence.proxy.async.shared::cta;");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"((int)sizeof tile));
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(tile)),
                     "l"(&in), "r"(x), "r"(y), "r"(shared_address(&barrier))
                     : "memory");
    }
    __syncthreads();
    asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra WAIT; }" ::"r"(shared_address(&barrier)) : "memory");
    for (int i = threadIdx.x; i < TILE * TILE; i += blockDim.x) turned[i % TILE][i / TILE] = tile[i / TILE][i % TILE];
    asm volatile("fence.proxy.async.shared::cta;");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&out), "r"(y), "r"(x), "r"(shared_address(turned))
                     : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

static CUtensorMap map_of(float *memory, int width, int height) {
    static decltype(&cuTensorMapEncodeTiled) encode = nullptr;
    if (!encode) {
        cudaDriverEntryPointQueryResult found;
        CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000, cudaEnableDefault, &found));
    }
    CUtensorMap map;
    cuuint64_t dims[] = {(cuuint64_t)width, (cuuint64_t)height}, strides[] = {width * sizeof(float)};
    cuuint32_t box[] = {TILE, TILE}, steps[] = {1, 1};
    CUresult rc = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, memory, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                         CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (rc) std::printf("cuTensorMapEncodeTiled: %d\n", rc), std::exit(3);
    return map;
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("tensor_maps");
    for (int round = 0; round < 3; round++) {
        int width = 4 * (8 + random.below(40)), height = 4 * (8 + random.below(40));
        auto matrix = random.reals(width * height, -1, 1);
        std::vector<float> want(width * height);
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++) want[x * height + y] = matrix[y * width + x];
        Array<float> in(matrix), out(width * height);
        turn<<<dim3(blocks_for(width, TILE), blocks_for(height, TILE)), 128>>>(map_of(in, width, height), map_of(out, height, width));
        v.same("transposed", out.host(), want);
    }
    return v.end();
}
