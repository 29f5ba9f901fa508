/* Virtual memory management: reserved addresses, handles of physical memory, and mappings. The client records all of them, so most calls are decided without the worker;
 * only creating memory and setting access wait for it. */
#include <stdlib.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/ipc.h"
#include "objects/objects.h"

/* Physical memory. It exists while the program or a mapping references it; its handle is valid while the program does. */
struct shim_physical {
    struct object object;
    uint64_t size;
    CUmemAllocationProp prop;
    uint32_t held; /* by the program: cuMemCreate, cuMemRetainAllocationHandle */
    uint32_t maps;
    bool exported;
};
_Static_assert(sizeof(struct shim_physical) <= 128, "physical memory fits its slot");

struct reservation {
    struct treap_node node; /* key: address */
    uint64_t size;
    uint32_t server_device; /* in whose part of the window it lies */
};

struct mapping {
    struct treap_node node; /* key: address */
    uint64_t size;
    struct shim_physical *physical;
    uint32_t rights; /* two bits for each device that the program sees: CU_MEM_ACCESS_FLAGS */
};

#define RESERVATION(n) treap_entry(n, struct reservation, node)
#define MAPPING(n) treap_entry(n, struct mapping, node)

static struct treap reservations, mappings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of this */

static int usable(void) { return shim_initialized() ? session_broken() : CUDA_ERROR_NOT_INITIALIZED; }

static bool fixed_addresses(void) { return session_server()->addresses == GV_ADDRESSES_FIXED; }

static uint64_t granularity(CUdevice device) {
    const struct gv_device_info *info = device_info(device);
    return info && info->chunk ? info->chunk : 2ull << 20;
}

static bool whole(uint64_t value, uint64_t unit) { return value && value % unit == 0; }

/* ---- finding things; lock held ------------------------------------------------------------------------------------- */

static struct reservation *reservation_of(uint64_t address) {
    struct treap_node *n = treap_floor(&reservations, address, 0);
    return n && address - n->key < RESERVATION(n)->size ? RESERVATION(n) : NULL;
}

static struct mapping *mapping_of(uint64_t address) {
    struct treap_node *n = treap_floor(&mappings, address, 0);
    return n && address - n->key < MAPPING(n)->size ? MAPPING(n) : NULL;
}

static struct mapping *mapping_after(const struct mapping *m) {
    struct treap_node *n = treap_next(&mappings, &m->node);
    return n ? MAPPING(n) : NULL;
}

static bool anything_mapped(uint64_t address, uint64_t size) {
    struct treap_node *n = treap_ceiling(&mappings, address, 0);
    return mapping_of(address) || (n && n->key - address < size);
}

/* The first mapping that begins there or behind. */
static struct mapping *first_mapping(uint64_t address) { return (struct mapping *)treap_ceiling(&mappings, address, 0); }

/* The first of the mappings that make up [address, address + size); NULL when it has holes or begins or ends inside a mapping. */
static struct mapping *whole_mappings(uint64_t address, uint64_t size) {
    struct mapping *first = mapping_of(address), *m = first;
    if (!first || first->node.key != address || !size) return NULL;
    uint64_t left = size;
    for (; m && m->node.key == address + (size - left) && m->size <= left; m = mapping_after(m)) {
        left -= m->size;
        if (!left) return first;
    }
    return NULL;
}

/* The memory behind a handle that the program holds. */
static struct shim_physical *physical_of(CUmemGenericAllocationHandle handle) {
    struct shim_physical *p = object_get(OBJECT_PHYSICAL, (const void *)(uintptr_t)handle);
    return p && p->held ? p : NULL;
}

static void destroy_unless_held(struct shim_physical *p) {
    if (p->held || p->maps) return;
    if (p->exported) ipc_forget(p->object.id);
    post_memory_destroy(0, 0, &(struct gv_cmd_memory_destroy){.handle = p->object.id});
    object_retire(p);
    object_free(p);
}

bool virtual_reservation(uint64_t address, uint64_t *base, uint64_t *size) {
    pthread_mutex_lock(&lock);
    const struct reservation *r = reservation_of(address);
    if (r) {
        *base = r->node.key;
        *size = r->size;
    }
    pthread_mutex_unlock(&lock);
    return r != NULL;
}

/* ---- addresses ----------------------------------------------------------------------------------------------------- */

/* Addresses may lie in any device's part of the window; that of the current context's device is tried first. */
static int reserve(uint64_t size, uint64_t alignment, uint64_t hint, struct reservation *out) {
    struct session_reply reply;
    struct gv_reply_address_reserve answer = {0};
    if (!fixed_addresses()) {
        int rc = call_address_reserve(0, &(struct gv_cmd_address_reserve){.size = size, .alignment = alignment}, &answer, &reply);
        session_reply_done(&reply);
        out->node.key = answer.address;
        return rc;
    }
    const struct shim_context *c = context_current();
    uint32_t n = session_server()->n_devices, first = c ? c->server_device : device_server_index(0);
    int rc = CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < n && rc; i++) {
        out->server_device = (first + i) % n;
        rc = memory_reserve(out->server_device, size, alignment, hint, &out->node.key);
    }
    return rc;
}

