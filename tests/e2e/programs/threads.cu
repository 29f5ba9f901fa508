// 32 threads at once, each with its own memory, streams and events, on all devices. Prints "right".
#include "check.h"
#include <thread>
#include <vector>

__global__ void mix(unsigned *v, int n, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) v[i] = (v[i] ^ salt) * 2654435761u + i;
}

static void work(int id, int devices) {
    CHECK(cudaSetDevice(id % devices));
    const int n = 4096 + 7 * id, rounds = 40;
    std::vector<unsigned> host(n), want(n);
    for (int i = 0; i < n; i++) want[i] = host[i] = i * 31 + id;
    cudaStream_t stream;
    if (id % 3 == 0) stream = cudaStreamPerThread;
    else CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaEvent_t event;
    CHECK(cudaEventCreate(&event));
    for (int r = 0; r < rounds; r++) {
        unsigned *v;
        CHECK(cudaMalloc(&v, n * 4));
        CHECK(cudaMemcpyAsync(v, host.data(), n * 4, cudaMemcpyHostToDevice, stream));
        mix<<<(n + 127) / 128, 128, 0, stream>>>(v, n, r * 17 + id);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpyAsync(host.data(), v, n * 4, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaEventRecord(event, stream));
        if (r % 2) CHECK(cudaEventSynchronize(event));
        else CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaFree(v));
        for (int i = 0; i < n; i++) want[i] = (want[i] ^ unsigned(r * 17 + id)) * 2654435761u + i;
        for (int i = 0; i < n; i++) EXPECT(host[i] == want[i]);
    }
    CHECK(cudaEventDestroy(event));
    if (stream != cudaStreamPerThread) CHECK(cudaStreamDestroy(stream));
}

int main() {
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices));
    std::vector<std::thread> threads;
    for (int id = 0; id < 32; id++) threads.emplace_back(work, id, devices);
    for (auto &t : threads) t.join();
    std::printf("right\n");
    return 0;
}
