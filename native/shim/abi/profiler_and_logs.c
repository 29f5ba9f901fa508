/* Small services of the driver that have no object: its log and the profiler's switches. */
#include <stdatomic.h>

#include "gv_impl.h"

/* The driver's own log would be delivered here. Ours goes to stderr, so a callback is accepted and never called; its handle is a number that was given out. */
static _Atomic uintptr_t log_callbacks;

CUresult impl_cuLogsRegisterCallback(CUlogsCallback callback, void *data, CUlogsCallbackHandle *out) {
    (void)data;
    if (!callback) return CUDA_ERROR_INVALID_VALUE;
    uintptr_t handle = atomic_fetch_add(&log_callbacks, 1) + 1;
    if (out) *out = (CUlogsCallbackHandle)handle;
    return CUDA_SUCCESS;
}

CUresult impl_cuLogsUnregisterCallback(CUlogsCallbackHandle callback) {
    uintptr_t handle = (uintptr_t)callback;
    return handle && handle <= atomic_load(&log_callbacks) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* No profiler collects here; programs bracket their hot part with these calls and must not fail for it. */
CUresult impl_cuProfilerInitialize(const char *config, const char *output, int mode) {
    (void)config, (void)output, (void)mode;
    return CUDA_SUCCESS;
}

CUresult impl_cuProfilerStart(void) { return CUDA_SUCCESS; }

CUresult impl_cuProfilerStop(void) { return CUDA_SUCCESS; }
