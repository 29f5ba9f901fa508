// Matrix products through shared memory: a 16 x 16 tile, and a 64 x 64 tile with 4 x 4 results a thread and vector loads, in float and double.
#include "program.h"

template <class T> __global__ void simple(const T *a, const T *b, T *c, int m, int n, int k) {
    __shared__ T as[16][16], bs[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    T sum = 0;
    for (int start = 0; start < k; start += 16) {
        as[threadIdx.y][threadIdx.x] = y < m && start + threadIdx.x < k ? a[y * k + start + threadIdx.x] : T(0);
        bs[threadIdx.y][threadIdx.x] = x < n && start + threadIdx.y < k ? b[(start + threadIdx.y) * n + x] : T(0);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; i++) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
        __syncthreads();
    }
    if (y < m && x < n) c[y * n + x] = sum;
}

// Sizes are multiples of 64 (m, n) and 16 (k).
__global__ void __launch_bounds__(256) blocked(const float *a, const float *b, float *c, int n, int k) {
    __shared__ float as[16][64];
    __shared__ float4 bs[16][16];
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const float *from_a = a + (size_t)(blockIdx.y * 64 + threadIdx.x / 4) * k + threadIdx.x % 4 * 4;
    const float4 *from_b = reinterpret_cast<const float4 *>(b + (size_t)ty * n + blockIdx.x * 64) + tx;
    float sums[4][4] = {};
    for (int start = 0; start < k; start += 16) {
        float4 part = *reinterpret_cast<const float4 *>(from_a + start);
        int row = threadIdx.x / 4, column = threadIdx.x % 4 * 4;
        as[column][row] = part.x, as[column + 1][row] = part.y, as[column + 2][row] = part.z, as[column + 3][row] = part.w;
        bs[ty][tx] = __ldg(from_b);
        from_b += 16 * n / 4;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float4 p = *reinterpret_cast<float4 *>(&as[i][ty * 4]), q = bs[i][tx];
            float left[4] = {p.x, p.y, p.z, p.w}, right[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int s = 0; s < 4; s++) sums[r][s] = fmaf(left[r], right[s], sums[r][s]);
        }
        __syncthreads();
    }
    for (int r = 0; r < 4; r++)
        *reinterpret_cast<float4 *>(&c[(size_t)(blockIdx.y * 64 + ty * 4 + r) * n + blockIdx.x * 64 + tx * 4]) =
            make_float4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
}

template <class T> static std::vector<double> product(const std::vector<T> &a, const std::vector<T> &b, int m, int n, int k) {
    std::vector<double> c(m * n);
    for (int y = 0; y < m; y++)
        for (int i = 0; i < k; i++)
            for (int x = 0; x < n; x++) c[y * n + x] += (double)a[y * k + i] * b[i * n + x];
    return c;
}

template <class T> static void run(Verdict &v, Random &random, double bound) {
    int m = 40 + random.below(60), n = 40 + random.below(60), k = 40 + random.below(60);
    auto a = random.reals<T>(m * k, -1, 1), b = random.reals<T>(k * n, -1, 1);
    Array<T> da(a), db(b), dc(m * n);
    simple<T><<<dim3(blocks_for(n, 16), blocks_for(m, 16)), dim3(16, 16)>>>(da, db, dc, m, n, k);
    v.close(sizeof(T) == 8 ? "double" : "float", dc.host(), product(a, b, m, n, k), bound);
    if constexpr (sizeof(T) == 4) {
        m = 128, n = 192, k = 80;
        a = random.reals<T>(m * k, -1, 1), b = random.reals<T>(k * n, -1, 1);
        Array<T> ea(a), eb(b), ec(m * n);
        blocked<<<dim3(n / 64, m / 64), 256>>>(ea, eb, ec, n, k);
        v.close("blocked", ec.host(), product(a, b, m, n, k), bound);
    }
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("matmul_shared");
    run<float>(v, random, 5e-6);
    run<double>(v, random, 1e-14);
    return v.end();
}
