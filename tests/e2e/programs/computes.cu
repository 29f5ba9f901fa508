// A program that computes all the time: computes BLOCKS ROUNDS DEEP FILE. It keeps DEEP kernels, of BLOCKS blocks that go round ROUNDS times,
// waiting for the device until there is FILE; then it checks what they did and prints "right" with the number of its kernels.
#include "check.h"

#include <cstdlib>
#include <unistd.h>
#include <vector>

__global__ void spin(unsigned *done, unsigned long rounds) {
    unsigned x = blockIdx.x + 1;
    for (unsigned long i = 0; i < rounds; i++) x = x * 1664525u + 1013904223u;
    if (threadIdx.x == 0) done[blockIdx.x] += x ? 1 : 2;
}

int main(int argc, char **argv) {
    EXPECT(argc == 5);
    const unsigned long blocks = std::strtoul(argv[1], nullptr, 10), rounds = std::strtoul(argv[2], nullptr, 10), deep = std::strtoul(argv[3], nullptr, 10);
    unsigned *done;
    unsigned long kernels = 0;
    std::vector<cudaEvent_t> events(deep);
    for (cudaEvent_t &event : events) CHECK(cudaEventCreate(&event));
    CHECK(cudaMalloc(&done, blocks * sizeof *done));
    CHECK(cudaMemset(done, 0, blocks * sizeof *done));
    CHECK(cudaDeviceSynchronize());
    std::printf("running\n");
    std::fflush(stdout);
    while (access(argv[4], F_OK) != 0) {
        cudaEvent_t event = events[kernels++ % deep];
        CHECK(cudaEventSynchronize(event));
        spin<<<blocks, 32>>>(done, rounds);
        CHECK(cudaEventRecord(event));
    }
    std::vector<unsigned> found(blocks);
    CHECK(cudaMemcpy(found.data(), done, blocks * sizeof *done, cudaMemcpyDeviceToHost));
    for (unsigned long i = 0; i < blocks; i++) EXPECT(found[i] == kernels);
    std::printf("right %lu\n", kernels);
    return 0;
}
