/* Virtual memory management by the driver: the program's handles and mappings, whose addresses are the program's; and what the worker makes allocations of. */
#include <stdlib.h>

#include "backend_cuda.h"

CUmemAllocationProp cuda_properties(struct gv_backend *b, CUdevice device) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    if (b->rdma && cuda_attribute(b, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device)) prop.allocFlags.gpuDirectRDMACapable = 1;
    return prop;
}

uint64_t cuda_granularity(struct gv_backend *b, CUdevice device) {
    CUmemAllocationProp prop = cuda_properties(b, device);
    size_t granularity = 0;
    int supported = 0;
    if (b->driver.device_attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) || !supported) return 0;
    return b->driver.memory_granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ? 0 : granularity;
}

/* ---- addresses ---- */

static int reserve(struct gv_backend *b, uint64_t size, uint64_t alignment, uint64_t *address) {
    CUdeviceptr at = 0;
    if (b->n_reservations >= GV_RESERVATIONS_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    int status = b->driver.address_reserve(&at, size, alignment, 0, 0);
    if (status) return status;
    b->n_reservations++;
    *address = at;
    return 0;
}

int cuda_address_reserve(struct gv_backend *b, uint64_t size, uint64_t alignment, uint64_t *address) { return reserve(b, size, alignment, address); }

int cuda_address_free(struct gv_backend *b, uint64_t address, uint64_t size) {
    int status = b->driver.address_free(address, size);
    if (!status && b->n_reservations) b->n_reservations--;
    return status;
}

/* Addresses cost nothing, and reserving them a call: twice as many as the device has memory at a time. They are never given back to the driver. */
uint64_t cuda_space_take(struct gv_backend *b, struct cuda_device *d, uint64_t size) {
    uint64_t at = address_ranges_fit(&b->space, size);
    if (!at) {
        uint64_t whole = 2 * d->share.total / d->chunk * d->chunk;
        if (whole < size) whole = size;
        if (reserve(b, whole, d->chunk, &at)) return 0;
        if (!address_ranges_add(&b->space, at, whole)) return 0;
    }
    return address_ranges_remove(&b->space, at, size) ? at : 0;
}

void cuda_space_give(struct gv_backend *b, uint64_t address, uint64_t size) { address_ranges_add(&b->space, address, size); }

/* ---- handles ---- */

int cuda_driver_create(struct gv_physical *p) {
    CUmemAllocationProp prop = cuda_properties(p->context->b, p->context->device);
    return p->context->b->driver.memory_create(&p->handle, p->size, &prop, 0);
}

int cuda_physical_new(struct gv_context *c, uint64_t size, struct gv_physical **out) {
    struct gv_backend *b = c->b;
    int status = memory_charge(&b->room, &c->account->share, size);
    if (status) return status;
    struct gv_physical *p = calloc(1, sizeof *p);
    if (p) *p = (struct gv_physical){.next = b->physicals, .context = c->account->own, .size = size};
    status = p ? cuda_driver_create(p) : CUDA_ERROR_OUT_OF_MEMORY;
    if (status) {
        cuda_give(c, size);
        free(p);
        return status;
    }
    if (p->next) p->next->previous = p;
    b->physicals = p;
    *out = p;
    return 0;
}

int cuda_physical_create(struct gv_context *c, uint64_t size, struct gv_physical **out) {
    int status = cuda_physical_new(c, size, out);
    for (int i = 0; status == CUDA_ERROR_OUT_OF_MEMORY && i < CUDA_ROOM_TRIES && cuda_make_room(c, size); i++)
        status = cuda_physical_new(c, size, out);
    return status;
}

void cuda_physical_forget(struct gv_physical *p) {
    if (p->next) p->next->previous = p->previous;
    *(p->previous ? &p->previous->next : &p->context->b->physicals) = p->next;
    free(p->imported);
    free(p);
}

int cuda_release_pieces(const struct gv_backend *b, struct imported *from) {
    int status = 0;
    while (from->n && !(status = b->driver.memory_release(from->pieces[from->n - 1].handle))) from->n--;
    return status;
}

static int end_import(struct gv_physical *p) {
    struct gv_backend *b = p->context->b;
    struct memory_share *share = &p->context->account->share;
    int status = cuda_release_pieces(b, p->imported);
    if (status) return status;
    if (p->imported->inherited) {
        share->beside -= p->size;
        memory_show(&b->room, share);
    }
    cuda_physical_forget(p);
    return 0;
}

int cuda_physical_destroy(struct gv_physical *p) {
    struct gv_backend *b = p->context->b;
    if (p->imported) return end_import(p);
    int status = b->driver.memory_release(p->handle);
    if (status) return status;
    cuda_give(p->context, p->size);
    cuda_physical_forget(p);
    return 0;
}

/* ---- mappings ---- */

static int map_pieces(struct gv_backend *b, const struct imported *from, uint64_t address, uint64_t size) {
    uint64_t done = 0;
    int status = 0;
    for (uint32_t i = 0; i < from->n && done < size && !status; i++) {
        uint64_t part = from->pieces[i].size < size - done ? from->pieces[i].size : size - done;
        status = b->driver.memory_map(address + done, part, 0, from->pieces[i].handle, 0);
        if (!status) done += part;
    }
    if (!status && done < size) status = CUDA_ERROR_INVALID_VALUE;
    if (status && done) b->driver.memory_unmap(address, done);
    return status;
}

static int map_only(struct gv_backend *b, const struct gv_physical *p, uint64_t address, uint64_t size) {
    return p->imported ? map_pieces(b, p->imported, address, size) : (int)b->driver.memory_map(address, size, 0, p->handle, 0);
}

int cuda_driver_map(struct gv_backend *b, const struct mapping *g) {
    int status = map_only(b, g->physical, g->address, g->size);
    if (status) return status;
    for (uint32_t device = 0; device < b->n_devices && !status; device++) {
        uint32_t rights = g->rights >> 2 * device & 3;
        if (rights) status = cuda_driver_access(b, g, device, rights);
    }
    if (status) b->driver.memory_unmap(g->address, g->size);
    return status;
}

int cuda_memory_map(struct gv_physical *p, uint64_t address, uint64_t size) {
    struct gv_backend *b = p->context->b;
    if (!mappings_grow(&b->mappings)) return CUDA_ERROR_OUT_OF_MEMORY;
    int status = map_only(b, p, address, size);
    if (status) return status;
    bool listed = !mappings_touch(&b->mappings, address, size) && !address_ranges_touch(&b->owned, address, size);
    if (!listed || !address_ranges_add(&b->owned, address, size)) {
        b->driver.memory_unmap(address, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mappings_add(&b->mappings, (struct mapping){.address = address, .size = size, .physical = p});
    return 0;
}

int cuda_memory_unmap(struct gv_backend *b, uint64_t address, uint64_t size) {
    size_t first, n = mappings_whole(&b->mappings, address, size, &first);
    if (!n) return CUDA_ERROR_INVALID_VALUE;
    int status = b->driver.memory_unmap(address, size);
    if (status) return status;
    while (n--) mappings_remove(&b->mappings, first);
    address_ranges_remove(&b->owned, address, size);
    return 0;
}

int cuda_driver_access(struct gv_backend *b, const struct mapping *g, uint32_t device, uint32_t rights) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = b->devices[device]}, .flags = (CUmemAccess_flags)rights};
    return b->driver.memory_access(g->address, g->size, &access, 1);
}

