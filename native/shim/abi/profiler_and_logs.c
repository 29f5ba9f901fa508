/* Small services of the driver that have no object: its log and the profiler's switches. */
#include <stdatomic.h>
#include <stdio.h>

#include "gv_impl.h"
#include "session/log/log_lines.h"

/* What the driver would say is what the shim's log says. A callback for it is accepted and never called; its handle is a number that was given out. */
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

CUresult impl_cuLogsCurrent(CUlogIterator *out, unsigned int flags) {
    (void)flags; /* the driver does not look at them */
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = log_lines_next();
    return CUDA_SUCCESS;
}

/* From the iterator's line on, or all that is there. */
CUresult impl_cuLogsDumpToMemory(CUlogIterator *iterator, char *buffer, size_t *size, unsigned int flags) {
    (void)flags;
    if (!buffer || !size) return CUDA_ERROR_INVALID_VALUE;
    unsigned next = 0;
    long n = log_lines_copy(iterator ? *iterator : 0, buffer, *size, &next);
    *size = n < 0 ? 0 : (size_t)n;
    if (n < 0) return CUDA_ERROR_INVALID_VALUE;
    if (iterator) *iterator = next;
    return CUDA_SUCCESS;
}

CUresult impl_cuLogsDumpToFile(CUlogIterator *iterator, const char *path, unsigned int flags) {
    (void)flags;
    char text[LOG_LINES_SIZE + 128]; /* and the line that says that some are missing */
    CUlogIterator from = iterator ? *iterator : 0;
    size_t size = sizeof text;
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    int rc = impl_cuLogsDumpToMemory(&from, text, &size, 0);
    if (rc) return rc;
    FILE *file = fopen(path, "we");
    if (!file) return CUDA_ERROR_INVALID_VALUE;
    bool written = fwrite(text, 1, size, file) == size;
    if (fclose(file) || !written) return CUDA_ERROR_INVALID_VALUE;
    if (iterator) *iterator = from;
    return CUDA_SUCCESS;
}

/* No profiler collects here; programs bracket their hot part with these calls and must not fail for it. */
CUresult impl_cuProfilerInitialize(const char *config, const char *output, int mode) {
    (void)config, (void)output, (void)mode;
    return CUDA_ERROR_NOT_SUPPORTED; /* as drivers of CUDA 13 do, before cuInit, too */
}

CUresult impl_cuProfilerStart(void) { return CUDA_SUCCESS; }

CUresult impl_cuProfilerStop(void) { return CUDA_SUCCESS; }
