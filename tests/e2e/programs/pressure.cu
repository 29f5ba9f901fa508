// More than anybody can take, behind a device that does nothing else for a while: pressure WHAT SECONDS. WHAT: "launches", "copies" (to the device) or
// "events" behind a long kernel, "host" launches behind a slow host function, "results" copies to the host. Prints "running", then what it got through
// ("flooded N bytes"), then "right".
#include "check.h"
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

__global__ void busy(unsigned *v, long rounds) {
    unsigned x = *v;
    for (long i = 0; i < rounds; i++) x = x * 1664525u + 1013904223u;
    *v = x;
}

struct ballast {
    unsigned words[960];
};

__global__ void add(unsigned *v, ballast b) { *v += b.words[959]; }

static void CUDART_CB dawdle(void *seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(*(double *)seconds)); }

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "launches";
    double seconds = argc > 2 ? std::atof(argv[2]) : 3;
    unsigned *v, *sum;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&v, 4));
    CHECK(cudaMalloc(&sum, 4));
    CHECK(cudaMemset(v, 1, 4));
    CHECK(cudaMemset(sum, 0, 4));
    CHECK(cudaDeviceSynchronize()); // the stream does not wait for the legacy one
    ballast b;
    std::memset(&b, 0, sizeof b);
    add<<<1, 1, 0, stream>>>(sum, b);
    long rounds = 1 << 20;
    double per_round = 0;
    for (int i = 0; i < 4; i++) { // the first pays for the compiler
        double t = now();
        busy<<<1, 1, 0, stream>>>(v, rounds);
        CHECK(cudaStreamSynchronize(stream));
        per_round = (now() - t) / rounds;
        if (i) rounds *= 4;
    }
    std::printf("running\n");
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(300)); // for who measures from here on

    const size_t size = 8 << 20, count = 24;
    double end = now() + seconds;
    unsigned long flooded = 0, n = 0;
    if (!std::strcmp(what, "results")) {
        std::vector<unsigned char *> into(count);
        unsigned char *d;
        CHECK(cudaMalloc(&d, size));
        for (auto &h : into) CHECK(cudaMallocHost(&h, size));
        for (int lap = 0; now() < end; lap++) {
            for (size_t i = 0; i < count; i++) {
                CHECK(cudaMemsetAsync(d, (int)(lap + i) & 255, size, stream));
                CHECK(cudaMemcpyAsync(into[i], d, size, cudaMemcpyDeviceToHost, stream));
                flooded += size;
            }
            CHECK(cudaStreamSynchronize(stream));
            for (size_t i = 0; i < count; i++)
                for (size_t k = 0; k < size; k += 4093) EXPECT(into[i][k] == ((lap + i) & 255));
        }
    } else if (!std::strcmp(what, "copies")) {
        busy<<<1, 1, 0, stream>>>(v, (long)(seconds / per_round));
        std::vector<unsigned char *> d(count);
        std::vector<unsigned char> h(size), back(size);
        for (auto &p : d) CHECK(cudaMalloc(&p, size));
        for (; n < 5 * count; n++) {
            std::memset(h.data(), (int)n, size);
            CHECK(cudaMemcpyAsync(d[n % count], h.data(), size, cudaMemcpyHostToDevice, stream));
            flooded += size;
        }
        CHECK(cudaStreamSynchronize(stream));
        for (size_t i = 0; i < count; i++) {
            CHECK(cudaMemcpy(back.data(), d[i], size, cudaMemcpyDeviceToHost));
            for (size_t k = 0; k < size; k += 4093) EXPECT(back[k] == (unsigned char)(4 * count + i));
        }
    } else {
        bool events = !std::strcmp(what, "events");
        cudaEvent_t event;
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        if (!std::strcmp(what, "host"))
            CHECK(cudaLaunchHostFunc(stream, dawdle, &seconds));
        else
            busy<<<1, 1, 0, stream>>>(v, (long)(seconds / per_round));
        b.words[959] = 1;
        unsigned long most = events ? 1500000 : 200000;
        for (; n < most; n++) {
            if (events) {
                CHECK(cudaEventRecord(event, stream));
            } else {
                add<<<1, 1, 0, stream>>>(sum, b);
                flooded += sizeof b;
            }
        }
        CHECK(cudaGetLastError());
        CHECK(cudaStreamSynchronize(stream));
        unsigned got = 0;
        CHECK(cudaMemcpy(&got, sum, 4, cudaMemcpyDeviceToHost));
        EXPECT(events || got == (unsigned)n);
        if (events) flooded = n * 48;
    }
    std::printf("flooded %lu bytes\nright\n", flooded);
    return 0;
}
