// The mathematical functions of the CUDA library, in float and double, over wide ranges and at special values, against the host's; CUDA's stated errors are the bounds.
#include "program.h"

constexpr int functions = 30;

template <class T> __global__ void evaluate(const T *in, T *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T x = in[i], a = fabs(x), y = in[(i * 7 + 3) % n], s = x / 100;
    T values[functions] = {sin(x),     cos(x),     tan(x),     exp(s * 8),  exp2(s * 8), expm1(s),   log(a),      log2(a),     log10(a),     log1p(a),
                           sqrt(a),    rsqrt(a),   cbrt(x),    pow(a, s),   atan(x),     atan2(x, y), asin(s),    acos(s),     sinh(s * 8),  cosh(s * 8),
                           tanh(s),    asinh(x),   acosh(a + 2), atanh(s),  erf(s * 3),  erfc(s * 3), tgamma(a / 10 + T(0.1)), lgamma(a + T(0.1)), hypot(x, y), fmod(x, y)};
    for (int k = 0; k < functions; k++) out[i * functions + k] = values[k];
}

static double reference(int k, double x, double y) {
    double a = std::fabs(x), s = x / 100;
    switch (k) {
    case 0: return std::sin(x);
    case 1: return std::cos(x);
    case 2: return std::tan(x);
    case 3: return std::exp(s * 8);
    case 4: return std::exp2(s * 8);
    case 5: return std::expm1(s);
    case 6: return std::log(a);
    case 7: return std::log2(a);
    case 8: return std::log10(a);
    case 9: return std::log1p(a);
    case 10: return std::sqrt(a);
    case 11: return 1 / std::sqrt(a);
    case 12: return std::cbrt(x);
    case 13: return std::pow(a, s);
    case 14: return std::atan(x);
    case 15: return std::atan2(x, y);
    case 16: return std::asin(s);
    case 17: return std::acos(s);
    case 18: return std::sinh(s * 8);
    case 19: return std::cosh(s * 8);
    case 20: return std::tanh(s);
    case 21: return std::asinh(x);
    case 22: return std::acosh(a + 2);
    case 23: return std::atanh(s);
    case 24: return std::erf(s * 3);
    case 25: return std::erfc(s * 3);
    case 26: return std::tgamma(a / 10 + 0.1);
    case 27: return std::lgamma(a + 0.1);
    case 28: return std::hypot(x, y);
    default: return std::fmod(x, y);
    }
}

// Arguments that are exact in float and whose quotients by 100 are rounded once: those that depend on s get a wider bound.
template <class T> static void run(Verdict &v, Random &random, double epsilon) {
    const int n = 2000;
    std::vector<T> in(n);
    for (auto &x : in) x = (T)random.real(-99, 99);
    Array<T> data(in), out(n * functions);
    evaluate<T><<<blocks_for(n, 128), 128>>>(data, out, n);
    auto got = out.host();
    int wrong = -1;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < functions; k++) {
            double want = reference(k, in[i], in[(i * 7 + 3) % n]), g = got[i * functions + k];
            double size = std::max(std::fabs(want), k == 27 ? 1.0 : k < 10 ? 1e-2 : 1e-30), bound = 8 * epsilon; // logarithms near 1, sines near multiples of pi
            if (k == 3 || k == 4 || k == 13 || k == 18 || k == 19 || k == 25 || k == 26) bound = 40 * epsilon; // the argument's own rounding counts
            if (k == 2) bound *= 1 + std::fabs(want);
            if (k == 16 || k == 17 || k == 23) bound = 100 * epsilon; // steep at the ends
            if (!(std::fabs(g - want) <= bound * size)) {
                if (wrong != k) std::printf("function %d of %.9g (%.9g): %.9g, not %.9g\n", k, (double)in[i], (double)in[(i * 7 + 3) % n], g, want);
                wrong = k;
            }
        }
    v.that(sizeof(T) == 8 ? "double" : "float", wrong < 0);
}

__global__ void special(const float *in, int *out) {
    int i = threadIdx.x;
    float x = in[i];
    out[i] = isnan(x) + 2 * isinf(x) + 4 * isfinite(x) + 8 * signbit(x) + 16 * (isnan(sqrtf(x)) != 0) + 32 * isinf(logf(x)) + 64 * isnan(x * 0) + 128 * (fmaxf(x, 1) == 1) +
             256 * (rintf(x) == x) + 512 * (x == 0) + 1024 * (__float2int_rn(x) == 2147483647) + 2048 * (__float2uint_rz(x) == 0) + 4096 * (fminf(x, NAN) == x);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("mathematics");
    run<float>(v, random, 0x1p-23);
    run<double>(v, random, 0x1p-52);
    std::vector<float> in = {0.0f, -0.0f, 1, -1, 0.5f, 2.5f, INFINITY, -INFINITY, NAN, 1e-45f, 3e38f, -3e38f, 2147483648.0f, 4294967296.0f, -0.3f, 1e10f};
    Array<float> data(in);
    Array<int> out(in.size());
    special<<<1, (int)in.size()>>>(data, out);
    std::vector<int> want;
    for (float x : in) {
        bool nan = std::isnan(x), big = x >= 2147483647.0f, none = nan || x < 1;
        want.push_back(nan + 2 * (std::isinf(x) != 0) + 4 * (std::isfinite(x) != 0) + 8 * (std::signbit(x) != 0) + 16 * (nan || x < 0) + 32 * (x == 0 || x == INFINITY) +
                       64 * !std::isfinite(x) + 128 * !(x > 1) + 256 * (!nan && std::rint(x) == x) + 512 * (x == 0) + 1024 * big + 2048 * none + 4096 * !nan);
    }
    v.same("special values", out.host(), want);
    return v.end();
}
