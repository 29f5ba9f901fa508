/* Device memory and pinned host memory, by the driver. Allocations lie in slabs of physical memory that the worker maps, so that a session which is parked can give
 * the memory back and keep the addresses. Small ones share a slab; what a large one leaves of its last chunk is used when there is no memory left. */
#include <stdlib.h>
#include <string.h>

#include "backend_cuda.h"

#define SMALLEST 512ull /* bytes that allocations are rounded up to */

/* ---- whose memory ---- */

/* What the driver says of an address that is none of an allocation or mapping: a module's global is device memory, staging memory is not. */
static bool device_memory(struct gv_context *c, uint64_t address, uint64_t size) {
    const struct driver *d = &c->b->driver;
    unsigned type = 0;
    CUdeviceptr start = 0;
    size_t whole = 0;
    if (mappings_touch(&c->b->mappings, address, size)) return false; /* what is allocated there is known */
    if (cuda_enter(c) || d->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) || type != CU_MEMORYTYPE_DEVICE) return false;
    if (d->pointer_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) ||
        d->pointer_attribute(&whole, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address))
        return false;
    return address >= start && address - start <= whole && size <= whole - (address - start);
}

bool cuda_memory_owned(struct gv_context *c, uint64_t address, uint64_t size) {
    return !size || address_ranges_hold(&c->b->owned, address, size) || device_memory(c, address, size);
}

int cuda_memory_info(struct gv_context *c, uint64_t *free_bytes, uint64_t *total_bytes) {
    const struct memory_share *s = &c->account->share;
    size_t available = 0, total = 0;
    int status = cuda_enter(c);
    if (!status) status = c->b->driver.memory_info(&available, &total);
    uint64_t left = s->limit > s->used ? s->limit - s->used : 0;
    *free_bytes = left < available ? left : available;
    *total_bytes = s->limit < total ? s->limit : total;
    return status;
}

/* ---- slabs ---- */

static struct address_ranges *unused_of(const struct gv_physical *p) { return p->shared ? &p->context->account->holes : &p->context->account->tails; }

static void destroy_slab(struct gv_physical *p) {
    struct gv_backend *b = p->context->b;
    struct address_ranges *unused = unused_of(p);
    uint64_t address = p->slab, size = p->size;
    size_t at;
    if (!address_ranges_hold(unused, address, size) || !mappings_whole(&b->mappings, address, size, &at)) return;
    if (!address_ranges_remove(unused, address, size) || b->driver.memory_unmap(address, size)) return;
    mappings_remove(&b->mappings, at);
    if (cuda_physical_destroy(p) == 0) cuda_space_give(b, address, size);
}

/* All of it is unused. */
static int make_slab(struct gv_context *c, uint64_t size, bool shared) {
    struct gv_backend *b = c->b;
    struct cuda_device *d = c->account;
    struct gv_physical *p;
    int status = mappings_grow(&b->mappings) ? cuda_physical_new(c, size, &p) : CUDA_ERROR_OUT_OF_MEMORY;
    if (status) return status;
    struct mapping g = {.address = cuda_space_take(b, d, size), .size = size, .physical = p};
    uint32_t device = (uint32_t)(d - b->accounts);
    status = g.address ? (int)b->driver.memory_map(g.address, size, 0, p->handle, 0) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) {
        p->slab = g.address;
        p->shared = shared;
        status = cuda_driver_access(b, &g, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        if (!status && !address_ranges_add(unused_of(p), g.address, size)) status = CUDA_ERROR_OUT_OF_MEMORY;
        if (status) b->driver.memory_unmap(g.address, size);
    }
    if (status) {
        if (g.address) cuda_space_give(b, g.address, size);
        cuda_physical_destroy(p);
        return status;
    }
    g.rights = (uint32_t)CU_MEM_ACCESS_FLAGS_PROT_READWRITE << 2 * device;
    mappings_add(&b->mappings, g);
    return 0;
}

/* ---- allocations ---- */

/* By address. */
struct allocation {
    struct allocation *next;
    struct gv_context *context;
    struct gv_physical *slab; /* NULL: the driver has placed it */
    uint64_t address, size;   /* bytes that it takes */
};

#define BUCKETS 4096u
static struct allocation *allocations[BUCKETS];

static struct allocation **allocation_at(uint64_t address) { return &allocations[(address >> 9) * 0x9e3779b1u >> 20 & (BUCKETS - 1)]; }

static bool fit(struct allocation *a, struct address_ranges *unused) {
    const struct mappings *m = &a->context->b->mappings;
    uint64_t at = address_ranges_fit(unused, a->size);
    if (!at || !address_ranges_remove(unused, at, a->size)) return false;
    a->address = at;
    a->slab = m->items[mappings_find(m, at)].physical;
    a->slab->n_allocations++;
    return true;
}

