// What must fail at once does, and leaves the context usable. Prints "right".
#include "check.h"
#include <vector>

__global__ void fill(int *v) { v[blockIdx.x * blockDim.x + threadIdx.x] = 3; }
__global__ void shared(int *v) {
    extern __shared__ int s[];
    s[threadIdx.x] = threadIdx.x;
    __syncthreads();
    v[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

int main() {
    size_t free0 = 0, total = 0, free1 = 0;
    CHECK(cudaMemGetInfo(&free0, &total));
    EXPECT(free0 <= total && total > 0);
    void *p = nullptr;
    EXPECT(cudaMalloc(&p, total + 1) == cudaErrorMemoryAllocation);
    EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
    // Everything can be had in pieces, then nothing more, then everything again.
    for (int round = 0; round < 2; round++) {
        std::vector<void *> pieces;
        const size_t piece = 64 << 20;
        while (cudaMalloc(&p, piece) == cudaSuccess) {
            pieces.push_back(p);
            EXPECT(pieces.size() <= total / piece);
        }
        EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
        EXPECT(pieces.size() >= 1);
        CHECK(cudaMemset(pieces.back(), 1, piece));
        for (void *q : pieces) CHECK(cudaFree(q));
    }
    CHECK(cudaMemGetInfo(&free1, &total));
    EXPECT(free1 <= total);

    int *v;
    CHECK(cudaMalloc(&v, 4096 * 4));
    fill<<<1, 1025>>>(v);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    fill<<<0, 32>>>(v);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    shared<<<1, 64, 60 << 10>>>(v);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 << 10));
    shared<<<1, 64, 60 << 10>>>(v);
    CHECK(cudaGetLastError());
    int host[64];
    CHECK(cudaMemcpy(host, v, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++) EXPECT(host[i] == 63 - i);
    EXPECT(cudaMemcpy(v, host, 4 << 20, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    cudaGetLastError();
    EXPECT(cudaFree((void *)0x1234) == cudaErrorInvalidValue);
    cudaGetLastError();
    EXPECT_OF_OURS(cudaStreamSynchronize((cudaStream_t)0x5678) != cudaSuccess);
    cudaGetLastError();
    EXPECT(cudaSetDevice(99) == cudaErrorInvalidDevice);
    cudaGetLastError();
    fill<<<16, 256>>>(v);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaFree(v));
    std::printf("right\n");
    return 0;
}
