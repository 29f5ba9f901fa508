// Prefix sums: inclusive (Hillis and Steele), exclusive (Blelloch), by shuffles, and over many blocks in three launches.
#include "program.h"

__global__ void inclusive_steps(const int *in, int *out) {
    __shared__ int cells[2][512];
    int i = threadIdx.x, from = 0;
    cells[0][i] = in[blockIdx.x * 512 + i];
    __syncthreads();
    for (int d = 1; d < 512; d *= 2, from ^= 1) {
        cells[from ^ 1][i] = cells[from][i] + (i >= d ? cells[from][i - d] : 0);
        __syncthreads();
    }
    out[blockIdx.x * 512 + i] = cells[from][i];
}

// Two elements a thread; the block's sum goes to sums when it is given.
__global__ void exclusive_tree(const int *in, int *out, int *sums) {
    extern __shared__ int tree[];
    const int n = 2 * blockDim.x, i = threadIdx.x, base = blockIdx.x * n;
    tree[2 * i] = in[base + 2 * i];
    tree[2 * i + 1] = in[base + 2 * i + 1];
    int offset = 1;
    for (int d = n / 2; d > 0; d /= 2, offset *= 2) {
        __syncthreads();
        if (i < d) tree[offset * (2 * i + 2) - 1] += tree[offset * (2 * i + 1) - 1];
    }
    if (i == 0) {
        if (sums) sums[blockIdx.x] = tree[n - 1];
        tree[n - 1] = 0;
    }
    for (int d = 1; d < n; d *= 2) {
        offset /= 2;
        __syncthreads();
        if (i < d) {
            int a = offset * (2 * i + 1) - 1, b = offset * (2 * i + 2) - 1, t = tree[a];
            tree[a] = tree[b];
            tree[b] += t;
        }
    }
    __syncthreads();
    out[base + 2 * i] = tree[2 * i];
    out[base + 2 * i + 1] = tree[2 * i + 1];
}

__global__ void add_sums(int *out, const int *sums) { out[blockIdx.x * blockDim.x + threadIdx.x] += sums[blockIdx.x]; }

__global__ void inclusive_shuffles(const double *in, double *out, int n) {
    __shared__ double of_warps[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double v = threadIdx.x < n ? in[threadIdx.x] : 0;
    for (int d = 1; d < 32; d *= 2) {
        double w = __shfl_up_sync(~0u, v, d);
        if (lane >= d) v += w;
    }
    if (lane == 31) of_warps[warp] = v;
    __syncthreads();
    if (warp == 0) {
        double w = of_warps[lane];
        for (int d = 1; d < 32; d *= 2) {
            double u = __shfl_up_sync(~0u, w, d);
            if (lane >= d) w += u;
        }
        of_warps[lane] = w;
    }
    __syncthreads();
    if (threadIdx.x < n) out[threadIdx.x] = v + (warp ? of_warps[warp - 1] : 0);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("scan");
    const int blocks = 256, n = blocks * 512;
    auto in = random.ints(n, -100, 100);
    Array<int> data(in), out(n), sums(blocks), offsets(blocks);
    std::vector<int> want(n);

    inclusive_steps<<<blocks, 512>>>(data, out);
    for (int i = 0, sum = 0; i < n; i++) want[i] = sum = (i % 512 ? sum : 0) + in[i];
    v.same("inclusive", out.host(), want);

    exclusive_tree<<<blocks, 256, 512 * sizeof(int)>>>(data, out, sums);
    exclusive_tree<<<1, blocks / 2, blocks * sizeof(int)>>>(sums, offsets, nullptr);
    add_sums<<<blocks, 512>>>(out, offsets);
    for (int i = 0, sum = 0; i < n; sum += in[i++]) want[i] = sum;
    v.same("exclusive", out.host(), want);

    const int m = random.between(900, 1024);
    auto reals = random.reals<double>(m, 0, 1);
    Array<double> from(reals), to(m);
    inclusive_shuffles<<<1, 1024>>>(from, to, m);
    std::vector<double> sums_of_reals(m);
    double sum = 0;
    for (int i = 0; i < m; i++) sums_of_reals[i] = sum += reals[i];
    v.close("shuffles", to.host(), sums_of_reals, 1e-13);
    return v.end();
}
