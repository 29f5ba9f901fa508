"""One call of a kernel's entry runs all warps of many blocks: every warp sees itself, what one leaves behind the next does not see, faults name
the right one, and a grid that has failed stops within its runs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from soft.kernels import Kernels, LaunchError

from gpuvirt.soft.codegen import warp_loop
from tests.soft.nvrtc import compile_ptx, library

pytestmark = pytest.mark.skipif(library() is None, reason="no NVRTC")

SOURCE = r"""
struct Seen { unsigned times, block[3], thread[3], warp, lane, grid[3]; };

__device__ unsigned long long where() {
    unsigned long long block = blockIdx.x + gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
    return block * (blockDim.x * blockDim.y * blockDim.z) + threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

extern "C" __global__ void look(Seen *seen) {
    Seen *mine = seen + where();
    atomicAdd(&mine->times, 1u);
    mine->block[0] = blockIdx.x, mine->block[1] = blockIdx.y, mine->block[2] = blockIdx.z;
    mine->thread[0] = threadIdx.x, mine->thread[1] = threadIdx.y, mine->thread[2] = threadIdx.z;
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(mine->warp));
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(mine->lane));
    mine->grid[0] = gridDim.x, mine->grid[1] = gridDim.y, mine->grid[2] = gridDim.z;
}

/* A function of its own, which reads the warp's place itself, has an array in local memory, and may end the thread. */
__device__ __noinline__ unsigned apart(unsigned x, volatile unsigned *left) {
    unsigned kept[8];
    for (int i = 0; i < 8; i++) kept[(i + x) % 8] = x * i + threadIdx.x + 1000 * blockIdx.x;
    if (x % 7 == 3) { left[where()] = 1; asm volatile("exit;"); }
    unsigned sum = 0;
    for (int i = 0; i < 8; i++) sum += kept[i] * (i + 1);
    return sum;
}

extern "C" __global__ void functions(unsigned *out, unsigned *left, unsigned n) {
    unsigned i = where();
    if (i < n) out[i] = apart(i, left) + apart(i + 7, left);
}

extern "C" __global__ void faults(unsigned *out, unsigned bx, unsigned by, unsigned bz, unsigned thread) {
    if (blockIdx.x == bx && blockIdx.y == by && blockIdx.z == bz && threadIdx.x == thread) out = nullptr;
    if (out) out[where()] = 1; else *(volatile unsigned *)16 = 1;
}

extern "C" __global__ void traps(unsigned *out, unsigned bx, unsigned by, unsigned bz, unsigned thread) {
    if (blockIdx.x == bx && blockIdx.y == by && blockIdx.z == bz && threadIdx.x == thread) __trap();
    out[where()] = 1;
}

extern "C" __global__ void slow(unsigned *count, unsigned rounds) {
    if (blockIdx.x == 3) *(volatile unsigned *)16 = 1;
    unsigned x = threadIdx.x;
    for (unsigned i = 0; i < rounds; i++) x = x * 5 + 1;
    if (threadIdx.x == 0) atomicAdd(count, 1 + (x == 12345));
}

