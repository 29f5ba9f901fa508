// Device faults become CUDA errors. faults CASE prints the error the program saw: "null", "wild" (far outside), "after" (sticky afterwards), "trap", "assert".
#include "check.h"
#include <cassert>
#include <cstring>

__global__ void write_to(int *p, long long at) { p[at + threadIdx.x] = 1; }
__global__ void trap() { asm volatile("trap;"); }
__global__ void asserts(int v) { assert(v == 1); }

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int *v;
    CHECK(cudaMalloc(&v, 4096));
    if (!std::strcmp(argv[1], "null")) write_to<<<1, 32>>>(nullptr, 0);
    else if (!std::strcmp(argv[1], "wild") || !std::strcmp(argv[1], "after")) write_to<<<4, 64>>>(nullptr, 1ll << 32); // 16 GiB: nothing is ever mapped there
    else if (!std::strcmp(argv[1], "trap")) trap<<<1, 32>>>();
    else if (!std::strcmp(argv[1], "assert")) asserts<<<1, 32>>>(argc);
    else return 2;
    cudaError_t error = cudaDeviceSynchronize();
    std::printf("%s\n", cudaGetErrorName(error));
    if (!std::strcmp(argv[1], "after")) {
        std::printf("%s\n", cudaGetErrorName(cudaMemset(v, 0, 16)));
        int *w;
        std::printf("%s\n", cudaGetErrorName(cudaMalloc(&w, 16)));
    }
    return 0;
}
