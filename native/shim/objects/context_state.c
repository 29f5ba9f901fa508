/* Queries and settings of a context. */
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"
#include "objects/managed/managed.h"

CUresult impl_cuCtxGetDevice(CUdevice *device) {
    struct shim_context *c = context_current();
    if (!c) return shim_initialized() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = c->device; /* also known after the context has ended */
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    if (!context) return impl_cuCtxGetDevice(device);
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_context *c = context_get(context);
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = c->device;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetFlags(unsigned int *flags) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = c->flags;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetFlags(unsigned int flags) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    rc = context_check_flags(flags);
    if (rc) return rc;
    c->flags = flags;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetId(CUcontext context, unsigned long long *id) {
    struct shim_context *c;
    int rc = context ? context_check_bound(context, &c) : context_require(&c);
    if (rc) return rc;
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = context ? c->id : context_bound()->id;
    return CUDA_SUCCESS;
}

static int synchronize(struct shim_context *bound) {
    int rc = capture_forbidden_in(bound);
    if (rc) return rc;
    rc = stream_drain_context(bound);
    managed_waited();
    return rc;
}

CUresult impl_cuCtxSynchronize(void) {
    struct shim_context *c;
    int rc = context_require(&c);
    return rc ? rc : synchronize(context_bound());
}

CUresult impl_cuCtxSynchronize_v2(CUcontext context) {
    struct shim_context *c;
    if (!context) return impl_cuCtxSynchronize();
    int rc = context_check_bound(context, &c);
    return rc ? rc : synchronize(c);
}

CUresult impl_cuCtxGetApiVersion(CUcontext context, unsigned int *version) {
    struct shim_context *c;
    int rc = context ? context_check(context, &c) : context_require(&c);
    if (rc) return rc;
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = c->api_version;
    return CUDA_SUCCESS;
}

/* ---- limits -------------------------------------------------------------------------------------------------------- */

CUresult impl_cuCtxGetLimit(size_t *value, CUlimit limit) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if ((int)limit < 0 || (int)limit >= CONTEXT_LIMITS) return CUDA_ERROR_INVALID_VALUE;
    *value = c->limits[limit]; /* those beyond the persisting cache (7) are 0, as libraries expect */
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetLimit(CUlimit limit, size_t value) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    switch ((int)limit) {
    case CU_LIMIT_STACK_SIZE:
        if (value > 512u * 1024u) return CUDA_ERROR_INVALID_VALUE;
        value = (value + 15) & ~(size_t)15;
        break;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
    case CU_LIMIT_MALLOC_HEAP_SIZE:
        if (value > c->info->total_memory) return CUDA_ERROR_INVALID_VALUE;
        break;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: break;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
        if (value > 128) return CUDA_ERROR_INVALID_VALUE;
        break;
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE: {
        size_t most = (size_t)device_attribute(c->info, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE);
        if (value > most) value = most;
        break;
    }
    default: return (int)limit < 0 || (int)limit >= CONTEXT_LIMITS ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    if (limit == CU_LIMIT_STACK_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE) {
        struct session_reply reply;
        struct gv_reply_context_limit answer = {0};
        rc = call_context_limit(c->id, &(struct gv_cmd_context_limit){.limit = (uint32_t)limit, .value = value}, &answer, &reply);
        session_reply_done(&reply);
        if (rc) return rc;
        value = answer.value;
    }
    c->limits[limit] = value;
    return CUDA_SUCCESS;
}

/* ---- preferences --------------------------------------------------------------------------------------------------- */

CUresult impl_cuCtxGetCacheConfig(CUfunc_cache *config) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    *config = c->cache_config;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetCacheConfig(CUfunc_cache config) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if ((int)config < 0 || config > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
    c->cache_config = config;
    return CUDA_SUCCESS;
}

/* Of the architectures that there are drivers for none can choose: a bank has four bytes, and setting it does nothing. */
CUresult impl_cuCtxGetSharedMemConfig(CUsharedconfig *config) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetSharedMemConfig(CUsharedconfig config) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if ((int)config < 0 || config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (least) *least = 0;
    if (greatest) *greatest = device_attribute(c->info, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED) ? -5 : 0;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxResetPersistingL2Cache(void) {
    struct shim_context *c;
    return context_require(&c); /* the software never makes a cache line persisting */
}

CUresult impl_cuCtxGetExecAffinity(CUexecAffinityParam *affinity, CUexecAffinityType type) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!affinity || (int)type < 0 || (int)type >= CU_EXEC_AFFINITY_TYPE_MAX) return CUDA_ERROR_INVALID_VALUE;
    affinity->type = type;
    affinity->param.smCount.val = (unsigned)device_attribute(c->info, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    return CUDA_SUCCESS;
}

/* ---- peers --------------------------------------------------------------------------------------------------------- */

/* The devices of a session share one address space on the worker, so peer access needs no command. The peers are recorded to return the driver's errors. */
CUresult impl_cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    struct shim_context *c, *other;
    int rc = context_require(&c);
    if (rc) return rc;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    rc = context_check(peer, &other);
    if (rc) return rc;
    if (other == c) return CUDA_ERROR_INVALID_CONTEXT;
    if (other->device == c->device) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    pthread_mutex_lock(&c->lock);
    rc = c->peers >> other->device & 1 ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : 0;
    c->peers |= 1u << other->device;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

CUresult impl_cuCtxDisablePeerAccess(CUcontext peer) {
    struct shim_context *c, *other;
    int rc = context_require(&c);
    if (rc) return rc;
    rc = context_check(peer, &other);
    if (rc) return rc;
    pthread_mutex_lock(&c->lock);
    rc = c->peers >> other->device & 1 ? 0 : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    c->peers &= ~(1u << other->device);
    pthread_mutex_unlock(&c->lock);
    return rc;
}
