// Launches: parameters of every shape, attributes of functions, cooperative grids, what kernels print.
#include "runtime.h"
#include <cooperative_groups.h>

struct Odd { // sizes and alignments that differ from those of its parts
    char first;
    double second;
    short third[3];
    int *target;
};

__global__ void take(char a, Odd odd, short b, long long c, float3 d, bool e) {
    if (threadIdx.x == 0) {
        odd.target[0] = a;
        odd.target[1] = static_cast<int>(odd.second) + odd.first;
        odd.target[2] = odd.third[0] + odd.third[1] + odd.third[2];
        odd.target[3] = b;
        odd.target[4] = static_cast<int>(c >> 32);
        odd.target[5] = static_cast<int>(d.x + d.y + d.z);
        odd.target[6] = e;
    }
}

CASE(parameters) {
    int *out = allocate<int>(7);
    take<<<1, 32>>>(1, Odd{2, 40.0, {3, 4, 5}, out}, -6, 7ll << 32, make_float3(1, 2, 5), true);
    CHECK(cudaGetLastError());
    EXPECT(download(out, 7) == std::vector<int>({1, 42, 12, -6, 7, 8, 1}));
}

struct Large {
    int words[1000];
};
__global__ void sum_of(Large large, int *out) { atomicAdd(out, large.words[threadIdx.x] + large.words[threadIdx.x + 500]); }

CASE(large_parameters) {
    int *out = allocate<int>(1), expected = 0;
    CHECK(cudaMemset(out, 0, sizeof(int)));
    Large large;
    for (int i = 0; i < 1000; i++) large.words[i] = i * i, expected += i * i;
    sum_of<<<1, 500>>>(large, out);
    std::memset(&large, 0, sizeof large); // a launch has taken its parameters
    CHECK(cudaGetLastError());
    EXPECT(download(out, 1)[0] == expected);
}

__global__ void sum_shared(const int *in, int *out) {
    extern __shared__ int words[];
    for (int i = threadIdx.x; i < 16384; i += blockDim.x) words[i] = in[i];
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int i = 0; i < 16384; i++) sum += words[i];
        *out = sum;
    }
}

CASE(much_shared_memory) {
    NEEDS(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= 65536);
    int *in = allocate<int>(16384), *out = allocate<int>(1);
    CHECK(cudaMemset(in, 1, 65536)); // 0x01010101 each
    sum_shared<<<1, 128, 65536>>>(in, out);
    REFUSED(cudaGetLastError(), cudaErrorInvalidValue); // it has not asked for so much
    CHECK(cudaFuncSetAttribute(sum_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
    cudaFuncAttributes told = garbage<cudaFuncAttributes>();
    CHECK(cudaFuncGetAttributes(&told, sum_shared));
    EXPECT(told.maxDynamicSharedSizeBytes == 65536 && told.maxThreadsPerBlock >= 128);
    sum_shared<<<1, 128, 65536>>>(in, out);
    CHECK(cudaGetLastError());
    EXPECT(download(out, 1)[0] == static_cast<int>(16384u * 0x01010101u));
    REFUSED(cudaFuncSetAttribute(sum_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 30), cudaErrorInvalidValue);
}

__global__ void rotate(int *a, int *b, int n, int rounds) {
    auto grid = cooperative_groups::this_grid();
    int *from = a, *to = b;
    for (int round = 0; round < rounds; round++) {
        for (int i = grid.thread_rank(); i < n; i += static_cast<int>(grid.size())) to[(i + 1) % n] = from[i];
        grid.sync();
        int *next = from;
        from = to, to = next;
    }
}

CASE(cooperative_grid) {
    NEEDS(attribute(cudaDevAttrCooperativeLaunch));
    const int n = 1000;
    std::vector<int> values(n);
    for (int i = 0; i < n; i++) values[i] = i;
    int *a = allocate<int>(n), *b = allocate<int>(n), count = n, rounds = 10, blocks = garbage<int>();
    CHECK(cudaMemcpy(a, values.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, rotate, 64, 0));
    const int most = blocks * attribute(cudaDevAttrMultiProcessorCount);
    void *arguments[] = {&a, &b, &count, &rounds};
    CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void *>(rotate), dim3(most < 4 ? most : 4), dim3(64), arguments, 0, nullptr));
    std::vector<int> told = download(a, n);
    for (int i = 0; i < n; i++) EXPECT(told[(i + 10) % n] == i);
    REFUSED(cudaLaunchCooperativeKernel(reinterpret_cast<void *>(rotate), dim3(most + 1), dim3(64), arguments, 0, nullptr),
            cudaErrorCooperativeLaunchTooLarge);
}

