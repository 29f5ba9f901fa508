// Arithmetic in half and bfloat16, in pairs and alone: each result is the double's, rounded once; comparisons, conversions, fused multiply-add, functions.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "program.h"

// The nearest half, ties to even, by its definition.
static double rounded(double x, int precision, int least) {
    if (x == 0 || !std::isfinite(x)) return x;
    int exponent = std::max(std::ilogb(x), least);
    double unit = std::ldexp(1.0, exponent - precision + 1);
    return std::nearbyint(x / unit) * unit;
}
static double to_half(double x) {
    double r = rounded(x, 11, -14);
    return std::fabs(r) > 65504 ? std::copysign(INFINITY, x) : r;
}
static double to_bfloat(double x) { return rounded(x, 8, -126); }

template <class T2, class T> __global__ void pairs(const T2 *a, const T2 *b, const T2 *c, T2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T2 *o = out + i * 8;
    o[0] = __hadd2(a[i], b[i]);
    o[1] = __hmul2(a[i], b[i]);
    o[2] = __hfma2(a[i], b[i], c[i]);
    o[3] = __hsub2(a[i], b[i]);
    o[4] = __hmax2(a[i], b[i]);
    o[5] = __hmin2(__habs2(a[i]), __hneg2(b[i]));
    o[6] = __hgt2(a[i], b[i]);
    T2 swapped;
    swapped.x = a[i].y, swapped.y = __hdiv(a[i].x, b[i].x);
    o[7] = swapped;
}

template <class T2, class T> static void run(Verdict &v, Random &random, const char *what, double (*round)(double)) {
    const int n = 1000;
    std::vector<T2> in[3];
    for (auto &vector : in)
        for (int i = 0; i < n; i++) {
            double scale = std::ldexp(1.0, random.between(-8, 6));
            T2 pair;
            pair.x = T((float)(random.real(-1, 1) * scale)), pair.y = T((float)(random.real(-1, 1) * scale));
            vector.push_back(pair);
        }
    Array<T2> a(in[0]), b(in[1]), c(in[2]), out(n * 8);
    pairs<T2, T><<<blocks_for(n, 128), 128>>>(a.data, b.data, c.data, out.data, n);
    auto raw = out.host();
    std::vector<double> got, want;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < 8; k++) got.insert(got.end(), {(double)(float)raw[i * 8 + k].x, (double)(float)raw[i * 8 + k].y});
        double ax = (float)in[0][i].x, ay = (float)in[0][i].y, bx = (float)in[1][i].x, by = (float)in[1][i].y, cx = (float)in[2][i].x, cy = (float)in[2][i].y;
        for (double w : {ax + bx, ay + by, ax * bx, ay * by, ax * bx + cx, ay * by + cy, ax - bx, ay - by, std::max(ax, bx), std::max(ay, by),
                         std::min(std::fabs(ax), -bx), std::min(std::fabs(ay), -by), (double)(ax > bx), (double)(ay > by), ay})
            want.push_back(round(w));
        want.push_back(got.back()); // a division is done by way of a float's reciprocal: its own check
        double ratio = std::is_same_v<T, half> && std::fabs(ax / bx) > 65504 ? std::copysign(INFINITY, ax / bx) : ax / bx;
        v.that(what, got.back() == ratio || std::fabs(got.back() - ratio) <= (std::is_same_v<T, half> ? 0x1p-10 : 0x1p-7) * std::fabs(ratio) + 0x1p-24);
    }
    v.same(what, got, want);
}

__global__ void conversions(const float *in, half *halves, __nv_bfloat16 *bfloats, int *ints, float *functions, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    halves[3 * i] = __float2half_rn(in[i]), halves[3 * i + 1] = __float2half_rz(in[i]), halves[3 * i + 2] = __float2half_ru(in[i]);
    bfloats[i] = __float2bfloat16(in[i]);
    half h = __float2half(in[i]);
    ints[2 * i] = __half2int_rn(h), ints[2 * i + 1] = __half2int_rz(h);
    functions[3 * i] = __half2float(hexp(__hmul(h, __float2half(0.0001220703125f)))), functions[3 * i + 1] = __half2float(hsqrt(__habs(h))), functions[3 * i + 2] = __half2float(hfloor(h));
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("half_arithmetic");
    run<half2, half>(v, random, "half", to_half);
    run<__nv_bfloat162, __nv_bfloat16>(v, random, "bfloat16", to_bfloat);

    const int n = 2000;
    std::vector<float> in(n);
    for (auto &x : in) x = (float)(random.real(-1, 1) * std::ldexp(1.0, random.between(-26, 15)));
    in[0] = 65519.9f, in[1] = 65520, in[2] = 6e-8f, in[3] = 2e-8f, in[4] = -0.0f, in[5] = 2049, in[6] = 2051;
    Array<float> data(in), functions(3 * n);
    Array<half> halves(3 * n);
    Array<__nv_bfloat16> bfloats(n);
    Array<int> ints(2 * n);
    conversions<<<blocks_for(n, 64), 64>>>(data, halves, bfloats, ints, functions, n);
    std::vector<double> h, b, f, want_h, want_b;
    for (half x : halves.host()) h.push_back((float)x);
    for (auto x : bfloats.host()) b.push_back((float)x);
    std::vector<int> want_i;
    auto got_f = functions.host();
    for (int i = 0; i < n; i++) {
        double near = to_half(in[i]), x = in[i], down = near, up = near;
        half bits = (half)in[i];
        if (std::fabs(x) <= 65504) {
            double unit = std::ldexp(1.0, std::max(x ? std::ilogb(x) : -24, -14) - 10);
            down = std::trunc(x / unit) * unit, up = std::ceil(x / unit) * unit;
        } else down = std::copysign(65504.0, x), up = x > 0 ? INFINITY : -65504;
        want_h.insert(want_h.end(), {near, down, up});
        want_b.push_back(to_bfloat(x));
        v.same("a half on the host", (double)(float)bits, near);
        double limited = std::isinf(near) ? 2147483647.0 : near;
        want_i.insert(want_i.end(), {(int)std::nearbyint(limited), (int)limited});
        double root = std::sqrt(std::fabs(near)), small = to_half(near * 0.0001220703125);
        v.that("exp", std::isinf(small) ? got_f[3 * i] == std::exp(small) : std::fabs(got_f[3 * i] - std::exp(small)) <= 0x1p-10 * std::exp(small) + 0x1p-24);
        v.that("sqrt", std::isinf(root) ? std::isinf(got_f[3 * i + 1]) : std::fabs(got_f[3 * i + 1] - root) <= 0x1p-11 * root + 0x1p-24);
        v.that("floor", got_f[3 * i + 2] == std::floor(near));
    }
    v.same("to half", h, want_h);
    v.same("to bfloat16", b, want_b);
    v.same("to integers", ints.host(), want_i);
    return v.end();
}
