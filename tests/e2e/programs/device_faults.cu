// What a fault of device code leaves behind. device_faults CASE prints what the program saw, one word a call. Cases that end in a fault print the same
// list: the synchronisation that met it, then later calls of many kinds.
#include "check.h"
#include <cassert>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

__device__ int sink;

template <class T> __global__ void reads(const char *p, long long at, int one) {
    long long where = at + (long long)threadIdx.x * (one ? 0 : sizeof(T));
    sink = (int)*(const volatile T *)(p + where);
}
template <class T> __global__ void writes(char *p, long long at) { *(volatile T *)(p + at + threadIdx.x * sizeof(T)) = 1; }
__global__ void adds(char *p, long long at) { atomicAdd((int *)(p + at), 1); }
__global__ void shares(long long at) {
    __shared__ int s[64];
    s[threadIdx.x] = (int)threadIdx.x;
    __syncthreads();
    sink = *(volatile int *)((char *)s + at) + s[threadIdx.x ^ 1];
}
__global__ void owns(long long at) {
    volatile int here[32];
    for (int i = 0; i < 32; i++) here[i] = i;
    sink = *(volatile int *)((char *)here + at);
}
__global__ void chosen(int v, int *out) { // one thread of many blocks fails
    if (blockIdx.x == 5 && threadIdx.x == 13 && threadIdx.y == 1) assert(v == 1 && "a message");
    if (blockIdx.x == 6) out[threadIdx.x] = 1;
}
__global__ void traps() { asm volatile("trap;"); }
__global__ void endless(volatile int *p) {
    while (*p == 0) {
    }
}
__global__ void lots(int *n) {
    while (malloc(4096)) atomicAdd(n, 1);
}
__global__ void iota(int *p, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] = i * 3 + 1;
}

static void say(cudaError_t error) { std::printf("%s\n", cudaGetErrorName(error)); }
static bool is(const char *a, const char *b) { return !std::strcmp(a, b); }

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const char *name = argv[1];
    long long at = argc > 2 ? std::atoll(argv[2]) : 0;
    char *v, *w, *host;
    cudaStream_t one, two;
    cudaEvent_t event;
    CHECK(cudaMalloc(&v, 1 << 20));
    CHECK(cudaMalloc(&w, 64 << 20));
    CHECK(cudaMallocHost(&host, 64 << 20));
    CHECK(cudaStreamCreate(&one));
    CHECK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&event));
    CHECK(cudaMemset(v, 0, 1 << 20));
    if (is(name, "read")) reads<int><<<1, 32, 0, one>>>(nullptr, at, 0);
    else if (is(name, "write")) writes<int><<<1, 32, 0, one>>>(nullptr, at);
    else if (is(name, "read-own")) reads<int><<<1, 32, 0, one>>>(v, at, 0);
    else if (is(name, "pinned")) writes<int><<<1, 32, 0, one>>>(host, at);
    else if (is(name, "write-wide")) writes<double><<<1, 32, 0, one>>>(v, at);
    else if (is(name, "atomic")) adds<<<1, 32, 0, one>>>(v, at);
    else if (is(name, "shared")) shares<<<1, 64, 0, one>>>(at);
    else if (is(name, "local")) owns<<<1, 32, 0, one>>>(at);
    else if (is(name, "trap")) traps<<<1, 32, 0, one>>>();
    else if (is(name, "assert")) chosen<<<dim3(16), dim3(64, 2), 0, one>>>((int)at, (int *)v);
    else if (is(name, "freed")) {
        CHECK(cudaFree(w));
        writes<int><<<1, 32, 0, one>>>(w, 32 << 20);
        w = v;
    } else if (is(name, "behind")) {
        reads<int><<<1, 32, 0, one>>>(w, (64 << 20) + at, 0);
    } else if (is(name, "copies")) { // the fault comes while copies of another stream go both ways
        for (int i = 0; i < 20; i++) CHECK(cudaMemcpyAsync(i % 2 ? host : w, i % 2 ? w : host, 64 << 20, cudaMemcpyDefault, two));
        writes<int><<<1, 32, 0, one>>>(nullptr, 4096);
        say(cudaStreamSynchronize(two)); // the copies may have been over before
        say(cudaStreamSynchronize(one));
        return 0;
    } else if (is(name, "heap")) {
        int n;
        CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 4 << 20));
        lots<<<1, 64, 0, one>>>((int *)v);
        say(cudaStreamSynchronize(one));
        CHECK(cudaMemcpy(&n, v, 4, cudaMemcpyDeviceToHost));
        std::printf("%d\n", n);
        return 0;
    } else if (is(name, "endless")) {
        endless<<<2, 64, 0, one>>>((int *)v);
        std::printf("running\n");
        std::fflush(stdout);
        say(cudaDeviceSynchronize());
        return 0;
    } else if (is(name, "numbers")) { // right numbers, again and again, for so many seconds
        std::vector<int> got(1 << 20);
        cudaEvent_t begin;
        float ms = 0;
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventRecord(begin));
        for (int round = 0; !round || ms < 1000 * at; round++) {
            CHECK(cudaMemset(w, 0, 4 << 20));
            iota<<<64, 256>>>((int *)w, 1 << 20);
            CHECK(cudaMemcpy(got.data(), w, 4 << 20, cudaMemcpyDeviceToHost));
            for (int i = 0; i < 1 << 20; i++) EXPECT(got[i] == i * 3 + 1);
            if (!round) std::printf("running\n"), std::fflush(stdout);
            CHECK(cudaEventRecord(event));
            CHECK(cudaEventSynchronize(event));
            CHECK(cudaEventElapsedTime(&ms, begin, event));
        }
        std::printf("right\n");
        return 0;
    } else return 2;
    say(cudaStreamSynchronize(one));
    say(cudaStreamSynchronize(two));
    say(cudaStreamQuery(nullptr));
    void *p;
    say(cudaMalloc(&p, 16));
    say(cudaMemcpy(host, v, 16, cudaMemcpyDeviceToHost));
    say(cudaMemcpyAsync(v, host, 16, cudaMemcpyHostToDevice, two));
    iota<<<1, 32, 0, two>>>((int *)v, 32);
    say(cudaGetLastError());
    say(cudaEventRecord(event, two));
    std::thread([] { say(cudaDeviceSynchronize()); }).join();
    say(cudaGetLastError());
    say(cudaPeekAtLastError());
    say(cudaDeviceReset()); // does not help: CUDA says that the process has to end
    say(cudaMalloc(&p, 16));
    return 0;
}
