// Streams that wait for a value which a later command writes. value_waits FILE: prints "running" while a stream waits; once FILE exists it writes the value, and does the
// same again and again, each time with other commands between the wait and the write, until FILE.over exists.
#include "check.h"

#include <cuda.h>
#include <dlfcn.h>
#include <string>
#include <unistd.h>

template <typename F> static F *find(const char *name) {
    static void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    F *f = driver ? (F *)dlsym(driver, name) : nullptr;
    EXPECT(f);
    return f;
}
#define DRIVER(name, symbol) static auto *const name = find<decltype(symbol)>(#symbol)
DRIVER(wait_value, cuStreamWaitValue32_v2);
DRIVER(write_value, cuStreamWriteValue32_v2);

__global__ void add(int *to, int what) { atomicAdd(to, what); }

static void await_file(const std::string &name) {
    while (access(name.c_str(), F_OK) != 0) usleep(1000);
}

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    const std::string file = argv[1];
    cudaStream_t waits, goes_on;
    unsigned *flag;
    int *sums, found[2], round = 0;
    CHECK(cudaStreamCreateWithFlags(&waits, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&goes_on, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&flag, 4));
    CHECK(cudaMalloc(&sums, 8));
    CHECK(cudaMemset(flag, 0, 4));
    CHECK(cudaMemset(sums, 0, 8));
    CHECK(cudaDeviceSynchronize());
    do {
        round++;
        EXPECT(wait_value((CUstream)waits, (CUdeviceptr)flag, (cuuint32_t)round, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
        add<<<1, 1, 0, waits>>>(sums, 1);
        if (round == 1) {
            std::printf("running\n");
            std::fflush(stdout);
            await_file(file);
        }
        for (int i = 0; i < round % 50; i++) add<<<1, 32, 0, goes_on>>>(sums + 1, 1);
        CHECK(cudaStreamSynchronize(goes_on));
        EXPECT(cudaStreamQuery(waits) == cudaErrorNotReady);
        EXPECT(write_value((CUstream)goes_on, (CUdeviceptr)flag, (cuuint32_t)round, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS);
        CHECK(cudaStreamSynchronize(waits));
        CHECK(cudaMemcpy(found, sums, 8, cudaMemcpyDeviceToHost));
        EXPECT(found[0] == round);
    } while (access((file + ".over").c_str(), F_OK) != 0);
    int sum = 0;
    for (int r = 1; r <= round; r++) sum += r % 50 * 32;
    EXPECT(found[1] == sum);
    std::printf("right\n");
    return 0;
}
