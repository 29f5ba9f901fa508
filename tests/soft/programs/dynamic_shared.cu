// Dynamic shared memory: beside static arrays, cut into arrays of several types, and more than 48 KiB by the function's attribute.
#include "program.h"

__global__ void reverse(const double *in, double *out, int n) {
    extern __shared__ double big[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) big[i] = in[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = big[n - 1 - i];
}

__global__ void several(const int *in, double *out, int n) {
    extern __shared__ __align__(16) unsigned char raw[];
    __shared__ int least;
    double *doubles = reinterpret_cast<double *>(raw);
    int *ints = reinterpret_cast<int *>(doubles + n);
    short *shorts = reinterpret_cast<short *>(ints + n);
    int i = threadIdx.x;
    if (i == 0) least = 1 << 30;
    __syncthreads();
    if (i < n) {
        doubles[i] = 0.5 * in[i];
        ints[i] = in[i];
        shorts[i] = (short)(in[i] / 2);
        atomicMin(&least, in[i]);
    }
    __syncthreads();
    int j = n - 1 - i;
    if (i < n) out[i] = doubles[j] + ints[j] + shorts[j] + least;
}

__global__ void sizes(unsigned *out) {
    extern __shared__ int cells[];
    unsigned dynamic, total;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(dynamic));
    asm("mov.u32 %0, %%total_smem_size;" : "=r"(total));
    out[0] = dynamic;
    out[1] = total >= dynamic && __isShared(cells) && !__isShared(out) && __isGlobal(out);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("dynamic_shared");
    int most = 0, usual = 0;
    CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    CHECK(cudaDeviceGetAttribute(&usual, cudaDevAttrMaxSharedMemoryPerBlock, 0));
    v.that("limits", usual >= 48 << 10 && most >= 96 << 10);
    const int n = 12000 + random.below(288), bytes = n * (int)sizeof(double);
    auto in = random.reals<double>(n, -1, 1);
    Array<double> a(in), b(n);
    reverse<<<1, 256, bytes>>>(a, b, n);
    v.same("refused without the attribute", cudaGetLastError(), cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    reverse<<<1, 256, bytes>>>(a, b, n);
    std::reverse(in.begin(), in.end());
    v.same("reversed", b.host(), in);
    v.same("more than there is", cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1), cudaErrorInvalidValue);
    cudaGetLastError();

    const int m = 100 + random.below(28);
    auto ints = random.ints(m, -1000, 1000);
    Array<int> c(ints);
    Array<double> d(m);
    several<<<1, 128, m * (sizeof(double) + sizeof(int) + sizeof(short))>>>(c, d, m);
    std::vector<double> want(m);
    int least = *std::min_element(ints.begin(), ints.end());
    for (int i = 0; i < m; i++) want[i] = 1.5 * ints[m - 1 - i] + ints[m - 1 - i] / 2 + least;
    v.same("several arrays", d.host(), want);

    Array<unsigned> size(2);
    sizes<<<1, 1, 1040>>>(size);
    v.same("sizes", size.host(), std::vector<unsigned>{1040, 1});
    return v.end();
}
