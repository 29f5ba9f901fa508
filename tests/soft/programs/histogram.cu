// Histograms: global atomics, one table a block in shared memory, one table a warp, and with runs of equal values counted by match.
#include "program.h"

__global__ void by_global_atomics(const uint8_t *in, unsigned *bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&bins[in[i]], 1u);
}

__global__ void by_blocks(const uint8_t *in, unsigned *bins, int n) {
    __shared__ unsigned own[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) own[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[in[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (own[i]) atomicAdd(&bins[i], own[i]);
}

__global__ void by_warps(const uint8_t *in, unsigned *bins, int n) {
    __shared__ unsigned short own[4][256]; // 65535 at most: each warp sees fewer
    for (int i = threadIdx.x; i < 4 * 256; i += blockDim.x) own[i / 256][i % 256] = 0;
    __syncthreads();
    int warp = threadIdx.x / 32;
    for (int start = blockIdx.x * blockDim.x; start < n; start += gridDim.x * blockDim.x) {
        int i = start + threadIdx.x;
        unsigned active = __ballot_sync(~0u, i < n);
        if (i < n) {
            unsigned peers = __match_any_sync(active, (int)in[i]);
            if (__ffs(peers) - 1 == threadIdx.x % 32) own[warp][in[i]] += __popc(peers);
        }
        __syncwarp();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], (unsigned)own[0][i] + own[1][i] + own[2][i] + own[3][i]);
}

// Saturating 8-bit counters, four to a word.
__global__ void packed(const uint8_t *in, unsigned *words, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&words[in[i] / 4], 1u << in[i] % 4 * 8);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("histogram");
    const int n = 60000 + random.below(5000);
    std::vector<uint8_t> in(n);
    std::vector<unsigned> want(256);
    for (auto &x : in) {
        x = (uint8_t)(random.below(3) ? random.below(256) : random.below(8)); // uneven, so that lanes meet
        want[x]++;
    }
    Array<uint8_t> data(in);
    Array<unsigned> bins(256), words(64);
    by_global_atomics<<<blocks_for(n, 256), 256>>>(data, bins, n);
    v.same("global atomics", bins.host(), want);
    bins.clear();
    by_blocks<<<20, 160>>>(data, bins, n);
    v.same("a table a block", bins.host(), want);
    bins.clear();
    by_warps<<<8, 128>>>(data, bins, n);
    v.same("a table a warp", bins.host(), want);

    packed<<<4, 128>>>(data, words, 500);
    std::vector<unsigned> few(64);
    for (int i = 0; i < 500; i++) few[in[i] / 4] += 1u << in[i] % 4 * 8;
    v.same("packed", words.host(), few);
    return v.end();
}
