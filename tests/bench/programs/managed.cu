// A buffer that the host writes, a kernel changes and the host reads: as managed memory, and with explicit copies from and to pageable memory. Prints seconds of a round of each, in turns, as JSON.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <vector>

#define CHECK(call)                                                                          \
    do {                                                                                     \
        cudaError_t error_ = (call);                                                         \
        if (error_ != cudaSuccess) std::printf("%s\n", cudaGetErrorName(error_)), std::exit(3); \
    } while (0)

__global__ void touch(int *v, size_t n) { v[n - 1 - threadIdx.x] += 1; }

static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

static long write_and_read(int *write, int *read, size_t n, bool reading) {
    long sum = 0;
    if (!reading)
        for (size_t i = 0; i < n; i++) write[i] = (int)i;
    else
        for (size_t i = 0; i < n; i++) sum += read[i];
    return sum;
}

int main(int argc, char **argv) {
    size_t n = (size_t)std::atol(argv[1]) << 18; // MiB
    int rounds = std::atoi(argv[2]);
    int *managed, *device;
    std::vector<int> host(n);
    CHECK(cudaMallocManaged(&managed, n * 4));
    CHECK(cudaMalloc(&device, n * 4));
    std::vector<double> as_managed, as_copies;
    long expected = 0;
    for (size_t i = 0; i < n; i++) expected += (int)i;
    expected += 32;
    for (int r = 0; r < rounds + 1; r++) {
        double begun = now();
        write_and_read(managed, nullptr, n, false);
        touch<<<1, 32>>>(managed, n);
        CHECK(cudaDeviceSynchronize());
        if (write_and_read(nullptr, managed, n, true) != expected) return 4;
        double middle = now();
        write_and_read(host.data(), nullptr, n, false);
        CHECK(cudaMemcpy(device, host.data(), n * 4, cudaMemcpyHostToDevice));
        touch<<<1, 32>>>(device, n);
        CHECK(cudaMemcpy(host.data(), device, n * 4, cudaMemcpyDeviceToHost));
        if (write_and_read(nullptr, host.data(), n, true) != expected) return 4;
        if (!r) continue; // pages, kernels and connections are new in the first
        as_managed.push_back(middle - begun);
        as_copies.push_back(now() - middle);
    }
    std::printf("{\"managed\": [");
    for (size_t i = 0; i < as_managed.size(); i++) std::printf("%s%.6f", i ? ", " : "", as_managed[i]);
    std::printf("], \"copies\": [");
    for (size_t i = 0; i < as_copies.size(); i++) std::printf("%s%.6f", i ? ", " : "", as_copies[i]);
    std::printf("]}\n");
}
