/* Device memory and pinned host memory, by the driver. */
#include <stdlib.h>

#include "backend_cuda.h"

bool cuda_quota_allows(const struct gv_context *c, uint64_t size) {
    uint64_t limit = c->b->memory;
    return !limit || (size <= limit && atomic_load(c->used) <= limit - size);
}

int cuda_memory_info(struct gv_context *c, uint64_t *free_bytes, uint64_t *total_bytes) {
    size_t available = 0, total = 0;
    int status = cuda_enter(c);
    if (!status) status = c->b->driver.memory_info(&available, &total);
    uint64_t limit = c->b->memory;
    if (limit && limit < total) {
        uint64_t left = limit > atomic_load(c->used) ? limit - atomic_load(c->used) : 0;
        total = limit;
        if (left < available) available = left;
    }
    *free_bytes = available;
    *total_bytes = total;
    return status;
}

int cuda_memory_back(struct gv_context *c, uint64_t address, uint64_t size) { return (void)c, (void)address, (void)size, CUDA_ERROR_NOT_SUPPORTED; }

int cuda_memory_unback(struct gv_context *c, uint64_t address, uint64_t size) { return (void)c, (void)address, (void)size, CUDA_ERROR_NOT_SUPPORTED; }

/* Sizes by address, for the accounting of frees. */
static struct allocation {
    struct allocation *next;
    uint64_t address, size;
} *allocations[4096];

static struct allocation **allocation_at(uint64_t address) { return &allocations[(address >> 9) * 0x9e3779b1u >> 20 & 4095]; }

int cuda_memory_alloc(struct gv_context *c, uint64_t size, uint64_t *address) {
    if (!cuda_quota_allows(c, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *a = malloc(sizeof *a);
    CUdeviceptr p = 0;
    int status = a ? cuda_enter(c) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) status = c->b->driver.memory_alloc(&p, size);
    if (status) {
        free(a);
        return status;
    }
    struct allocation **at = allocation_at(p);
    *a = (struct allocation){*at, p, size};
    *at = a;
    atomic_fetch_add(c->used, size);
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
    atomic_fetch_sub(c->used, a->size);
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
