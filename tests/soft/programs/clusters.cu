// Thread block clusters: a histogram and a halo over distributed shared memory, cluster barriers in two parts, launches by attribute and by the kernel's own shape.
#include "program.h"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

// Each block of the cluster keeps a part of the bins; every thread adds to the block that has its bin.
__global__ void distributed_histogram(const int *values, int n, int bins, int per_block, unsigned *out) {
    extern __shared__ unsigned part[];
    cg::cluster_group cluster = cg::this_cluster();
    for (int i = threadIdx.x; i < per_block; i += blockDim.x) part[i] = 0;
    cluster.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int bin = values[i];
        atomicAdd(cluster.map_shared_rank(part, bin / per_block) + bin % per_block, 1u);
    }
    cluster.sync(); // also so that nobody's memory goes while others add to it
    unsigned first = cluster.block_rank() * per_block;
    for (int i = threadIdx.x; i < per_block && (int)first + i < bins; i += blockDim.x) atomicAdd(&out[first + i], part[i]);
}

// A stencil whose borders are the neighbours' shared memory; a cluster of 2 x 2 blocks, which the kernel was compiled for.
constexpr int tile = 16;
__global__ void __cluster_dims__(2, 2, 1) halo(const float *in, float *out, int width, int rounds) {
    __shared__ float cells[2][tile][tile];
    cg::cluster_group cluster = cg::this_cluster();
    int tx = threadIdx.x, ty = threadIdx.y, x = blockIdx.x * tile + tx, y = blockIdx.y * tile + ty;
    cells[0][ty][tx] = in[y * width + x];
    cluster.sync();
    dim3 me = cluster.block_index(), all = cluster.dim_blocks();
    auto at = [&](int now, int dx, int dy) { // within the cluster's 32 x 32 cells, which are a torus
        int cx = (int)me.x * tile + tx + dx, cy = (int)me.y * tile + ty + dy, w = (int)all.x * tile, h = (int)all.y * tile;
        cx = (cx + w) % w, cy = (cy + h) % h;
        unsigned rank = cx / tile + cy / tile * all.x;
        return cluster.map_shared_rank(&cells[now][0][0], rank)[cy % tile * tile + cx % tile];
    };
    for (int r = 0; r < rounds; r++) {
        int now = r % 2;
        cells[1 - now][ty][tx] = 0.5f * at(now, 0, 0) + 0.125f * (at(now, 1, 0) + at(now, -1, 0) + at(now, 0, 1) + at(now, 0, -1));
        auto token = cluster.barrier_arrive();
        cluster.barrier_wait(std::move(token));
    }
    out[y * width + x] = cells[rounds % 2][ty][tx];
}

// What each block is told, in a grid of three dimensions.
__global__ void places(uint4 *out) {
    cg::cluster_group cluster = cg::this_cluster();
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    dim3 index = cluster.block_index();
    if (threadIdx.x == 0)
        out[block] = make_uint4(cluster.block_rank(), cluster.num_blocks(), index.x | index.y << 8 | index.z << 16, cluster.num_threads());
}

template <class... Parameters, class... Arguments>
static cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, dim3 cluster, Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster.x, attribute.val.clusterDim.y = cluster.y, attribute.val.clusterDim.z = cluster.z;
    config.attrs = &attribute, config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

static cudaError_t refused(dim3 grid, dim3 cluster, uint4 *out) {
    cudaError_t error = launch(places, grid, 64, 0, cluster, out);
    return cudaGetLastError() == error ? error : cudaSuccess;
}

static void histograms(Random &random, Verdict &v) {
    for (int size : {1, 2, 4, 8}) {
        int n = random.between(5000, 40000), bins = random.between(200, 900), per_block = (bins + size - 1) / size;
        auto values = random.ints(n, 0, bins - 1);
        std::vector<unsigned> want(bins);
        for (int value : values) want[value]++;
        Array<int> in(values);
        Array<unsigned> out(bins);
        CHECK(launch(distributed_histogram, 4 * size, 192, per_block * sizeof(unsigned), size, in.data, n, bins, per_block, out.data));
        v.same("histogram", out.host(), want);
    }
}

static void halos(Random &random, Verdict &v) {
    const int width = 4 * tile, side = 2 * tile, rounds = random.between(3, 9);
    auto first = random.reals(width * width, -1, 1);
    Array<float> in(first), out(first.size());
    halo<<<dim3(4, 4), dim3(tile, tile)>>>(in, out, width, rounds);
    std::vector<double> now(first.begin(), first.end()), next(first.size());
    for (int r = 0; r < rounds; r++, now.swap(next))
        for (int y = 0; y < width; y++)
            for (int x = 0; x < width; x++) {
                auto at = [&](int dx, int dy) {
                    int cx = x / side * side + (x % side + dx + side) % side, cy = y / side * side + (y % side + dy + side) % side;
                    return now[cy * width + cx];
                };
                next[y * width + x] = 0.5 * at(0, 0) + 0.125 * (at(1, 0) + at(-1, 0) + at(0, 1) + at(0, -1));
            }
    v.close("halo", out.host(), now, 1e-5);
}

static void told(Verdict &v) {
    Array<uint4> out(4 * 6 * 2);
    CHECK(launch(places, dim3(4, 6, 2), 64, 0, dim3(2, 3, 1), out.data));
    auto got = out.host();
    bool right = true;
    for (unsigned i = 0; i < 4 * 6 * 2; i++) {
        unsigned x = i % 4 % 2, y = i / 4 % 6 % 3;
        right &= got[i].x == x + 2 * y && got[i].y == 6 && got[i].z == (x | y << 8) && got[i].w == 6 * 64;
    }
    v.that("places", right);
    v.that("a grid of other clusters", refused(dim3(5, 6, 2), dim3(2, 3, 1), out) == cudaErrorInvalidClusterSize);
    v.that("sixteen blocks", refused(dim3(16), dim3(16), out) == cudaErrorInvalidClusterSize);
    CHECK(cudaFuncSetAttribute(places, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    cudaLaunchConfig_t config = {};
    config.gridDim = 16, config.blockDim = 64;
    int most = 0;
    CHECK(cudaOccupancyMaxPotentialClusterSize(&most, places, &config));
    v.that("the largest", most >= 8 && most <= 16);
    if (most < 16) return;
    CHECK(launch(places, 16, 64, 0, 16, out.data));
    got = out.host();
    right = true;
    for (unsigned i = 0; i < 16; i++) right &= got[i].x == i && got[i].y == 16;
    v.that("sixteen blocks, not portable", right);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("clusters");
    int has = 0;
    CHECK(cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, 0));
    v.that("the device has clusters", has);
    histograms(random, v);
    halos(random, v);
    told(v);
    return v.end();
}
