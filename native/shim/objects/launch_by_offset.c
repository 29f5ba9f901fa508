/* Launches as they were before CUDA 4: a function keeps its block, its shared memory and its parameters, which the program writes by their offsets. */
#include <stdlib.h>
#include <string.h>

#include "gv_impl.h"
#include "objects/objects.h"
#include "wire/session_limits.h"

struct launch_by_offset {
    unsigned block[3], shared;
    size_t size; /* of the parameters, bytes */
    char params[GV_PARAMS_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A function's settings, made when they are first asked for; with the lock held when it returns 0. */
static int settings(CUfunction handle, struct launch_by_offset **out) {
    struct shim_context *c;
    struct shim_function *f;
    int rc = context_require(&c);
    if (!rc) rc = function_resolve(handle, c, &f);
    if (rc) return rc;
    pthread_mutex_lock(&lock);
    if (!f->by_offset) {
        f->by_offset = calloc(1, sizeof *f->by_offset);
        if (f->by_offset) f->by_offset->block[0] = f->by_offset->block[1] = f->by_offset->block[2] = 1;
    }
    *out = f->by_offset;
    if (!*out) pthread_mutex_unlock(&lock);
    return *out ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult impl_cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
    struct launch_by_offset *l;
    int rc = settings(function, &l);
    if (rc) return rc;
    bool good = x > 0 && y > 0 && z > 0;
    if (good) l->block[0] = (unsigned)x, l->block[1] = (unsigned)y, l->block[2] = (unsigned)z;
    pthread_mutex_unlock(&lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuFuncSetSharedSize(CUfunction function, unsigned int bytes) {
    struct launch_by_offset *l;
    int rc = settings(function, &l);
    if (rc) return rc;
    l->shared = bytes;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult impl_cuParamSetSize(CUfunction function, unsigned int bytes) {
    struct launch_by_offset *l;
    int rc = settings(function, &l);
    if (rc) return rc;
    bool good = bytes <= sizeof l->params;
    if (good) l->size = bytes;
    pthread_mutex_unlock(&lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuParamSetv(CUfunction function, int offset, void *from, unsigned int bytes) {
    struct launch_by_offset *l;
    int rc = settings(function, &l);
    if (rc) return rc;
    bool good = from && offset >= 0 && bytes <= sizeof l->params && (size_t)offset <= sizeof l->params - bytes;
    if (good) memcpy(l->params + offset, from, bytes);
    pthread_mutex_unlock(&lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuParamSeti(CUfunction function, int offset, unsigned int value) { return impl_cuParamSetv(function, offset, &value, sizeof value); }
CUresult impl_cuParamSetf(CUfunction function, int offset, float value) { return impl_cuParamSetv(function, offset, &value, sizeof value); }

static int launch(CUfunction function, int width, int height, CUstream stream) {
    struct launch_by_offset *l;
    int rc = settings(function, &l);
    if (rc) return rc;
    char params[GV_PARAMS_MAX];
    size_t size = l->size;
    unsigned block[] = {l->block[0], l->block[1], l->block[2]}, shared = l->shared;
    memcpy(params, l->params, size);
    pthread_mutex_unlock(&lock);
    if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, params, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    return impl_cuLaunchKernel(function, (unsigned)width, (unsigned)height, 1, block[0], block[1], block[2], shared, stream, NULL, extra);
}

CUresult impl_cuLaunch(CUfunction function) { return launch(function, 1, 1, shim_default_stream); }
CUresult impl_cuLaunchGrid(CUfunction function, int width, int height) { return launch(function, width, height, shim_default_stream); }
CUresult impl_cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) { return launch(function, width, height, stream); }
