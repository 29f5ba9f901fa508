/* The address map: which allocation an address belongs to. Frees, copies, fills and pointer queries are judged by it, without asking the worker. */
#include "gv_impl.h"
#include "objects/objects.h"

#include <stdlib.h>
#include <string.h>

/* Device and host addresses have maps of their own: where the driver places memory, its addresses may be the same numbers as ours. */
static struct treap device_map, host_map;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_buffer_id;

#define RANGE(n) treap_entry(n, struct range, node)

static struct treap *map_of(enum range_kind kind) { return kind < RANGE_HOST ? &device_map : &host_map; }

int range_add(const struct range *range, uint64_t base) {
    struct range *r = malloc(sizeof *r);
    if (!r) return CUDA_ERROR_OUT_OF_MEMORY;
    *r = *range;
    r->node.key = base;
    r->node.sub = 0;
    struct treap *map = map_of(range->kind);
    pthread_mutex_lock(&lock);
    struct treap_node *same = treap_floor(map, base, 0);
    if (same && same->key == base) {
        /* The same global may be named by two modules of one library; the map keeps one. */
        pthread_mutex_unlock(&lock);
        free(r);
        return 0;
    }
    r->buffer_id = ++last_buffer_id;
    treap_insert(map, &r->node);
    pthread_mutex_unlock(&lock);
    return 0;
}

bool range_remove(uint64_t base, enum range_kind kind, enum range_kind or_kind, struct range *out) {
    struct treap *map = map_of(kind);
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(map, base, 0);
    struct range *r = n && n->key == base ? RANGE(n) : NULL;
    if (r && (r->kind == kind || r->kind == or_kind))
        treap_remove(map, n);
    else
        r = NULL;
    pthread_mutex_unlock(&lock);
    if (!r) return false;
    if (out) *out = *r;
    free(r);
    return true;
}

static bool find_in(const struct treap *map, uint64_t address, struct range *out) {
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(map, address, UINT64_MAX);
    bool found = n && address - n->key < RANGE(n)->size;
    if (found) *out = *RANGE(n);
    pthread_mutex_unlock(&lock);
    return found;
}

bool range_find_device(uint64_t address, struct range *out) {
    if (find_in(&device_map, address, out)) return true;
    /* An address of the server's own choosing that nobody asked for by name: a kernel may have told it. */
    const struct shim_server *server = session_server();
    bool theirs = server->addresses == GV_ADDRESSES_FIXED && address - server->window_base < server->window_size;
    return theirs && module_place_globals() && find_in(&device_map, address, out);
}

bool range_find_host(uint64_t address, struct range *out) { return find_in(&host_map, address, out); }

bool range_find(uint64_t address, struct range *out) { return range_find_device(address, out) || range_find_host(address, out); }

bool range_next_of(uint32_t ctx, uint64_t from, struct range *out) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (struct treap_node *n = treap_ceiling(&device_map, from, 0); n && !found; n = treap_next(&device_map, n)) {
        if (RANGE(n)->ctx != ctx) continue;
        *out = *RANGE(n);
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool range_mapped(uint64_t address, uint64_t size, unsigned rights) {
    uint64_t at = address;
    unsigned each = rights & 2u ? 0xaaaaaaaau : 0x55555555u; /* the bit of every device */
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(&device_map, address, UINT64_MAX);
    for (; n && RANGE(n)->kind == RANGE_MAPPED && n->key <= at && at - n->key < RANGE(n)->size; n = treap_next(&device_map, n)) {
        if (!(RANGE(n)->flags & each)) break;
        at = n->key + RANGE(n)->size;
        if (at - address >= size) break;
    }
    pthread_mutex_unlock(&lock);
    return at - address >= size;
}

void range_set_rights(uint64_t base, unsigned rights) {
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(&device_map, base, 0);
    if (n && n->key == base && RANGE(n)->kind == RANGE_MAPPED) RANGE(n)->flags = rights;
    pthread_mutex_unlock(&lock);
}

bool range_host_overlaps(uint64_t base, uint64_t size) {
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(&host_map, base, UINT64_MAX);
    bool overlaps = n && base - n->key < RANGE(n)->size;
    n = treap_ceiling(&host_map, base, 0);
    if (n && n->key - base < size) overlaps = true;
    pthread_mutex_unlock(&lock);
    return overlaps;
}

/* ---- queries ------------------------------------------------------------------------------------------------------- */

CUresult impl_cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    struct range r;
    if (!range_find_device(address, &r)) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = range_base(&r);
    if (size) *size = r.size;
    return CUDA_SUCCESS;
}

static bool is_host(const struct range *r) { return r->kind == RANGE_HOST || r->kind == RANGE_REGISTERED; }

/* One attribute of an address; r is NULL for an address that is not ours. Returns CUDA_ERROR_INVALID_VALUE for one that does not apply. */
static int attribute(CUpointer_attribute which, uint64_t address, const struct range *r, void *data) {
    bool host = r && is_host(r);
    uint64_t base = r ? range_base(r) : 0, size = r ? r->size : 0;
    if (r && r->kind == RANGE_MAPPED) virtual_reservation(address, &base, &size);
    switch ((int)which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = r ? (CUcontext)r->context : NULL; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = !r ? 0 : host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = r && !host ? address : 0;
        return host ? CUDA_ERROR_INVALID_VALUE : 0; /* host memory is not mapped into the devices */
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = host ? (void *)(uintptr_t)address : NULL;
        return r && !host ? CUDA_ERROR_INVALID_VALUE : 0;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)data = r && r->sync_memops; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = r ? r->buffer_id : 0; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = r ? r->device : -2; break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(unsigned *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(uint64_t *)data = base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = size; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(char *)data = r != NULL; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(uint64_t *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: *(unsigned *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)data = !r                        ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE
                            : r->kind == RANGE_MAPPED ? r->flags >> 2 * r->device & 3u
                                                      : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)data = NULL; break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *(size_t *)data = r ? r->size : 0; break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: *(uint64_t *)data = r ? range_base(r) : 0; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: *(unsigned long long *)data = r ? r->buffer_id : 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return 0;
}

CUresult impl_cuPointerGetAttribute(void *data, CUpointer_attribute which, CUdeviceptr address) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct range r;
    if (!data || !range_find(address, &r)) return CUDA_ERROR_INVALID_VALUE;
    return attribute(which, address, &r, data);
}

/* Unlike the single query this succeeds for any address, and what does not apply reads as nothing. */
CUresult impl_cuPointerGetAttributes(unsigned int n, CUpointer_attribute *which, void **data, CUdeviceptr address) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!n || !which || !data) return CUDA_ERROR_INVALID_VALUE;
    struct range r;
    bool found = range_find(address, &r);
    for (unsigned i = 0; i < n; i++) {
        if (!data[i] || (int)which[i] < 1 || (int)which[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS) return CUDA_ERROR_INVALID_VALUE;
        attribute(which[i], address, found ? &r : NULL, data[i]);
    }
    return CUDA_SUCCESS;
}

CUresult impl_cuPointerSetAttribute(const void *value, CUpointer_attribute which, CUdeviceptr address) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!value || which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct treap_node *n = treap_floor(&device_map, address, UINT64_MAX);
    bool found = n && address - n->key < RANGE(n)->size;
    if (found) RANGE(n)->sync_memops = *(const unsigned *)value != 0;
    pthread_mutex_unlock(&lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