__global__ void say(int round) { printf("round %d\n", round); }

// Into a file in the place of stdout: what a kernel prints is there when a synchronisation returns, in order with what the program prints.
CASE(prints_in_order) {
    char name[] = "/tmp/conformance-XXXXXX";
    const int file = mkstemp(name), terminal = dup(STDOUT_FILENO);
    EXPECT(file >= 0 && terminal >= 0 && unlink(name) == 0);
    std::fflush(stdout);
    dup2(file, STDOUT_FILENO);
    std::string expected;
    for (int round = 0; round < 20; round++) {
        say<<<1, 1>>>(round);
        CHECK(cudaDeviceSynchronize());
        std::printf("host %d\n", round);
        std::fflush(stdout);
        expected += "round " + std::to_string(round) + "\nhost " + std::to_string(round) + "\n";
    }
    dup2(terminal, STDOUT_FILENO);
    std::string found(expected.size() + 1, '\0');
    EXPECT(pread(file, &found[0], found.size(), 0) == static_cast<ssize_t>(expected.size()));
    found.resize(expected.size());
    EXPECT(found == expected);
}

__global__ void __launch_bounds__(64) bounded(int *out) { out[threadIdx.x] = 1; }

CASE(wrong_shapes) {
    int *out = allocate<int>(2048);
    bounded<<<1, 2048>>>(out); // more than any block has
    REFUSED(cudaGetLastError(), cudaErrorInvalidValue);
    bounded<<<0, 32>>>(out);
    REFUSED(cudaGetLastError(), cudaErrorInvalidValue);
    bounded<<<1, 0>>>(out);
    REFUSED(cudaGetLastError(), cudaErrorInvalidValue);
    bounded<<<dim3(1, 65536), 32>>>(out);
    REFUSED(cudaGetLastError(), cudaErrorInvalidValue);
    bounded<<<1, 32, 1 << 30>>>(out);
    REFUSED(cudaGetLastError(), cudaErrorInvalidValue);
    bounded<<<1, 64>>>(out); // nothing of it sticks
    CHECK(cudaGetLastError());
    EXPECT(download(out, 64) == std::vector<int>(64, 1));
}

__constant__ int table[256];
__device__ int counter = 5;
__global__ void look_up(int *out) {
    out[threadIdx.x] = table[threadIdx.x];
    if (threadIdx.x == 0) atomicAdd(&counter, 3);
}

CASE(symbols) {
    std::vector<int> squares(256);
    for (int i = 0; i < 256; i++) squares[i] = i * i;
    CHECK(cudaMemcpyToSymbol(table, squares.data(), 1024));
    int *out = allocate<int>(256), told = garbage<int>();
    look_up<<<1, 256>>>(out);
    EXPECT(download(out, 256) == squares);
    CHECK(cudaMemcpyFromSymbol(&told, counter, sizeof told));
    EXPECT(told == 8);
    void *address = nullptr;
    size_t size = 0;
    CHECK(cudaGetSymbolAddress(&address, counter));
    CHECK(cudaGetSymbolSize(&size, table));
    EXPECT(address != nullptr && size == 1024);
    CHECK(cudaMemcpy(&told, address, sizeof told, cudaMemcpyDefault));
    EXPECT(told == 8);
    REFUSED(cudaMemcpyToSymbol(table, squares.data(), 1025), cudaErrorInvalidValue);
    REFUSED(cudaGetSymbolSize(&size, &told), cudaErrorInvalidSymbol);
}

// Two hundred kernels, each launched: what a runtime asks of each must not add up.
template <int N> __global__ void numbered(int *out) { out[N] = N; }
template <int N> struct All {
    static void launch(int *out) {
        All<N - 1>::launch(out);
        numbered<N - 1><<<1, 1>>>(out);
    }
};
template <> struct All<0> {
    static void launch(int *) {}
};

CASE(many_kernels) {
    int *out = allocate<int>(200);
    All<200>::launch(out);
    CHECK(cudaGetLastError());
    std::vector<int> told = download(out, 200);
    for (int i = 0; i < 200; i++) EXPECT(told[i] == i);
}
