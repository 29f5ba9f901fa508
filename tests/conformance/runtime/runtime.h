// What the conformance programs of the runtime API share: as programs/conformance.h, with cudart linked statically as nvcc does it.
#pragma once
#include "../programs/cases.h"
#include <cuda_runtime.h>

namespace conformance {

inline void check(cudaError_t result, const char *call, int line) {
    if (result != cudaSuccess) fail("line %d: %s answers %s", line, call, cudaGetErrorName(result));
}

inline void refused(cudaError_t result, cudaError_t expected, const char *call, int line) {
    if (result != expected) differs("line %d: %s answers %s, not %s", line, call, cudaGetErrorName(result), cudaGetErrorName(expected));
}

} // namespace conformance

#define CHECK(call) conformance::check((call), #call, __LINE__)

void start() { CHECK(cudaSetDevice(0)); }

template <typename T> T *allocate(size_t count) {
    T *memory = garbage<T *>();
    CHECK(cudaMalloc(&memory, count * sizeof(T)));
    return memory;
}

template <typename T> std::vector<T> download(const T *memory, size_t count) {
    std::vector<T> values(count, garbage<T>());
    CHECK(cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}

inline cudaStream_t make_stream(unsigned flags = cudaStreamNonBlocking) {
    cudaStream_t stream = garbage<cudaStream_t>();
    CHECK(cudaStreamCreateWithFlags(&stream, flags));
    return stream;
}

inline cudaEvent_t make_event(unsigned flags = cudaEventDefault) {
    cudaEvent_t event = garbage<cudaEvent_t>();
    CHECK(cudaEventCreateWithFlags(&event, flags));
    return event;
}

inline int attribute(cudaDeviceAttr name) {
    int value = garbage<int>();
    CHECK(cudaDeviceGetAttribute(&value, name, 0));
    return value;
}

// Keeps a stream until it is opened.
struct Gate {
    volatile bool open = false;
    void put(cudaStream_t stream) {
        CHECK(cudaLaunchHostFunc(
            stream,
            [](void *gate) {
                while (!static_cast<Gate *>(gate)->open) {
                    timespec pause = {0, 1000000};
                    nanosleep(&pause, nullptr);
                }
            },
            this));
    }
};
