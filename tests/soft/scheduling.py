"""Programs in which threads wait for one another, as sm_70 and later allow it. `python -m soft.scheduling CASE...` runs them and prints a line for each:
a case that hangs ends the process at its deadline, so they run apart from the tests (test_scheduling.py)."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from soft.nvrtc import compile_ptx

from gpuvirt.soft.harness import Kernels
from gpuvirt.soft.kernel import translate
from gpuvirt.soft.module import Module

DEADLINE = 60
# What still hangs or is wrong.
MISSING: set[str] = set()
CASES: dict[str, Callable[[], None]] = {}


def case(f: Callable[[], None]) -> Callable[[], None]:
    CASES[f.__name__] = f
    return f


def cuda(source: str) -> Kernels:
    return Kernels(compile_ptx(source, "compute_90"))


def zeros(n: int) -> np.ndarray[Any, Any]:
    return np.zeros(n, np.int32)


i32 = np.int32


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


# ---- producers and consumers ----


@case
def lanes_hand_on_in_a_chain() -> None:
    """Lane i waits for lane i - 1, and for lane i + 1 on the way back."""
    k = cuda(r"""extern "C" __global__ void f(volatile int* flag, int* out) {
        int t = threadIdx.x;
        if (t) while (!flag[t - 1]) {}
        int x = t ? out[t - 1] : 0;
        out[t] = x + t; __threadfence(); flag[t] = 1;
        if (t + 1 < blockDim.x) while (flag[t + 1] < 2) {}
        __threadfence(); flag[t] = 2;
    }""")
    for threads in (32, 50, 96):
        flag, out = zeros(threads), zeros(threads)
        k.launch("f", 1, threads, flag, out)
        assert (out == np.cumsum(np.arange(threads))).all() and (flag == 2).all()


@case
def producer_and_consumers_in_one_warp() -> None:
    """The consumers' loop comes first in the program, then the other way about."""
    for first in ("threadIdx.x != 5", "threadIdx.x == 5"):
        k = cuda(
            r"""__device__ void produce(volatile int* box, volatile int* full, int n) {
            for (int i = 0; i < n; i++) { while (*full) {} *box = 100 + i; __threadfence_block(); *full = 31; }
        }
        __device__ void consume(volatile int* box, volatile int* taken, int* full, int n, int* out) {
            for (int i = 0; i < n; i++) {
                while (*(volatile int*)full == 0 || taken[threadIdx.x] > i) {}
                int x = *box;
                out[threadIdx.x] += x;
                __threadfence_block();
                taken[threadIdx.x] = i + 1;
                atomicSub(full, 1);
                while (*(volatile int*)full != 0) {}
            }
        }
        extern "C" __global__ void f(int* out, int n) {
            __shared__ int box, full; __shared__ int taken[32];
            if (threadIdx.x == 0) { box = 0; full = 0; }
            taken[threadIdx.x] = 0;
            __syncthreads();
            if (FIRST) { BODY1 } else { BODY2 }
        }""".replace("FIRST", first)
            .replace("BODY1", "consume(&box, taken, &full, n, out);" if "!=" in first else "produce(&box, &full, n);")
            .replace("BODY2", "produce(&box, &full, n);" if "!=" in first else "consume(&box, taken, &full, n, out);")
        )
        out = zeros(32)
        k.launch("f", 1, 32, out, i32(1))
        assert (np.delete(out, 5) == 100).all(), out


@case
def ping_pong_of_two_lanes() -> None:
    k = cuda(r"""extern "C" __global__ void f(volatile int* turn, int* log, int n) {
        int me = threadIdx.x / 16;
        if (threadIdx.x % 16) return;
        for (int i = 0; i < n; i++) {
            while (*turn != 2 * i + me) {}
            log[2 * i + me] = me;
            __threadfence();
            *turn = 2 * i + me + 1;
        }
    }""")
    turn, log = zeros(1), zeros(80)
    k.launch("f", 1, 32, turn, log, i32(40))
    assert turn[0] == 80 and (log == np.arange(80) % 2).all()


