// A bitonic sorting network: in shared memory for a block's keys, in global memory beyond them, with 64-bit values that follow their keys.
#include "program.h"

constexpr int block = 512;

__device__ void exchange(unsigned &a, unsigned &b, uint64_t &x, uint64_t &y, bool up) {
    if ((a > b) == up && a != b) {
        unsigned k = a;
        a = b, b = k;
        uint64_t w = x;
        x = y, y = w;
    }
}

__global__ void sort_blocks(unsigned *keys, uint64_t *values) {
    __shared__ unsigned k[2 * block];
    __shared__ uint64_t w[2 * block];
    int base = blockIdx.x * 2 * block;
    for (int i = threadIdx.x; i < 2 * block; i += block) k[i] = keys[base + i], w[i] = values[base + i];
    for (int size = 2; size <= 2 * block; size *= 2)
        for (int stride = size / 2; stride; stride /= 2) {
            __syncthreads();
            int i = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
            exchange(k[i], k[i + stride], w[i], w[i + stride], !((base + i) & size));
        }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * block; i += block) keys[base + i] = k[i], values[base + i] = w[i];
}

__global__ void merge_step(unsigned *keys, uint64_t *values, int size, int stride) {
    int t = blockIdx.x * blockDim.x + threadIdx.x, i = 2 * t - (t & (stride - 1));
    unsigned a = keys[i], b = keys[i + stride];
    uint64_t x = values[i], y = values[i + stride];
    exchange(a, b, x, y, !(i & size));
    keys[i] = a, keys[i + stride] = b, values[i] = x, values[i + stride] = y;
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("bitonic_sort");
    const int n = 1 << 14;
    std::vector<unsigned> keys(n);
    std::vector<uint64_t> values(n);
    for (int i = 0; i < n; i++) keys[i] = (unsigned)random.bits() >> (i % 3 ? 0 : 24), values[i] = (uint64_t)keys[i] << 32 | i;
    Array<unsigned> k(keys);
    Array<uint64_t> w(values);
    sort_blocks<<<n / (2 * block), block>>>(k, w);
    for (int size = 4 * block; size <= n; size *= 2)
        for (int stride = size / 2; stride; stride /= 2) merge_step<<<n / 512, 256>>>(k, w, size, stride);
    auto got = k.host();
    auto of = w.host();
    std::sort(keys.begin(), keys.end());
    v.same("keys", got, keys);
    bool follow = true;
    for (int i = 0; i < n; i++) follow &= of[i] >> 32 == got[i];
    v.that("values follow", follow);
    std::sort(of.begin(), of.end());
    std::sort(values.begin(), values.end());
    v.same("values", of, values);
    return v.end();
}
