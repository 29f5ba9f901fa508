"""Locks: of lanes, of elements, through functions and pointers; and blocks that take turns."""

from __future__ import annotations

import numpy as np
from soft.kernels import Kernels
from soft.nvrtc import compile_ptx
from soft.scheduling.cases import case, cuda, i32, zeros

from gpuvirt.soft.pipeline import translate
from gpuvirt.soft.ptx.module import Module

# ---- blocks in turn ----

SEMAPHORE = r"""extern "C" __global__ void f(int* turn, int* log) {
    if (threadIdx.x == 0) {
        int seen;
        do asm volatile("ld.global.acquire.gpu.b32 %0, [%1];" : "=r"(seen) : "l"(turn) : "memory"); while (seen != blockIdx.x);
    }
    __syncwarp(); __syncthreads();
    log[blockIdx.x * blockDim.x + threadIdx.x] = *(volatile int*)turn;
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("st.global.release.gpu.b32 [%0], %1;" :: "l"(turn), "r"(blockIdx.x + 1) : "memory");
}"""


@case
def lanes_with_an_active_mask_stay_together() -> None:
    """Lanes that wait for other warps, and then exchange with those that __activemask names, as triangular solvers do: in code for one lane each that
    would be the lane alone."""
    source = r"""extern "C" __global__ void f(volatile int* ready, int* out) {
        int lane = threadIdx.x & 31, warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, sum = 0;
        for (int i = 0; i < 4; i++) {
            unsigned together = __activemask();
            if (lane < 5) while (ready[warp] <= i) {}
            __threadfence();
            sum += __shfl_down_sync(together, lane + i, 1);
        }
        out[warp * 32 + lane] = sum;
        __threadfence();
        if (lane == 0) ready[warp + 1] = 4;
    }"""
    ptx = compile_ptx(source, "compute_90")
    ready, out = zeros(9), zeros(8 * 32)
    ready[0] = 4
    Kernels(ptx).launch("f", 4, 64, ready, out)
    lane = np.arange(32)
    want = 4 * np.minimum(lane + 1, 31) + 6
    assert (out.reshape(8, 32) == want).all(), out
    assert "lane.gv_kernel" not in translate(Module(ptx), "f", (64, 1, 1))[0]


@case
def blocks_take_turns_by_a_semaphore() -> None:
    """As matrix products add up in order: one thread of each block waits for the block before, the others of its warp for that thread, so that they
    need no code of their own (which takes long to make where a kernel is large)."""
    turn, log = zeros(1), zeros(12 * 64)
    ptx = compile_ptx(SEMAPHORE, "compute_90")
    Kernels(ptx).launch("f", 12, 64, turn, log)
    assert turn[0] == 12 and (log.reshape(12, 64) == np.arange(12)[:, None]).all(), log
    text, _, _ = translate(Module(ptx), "f", (64, 1, 1))
    assert "lane.gv_kernel" not in text


# ---- locks ----


@case
def mutex_of_all_lanes() -> None:
    """Every lane of every warp takes the same lock; the winner leaves the loop, the others go on trying."""
    k = cuda(r"""extern "C" __global__ void f(int* lock, volatile int* sum) {
        while (atomicCAS(lock, 0, 1)) {}
        __threadfence(); *sum = *sum + 1; __threadfence();
        atomicExch(lock, 0);
    }""")
    lock, total = zeros(1), zeros(1)
    k.launch("f", 5, 100, lock, total)
    assert total[0] == 500, total[0]


@case
def mutex_inside_the_loop() -> None:
    k = cuda(r"""extern "C" __global__ void f(int* lock, volatile int* sum) {
        bool done = false;
        while (!done) if (atomicCAS(lock, 0, 1) == 0) { *sum = *sum + 1; __threadfence(); atomicExch(lock, 0); done = true; }
    }""")
    lock, total = zeros(1), zeros(1)
    k.launch("f", 5, 100, lock, total)
    assert total[0] == 500, total[0]


@case
def mutex_then_barrier() -> None:
    """Lanes come out of the lock one by one; none passes the barrier before all have."""
    k = cuda(r"""extern "C" __global__ void f(int* lock, volatile int* sum, int* seen) {
        for (int round = 0; round < 3; round++) {
            while (atomicCAS(lock, 0, 1)) {}
            *sum = *sum + 1; __threadfence();
            atomicExch(lock, 0);
            __syncthreads();
            seen[round * blockDim.x + threadIdx.x] = *sum;
            __syncthreads();
        }
    }""")
    for threads in (32, 96, 100):
        lock, total, seen = zeros(1), zeros(1), zeros(3 * threads)
        k.launch("f", 1, threads, lock, total, seen)
        want = np.repeat([threads, 2 * threads, 3 * threads], threads)
        assert (seen == want).all(), (threads, seen)


