// Eight-bit floats: every half to e4m3 and e5m2 and back, pairs and fours, saturation, and a dot product of them.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "program.h"

__global__ void narrow(const float *in, uint8_t *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i * 4] = __nv_cvt_float_to_fp8(in[i], __NV_SATFINITE, __NV_E4M3);
    out[i * 4 + 1] = __nv_cvt_float_to_fp8(in[i], __NV_SATFINITE, __NV_E5M2);
    __nv_fp8x2_storage_t pair = __nv_cvt_halfraw2_to_fp8x2(__half2_raw(__floats2half2_rn(in[i], -in[i])), __NV_SATFINITE, __NV_E4M3);
    out[i * 4 + 2] = (uint8_t)pair;
    out[i * 4 + 3] = (uint8_t)(pair >> 8);
}

__global__ void widen(float *out) {
    int i = threadIdx.x;
    out[i] = __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)i, __NV_E4M3)));
    out[256 + i] = __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)i, __NV_E5M2)));
    __nv_fp8x4_e4m3 four;
    four.__x = (unsigned)i * 0x01010101u;
    float4 wide = float4(four);
    out[512 + i] = wide.x == wide.w || wide.x != wide.x ? wide.y : -12345.0f;
}

__global__ void dot(const __nv_fp8_e4m3 *a, const __nv_fp8_e5m2 *b, float *out, int n) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) sum += float(a[i]) * float(b[i]);
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x == 0) *out = sum;
}

// The value of a code, by the format's definition.
static double value(int code, bool e5m2) {
    int bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, exponent = (code & 127) >> bits, mantissa = code & ((1 << bits) - 1);
    double sign = code & 128 ? -1 : 1;
    if (e5m2 && exponent == 31) return mantissa ? NAN : sign * INFINITY;
    if (!e5m2 && (code & 127) == 127) return NAN;
    return sign * (exponent ? std::ldexp(1 + std::ldexp(mantissa, -bits), exponent - bias) : std::ldexp(mantissa, 1 - bias - bits));
}

// The code of the nearest finite value, ties to the even code.
static int code(double x, bool e5m2) {
    if (std::isnan(x)) return 127;
    int best = 0;
    const double a = std::min(std::fabs(x), e5m2 ? 57344.0 : 448.0);
    for (int c = 0; c < 128; c++) {
        double w = value(c, e5m2), u = value(best, e5m2);
        if (!std::isfinite(w)) continue;
        if (std::fabs(w - a) < std::fabs(u - a) || (std::fabs(w - a) == std::fabs(u - a) && c % 2 == 0)) best = c;
    }
    return best | (std::signbit(x) ? 128 : 0);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("fp8");
    const int n = 3000;
    std::vector<float> in(n);
    for (auto &x : in) x = (float)(random.real(-1, 1) * std::ldexp(1.0, random.between(-20, 17)));
    for (int i = 0; i < 256; i++) // midpoints between codes, where ties go to even
        if (i % 128 < 120) in[i] = (float)((value(i, false) + value(i + 1, false)) / 2), in[256 + i] = (float)((value(i, true) + value(i + 1, true)) / 2);
    in[600] = 0, in[601] = -0.0f, in[602] = 448, in[603] = 464, in[604] = 57344, in[605] = 1e30f, in[606] = -INFINITY;
    Array<float> data(in), wide(768), sum(1);
    Array<uint8_t> codes(n * 4);
    narrow<<<blocks_for(n, 128), 128>>>(data, codes, n);
    std::vector<uint8_t> want(n * 4);
    for (int i = 0; i < n; i++) {
        double half = (float)__float2half(in[i]);
        want[i * 4] = (uint8_t)code(in[i], false), want[i * 4 + 1] = (uint8_t)code(in[i], true);
        want[i * 4 + 2] = (uint8_t)code(half, false), want[i * 4 + 3] = (uint8_t)code(-half, false);
    }
    v.same("narrowed", codes.host(), want);

    widen<<<1, 256>>>(wide);
    auto got = wide.host();
    bool right = true;
    for (int i = 0; i < 256; i++)
        for (int k = 0; k < 3; k++) {
            double w = value(i, k == 1);
            right &= std::isnan(w) ? std::isnan(got[k * 256 + i]) : got[k * 256 + i] == w;
        }
    v.that("widened", right);

    const int m = 500;
    std::vector<__nv_fp8_e4m3> a(m);
    std::vector<__nv_fp8_e5m2> b(m);
    double exact = 0;
    for (int i = 0; i < m; i++) {
        a[i].__x = (uint8_t)random.below(120), b[i].__x = (uint8_t)(random.below(80) | random.below(2) << 7);
        exact += value(a[i].__x, false) * value(b[i].__x, true);
    }
    Array<__nv_fp8_e4m3> da(a);
    Array<__nv_fp8_e5m2> db(b);
    dot<<<1, 32>>>(da, db, sum, m);
    v.close("dot", sum.first(), exact, 1e-4);
    return v.end();
}
