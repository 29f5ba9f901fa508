// A CUDA C++ program with the static runtime. Usage: tour SEED FILE. Writes what the GPU computed as raw little-endian numbers, in this order:
// n floats (scaled sum), 64 floats (block sums), 256 uint32 (histogram), n floats (polynomial), n floats (two streams).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                   \
    do {                                                                                              \
        cudaError_t error_ = (call);                                                                  \
        if (error_ != cudaSuccess) {                                                                  \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
            std::exit(1);                                                                             \
        }                                                                                             \
    } while (0)

constexpr int n = 1 << 16;
__constant__ float coefficients[4];
__device__ unsigned bins[256];

__global__ void scaled_sum(const float *a, const float *b, float *c, float scale) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = scale * a[i] + b[i];
}

template <int threads> __global__ void block_sums(const float *in, float *out) {
    __shared__ float cells[threads];
    float v = 0;
    for (int i = blockIdx.x * threads + threadIdx.x; i < n; i += gridDim.x * threads) v += in[i];
    cells[threadIdx.x] = v;
    __syncthreads();
    for (int half = threads / 2; half >= 32; half >>= 1) {
        if (threadIdx.x < half) cells[threadIdx.x] += cells[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        v = cells[threadIdx.x];
        for (int offset = 16; offset; offset >>= 1) v += __shfl_xor_sync(~0u, v, offset);
        if (threadIdx.x == 0) out[blockIdx.x] = v;
    }
}

__global__ void count(const uint32_t *words) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&bins[words[i] >> 24], 1u);
}

__device__ __noinline__ float polynomial(float x) { return ((coefficients[3] * x + coefficients[2]) * x + coefficients[1]) * x + coefficients[0]; }

__global__ void evaluate(const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = polynomial(x[i]);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: tour SEED FILE\n");
        return 2;
    }
    // A linear congruential generator, so that any language can make the same input.
    uint32_t state = static_cast<uint32_t>(std::strtoul(argv[1], nullptr, 10));
    std::vector<uint32_t> words(n);
    std::vector<float> a(n), b(n);
    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        words[i] = state;
        a[i] = (state >> 8) / 16777216.0f;
        b[i] = 1.0f - 2.0f * a[i];
    }

    float *da, *db, *dc, *sums, *poly, *part;
    uint32_t *dwords;
    CHECK(cudaMalloc(&da, n * sizeof(float)));
    CHECK(cudaMalloc(&db, n * sizeof(float)));
    CHECK(cudaMalloc(&dc, n * sizeof(float)));
    CHECK(cudaMalloc(&poly, n * sizeof(float)));
    CHECK(cudaMalloc(&part, n * sizeof(float)));
    CHECK(cudaMalloc(&sums, 64 * sizeof(float)));
    CHECK(cudaMalloc(&dwords, n * sizeof(uint32_t)));
    CHECK(cudaMemcpy(da, a.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(dwords, words.data(), n * sizeof(uint32_t), cudaMemcpyHostToDevice));
    const float c[4] = {0.25f, -1.5f, 2.0f, 0.75f};
    CHECK(cudaMemcpyToSymbol(coefficients, c, sizeof c));

    scaled_sum<<<n / 256, 256>>>(da, db, dc, 3.0f);
    CHECK(cudaGetLastError());
    block_sums<256><<<64, 256>>>(dc, sums);
    CHECK(cudaGetLastError());
    count<<<n / 128, 128>>>(dwords);
    CHECK(cudaGetLastError());
    evaluate<<<n / 512, 512>>>(da, poly);
    CHECK(cudaGetLastError());

    cudaStream_t streams[2];
    cudaEvent_t ready;
    CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    for (auto &s : streams) CHECK(cudaStreamCreate(&s));
    CHECK(cudaMemsetAsync(part, 0, n * sizeof(float), streams[0]));
    scaled_sum<<<n / 256, 256, 0, streams[0]>>>(da, part, part, 2.0f);
    CHECK(cudaEventRecord(ready, streams[0]));
    CHECK(cudaStreamWaitEvent(streams[1], ready, 0));
    scaled_sum<<<n / 256, 256, 0, streams[1]>>>(db, part, part, 1.0f);
    CHECK(cudaStreamSynchronize(streams[1]));

    std::vector<float> out(n), out_sums(64), out_poly(n), out_part(n);
    std::vector<unsigned> out_bins(256);
    CHECK(cudaMemcpy(out.data(), dc, n * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(out_sums.data(), sums, 64 * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpyFromSymbol(out_bins.data(), bins, 256 * sizeof(unsigned)));
    CHECK(cudaMemcpy(out_poly.data(), poly, n * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(out_part.data(), part, n * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaDeviceSynchronize());

    std::FILE *file = std::fopen(argv[2], "wb");
    if (!file) {
        std::perror(argv[2]);
        return 1;
    }
    bool written = std::fwrite(out.data(), 4, n, file) == n && std::fwrite(out_sums.data(), 4, 64, file) == 64 &&
                   std::fwrite(out_bins.data(), 4, 256, file) == 256 && std::fwrite(out_poly.data(), 4, n, file) == n &&
                   std::fwrite(out_part.data(), 4, n, file) == n;
    if (std::fclose(file) != 0 || !written) {
        std::fprintf(stderr, "%s: could not be written\n", argv[2]);
        return 1;
    }
    std::printf("%d elements on the GPU\n", n);
    for (auto &s : streams) CHECK(cudaStreamDestroy(s));
    CHECK(cudaEventDestroy(ready));
    for (void *p : {(void *)da, (void *)db, (void *)dc, (void *)sums, (void *)poly, (void *)part, (void *)dwords}) CHECK(cudaFree(p));
    return 0;
}