static int place(struct allocation *a) {
    struct gv_context *c = a->context;
    struct cuda_device *d = c->account;
    if (!d->chunk) return c->b->driver.memory_alloc((CUdeviceptr *)&a->address, a->size);
    bool shared = a->size <= d->chunk / 2;
    if (shared && fit(a, &d->holes)) return 0;
    int status = a->size > UINT64_MAX - d->chunk ? CUDA_ERROR_OUT_OF_MEMORY : make_slab(c, (a->size + d->chunk - 1) / d->chunk * d->chunk, shared);
    if (!status) return fit(a, shared ? &d->holes : &d->tails) ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    return status == CUDA_ERROR_OUT_OF_MEMORY && (fit(a, &d->tails) || fit(a, &d->holes)) ? 0 : status;
}

static void unplace(struct allocation *a) {
    struct gv_physical *p = a->slab;
    if (p && address_ranges_add(unused_of(p), a->address, a->size) && !--p->n_allocations) destroy_slab(p);
}

int cuda_memory_alloc(struct gv_context *c, uint64_t size, uint64_t *address) {
    struct gv_backend *b = c->b;
    if (!size) return CUDA_ERROR_INVALID_VALUE;
    if (size > UINT64_MAX - SMALLEST || b->n_allocations >= GV_ALLOCATIONS_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *a = malloc(sizeof *a);
    if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
    *a = (struct allocation){.context = c, .size = (size + SMALLEST - 1) / SMALLEST * SMALLEST};
    bool counted = c->account->chunk || cuda_take(c, a->size); /* slabs are counted as they are made */
    int status = counted ? cuda_enter(c) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) status = place(a);
    for (int i = 0; counted && status == CUDA_ERROR_OUT_OF_MEMORY && i < CUDA_ROOM_TRIES && cuda_make_room(c, a->size); i++) status = place(a);
    if (!status && (address_ranges_touch(&b->owned, a->address, size) || !address_ranges_add(&b->owned, a->address, a->size))) {
        if (a->slab)
            unplace(a);
        else
            b->driver.memory_free(a->address);
        status = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (status) {
        if (counted && !c->account->chunk) cuda_give(c, a->size);
        free(a);
        return status;
    }
    struct allocation **at = allocation_at(a->address);
    a->next = *at;
    *at = a;
    b->n_allocations++;
    if (!a->slab) b->n_placed++;
    *address = a->address;
    return 0;
}

/* The driver's own free waits for the device. */
static int await_device(const struct gv_context *c) {
    const struct cuda_device *d = c->account;
    int status = 0;
    for (struct gv_context *other = c->b->contexts; other && !status; other = other->next) {
        if (other->account != d || (other != d->own && other->context == d->own->context)) continue;
        status = cuda_enter(other);
        if (!status) status = c->b->driver.context_synchronize();
    }
    return status;
}

static void forget(struct allocation **at) {
    struct allocation *a = *at;
    struct gv_backend *b = a->context->b;
    *at = a->next;
    address_ranges_remove(&b->owned, a->address, a->size);
    b->n_allocations--;
    if (a->slab) {
        unplace(a);
    } else {
        cuda_give(a->context, a->size);
        b->n_placed--;
    }
    free(a);
}

int cuda_memory_free(struct gv_context *c, uint64_t address) {
    struct allocation **at = allocation_at(address);
    while (*at && (*at)->address != address) at = &(*at)->next;
    if (!*at) return CUDA_ERROR_INVALID_VALUE;
    int status = (*at)->slab ? await_device((*at)->context) : cuda_enter(c);
    if (!status && !(*at)->slab) status = c->b->driver.memory_free(address);
    if (!status) forget(at);
    return status;
}

void cuda_memory_forget(struct gv_context *c) {
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct allocation **at = &allocations[i]; *at;)
            if ((*at)->context == c)
                forget(at);
            else
                at = &(*at)->next;
}

/* ---- pinned host memory ---- */

/* Staging memory must be pinned: with pageable memory the driver reads it during the call, before a gated payload has arrived, and waits for the
 * device before it writes it. */
void *cuda_host_alloc(struct gv_backend *b, size_t size) {
    void *memory = NULL;
    if (!b->first || cuda_enter(b->first) || b->driver.host_alloc(&memory, size, CU_MEMHOSTALLOC_PORTABLE)) return NULL;
    return memory;
}

void cuda_host_free(struct gv_backend *b, void *memory) {
    if (cuda_enter(b->first) == 0) b->driver.host_free(memory);
}
