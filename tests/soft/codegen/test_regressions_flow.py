"""Control flow as sorting kernels have it: searches of differing length in shared memory, barriers in loops that all threads make alike, values that
live on after lanes left a loop at different times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from soft.kernels import Kernels
from soft.nvrtc import compile_ptx, library

pytestmark = pytest.mark.skipif(library() is None, reason="the NVRTC wheel is not installed")

# Every thread sorts ITEMS keys in registers (odd-even), then runs of threads are merged in shared memory along merge paths.
SORT = r"""
#define ITEMS 5
template <typename T> __device__ void block_sort(T* data, int n, int threads) {
    __shared__ T keys[128 * ITEMS];
    T mine[ITEMS];
    int t = threadIdx.x;
    T most = data[0];
    for (int i = 1; i < n; i++) most = data[i] > most ? data[i] : most;
    #pragma unroll
    for (int i = 0; i < ITEMS; i++) { int at = t * ITEMS + i; mine[i] = at < n ? data[at] : most; }
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < ITEMS; i++)
        #pragma unroll
        for (int j = i & 1; j < ITEMS - 1; j += 2)
            if (mine[j + 1] < mine[j]) { T x = mine[j]; mine[j] = mine[j + 1]; mine[j + 1] = x; }
    for (int merged = 2; merged <= threads; merged *= 2) {
        int mask = merged - 1;
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < ITEMS; i++) keys[t * ITEMS + i] = mine[i];
        __syncthreads();
        int start = ITEMS * (~mask & t), half = ITEMS * (merged >> 1), all = threads * ITEMS;
        int diagonal = min(all, ITEMS * (mask & t));
        int a = min(all, start), b = min(all, start + half), end = min(all, b + half);
        int low = max(0, diagonal - (end - b)), high = min(diagonal, b - a);
        while (low < high) {
            int middle = (low + high) >> 1;
            if (!(keys[b + diagonal - 1 - middle] < keys[a + middle])) low = middle + 1; else high = middle;
        }
        int i = a + low, j = b + diagonal - low;
        #pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            bool second = j < end && (i >= b || keys[j] < keys[i]);
            mine[k] = second ? keys[j] : keys[i];
            if (second) j++; else i++;
        }
    }
    #pragma unroll
    for (int i = 0; i < ITEMS; i++) { int at = t * ITEMS + i; if (at < n) data[at] = mine[i]; }
}
extern "C" __global__ void sort_int(int* data, int n) { block_sort(data, n, blockDim.x); }
extern "C" __global__ void sort_double(double* data, int n) { block_sort(data, n, blockDim.x); }
"""


@pytest.mark.parametrize(("kernel", "dtype"), [("sort_int", np.int32), ("sort_double", np.float64)])
@pytest.mark.parametrize("threads", [8, 64, 128])
def test_block_merge_sort(kernel: str, dtype: type, threads: int) -> None:
    kernels = Kernels(compile_ptx(SORT))
    random = np.random.default_rng(threads)
    for n in (threads * 5, threads * 5 - 7):
        data: np.ndarray[Any, Any] = (random.standard_normal(n) * 1000).astype(dtype)
        want = np.sort(data)
        kernels.launch(kernel, 1, threads, data, np.int32(n))
        np.testing.assert_array_equal(data, want)


LOOPS = r"""
extern "C" __global__ void nested(int* out) {
    // Inner and outer loops end at different times in different lanes; `last` and `when` are read only after both.
    int t = threadIdx.x, last = -1, when = 0;
    for (int i = 0; i < t % 7 + 1; i++) {
        int j = i;
        while (true) {
            j = (j * 5 + t) % 31;
            when++;
            if (j == t % 31) { last = 100 * i + j; break; }
            if (when % 11 == 10) break;
        }
        if (last > 300 && (t & 4)) return;
        out[t * 2] = last;
        out[t * 2 + 1] = when;
    }
}
extern "C" __global__ void in_step(int* out, int rounds) {
    // Barriers in a loop that all threads go round alike, after code that lanes go through differently.
    __shared__ int row[128];
    int t = threadIdx.x, n = blockDim.x, x = t;
    for (int r = 0; r < rounds; r++) {
        if ((x ^ r) & 1) { for (int k = 0; k < (x & 3); k++) x += k; }
        row[t] = x;
        __syncthreads();
        x = row[(t + r + 1) % n];
        __syncthreads();
        if (rounds > 8 && r == 9) break;
    }
    out[t] = x;
}
"""


def nested(t: int) -> tuple[int, int]:
    last, when, kept = -1, 0, (0, 0)
    for i in range(t % 7 + 1):
        j = i
        while True:
            j = (j * 5 + t) % 31
            when += 1
            if j == t % 31:
                last = 100 * i + j
                break
            if when % 11 == 10:
                break
        if last > 300 and t & 4:
            return kept
        kept = (last, when)
    return kept


def test_values_that_outlive_the_loops() -> None:
    out = np.zeros((96, 2), np.int32)
    Kernels(compile_ptx(LOOPS)).launch("nested", 1, 96, out)
    np.testing.assert_array_equal(out, np.array([nested(t) for t in range(96)], np.int32))


@pytest.mark.parametrize("rounds", [5, 20])
@pytest.mark.parametrize("threads", [32, 100, 128])
def test_barriers_in_step(rounds: int, threads: int) -> None:
    out = np.zeros(threads, np.int32)
    Kernels(compile_ptx(LOOPS)).launch("in_step", 1, threads, out, np.int32(rounds))
    x = list(range(threads))
    for r in range(rounds if rounds <= 8 else 10):
        for t in range(threads):
            if (x[t] ^ r) & 1:
                k = 0
                while k < x[t] & 3:
                    x[t] += k
                    k += 1
        x = [x[(t + r + 1) % threads] for t in range(threads)]
    np.testing.assert_array_equal(out, np.array(x, np.int32))