@case
def one_lane_waits_for_a_block_then_barrier() -> None:
    """As a product split into parts does: a lane that is put off holds the others up at the barrier, and what follows it runs once."""
    source = """
extern "C" __global__ void k(volatile int *flag, int *out, int n) {
    int t = threadIdx.x;
    if (blockIdx.x == 0 && t == 0) {
        for (long long from = clock64(); clock64() - from < 20000000;) ;
        *flag = 1;
    }
    if (blockIdx.x == 1 && t == 0) while (atomicCAS((int *)flag, 1, 1) != 1) ;
    __syncthreads();
    int *mine = out + blockIdx.x * 32 + t;
    if (t < n) mine[0] += 1;
    out[64 + blockIdx.x * 32 + t] += 1;
    if (t < n / 2) mine[0] += 1;
}"""
    out = zeros(128)
    cuda(source).launch("k", 2, 32, zeros(1), out, i32(20))
    lanes = np.arange(32)
    assert out[:64].tolist() == 2 * ((lanes < 20).astype(int) + (lanes < 10)).tolist() and (out[64:] == 1).all()


@case
def a_lock_for_each_element() -> None:
    k = cuda(r"""extern "C" __global__ void f(int* locks, volatile int* data, int n) {
        for (int r = 0; r < 6; r++) {
            int e = (threadIdx.x * 7 + r * 3 + blockIdx.x) % n;
            while (atomicCAS(&locks[e], 0, 1) != 0) __nanosleep(20);
            data[e] = data[e] + 1; __threadfence();
            atomicExch(&locks[e], 0);
        }
    }""")
    for n in (1, 5, 64):
        locks, data = zeros(n), zeros(n)
        k.launch("f", 4, 64, locks, data, i32(n))
        assert data.sum() == 4 * 64 * 6, data


@case
def two_locks_in_order() -> None:
    k = cuda(r"""__device__ void take(int* l) { while (atomicCAS(l, 0, 1)) {} __threadfence(); }
    __device__ void drop(int* l) { __threadfence(); atomicExch(l, 0); }
    extern "C" __global__ void f(int* locks, volatile int* money, int n) {
        int a = threadIdx.x % n, b = (threadIdx.x * 5 + 1 + blockIdx.x) % n;
        if (a == b) return;
        int low = min(a, b), high = max(a, b);
        take(&locks[low]); take(&locks[high]);
        money[a] -= 1; money[b] += 1;
        drop(&locks[high]); drop(&locks[low]);
    }""")
    n = 9
    locks, money = zeros(n), zeros(n)
    k.launch("f", 4, 64, locks, money, i32(n))
    want = zeros(n)
    for block in range(4):
        for t in range(64):
            a, b = t % n, (t * 5 + 1 + block) % n
            if a != b:
                want[a] -= 1
                want[b] += 1
    assert (money == want).all() and not locks.any()


@case
def tickets() -> None:
    """Served strictly in turn: lanes wait for lanes of their own warp that are behind them in no order of the program."""
    k = cuda(r"""extern "C" __global__ void f(int* next, volatile int* serving, int* order) {
        int mine = atomicAdd(next, 1);
        while (*serving != mine) {}
        order[mine] = blockIdx.x * blockDim.x + threadIdx.x;
        __threadfence();
        *serving = mine + 1;
    }""")
    nxt, serving, order = zeros(1), zeros(1), zeros(256)
    k.launch("f", 4, 64, nxt, serving, order)
    assert serving[0] == 256 and sorted(order) == list(range(256))


LOCK = r"""
__device__ __noinline__ void take(int* l) { while (atomicCAS(l, 0, 1)) {} __threadfence(); }
__device__ __noinline__ void drop(int* l) { __threadfence(); atomicExch(l, 0); }
__device__ __noinline__ bool attempt(int* l) { bool got = atomicCAS(l, 0, 1) == 0; __threadfence(); return got; }
"""


