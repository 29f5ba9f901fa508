// Asks for answers one after the other: answers N. Each read returns what its own launch has just written. Prints "right", and the seconds that the N
// reads took on stderr.
#include "check.h"
#include <chrono>

__global__ void write(int *v, int value) { *v = value; }

int main(int argc, char **argv) {
    int n = argc > 1 ? std::atoi(argv[1]) : 1, *v, got = 0;
    CHECK(cudaMalloc(&v, 4));
    write<<<1, 1>>>(v, -1);
    CHECK(cudaMemcpy(&got, v, 4, cudaMemcpyDeviceToHost));
    EXPECT(got == -1);
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < n; i++) {
        write<<<1, 1>>>(v, i * 7);
        CHECK(cudaMemcpy(&got, v, 4, cudaMemcpyDeviceToHost));
        EXPECT(got == i * 7);
    }
    std::fprintf(stderr, "seconds %.9f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    CHECK(cudaFree(v));
    std::printf("right\n");
    return 0;
}
