// Sums: a tree in shared memory, warp shuffles, atomics, in integers, float and double, with a last-block-done finish.
#include "program.h"

template <class T> __global__ void tree(const T *in, T *out, int n) {
    __shared__ T cells[256];
    T v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += in[i];
    cells[threadIdx.x] = v;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half >>= 1) {
        if (threadIdx.x < half) cells[threadIdx.x] += cells[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = cells[0];
}

template <class T> __device__ T warp_sum(T v) {
    for (int offset = 16; offset; offset >>= 1) v += __shfl_down_sync(~0u, v, offset);
    return v;
}

template <class T> __global__ void shuffles(const T *in, T *out, int n) {
    __shared__ T of_warps[32];
    T v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += in[i];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = warp_sum(threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : T(0));
        if (threadIdx.x == 0) atomicAdd(out, v);
    }
}

__device__ unsigned finished;

__global__ void last_block_adds_up(const float *in, volatile float *parts, float *out, int n) {
    __shared__ bool last;
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += in[i];
    v = warp_sum(v);
    __shared__ float cells[8];
    if (threadIdx.x % 32 == 0) cells[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0;
        for (unsigned w = 0; w < blockDim.x / 32; w++) sum += cells[w];
        parts[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    float sum = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += parts[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}

template <class T> static void both(Verdict &v, const std::vector<T> &in, double bound) {
    const int n = static_cast<int>(in.size()), grid = 24;
    double want = 0;
    for (T x : in) want += static_cast<double>(x);
    Array<T> data(in), parts(grid), one(1);
    tree<<<grid, 256>>>(data.data, parts.data, n);
    double got = 0;
    for (T x : parts.host()) got += static_cast<double>(x);
    v.close("tree", got, want, bound);
    shuffles<<<grid, 192>>>(data.data, one.data, n);
    v.close("shuffles", static_cast<double>(one.first()), want, bound);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("reduction");
    const int n = 100000 + random.below(1000);
    auto floats = random.reals(n, 0, 1);
    both<int>(v, random.ints(n, -1000, 1000), 0);
    both<float>(v, floats, 1e-5);
    both<double>(v, random.reals<double>(n, 0, 1), 1e-13);
    double want = 0;
    for (float x : floats) want += x;
    Array<float> data(floats), parts(40), one(2);
    last_block_adds_up<<<40, 256>>>(data, parts, one, n);
    last_block_adds_up<<<40, 256>>>(data, parts, one + 1, n);
    for (float x : one.host()) v.close("last block", x, want, 1e-5);
    return v.end();
}