@case
def lock_in_functions() -> None:
    """Taken inside a function that is called, given back in another, by the caller between them."""
    k = cuda(
        LOCK
        + r"""extern "C" __global__ void f(int* lock, volatile int* sum, int* mine, int n) {
        int last = -1;
        for (int i = 0; i < n; i++) { take(lock); int x = *sum; *sum = x + 1; last = x; drop(lock); }
        mine[blockIdx.x * blockDim.x + threadIdx.x] = last + threadIdx.x;
    }"""
    )
    lock, total, mine = zeros(1), zeros(1), zeros(200)
    k.launch("f", 2, 100, lock, total, mine, i32(3))
    assert total[0] == 600, total[0]
    assert len(set(mine - np.arange(200) % 100)) == 200 and max(mine - np.arange(200) % 100) == 599


@case
def lock_attempted_in_a_function() -> None:
    """The loop is the caller's, and a lane that has the lock goes on behind the loop, or inside it."""
    k = cuda(
        LOCK
        + r"""extern "C" __global__ void f(int* lock, volatile int* sum) {
        while (!attempt(lock)) {}
        *sum = *sum + 1;
        drop(lock);
        bool done = false;
        while (!done) if (attempt(lock)) { *sum = *sum + 1; drop(lock); done = true; }
    }"""
    )
    lock, total = zeros(1), zeros(1)
    k.launch("f", 2, 80, lock, total)
    assert total[0] == 320, total[0]


@case
def lock_through_pointers() -> None:
    k = cuda(
        LOCK
        + r"""
    __device__ __noinline__ int one(int* lock, volatile int* sum) { take(lock); int x = *sum; *sum = x + 1; drop(lock); return x; }
    __device__ __noinline__ int two(int* lock, volatile int* sum) { take(lock); int x = *sum; *sum = x + 2; drop(lock); return -x; }
    __device__ __noinline__ int none(int* lock, volatile int* sum) { return 7; }
    typedef int (*work)(int*, volatile int*);
    __device__ work works[3] = {one, two, none};
    extern "C" __global__ void f(int* lock, volatile int* sum, int* out) {
        int t = threadIdx.x, before = t * 3;
        out[t] = works[t % 3](lock, sum) + before;
    }"""
    )
    lock, total, out = zeros(1), zeros(1), zeros(96)
    k.launch("f", 1, 96, lock, total, out)
    assert total[0] == 96, total[0]
    t = np.arange(96)
    got = out - 3 * t
    assert (got[2::3] == 7).all() and (got[0::3] >= 0).all() and (got[1::3] <= 0).all()
    assert len({*got[0::3], *-got[1::3]}) == 64


@case
def locks_in_a_recursion() -> None:
    """Each level takes a lock of its own and holds it while it goes down."""
    k = cuda(
        LOCK
        + r"""__device__ __noinline__ int down(int* locks, volatile int* sums, int level) {
        if (level == 0) return 1;
        take(&locks[level]);
        sums[level] = sums[level] + 1;
        int deeper = down(locks, sums, level - 1);
        drop(&locks[level]);
        return deeper + level;
    }
    extern "C" __global__ void f(int* locks, volatile int* sums, int* out) {
        int t = threadIdx.x;
        out[t] = down(locks, sums, 2 + t % 4) * 1000 + t;
    }"""
    )
    locks, sums, out = zeros(8), zeros(8), zeros(64)
    k.launch("f", 1, 64, locks, sums, out)
    assert not locks.any() and sums.tolist() == [0, 64, 64, 48, 32, 16, 0, 0], sums
    assert out.tolist() == [(1 + sum(range(1, 3 + t % 4))) * 1000 + t for t in range(64)], out


@case
def atomics_that_only_read() -> None:
    """Polling with atomicAdd(p, 0)."""
    k = cuda(r"""extern "C" __global__ void f(int* turn, int* order) {
        while (atomicAdd(turn, 0) != 63 - threadIdx.x) {}
        order[threadIdx.x] = atomicAdd(turn, 1);
    }""")
    turn, order = zeros(1), zeros(64)
    k.launch("f", 1, 64, turn, order)
    assert (order == 63 - np.arange(64)).all()


@case
def lanes_that_write_while_they_wait() -> None:
    """Each round of the loop that waits, and of a loop around it, writes."""
    k = cuda(r"""extern "C" __global__ void f(volatile int* flag, volatile int* tries, int* out) {
        int t = threadIdx.x;
        if (t) do { tries[t]++; for (int i = 0; i < 3 && !flag[t - 1]; i++) tries[t] += i; } while (!flag[t - 1]);
        out[t] = t; __threadfence(); flag[t] = tries[t] + 1;
    }""")
    for n in (32, 75):
        flag, tries, out = zeros(n), zeros(n), zeros(n)
        k.launch("f", 1, n, flag, tries, out)
        assert out.tolist() == list(range(n)) and (flag == tries + 1).all(), (flag, out)
