// What the programs share: checked calls, seeded numbers, device arrays, and a verdict that compares with a reference computed on the host.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <random>
#include <string>
#include <vector>

#define CHECK(call)                                                                                                     \
    do {                                                                                                                \
        cudaError_t error_ = (call);                                                                                    \
        if (error_ != cudaSuccess) {                                                                                    \
            std::printf("line %d: cuda error %d (%s) at %s\n", __LINE__, (int)error_, cudaGetErrorName(error_), #call); \
            std::fflush(stdout);                                                                                        \
            std::_Exit(3);                                                                                              \
        }                                                                                                               \
    } while (0)

// Numbers of one seed, which is the program's argument.
class Random {
  public:
    Random(int argc, char **argv) : engine(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1) {}
    uint64_t bits() { return engine(); }
    int below(int end) { return static_cast<int>(engine() % static_cast<uint64_t>(end)); }
    int between(int first, int last) { return first + below(last - first + 1); }
    double real(double low, double high) { return low + (high - low) * static_cast<double>(engine() >> 11) * 0x1p-53; }
    template <class T = float> std::vector<T> reals(size_t n, double low, double high) {
        std::vector<T> v(n);
        for (auto &x : v) x = static_cast<T>(real(low, high));
        return v;
    }
    template <class T = int> std::vector<T> ints(size_t n, int first, int last) {
        std::vector<T> v(n);
        for (auto &x : v) x = static_cast<T>(between(first, last));
        return v;
    }

  private:
    std::mt19937_64 engine;
};

// An array on the device, which is freed at the end of its scope.
template <class T> class Array {
  public:
    explicit Array(size_t count) : size(count) {
        CHECK(cudaMalloc(&data, std::max<size_t>(1, size) * sizeof(T)));
        CHECK(cudaMemset(data, 0, std::max<size_t>(1, size) * sizeof(T)));
    }
    explicit Array(const std::vector<T> &from) : size(from.size()) {
        CHECK(cudaMalloc(&data, std::max<size_t>(1, size) * sizeof(T)));
        CHECK(cudaMemcpy(data, from.data(), size * sizeof(T), cudaMemcpyHostToDevice));
    }
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;
    ~Array() { CHECK(cudaFree(data)); }
    operator T *() { return data; }
    void set(const std::vector<T> &from) { CHECK(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice)); }
    void clear() { CHECK(cudaMemset(data, 0, size * sizeof(T))); }
    // The array's content, when all that was launched has run.
    std::vector<T> host() {
        std::vector<T> v(size);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(v.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
    T first() { return host()[0]; }
    T *data = nullptr;
    const size_t size;
};

// Collects what is wrong; end() prints one line and returns the program's exit code.
class Verdict {
  public:
    explicit Verdict(const char *program) : name(program) {}

    void that(const char *what, bool right) {
        checks++;
        if (!right) complain(what, "not so");
    }
    template <class T> void same(const char *what, const T &got, const T &want) { that(what, got == want); }
    template <class T> void same(const char *what, const std::vector<T> &got, const std::vector<T> &want) {
        checks++;
        if (got.size() != want.size()) complain(what, "another length");
        for (size_t i = 0; i < std::min(got.size(), want.size()); i++)
            if (!(got[i] == want[i])) return complain(what, "differs at " + std::to_string(i));
    }
    // |got - want| <= bound (1 + |want|), element by element; want is in double.
    template <class T> void close(const char *what, const std::vector<T> &got, const std::vector<double> &want, double bound) {
        checks++;
        if (got.size() != want.size()) return complain(what, "another length");
        for (size_t i = 0; i < got.size(); i++) {
            double g = static_cast<double>(got[i]);
            if (!(std::fabs(g - want[i]) <= bound * (1 + std::fabs(want[i]))))
                return complain(what, "is " + std::to_string(g) + " at " + std::to_string(i) + ", not " + std::to_string(want[i]));
        }
    }
    void close(const char *what, double got, double want, double bound) { close(what, std::vector<double>{got}, std::vector<double>{want}, bound); }
    int end() {
        if (faults.empty())
            std::printf("%s: right (%d checks)\n", name, checks);
        else
            std::printf("%s: wrong: %s\n", name, faults.c_str());
        std::fflush(stdout);
        return faults.empty() && checks > 0 ? 0 : 1;
    }

  private:
    void complain(const char *what, const std::string &how) { faults += (faults.empty() ? "" : "; ") + (std::string(what) + ": " + how); }
    const char *name;
    int checks = 0;
    std::string faults;
};

constexpr int blocks_for(int64_t n, int threads) { return static_cast<int>((n + threads - 1) / threads); }
