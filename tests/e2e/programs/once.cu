// A program whose result tells whether anything was lost, done twice or done out of order: counters in kernels, host functions, pinned memory that is
// overwritten as soon as its event has completed, copies of all sizes. Prints the same line however often its connection is cut.
// once [ROUNDS [FILE]]: begins when FILE exists.
#include "check.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <unistd.h>
#include <vector>

static const int WORDS = 1 << 18;

__global__ void step(unsigned long long *state, const uint32_t *data, int words, int round) {
    unsigned long long sum = 0;
    for (int i = threadIdx.x; i < words; i += blockDim.x) sum += (unsigned long long)data[i] * (i % 251 + 1);
    atomicAdd(&state[0], 1ull);
    atomicAdd(&state[1], sum);
    __syncthreads();
    if (threadIdx.x == 0) state[2] = state[2] * 6364136223846793005ull + state[1] + round;
}

__global__ void spread(uint32_t *out, const unsigned long long *state, int words) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < words) out[i] = (uint32_t)(state[2] >> 11) * (i + 1);
}

static std::atomic<unsigned> called;
static void CUDART_CB count(void *arg) { called += (unsigned)(uintptr_t)arg; }

int main(int argc, char **argv) {
    int rounds = argc > 1 ? std::atoi(argv[1]) : 100;
    unsigned long long *state;
    uint32_t *data, *out, *pinned, *back;
    cudaStream_t stream;
    cudaEvent_t sent;
    CHECK(cudaMalloc(&state, 64));
    CHECK(cudaMemset(state, 0, 64));
    CHECK(cudaMalloc(&data, WORDS * 4));
    CHECK(cudaMalloc(&out, WORDS * 4));
    CHECK(cudaMemset(data, 0, WORDS * 4));
    CHECK(cudaMallocHost(&pinned, WORDS * 4));
    CHECK(cudaMallocHost(&back, WORDS * 4));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreateWithFlags(&sent, cudaEventDisableTiming));
    CHECK(cudaDeviceSynchronize());
    std::printf("running\n");
    std::fflush(stdout);
    while (argc > 2 && access(argv[2], F_OK)) usleep(1000);
    std::vector<uint32_t> pageable(WORDS);
    uint64_t hash = 14695981039346656037ull;
    for (int round = 0; round < rounds; round++) {
        int words = round % 7 == 0 ? WORDS : 2000 + round * 37 % 30000;
        if (round % 2) {
            for (int i = 0; i < words; i++) pinned[i] = (uint32_t)(round * 2654435761u + i);
            CHECK(cudaMemcpyAsync(data, pinned, words * 4, cudaMemcpyHostToDevice, stream));
            CHECK(cudaEventRecord(sent, stream));
            CHECK(cudaEventSynchronize(sent));
            std::memset(pinned, 0xee, words * 4);
        } else {
            for (int i = 0; i < words; i++) pageable[i] = (uint32_t)(round * 40503u + i * 3);
            CHECK(cudaMemcpyAsync(data, pageable.data(), words * 4, cudaMemcpyHostToDevice, stream));
            std::memset(pageable.data(), 0xdd, words * 4);
        }
        for (int k = 0; k < 5; k++) step<<<1, 128, 0, stream>>>(state, data, words < 4000 ? words : 4000, round);
        CHECK(cudaLaunchHostFunc(stream, count, (void *)(uintptr_t)(round % 5 + 1)));
        if (round % 3 == 0) {
            int n = round % 9 == 0 ? WORDS : 5000;
            spread<<<(n + 255) / 256, 256, 0, stream>>>(out, state, n);
            CHECK(cudaMemcpyAsync(back, out, n * 4, cudaMemcpyDeviceToHost, stream));
            CHECK(cudaStreamSynchronize(stream));
            for (int i = 0; i < n; i++) hash = (hash ^ back[i]) * 1099511628211ull;
        }
    }
    unsigned long long end[3];
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(end, state, sizeof end, cudaMemcpyDeviceToHost));
    std::printf("counted %llu, called %u, state %llx, read %llx\n", end[0], called.load(), end[2], (unsigned long long)hash);
    CHECK(cudaFree(state));
    CHECK(cudaFree(data));
    CHECK(cudaFree(out));
    return 0;
}
