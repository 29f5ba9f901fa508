// A stable radix sort, four bits a pass: ranks within a warp come from match, counts per digit and block are scanned.
#include "program.h"

constexpr int threads = 256, warps = threads / 32, digits = 16;

__global__ void count(const int *keys, int *counts, int n, int shift) {
    __shared__ int own[digits];
    if (threadIdx.x < digits) own[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * threads + threadIdx.x;
    if (i < n) atomicAdd(&own[((unsigned)keys[i] ^ 0x80000000u) >> shift & 15], 1);
    __syncthreads();
    if (threadIdx.x < digits) counts[threadIdx.x * gridDim.x + blockIdx.x] = own[threadIdx.x];
}

__global__ void scan(int *counts, int n) {
    __shared__ int carry, of_warps[32];
    if (threadIdx.x == 0) carry = 0;
    __syncthreads();
    for (int start = 0; start < n; start += blockDim.x) {
        int i = start + threadIdx.x, own = i < n ? counts[i] : 0, v = own, lane = threadIdx.x & 31;
        for (int d = 1; d < 32; d *= 2) {
            int w = __shfl_up_sync(~0u, v, d);
            v += lane >= d ? w : 0;
        }
        if (lane == 31) of_warps[threadIdx.x / 32] = v;
        __syncthreads();
        int before = carry;
        for (int w = 0; w < threadIdx.x / 32; w++) before += of_warps[w];
        if (i < n) counts[i] = before + v - own;
        __syncthreads();
        if (threadIdx.x == blockDim.x - 1) carry = before + v;
        __syncthreads();
    }
}

__global__ void scatter(const int *keys, const int *values, int *keys_out, int *values_out, const int *offsets, int n, int shift) {
    __shared__ int of_warps[warps][digits];
    for (int j = threadIdx.x; j < warps * digits; j += threads) of_warps[j / digits][j % digits] = 0;
    __syncthreads();
    int i = blockIdx.x * threads + threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned there = __ballot_sync(~0u, i < n);
    int rank = 0, digit = 0;
    if (i < n) {
        digit = ((unsigned)keys[i] ^ 0x80000000u) >> shift & 15;
        unsigned peers = __match_any_sync(there, digit);
        rank = __popc(peers & ((1u << lane) - 1));
        if (rank == 0) of_warps[warp][digit] = __popc(peers);
    }
    __syncthreads();
    if (i >= n) return;
    for (int w = 0; w < warp; w++) rank += of_warps[w][digit];
    int to = offsets[digit * gridDim.x + blockIdx.x] + rank;
    keys_out[to] = keys[i];
    values_out[to] = values[i];
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("radix_sort");
    const int n = 20000 + random.below(1000), blocks = blocks_for(n, threads);
    std::vector<int> keys(n), order(n);
    for (int i = 0; i < n; i++) keys[i] = (int)random.bits() >> (i % 2 ? 0 : 20), order[i] = i; // many equal ones, so that stability shows
    Array<int> a(keys), b(n), p(order), q(n), counts(digits * blocks);
    int *from = a, *to = b, *values = p, *values_to = q;
    for (int shift = 0; shift < 32; shift += 4) {
        count<<<blocks, threads>>>(from, counts, n, shift);
        scan<<<1, 512>>>(counts, digits * blocks);
        scatter<<<blocks, threads>>>(from, values, to, values_to, counts, n, shift);
        std::swap(from, to);
        std::swap(values, values_to);
    }
    std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return keys[x] < keys[y]; });
    v.same("order", p.host(), order);
    std::sort(keys.begin(), keys.end());
    v.same("keys", a.host(), keys);
    return v.end();
}
