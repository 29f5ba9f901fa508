// What the conformance programs share. A case is a function that uses the driver API as its documentation says, and names the functions whose effect
// it sees through other functions, or in memory. The same binary runs on any driver: nothing here knows whose it is.
#pragma once
#include "cases.h"
#include <cuda.h>
#include <dlfcn.h>

namespace conformance {

// Not by cuGetErrorName, which is under test, too.
inline std::string error_name(CUresult result) { return "CUresult " + std::to_string(static_cast<int>(result)); }

inline void check(CUresult result, const char *call, int line) {
    if (result != CUDA_SUCCESS) fail("line %d: %s answers %s", line, call, error_name(result).c_str());
}

inline void refused(CUresult result, CUresult expected, const char *call, int line) {
    if (result != expected) differs("line %d: %s answers %s, not %s", line, call, error_name(result).c_str(), error_name(expected).c_str());
}

extern "C" inline void is_gone(int) {
    // Nothing but what a signal's handler may do.
    if (!failed && (write(STDOUT_FILENO, running, std::strlen(running)) < 0 || write(STDOUT_FILENO, " ok\n", 4) < 0)) _exit(1);
    _exit(failed);
}

template <typename Call> void gone(Call call, const char *text, int line) {
    std::fflush(stdout);
    std::signal(SIGSEGV, is_gone);
    if (call() == CUDA_SUCCESS) differs("line %d: %s answers CUDA_SUCCESS of what was destroyed", line, text);
    std::signal(SIGSEGV, SIG_DFL);
}

// Whether the driver has a function of its own: the programs are built with headers that may be newer.
inline bool has(const char *function) { return dlsym(RTLD_DEFAULT, function) != nullptr; }

} // namespace conformance

// Ends a case of a function that this driver does not have.
#define NEEDS_FUNCTION(name) NEEDS(conformance::has(#name))
#define CHECK(call) conformance::check((call), #call, __LINE__)
// The last of a case: a call with a handle that was destroyed. The documentation leaves open what it does, so only an answer of success shows that
// the handle is still there; where a driver looks at what is no more, and faults, the case has seen what it wanted to.
#define GONE(call) conformance::gone([&] { return (call); }, #call, __LINE__)

inline CUdevice device;   // device 0
inline CUcontext primary; // its primary context

void start() {
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&primary, device));
    CHECK(cuCtxSetCurrent(primary));
}

inline int driver_version() {
    int version = garbage<int>();
    CHECK(cuDriverGetVersion(&version));
    return version;
}

inline int device_count() {
    int count = garbage<int>();
    CHECK(cuDeviceGetCount(&count));
    return count;
}

inline int attribute(CUdevice_attribute name, CUdevice of = device) {
    int value = garbage<int>();
    CHECK(cuDeviceGetAttribute(&value, name, of));
    return value;
}

inline CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr address = garbage<CUdeviceptr>();
    CHECK(cuMemAlloc(&address, bytes));
    return address;
}

// Device memory that holds `values`.
template <typename T> CUdeviceptr upload(const std::vector<T> &values) {
    CUdeviceptr address = allocate(values.size() * sizeof(T));
    CHECK(cuMemcpyHtoD(address, values.data(), values.size() * sizeof(T)));
    return address;
}

// What `count` values at a device address are, when all that was queued before is done.
template <typename T> std::vector<T> download(CUdeviceptr address, size_t count) {
    std::vector<T> values(count, garbage<T>());
    CHECK(cuMemcpyDtoH(values.data(), address, count * sizeof(T)));
    return values;
}

// 0, 1, 2, ... from `first`.
template <typename T> std::vector<T> counting(size_t count, T first = 0) {
    std::vector<T> values(count);
    for (size_t i = 0; i < count; i++) values[i] = static_cast<T>(first + static_cast<T>(i));
    return values;
}

template <typename T> std::vector<T> filled(size_t count, T value) { return std::vector<T>(count, value); }

inline CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = garbage<CUstream>();
    CHECK(cuStreamCreate(&stream, flags));
    return stream;
}

// Whether the stream has something to wait for. It is asked for a fifth of a second, for what it could do may not have begun at the first query; and each time a witness, a
// stream that waits for nothing, is given work and does it first: on a busy machine time alone says little. `of`: the witness's context, if it is not the current one.
inline bool stays_behind(CUstream stream, CUstream witness, CUcontext of = nullptr) {
    CUcontext here = garbage<CUcontext>();
    CHECK(cuCtxGetCurrent(&here));
    CHECK(cuCtxPushCurrent(of ? of : here));
    CUdeviceptr memory = allocate(4);
    bool behind = true;
    for (int i = 0; i < 20 && behind; i++) {
        CHECK(cuMemsetD32Async(memory, 1, 1, witness));
        CHECK(cuStreamSynchronize(witness));
        behind = cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
        timespec pause = {0, 10000000};
        nanosleep(&pause, nullptr);
    }
    CHECK(cuCtxPopCurrent(&here));
    return behind;
}

inline CUevent make_event(unsigned flags = CU_EVENT_DEFAULT) {
    CUevent event = garbage<CUevent>();
    CHECK(cuEventCreate(&event, flags));
    return event;
}