int cuda_memory_access(struct gv_backend *b, uint64_t address, uint64_t size, uint32_t device, uint32_t rights) {
    size_t first, n = mappings_whole(&b->mappings, address, size, &first);
    if (!n || device >= b->n_devices || (rights != 0 && rights != 1 && rights != 3)) return CUDA_ERROR_INVALID_VALUE;
    struct mapping all = {.address = address, .size = size};
    int status = cuda_driver_access(b, &all, device, rights);
    for (size_t i = first; i < first + n && !status; i++)
        b->mappings.items[i].rights = (b->mappings.items[i].rights & ~(3u << 2 * device)) | rights << 2 * device;
    return status;
}

bool cuda_memory_is_shared(const struct gv_backend *b) {
    bool any = false;
    for (const struct gv_physical *p = b->physicals; p; p = p->next) any |= p->exportable || p->imported;
    return any;
}

/* ---- where it can be reached ---- */

uint32_t cuda_device_of(const struct gv_physical *p) { return (uint32_t)(p->context->account - p->context->b->accounts); }

/* Where all of a physical memory can be read and written already. */
void cuda_find_addresses(struct gv_backend *b) {
    for (struct gv_physical *p = b->physicals; p; p = p->next) p->at = 0;
    for (size_t i = 0; i < b->mappings.n; i++) {
        const struct mapping *g = &b->mappings.items[i];
        if (g->size == g->physical->size && (g->rights >> 2 * cuda_device_of(g->physical) & 3) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            g->physical->at = g->address;
    }
}

/* Maps it somewhere else for the time being, where it cannot be reached. */
int cuda_reach(struct gv_physical *p, uint64_t *address, bool *mapped) {
    struct gv_backend *b = p->context->b;
    *address = p->at;
    *mapped = false;
    if (p->at) return cuda_enter(p->context);
    struct mapping g = {.address = cuda_space_take(b, p->context->account, p->size), .size = p->size};
    int status = g.address ? cuda_enter(p->context) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) status = b->driver.memory_map(g.address, p->size, 0, p->handle, 0);
    *mapped = !status;
    if (!status) status = cuda_driver_access(b, &g, cuda_device_of(p), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    *address = g.address;
    return status;
}

void cuda_leave(struct gv_physical *p, uint64_t address, bool mapped) {
    if (p->at || !address) return;
    if (mapped) p->context->b->driver.memory_unmap(address, p->size);
    cuda_space_give(p->context->b, address, p->size);
}