CUresult impl_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags) {
    int rc = usable();
    if (rc) return rc;
    if (!device_attribute(device_info(0), CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) return CUDA_ERROR_NOT_SUPPORTED;
    if (!ptr || flags || !whole(size, granularity(0)) || alignment & (alignment - 1)) return CUDA_ERROR_INVALID_VALUE;
    struct reservation *r = calloc(1, sizeof *r);
    if (!r) return CUDA_ERROR_OUT_OF_MEMORY;
    rc = reserve(size, alignment, addr, r);
    if (rc) {
        free(r);
        return rc;
    }
    r->size = size;
    pthread_mutex_lock(&lock);
    treap_insert(&reservations, &r->node);
    pthread_mutex_unlock(&lock);
    *ptr = r->node.key;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    int rc = usable();
    if (rc) return rc;
    pthread_mutex_lock(&lock);
    struct reservation *r = reservation_of(ptr);
    if (!r || r->node.key != ptr || r->size != size || anything_mapped(ptr, size)) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) treap_remove(&reservations, &r->node);
    pthread_mutex_unlock(&lock);
    if (rc) return rc;
    if (fixed_addresses())
        memory_unreserve(r->server_device, ptr, size);
    else
        post_address_free(0, 0, &(struct gv_cmd_address_free){.address = ptr, .size = size});
    free(r);
    return CUDA_SUCCESS;
}

#define HOST_GRANULARITY (2u << 20) /* bytes, as the drivers have it for memory that GPUs map */

/* ---- physical memory ----------------------------------------------------------------------------------------------- */

