// A prefix sum in one pass: each block looks back at what the blocks before it have published (aggregates, then prefixes), and spins until they have.
#include "program.h"

constexpr int threads = 128, each = 8, tile = threads * each;
constexpr unsigned long long empty = 0, aggregate = 1ull << 62, prefix = 2ull << 62, value_mask = (1ull << 62) - 1;

__device__ unsigned ticket;

__global__ void scan(const unsigned *in, unsigned long long *out, volatile unsigned long long *state, int n) {
    __shared__ unsigned tile_number;
    __shared__ unsigned long long of_warps[threads / 32], before;
    if (threadIdx.x == 0) tile_number = atomicAdd(&ticket, 1);
    __syncthreads();
    const int t = tile_number, lane = threadIdx.x % 32, warp = threadIdx.x / 32, base = t * tile + threadIdx.x * each;
    unsigned long long own[each], sum = 0;
    for (int i = 0; i < each; i++) own[i] = sum += base + i < n ? in[base + i] : 0;
    unsigned long long inclusive = sum;
    for (int d = 1; d < 32; d *= 2) {
        unsigned long long w = __shfl_up_sync(~0u, inclusive, d);
        if (lane >= d) inclusive += w;
    }
    if (lane == 31) of_warps[warp] = inclusive;
    __syncthreads();
    unsigned long long offset = inclusive - sum, total = 0;
    for (int w = 0; w < threads / 32; w++) {
        if (w < warp) offset += of_warps[w];
        total += of_warps[w];
    }
    if (warp == 0) {
        if (lane == 0) {
            state[t] = (t ? aggregate : prefix) | total;
            if (!t) before = 0;
        }
        unsigned long long sum_before = 0;
        // 32 tiles at a look; the nearest prefix ends it.
        for (int last = t - 1; last >= 0; last -= 32) {
            int j = last - lane;
            unsigned long long s = prefix;
            if (j >= 0)
                while ((s = state[j]) == empty) {}
            unsigned has_prefix = __ballot_sync(~0u, (s & ~value_mask) == prefix);
            int end = has_prefix ? __ffs(has_prefix) - 1 : 31;
            unsigned long long part = lane <= end ? s & value_mask : 0;
            for (int d = 16; d; d /= 2) part += __shfl_xor_sync(~0u, part, d);
            sum_before += part;
            if (has_prefix) break;
        }
        if (lane == 0 && t) {
            before = sum_before;
            __threadfence();
            state[t] = prefix | (sum_before + total);
        }
    }
    __syncthreads();
    for (int i = 0; i < each; i++)
        if (base + i < n) out[base + i] = before + offset + own[i];
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("lookback_scan");
    const int n = 150 * tile + random.below(tile), tiles = blocks_for(n, tile);
    auto in = random.ints<unsigned>(n, 0, 2000000000);
    Array<unsigned> data(in);
    Array<unsigned long long> out(n), state(tiles);
    std::vector<unsigned long long> want(n);
    unsigned long long sum = 0;
    for (int i = 0; i < n; i++) want[i] = sum += in[i];
    for (int round = 0; round < 3; round++) {
        unsigned zero = 0;
        CHECK(cudaMemcpyToSymbol(ticket, &zero, sizeof zero));
        state.clear();
        out.clear();
        scan<<<tiles, threads>>>(data, out, state, n);
        v.same("sums", out.host(), want);
    }
    return v.end();
}
