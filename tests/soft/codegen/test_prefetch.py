"""Loops that stream through memory: prefetching changes nothing, and the warps of a block take turns."""

from __future__ import annotations

import numpy as np
import pytest
from soft.kernels import Kernels
from soft.nvrtc import compile_ptx, library

pytestmark = pytest.mark.skipif(library() is None, reason="the NVRTC wheel is not installed")

SOURCE = r"""
// Which warp was where at which time: a warp that ran its whole loop before the others began would have tickets below all of theirs.
extern "C" __global__ void turns(unsigned *first, unsigned *last, float *out, const float *x, unsigned *clock, int n) {
    float sum = 0;
    unsigned begin = 0, end = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        sum += x[i];
        if (threadIdx.x % 32 == 0) {
            end = atomicAdd(clock, 1);
            if (i == threadIdx.x) begin = end;
        }
    }
    __syncthreads();
    out[threadIdx.x] = sum;
    if (threadIdx.x % 32 == 0) first[threadIdx.x / 32] = begin, last[threadIdx.x / 32] = end;
}

// Strides that change, go back, and differ between lanes; places far beyond the end are asked for in advance, never read.
extern "C" __global__ void walks(unsigned *out, const unsigned *x, const int *steps, int rounds) {
    const unsigned *p = x + threadIdx.x;
    unsigned sum = 0;
    for (int r = 0; r < rounds; r++) {
        sum = sum * 31 + *p;
        p += steps[r];
    }
    sum = sum * 31 + x[out[threadIdx.x] % 64];
    out[threadIdx.x] = sum;
}
"""


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(compile_ptx(SOURCE))


def test_warps_that_stream_take_turns(kernels: Kernels) -> None:
    n, warps = 128 * 100, 4
    first, last = np.zeros(warps, np.uint32), np.zeros(warps, np.uint32)
    out, x, clock = np.zeros(128, np.float32), np.arange(n, dtype=np.float32) % 7, np.zeros(1, np.uint32)
    kernels.launch("turns", 1, 128, first, last, out, x, clock, n)
    assert (out == x.reshape(-1, 128).sum(0)).all()
    assert clock[0] == n // 32
    assert first.max() < last.min(), (first, last)


def test_any_walk_through_memory_is_right(kernels: Kernels) -> None:
    rng = np.random.default_rng()
    rounds = 200
    steps = rng.integers(0, 3000, rounds).astype(np.int32)
    steps[rounds // 2 :] = -steps[: rounds // 2][::-1]
    steps[20:60], steps[-60:-20] = 1024, -1024
    places = np.concatenate([[0], np.cumsum(steps)[:-1]])
    x = rng.integers(0, 2**32, 1 << 20, dtype=np.uint32)
    assert places.min() >= 0 and places.max() + 64 < x.size
    for threads in (20, 64):
        out = rng.integers(0, 2**31, threads, dtype=np.uint32)
        want = np.zeros(threads, np.uint32)
        for place in places:
            want = want * np.uint32(31) + x[place + np.arange(threads)]
        want = want * np.uint32(31) + x[out % 64]
        kernels.launch("walks", 1, threads, out, x, steps, rounds)
        assert (out == want).all()
