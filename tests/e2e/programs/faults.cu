// Device faults become CUDA errors. faults CASE prints the error the program saw: "null", "wild" (far outside), "after" (sticky afterwards), "trap", "assert", "shared" (beyond what a block
// has), "stack" (recursion without end), "code" (a call of what is no function), "heap" (more than there is: no fault, but a null pointer).
#include "check.h"
#include <cassert>
#include <cstring>

__global__ void write_to(int *p, long long at) { p[at + threadIdx.x] = 1; }
__global__ void trap() { asm volatile("trap;"); }
__global__ void asserts(int v) { assert(v == 1); }
__global__ void shared(int at, int *out) {
    __shared__ volatile int s[32];
    s[threadIdx.x] = 1;
    s[at] = 2;
    out[threadIdx.x] = s[threadIdx.x];
}
__device__ __noinline__ int deeper(volatile int *p, int n) {
    volatile int here[64];
    here[n % 64] = *p;
    return deeper(p, n + 1) + here[(n + 1) % 64];
}
__global__ void stack(int *p) { *p = deeper(p, threadIdx.x); }
__global__ void code(int *out, long long where) { *out = ((int (*)(int))where)(1); }
__global__ void heap(int *out) {
    void *p = malloc(1ull << 40), *q = malloc(64);
    out[threadIdx.x] = p == nullptr && q != nullptr;
    free(q);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int *v;
    CHECK(cudaMalloc(&v, 4096));
    if (!std::strcmp(argv[1], "null")) write_to<<<1, 32>>>(nullptr, 0);
    else if (!std::strcmp(argv[1], "wild") || !std::strcmp(argv[1], "after")) write_to<<<4, 64>>>(nullptr, 1ll << 32); // 16 GiB: nothing is ever mapped there
    else if (!std::strcmp(argv[1], "trap")) trap<<<1, 32>>>();
    else if (!std::strcmp(argv[1], "assert")) asserts<<<1, 32>>>(argc);
    else if (!std::strcmp(argv[1], "shared")) shared<<<2, 32>>>(1 << 28, v);
    else if (!std::strcmp(argv[1], "stack")) stack<<<1, 32>>>(v);
    else if (!std::strcmp(argv[1], "code")) code<<<1, 32>>>(v, 0x1234560);
    else if (!std::strcmp(argv[1], "heap")) heap<<<1, 32>>>(v);
    else return 2;
    cudaError_t error = cudaDeviceSynchronize();
    std::printf("%s\n", cudaGetErrorName(error));
    if (!std::strcmp(argv[1], "after")) {
        std::printf("%s\n", cudaGetErrorName(cudaMemset(v, 0, 16)));
        int *w;
        std::printf("%s\n", cudaGetErrorName(cudaMalloc(&w, 16)));
    }
    if (!std::strcmp(argv[1], "heap")) {
        int got[32], good = 0;
        CHECK(cudaMemcpy(got, v, sizeof got, cudaMemcpyDeviceToHost));
        for (int g : got) good += g;
        std::printf("%d\n", good);
    }
    return 0;
}
