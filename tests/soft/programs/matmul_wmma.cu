// Matrix products on tensor cores by nvcuda::wmma: f16 and bf16 into float, f16 into f16, 8-bit integers, tf32, double; several shapes and layouts.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "program.h"

using namespace nvcuda;

template <class In, class Frag, class Out, int M, int N, int K, class LayoutA, class LayoutB>
__global__ void multiply(const In *a, const In *b, Out *c, int n, int k, int lda, int ldb) {
    constexpr bool row_a = std::is_same_v<LayoutA, wmma::row_major>, row_b = std::is_same_v<LayoutB, wmma::row_major>;
    int y = blockIdx.y * M, x = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * N;
    if (x >= n) return;
    wmma::fragment<wmma::matrix_a, M, N, K, Frag, LayoutA> left;
    wmma::fragment<wmma::matrix_b, M, N, K, Frag, LayoutB> right;
    wmma::fragment<wmma::accumulator, M, N, K, Out> sum;
    wmma::fill_fragment(sum, Out(0));
    for (int i = 0; i < k; i += K) {
        wmma::load_matrix_sync(left, row_a ? a + y * lda + i : a + i * lda + y, lda);
        wmma::load_matrix_sync(right, row_b ? b + i * ldb + x : b + x * ldb + i, ldb);
        if constexpr (std::is_same_v<Frag, wmma::precision::tf32>) {
            for (auto &e : left.x) e = wmma::__float_to_tf32(e);
            for (auto &e : right.x) e = wmma::__float_to_tf32(e);
        }
        wmma::mma_sync(sum, left, right, sum);
    }
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] = sum.x[i] + sum.x[i];
    wmma::store_matrix_sync(c + y * n + x, sum, n, wmma::mem_row_major);
}

template <class In, class Frag, class Out, int M, int N, int K, class LayoutA, class LayoutB>
static void run(Verdict &v, Random &random, const char *what, double bound) {
    constexpr bool row_a = std::is_same_v<LayoutA, wmma::row_major>, row_b = std::is_same_v<LayoutB, wmma::row_major>;
    const int m = 64, n = 96, k = 80;
    std::vector<In> a(m * k), b(k * n);
    for (auto *matrix : {&a, &b})
        for (auto &e : *matrix) {
            if constexpr (std::is_integral_v<In>) e = (In)random.bits();
            else e = In(float(random.between(-64, 64)) / 64); // exact in every type; so are the products
        }
    std::vector<double> want(m * n);
    for (int y = 0; y < m; y++)
        for (int x = 0; x < n; x++)
            for (int i = 0; i < k; i++)
                want[y * n + x] += 2 * static_cast<double>(a[row_a ? y * k + i : i * m + y]) * static_cast<double>(b[row_b ? i * n + x : x * k + i]);
    Array<In> da(a), db(b);
    Array<Out> dc(m * n);
    multiply<In, Frag, Out, M, N, K, LayoutA, LayoutB><<<dim3(blocks_for(n / N, 2), m / M), 64>>>(da, db, dc, n, k, row_a ? k : m, row_b ? n : k);
    v.close(what, dc.host(), want, bound);
}

int main(int argc, char **argv) {
    using wmma::col_major, wmma::row_major;
    Random random(argc, argv);
    Verdict v("matmul_wmma");
    run<half, half, float, 16, 16, 16, row_major, row_major>(v, random, "f16", 1e-6);
    run<half, half, float, 16, 16, 16, col_major, col_major>(v, random, "f16 columns", 1e-6);
    run<half, half, float, 32, 8, 16, row_major, col_major>(v, random, "f16 32x8", 1e-6);
    run<half, half, float, 8, 32, 16, col_major, row_major>(v, random, "f16 8x32", 1e-6);
    run<half, half, half, 16, 16, 16, row_major, col_major>(v, random, "f16 into f16", 1e-2);
    run<__nv_bfloat16, __nv_bfloat16, float, 16, 16, 16, row_major, col_major>(v, random, "bf16", 1e-6);
    run<float, wmma::precision::tf32, float, 16, 16, 8, row_major, col_major>(v, random, "tf32", 1e-6);
    run<double, double, double, 8, 8, 4, row_major, col_major>(v, random, "f64", 1e-14);
    run<signed char, signed char, int, 16, 16, 16, row_major, col_major>(v, random, "s8", 0);
    run<unsigned char, unsigned char, int, 32, 8, 16, row_major, col_major>(v, random, "u8", 0);
    return v.end();
}
