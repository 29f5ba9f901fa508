// Errors: which call tells them, how long they stay, what is refused at once.
#include "runtime.h"
#include <cassert>
#include <fcntl.h>

__global__ void write(int *p) { *p = 1; }
__global__ void stop() { asm volatile("trap;"); }
__global__ void claim(int v) { assert(v == 1); }

CASE(last_error) {
    int *memory = allocate<int>(1);
    CHECK(cudaGetLastError());
    write<<<1, 4096>>>(memory);
    REFUSED(cudaPeekAtLastError(), cudaErrorInvalidValue); // looks, and leaves it
    REFUSED(cudaGetLastError(), cudaErrorInvalidValue);
    CHECK(cudaGetLastError()); // has been told
    CHECK(cudaDeviceSynchronize());
}

COLD_CASE(before_anything) {
    int count = garbage<int>();
    CHECK(cudaGetDeviceCount(&count));
    EXPECT(count >= 1);
    REFUSED(cudaSetDevice(count), cudaErrorInvalidDevice);
    REFUSED(cudaSetDevice(-1), cudaErrorInvalidDevice);
    cudaGetLastError();
    cudaDeviceProp properties = garbage<cudaDeviceProp>();
    REFUSED(cudaGetDeviceProperties(&properties, count), cudaErrorInvalidDevice);
    cudaGetLastError();
    CHECK(cudaGetDeviceProperties(&properties, 0));
    EXPECT(properties.name[0] != 0 && properties.totalGlobalMem > 0 && properties.warpSize == 32);
    int version = garbage<int>(), runtime = garbage<int>();
    CHECK(cudaDriverGetVersion(&version));
    CHECK(cudaRuntimeGetVersion(&runtime));
    EXPECT(version >= 11000 && runtime >= 11000);
}

CASE(null_pointers) {
    REFUSED(cudaMalloc(static_cast<void **>(nullptr), 4), cudaErrorInvalidValue);
    REFUSED(cudaStreamCreate(nullptr), cudaErrorInvalidValue);
    REFUSED(cudaEventCreate(nullptr), cudaErrorInvalidValue);
    REFUSED(cudaGetDeviceCount(nullptr), cudaErrorInvalidValue);
    REFUSED(cudaMemset(nullptr, 0, 4), cudaErrorInvalidValue);
    REFUSED(cudaMemcpyAsync(nullptr, nullptr, 4, cudaMemcpyHostToDevice, nullptr), cudaErrorInvalidValue);
    CHECK(cudaMemset(nullptr, 0, 0));
}

// What a kernel does wrong is told by the next call that waits, and by all after it: the context is lost.
static void lost(cudaError_t expected) {
    REFUSED(cudaDeviceSynchronize(), expected);
    REFUSED(cudaGetLastError(), expected);
    int *memory = nullptr;
    REFUSED(cudaMalloc(&memory, 4), expected);
    REFUSED(cudaDeviceSynchronize(), expected);
}

CASE(wild_write) {
    write<<<1, 1>>>(reinterpret_cast<int *>(64));
    CHECK(cudaPeekAtLastError()); // the launch itself is right
    lost(cudaErrorIllegalAddress);
}

CASE(trapped) {
    stop<<<1, 1>>>();
    lost(cudaErrorLaunchFailure);
}

CASE(asserted) {
    const int quiet = open("/dev/null", 1);
    dup2(quiet, STDERR_FILENO); // the assertion's own line
    claim<<<1, 1>>>(2);
    lost(cudaErrorAssert);
}

CASE(reset) {
    int *memory = allocate<int>(16);
    CHECK(cudaDeviceReset());
    memory = allocate<int>(16); // begins anew
    write<<<1, 1>>>(memory);
    EXPECT(download(memory, 1)[0] == 1);
}

CASE(after_a_fork) {
    int *memory = allocate<int>(16);
    std::fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(cudaMemset(memory, 0, 4) == cudaSuccess); // a child has nothing of its parent's
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(cudaMemset(memory, 0, 4));
}

CASE(names) {
    EXPECT(std::string(cudaGetErrorName(cudaErrorInvalidValue)) == "cudaErrorInvalidValue");
    EXPECT(std::string(cudaGetErrorString(cudaErrorInvalidValue)) == "invalid argument");
    EXPECT(std::string(cudaGetErrorString(static_cast<cudaError_t>(98765))) == "unrecognized error code");
}
