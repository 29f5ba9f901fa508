/* Starts contexts: a primary context when it is first needed, others in cuCtxCreate. */
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/objects.h"

static void default_limits(struct shim_context *c) {
    c->limits[CU_LIMIT_STACK_SIZE] = 1024;
    c->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    c->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    c->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    c->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    c->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 128;
    c->limits[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 0;
}

/* context_life_lock held. */
static int start(struct shim_context *c) {
    c->id = context_next_id();
    c->info = device_info(c->device);
    c->server_device = device_server_index(c->device);
    atomic_store(&c->status, 0);
    c->peers = 0;
    c->cache_config = CU_FUNC_CACHE_PREFER_NONE;
    default_limits(c);
    struct gv_cmd_context_create create = {.device = c->server_device, .flags = c->flags, .primary = c->primary};
    if (!post_context_create(c->id, 0, &create)) return post_refused();
    int rc = stream_new(c, STREAM_LEGACY, 0, 0, &c->legacy);
    if (rc) {
        post_context_destroy(c->id, 0, &(struct gv_cmd_context_destroy){0});
        return rc;
    }
    object_publish(c->legacy);
    pthread_mutex_lock(&context_lock);
    c->next = context_list;
    context_list = c;
    pthread_mutex_unlock(&context_lock);
    object_publish(c);
    return 0;
}

int context_any(struct shim_context **out) {
    struct shim_context *c = context_current();
    if (c) return context_usable(c, out);
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&context_life_lock);
    int rc = CUDA_ERROR_INVALID_CONTEXT;
    for (int i = 0; i < device_count() && rc; i++) {
        c = context_primary_object(i);
        if (c && context_live(c)) rc = context_usable(c, out);
    }
    /* A program whose first call is a launch asks for its kernel before it has a context. The primary context of the first device is started
     * then; the runtime retains it later. */
    struct shim_context *first = rc == CUDA_ERROR_INVALID_CONTEXT ? context_primary_object(0) : NULL;
    if (first && !context_live(first)) {
        rc = session_broken();
        if (!rc) rc = start(first);
        if (!rc) rc = context_usable(first, out);
    }
    pthread_mutex_unlock(&context_life_lock);
    return rc;
}

int context_check_flags(unsigned flags) {
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
    unsigned schedule = flags & CU_CTX_SCHED_MASK;
    return schedule == 0 || schedule == CU_CTX_SCHED_SPIN || schedule == CU_CTX_SCHED_YIELD || schedule == CU_CTX_SCHED_BLOCKING_SYNC
               ? 0
               : CUDA_ERROR_INVALID_VALUE;
}

/* ---- primary contexts ---------------------------------------------------------------------------------------------- */

CUresult impl_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&context_life_lock);
    struct shim_context *c = context_primary_object(device);
    int rc = c ? session_broken() : CUDA_ERROR_INVALID_DEVICE;
    if (!rc && !context_live(c)) rc = start(c);
    if (!rc) {
        c->retained++;
        *context = (CUcontext)c;
    }
    pthread_mutex_unlock(&context_life_lock);
    return rc;
}

CUresult impl_cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (context_check_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&context_life_lock);
    struct shim_context *c = context_primary_object(device);
    if (c) c->flags = flags;
    pthread_mutex_unlock(&context_life_lock);
    return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult impl_cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&context_life_lock);
    struct shim_context *c = context_primary_object(device);
    if (c) {
        *flags = c->flags;
        *active = context_live(c);
    }
    pthread_mutex_unlock(&context_life_lock);
    return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* ---- created contexts ---------------------------------------------------------------------------------------------- */

static int create(CUcontext *context, unsigned flags, CUdevice device, unsigned api_version) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context || context_check_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
    if (!device_info(device)) return CUDA_ERROR_INVALID_DEVICE;
    int rc = session_broken();
    if (rc) return rc;
    struct shim_context *c = context_object(device);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    c->flags = flags;
    c->api_version = api_version;
    pthread_mutex_lock(&context_life_lock);
    rc = context_stack_reserve();
    if (!rc) rc = start(c);
    pthread_mutex_unlock(&context_life_lock);
    if (rc) {
        object_free(c);
        return rc;
    }
    context_push(c);
    *context = (CUcontext)c;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) { return create(context, flags, device, 3010); }

CUresult impl_cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) { return create(context, flags, device, 3020); }

CUresult impl_cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *params, int n_params, unsigned int flags, CUdevice device) {
    if (n_params < 0 || (n_params > 0 && !params)) return CUDA_ERROR_INVALID_VALUE;
    if (n_params > 0) {
        shim_log_once("cuCtxCreate_v3: execution affinity is not supported");
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    return create(context, flags, device, 3020);
}

CUresult impl_cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device) {
    if (params && params->numExecAffinityParams) {
        shim_log_once("cuCtxCreate_v4: execution affinity is not supported");
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    if (params && params->cigParams) {
        shim_log_once("cuCtxCreate_v4: CUDA in graphics is not supported");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return create(context, flags, device, 3020);
}

/* Attach and detach count references, as in the driver; the creation is the first reference. */
CUresult impl_cuCtxAttach(CUcontext *context, unsigned int flags) {
    struct shim_context *c;
    if (flags || !context) return CUDA_ERROR_INVALID_VALUE;
    int rc = context_require(&c);
    if (rc) return rc;
    pthread_mutex_lock(&context_life_lock);
    c->retained++;
    pthread_mutex_unlock(&context_life_lock);
    *context = (CUcontext)c;
    return CUDA_SUCCESS;
}
