// Two GPUs: each with its own memory, globals and streams; peer copies, peer access from a kernel, events across devices.
#include "program.h"

__device__ int offset;
__constant__ int factor;

__global__ void scale(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * factor + offset;
}

__global__ void add(const int *mine, const int *theirs, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = mine[i] + theirs[i];
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("two_devices");
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices));
    v.that("two devices", devices >= 2);
    if (devices < 2) return v.end();
    const int n = 5000 + random.below(1000);
    auto input = random.ints(n, -1000, 1000);
    int *in[2], *out[2], *copy[2];
    cudaStream_t streams[2];
    cudaEvent_t done[2];
    const int factors[2] = {random.between(2, 9), random.between(10, 19)}, offsets[2] = {random.below(100), random.below(100)};
    for (int d = 0; d < 2; d++) {
        CHECK(cudaSetDevice(d));
        CHECK(cudaStreamCreate(&streams[d]));
        CHECK(cudaEventCreateWithFlags(&done[d], cudaEventDisableTiming));
        for (int **p : {&in[d], &out[d], &copy[d]}) CHECK(cudaMalloc(p, n * sizeof(int)));
        CHECK(cudaMemcpyToSymbol(factor, &factors[d], sizeof(int)));
        CHECK(cudaMemcpyToSymbol(offset, &offsets[d], sizeof(int)));
        CHECK(cudaMemcpyAsync(in[d], input.data(), n * sizeof(int), cudaMemcpyHostToDevice, streams[d]));
        scale<<<blocks_for(n, 128), 128, 0, streams[d]>>>(in[d], out[d], n);
        CHECK(cudaGetLastError());
        CHECK(cudaEventRecord(done[d], streams[d]));
    }
    // Each adds what the other made to its own; device 1 takes it by copying, device 0 reads it where it is, if it may.
    CHECK(cudaStreamWaitEvent(streams[1], done[0], 0));
    CHECK(cudaMemcpyPeerAsync(copy[1], 1, out[0], 0, n * sizeof(int), streams[1]));
    add<<<blocks_for(n, 64), 64, 0, streams[1]>>>(out[1], copy[1], in[1], n);
    CHECK(cudaGetLastError());
    CHECK(cudaSetDevice(0));
    int access = 0;
    CHECK(cudaDeviceCanAccessPeer(&access, 0, 1));
    CHECK(cudaStreamWaitEvent(streams[0], done[1], 0));
    const int *theirs = out[1];
    if (access) CHECK(cudaDeviceEnablePeerAccess(1, 0));
    else {
        CHECK(cudaMemcpyAsync(copy[0], out[1], n * sizeof(int), cudaMemcpyDefault, streams[0]));
        theirs = copy[0];
    }
    add<<<blocks_for(n, 64), 64, 0, streams[0]>>>(out[0], theirs, in[0], n);
    CHECK(cudaGetLastError());
    std::vector<int> want(n), got(n);
    for (int i = 0; i < n; i++) want[i] = input[i] * (factors[0] + factors[1]) + offsets[0] + offsets[1];
    for (int d = 0; d < 2; d++) {
        CHECK(cudaStreamSynchronize(streams[d]));
        CHECK(cudaMemcpy(got.data(), in[d], n * sizeof(int), cudaMemcpyDefault));
        v.same(d ? "device 1" : "device 0", got, want);
        cudaPointerAttributes about;
        CHECK(cudaPointerGetAttributes(&about, in[d]));
        v.that("where memory is", about.device == d && about.type == cudaMemoryTypeDevice);
    }
    for (int d = 0; d < 2; d++) {
        CHECK(cudaSetDevice(d));
        for (int *p : {in[d], out[d], copy[d]}) CHECK(cudaFree(p));
        CHECK(cudaEventDestroy(done[d]));
        CHECK(cudaStreamDestroy(streams[d]));
    }
    CHECK(cudaSetDevice(0));
    if (access) CHECK(cudaDeviceDisablePeerAccess(1));
    return v.end();
}
