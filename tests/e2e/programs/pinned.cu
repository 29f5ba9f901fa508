// Copies from pinned memory, which are sent from where it lies. Prints "right". With the argument "early" the source is overwritten before its copy is
// done, which a test that looks must notice: prints "noticed".
#include "check.h"
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

static const size_t SIZE = 24 << 20;

static unsigned word(size_t i, unsigned seed) { return (unsigned)(i * 2654435761u + seed * 40503u); }

static void fill(void *memory, size_t size, unsigned seed) {
    unsigned *words = (unsigned *)memory;
    for (size_t i = 0; i < size / 4; i++) words[i] = word(i, seed);
}

static bool holds(const void *memory, size_t size, unsigned seed) {
    const unsigned *words = (const unsigned *)memory;
    for (size_t i = 0; i < size / 4; i++)
        if (words[i] != word(i, seed)) return false;
    return true;
}

static unsigned char *pinned(size_t size) {
    void *memory;
    CHECK(cudaMallocHost(&memory, size));
    return (unsigned char *)memory;
}

static unsigned char *device(size_t size) {
    void *memory;
    CHECK(cudaMalloc(&memory, size));
    return (unsigned char *)memory;
}

static void wait_for(void *flag) {
    while (!((std::atomic<bool> *)flag)->load()) std::this_thread::yield();
}

