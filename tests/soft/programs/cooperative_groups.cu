// Cooperative groups: tiles and their collectives, coalesced threads, labelled and binary partitions, and a grid that synchronises as a whole.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include "program.h"

namespace cg = cooperative_groups;

template <int size> __global__ void tile_sums(const int *in, int *sums, int *scans, int *any) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<size>(block);
    int i = blockIdx.x * blockDim.x + block.thread_rank();
    sums[i] = cg::reduce(tile, in[i], cg::plus<int>());
    scans[i] = cg::exclusive_scan(tile, in[i]);
    any[i] = tile.any(in[i] > 90) + 2 * tile.all(in[i] > -90) + 4 * tile.shfl_xor(tile.meta_group_rank() + tile.thread_rank(), 1);
}

// Each odd value takes a number of its own; the lanes that do ask once for all of them.
__global__ void compact(const int *in, int *out, int *next, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && in[i] & 1) {
        auto active = cg::coalesced_threads();
        int first = 0;
        if (active.thread_rank() == 0) first = atomicAdd(next, (int)active.size());
        out[active.shfl(first, 0) + active.thread_rank()] = in[i];
    }
}

__global__ void partitions(const int *in, int *out) {
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    auto same = cg::labeled_partition(tile, (unsigned)in[i] % 5);
    auto sign = cg::binary_partition(tile, in[i] >= 0);
    out[i] = cg::reduce(same, in[i], cg::greater<int>()) * 64 + sign.size();
}

// An odd-even sort whose every step is one of the whole grid.
__global__ void sort_in_steps(int *a, int n) {
    auto grid = cg::this_grid();
    for (int step = 0; step < n; step++) {
        for (int i = 2 * (int)grid.thread_rank() + step % 2; i + 1 < n; i += 2 * (int)grid.size()) {
            int x = a[i], y = a[i + 1];
            a[i] = min(x, y), a[i + 1] = max(x, y);
        }
        grid.sync();
    }
}

template <int size> static void tiles(Verdict &v, const std::vector<int> &in) {
    const int n = (int)in.size();
    Array<int> data(in), sums(n), scans(n), any(n);
    tile_sums<size><<<n / 96, 96>>>(data, sums, scans, any);
    std::vector<int> want(n), scan(n), flags(n);
    for (int i = 0; i < n; i++) {
        int first = i - i % 96 % size, sum = 0, some = 0, all = 1, rank = i % 96 % size;
        for (int j = first; j < first + size; j++) {
            if (j < i) scan[i] += in[j];
            sum += in[j], some |= in[j] > 90, all &= in[j] > -90;
        }
        want[i] = sum;
        flags[i] = some + 2 * all + 4 * (i % 96 / size + (size > 1 ? rank ^ 1 : rank));
    }
    v.same("tile sums", sums.host(), want);
    v.same("tile scans", scans.host(), scan);
    v.same("tile votes", any.host(), flags);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("cooperative_groups");
    const int n = 96 * 20;
    auto in = random.ints(n, -100, 100);
    tiles<32>(v, in);
    tiles<16>(v, in);
    tiles<4>(v, in);

    Array<int> data(in), out(n), next(1);
    compact<<<blocks_for(n, 128), 128>>>(data, out, next, n - 7);
    std::vector<int> odd;
    for (int i = 0; i < n - 7; i++)
        if (in[i] & 1) odd.push_back(in[i]);
    auto got = out.host();
    v.same("count", next.first(), (int)odd.size());
    got.resize(odd.size());
    std::sort(got.begin(), got.end());
    std::sort(odd.begin(), odd.end());
    v.same("odd ones", got, odd);

    partitions<<<n / 64, 64>>>(data, out);
    std::vector<int> parts(n);
    for (int i = 0; i < n; i++) {
        int most = -1000, count = 0;
        for (int j = i - i % 32; j < i - i % 32 + 32; j++) {
            if ((unsigned)in[j] % 5 == (unsigned)in[i] % 5) most = std::max(most, in[j]);
            count += (in[j] >= 0) == (in[i] >= 0);
        }
        parts[i] = most * 64 + count;
    }
    v.same("partitions", out.host(), parts);

    int m = 300 + random.below(50), blocks = 0, device = 0, cooperative = 0;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device));
    v.same("cooperative launch", cooperative, 1);
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, sort_in_steps, 32, 0));
    v.that("occupancy", blocks > 0);
    auto few = random.ints(m, -1000000, 1000000);
    Array<int> sorted(few);
    void *arguments[] = {&sorted.data, &m};
    CHECK(cudaLaunchCooperativeKernel((void *)sort_in_steps, dim3(4), dim3(32), arguments, 0, nullptr));
    std::sort(few.begin(), few.end());
    v.same("sorted by the grid", sorted.host(), few);
    return v.end();
}
