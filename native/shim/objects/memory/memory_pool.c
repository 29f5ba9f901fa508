/* Stream-ordered allocation. All allocations are stream-ordered: an allocation is placed without a wait, and a freed range is reused only after all
 * streams have passed the free. So each pool, the default one or a created one, stands for its device's credit, and its figures are the
 * device's. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>

#include "gv_impl.h"
#include "objects/graph/graph.h"
#include "objects/ipc.h"

/* A handle is the address of one of these. */
struct pool {
    struct pool *next; /* of the program's own */
    CUdevice device;
    uint64_t release_threshold;
    uint32_t readable, writable; /* by which other devices, a bit each. Recorded only: devices of a session share one address space on the worker */
    bool shareable, imported;    /* other processes may have its memory; it is another process's */
    uint64_t identity[2];        /* of those: the same in all processes, random */
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
    if (!info || !out) return CUDA_ERROR_INVALID_VALUE;
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

static int add(const struct pool *new, CUmemoryPool *out) {
    struct pool *p = malloc(sizeof *p);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    *p = *new;
    for (int i = 0; i < 3; i++) p->reuse[i] = 1;
    pthread_mutex_lock(&lock);
    p->next = own_pools;
    own_pools = p;
    pthread_mutex_unlock(&lock);
    *out = (CUmemoryPool)p;
    return 0;
}

/* ---- the program's own ---------------------------------------------------------------------------------------------- */

CUresult impl_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    if (!properties) return shim_initialized() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    bool shareable = properties->handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE && !shareable)) {
        shim_log_once(
            "cuMemPoolCreate: only pools of a device's memory are supported, shared with other processes by file descriptors or not at all");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    int rc = check_device(pool, properties->location.id);
    if (rc) return rc;
    if (shareable && !device_attribute(device_info(properties->location.id), CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct pool new = {.device = properties->location.id, .shareable = shareable};
    if (shareable && getrandom(new.identity, sizeof new.identity, 0) != sizeof new.identity) return CUDA_ERROR_OPERATING_SYSTEM;
    return add(&new, pool);
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

/* ---- by place ------------------------------------------------------------------------------------------------------- */

/* The pools of a device by another name. */
static int check_place(const void *out, const CUmemLocation *location, CUmemAllocationType type) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !location || location->type == CU_MEM_LOCATION_TYPE_INVALID || type == CU_MEM_ALLOCATION_TYPE_INVALID)
        return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_ALLOCATION_TYPE_PINNED && location->type == CU_MEM_LOCATION_TYPE_DEVICE) return 0;
    shim_log_once("cuMemGetMemPool and its like: only pools of a device's own memory are supported, no pools of host or managed memory");
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult impl_cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    int rc = check_place(pool, location, type);
    return rc ? (CUresult)rc : impl_cuDeviceGetDefaultMemPool(pool, location->id);
}

CUresult impl_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    int rc = check_place(pool, location, type);
    return rc ? (CUresult)rc : impl_cuDeviceGetMemPool(pool, location->id);
}

CUresult impl_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    int rc = check_place(pool, location, type);
    return rc ? (CUresult)rc : impl_cuDeviceSetMemPool(location->id, pool);
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

CUresult impl_cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (!rc && (!address || !size)) rc = CUDA_ERROR_INVALID_VALUE;
    if (rc) return rc;
    if (stream_captures(s)) return graph_capture_allocation(s, size, address);
    pthread_mutex_lock(&lock);
    const struct pool *p = chosen[s->context->device];
    uint64_t identity = p ? p->identity[0] : 0;
    pthread_mutex_unlock(&lock);
    rc = memory_allocate(s->context, size, address);
    if (!rc && identity) range_set_pool(*address, identity);
    return rc;
}

CUresult impl_cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream) {
    struct pool *p;
    CUdevice device;
    int rc = find(pool, &p, &device);
    if (rc) return rc;
    struct shim_stream *s;
    rc = stream_require(stream, &s);
    if (rc) return rc;
    if (s->context->device != device || p->imported) return CUDA_ERROR_INVALID_VALUE; /* imported: the exporting process alone allocates */
    if (!p->shareable || stream_captures(s)) return impl_cuMemAllocAsync(address, size, stream);
    if (!address || !size) return CUDA_ERROR_INVALID_VALUE;
    rc = memory_allocate(s->context, size, address);
    if (!rc) range_set_pool(*address, p->identity[0]);
    return rc;
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

/* ---- other processes ------------------------------------------------------------------------------------------------ */

/* A pool that is handed on is a name alone: that of its memory is in what cuMemPoolExportPointer gives, and the server decides who may have that. */
CUresult impl_cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags) {
    struct pool *p;
    CUdevice device;
    int rc = find(pool, &p, &device);
    if (rc) return rc;
    if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !p->shareable) return CUDA_ERROR_INVALID_VALUE;
    const struct ipc_name name = {1, p->identity[0], p->identity[1]};
    int fd = ipc_new_descriptor(IPC_POOL, &name, (uint64_t[2]){device_server_index(device)});
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *descriptor, CUmemAllocationHandleType type, unsigned long long flags) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    int rc = session_broken();
    if (rc) return rc;
    struct ipc_name name;
    uint64_t more[2];
    if (!pool || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !ipc_read_descriptor((int)(intptr_t)descriptor, IPC_POOL, &name, more))
        return CUDA_ERROR_INVALID_VALUE;
    CUdevice device = more[0] < session_server()->n_devices ? ipc_device((uint32_t)more[0], 0) : 0;
    rc = check_device(pool, device);
    return rc ? (CUresult)rc : (CUresult)add(&(struct pool){.device = device, .imported = true, .identity = {name.a, name.b}}, pool);
}

CUresult impl_cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    struct range r;
    struct ipc_name name;
    if (!data || !range_find_device(address, &r) || !r.pool || r.imported) return CUDA_ERROR_INVALID_VALUE;
    rc = ipc_export_memory(r.ctx, range_base(&r), r.size, &name);
    if (rc) return rc;
    range_set_exported(range_base(&r));
    ipc_write_handle(data, IPC_POOL_MEMORY, &name, (uint64_t[2]){r.pool});
    return CUDA_SUCCESS;
}

CUresult impl_cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    struct pool *p;
    CUdevice device;
    int rc = find(pool, &p, &device);
    if (rc) return rc;
    struct ipc_name name;
    uint64_t more[2];
    if (!address || !data || !p->imported || !ipc_read_handle(data, IPC_POOL_MEMORY, &name, more) || more[0] != p->identity[0])
        return CUDA_ERROR_INVALID_VALUE;
    return ipc_open_memory(&name, true, address);
}