extern "C" __global__ void meets(unsigned *out) {
    __shared__ unsigned there[64];
    there[threadIdx.x] = where();
    __syncthreads();
    out[where()] = there[blockDim.x - 1 - threadIdx.x];
}
"""
# Each thread takes 12000 of the 16384 bytes of its stack.
TAKES = """.version 8.0
.target sm_80
.address_size 64
.visible .entry takes(.param .u64 out) { .reg .b64 %a<4>; .reg .b32 %r<5>;
ld.param.u64 %a0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r0, %r1, %r2, %r0;
mul.wide.u32 %a1, %r0, 4; add.u64 %a0, %a0, %a1; mov.u64 %a2, 12000; alloca.u64 %a3, %a2, 8; st.local.u32 [%a3], %r0; st.local.u32 [%a3+11996], %r0;
ld.local.u32 %r3, [%a3]; ld.local.u32 %r4, [%a3+11996]; add.u32 %r3, %r3, %r4; st.global.u32 [%a0], %r3; ret; }
"""
# What cuda::atomic makes of a pointer that might be local, in a kernel that has no local memory.
ASKS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry asks(.param .u64 out) { .reg .pred %p; .reg .b64 %a<3>; .reg .b32 %r;
ld.param.u64 %a0, [out]; isspacep.local %p, %a0; @%p bra LOCAL;
cvta.to.global.u64 %a1, %a0; atom.global.add.u32 %r, [%a1], 1; bra END;
LOCAL: cvta.to.local.u64 %a2, %a0; ld.local.u32 %r, [%a2]; add.u32 %r, %r, 1; st.local.u32 [%a2], %r;
END: ret; }
.visible .entry only_asks(.param .u64 out) { .reg .pred %p; .reg .b64 %a<2>; .reg .b32 %r;
ld.param.u64 %a0, [out]; isspacep.local %p, %a0; selp.b32 %r, 1000, 1, %p; cvta.to.global.u64 %a1, %a0; red.global.add.u32 [%a1], %r; ret; }
"""
SEEN = np.dtype([("times", "u4"), ("block", "3u4"), ("thread", "3u4"), ("warp", "u4"), ("lane", "u4"), ("grid", "3u4")])


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(compile_ptx(SOURCE))


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((7, 5, 11), (33, 1, 1)),
        ((300, 1, 1), (64, 1, 1)),
        ((3, 1, 97), (7, 3, 5)),
        ((1, 129, 2), (5, 1, 1)),
        ((2, 3, 50), (32, 2, 1)),
        ((1, 1, 1), (1024, 1, 1)),
        ((5, 4, 3), (31, 33, 1)),
    ],
)
@pytest.mark.parametrize("cooperative", [False, True])
def test_every_warp_sees_itself(kernels: Kernels, grid: tuple[int, ...], block: tuple[int, ...], cooperative: bool) -> None:
    threads = int(np.prod(block))
    if cooperative:
        grid = (grid[0], 1, min(grid[2], 3))
    assert kernels.get("look", block).description.loops
    seen = np.zeros(int(np.prod(grid)) * threads, SEEN)
    kernels.launch("look", grid, block, seen, cooperative=cooperative)
    right = np.zeros_like(seen)
    index = 0
    for z, y, x in itertools.product(range(grid[2]), range(grid[1]), range(grid[0])):
        part = right[index : index + threads]
        place = np.arange(threads)
        part["block"] = x, y, z
        part["thread"] = np.stack([place % block[0], place // block[0] % block[1], place // (block[0] * block[1])], 1)
        part["warp"], part["lane"] = place // 32, place % 32
        index += threads
    right["times"], right["grid"] = 1, grid
    np.testing.assert_array_equal(seen, right)


def _apart(i: np.ndarray[Any, Any], block: np.ndarray[Any, Any], thread: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    total = np.zeros_like(i)
    for k in range(8):
        total += (i * k + thread + 1000 * block) * ((k + i) % 8 + 1)
    return total


@pytest.mark.parametrize("threads", [40, 128])
def test_nothing_is_left_of_the_warp_before(kernels: Kernels, threads: int) -> None:
    """Local memory, lanes that ended inside a function, and memory taken from the stack are each warp's own."""
    blocks = 130
    n = blocks * threads - 9
    i = np.arange(blocks * threads)
    out, left = np.zeros(i.size, np.uint32), np.zeros(i.size, np.uint32)
    kernels.launch("functions", blocks, threads, out, left, np.uint32(n))
    ended = (i < n) & (i % 7 == 3)
    np.testing.assert_array_equal(left, ended)
    block, thread = i // threads, i % threads
    right = (_apart(i, block, thread) + _apart(i + 7, block, thread)).astype(np.uint32)
    np.testing.assert_array_equal(out, np.where((i < n) & ~ended, right, 0))
    Kernels(TAKES).launch("takes", blocks, threads, out)
    np.testing.assert_array_equal(out, 2 * i)


@pytest.mark.parametrize("threads", [1, 32, 33, 128])
@pytest.mark.parametrize("name", ["asks", "only_asks"])
def test_local_addresses_are_asked_for_without_local_memory(name: str, threads: int) -> None:
    count = np.zeros(1, np.uint32)
    kernels = Kernels(ASKS)
    assert kernels.get(name, (threads,)).description.local_bytes == 0
    kernels.launch(name, 40, threads, count)
    assert count[0] == 40 * threads


@pytest.mark.parametrize("name", ["faults", "traps"])
def test_the_message_names_block_and_warp(kernels: Kernels, name: str) -> None:
    grid, threads = (6, 5, 40), 160
    for block, thread in (((0, 0, 0), 0), ((5, 4, 20), 159), ((2, 3, 39), 70)):
        out = np.zeros(int(np.prod(grid)) * threads, np.uint32)
        with pytest.raises(LaunchError, match=rf"block \({block[0]},{block[1]},{block[2]}\), warp {thread // 32}\b"):
            kernels.launch(name, grid, threads, out, *map(np.uint32, block), np.uint32(thread))


def test_a_grid_that_failed_stops_within_its_runs(kernels: Kernels) -> None:
    blocks, count = 20000, np.zeros(1, np.uint32)
    kernels.launch("slow", 1, 64, count, np.uint32(1000))
    assert count[0] == 1
    with pytest.raises(LaunchError, match="illegal address"):
        kernels.launch("slow", blocks, 64, count, np.uint32(20000))
    assert count[0] < blocks // 4


def test_warps_that_meet_are_not_run_one_after_the_other(kernels: Kernels) -> None:
    """... but blocks of one whole warp are; for others the code is that of rows of any length."""
    for threads, loops in ((64, False), (32, True), (1, True), (20, False)):
        assert kernels.get("meets", (threads,)).description.loops == loops
        out = np.zeros(300 * threads, np.uint32)
        kernels.launch("meets", 300, threads, out)
        np.testing.assert_array_equal(out.reshape(300, threads), np.arange(out.size).reshape(300, threads)[:, ::-1])


def test_stale_warps_would_be_seen(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above fail when the loop forgets what it has to keep up to date."""
    real = warp_loop.around

    def forgets(e: Any) -> tuple[list[str], list[str]]:
        first, last = real(e)
        return [line for line in first if "%run.first_thread.p" not in line or "store" not in line], [
            line for line in last if "ptr %run.ctaid" not in line
        ]

    monkeypatch.setattr(warp_loop, "around", forgets)
    monkeypatch.setattr("gpuvirt.soft.host.object_cache.read", lambda key: None)
    monkeypatch.setattr("gpuvirt.soft.host.object_cache.write", lambda *a: True)
    broken = Kernels(compile_ptx(SOURCE))
    with pytest.raises(AssertionError):
        test_nothing_is_left_of_the_warp_before(broken, 128)
    with pytest.raises(AssertionError):
        test_the_message_names_block_and_warp(broken, "faults")
