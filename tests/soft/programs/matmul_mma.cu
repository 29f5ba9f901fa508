// Matrix products by mma.sync as PTX, with ldmatrix from shared memory: f16, bf16, tf32, 8-bit integers, double; rounding of real numbers within the type's bound.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "program.h"

// One warp makes 16 x 8 of C from row-major A (16 x k) and column-major B (k x 8); T is a 16-bit float.
template <class T> __global__ void of_halves(const T *a, const T *b, float *c, int n, int k) {
    __shared__ __align__(16) T as[16][24], bs[8][24];
    int lane = threadIdx.x, group = lane / 4, in_group = lane % 4;
    const T *rows = a + blockIdx.y * 16 * k, *columns = b + blockIdx.x * 8 * k;
    float sum[4] = {};
    for (int start = 0; start < k; start += 16) {
        for (int i = lane; i < 16 * 16; i += 32) as[i / 16][i % 16] = rows[i / 16 * k + start + i % 16];
        for (int i = lane; i < 8 * 16; i += 32) bs[i / 16][i % 16] = columns[i / 16 * k + start + i % 16];
        __syncwarp();
        unsigned p[4], q[2];
        unsigned at_a = (unsigned)__cvta_generic_to_shared(&as[lane % 16][lane / 16 * 8]);
        unsigned at_b = (unsigned)__cvta_generic_to_shared(&bs[lane % 8][lane / 8 % 2 * 8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(p[0]), "=r"(p[1]), "=r"(p[2]), "=r"(p[3]) : "r"(at_a));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(q[0]), "=r"(q[1]) : "r"(at_b));
        if constexpr (std::is_same_v<T, half>)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                         : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                         : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(q[0]), "r"(q[1]));
        else
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                         : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                         : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(q[0]), "r"(q[1]));
        __syncwarp();
    }
    for (int i = 0; i < 4; i++) c[(blockIdx.y * 16 + group + i / 2 * 8) * n + blockIdx.x * 8 + in_group * 2 + i % 2] = sum[i];
}

__global__ void of_tf32(const float *a, const float *b, float *c, int n, int k) {
    int lane = threadIdx.x, group = lane / 4, in_group = lane % 4;
    const float *rows = a + blockIdx.y * 16 * k, *columns = b + blockIdx.x * 8 * k;
    float sum[4] = {};
    auto tf32 = [](float x) {
        unsigned r;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
        return r;
    };
    for (int start = 0; start < k; start += 8) {
        unsigned p[4], q[2];
        for (int i = 0; i < 4; i++) p[i] = tf32(rows[(group + i % 2 * 8) * k + start + in_group + i / 2 * 4]);
        for (int i = 0; i < 2; i++) q[i] = tf32(columns[group * k + start + in_group + i * 4]);
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(q[0]), "r"(q[1]));
    }
    for (int i = 0; i < 4; i++) c[(blockIdx.y * 16 + group + i / 2 * 8) * n + blockIdx.x * 8 + in_group * 2 + i % 2] = sum[i];
}

__global__ void of_bytes(const int8_t *a, const int8_t *b, int *c, int n, int k) {
    int lane = threadIdx.x, group = lane / 4, in_group = lane % 4, sum[4] = {};
    const int8_t *rows = a + blockIdx.y * 16 * k, *columns = b + blockIdx.x * 8 * k;
    for (int start = 0; start < k; start += 32) {
        int p[4], q[2];
        for (int i = 0; i < 4; i++) p[i] = *(const int *)&rows[(group + i % 2 * 8) * k + start + in_group * 4 + i / 2 * 16];
        for (int i = 0; i < 2; i++) q[i] = *(const int *)&columns[group * k + start + in_group * 4 + i * 16];
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                     : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(q[0]), "r"(q[1]));
    }
    for (int i = 0; i < 4; i++) c[(blockIdx.y * 16 + group + i / 2 * 8) * n + blockIdx.x * 8 + in_group * 2 + i % 2] = sum[i];
}

__global__ void of_doubles(const double *a, const double *b, double *c, int n, int k) {
    int lane = threadIdx.x, group = lane / 4, in_group = lane % 4;
    double sum[2] = {};
    for (int start = 0; start < k; start += 4) {
        double p = a[(blockIdx.y * 8 + group) * k + start + in_group], q = b[(blockIdx.x * 8 + group) * k + start + in_group];
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+d"(sum[0]), "+d"(sum[1]) : "d"(p), "d"(q));
    }
    for (int i = 0; i < 2; i++) c[(blockIdx.y * 8 + group) * n + blockIdx.x * 8 + in_group * 2 + i] = sum[i];
}

template <class T, class C> static void run(Verdict &v, Random &random, const char *what, void (*kernel)(const T *, const T *, C *, int, int), int rows, double epsilon) {
    const int m = 64, n = 48, k = 96;
    std::vector<T> a(m * k), b(k * n);
    for (auto *matrix : {&a, &b})
        for (auto &e : *matrix) {
            if constexpr (std::is_integral_v<T>) e = (T)random.bits();
            else e = T(random.real(-1, 1));
        }
    std::vector<double> want(m * n);
    for (int y = 0; y < m; y++)
        for (int x = 0; x < n; x++)
            for (int i = 0; i < k; i++) want[y * n + x] += static_cast<double>(a[y * k + i]) * static_cast<double>(b[x * k + i]);
    Array<T> da(a), db(b);
    Array<C> dc(m * n);
    kernel<<<dim3(n / 8, m / rows), 32>>>(da, db, dc, n, k);
    v.close(what, dc.host(), want, 4 * epsilon * std::sqrt(k));
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("matmul_mma");
    run<half, float>(v, random, "f16", of_halves<half>, 16, 0x1p-22);
    run<__nv_bfloat16, float>(v, random, "bf16", of_halves<__nv_bfloat16>, 16, 0x1p-22);
    run<float, float>(v, random, "tf32", of_tf32, 16, 0x1p-10);
    run<int8_t, int>(v, random, "s8", of_bytes, 16, 0);
    run<double, double>(v, random, "f64", of_doubles, 8, 0x1p-52);
    return v.end();
}
