/* The window: addresses at which the client places the session's memory, and the physical memory that the driver makes for them.
 *
 * The driver is asked for the window's addresses as a hint, and takes those that it has free. A handle of physical memory can only be unmapped as a whole: one of which
 * a part has been given back stays until all of it has, and is used again when the client asks for that part. */
#include "backend_cuda.h"

#define SMALL_HANDLE (32ull << 20) /* bytes of a handle for a request of up to LARGE_REQUEST bytes, */
#define LARGE_REQUEST (1ull << 30) /* and of those for a larger one */

int cuda_reserve_window(struct gv_backend *b, uint64_t base, uint64_t size) {
    CUdeviceptr at = 0;
    for (uint32_t i = 0; i < b->n_devices; i++)
        if (!b->accounts[i].chunk) return CUDA_ERROR_NOT_SUPPORTED;
    if (b->driver.address_reserve(&at, size, 0, base, 0)) return CUDA_ERROR_INVALID_VALUE;
    b->has_window = at == base;
    if (b->has_window) return 0;
    b->driver.address_free(at, size);
    return CUDA_ERROR_INVALID_VALUE;
}

static int map(struct gv_context *c, uint64_t address, uint64_t size) {
    struct gv_backend *b = c->b;
    uint32_t device = (uint32_t)(c->account - b->accounts);
    struct gv_physical *p;
    int status = mappings_grow(&b->mappings) ? cuda_physical_new(c, size, &p) : CUDA_ERROR_OUT_OF_MEMORY;
    if (status) return status;
    struct mapping g = {.address = address, .size = size, .physical = p, .rights = (uint32_t)CU_MEM_ACCESS_FLAGS_PROT_READWRITE << 2 * device};
    status = (int)b->driver.memory_map(address, size, 0, p->handle, 0);
    if (!status) {
        status = cuda_driver_access(b, &g, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        if (status) b->driver.memory_unmap(address, size);
    }
    if (status) {
        cuda_physical_destroy(p);
        return status;
    }
    p->slab = address;
    mappings_add(&b->mappings, g);
    return 0;
}

/* Unmaps what lies in the range and is not the session's any more. */
static void release_unused(struct gv_backend *b, uint64_t address, uint64_t size) {
    for (size_t i = mappings_find(&b->mappings, address); i < b->mappings.n && b->mappings.items[i].address < address + size;) {
        const struct mapping g = b->mappings.items[i];
        if (g.physical->slab != g.address || address_ranges_touch(&b->owned, g.address, g.size) || b->driver.memory_unmap(g.address, g.size)) {
            i++;
            continue;
        }
        mappings_remove(&b->mappings, i);
        cuda_physical_destroy(g.physical);
    }
}

/* Maps what of the range is not mapped yet. */
static int map_missing(struct gv_context *c, uint64_t address, uint64_t size) {
    const struct mappings *m = &c->b->mappings;
    uint64_t most = size > LARGE_REQUEST ? LARGE_REQUEST : SMALL_HANDLE;
    int status = 0;
    for (uint64_t at = address, end = address + size; at < end && !status;) {
        size_t i = mappings_find(m, at);
        const struct mapping *next = i < m->n ? &m->items[i] : NULL;
        if (next && next->address <= at) {
            at = next->address + next->size;
            continue;
        }
        uint64_t free_bytes = (next && next->address < end ? next->address : end) - at, n = free_bytes < most ? free_bytes : most;
        status = map(c, at, n);
        at += n;
    }
    return status;
}

int cuda_memory_back(struct gv_context *c, uint64_t address, uint64_t size, bool waits) {
    struct gv_backend *b = c->b;
    if (!size || address_ranges_touch(&b->owned, address, size)) return CUDA_ERROR_INVALID_VALUE;
    int status = cuda_enter(c);
    if (!status) status = map_missing(c, address, size);
    for (int i = 0; status == CUDA_ERROR_OUT_OF_MEMORY && waits && i < CUDA_ROOM_TRIES && cuda_make_room(c, size); i++)
        status = map_missing(c, address, size);
    if (!status && !address_ranges_add(&b->owned, address, size)) status = CUDA_ERROR_OUT_OF_MEMORY;
    if (status) release_unused(b, address, size);
    return status;
}

int cuda_memory_unback(struct gv_context *c, uint64_t address, uint64_t size) {
    struct gv_backend *b = c->b;
    if (!size || !address_ranges_hold(&b->owned, address, size)) return CUDA_ERROR_INVALID_VALUE;
    int status = cuda_enter(c);
    if (!status && !address_ranges_remove(&b->owned, address, size)) status = CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) release_unused(b, address, size);
    return status;
}
