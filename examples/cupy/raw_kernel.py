"""CUDA C++ compiled at run time: shared memory, barriers, warp shuffles, atomics."""

import argparse

import cupy as cp
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--out", required=True)
args = parser.parse_args()

SOURCE = r"""
extern "C" {
// Sum of each block's 256 elements: shuffles inside a warp, shared memory between warps.
__global__ void block_sums(const float *x, float *sums, int n) {
    __shared__ float warps[8];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] : 0.0f;
    for (int offset = 16; offset; offset >>= 1) v += __shfl_down_sync(0xffffffff, v, offset);
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = v;
    __syncthreads();
    if (threadIdx.x < 8) {
        v = warps[threadIdx.x];
        for (int offset = 4; offset; offset >>= 1) v += __shfl_down_sync(0xff, v, offset);
        if (threadIdx.x == 0) sums[blockIdx.x] = v;
    }
}

// Transposition through a padded tile.
__global__ void transpose(const int *in, int *out, int rows, int columns) {
    __shared__ int tile[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x < columns && y < rows) tile[threadIdx.y][threadIdx.x] = in[y * columns + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x, y = blockIdx.x * 16 + threadIdx.y;
    if (x < rows && y < columns) out[y * rows + x] = tile[threadIdx.x][threadIdx.y];
}

// Collatz steps: every lane leaves its loop at another time. Votes count the warps that still run.
__global__ void collatz(const unsigned *start, int *steps, int *longest, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long v = start[i];
    int count = 0;
    while (v != 1) { v = (v & 1) ? 3 * v + 1 : v >> 1; ++count; }
    steps[i] = count;
    atomicMax(longest, count);
}

// Histogram: dynamic shared memory, shared and global atomics.
__global__ void histogram(const int *values, unsigned *bins, int n, int n_bins) {
    extern __shared__ unsigned local[];
    for (int b = threadIdx.x; b < n_bins; b += blockDim.x) local[b] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[values[i]], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < n_bins; b += blockDim.x) atomicAdd(&bins[b], local[b]);
}
}
"""

rng = np.random.default_rng(args.seed)
n = 100_000
x = cp.asarray(rng.random(n).astype(np.float32))
matrix = cp.asarray(rng.integers(0, 1 << 30, (123, 457), dtype=np.int32))
start = cp.asarray(rng.integers(1, 1_000_000, 4096, dtype=np.uint32))
values = cp.asarray(rng.integers(0, 200, n, dtype=np.int32))

module = cp.RawModule(code=SOURCE)
blocks = (n + 255) // 256
sums = cp.empty(blocks, cp.float32)
module.get_function("block_sums")((blocks,), (256,), (x, sums, np.int32(n)))

transposed = cp.empty((457, 123), cp.int32)
module.get_function("transpose")(((457 + 15) // 16, (123 + 15) // 16), (16, 16), (matrix, transposed, np.int32(123), np.int32(457)))

steps, longest = cp.empty(4096, cp.int32), cp.zeros(1, cp.int32)
module.get_function("collatz")((32,), (128,), (start, steps, longest, np.int32(4096)))

bins = cp.zeros(200, cp.uint32)
module.get_function("histogram")((20,), (192,), (values, bins, np.int32(n), np.int32(200)), shared_mem=200 * 4)

np.savez(
    args.out,
    sums=cp.asnumpy(sums),
    transposed=cp.asnumpy(transposed),
    steps=cp.asnumpy(steps),
    longest=cp.asnumpy(longest),
    bins=cp.asnumpy(bins),
)
