// Copies: rectangles and boxes between pitches, fills of them, and copies that a stream of its own finds done because the program has waited for them; memory of pools
#include "program.h"

__global__ void add(int *data, int n, int value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += value;
}

static std::vector<unsigned char> bytes(Random &random, size_t n) {
    std::vector<unsigned char> v(n);
    for (auto &x : v) x = static_cast<unsigned char>(random.bits());
    return v;
}

static void rectangles(Verdict &verdict, Random &random) {
    int width = random.between(60, 400), height = random.between(10, 40), from = width + random.below(50), to = width + random.below(90);
    size_t pitch;
    unsigned char *device;
    CHECK(cudaMallocPitch(&device, &pitch, width, height));
    auto source = bytes(random, static_cast<size_t>(from) * height);
    std::vector<unsigned char> got(static_cast<size_t>(to) * height), want(got.size());
    CHECK(cudaMemcpy2D(device, pitch, source.data(), from, width, height, cudaMemcpyHostToDevice));
    CHECK(cudaMemset2D(device + 3, pitch, 0x5a, width / 2, height - 4));
    CHECK(cudaMemcpy2D(got.data(), to, device, pitch, width, height, cudaMemcpyDeviceToHost));
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) want[y * to + x] = y < height - 4 && x >= 3 && x < 3 + width / 2 ? 0x5a : source[y * from + x];
    verdict.same("a rectangle, filled in part", got, want);
    CHECK(cudaFree(device));
}

static void boxes(Verdict &verdict, Random &random) {
    int w = 48, h = random.between(6, 12), d = random.between(4, 8);
    auto source = bytes(random, static_cast<size_t>(w) * h * d);
    cudaPitchedPtr device;
    CHECK(cudaMalloc3D(&device, make_cudaExtent(w, h, d)));
    cudaMemcpy3DParms in = {};
    in.srcPtr = make_cudaPitchedPtr(source.data(), w, w, h);
    in.dstPtr = device;
    in.extent = make_cudaExtent(w, h, d);
    in.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&in));
    int x0 = random.below(20), y0 = random.below(h - 3), z0 = random.below(d - 2);
    std::vector<unsigned char> got(source.size()), want(source.size());
    cudaMemcpy3DParms out = {};
    out.srcPtr = device;
    out.srcPos = make_cudaPos(x0, y0, z0);
    out.dstPtr = make_cudaPitchedPtr(got.data(), w, w, h);
    out.extent = make_cudaExtent(20, 3, 2);
    out.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3D(&out));
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < 3; y++)
            for (int x = 0; x < 20; x++) want[(z * h + y) * w + x] = source[((z0 + z) * h + y0 + y) * w + x0 + x];
    verdict.same("a box out of a larger one", got, want);
    CHECK(cudaFree(device.ptr));
}

// What the program has waited for is there for streams that no order of the runtime's ties to the copy's.
static void other_streams(Verdict &verdict, Random &random) {
    const int n = 1000, rounds = 40;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Array<int> device(n);
    int *pinned;
    CHECK(cudaMallocHost(&pinned, n * sizeof(int)));
    bool right = true;
    for (int round = 0; round < rounds; round++) {
        auto source = random.ints(n, 0, 1000000);
        std::vector<int> got(n);
        std::copy(source.begin(), source.end(), pinned);
        CHECK(cudaMemcpy(device, round & 1 ? pinned : source.data(), n * sizeof(int), cudaMemcpyHostToDevice));
        add<<<blocks_for(n, 128), 128, 0, stream>>>(device, n, round);
        CHECK(cudaMemcpyAsync(got.data(), device, n * sizeof(int), cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (int i = 0; i < n; i++) right = right && got[i] == source[i] + round;
    }
    verdict.that("a copy, then a kernel in a stream of its own", right);
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaFreeHost(nullptr));
    CHECK(cudaStreamDestroy(stream));
}

// Memory in the order of a stream, from the device's pool and from one of the program's own.
static void pools(Verdict &verdict, Random &random) {
    const int n = 5000;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaMemPool_t standard, own, now;
    CHECK(cudaDeviceGetDefaultMemPool(&standard, 0));
    uint64_t keep = 1 << 20, kept = 0;
    CHECK(cudaMemPoolSetAttribute(standard, cudaMemPoolAttrReleaseThreshold, &keep));
    CHECK(cudaMemPoolGetAttribute(standard, cudaMemPoolAttrReleaseThreshold, &kept));
    verdict.same("a pool's attribute", kept, keep);
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, 0};
    CHECK(cudaMemPoolCreate(&own, &properties));
    CHECK(cudaDeviceSetMemPool(0, own));
    CHECK(cudaDeviceGetMemPool(&now, 0));
    verdict.that("the device's pool is another", now == own && own != standard);
    for (int round = 0; round < 5; round++) {
        auto source = random.ints(n, 0, 1000000);
        std::vector<int> got(n);
        int *device;
        if (round & 1)
            CHECK(cudaMallocAsync(&device, n * sizeof(int), stream));
        else
            CHECK(cudaMallocFromPoolAsync(&device, n * sizeof(int), own, stream));
        CHECK(cudaMemcpyAsync(device, source.data(), n * sizeof(int), cudaMemcpyHostToDevice, stream));
        add<<<blocks_for(n, 128), 128, 0, stream>>>(device, n, -round);
        CHECK(cudaMemcpyAsync(got.data(), device, n * sizeof(int), cudaMemcpyDeviceToHost, stream));
        CHECK(cudaFreeAsync(device, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (auto &x : source) x -= round;
        verdict.same("memory of a pool", got, source);
    }
    CHECK(cudaMemPoolTrimTo(own, 0));
    CHECK(cudaMemPoolDestroy(own));
    verdict.that("a pool that is gone", cudaMemPoolTrimTo(own, 0) == cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(cudaDeviceGetMemPool(&now, 0));
    verdict.that("the device's pool is the first again", now == standard);
    CHECK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict verdict("copies");
    rectangles(verdict, random);
    boxes(verdict, random);
    other_streams(verdict, random);
    pools(verdict, random);
    return verdict.end();
}