@case
def warps_hand_on() -> None:
    k = cuda(r"""extern "C" __global__ void f(int* out) {
        __shared__ volatile int flag; __shared__ int sum;
        int warp = threadIdx.x / 32;
        if (threadIdx.x == 0) { flag = 0; sum = 0; }
        __syncthreads();
        while (flag != (int)(blockDim.x / 32) - 1 - warp) {}
        atomicAdd(&sum, warp * 100 + 1);
        __syncwarp();
        if (threadIdx.x % 32 == 0) { out[warp] = sum; __threadfence_block(); flag = flag + 1; }
    }""")
    out = zeros(8)
    k.launch("f", 1, 256, out)
    assert out.tolist() == list(np.cumsum([32 * (100 * w + 1) for w in range(7, -1, -1)]))[::-1]


@case
def blocks_wait_for_earlier_blocks() -> None:
    """Decoupled look-back: thousands of blocks, each waits for the one before it."""
    k = cuda(r"""extern "C" __global__ void f(volatile int* flag, volatile int* prefix, const int* in) {
        __shared__ int before;
        if (threadIdx.x == 0) {
            int b = blockIdx.x, sum = 0;
            if (b) { while (!flag[b - 1]) {} __threadfence(); sum = prefix[b - 1]; }
            prefix[b] = sum + in[b]; __threadfence(); flag[b] = 1;
            before = sum;
        }
        __syncthreads();
        if (before < 0) __trap();
    }""")
    n = 5000
    flag, prefix, source = zeros(n), zeros(n), np.arange(n, dtype=np.int32) % 7
    k.launch("f", n, 64, flag, prefix, source)
    assert (prefix == np.cumsum(source)).all()


@case
def blocks_wait_for_later_blocks() -> None:
    """A barrier of all blocks by a counter, as programs make it that know how many blocks are resident; of one warp each, and of several."""
    k = cuda(r"""extern "C" __global__ void f(int* count, volatile int* seen) {
        for (int round = 1; round <= 3; round++) {
            __syncthreads();
            if (threadIdx.x == 0) { atomicAdd(count, 1); while (*(volatile int*)count < round * (int)gridDim.x) {} }
            __syncthreads();
            if (threadIdx.x == 0) seen[blockIdx.x] += *(volatile int*)count >= round * (int)gridDim.x;
        }
    }""")
    for threads in (32, 64, 256):
        count, seen = zeros(1), zeros(24)
        k.launch("f", 24, threads, count, seen)
        assert count[0] == 72 and (seen == 3).all(), (threads, count, seen)


# ---- convergence ----


@case
def syncwarp_in_both_branches() -> None:
    """Halves of a warp exchange values, each at a __syncwarp of its own."""
    k = cuda(r"""extern "C" __global__ void f(int* out) {
        __shared__ volatile int box[32];
        int t = threadIdx.x;
        for (int r = 0; r < 3; r++) {
            if (t < 16) { box[t] = 100 * r + t; __syncwarp(); out[r * 32 + t] = box[t + 16] + 1; __syncwarp(); }
            else { box[t] = 100 * r + 2 * t; __syncwarp(); out[r * 32 + t] = box[t - 16] + 2; __syncwarp(); }
        }
    }""")
    out = zeros(96)
    k.launch("f", 1, 32, out)
    t = np.arange(32)
    for r in range(3):
        want = np.where(t < 16, 100 * r + 2 * (t + 16) + 1, 100 * r + (t - 16) + 2)
        assert (out[32 * r : 32 * r + 32] == want).all(), (r, out[32 * r : 32 * r + 32])


