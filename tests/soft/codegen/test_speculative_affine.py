"""Unsigned 32-bit indices that wrap within a warp, and those that do not."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from soft.kernels import Kernels
from soft.nvrtc import compile_ptx, library

pytestmark = pytest.mark.skipif(library() is None, reason="the NVRTC wheel is not installed")

SOURCE = r"""
extern "C" __global__ void copy(int *out, const int *x, unsigned start, unsigned first, unsigned last) {
    unsigned i = threadIdx.x + start;
    if (threadIdx.x >= first && threadIdx.x < last) out[threadIdx.x] = x[i] + x[i + 3u];
}

extern "C" __global__ void put(int *out, const int *x, unsigned start, unsigned first, unsigned last) {
    unsigned i = threadIdx.x + start;
    if (threadIdx.x >= first && threadIdx.x < last) out[i] = x[threadIdx.x];
}

extern "C" __global__ void wide(long long *out, const int4 *x, unsigned start) {
    int4 v = x[start + 32u * blockIdx.x + threadIdx.x];
    out[32 * blockIdx.x + threadIdx.x] = v.x + 2ll * v.y + 3ll * v.z + 4ll * v.w;
}
"""


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(compile_ptx(SOURCE))


def place(array: np.ndarray, index: int) -> bytes:
    """An address at which the array would begin at `index`."""
    return struct.pack("<Q", (array.ctypes.data - index * array.itemsize) % 2**64)


@pytest.mark.parametrize("start", [0, 5, 2**31 - 9, 2**32 - 64, 2**32 - 20])
@pytest.mark.parametrize("part", [(0, 32), (0, 7), (9, 31)])
def test_indices(kernels: Kernels, start: int, part: tuple[int, int]) -> None:
    rng = np.random.default_rng()
    x = rng.integers(-(2**30), 2**30, 64, dtype=np.int32)
    wraps = start + 35 > 2**32
    first, last = part
    if wraps:  # only lanes to one side of the wrap take part, and only their memory is there
        gap = 2**32 - start
        for a, b, index in ((0, gap - 3, start), (gap, 32, 0)):
            out = np.zeros(32, np.int32)
            low, high = max(first, a), min(last, b)
            base = place(x, index)
            kernels.launch("copy", 1, 32, out, base, start, low, high)
            lanes = np.arange(low, max(low, high))
            want = np.zeros(32, np.int32)
            at = (lanes + start) % 2**32 - index
            want[lanes] = x[at] + x[at + 3]
            assert (out == want).all()
        out = np.zeros(64, np.int32)
        kernels.launch("put", 1, 32, place(out, 0), x, start, gap, 32)
        assert (out[: 32 - gap] == x[gap:32]).all() and not out[32 - gap :].any()
        return
    out = np.zeros(32, np.int32)
    kernels.launch("copy", 1, 32, out, place(x, start), start, first, last)
    want = np.zeros(32, np.int32)
    want[first:last] = (x[:32] + x[3:35])[first:last]
    assert (out == want).all()
    out = np.zeros(32, np.int32)
    kernels.launch("put", 1, 32, place(out, start), x, start, first, last)
    assert (out[first:last] == x[first:last]).all() and not out[:first].any() and not out[last:].any()


def test_vectors(kernels: Kernels) -> None:
    x = np.random.default_rng().integers(-(2**30), 2**30, (64, 4), dtype=np.int32)
    out = np.zeros(64, np.int64)
    for start in (0, 2**31 - 40, 2**32 - 64):
        kernels.launch("wide", 2, 32, out, struct.pack("<Q", (x.ctypes.data - start * 16) % 2**64), start)
        assert (out == x.astype(np.int64) @ [1, 2, 3, 4]).all()
