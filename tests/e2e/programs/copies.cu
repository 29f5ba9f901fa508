// Copies of every size and shape, both ways and between devices, pageable and pinned, against the same done on the host. Prints "right".
#include "check.h"
#include <cstring>
#include <vector>

static unsigned state = 12345;
static unsigned char next_byte() { return (state = state * 1664525u + 1013904223u) >> 24; }

static void linear(size_t size, bool pinned, cudaStream_t stream) {
    std::vector<unsigned char> want(size);
    for (auto &b : want) b = next_byte();
    unsigned char *src, *dst;
    if (pinned) {
        CHECK(cudaMallocHost(&src, size));
        CHECK(cudaMallocHost(&dst, size));
    } else {
        src = new unsigned char[size];
        dst = new unsigned char[size];
    }
    std::memcpy(src, want.data(), size);
    std::memset(dst, 0, size);
    unsigned char *a, *b;
    CHECK(cudaMalloc(&a, size));
    CHECK(cudaMalloc(&b, size));
    CHECK(cudaMemcpyAsync(a, src, size, cudaMemcpyHostToDevice, stream));
    if (!pinned) std::memset(src, 0xee, size); // a pageable source may be reused at once
    CHECK(cudaMemcpyAsync(b, a, size, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemsetAsync(a, 0, size, stream));
    CHECK(cudaMemcpyAsync(dst, b, size, cudaMemcpyDefault, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(!std::memcmp(dst, want.data(), size));
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    if (pinned) {
        CHECK(cudaFreeHost(src));
        CHECK(cudaFreeHost(dst));
    } else {
        delete[] src;
        delete[] dst;
    }
}

static void rectangles() {
    const size_t width = 301, height = 77, host_pitch = 333;
    std::vector<unsigned char> src(host_pitch * height), dst(host_pitch * height, 9);
    for (auto &b : src) b = next_byte();
    unsigned char *d;
    size_t pitch;
    CHECK(cudaMallocPitch((void **)&d, &pitch, width, height));
    EXPECT(pitch >= width && pitch % 32 == 0);
    CHECK(cudaMemset2D(d, pitch, 0, width, height));
    CHECK(cudaMemcpy2D(d, pitch, src.data(), host_pitch, width, height, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy2D(dst.data(), host_pitch, d, pitch, width, height, cudaMemcpyDeviceToHost));
    for (size_t y = 0; y < height; y++)
        for (size_t x = 0; x < host_pitch; x++) EXPECT(dst[y * host_pitch + x] == (x < width ? src[y * host_pitch + x] : 9));
    CHECK(cudaFree(d));
}

static void peers() {
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices));
    if (devices < 2) return;
    const size_t size = 3 << 20;
    std::vector<unsigned char> want(size), got(size);
    for (auto &b : want) b = next_byte();
    unsigned char *a, *b;
    CHECK(cudaSetDevice(0));
    CHECK(cudaMalloc(&a, size));
    CHECK(cudaMemcpy(a, want.data(), size, cudaMemcpyHostToDevice));
    CHECK(cudaSetDevice(1));
    CHECK(cudaMalloc(&b, size));
    CHECK(cudaMemcpyPeer(b, 1, a, 0, size));
    CHECK(cudaMemcpy(got.data(), b, size, cudaMemcpyDeviceToHost));
    EXPECT(got == want);
    CHECK(cudaFree(b));
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(a));
}

int main() {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (size_t size : {(size_t)1, (size_t)3, (size_t)4096, (size_t)65535, (size_t)65536, (size_t)65537, (size_t)1000003, (size_t)40 << 20})
        for (bool pinned : {false, true}) {
            linear(size, pinned, stream);
            linear(size, pinned, nullptr);
        }
    rectangles();
    peers();
    CHECK(cudaStreamDestroy(stream));
    std::printf("right\n");
    return 0;
}