@case
def syncwarp_with_different_trip_counts() -> None:
    """Some lanes pass four rounds of one __syncwarp, the others two rounds of two; then lanes leave a loop early and go on in another."""
    k = cuda(r"""extern "C" __global__ void f(int* out, int* late, int n) {
        __shared__ volatile int box[32], seen[32];
        int t = threadIdx.x, sum = 0;
        if (t % 2) for (int i = 0; i < 2 * n; i++) { box[t] = i; __syncwarp(); sum += box[t - 1] * (i + 1); __syncwarp(); }
        else for (int i = 0; i < n; i++) {
            box[t] = 10 * i; __syncwarp(); sum += box[t + 1]; __syncwarp();
            box[t] = 10 * i + 5; __syncwarp(); sum += box[t + 1] * 3; __syncwarp();
        }
        out[t] = sum;
        int i = 0, rounds = t % 5;
        for (; i < rounds; i++) { seen[t] = i; __syncwarp(); late[t] += seen[(t + 1) % 32] >= 0; __syncwarp(); }
        for (; i < 5; i++) { seen[t] = -1 - i; __syncwarp(); late[t] += 100 * (seen[(t + 5) % 32] == (i < (t + 5) % 32 % 5 ? i : -1 - i)); __syncwarp(); }
    }""")
    n = 3
    out, late = zeros(32), zeros(32)
    k.launch("f", 1, 32, out, late, i32(n))
    odd = sum(5 * i * (i + 1) for i in range(2 * n))
    even = sum(2 * i + 3 * (2 * i + 1) for i in range(n))
    assert out.tolist() == [odd if t % 2 else even for t in range(32)], out
    want = [sum(i < (t + 1) % 32 % 5 for i in range(t % 5)) + 100 * (5 - t % 5) for t in range(32)]
    assert late.tolist() == want, (late, want)


@case
def exchanges_in_both_branches() -> None:
    """Named lanes converge: the same exchange, reached by way of different branches."""
    k = cuda(r"""extern "C" __global__ void f(int* out, volatile int* box) {
        int t = threadIdx.x, x;
        unsigned votes, equal; int total;
        if (t % 3 == 0) {
            box[t] = t;
            x = __shfl_sync(~0u, 100 + t, (t + 1) % 32);
            votes = __ballot_sync(~0u, t < 7);
            equal = __match_any_sync(~0u, t / 8);
            total = __reduce_add_sync(~0u, t);
            box[t] = x;
        } else {
            box[t] = -t;
            x = __shfl_sync(~0u, 200 + t, (t + 2) % 32);
            box[t] = x + 1;
            votes = __ballot_sync(~0u, t > 20);
            box[t] = votes;
            equal = __match_any_sync(~0u, t / 8);
            total = __reduce_add_sync(~0u, 2 * t);
        }
        out[t] = x; out[32 + t] = votes; out[64 + t] = equal; out[96 + t] = total;
    }""")
    out = zeros(128)
    k.launch("f", 1, 32, out, zeros(32))
    t = np.arange(32)
    value = np.where(t % 3 == 0, 100 + t, 200 + t)
    assert out[:32].tolist() == value[np.where(t % 3 == 0, t + 1, t + 2) % 32].tolist()
    votes = sum(1 << int(i) for i in t if (i < 7 if i % 3 == 0 else i > 20))
    assert (out[32:64].view(np.uint32) == votes).all()
    assert (out[64:96].view(np.uint32) == np.repeat([0xFF, 0xFF00, 0xFF0000, 0xFF000000], 8)).all()
    assert (out[96:] == np.where(t % 3 == 0, t, 2 * t).sum()).all()


@case
def barriers_in_both_branches() -> None:
    """barrier.sync (not aligned) is passed by each thread for itself."""
    k = cuda(r"""extern "C" __global__ void f(int* out) {
        __shared__ volatile int box[128];
        int t = threadIdx.x;
        if (t & 1) { box[t] = t; asm volatile("barrier.sync 0;" ::: "memory"); out[t] = box[t - 1]; }
        else { box[t] = 3 * t; asm volatile("barrier.sync 0;" ::: "memory"); out[t] = box[(t + 33) % 128]; }
    }""")
    out = zeros(128)
    k.launch("f", 1, 128, out)
    t = np.arange(128)
    assert (out == np.where(t & 1, 3 * (t - 1), (t + 33) % 128)).all(), out


