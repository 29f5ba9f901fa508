// Kernels that launch kernels (compiled with -rdc=true, linked with libcudadevrt): what is launched runs with all that it launches itself before the
// launching kernel counts as done, in the order of the launches. device_launches: "right". device_launches fault: the error of a kernel's kernel.
#include "check.h"
#include <cstring>
#include <vector>

const int N = 1 << 14;

// ---- a sort: each part is sorted by kernels of its own ----
__global__ void sort(int *p, int n, int depth) {
    if (n <= 16 || depth == 20) {
        for (int i = 1; i < n; i++)
            for (int j = i; j > 0 && p[j - 1] > p[j]; j--) {
                int t = p[j];
                p[j] = p[j - 1];
                p[j - 1] = t;
            }
        return;
    }
    int pivot = p[n / 2], low = 0, high = n - 1;
    while (low <= high) {
        while (p[low] < pivot) low++;
        while (p[high] > pivot) high--;
        if (low <= high) {
            int t = p[low];
            p[low++] = p[high];
            p[high--] = t;
        }
    }
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (high > 0) sort<<<1, 1, 0, stream>>>(p, high + 1, depth + 1);
    cudaStreamDestroy(stream);
    if (low < n - 1) sort<<<1, 1>>>(p + low, n - low, depth + 1);
}

// ---- the order of launches ----
__device__ int turn;
__global__ void note(int *out, int what) { out[atomicAdd(&turn, 1)] = what; }
__global__ void note_and_launch(int *out, int what) {
    out[atomicAdd(&turn, 1)] = what;
    note<<<1, 1>>>(out, what + 1);
    note<<<1, 1, 0, cudaStreamTailLaunch>>>(out, what + 3);
    note<<<1, 1>>>(out, what + 2);
}
__global__ void ordered(int *out) {
    note<<<1, 1, 0, cudaStreamTailLaunch>>>(out, 90);
    note_and_launch<<<1, 1>>>(out, 10);
    note<<<1, 1>>>(out, 20);
    note<<<1, 1, 0, cudaStreamTailLaunch>>>(out, 91);
    out[atomicAdd(&turn, 1)] = 1;
}

// ---- shapes, shared memory, parameters ----
struct Large {
    long long words[60];
};
__global__ void shaped(int *out, Large large, char tag) {
    extern __shared__ int shared[];
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    shared[thread] = thread;
    __syncthreads();
    if (thread == 0) {
        int sum = 0;
        for (unsigned i = 0; i < blockDim.x * blockDim.y * blockDim.z; i++) sum += shared[i];
        int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        out[block] = sum + static_cast<int>(large.words[block]) + tag;
    }
}
__global__ void launches_shaped(int *out) {
    Large large;
    for (int i = 0; i < 60; i++) large.words[i] = 1000 * i;
    shaped<<<dim3(3, 2, 2), dim3(4, 3, 2), 24 * sizeof(int)>>>(out, large, 7);
}

// ---- every thread of a grid launches ----
__global__ void add(int *to, int amount) { atomicAdd(to, amount); }
__global__ void everybody(int *to) { add<<<1, 32>>>(to, threadIdx.x + blockIdx.x); }

// ---- copies and fills by the device, events ----
__global__ void moves(int *to, const int *from, int n) {
    cudaStream_t a, b;
    cudaEvent_t event;
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaMemsetAsync(to, 0, n * sizeof(int), a); // 0: the library of CUDA 13.5 fills with nothing else
    cudaMemcpyAsync(to + n / 2, from, n / 2 * sizeof(int), cudaMemcpyDeviceToDevice, a);
    cudaEventRecord(event, a);
    cudaStreamWaitEvent(b, event, 0);
    add<<<1, 1, 0, b>>>(to, 5);
    cudaEventDestroy(event);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
}

// ---- errors ----
__global__ void too_large(int *out) {
    int lane = threadIdx.x;
    if (lane % 2) add<<<1, 2048>>>(out, 1); // more threads than a block has
    else add<<<1, 1>>>(out, 1);
    out[1 + lane] = cudaPeekAtLastError();
    out[5 + lane] = cudaGetLastError();
    out[9 + lane] = cudaGetLastError(); // has been told
}

__global__ void wild() { *reinterpret_cast<int *>(64) = 1; }
__global__ void launches_wild() { wild<<<1, 1>>>(); }

static std::vector<int> download(const int *p, int n) {
    std::vector<int> values(n);
    CHECK(cudaMemcpy(values.data(), p, n * sizeof(int), cudaMemcpyDeviceToHost));
    return values;
}

static int wrong(const char *what) {
    std::printf("wrong: %s\n", what);
    return 1;
}

int main(int argc, char **argv) {
    if (argc > 1 && !std::strcmp(argv[1], "fault")) {
        launches_wild<<<1, 1>>>();
        std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
        return 0;
    }
    int *p, *q;
    CHECK(cudaMalloc(&p, N * sizeof(int)));
    CHECK(cudaMalloc(&q, N * sizeof(int)));

    std::vector<int> values(N);
    unsigned seed = 7;
    for (int &v : values) v = static_cast<int>((seed = seed * 1664525u + 1013904223u) >> 8);
    CHECK(cudaMemcpy(p, values.data(), N * sizeof(int), cudaMemcpyHostToDevice));
    sort<<<1, 1>>>(p, N, 0);
    CHECK(cudaGetLastError());
    std::vector<int> sorted = download(p, N);
    long long sum = 0, expected = 0;
    for (int i = 0; i < N; i++) {
        sum += sorted[i], expected += values[i];
        if (i && sorted[i - 1] > sorted[i]) return wrong("sort");
    }
    if (sum != expected) return wrong("sorted values");

    int zero = 0;
    CHECK(cudaMemcpyToSymbol(turn, &zero, sizeof zero));
    CHECK(cudaMemset(q, 0, N * sizeof(int)));
    ordered<<<1, 1>>>(q);
    note<<<1, 1>>>(q, 99); // the host's next one comes after them all
    if (download(q, 10) != std::vector<int>({1, 10, 11, 12, 13, 20, 90, 91, 99, 0})) return wrong("order");

    launches_shaped<<<1, 1>>>(p);
    std::vector<int> shapes = download(p, 12);
    for (int i = 0; i < 12; i++)
        if (shapes[i] != 23 * 24 / 2 + 1000 * i + 7) return wrong("shape");

    CHECK(cudaMemset(p, 0, sizeof(int)));
    everybody<<<8, 64>>>(p);
    if (download(p, 1)[0] != 32 * (8 * 63 * 64 / 2 + 64 * 28)) return wrong("many");

    CHECK(cudaMemcpy(q, values.data(), N * sizeof(int), cudaMemcpyHostToDevice));
    CHECK(cudaMemset(p, 0x33, N * sizeof(int)));
    moves<<<1, 1>>>(p, q, 1000);
    std::vector<int> moved = download(p, 1000);
    for (int i = 0; i < 1000; i++)
        if (moved[i] != (i < 500 ? 0 : values[i - 500]) + (i == 0 ? 5 : 0)) return wrong("copies");

    CHECK(cudaMemset(p, 0, 64));
    too_large<<<1, 4>>>(p);
    std::vector<int> errors = download(p, 13);
    if (errors[0] != 2) return wrong("launches beside wrong ones");
    for (int i = 0; i < 4; i++) {
        int told = i % 2 ? cudaErrorInvalidConfiguration : 0;
        if (errors[1 + i] != told || errors[5 + i] != told || errors[9 + i] != 0) return wrong("errors");
    }
    std::printf("right\n");
    return 0;
}
