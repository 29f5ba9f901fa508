// Works until something goes wrong. Prints "running" once the first result is there. busy MODE: "wait" synchronises after every launch, "flood" launches
// without waiting and synchronises now and then, "copy" moves large blocks both ways, "sleep" holds memory and does nothing.
#include "check.h"
#include <chrono>
#include <cstring>
#include <unistd.h>
#include <vector>

__global__ void step(float *v, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) v[i] = v[i] * 0.999f + 1.0f;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "wait";
    const int n = 1 << 20;
    std::vector<float> host(n);
    float *v;
    CHECK(cudaMalloc(&v, n * 4));
    CHECK(cudaMemset(v, 0, n * 4));
    step<<<n / 256, 256>>>(v, n);
    CHECK(cudaDeviceSynchronize());
    std::printf("running\n");
    std::fflush(stdout);
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(argc > 2 ? std::atoi(argv[2]) : 60);
    for (long round = 0; std::chrono::steady_clock::now() < end; round++) {
        if (!std::strcmp(mode, "sleep")) {
            usleep(50000);
            continue;
        }
        if (!std::strcmp(mode, "copy")) {
            CHECK(cudaMemcpy(v, host.data(), n * 4, cudaMemcpyHostToDevice));
            CHECK(cudaMemcpy(host.data(), v, n * 4, cudaMemcpyDeviceToHost));
        }
        step<<<n / 256, 256>>>(v, n);
        CHECK(cudaGetLastError());
        if (!std::strcmp(mode, "wait") || round % 200 == 199) CHECK(cudaDeviceSynchronize());
    }
    std::printf("over\n");
    return 0;
}
