/* Stream-ordered allocation. Every allocation is stream-ordered here anyway: it is placed at once, without a wait, and a freed range is used again only after all
 * streams have passed the free. So the one default pool of a device is a view on its credit; pools of the program's own are unsupported. */
#include "gv_impl.h"
#include "objects.h"

/* Handles of the default pools: the addresses of these. */
static struct pool {
    uint64_t release_threshold;
    int reuse[3]; /* the three reuse policies, kept and told back: reuse is always safe */
} pools[GV_MAX_DEVICES] = {[0 ... GV_MAX_DEVICES - 1] = {.reuse = {1, 1, 1}}};

static int find(CUmemoryPool handle, struct pool **out, CUdevice *device) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    for (int i = 0; i < device_count(); i++) {
        if ((struct pool *)handle == &pools[i]) {
            *out = &pools[i];
            *device = i;
            return session_broken();
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    const struct gv_device_info *info = device_info(device);
    if (!info) return CUDA_ERROR_INVALID_DEVICE;
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    if (!device_attribute(info, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)) return CUDA_ERROR_NOT_SUPPORTED;
    *pool = (CUmemoryPool)&pools[device];
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) { return impl_cuDeviceGetDefaultMemPool(pool, device); }

CUresult impl_cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    return address ? memory_allocate(s->context, size, address) : (int)CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream) {
    struct pool *p;
    CUdevice device;
    int rc = find(pool, &p, &device);
    if (rc) return rc;
    struct shim_stream *s;
    rc = stream_require(stream, &s);
    if (rc) return rc;
    if (s->context->device != device) return CUDA_ERROR_INVALID_VALUE;
    return impl_cuMemAllocAsync(address, size, stream);
}

CUresult impl_cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    return address ? memory_release(address) : 0;
}

CUresult impl_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    struct pool *p;
    CUdevice device;
    struct shim_context *c;
    int rc = find(pool, &p, &device);
    if (rc) return rc;
    c = context_current();
    if (!c || c->device != device || !atomic_load(&c->object.live)) c = context_primary(device);
    if (c && atomic_load(&c->object.live)) memory_trim(c, keep);
    return CUDA_SUCCESS;
}

/* ---- attributes ---------------------------------------------------------------------------------------------------- */

static int reuse_policy(CUmemPool_attribute attribute) {
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return 0;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return 1;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return 2;
    default: return -1;
    }
}

CUresult impl_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    struct pool *p;
    CUdevice device;
    int rc = find(pool, &p, &device);
    if (rc) return rc;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    uint64_t reserved, used;
    memory_usage(device_server_index(device), &reserved, &used);
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(cuuint64_t *)value = p->release_threshold; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(cuuint64_t *)value = reserved; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(cuuint64_t *)value = used; return CUDA_SUCCESS;
    default: break;
    }
    int policy = reuse_policy(attribute);
    if (policy < 0) return CUDA_ERROR_INVALID_VALUE;
    *(int *)value = p->reuse[policy];
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    struct pool *p;
    CUdevice device;
    int rc = find(pool, &p, &device);
    if (rc) return rc;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: p->release_threshold = *(cuuint64_t *)value; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return *(cuuint64_t *)value ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; /* a reset; the high-water marks are the current values */
    default: break;
    }
    int policy = reuse_policy(attribute);
    if (policy < 0) return CUDA_ERROR_INVALID_VALUE;
    p->reuse[policy] = *(int *)value != 0;
    return CUDA_SUCCESS;
}
