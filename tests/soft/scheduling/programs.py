"""Whole programs in which threads wait for one another: tables, lists, locks and barriers made of plain memory."""

from __future__ import annotations

import numpy as np
from soft.scheduling.cases import case, cuda, i32, zeros


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
