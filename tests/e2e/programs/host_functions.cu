// Host functions run in stream order, and see what was copied before them. Prints "right".
#include "check.h"
#include <atomic>

__global__ void add_one(int *v) { *v += 1; }

struct Seen {
    int *host;
    std::atomic<int> calls{0};
    int values[64];
};

static void look(void *data) {
    auto *seen = static_cast<Seen *>(data);
    int n = seen->calls.fetch_add(1);
    if (n < 64) seen->values[n] = *seen->host;
}

static void callback(cudaStream_t, cudaError_t status, void *data) {
    if (status == cudaSuccess) look(data);
}

int main() {
    static Seen seen;
    CHECK(cudaMallocHost(&seen.host, sizeof(int)));
    int *v;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&v, sizeof(int)));
    CHECK(cudaMemsetAsync(v, 0, sizeof(int), stream));
    for (int i = 0; i < 32; i++) {
        add_one<<<1, 1, 0, stream>>>(v);
        CHECK(cudaMemcpyAsync(seen.host, v, sizeof(int), cudaMemcpyDeviceToHost, stream));
        if (i % 2) CHECK(cudaLaunchHostFunc(stream, look, &seen));
        else CHECK(cudaStreamAddCallback(stream, callback, &seen, 0));
    }
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(seen.calls == 32);
    for (int i = 0; i < 32; i++) EXPECT(seen.values[i] == i + 1);
    CHECK(cudaFree(v));
    CHECK(cudaFreeHost(seen.host));
    std::printf("right\n");
    return 0;
}
