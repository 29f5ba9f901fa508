"""Blocks of a cluster: their barrier, in one part and in two, and what they write into each other's shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from soft.kernels import Kernels
from soft.scheduling.cases import case, cuda, zeros

SHAPES = ((4, 16, 128), (2, 8, 32), (8, 8, 70), (1, 3, 96))  # blocks of a cluster and of the grid, threads
ROUNDS = 20
EXCHANGE = (
    r"""extern "C" __global__ void f(unsigned* out) {
    __shared__ unsigned cell[128];
    unsigned rank = __clusterRelativeBlockRank(), next = (rank + 1) % __clusterSizeInBlocks(), sum = 0, t = threadIdx.x;
    unsigned* there = (unsigned*)__cluster_map_shared_rank(cell, next);
    for (unsigned round = 0; round < ROUNDS; round++) {
        cell[t] = blockIdx.x * 1000 + t + round;
        SYNC;
        sum = sum * 3 + there[t];
        SYNC;
    }
    out[blockIdx.x * blockDim.x + t] = sum;
}"""
).replace("ROUNDS", str(ROUNDS))


def exchanged(blocks: int, of: int, threads: int) -> Any:
    """What every thread of EXCHANGE sums up."""
    block = np.arange(blocks)
    read = (block // of * of + (block % of + 1) % of)[:, None] * 1000 + np.arange(threads)
    total = np.zeros((blocks, threads), np.uint32)
    for turn in range(ROUNDS):
        total = total * 3 + (read + turn).astype(np.uint32)
    return total


def _exchange(sync: str) -> None:
    k = cuda(EXCHANGE.replace("SYNC", sync))
    for of, blocks, threads in SHAPES:
        out = np.zeros((blocks, threads), np.uint32)
        k.launch("f", blocks, threads, out, cluster=(of, 1, 1))
        assert np.array_equal(out, exchanged(blocks, of, threads)), (of, blocks, threads)


@case
def clusters_exchange_round_after_round() -> None:
    _exchange("__cluster_barrier_arrive(); __cluster_barrier_wait()")


@case
def clusters_do_other_things_between_arrival_and_wait() -> None:
    _exchange("__cluster_barrier_arrive(); __syncthreads(); if (round % 3 == rank % 3) __nanosleep(20); __cluster_barrier_wait()")


@case
def both_sides_of_a_branch_arrive_at_the_clusters_barrier() -> None:
    """One side after the other; the warp waits as a whole, so it has arrived once."""
    _exchange(
        'if (t & 1) { asm volatile("barrier.cluster.arrive;"); sum += 0; } else asm volatile("barrier.cluster.arrive;"); __syncwarp(); __cluster_barrier_wait()'
    )


@case
def lanes_wait_for_each_other_between_barriers_of_the_cluster() -> None:
    """Lanes that leave the code for 32 of them arrive and wait for their warp."""
    k = cuda(
        r"""extern "C" __global__ void f(unsigned* out) {
        __shared__ unsigned cell[64]; __shared__ volatile unsigned turn[2];
        unsigned rank = __clusterRelativeBlockRank(), size = __clusterSizeInBlocks(), t = threadIdx.x;
        if (t % 32 == 0) turn[t / 32] = 0;
        cell[t] = 0;
        __cluster_barrier_arrive(); __cluster_barrier_wait();
        while (turn[t / 32] != 31 - t % 32) {}
        *(unsigned*)__cluster_map_shared_rank(&cell[t], (rank + 1) % size) = blockIdx.x * 100 + t;
        __threadfence_block();
        turn[t / 32] = 32 - t % 32;
        __cluster_barrier_arrive(); __cluster_barrier_wait();
        out[blockIdx.x * 64 + t] = cell[t];
    }"""
    )
    out = np.zeros((8, 64), np.uint32)
    k.launch("f", 8, 64, out, cluster=(4, 1, 1))
    block = np.arange(8)
    assert np.array_equal(out, (block // 4 * 4 + (block - 1) % 4)[:, None] * 100 + np.arange(64)), out


@case
def who_has_exited_is_not_awaited_by_the_cluster() -> None:
    """Warps of one block and a whole other block end early: some before they arrive, some after."""
    k = cuda(
        r"""extern "C" __global__ void f(int* out) {
        unsigned rank = __clusterRelativeBlockRank(), t = threadIdx.x;
        if (rank == 2 || (rank == 1 && t >= 64)) return;
        if (rank == 1 && t >= 32) { __cluster_barrier_arrive(); return; }
        for (int i = 0; i < 5; i++) { __cluster_barrier_arrive(); __cluster_barrier_wait(); }
        out[blockIdx.x * 96 + t] = 2;
    }"""
    )
    out = zeros(8 * 96)
    k.launch("f", 8, 96, out, cluster=(4, 1, 1))
    got = out.reshape(2, 4, 96)
    assert (got[:, [0, 3]] == 2).all() and (got[:, 1, :32] == 2).all() and not got[:, 1, 32:].any() and not got[:, 2].any()


@case
def blocks_of_a_cluster_run_at_the_same_time() -> None:
    """Each waits in a loop for what the one before it writes, in shared and in global memory, in a grid of many clusters."""
    k = cuda(
        r"""extern "C" __global__ void f(int* out, volatile int* seen) {
        __shared__ volatile int box;
        unsigned rank = __clusterRelativeBlockRank(), size = __clusterSizeInBlocks(), next = (rank + 1) % size;
        if (!threadIdx.x) box = 0;
        __cluster_barrier_arrive(); __cluster_barrier_wait();
        if (!threadIdx.x) *(volatile int*)__cluster_map_shared_rank((void*)&box, next) = blockIdx.x + 1;
        while (!box) {}
        if (!threadIdx.x) seen[blockIdx.x - rank + next] = box;
        while (!seen[blockIdx.x]) {}
        out[blockIdx.x * blockDim.x + threadIdx.x] = box << 16 | seen[blockIdx.x];
        __cluster_barrier_arrive(); __cluster_barrier_wait();
    }"""
    )
    blocks, of = 64, 4
    out, seen = np.zeros((blocks, 64), np.int32), zeros(blocks)
    k.launch("f", blocks, 64, out, seen, cluster=(of, 1, 1))
    block = np.arange(blocks)
    first, second = (block // of * of + (block - back) % of + 1 for back in (1, 2))
    assert (out == (first << 16 | second)[:, None]).all(), out[:, 0]


@case
def cooperative_grids_of_clusters() -> None:
    """All clusters are resident at once: the grid meets at a counter in memory."""
    k = cuda(
        r"""extern "C" __global__ void f(int* out, int* count) {
        __shared__ int cell[32];
        unsigned rank = __clusterRelativeBlockRank(), size = __clusterSizeInBlocks(), t = threadIdx.x;
        cell[t] = blockIdx.x * 1000 + t;
        __cluster_barrier_arrive(); __cluster_barrier_wait();
        out[blockIdx.x * 32 + t] = ((int*)__cluster_map_shared_rank(cell, (rank + 1) % size))[t];
        __threadfence(); __syncthreads();
        if (!t) atomicAdd(count, 1);
        while (*(volatile int*)count < gridDim.x) {}
        __threadfence();
        int other = ((volatile int*)out)[(gridDim.x - 1 - blockIdx.x) * 32 + t];
        __cluster_barrier_arrive(); __cluster_barrier_wait();
        out[(gridDim.x + blockIdx.x) * 32 + t] = other;
    }"""
    )
    out, count = np.zeros((2, 64, 32), np.int32), zeros(1)
    k.launch("f", 64, 32, out, count, cluster=(4, 1, 1), cooperative=True)
    block = np.arange(64)
    want = (block // 4 * 4 + (block + 1) % 4)[:, None] * 1000 + np.arange(32)
    assert np.array_equal(out[0], want) and np.array_equal(out[1], want[::-1])


WAIT = "WAITS: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r8], 0; @!%p8 bra WAITS;"
SYNC = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
WRITES = f""".version 8.8\n.target sm_120a\n.address_size 64
.visible .entry k(.param .u64 o) {{ .reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %q<20>; .shared .align 1024 .b8 sm[8192]; .shared .align 16 .b64 bar[2];
ld.param.u64 %q0, [o]; mov.u32 %r0, %tid.x; mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %cluster_nctarank; add.u32 %r3, %r1, 1; rem.u32 %r3, %r3, %r2;
mov.u32 %r4, %ctaid.x; mad.lo.u32 %r6, %r4, 64, %r0; mul.wide.u32 %q2, %r6, 4; add.u64 %q2, %q2, %q0; setp.ne.u32 %p1, %r0, 0; mov.u32 %r7, sm; mov.u32 %r8, bar;
shl.b32 %r9, %r0, 2; add.u32 %r9, %r9, %r7; st.shared.u32 [%r9], 5; mad.lo.u32 %r10, %r1, 100, %r0; st.shared.u32 [%r9+1024], %r10;
@!%p1 mbarrier.init.shared.b64 [%r8], %r2; {SYNC} mapa.shared::cluster.u32 %r20, %r7, %r3; mapa.shared::cluster.u32 %r21, %r8, %r3;
@%p1 bra GO; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r8], 128;
mov.u32 %r22, 77; st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r20], %r22, [%r21];
mad.lo.u32 %r22, %r1, 10, 3; red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r20+4], %r22, [%r21];
mov.u64 %q9, 0x200000001; st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r20+8], %q9, [%r21]; add.u32 %r24, %r20, 128; add.u32 %r25, %r7, 1024;
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r24], [%r25], 112, [%r21];
GO: setp.ge.u32 %p5, %r0, %r2; @%p5 bra WAITS; mapa.shared::cluster.u32 %r23, %r8, %r0; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r23];
{WAIT} ld.shared.u32 %r14, [%r9]; st.global.u32 [%q2], %r14; {SYNC} ret; }}"""


@case
def writes_to_another_block_complete_its_barrier() -> None:
    """st.async, red.async, a copy from shared to shared memory, and arrivals from every block of the cluster."""
    out = np.zeros((8, 64), np.uint32)
    Kernels(WRITES).launch("k", 8, 64, out, cluster=(4, 1, 1))
    for block in range(8):
        before = (block - 1) % 4
        want = np.full(64, 5, np.uint32)
        want[:4] = [77, 5 + before * 10 + 3, 1, 2]
        want[32:60] = before * 100 + np.arange(28)
        assert np.array_equal(out[block], want), (block, out[block])
