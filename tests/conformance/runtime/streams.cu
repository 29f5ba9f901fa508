// Streams and events: what comes after what, and when the host sees it.
#include "runtime.h"
#include <thread>

__global__ void set(int *p, int n, int value) {
    for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += blockDim.x * gridDim.x) p[i] = value;
}
__global__ void scale(int *p, int n, int by) {
    for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += blockDim.x * gridDim.x) p[i] *= by;
}

const int N = 1 << 18;

// Before a stream is kept: a driver that loads kernels when they are first launched waits for all that runs.
static void load() {
    set<<<1, 1>>>(nullptr, 0, 0);
    scale<<<1, 1>>>(nullptr, 0, 0);
    CHECK(cudaDeviceSynchronize());
}

// Bytes that a copy brings are there when its event has completed, for who waits and for who asks.
CASE(copies_are_visible_at_events) {
    int *memory = allocate<int>(N), *pinned;
    CHECK(cudaMallocHost(&pinned, N * 4));
    cudaStream_t stream = make_stream();
    cudaEvent_t event = make_event(cudaEventDisableTiming);
    for (int round = 1; round < 20; round++) {
        set<<<16, 128, 0, stream>>>(memory, N, round);
        CHECK(cudaMemcpyAsync(pinned, memory, N * 4, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaEventRecord(event, stream));
        if (round % 2)
            CHECK(cudaEventSynchronize(event));
        else
            EVENTUALLY(cudaEventQuery(event) == cudaSuccess);
        for (int i = 0; i < N; i++) EXPECT(pinned[i] == round);
    }
}

// The same over another stream, which waits for the event.
CASE(copies_are_visible_through_other_streams) {
    int *memory = allocate<int>(N), *pinned;
    CHECK(cudaMallocHost(&pinned, N * 4));
    cudaStream_t first = make_stream(), second = make_stream();
    cudaEvent_t event = make_event(cudaEventDisableTiming);
    for (int round = 1; round < 20; round++) {
        set<<<16, 128, 0, first>>>(memory, N, round);
        CHECK(cudaMemcpyAsync(pinned, memory, N * 4, cudaMemcpyDeviceToHost, first));
        CHECK(cudaEventRecord(event, first));
        CHECK(cudaStreamWaitEvent(second, event, 0));
        CHECK(cudaStreamSynchronize(second));
        for (int i = 0; i < N; i++) EXPECT(pinned[i] == round);
    }
}

struct Seen {
    int *pinned;
    int round;
    int wrong;
};

// A host function sees the copies before it, and the stream waits for it.
CASE(host_functions) {
    int *memory = allocate<int>(N);
    Seen seen = {nullptr, 0, 0};
    CHECK(cudaMallocHost(&seen.pinned, N * 4));
    cudaStream_t stream = make_stream();
    for (int round = 1; round < 10; round++) {
        set<<<16, 128, 0, stream>>>(memory, N, round);
        CHECK(cudaMemcpyAsync(seen.pinned, memory, N * 4, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaLaunchHostFunc(
            stream,
            [](void *data) {
                Seen *s = static_cast<Seen *>(data);
                s->round++;
                for (int i = 0; i < N; i++) s->wrong += s->pinned[i] != s->round;
                for (int i = 0; i < N; i++) s->pinned[i] = -s->round;
            },
            &seen));
        CHECK(cudaMemcpyAsync(memory, seen.pinned, N * 4, cudaMemcpyHostToDevice, stream));
        scale<<<16, 128, 0, stream>>>(memory, N, 2);
    }
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(seen.wrong == 0 && seen.round == 9);
    EXPECT(download(memory, N) == std::vector<int>(N, -18));
}

CASE(callbacks) {
    static cudaError_t status;
    static int calls;
    cudaStream_t stream = make_stream();
    CHECK(cudaStreamAddCallback(stream, [](cudaStream_t, cudaError_t error, void *) { status = error, calls++; }, nullptr, 0));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(calls == 1 && status == cudaSuccess);
    REFUSED(cudaStreamAddCallback(stream, nullptr, nullptr, 0), cudaErrorInvalidValue);
}

// The legacy stream waits for blocking streams and they for it; streams that do not block go on.
CASE(legacy_stream) {
    int *memory = allocate<int>(N);
    cudaStream_t blocking = make_stream(cudaStreamDefault), free_running = make_stream();
    load();
    Gate gate;
    gate.put(blocking);
    set<<<16, 128, 0, blocking>>>(memory, N, 3);
    set<<<1, 1, 0, free_running>>>(memory, 0, 0);
    CHECK(cudaStreamSynchronize(free_running)); // while the other is kept
    scale<<<16, 128>>>(memory, N, 5);
    set<<<1, 128, 0, blocking>>>(memory, 64, 7);
    EXPECT(cudaStreamQuery(cudaStreamLegacy) == cudaErrorNotReady);
    gate.open = true;
    CHECK(cudaStreamSynchronize(blocking));
    std::vector<int> expected(N, 15);
    for (int i = 0; i < 64; i++) expected[i] = 7;
    EXPECT(download(memory, N) == expected);
}

// Each thread has a stream of its own behind cudaStreamPerThread.
CASE(stream_of_the_thread) {
    int *memory = allocate<int>(N);
    load();
    Gate gate;
    gate.put(cudaStreamPerThread);
    std::thread([&] {
        set<<<16, 128, 0, cudaStreamPerThread>>>(memory, N, 9);
        CHECK(cudaStreamSynchronize(cudaStreamPerThread)); // not kept by the other thread's
    }).join();
    EXPECT(cudaStreamQuery(cudaStreamPerThread) == cudaErrorNotReady);
    gate.open = true;
    CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    EXPECT(download(memory, N) == std::vector<int>(N, 9));
}

CASE(elapsed) {
    cudaStream_t stream = make_stream();
    cudaEvent_t first = make_event(), second = make_event(), untimed = make_event(cudaEventDisableTiming);
    CHECK(cudaEventRecord(first, stream));
    CHECK(cudaLaunchHostFunc(
        stream,
        [](void *) {
            timespec pause = {0, 100000000};
            nanosleep(&pause, nullptr);
        },
        nullptr));
    CHECK(cudaEventRecord(second, stream));
    CHECK(cudaEventRecord(untimed, stream));
    CHECK(cudaEventSynchronize(untimed));
    float ms = garbage<float>();
    CHECK(cudaEventElapsedTime(&ms, first, second));
    EXPECT(ms > 50 && ms < 60000);
    REFUSED(cudaEventElapsedTime(&ms, first, untimed), cudaErrorInvalidResourceHandle);
}

// Eight threads with a stream each, one device.
CASE(threads) {
    int wrong[8];
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; t++)
        threads.emplace_back([t, &wrong] {
            CHECK(cudaSetDevice(0));
            cudaStream_t stream = make_stream();
            int *memory = allocate<int>(4096), *pinned;
            CHECK(cudaMallocHost(&pinned, 4096 * 4));
            wrong[t] = 0;
            for (int round = 1; round < 50; round++) {
                set<<<4, 128, 0, stream>>>(memory, 4096, t * 100 + round);
                CHECK(cudaMemcpyAsync(pinned, memory, 4096 * 4, cudaMemcpyDeviceToHost, stream));
                CHECK(cudaStreamSynchronize(stream));
                for (int i = 0; i < 4096; i++) wrong[t] += pinned[i] != t * 100 + round;
            }
        });
    for (auto &thread : threads) thread.join();
    for (int w : wrong) EXPECT(w == 0);
}
