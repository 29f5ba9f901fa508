/* Stream-ordered allocation. All allocations are stream-ordered: an allocation is placed without a wait, and a freed range is reused only after all
 * streams have passed the free. So each pool, the default one or a created one, stands for its device's credit, and its figures are the
 * device's. */
#include <pthread.h>
#include <stdlib.h>

#include "gv_impl.h"
#include "objects/graph/graph.h"

/* A handle is the address of one of these. */
struct pool {
    struct pool *next; /* of the program's own */
    CUdevice device;
    uint64_t release_threshold;
    uint32_t readable, writable; /* by which other devices, a bit each. Recorded only: devices of a session share one address space on the worker */
    int reuse[3];                /* the three reuse policies: stored and returned, for reuse is always safe */
};

static struct pool defaults[GV_MAX_DEVICES] = {[0 ... GV_MAX_DEVICES - 1] = {.reuse = {1, 1, 1}}};
static struct pool *own_pools;              /* those that were not destroyed */
static struct pool *chosen[GV_MAX_DEVICES]; /* by cuDeviceSetMemPool; NULL: the default one */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_own(const struct pool *pool) {
    pthread_mutex_lock(&lock);
    const struct pool *p = own_pools;
    while (p && p != pool) p = p->next;
    pthread_mutex_unlock(&lock);
    return p != NULL;
}

static int find(CUmemoryPool handle, struct pool **out, CUdevice *device) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    for (int i = 0; i < device_count(); i++) {
        if ((struct pool *)handle == &defaults[i]) {
            *out = &defaults[i];
            *device = i;
            return session_broken();
        }
    }
    if (!is_own((struct pool *)handle)) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct pool *)handle;
    *device = (*out)->device;
    return session_broken();
}

static int check_device(const void *out, CUdevice device) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    const struct gv_device_info *info = device_info(device);
    if (!info) return CUDA_ERROR_INVALID_DEVICE;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    return device_attribute(info, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) ? 0 : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult impl_cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    int rc = check_device(pool, device);
    if (!rc) *pool = (CUmemoryPool)&defaults[device];
    return rc;
}

CUresult impl_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    int rc = check_device(pool, device);
    if (rc) return rc;
    pthread_mutex_lock(&lock);
    *pool = (CUmemoryPool)(chosen[device] ? chosen[device] : &defaults[device]);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    struct pool *p;
    CUdevice of;
    int rc = check_device(pool, device);
    if (!rc) rc = find(pool, &p, &of);
    if (rc) return rc;
    if (of != device) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    chosen[device] = p;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* ---- the program's own ---------------------------------------------------------------------------------------------- */

CUresult impl_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    if (!properties) return shim_initialized() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        shim_log_once("cuMemPoolCreate: only pools of a device's memory that are not shared with other processes are supported");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    int rc = check_device(pool, properties->location.id);
    if (rc) return rc;
    struct pool *p = malloc(sizeof *p);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    *p = (struct pool){.next = own_pools, .device = properties->location.id, .reuse = {1, 1, 1}};
    own_pools = p;
    pthread_mutex_unlock(&lock);
    *pool = (CUmemoryPool)p;
    return CUDA_SUCCESS;
}

/* Its allocations stay until they are freed, as in the driver. */
CUresult impl_cuMemPoolDestroy(CUmemoryPool pool) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    struct pool **at = &own_pools, *p = NULL;
    while (*at && *at != (struct pool *)pool) at = &(*at)->next;
    if (*at) {
        p = *at;
        *at = p->next;
        if (chosen[p->device] == p) chosen[p->device] = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (!p) return CUDA_ERROR_INVALID_VALUE; /* a default pool, or none */
    free(p);
    return CUDA_SUCCESS;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

CUresult impl_cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (!rc && (!address || !size)) rc = CUDA_ERROR_INVALID_VALUE;
    if (rc) return rc;
    return stream_captures(s) ? graph_capture_allocation(s, size, address) : memory_allocate(s->context, size, address);
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
    if (rc || !address) return rc;
    return stream_captures(s) ? graph_capture_free(s, address) : memory_release(address);
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

/* ---- access of other devices ---------------------------------------------------------------------------------------- */

static int check_location(const CUmemLocation *location) {
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED; /* the host cannot reach device memory */
    return device_info(location->id) ? 0 : CUDA_ERROR_INVALID_DEVICE;
}

/* The device that has the memory always reads and writes it. */
CUresult impl_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    struct pool *p;
    CUdevice device;
    int rc = find(pool, &p, &device);
    if (rc) return rc;
    if (!map && count) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        int flags = (int)map[i].flags;
        if ((rc = check_location(&map[i].location))) return rc;
        if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
        if (map[i].location.id == device && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_DEVICE;
    }
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        uint32_t bit = 1u << map[i].location.id;
        p->readable = (int)map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? p->readable & ~bit : p->readable | bit;
        p->writable = (int)map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? p->writable | bit : p->writable & ~bit;
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location) {
    struct pool *p;
    CUdevice device;
    int rc = find(pool, &p, &device);
    if (rc) return rc;
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    if ((rc = check_location(location))) return rc;
    uint32_t bit = 1u << location->id;
    pthread_mutex_lock(&lock);
    bool reads = location->id == device || p->readable & bit, writes = location->id == device || p->writable & bit;
    pthread_mutex_unlock(&lock);
    *flags = writes ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : reads ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
