// CUB in kernels: sorts, scans, reductions, histograms and exchanges of blocks and warps.
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>

#include "program.h"

constexpr int threads = 128, each = 7, tile = threads * each;

__global__ void sort_and_scan(const int *in, int *sorted, long long *sums, int *largest) {
    using Load = cub::BlockLoad<int, threads, each, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
    using Sort = cub::BlockRadixSort<int, threads, each>;
    using Scan = cub::BlockScan<long long, threads>;
    using Reduce = cub::BlockReduce<int, threads>;
    using Store = cub::BlockStore<int, threads, each, cub::BLOCK_STORE_TRANSPOSE>;
    __shared__ union {
        Load::TempStorage load;
        Sort::TempStorage sort;
        Scan::TempStorage scan;
        Reduce::TempStorage reduce;
        Store::TempStorage store;
    } shared;
    int items[each], base = blockIdx.x * tile;
    long long wide[each];
    Load(shared.load).Load(in + base, items);
    __syncthreads();
    int most = Reduce(shared.reduce).Reduce(items, [](int a, int b) { return a > b ? a : b; });
    if (threadIdx.x == 0) largest[blockIdx.x] = most;
    __syncthreads();
    Sort(shared.sort).Sort(items);
    __syncthreads();
    for (int k = 0; k < each; k++) wide[k] = items[k];
    Scan(shared.scan).InclusiveSum(wide, wide);
    __syncthreads();
    Store(shared.store).Store(sorted + base, items);
    for (int k = 0; k < each; k++) sums[base + threadIdx.x * each + k] = wide[k];
}

__global__ void count(const unsigned char *in, unsigned *bins) {
    using Histogram = cub::BlockHistogram<unsigned char, threads, each, 256, cub::BLOCK_HISTO_ATOMIC>;
    __shared__ Histogram::TempStorage shared;
    __shared__ unsigned own[256];
    unsigned char items[each];
    for (int k = 0; k < each; k++) items[k] = in[blockIdx.x * tile + threadIdx.x * each + k];
    Histogram(shared).Histogram(items, own);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += threads) atomicAdd(&bins[i], own[i]);
}

__global__ void of_warps(const double *in, double *scans, double *sums, float *sorted) {
    using Scan = cub::WarpScan<double, 16>;
    using Reduce = cub::WarpReduce<double>;
    using Sort = cub::WarpMergeSort<float, 3>;
    __shared__ Scan::TempStorage scan[threads / 16];
    __shared__ Reduce::TempStorage reduce[threads / 32];
    __shared__ Sort::TempStorage sort[threads / 32];
    int i = blockIdx.x * threads + threadIdx.x;
    double x = in[i], before;
    Scan(scan[threadIdx.x / 16]).ExclusiveSum(x, before);
    scans[i] = before;
    double sum = Reduce(reduce[threadIdx.x / 32]).Sum(x);
    if (threadIdx.x % 32 == 0) sums[i / 32] = sum;
    float items[3] = {(float)x, (float)(x * x), (float)-x};
    Sort(sort[threadIdx.x / 32]).Sort(items, [](float a, float b) { return a < b; });
    for (int k = 0; k < 3; k++) sorted[i * 3 + k] = items[k];
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("cub_collectives");
    const int blocks = 5, n = blocks * tile;
    auto in = random.ints(n, -1000000, 1000000);
    Array<int> data(in), sorted(n), largest(blocks);
    Array<long long> sums(n);
    sort_and_scan<<<blocks, threads>>>(data, sorted, sums, largest);
    std::vector<int> most(blocks);
    std::vector<long long> want(n);
    for (int b = 0; b < blocks; b++) {
        std::sort(in.begin() + b * tile, in.begin() + (b + 1) * tile);
        most[b] = in[(b + 1) * tile - 1];
        long long sum = 0;
        for (int i = b * tile; i < (b + 1) * tile; i++) want[i] = sum += in[i];
    }
    v.same("sorted", sorted.host(), in);
    v.same("sums", sums.host(), want);
    v.same("largest", largest.host(), most);

    std::vector<unsigned char> bytes(n);
    std::vector<unsigned> bins(256);
    for (auto &b : bytes) bins[b = (unsigned char)(random.below(16) * random.below(16))]++;
    Array<unsigned char> db(bytes);
    Array<unsigned> counts(256);
    count<<<blocks, threads>>>(db, counts);
    v.same("histogram", counts.host(), bins);

    const int m = 2 * threads;
    auto reals = random.reals<double>(m, -3, 3);
    Array<double> dr(reals), scans(m), totals(m / 32);
    Array<float> ordered(3 * m);
    of_warps<<<2, threads>>>(dr, scans, totals, ordered);
    std::vector<double> before(m), total(m / 32);
    std::vector<float> order(3 * m);
    for (int i = 0; i < m; i++) {
        total[i / 32] += reals[i];
        if (i % 16) before[i] = before[i - 1] + reals[i - 1];
        order[3 * i] = (float)reals[i], order[3 * i + 1] = (float)(reals[i] * reals[i]), order[3 * i + 2] = (float)-reals[i];
    }
    for (int w = 0; w < m / 32; w++) std::sort(order.begin() + 96 * w, order.begin() + 96 * (w + 1));
    v.close("scans of warps", scans.host(), before, 1e-14);
    v.close("sums of warps", totals.host(), total, 1e-14);
    v.same("sorted by warps", ordered.host(), order);
    return v.end();
}
