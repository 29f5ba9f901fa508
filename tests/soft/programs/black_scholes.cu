// Option prices by Black and Scholes: log, exp, sqrt, the normal distribution by erfc and by a polynomial, in float, fast float and double.
#include "program.h"

template <class T> struct Option {
    T price, strike, years;
};

__device__ float normal_by_polynomial(float d) {
    float k = 1 / (1 + 0.2316419f * fabsf(d));
    float c = 0.39894228f * __expf(-0.5f * d * d) * (k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
    return d > 0 ? 1 - c : c;
}
__device__ float normal(float d) { return 0.5f * erfcf(-d * 0.70710678f); }
__device__ double normal(double d) { return 0.5 * erfc(-d * 0.70710678118654752440); }

template <class T> __global__ void price(const Option<T> *options, T *calls, T *puts, int n, T rate, T volatility) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        Option<T> o = options[i];
        T root = sqrt(o.years), d1 = (log(o.price / o.strike) + (rate + volatility * volatility / 2) * o.years) / (volatility * root), d2 = d1 - volatility * root;
        T discounted = o.strike * exp(-rate * o.years);
        calls[i] = o.price * normal(d1) - discounted * normal(d2);
        puts[i] = discounted * normal(-d2) - o.price * normal(-d1);
    }
}

__global__ void price_fast(const Option<float> *options, float *calls, int n, float rate, float volatility) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Option<float> o = options[i];
    float root = __fsqrt_rn(o.years);
    float d1 = __fdividef(__logf(__fdividef(o.price, o.strike)) + (rate + 0.5f * volatility * volatility) * o.years, volatility * root);
    float d2 = d1 - volatility * root;
    calls[i] = o.price * normal_by_polynomial(d1) - o.strike * __expf(-rate * o.years) * normal_by_polynomial(d2);
}

template <class T> static void run(Verdict &v, Random &random, double bound) {
    const int n = 20000 + random.below(999);
    const T rate = (T)0.02, volatility = (T)0.3;
    std::vector<Option<T>> options(n);
    std::vector<double> calls(n), puts(n);
    auto phi = [](double d) { return 0.5 * std::erfc(-d / std::sqrt(2.0)); };
    for (int i = 0; i < n; i++) {
        auto &o = options[i];
        o = {(T)random.real(5, 30), (T)random.real(1, 100), (T)random.real(0.25, 10)};
        double s = o.price, x = o.strike, t = o.years, r = rate, w = volatility;
        double d1 = (std::log(s / x) + (r + w * w / 2) * t) / (w * std::sqrt(t)), d2 = d1 - w * std::sqrt(t);
        calls[i] = s * phi(d1) - x * std::exp(-r * t) * phi(d2);
        puts[i] = x * std::exp(-r * t) * phi(-d2) - s * phi(-d1);
    }
    Array<Option<T>> data(options);
    Array<T> c(n), p(n);
    price<T><<<40, 128>>>(data, c, p, n, rate, volatility);
    v.close("calls", c.host(), calls, bound);
    v.close("puts", p.host(), puts, bound);
    if constexpr (sizeof(T) == 4) {
        price_fast<<<blocks_for(n, 256), 256>>>(data, c, n, rate, volatility);
        v.close("fast calls", c.host(), calls, 1e-4);
    }
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("black_scholes");
    run<float>(v, random, 2e-5);
    run<double>(v, random, 1e-13);
    return v.end();
}
