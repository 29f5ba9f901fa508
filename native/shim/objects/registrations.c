/* Registered callbacks that are never called, and cuFlushGPUDirectRDMAWrites, which has nobody's writes to flush. */
#include "objects/registrations.h"

#include <pthread.h>
#include <stdlib.h>

#include "gv_impl.h"
#include "objects/objects.h"

struct registered {
    struct registered *next;
    enum registration kind;
    int number;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct registered *all;

void *registration_add(enum registration kind, int number) {
    struct registered *r = malloc(sizeof *r);
    if (!r) return NULL;
    *r = (struct registered){.kind = kind, .number = number};
    pthread_mutex_lock(&lock);
    r->next = all;
    all = r;
    pthread_mutex_unlock(&lock);
    return r;
}

bool registration_end(const void *handle, enum registration kind, int number) {
    pthread_mutex_lock(&lock);
    struct registered **at = &all;
    while (*at && (*at != handle || (*at)->kind != kind || (*at)->number != number)) at = &(*at)->next;
    struct registered *r = *at;
    if (r) *at = r->next;
    pthread_mutex_unlock(&lock);
    free(r);
    return r != NULL;
}

/* The driver notifies a program that is over its budget of device memory. Here an allocation over the budget fails. */
CUresult impl_cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback callback, void *data, CUasyncCallbackHandle *out) {
    (void)data;
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    if (!callback || !out) return CUDA_ERROR_INVALID_VALUE;
    void *handle = registration_add(REGISTRATION_DEVICE, device);
    if (!handle) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = handle;
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceUnregisterAsyncNotification(CUdevice device, CUasyncCallbackHandle callback) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    return registration_end(callback, REGISTRATION_DEVICE, device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    bool known = scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER || scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES;
    return target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX && known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
