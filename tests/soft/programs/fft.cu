// A fast Fourier transform by hand: Stockham in shared memory, in float and double, forwards and back; a convolution by way of it.
#include "program.h"

template <class T> struct Complex {
    T x, y;
};
template <class T> __device__ Complex<T> operator+(Complex<T> a, Complex<T> b) { return {a.x + b.x, a.y + b.y}; }
template <class T> __device__ Complex<T> operator-(Complex<T> a, Complex<T> b) { return {a.x - b.x, a.y - b.y}; }
template <class T> __device__ Complex<T> operator*(Complex<T> a, Complex<T> b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }
__device__ Complex<float> turn(float part) {
    Complex<float> c;
    sincospif(2 * part, &c.y, &c.x);
    return c;
}
__device__ Complex<double> turn(double part) {
    Complex<double> c;
    sincospi(2 * part, &c.y, &c.x);
    return c;
}

// A block transforms n = 2 blockDim elements.
template <class T> __global__ void transform(const Complex<T> *in, Complex<T> *out, int sign, T scale) {
    extern __shared__ __align__(16) unsigned char raw[];
    const int half = blockDim.x, n = 2 * half, i = threadIdx.x;
    auto *a = reinterpret_cast<Complex<T> *>(raw), *b = a + n;
    in += blockIdx.x * n, out += blockIdx.x * n;
    a[i] = in[i], a[i + half] = in[i + half];
    for (int span = 1; span < n; span *= 2) {
        __syncthreads();
        int j = i % span;
        Complex<T> p = a[i], q = a[i + half] * turn(sign * (T)j / (2 * span));
        b[2 * i - j] = p + q, b[2 * i - j + span] = p - q;
        auto *t = a;
        a = b, b = t;
    }
    __syncthreads();
    for (int k = i; k < n; k += half) out[k] = {a[k].x * scale, a[k].y * scale};
}

template <class T> __global__ void multiply(Complex<T> *a, const Complex<T> *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] = a[i] * b[i];
}

template <class T> static void run(Verdict &v, Random &random, double bound) {
    const int n = 256, batch = 4, total = n * batch;
    std::vector<Complex<T>> in(total), kernel(total);
    for (auto &c : in) c = {(T)random.real(-1, 1), (T)random.real(-1, 1)};
    for (auto &c : kernel) c = {(T)random.real(-1, 1), 0};
    Array<Complex<T>> a(in), b(total), k(kernel), l(total);
    auto launch = [&](Complex<T> *from, Complex<T> *to, int sign, double scale) { transform<T><<<batch, n / 2, 2 * n * sizeof(Complex<T>)>>>(from, to, sign, (T)scale); };
    auto flat = [](const std::vector<Complex<T>> &c) {
        std::vector<double> d;
        for (auto &e : c) d.insert(d.end(), {(double)e.x, (double)e.y});
        return d;
    };
    launch(a, b, -1, 1);
    std::vector<double> want(2 * total), circular(2 * total);
    for (int s = 0; s < batch; s++)
        for (int f = 0; f < n; f++)
            for (int t = 0; t < n; t++) {
                double angle = -2 * M_PI * (f * t % n) / n, c = std::cos(angle), d = std::sin(angle);
                const auto &e = in[s * n + t], &g = in[s * n + (f - t + n) % n];
                want[2 * (s * n + f)] += e.x * c - e.y * d, want[2 * (s * n + f) + 1] += e.x * d + e.y * c;
                circular[2 * (s * n + f)] += (double)kernel[s * n + t].x * g.x, circular[2 * (s * n + f) + 1] += (double)kernel[s * n + t].x * g.y;
            }
    v.close("spectrum", flat(b.host()), want, 100 * bound);
    launch(k, l, -1, 1);
    multiply<T><<<blocks_for(total, 128), 128>>>(l, b, total);
    launch(b, b, 1, 1.0 / n);
    v.close("there and back", flat(b.host()), flat(in), 10 * bound);
    launch(l, l, 1, 1.0 / n);
    v.close("convolution", flat(l.host()), circular, 100 * bound);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("fft");
    run<float>(v, random, 0x1p-23);
    run<double>(v, random, 0x1p-52);
    return v.end();
}