// The source is the program's again once the event behind the copy has come. `early`: the last one is overwritten while its copy is behind a host
// function, so that it has not been read for certain.
static bool overwritten(bool early) {
    const int n = 6;
    std::atomic<bool> is_overwritten{false};
    cudaStream_t stream;
    cudaEvent_t done;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    unsigned char *src[n], *dst[n], *back = pinned(SIZE);
    for (int i = 0; i < n; i++) {
        src[i] = pinned(SIZE);
        dst[i] = device(SIZE);
        fill(src[i], SIZE, i);
    }
    for (int i = 0; i < n; i++) {
        if (early && i == n - 1) CHECK(cudaLaunchHostFunc(stream, wait_for, &is_overwritten));
        CHECK(cudaMemcpyAsync(dst[i], src[i], SIZE, cudaMemcpyHostToDevice, stream));
        if (early) {
            if (i == n - 1) std::memset(src[i], 0xee, SIZE);
            continue;
        }
        CHECK(cudaEventRecord(done, stream));
        if (i % 2)
            CHECK(cudaEventSynchronize(done));
        else
            while (cudaEventQuery(done) == cudaErrorNotReady) std::this_thread::yield();
        std::memset(src[i], 0xee, SIZE);
    }
    is_overwritten = true;
    bool right = true;
    for (int i = 0; i < n; i++) {
        CHECK(cudaMemcpyAsync(back, dst[i], SIZE, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        right = right && holds(back, SIZE, i);
        CHECK(cudaFree(dst[i]));
        CHECK(cudaFreeHost(src[i]));
    }
    CHECK(cudaFreeHost(back));
    CHECK(cudaStreamDestroy(stream));
    return right;
}

// Memory that is still being sent may be given back: that waits.
static void given_back() {
    unsigned char *d = device(SIZE);
    std::vector<unsigned> mine(SIZE / 4), back(SIZE / 4);
    for (unsigned i = 0; i < 4; i++) {
        unsigned char *src = pinned(SIZE);
        fill(src, SIZE, 100 + i);
        CHECK(cudaMemcpyAsync(d, src, SIZE, cudaMemcpyHostToDevice, nullptr));
        CHECK(cudaFreeHost(src));
        CHECK(cudaMemcpy(back.data(), d, SIZE, cudaMemcpyDeviceToHost));
        EXPECT(holds(back.data(), SIZE, 100 + i));
        fill(mine.data(), SIZE, 200 + i);
        CHECK(cudaHostRegister(mine.data(), SIZE, 0));
        CHECK(cudaMemcpyAsync(d, mine.data(), SIZE, cudaMemcpyHostToDevice, nullptr));
        CHECK(cudaHostUnregister(mine.data()));
        std::memset(mine.data(), 0xee, SIZE);
        CHECK(cudaMemcpy(back.data(), d, SIZE, cudaMemcpyDeviceToHost));
        EXPECT(holds(back.data(), SIZE, 200 + i));
    }
    CHECK(cudaFree(d));
}

static void CUDART_CB write_there(void *memory) { fill(memory, SIZE, 301); }

// What is copied may itself be written by an earlier copy or a host function, and by a later one.
static void relays() {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    unsigned char *a = device(SIZE), *b = device(SIZE), *c = device(SIZE), *relay = pinned(SIZE);
    std::vector<unsigned> back(SIZE / 4);
    fill(back.data(), SIZE, 300);
    CHECK(cudaMemcpy(a, back.data(), SIZE, cudaMemcpyHostToDevice));
    std::memset(relay, 0, SIZE);
    CHECK(cudaMemcpyAsync(relay, a, SIZE, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(b, relay, SIZE, cudaMemcpyHostToDevice, stream));
    CHECK(cudaLaunchHostFunc(stream, write_there, relay));
    CHECK(cudaMemcpyAsync(c, relay, SIZE, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyAsync(relay, a, SIZE, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(holds(relay, SIZE, 300));
    CHECK(cudaMemcpy(back.data(), b, SIZE, cudaMemcpyDeviceToHost));
    EXPECT(holds(back.data(), SIZE, 300));
    CHECK(cudaMemcpy(back.data(), c, SIZE, cudaMemcpyDeviceToHost));
    EXPECT(holds(back.data(), SIZE, 301));
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    CHECK(cudaFree(c));
    CHECK(cudaFreeHost(relay));
    CHECK(cudaStreamDestroy(stream));
}

__global__ void wait_for(volatile unsigned *flag, unsigned *seen, const unsigned *data) {
    while (*flag == 0) {
    }
    __threadfence();
    *seen = data[12345];
}

// A kernel that waits for what another stream copies, with copies of its own stream's behind it.
static void past_a_waiting_kernel() {
    cudaStream_t stuck, other;
    CHECK(cudaStreamCreateWithFlags(&stuck, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    unsigned char *flag = device(4), *seen = device(4), *data = device(SIZE), *behind = device(SIZE);
    unsigned char *src = pinned(SIZE), *src_behind = pinned(SIZE), *one = pinned(4), *back = pinned(SIZE);
    CHECK(cudaMemset(flag, 0, 4));
    CHECK(cudaMemset(seen, 0, 4));
    CHECK(cudaDeviceSynchronize());
    fill(src, SIZE, 400);
    fill(src_behind, SIZE, 401);
    fill(one, 4, 402);
    std::memset(one, 1, 4);
    wait_for<<<1, 1, 0, stuck>>>((volatile unsigned *)flag, (unsigned *)seen, (const unsigned *)data);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpyAsync(behind, src_behind, SIZE, cudaMemcpyHostToDevice, stuck));
    CHECK(cudaMemcpyAsync(back, behind, SIZE, cudaMemcpyDeviceToHost, stuck));
    CHECK(cudaMemcpyAsync(data, src, SIZE, cudaMemcpyHostToDevice, other));
    CHECK(cudaMemcpyAsync(flag, one, 4, cudaMemcpyHostToDevice, other));
    CHECK(cudaStreamSynchronize(other));
    CHECK(cudaStreamSynchronize(stuck));
    EXPECT(holds(back, SIZE, 401));
    unsigned got = 0;
    CHECK(cudaMemcpy(&got, seen, 4, cudaMemcpyDeviceToHost));
    EXPECT(got == word(12345, 400));
    for (unsigned char *d : {flag, seen, data, behind}) CHECK(cudaFree(d));
    for (unsigned char *h : {src, src_behind, one, back}) CHECK(cudaFreeHost(h));
    CHECK(cudaStreamDestroy(stuck));
    CHECK(cudaStreamDestroy(other));
}

// More than one command copies at once, and rows with gaps on either side.
static void large_and_torn() {
    const size_t large = (size_t)130 << 20;
    unsigned char *d = device(large), *h = pinned(large);
    fill(h, large, 500);
    CHECK(cudaMemcpyAsync(d, h, large, cudaMemcpyHostToDevice, nullptr));
    CHECK(cudaDeviceSynchronize());
    std::memset(h, 0, large);
    CHECK(cudaMemcpyAsync(h, d, large, cudaMemcpyDeviceToHost, nullptr));
    CHECK(cudaDeviceSynchronize());
    EXPECT(holds(h, large, 500));
    for (size_t width : {(size_t)7, (size_t)1000, (size_t)100000, (size_t)3 << 20}) {
        const size_t rows = 40, gap = 24;
        CHECK(cudaMemset2DAsync(d, width + 8, 0, width, rows, nullptr));
        CHECK(cudaMemcpy2DAsync(d, width + 8, h, width + gap, width, rows, cudaMemcpyHostToDevice, nullptr));
        std::vector<unsigned char> back((width + gap) * rows, 9);
        CHECK(cudaMemcpy2DAsync(back.data(), width + gap, d, width + 8, width, rows, cudaMemcpyDeviceToHost, nullptr));
        CHECK(cudaDeviceSynchronize());
        for (size_t y = 0; y < rows; y++) {
            EXPECT(!std::memcmp(&back[y * (width + gap)], h + y * (width + gap), width));
            for (size_t x = width; x < width + gap; x++) EXPECT(back[y * (width + gap) + x] == 9);
        }
    }
    CHECK(cudaFree(d));
    CHECK(cudaFreeHost(h));
}

// Into pinned memory and out of it again, nobody waits between: more than a worker keeps for a stream that has not come to it. Then as much of other
// memory behind such a copy.
static void more_than_is_kept() {
    const size_t size = (size_t)272 << 20;
    unsigned char *d = device(2 * size), *h = pinned(size);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMemsetAsync(d, 7, size, stream));
    CHECK(cudaMemcpyAsync(h, d, size, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(d + size, h, size, cudaMemcpyHostToDevice, stream));
    CHECK(cudaStreamSynchronize(stream));
    std::vector<unsigned char> back(size, 1);
    CHECK(cudaMemcpy(back.data(), d + size, size, cudaMemcpyDeviceToHost));
    EXPECT(back[0] == 7 && !std::memcmp(back.data(), back.data() + 1, size - 1));
    CHECK(cudaLaunchHostFunc(
        stream, [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(500)); }, nullptr));
    CHECK(cudaMemcpyAsync(h, d, 1 << 20, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(d, h, 1 << 20, cudaMemcpyHostToDevice, stream));
    for (int i = 0; i < 2; i++) {
        back[5] = (unsigned char)i;
        CHECK(cudaMemcpyAsync(d + size, back.data(), size, cudaMemcpyHostToDevice, stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(back.data(), d + size, 64, cudaMemcpyDeviceToHost));
    EXPECT(back[4] == 7 && back[5] == 1);
}

static void one_thread(unsigned me) {
    const size_t size = 3 << 20;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned char *d = device(size), *h = pinned(size);
    std::vector<unsigned> pageable(size / 4);
    for (unsigned i = 0; i < 6; i++) {
        unsigned seed = 1000 * me + i;
        void *src = i % 2 ? (void *)h : (void *)pageable.data(), *dst = i % 2 ? (void *)pageable.data() : (void *)h;
        fill(src, size, seed);
        CHECK(cudaMemcpyAsync(d, src, size, cudaMemcpyHostToDevice, stream));
        CHECK(cudaMemcpyAsync(dst, d, size, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        EXPECT(holds(dst, size, seed));
    }
    CHECK(cudaFree(d));
    CHECK(cudaFreeHost(h));
    CHECK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv) {
    if (argc > 1 && !std::strcmp(argv[1], "early")) {
        std::printf(overwritten(true) ? "nothing noticed\n" : "noticed\n");
        return 0;
    }
    if (argc > 1 && !std::strcmp(argv[1], "much")) {
        more_than_is_kept();
        std::printf("right\n");
        return 0;
    }
    EXPECT(overwritten(false));
    given_back();
    relays();
    past_a_waiting_kernel();
    large_and_torn();
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 6; i++) threads.emplace_back(one_thread, i);
    for (auto &t : threads) t.join();
    std::printf("right\n");
    return 0;
}
