// Thrust: sort, sort by key, reduce by key, transform and reduce, scans, unique, gather and scatter, permutations, sets, a fancy iterator or two.
#include <thrust/adjacent_difference.h>
#include <thrust/device_vector.h>
#include <thrust/count.h>
#include <thrust/extrema.h>
#include <thrust/gather.h>
#include <thrust/host_vector.h>
#include <thrust/inner_product.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/set_operations.h>
#include <thrust/sort.h>
#include <thrust/transform_reduce.h>
#include <thrust/tuple.h>
#include <thrust/unique.h>

#include "program.h"

struct Square {
    __host__ __device__ double operator()(double x) const { return x * x; }
};

struct Weighted {
    __host__ __device__ long long operator()(int i) const { return (long long)i * i % 1009; }
};

template <class T> static std::vector<T> back(const thrust::device_vector<T> &d) {
    std::vector<T> h(d.size());
    thrust::copy(d.begin(), d.end(), h.begin());
    return h;
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("thrust_algorithms");
    const int n = 20000 + random.below(1000);
    auto in = random.ints(n, -100000, 100000);
    std::vector<int> want(in);
    thrust::device_vector<int> d(in.begin(), in.end());
    thrust::sort(d.begin(), d.end());
    std::sort(want.begin(), want.end());
    v.same("sort", back(d), want);
    thrust::stable_sort(d.begin(), d.end(), [] __device__(int a, int b) { return a % 100 < b % 100; });
    std::stable_sort(want.begin(), want.end(), [](int a, int b) { return a % 100 < b % 100; });
    v.same("stable sort", back(d), want);

    auto keys = random.ints(n, 0, 300);
    auto values = random.reals<double>(n, -1, 1);
    thrust::device_vector<int> k(keys.begin(), keys.end()), kk(n);
    thrust::device_vector<double> w(values.begin(), values.end()), ww(n);
    thrust::sort_by_key(k.begin(), k.end(), w.begin());
    auto ends = thrust::reduce_by_key(k.begin(), k.end(), w.begin(), kk.begin(), ww.begin());
    std::vector<double> sums(301);
    std::vector<int> there(301), present;
    for (int i = 0; i < n; i++) sums[keys[i]] += values[i], there[keys[i]] = 1;
    std::vector<double> of_keys;
    for (int i = 0; i <= 300; i++)
        if (there[i]) of_keys.push_back(sums[i]), present.push_back(i);
    kk.resize(ends.first - kk.begin()), ww.resize(ends.second - ww.begin());
    v.same("keys", back(kk), present);
    v.close("sums by key", back(ww), of_keys, 1e-12);

    double squares = 0;
    for (double x : values) squares += x * x;
    v.close("squares", thrust::transform_reduce(w.begin(), w.end(), Square(), 0.0, thrust::plus<double>()), squares, 1e-12);
    v.close("inner product", thrust::inner_product(w.begin(), w.end(), w.begin(), 1.0), squares + 1, 1e-12);

    thrust::device_vector<long long> scanned(n);
    auto first = thrust::make_transform_iterator(thrust::counting_iterator<int>(0), Weighted());
    thrust::inclusive_scan(first, first + n, scanned.begin());
    std::vector<long long> running(n);
    long long sum = 0;
    for (int i = 0; i < n; i++) running[i] = sum += (long long)i * i % 1009;
    v.same("scan", back(scanned), running);
    thrust::device_vector<long long> differences(n);
    thrust::adjacent_difference(scanned.begin(), scanned.end(), differences.begin());
    for (int i = n - 1; i > 0; i--) running[i] -= running[i - 1];
    v.same("differences", back(differences), running);

    thrust::device_vector<int> u(k);
    u.resize(thrust::unique(u.begin(), u.end()) - u.begin());
    v.same("unique", back(u), present);
    thrust::device_vector<int> even(301), both(301);
    thrust::transform(thrust::counting_iterator<int>(0), thrust::counting_iterator<int>(301), even.begin(), [] __device__(int i) { return 2 * i; });
    both.resize(thrust::set_intersection(u.begin(), u.end(), even.begin(), even.end(), both.begin()) - both.begin());
    std::vector<int> even_ones;
    for (int p : present)
        if (p % 2 == 0) even_ones.push_back(p);
    v.same("intersection", back(both), even_ones);

    auto map = random.ints(1000, 0, n - 1);
    thrust::device_vector<int> m(map.begin(), map.end()), source(in.begin(), in.end()), gathered(1000);
    thrust::gather(m.begin(), m.end(), source.begin(), gathered.begin());
    std::vector<int> picks;
    for (int i : map) picks.push_back(in[i]);
    v.same("gather", back(gathered), picks);
    auto place = thrust::max_element(source.begin(), source.end()) - source.begin();
    v.same("largest", in[place], *std::max_element(in.begin(), in.end()));
    auto pairs = thrust::make_zip_iterator(source.begin(), thrust::counting_iterator<int>(0));
    int odd_places = (int)thrust::count_if(pairs, pairs + n, [] __device__(const thrust::tuple<int, int> &t) { return (thrust::get<0>(t) ^ thrust::get<1>(t)) & 1; }), known = 0;
    for (int i = 0; i < n; i++) known += (in[i] ^ i) & 1;
    v.same("pairs", odd_places, known);
    return v.end();
}