/* Finds a device that the program sees: 0, or the call's error. */
static int check_location(const CUmemLocation *location, const char *call) {
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return device_info(location->id) ? 0 : CUDA_ERROR_INVALID_DEVICE;
    if (location->type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
    shim_log_once("%s: memory of the host cannot be mapped into a remote GPU; only devices are locations", call);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static int check_properties(const CUmemAllocationProp *prop, const char *call) {
    int rc = prop->type == CU_MEM_ALLOCATION_TYPE_PINNED ? check_location(&prop->location, call) : (int)CUDA_ERROR_INVALID_VALUE;
    if (rc) return rc;
    if (!device_attribute(device_info(prop->location.id), CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) return CUDA_ERROR_NOT_SUPPORTED;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || prop->allocFlags.gpuDirectRDMACapable ||
        prop->allocFlags.usage) {
        shim_log_once(
            "%s: handles for other processes that are no file descriptors, memory for RDMA, for tiles or for decompression is not supported", call);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return 0;
}

CUresult impl_cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option) {
    int rc = usable();
    if (rc) return rc;
    if (!out || !prop || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    /* Libraries ask for the granularity of host memory before they try to create some, and only in trying are they ready for a refusal. */
    bool host = prop->location.type == CU_MEM_LOCATION_TYPE_HOST || prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    if (host && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED) {
        *out = HOST_GRANULARITY;
        return CUDA_SUCCESS;
    }
    CUmemAllocationProp asked = *prop;
    if (!device_info(asked.location.id)) asked.location.id = 0; /* the driver does not look whether there is such a device */
    rc = check_properties(&asked, "cuMemGetAllocationGranularity");
    if (!rc) *out = granularity(asked.location.id);
    return rc;
}

/* Gives back the free credit that is kept for later allocations. */
static bool give_back_credit(CUdevice device) {
    struct shim_context *c = context_current();
    if (!c || c->device != device || !atomic_load(&c->object.live)) c = context_primary(device);
    if (!fixed_addresses() || !c || !atomic_load(&c->object.live)) return false;
    stream_drain_context(NULL); /* so that what was freed is free */
    memory_trim(c, 0);
    return true;
}

static int create(uint64_t handle, CUdevice device, uint64_t size) {
    struct session_reply reply;
    struct gv_cmd_memory_create c = {.handle = handle, .device = device_server_index(device), .size = size};
    int rc = call_memory_create(0, &c, NULL, &reply);
    session_reply_done(&reply);
    return rc;
}

CUresult impl_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
    int rc = usable();
    if (rc) return rc;
    if (!handle || !prop || flags) return CUDA_ERROR_INVALID_VALUE;
    rc = check_properties(prop, "cuMemCreate");
    if (rc) return rc;
    CUdevice device = prop->location.id;
    if (!whole(size, granularity(device))) return CUDA_ERROR_INVALID_VALUE;
    struct shim_physical *p = object_new(OBJECT_PHYSICAL);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    rc = create(p->object.id, device, size);
    if (rc == CUDA_ERROR_OUT_OF_MEMORY && give_back_credit(device)) rc = create(p->object.id, device, size);
    if (rc) {
        object_free(p);
        return rc;
    }
    p->size = size;
    p->prop = (CUmemAllocationProp){.type = prop->type, .requestedHandleTypes = prop->requestedHandleTypes, .location = prop->location};
    p->held = 1;
    object_publish(p);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemRelease(CUmemGenericAllocationHandle handle) {
    int rc = usable();
    if (rc) return rc;
    pthread_mutex_lock(&lock);
    struct shim_physical *p = physical_of(handle);
    if (p) {
        p->held--;
        destroy_unless_held(p);
    }
    pthread_mutex_unlock(&lock);
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    int rc = usable();
    if (rc) return rc;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const struct mapping *m = mapping_of((uint64_t)(uintptr_t)addr);
    if (m) {
        m->physical->held++;
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)m->physical;
    }
    pthread_mutex_unlock(&lock);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
    int rc = usable();
    if (rc) return rc;
    pthread_mutex_lock(&lock);
    const struct shim_physical *p = physical_of(handle);
    if (p && prop) *prop = p->prop;
    pthread_mutex_unlock(&lock);
    return p && prop ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- other processes ----------------------------------------------------------------------------------------------- */

/* The descriptor stands for the memory as long as this process has it, mapped or by its handle; it is no reference of its own. */
CUresult impl_cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
    int rc = usable();
    if (rc) return rc;
    pthread_mutex_lock(&lock);
    struct shim_physical *p = physical_of(handle);
    bool good = p && out && !flags && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && p->prop.requestedHandleTypes & type;
    if (good) {
        p->held++; /* as the server is asked without the lock */
        p->exported = true;
    }
    pthread_mutex_unlock(&lock);
    if (!good) return CUDA_ERROR_INVALID_VALUE;
    struct ipc_name name;
    rc = ipc_export_physical(p->object.id, &name);
    int fd = rc ? -1 : ipc_new_descriptor(IPC_PHYSICAL, &name, NULL);
    if (!rc && fd < 0) rc = CUDA_ERROR_OPERATING_SYSTEM;
    pthread_mutex_lock(&lock);
    p->held--;
    destroy_unless_held(p);
    pthread_mutex_unlock(&lock);
    if (!rc) *(int *)out = fd;
    return rc;
}

CUresult impl_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *descriptor, CUmemAllocationHandleType type) {
    int rc = usable();
    if (rc) return rc;
    struct ipc_name name;
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !ipc_read_descriptor((int)(intptr_t)descriptor, IPC_PHYSICAL, &name, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    struct shim_physical *p = object_new(OBJECT_PHYSICAL);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    struct session_reply reply;
    struct gv_reply_memory_open answer = {0};
    struct gv_cmd_memory_open command = {.handle = p->object.id, .session = name.session, .name_a = name.a, .name_b = name.b};
    rc = call_memory_open(0, &command, &answer, &reply);
    if (rc && reply.text[0]) shim_log_once("cuMemImportFromShareableHandle: %s", reply.text);
    session_reply_done(&reply);
    if (rc) {
        object_free(p);
        return rc;
    }
    ipc_note_sharing();
    p->size = answer.size;
    p->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p->prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ipc_device(answer.device, 0)};
    p->held = 1;
    object_publish(p);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
    return CUDA_SUCCESS;
}

/* ---- mapping ------------------------------------------------------------------------------------------------------- */

CUresult impl_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    int rc = usable();
    if (rc) return rc;
    struct mapping *m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    struct shim_physical *p = physical_of(handle);
    /* Memory that is mapped at a second address moves on the server; no work may use it during the move. */
    while (p && p->maps) {
        uint32_t seen = p->maps;
        pthread_mutex_unlock(&lock);
        stream_drain_context(NULL);
        pthread_mutex_lock(&lock);
        p = physical_of(handle);
        if (p && p->maps == seen) break;
    }
    const struct reservation *r = reservation_of(ptr);
    uint64_t unit = p ? granularity(p->prop.location.id) : 1;
    if (!p || flags || offset || !whole(size, unit) || ptr % unit)
        rc = CUDA_ERROR_INVALID_VALUE;
    else if (size > p->size)
        rc = CUDA_ERROR_NOT_SUPPORTED;
    else if (!r || size > r->size - (ptr - r->node.key) || anything_mapped(ptr, size))
        rc = CUDA_ERROR_INVALID_VALUE;
    struct range range = {.size = size, .kind = RANGE_MAPPED, .device = p ? p->prop.location.id : 0};
    if (!rc) rc = range_add(&range, ptr);
    if (!rc) {
        *m = (struct mapping){.node = {.key = ptr}, .size = size, .physical = p};
        treap_insert(&mappings, &m->node);
        p->maps++;
        post_memory_map(0, 0, &(struct gv_cmd_memory_map){.handle = p->object.id, .address = ptr, .size = size});
    }
    pthread_mutex_unlock(&lock);
    if (rc) free(m);
    return rc ? rc : session_broken();
}

