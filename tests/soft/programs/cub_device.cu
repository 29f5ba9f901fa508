// CUB over the whole device: radix sort of pairs, scan in one pass, reduction, selection, run lengths, histogram, segmented sums.
#include <cub/device/device_histogram.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_run_length_encode.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_segmented_reduce.cuh>
#include <cub/device/device_select.cuh>

#include "program.h"

struct IsOdd {
    __host__ __device__ bool operator()(int x) const { return x & 1; }
};

// Asks how much memory is needed, and then does it.
template <class Call> static void twice(Call call) {
    size_t bytes = 0;
    CHECK(call(nullptr, bytes));
    Array<char> temporary(bytes);
    CHECK(call(temporary.data, bytes));
    CHECK(cudaDeviceSynchronize());
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("cub_device");
    const int n = 30000 + random.below(5000);
    auto keys = random.ints<unsigned>(n, 0, 5000);
    std::vector<int> order(n), values(n);
    for (int i = 0; i < n; i++) values[i] = order[i] = i;
    Array<unsigned> k(keys), ks(n);
    Array<int> w(values), ws(n);
    twice([&](void *t, size_t &b) { return cub::DeviceRadixSort::SortPairs(t, b, k.data, ks.data, w.data, ws.data, n); });
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] < keys[b]; });
    std::vector<unsigned> sorted(keys);
    std::sort(sorted.begin(), sorted.end());
    v.same("keys", ks.host(), sorted);
    v.same("values", ws.host(), order);

    auto reals = random.reals<double>(n, -1, 1);
    Array<double> d(reals), e(n);
    twice([&](void *t, size_t &b) { return cub::DeviceRadixSort::SortKeysDescending(t, b, d.data, e.data, n); });
    std::vector<double> falling(reals);
    std::sort(falling.rbegin(), falling.rend());
    v.same("falling", e.host(), falling);

    auto ints = random.ints(n, -1000, 1000);
    Array<int> in(ints), out(n), one(1), count(1);
    twice([&](void *t, size_t &b) { return cub::DeviceScan::ExclusiveSum(t, b, in.data, out.data, n); });
    std::vector<int> before(n), odd, unique;
    int sum = 0, least = ints[0];
    for (int i = 0; i < n; i++) {
        before[i] = sum, sum += ints[i], least = std::min(least, ints[i]);
        if (ints[i] & 1) odd.push_back(ints[i]);
    }
    v.same("scan", out.host(), before);
    twice([&](void *t, size_t &b) { return cub::DeviceReduce::Sum(t, b, in.data, one.data, n); });
    v.same("sum", one.first(), sum);
    twice([&](void *t, size_t &b) { return cub::DeviceReduce::Min(t, b, in.data, one.data, n); });
    v.same("least", one.first(), least);
    twice([&](void *t, size_t &b) { return cub::DeviceSelect::If(t, b, in.data, out.data, count.data, n, IsOdd()); });
    auto picked = out.host();
    v.same("picked", count.first(), (int)odd.size());
    picked.resize(odd.size());
    v.same("odd ones", picked, odd);

    Array<unsigned> unique_keys(n);
    Array<int> lengths(n);
    twice([&](void *t, size_t &b) { return cub::DeviceRunLengthEncode::Encode(t, b, ks.data, unique_keys.data, lengths.data, count.data, n); });
    std::vector<int> runs;
    for (int i = 0; i < n; i++) {
        if (i == 0 || sorted[i] != sorted[i - 1]) runs.push_back(0);
        runs.back()++;
    }
    auto got = lengths.host();
    v.same("runs", count.first(), (int)runs.size());
    got.resize(runs.size());
    v.same("lengths", got, runs);

    Array<int> bins(20);
    twice([&](void *t, size_t &b) { return cub::DeviceHistogram::HistogramEven(t, b, in.data, bins.data, 21, -1000, 1000, n); });
    std::vector<int> histogram(20);
    for (int x : ints)
        if (x < 1000) histogram[(x + 1000) / 100]++;
    v.same("histogram", bins.host(), histogram);

    std::vector<int> offsets = {0};
    while (offsets.back() < n) offsets.push_back(std::min(n, offsets.back() + random.below(400)));
    const int segments = (int)offsets.size() - 1;
    std::vector<int> totals(segments);
    for (int s = 0; s < segments; s++)
        for (int i = offsets[s]; i < offsets[s + 1]; i++) totals[s] += ints[i];
    Array<int> o(offsets), of_segments(segments);
    twice([&](void *t, size_t &b) { return cub::DeviceSegmentedReduce::Sum(t, b, in.data, of_segments.data, segments, o.data, o.data + 1); });
    v.same("segments", of_segments.host(), totals);
    return v.end();
}
