// Templates with launch bounds: block sizes and unrolling as parameters, policies, recursion at compile time, tuples of arguments by value, very large parameter lists.
#include "program.h"

template <int n> struct Power {
    template <class T> static __device__ T of(T x) { return n % 2 ? x * Power<n - 1>::of(x) : Power<n / 2>::of(x * x); }
};
template <> struct Power<0> {
    template <class T> static __device__ T of(T) { return 1; }
};

struct Sum {
    static constexpr int start = 0;
    __device__ int operator()(int a, int b) const { return a + b; }
};
struct Most {
    static constexpr int start = -2147483647;
    __device__ int operator()(int a, int b) const { return a > b ? a : b; }
};

template <int block, int each, class Combine> __global__ void __launch_bounds__(block, 2) reduce(const int *in, int *out, int n, Combine combine) {
    __shared__ int cells[block];
    int items[each], base = blockIdx.x * block * each + threadIdx.x, v = Combine::start;
#pragma unroll
    for (int k = 0; k < each; k++) items[k] = base + k * block < n ? in[base + k * block] : Combine::start;
#pragma unroll
    for (int k = 0; k < each; k++) v = combine(v, items[k]);
    cells[threadIdx.x] = v;
    __syncthreads();
    for (int half = block / 2; half; half /= 2) {
        if (threadIdx.x < half) cells[threadIdx.x] = combine(cells[threadIdx.x], cells[threadIdx.x + half]);
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = cells[0];
}

template <class T> __global__ void powers(const T *in, T *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = Power<0>::of(in[i]) + Power<1>::of(in[i]) + Power<5>::of(in[i]) + Power<10>::of(in[i]);
}

template <class... T> struct Arguments;
template <> struct Arguments<> {
    __host__ __device__ double sum() const { return 0; }
};
template <class First, class... Rest> struct Arguments<First, Rest...> {
    First first;
    Arguments<Rest...> rest;
    __host__ __device__ double sum() const { return (double)first + 2 * rest.sum(); }
};

template <class A> __global__ void by_value(A arguments, double *out) { out[threadIdx.x] = arguments.sum() + threadIdx.x; }

struct Large {
    int values[900];
};
__global__ void large(Large a, int *out, const int *index, short tail) { out[threadIdx.x] = a.values[index[threadIdx.x]] + tail; }

template <int block, int each, class Combine> static int total(int *data, int n) {
    int blocks = blocks_for(n, block * each);
    Array<int> parts(blocks), one(1);
    reduce<block, each><<<blocks, block>>>(data, parts.data, n, Combine());
    reduce<1024, 1><<<1, 1024>>>(parts.data, one.data, blocks, Combine());
    return one.first();
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("templates");
    const int n = 30000 + random.below(5000);
    auto in = random.ints(n, -1000, 1000);
    Array<int> data(in);
    int sum = 0, most = in[0];
    for (int x : in) sum += x, most = std::max(most, x);
    v.same("sum 64 x 3", total<64, 3, Sum>(data, n), sum);
    v.same("sum 128 x 8", total<128, 8, Sum>(data, n), sum);
    v.same("sum 1024 x 1", total<1024, 1, Sum>(data, n), sum);
    v.same("most 256 x 5", total<256, 5, Most>(data, n), most);

    auto small = random.ints<long long>(100, -20, 20);
    std::vector<long long> want;
    for (long long x : small) want.push_back(1 + x + x * x * x * x * x + x * x * x * x * x * x * x * x * x * x);
    Array<long long> few(small), result(100);
    powers<<<1, 128>>>(few.data, result.data, 100);
    v.same("powers", result.host(), want);

    Arguments<char, double, short, float, long long, unsigned char> arguments = {(char)random.below(100), {random.real(0, 1), {(short)random.below(999), {0.5f, {1ll << 40, {7, {}}}}}}};
    Array<double> out(40);
    by_value<<<1, 40>>>(arguments, out);
    std::vector<double> sums(40);
    for (int i = 0; i < 40; i++) sums[i] = arguments.sum() + i;
    v.same("by value", out.host(), sums);

    Large l;
    for (int &x : l.values) x = random.below(1 << 30);
    auto index = random.ints(256, 0, 899);
    Array<int> di(index), picked(256);
    large<<<1, 256>>>(l, picked, di, 11);
    std::vector<int> picks;
    for (int i : index) picks.push_back(l.values[i] + 11);
    v.same("large", picked.host(), picks);
    return v.end();
}