/* Whether the device has at most these rights on all mappings of a range; lock held. */
static bool takes_away(const struct mapping *m, uint64_t end, CUdevice device, uint32_t rights) {
    for (; m && m->node.key < end; m = mapping_after(m)) {
        if ((m->rights >> 2 * device & 3u) & ~rights) return true;
    }
    return false;
}

/* Whether a range lies in a reservation and cuts no mapping in two; lock held. What of it is not mapped is nobody's mistake: drivers unmap the rest. */
static bool may_unmap(uint64_t address, uint64_t size) {
    const struct reservation *r = reservation_of(address);
    const struct mapping *m = mapping_of(address);
    if (!size || !r || size > r->size - (address - r->node.key) || (m && m->node.key != address)) return false;
    for (m = first_mapping(address); m && m->node.key - address < size; m = mapping_after(m))
        if (m->size > size - (m->node.key - address)) return false;
    return true;
}

CUresult impl_cuMemUnmap(CUdeviceptr ptr, size_t size) {
    int rc = usable();
    if (rc) return rc;
    pthread_mutex_lock(&lock);
    bool may = may_unmap(ptr, size), any = may && anything_mapped(ptr, size);
    pthread_mutex_unlock(&lock);
    if (!any) return may ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    /* As for a free, earlier commands may still use it. An error of the device does not keep it mapped. */
    stream_drain_context(NULL);
    pthread_mutex_lock(&lock);
    struct mapping *m = may_unmap(ptr, size) ? first_mapping(ptr) : NULL; /* another thread may have been quicker */
    for (struct mapping *next; m && m->node.key - ptr < size; m = next) {
        next = mapping_after(m);
        post_memory_unmap(0, 0, &(struct gv_cmd_memory_unmap){.address = m->node.key, .size = m->size});
        range_remove(m->node.key, RANGE_MAPPED, RANGE_MAPPED, NULL);
        treap_remove(&mappings, &m->node);
        m->physical->maps--;
        destroy_unless_held(m->physical);
        free(m);
    }
    pthread_mutex_unlock(&lock);
    return session_broken();
}

/* Asks the worker to set one device's rights, then records them. lock held. */
static int set_access(struct mapping *first, uint64_t size, CUdevice device, uint32_t rights) {
    struct session_reply reply;
    struct gv_cmd_memory_access c = {.address = first->node.key, .size = size, .device = device_server_index(device), .rights = rights};
    int rc = call_memory_access(0, &c, NULL, &reply);
    session_reply_done(&reply);
    if (rc) return rc;
    uint64_t end = first->node.key + size;
    for (struct mapping *m = first; m && m->node.key < end; m = mapping_after(m)) {
        m->rights = (m->rights & ~(3u << 2 * device)) | rights << 2 * device;
        range_set_rights(m->node.key, m->rights);
    }
    return 0;
}

CUresult impl_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    int rc = usable();
    if (rc) return rc;
    if (!desc || !count) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        unsigned rights = desc[i].flags;
        rc = rights == 0 || rights == 1 || rights == 3 ? check_location(&desc[i].location, "cuMemSetAccess") : (int)CUDA_ERROR_INVALID_VALUE;
        if (rc) return rc;
    }
    pthread_mutex_lock(&lock);
    struct mapping *m = whole_mappings(ptr, size);
    bool drain = false;
    for (size_t i = 0; m && i < count; i++) drain = drain || takes_away(m, ptr + size, desc[i].location.id, desc[i].flags);
    if (drain) { /* what was asked for before was allowed */
        pthread_mutex_unlock(&lock);
        stream_drain_context(NULL);
        pthread_mutex_lock(&lock);
        m = whole_mappings(ptr, size);
    }
    if (!m) rc = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; !rc && i < count; i++) rc = set_access(m, size, desc[i].location.id, desc[i].flags);
    pthread_mutex_unlock(&lock);
    return rc;
}

CUresult impl_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
    int rc = usable();
    if (rc) return rc;
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    rc = check_location(location, "cuMemGetAccess");
    if (rc) return rc;
    pthread_mutex_lock(&lock);
    const struct mapping *m = mapping_of(ptr);
    if (m) *flags = m->rights >> 2 * location->id & 3u;
    pthread_mutex_unlock(&lock);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
