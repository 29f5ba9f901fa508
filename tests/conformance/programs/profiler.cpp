// The profiler's switches and the callbacks of logs.
#include "conformance.h"

// Of cudaProfiler.h, which the header wheels lack.
extern "C" CUresult cuProfilerStart();
extern "C" CUresult cuProfilerStop();
extern "C" CUresult cuProfilerInitialize(const char *configuration, const char *output, int mode);

COLD_HINT_CASE(start_and_stop, "cuProfilerStart", "cuProfilerStop") {
    REFUSED(cuProfilerStart(), CUDA_ERROR_NOT_INITIALIZED);
    REFUSED(cuProfilerStop(), CUDA_ERROR_NOT_INITIALIZED);
    start();
    CHECK(cuProfilerStart());
    CHECK(cuProfilerStart()); // "if profiling is already enabled, has no effect"
    CHECK(cuProfilerStop());
    CHECK(cuProfilerStop());
}

// Deprecated: what it does once the driver is started depends on the tools that are there.
COLD_HINT_CASE(initialize, "cuProfilerInitialize") { REFUSED(cuProfilerInitialize("configuration", "output", 0), CUDA_ERROR_NOT_INITIALIZED); }

static void CUDA_CB on_log(void *, CUlogLevel, char *, size_t) {}

CASE(log_callbacks, "cuLogsRegisterCallback") {
    CUlogsCallbackHandle first = garbage<CUlogsCallbackHandle>(), second = garbage<CUlogsCallbackHandle>();
    CHECK(cuLogsRegisterCallback(on_log, nullptr, &first));
    CHECK(cuLogsRegisterCallback(on_log, nullptr, &second));
    EXPECT(first != second && first != garbage<CUlogsCallbackHandle>() && second != garbage<CUlogsCallbackHandle>());
    CHECK(cuLogsUnregisterCallback(second));
    CHECK(cuLogsUnregisterCallback(first));
    REFUSED(cuLogsRegisterCallback(nullptr, nullptr, &first), CUDA_ERROR_INVALID_VALUE);
}

HINT_CASE(log_callbacks_end, "cuLogsUnregisterCallback") {
    CUlogsCallbackHandle one = garbage<CUlogsCallbackHandle>();
    CHECK(cuLogsRegisterCallback(on_log, nullptr, &one));
    CHECK(cuLogsUnregisterCallback(one));
    REFUSED(cuLogsUnregisterCallback(nullptr), CUDA_ERROR_INVALID_VALUE);
}