@case
def tickets_between_barriers_in_branches() -> None:
    """Threads pass the block's barrier each for itself, in several branches, and wait for one another by tickets and locks between."""
    k = cuda(r"""extern "C" __global__ void f(int* out, volatile int* order, int* lock) {
        __shared__ volatile int serving, box[96], sum; __shared__ int next;
        int t = threadIdx.x, n = blockDim.x;
        if (t == 0) { serving = 0; next = 0; sum = 0; }
        __syncthreads();
        if (t % 3 == 0) {
            box[t] = t; asm volatile("barrier.sync 0;" ::: "memory"); out[t] = box[(t + 1) % n];
        } else {
            int mine = atomicAdd(&next, 1);
            while (serving != mine) ;
            order[mine] = t; box[t] = 2 * t; __threadfence_block();
            serving = mine + 1;
            while (atomicCAS(lock, 0, 1)) ;
            sum = sum + t; __threadfence();
            atomicExch(lock, 0);
            if (t % 3 == 1) { asm volatile("barrier.sync 0;" ::: "memory"); out[t] = box[(t + 2) % n]; }
            else { asm volatile("barrier.sync 0;" ::: "memory"); out[t] = box[(t + n - 1) % n] + sum; }
        }
        asm volatile("barrier.sync 0;" ::: "memory");
        out[t] += 10000 * (serving == n / 3 * 2);
    }""")
    for n in (48, 96):
        out, order = zeros(n), zeros(n)
        k.launch("f", 1, n, out, order, zeros(1))
        t = np.arange(n)
        box, total = np.where(t % 3 == 0, t, 2 * t), t[t % 3 != 0].sum()
        want = np.where(t % 3 == 0, box[(t + 1) % n], np.where(t % 3 == 1, box[(t + 2) % n], box[(t + n - 1) % n] + total)) + 10000
        assert (out == want).all(), (n, out, want)
        assert sorted(order[: n // 3 * 2]) == t[t % 3 != 0].tolist()


@case
def locks_and_syncwarps_in_both_branches() -> None:
    k = cuda(r"""extern "C" __global__ void f(int* out, int* lock, volatile int* sum) {
        __shared__ volatile int box[32];
        int t = threadIdx.x;
        while (atomicCAS(lock, 0, 1)) ;
        *sum = *sum + 1; __threadfence();
        atomicExch(lock, 0);
        if (t % 2) { box[t] = t; __syncwarp(); out[t] = box[t - 1]; __syncwarp(); box[t] = 7; __syncwarp(); out[t] += box[t - 1]; }
        else { box[t] = 3 * t; __syncwarp(); out[t] = box[t + 1]; __syncwarp(); box[t] = 9; __syncwarp(); out[t] += box[t + 1]; }
    }""")
    out, total = zeros(32), zeros(1)
    k.launch("f", 1, 32, out, zeros(1), total)
    t = np.arange(32)
    assert total[0] == 32 and (out == np.where(t % 2, 3 * (t - 1) + 9, t + 1 + 7)).all(), out


@case
def barriers_after_exits_and_with_partial_warps() -> None:
    k = cuda(r"""extern "C" __global__ void f(int* out) {
        __shared__ int box[128];
        int t = threadIdx.x;
        if (t % 5 == 4 || t / 32 == 1) return;
        box[t] = t;
        __syncthreads();
        int n = __syncthreads_count(t & 1), all = __syncthreads_and(t < 1000), any = __syncthreads_or(t == 3);
        out[t] = n * 1000 + all * 100 + any * 10 + (box[t - t % 5] == t - t % 5);
    }""")
    for threads in (20, 40, 72, 128):
        out = zeros(threads)
        k.launch("f", 1, threads, out)
        t = np.arange(threads)
        alive = (t % 5 != 4) & (t // 32 != 1)
        good = np.array([(x - x % 5) // 32 == x // 32 or (x - x % 5) // 32 != 1 for x in t])
        want = np.where(alive, (alive & (t & 1 == 1)).sum() * 1000 + 110 + 1, 0)
        assert (out[good] == want[good]).all(), (threads, out, want)


@case
def named_barriers() -> None:
    """Two pairs of warps pass values by bar.arrive and bar.sync."""
    k = cuda(r"""extern "C" __global__ void f(int* out, int n) {
        __shared__ volatile int box[2][32];
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = warp / 2;
        for (int i = 0; i < n; i++) {
            if (warp % 2 == 0) {
                if (i) asm volatile("bar.sync %0, 64;" :: "r"(2 * pair + 2) : "memory");
                box[pair][lane] = 1000 * pair + i + lane;
                __threadfence_block();
                asm volatile("bar.arrive %0, 64;" :: "r"(2 * pair + 1) : "memory");
            } else {
                asm volatile("bar.sync %0, 64;" :: "r"(2 * pair + 1) : "memory");
                out[pair * 32 + lane] += box[pair][31 - lane];
                if (i + 1 < n) asm volatile("bar.arrive %0, 64;" :: "r"(2 * pair + 2) : "memory");
            }
        }
    }""")
    out = zeros(64)
    k.launch("f", 1, 128, out, i32(7))
    want = [sum(1000 * p + i + 31 - lane for i in range(7)) for p in range(2) for lane in range(32)]
    assert out.tolist() == want


@case
def recursion_that_diverges() -> None:
    k = cuda(r"""__device__ __noinline__ int ack(int m, int n) { return m == 0 ? n + 1 : n == 0 ? ack(m - 1, 1) : ack(m - 1, ack(m, n - 1)); }
    __device__ __noinline__ int tree(int n) { if (n < 2) return n; int a = tree(n - 1); if (n % 3 == 0) return a; return a + tree(n - 2); }
    extern "C" __global__ void f(int* out) { int t = threadIdx.x; out[t] = t % 3 == 0 ? ack(2, t % 5) : tree(t % 13); }""")
    out = zeros(64)
    k.launch("f", 1, 64, out)

    def ack(m: int, n: int) -> int:
        return n + 1 if m == 0 else ack(m - 1, 1) if n == 0 else ack(m - 1, ack(m, n - 1))

    def tree(n: int) -> int:
        if n < 2:
            return n
        return tree(n - 1) if n % 3 == 0 else tree(n - 1) + tree(n - 2)

    assert out.tolist() == [ack(2, t % 5) if t % 3 == 0 else tree(t % 13) for t in range(64)]


@case
def warp_aggregated_atomics() -> None:
    k = cuda(r"""#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    __device__ int next(int* count) {
        auto g = cg::coalesced_threads();
        int base;
        if (g.thread_rank() == 0) base = atomicAdd(count, g.size());
        return g.shfl(base, 0) + g.thread_rank();
    }
    extern "C" __global__ void f(const int* in, int* out, int* count, int n) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) if (in[i] % 3 == 0) out[next(count)] = in[i];
    }""")
    n = 3000
    source = np.random.default_rng(1).integers(0, 1000, n).astype(np.int32)
    out, count = zeros(n), zeros(1)
    k.launch("f", 3, 96, source, out, count, i32(n))
    want = source[source % 3 == 0]
    assert count[0] == len(want) and sorted(out[: len(want)]) == sorted(want)


@case
def tiles_in_divergent_code() -> None:
    k = cuda(r"""#include <cooperative_groups.h>
    #include <cooperative_groups/reduce.h>
    namespace cg = cooperative_groups;
    template <int N> __device__ int work(int x) {
        auto tile = cg::tiled_partition<N>(cg::this_thread_block());
        int s = cg::reduce(tile, x, cg::plus<int>());
        for (int d = N / 2; d; d /= 2) x = max(x, tile.shfl_xor(x, d));
        tile.sync();
        return s * 1000 + x * 10 + tile.any(x == 3) + 2 * tile.all(x > 100);
    }
    extern "C" __global__ void f(int* out) {
        int t = threadIdx.x, x = (t * 37) % 101;
        int r;
        if (t / 8 % 2) r = work<8>(x); else if (t / 4 % 2) r = work<4>(x); else r = work<2>(x);
        out[t] = r;
    }""")
    out = zeros(64)
    k.launch("f", 1, 64, out)
    x = np.arange(64) * 37 % 101

    def want(t: int) -> int:
        size = 8 if t // 8 % 2 else 4 if t // 4 % 2 else 2
        tile = x[t // size * size : t // size * size + size]
        most = int(tile.max())
        return int(tile.sum()) * 1000 + most * 10 + (most == 3) + 2 * (most > 100)

    assert out.tolist() == [want(t) for t in range(64)]


@case
def partitions_of_coalesced_threads() -> None:
    k = cuda(r"""#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void f(int* out) {
        int t = threadIdx.x;
        if (t % 3 == 0) return;
        auto g = cg::coalesced_threads();
        auto part = cg::labeled_partition(g, t % 4);
        int sum = 0;
        for (int i = 0; i < part.size(); i++) sum += part.shfl(t, i);
        part.sync(); g.sync();
        out[t] = sum * 100 + part.thread_rank();
    }""")
    out = zeros(32)
    k.launch("f", 1, 32, out)
    for t in range(32):
        group = [u for u in range(32) if u % 3 and u % 4 == t % 4]
        assert out[t] == (sum(group) * 100 + group.index(t) if t % 3 else 0), t


@case
def grid_barrier() -> None:
    k = cuda(r"""#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void f(int* a, int n) {
        auto grid = cg::this_grid();
        for (int r = 0; r < 4; r++) {
            int i = grid.thread_rank();
            int x = a[(i + 33 * (r + 1)) % n];
            grid.sync();
            a[i] = x + 1;
            grid.sync();
        }
    }""")
    for threads in (32, 64):
        n = 20 * threads
        a = np.arange(n, dtype=np.int32)
        want = a.copy()
        for r in range(4):
            want = want[(np.arange(n) + 33 * (r + 1)) % n] + 1
        k.launch("f", 20, threads, a, i32(n), cooperative=True)
        assert (a == want).all()


# ---- programs ----


@case
def hash_table_with_locks() -> None:
    """Every lane inserts into buckets under their locks: the lock outside the loop's body, then with a flag."""
    k = cuda(r"""struct table { int locks[8], sizes[8], keys[8][128]; };
    __device__ void insert(table* t, int b, int key) { volatile int* n = &t->sizes[b]; int i = *n; ((volatile int*)t->keys[b])[i] = key; *n = i + 1; }
    extern "C" __global__ void spin(table* t) {
        int key = blockIdx.x * blockDim.x + threadIdx.x, b = key * 7 % 5;
        while (atomicCAS(&t->locks[b], 0, 1) != 0) ;
        __threadfence(); insert(t, b, key); __threadfence();
        atomicExch(&t->locks[b], 0);
    }
    extern "C" __global__ void flag(table* t) {
        int key = blockIdx.x * blockDim.x + threadIdx.x, b = key * 7 % 5;
        bool done = false;
        do {
            if (atomicCAS(&t->locks[b], 0, 1) == 0) { __threadfence(); insert(t, b, key); __threadfence(); atomicExch(&t->locks[b], 0); done = true; }
        } while (!done);
    }""")
    for name in ("spin", "flag"):
        table = zeros(16 + 8 * 128)
        k.launch(name, 4, 64, table)
        keys = table[16:].reshape(8, 128)
        for b in range(5):
            assert sorted(keys[b, : table[8 + b]]) == [x for x in range(256) if x * 7 % 5 == b], (name, b)


@case
def sorted_list_with_locks_at_its_nodes() -> None:
    """Hand over hand: a lane holds a node's lock while it waits for the next one's."""
    k = cuda(r"""struct node { int lock, key, next; };
    extern "C" __global__ void f(volatile node* nodes, int n) {
        int mine = 1 + blockIdx.x * blockDim.x + threadIdx.x, key = mine * 37 % 101, at = 0;
        nodes[mine].key = key;
        while (atomicCAS((int*)&nodes[0].lock, 0, 1)) ;
        for (;;) {
            int next = nodes[at].next;
            if (!next) break;
            while (atomicCAS((int*)&nodes[next].lock, 0, 1)) ;
            if (nodes[next].key >= key) { __threadfence(); atomicExch((int*)&nodes[next].lock, 0); break; }
            __threadfence(); atomicExch((int*)&nodes[at].lock, 0);
            at = next;
        }
        nodes[mine].next = nodes[at].next; __threadfence();
        nodes[at].next = mine; __threadfence();
        atomicExch((int*)&nodes[at].lock, 0);
    }""")
    nodes = zeros(3 * 65)
    k.launch("f", 2, 32, nodes, i32(64))
    table, at, keys = nodes.reshape(65, 3), 0, []
    while at := table[at, 2]:
        keys.append(int(table[at, 1]))
    assert keys == sorted(m * 37 % 101 for m in range(1, 65))


@case
def bakery_of_lanes() -> None:
    """Lamport's: mutual exclusion by plain loads and stores alone, between lanes of a warp and between warps."""
    k = cuda(r"""extern "C" __global__ void f(volatile int* choosing, volatile int* number, volatile int* sum, int n, int step, int rounds) {
        if (threadIdx.x % step) return;
        int me = threadIdx.x / step;
        for (int r = 0; r < rounds; r++) {
            choosing[me] = 1; __threadfence();
            int most = 0;
            for (int j = 0; j < n; j++) most = max(most, number[j]);
            number[me] = most + 1; __threadfence();
            choosing[me] = 0; __threadfence();
            for (int j = 0; j < n; j++) {
                while (choosing[j]) ;
                while (number[j] && (number[j] < number[me] || (number[j] == number[me] && j < me))) ;
            }
            *sum = *sum + 1; __threadfence();
            number[me] = 0; __threadfence();
        }
    }""")
    for n, step in ((2, 1), (7, 3), (6, 13)):
        total = zeros(1)
        k.launch("f", 1, n * step, zeros(n), zeros(n), total, i32(n), i32(step), i32(5))
        assert total[0] == 5 * n, (n, total)


@case
def peterson_of_two_lanes() -> None:
    k = cuda(r"""extern "C" __global__ void f(volatile int* wants, volatile int* turn, volatile int* sum, int rounds) {
        int me = threadIdx.x;
        if (me > 1) return;
        for (int r = 0; r < rounds; r++) {
            wants[me] = 1; __threadfence(); *turn = 1 - me; __threadfence();
            while (wants[1 - me] && *turn == 1 - me) ;
            *sum = *sum + 1; __threadfence();
            wants[me] = 0; __threadfence();
        }
    }""")
    total = zeros(1)
    k.launch("f", 1, 32, zeros(2), zeros(1), total, i32(25))
    assert total[0] == 50, total


@case
def barrier_of_atomics() -> None:
    """Made by the program: the last to come turns the sense that the others look at."""
    k = cuda(r"""__device__ void wait(int* count, volatile int* sense, int n, int& mine) {
        mine ^= 1;
        __threadfence();
        if (atomicAdd(count, 1) == n - 1) { *count = 0; __threadfence(); *sense = mine; } else while (*sense != mine) ;
        __threadfence();
    }
    extern "C" __global__ void f(int* count, volatile int* sense, volatile int* data, int* out) {
        int t = threadIdx.x, n = blockDim.x, mine = 0;
        for (int r = 1; r < 4; r++) {
            data[t] = r * t; wait(count, sense, n, mine);
            out[t] += data[(t + r) % n]; wait(count, sense, n, mine);
        }
    }""")
    for n in (32, 77):
        out = zeros(n)
        k.launch("f", 1, n, zeros(1), zeros(1), zeros(n), out)
        t = np.arange(n)
        assert (out == sum(r * ((t + r) % n) for r in (1, 2, 3))).all(), out


@case
def flags_that_are_loaded_in_other_ways() -> None:
    """Relaxed, acquire, .cg, and plain loads that a fence or assembler makes look again."""
    loads = {
        "relaxed": 'asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");',
        "acquire": 'asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");',
        "cg": 'asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");',
        "plain": 'asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");',
        "fence": "x = *p; __threadfence();",
    }
    for name, load in loads.items():
        k = cuda(
            r"""extern "C" __global__ void f(int* flag, int* out) {
            int t = threadIdx.x;
            if (t != 9) { int* p = flag; int x; do { LOAD } while (x == 0); out[t] = x + t; }
            else { __threadfence(); *(volatile int*)flag = 5; out[t] = -1; }
        }""".replace("LOAD", load)
        )
        out = zeros(40)
        k.launch("f", 1, 40, zeros(1), out)
        assert out.tolist() == [-1 if t == 9 else 5 + t for t in range(40)], (name, out)


@case
def atomics_that_wait() -> None:
    """cuda::atomic's wait and notify, between lanes of one warp."""
    k = cuda(r"""#include <cuda/atomic>
    extern "C" __global__ void f(int* turn, int* out) {
        cuda::atomic_ref<int, cuda::thread_scope_device> now(*turn);
        int me = 31 - threadIdx.x, x;
        while ((x = now.load()) != me) now.wait(x);
        out[me] = threadIdx.x;
        now.store(me + 1); now.notify_all();
    }""")
    out = zeros(32)
    k.launch("f", 1, 32, zeros(1), out)
    assert (out == 31 - np.arange(32)).all(), out


@case
def barriers_and_semaphores_of_the_library() -> None:
    k = cuda(r"""#include <cuda/barrier>
    #include <cuda/semaphore>
    extern "C" __global__ void f(int* inside, int* most, int* out) {
        __shared__ cuda::barrier<cuda::thread_scope_block> odd, all;
        __shared__ cuda::counting_semaphore<cuda::thread_scope_block, 3> room;
        __shared__ int box[64];
        int t = threadIdx.x;
        if (t == 0) { init(&odd, blockDim.x / 2); init(&all, blockDim.x); new (&room) cuda::counting_semaphore<cuda::thread_scope_block, 3>(3); }
        __syncthreads();
        for (int r = 0; r < 3; r++) {
            if (t & 1) { box[t] = r * t; odd.arrive_and_wait(); out[t] += box[(t + 2) % 64]; }
            all.arrive_and_wait();
        }
        room.acquire();
        atomicMax(most, atomicAdd(inside, 1) + 1);
        atomicSub(inside, 1);
        room.release();
        out[t] += 1000;
    }""")
    inside, most, out = zeros(1), zeros(1), zeros(64)
    k.launch("f", 1, 64, inside, most, out)
    t = np.arange(64)
    assert out.tolist() == (1000 + np.where(t & 1, 3 * ((t + 2) % 64), 0)).tolist(), out
    assert inside[0] == 0 and 1 <= most[0] <= 3, most


@case
def blocks_synchronised_after_exits_in_branches() -> None:
    """Lanes wait for each other by flags, some end, the rest meet at the block's barrier and at an exchange."""
    k = cuda(r"""#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void f(volatile int* flag, int* out) {
        int t = threadIdx.x;
        if (t % 7 == 3) { while (!flag[t / 7 * 7]) ; out[t] = 1; return; }
        if (t % 7 == 0) { __threadfence(); flag[t] = 1; }
        auto block = cg::this_thread_block();
        block.sync();
        auto g = cg::coalesced_threads();
        auto part = cg::labeled_partition(g, t % 2);
        int n = part.size(), sum = part.shfl(t, 0);
        part.sync();
        block.sync();
        if (t % 7 == 5) return;
        block.sync();
        out[t] = __syncthreads_count(t % 2) * 10000 + (n > 0) * 100 + sum % 100 % 2;
    }""")
    for n in (64, 50):
        out = zeros(n)
        k.launch("f", 1, n, zeros(n), out)
        left = [t for t in range(n) if t % 7 not in (3, 5)]
        odd = sum(t % 2 for t in left)
        want = [1 if t % 7 == 3 else 0 if t % 7 == 5 else odd * 10000 + 100 + t % 2 for t in range(n)]
        assert out.tolist() == want, (n, out.tolist(), want)


@case
def many_warps_go_apart() -> None:
    """Each of thousands of warps waits for itself."""
    k = cuda(r"""extern "C" __global__ void f(int* sums) {
        __shared__ volatile int serving; __shared__ int next;
        if (threadIdx.x == 0) { serving = 0; next = 0; }
        __syncthreads();
        int mine = atomicAdd(&next, 1);
        while (serving != mine) ;
        sums[blockIdx.x] = sums[blockIdx.x] * 3 + mine;
        __threadfence();
        serving = mine + 1;
    }""")
    n = 400
    sums = zeros(n)
    k.launch("f", n, 32, sums)
    want = 0
    for i in range(32):
        want = (want * 3 + i) & 0xFFFFFFFF
    assert (sums.view(np.uint32) == want).all()


def main() -> None:
    for name in sys.argv[1:]:
        print(f"begin {name}", flush=True)
        faulthandler.dump_traceback_later(DEADLINE, exit=True)
        try:
            CASES[name]()
            print(f"right {name}", flush=True)
        except Exception as error:  # the next case is to run all the same
            print(f"wrong {name} {type(error).__name__}: {str(error)[:500]!r}", flush=True)
        faulthandler.cancel_dump_traceback_later()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
