"""Where threads come together again: barriers, exchanges and groups in branches, loops and recursions."""

from __future__ import annotations

import numpy as np
from soft.kernels import Kernels
from soft.nvrtc import compile_ptx
from soft.scheduling.cases import case, cuda, i32, zeros

from gpuvirt.soft.pipeline import translate
from gpuvirt.soft.ptx.module import Module


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
        asm volatile("bar.sync 5;" ::: "memory"); /* the first for which the warps that end may be awaited */
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


# Lanes that hand on in a chain, by plain loads: the lanes are in the lane fallback behind it.
_CHAIN = """__device__ void chain(volatile int* flag) {
    int t = threadIdx.x;
    if (t) while (!flag[t - 1]) ;
    __threadfence(); flag[t] = 1;
}
"""


@case
def places_given_out_after_a_vote() -> None:
    """As sparse triangular solvers of cuSPARSE pack what they find: the lanes that voted read how much there is, and one of them adds to it."""
    k = cuda(
        _CHAIN
        + r"""extern "C" __global__ void f(volatile int* flag, int* out, int* count, int n) {
        __shared__ volatile int filled, rounds; __shared__ int box[1024];
        int t = threadIdx.x, seen = 0;
        if (t == 0) filled = rounds = 0;
        __syncwarp();
        chain(flag);
        for (int i = t; ; i += 32) {
            bool mine = i < n && i * 7 % 3 != t % 2;
            __syncwarp();
            unsigned votes = __ballot_sync(~0u, mine);
            int rank = __popc(votes & ((2u << t) - 1)), before = filled, round = rounds;
            if (mine) box[before + rank - 1] = i;
            if (t == 31) filled = before + rank;
            if (t == 0) rounds = round + 1;
            seen = seen * 2 + round;
            if (__all_sync(~0u, i >= n)) break;
        }
        __syncwarp();
        for (int i = t; i < filled; i += 32) out[i] = box[i];
        if (t == 0) *count = filled;
        __syncwarp();
        count[1 + t] = seen;
    }"""
    )
    n = 300
    out, count = zeros(n), zeros(33)
    k.launch("f", 1, 32, zeros(32), out, count, i32(n))
    want = [i for i in range(n) if i * 7 % 3 != i % 32 % 2]
    assert (count[1:] == sum(r << -(-n // 32) - r for r in range(-(-n // 32) + 1))).all(), count
    assert count[0] == len(want) and out[: len(want)].tolist() == want, (count, out)


@case
def lanes_in_step_behind_branches_and_loops() -> None:
    """Where the ways of a branch, of a loop with different rounds, of a switch and of a call join, lanes are together: what one writes before others read
    it they read, and what they read before it writes they read as it was. With a __syncwarp at each such place it is the same."""
    source = (
        _CHAIN
        + r"""__device__ __noinline__ int deep(volatile int* box, int t, int n) {
        int x = n;
        if (t % 3) x += box[(t + 1) % 32]; else for (int i = 0; i < t; i++) x ^= box[i] + i;
        STEP box[t] = x; STEP
        int y = box[(t + 7) % 32]; STEP
        return y + (n ? deep(box, t, n - 1) : 0);
    }
    extern "C" __global__ void f(volatile int* flag, volatile int* out, int rounds) {
        __shared__ volatile int box[32];
        int t = threadIdx.x, sum = 0;
        box[t] = t;
        __syncwarp();
        chain(flag);
        __syncwarp();
        for (int r = 0; r < rounds; r++) {
            if (t % 4 == 1) { for (int i = 0; i < t + r; i++) sum += box[i % 32]; } else if (t > 20) out[32 + t] = sum; else sum += out[32 + t];
            STEP box[t] = sum + r; STEP
            sum = sum * 3 + box[31 - t];
            int x = box[t ^ 1]; STEP
            if (t == r % 32) box[t ^ 1] = -x;
            STEP switch ((t + r) % 5) {
                case 0: sum += box[0]; break;
                case 1: sum -= box[1];
                case 2: sum ^= 77; break;
                case 3: for (int i = 0; i < t % 7; i++) sum += box[i + r % 3]; break;
            }
            sum += box[(t + 3) % 32]; STEP
            if (r % 2) continue;
            sum += deep(box, t, 2);
            sum += box[(t + 1) % 32]; STEP
        }
        out[t] = sum;
    }"""
    )
    found = []
    for step in ("__syncwarp();", ""):
        out = zeros(64)
        cuda(source.replace("STEP", step)).launch("f", 1, 32, zeros(32), out, i32(9))
        found.append(out.tolist())
    assert found[0] == found[1], found


@case
def active_lanes_of_the_lane_fallback() -> None:
    """__activemask names all lanes that are in step, also where each has code of its own, and so an exchange with those whom it names reaches them."""
    source = r"""extern "C" __global__ void f(unsigned* masks, int* out, volatile int* box) {
        int t = threadIdx.x, x, sum = 0;
        if (t % 3 == 0) { box[t] = t; x = __shfl_sync(~0u, 100 + t, (t + 1) % 32); box[t] = x; }
        else { box[t] = -t; x = __shfl_sync(~0u, 200 + t, (t + 2) % 32); box[t] = x + 1; }
        for (int r = 0; r < 3; r++) {
            if ((t + r) & 1) {
                unsigned active = __activemask();
                masks[r * 32 + t] = active;
                sum += __shfl_sync(active, x, 31 - __clz(active));
            } else box[t] = r;
        }
        out[t] = sum;
        unsigned some = 0;
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p activemask.b32 %0; }" : "+r"(some) : "r"(t & 4));
        masks[96 + t] = some;
    }"""
    ptx = compile_ptx(source, "compute_90")
    assert "lane.gv_kernel" in translate(Module(ptx), "f", (32, 1, 1))[0]
    masks, out = np.zeros(128, np.uint32), zeros(32)
    Kernels(ptx).launch("f", 1, 32, masks, out, zeros(32))
    t = np.arange(32)
    odd, even = np.where(t & 1, 0xAAAAAAAA, 0), np.where(t & 1, 0, 0x55555555)
    assert masks[:96].tolist() == [*odd, *even, *odd], [hex(m) for m in masks[:96]]
    assert masks[96:].tolist() == np.where(t & 4, 0xF0F0F0F0, 0).tolist(), [hex(m) for m in masks[96:]]
    value = np.where(t % 3 == 0, 100 + t, 200 + t)[np.where(t % 3 == 0, t + 1, t + 2) % 32]
    assert out.tolist() == np.where(t & 1, 2 * value[31], value[30]).tolist(), out


# What programs rely on that lanes keep in step, as they do on a GPU, in the lane fallback too.
IN_STEP = ("places_given_out_after_a_vote", "lanes_in_step_behind_branches_and_loops")
