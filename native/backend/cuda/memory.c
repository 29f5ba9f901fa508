/* Device memory and pinned host memory, by the driver. */
#include <stdlib.h>

#include "backend_cuda.h"

#define SMALLEST 512ull /* bytes in which the driver allocates */

/* What the driver says of an address that is none of an allocation or mapping: a module's global is device memory, staging memory is not. */
static bool device_memory(struct gv_context *c, uint64_t address, uint64_t size) {
    const struct driver *d = &c->b->driver;
    unsigned type = 0;
    CUdeviceptr start = 0;
    size_t whole = 0;
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
    size_t available = 0, total = 0;
    int status = cuda_enter(c);
    if (!status) status = c->b->driver.memory_info(&available, &total);
    uint64_t limit = c->b->memory;
    if (limit && limit < total) {
        uint64_t left = limit > c->account->used ? limit - c->account->used : 0;
        total = limit;
        if (left < available) available = left;
    }
    *free_bytes = available;
    *total_bytes = total;
    return status;
}

int cuda_memory_back(struct gv_context *c, uint64_t address, uint64_t size, bool waits) {
    return (void)c, (void)address, (void)size, (void)waits, CUDA_ERROR_NOT_SUPPORTED;
}

int cuda_memory_unback(struct gv_context *c, uint64_t address, uint64_t size) { return (void)c, (void)address, (void)size, CUDA_ERROR_NOT_SUPPORTED; }

/* By address, for the accounting of frees. */
static struct allocation {
    struct allocation *next;
    uint64_t address, size, counted;
    bool listed; /* among the backend's `owned` */
} *allocations[4096];

static struct allocation **allocation_at(uint64_t address) { return &allocations[(address >> 9) * 0x9e3779b1u >> 20 & 4095]; }

int cuda_memory_alloc(struct gv_context *c, uint64_t size, uint64_t *address) {
    if (size > UINT64_MAX - SMALLEST) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t counted = (size + SMALLEST - 1) / SMALLEST * SMALLEST;
    if (c->b->n_allocations >= GV_ALLOCATIONS_MAX || !cuda_take(c, counted)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *a = malloc(sizeof *a);
    CUdeviceptr p = 0;
    int status = a ? cuda_enter(c) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) status = c->b->driver.memory_alloc(&p, size);
    if (status) {
        cuda_give(c, counted);
        free(a);
        return status;
    }
    struct allocation **at = allocation_at(p);
    *a = (struct allocation){.next = *at, .address = p, .size = size, .counted = counted};
    *at = a;
    c->b->n_allocations++;
    /* Without memory for the list the driver is asked each time. */
    a->listed = size && !address_ranges_touch(&c->b->owned, p, size) && address_ranges_add(&c->b->owned, p, size);
    *address = p;
    return 0;
}

int cuda_memory_free(struct gv_context *c, uint64_t address) {
    int status = cuda_enter(c);
    if (!status) status = c->b->driver.memory_free(address);
    if (status) return status;
    struct allocation **at = allocation_at(address);
    while (*at && (*at)->address != address) at = &(*at)->next;
    struct allocation *a = *at;
    if (!a) return 0;
    *at = a->next;
    if (a->listed) address_ranges_remove(&c->b->owned, address, a->size);
    c->b->n_allocations--;
    cuda_give(c, a->counted);
    free(a);
    return 0;
}

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
