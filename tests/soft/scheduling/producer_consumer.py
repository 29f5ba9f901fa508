"""Producers and consumers: lanes, warps and blocks that pass data to each other."""

from __future__ import annotations

import numpy as np
from soft.kernels import Kernels
from soft.scheduling.cases import case, cuda, i32, zeros


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


@case
def blocks_keep_memory_of_their_own() -> None:
    """Shared and local memory, written before blocks wait for each other and read behind that; and by blocks that never wait for another."""
    k = cuda(r"""__device__ int work(int* box, int round) {
        int own[16], t = threadIdx.x;
        for (int i = 0; i < 16; i++) own[(i * 5 + t) % 16] = blockIdx.x * 1000 + t + i + round;
        box[t] = own[t % 16];
        __syncthreads();
        return box[t ^ 33] + own[(t + 3) % 16];
    }
    extern "C" __global__ void together(int* count, int* out) {
        __shared__ int box[64];
        int x = work(box, 0);
        __syncthreads();
        if (threadIdx.x == 0) { atomicAdd(count, 1); while (*(volatile int*)count < (int)gridDim.x) {} }
        __syncthreads();
        out[blockIdx.x * 64 + threadIdx.x] = x + box[threadIdx.x];
    }
    extern "C" __global__ void alone(int* count, int* out) {
        __shared__ int box[64];
        int x = 0;
        for (int r = 0; r < 5; r++) { x += work(box, r); __syncthreads(); }
        out[blockIdx.x * 64 + threadIdx.x] = x;
    }""")
    b, t = np.arange(24)[:, None], np.arange(64)[None, :]

    def own(t: np.ndarray, at: np.ndarray, round: int) -> np.ndarray:
        return b * 1000 + t + (at - t) * 13 % 16 + round  # 13 is the inverse of 5

    def x(round: int) -> np.ndarray:
        return own(t ^ 33, (t ^ 33) % 16, round) + own(t, (t + 3) % 16, round)

    for name, want in (("together", x(0) + own(t, t % 16, 0)), ("alone", sum(x(r) for r in range(5)))):
        out = zeros(24 * 64)
        k.launch(name, 24, 64, zeros(1), out)
        assert (out.reshape(24, 64) == want).all(), name


@case
def half_of_each_warp_waits_for_the_last_block() -> None:
    """A flag that the last of as many blocks as are resident at once sets: more warps wait than have room for stacks of all their lanes. The other half
    of each warp waits where the lanes' ways join."""
    k = cuda(r"""extern "C" __global__ void f(volatile int* flag, int* out) {
        int t = threadIdx.x, b = blockIdx.x;
        if (b == gridDim.x - 1) { if (t == 0) { __threadfence(); *flag = 3; } }
        else if (t & 1) while (!*flag) ;
        out[b * blockDim.x + t] = *flag + t;
    }""")
    flag, out = zeros(1), zeros(512 * 64)
    k.launch("f", 512, 64, flag, out)
    assert (out.reshape(512, 64)[:-1, 1::2] == 3 + np.arange(1, 64, 2)).all()


@case
def arrivals_before_a_syncwarp() -> None:
    """Half of a warp waits for a flag; the other half, whose code comes later, arrives at an mbarrier on its way to the __syncwarp that both come to.
    Another warp waits for the arrivals and sets the flag. (PTX, for a compiler puts loops last.)"""
    k = Kernels(""".version 8.0
    .target sm_90
    .address_size 64
    .visible .entry f(.param .u64 out) {
        .reg .pred %p<5>; .reg .b32 %r<3>; .reg .b64 %a<4>;
        .shared .align 8 .b64 here; .shared .b32 flag;
        mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; @%p0 bra READY;
        st.volatile.shared.u32 [flag], 0; mbarrier.init.shared.b64 [here], 16;
        READY: bar.sync 0; setp.gt.u32 %p3, %r0, 31; @%p3 bra OTHER;
        setp.gt.u32 %p1, %r0, 15; @%p1 bra ARRIVE;
        SPIN: ld.volatile.shared.u32 %r1, [flag]; setp.eq.u32 %p2, %r1, 0; @%p2 bra SPIN;
        bra MEET;
        ARRIVE: mbarrier.arrive.shared.b64 %a0, [here];
        MEET: bar.warp.sync -1; bra END;
        OTHER: mbarrier.test_wait.parity.shared.b64 %p4, [here], 0; @!%p4 bra OTHER;
        st.volatile.shared.u32 [flag], 1;
        END: ld.volatile.shared.u32 %r2, [flag]; add.u32 %r2, %r2, %r0;
        ld.param.u64 %a1, [out]; mul.wide.u32 %a2, %r0, 4; add.u64 %a1, %a1, %a2; st.global.u32 [%a1], %r2; ret;
    }""")
    out = zeros(64)
    k.launch("f", 1, 64, out)
    assert out.tolist() == [1 + t for t in range(64)], out
