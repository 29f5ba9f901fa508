/* Virtual memory management by the driver. Its addresses are the program's. */
#include <stdlib.h>

#include "backend_cuda.h"

struct gv_physical {
    struct gv_context *context; /* the worker's context of the device */
    CUmemGenericAllocationHandle handle;
    uint64_t size;
};

static CUmemAllocationProp properties(CUdevice device) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

uint64_t cuda_granularity(struct gv_backend *b, CUdevice device) {
    CUmemAllocationProp prop = properties(device);
    size_t granularity = 0;
    int supported = 0;
    if (b->driver.device_attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) || !supported) return 0;
    return b->driver.memory_granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ? 0 : granularity;
}

int cuda_address_reserve(struct gv_backend *b, uint64_t size, uint64_t alignment, uint64_t *address) {
    CUdeviceptr at = 0;
    int status = b->driver.address_reserve(&at, size, alignment, 0, 0);
    if (!status) *address = at;
    return status;
}

int cuda_address_free(struct gv_backend *b, uint64_t address, uint64_t size) { return b->driver.address_free(address, size); }

int cuda_physical_create(struct gv_context *c, uint64_t size, struct gv_physical **out) {
    if (!cuda_quota_allows(c, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct gv_physical *p = calloc(1, sizeof *p);
    CUmemAllocationProp prop = properties(c->device);
    int status = p ? (int)c->b->driver.memory_create(&p->handle, size, &prop, 0) : CUDA_ERROR_OUT_OF_MEMORY;
    if (status) {
        free(p);
        return status;
    }
    p->context = c;
    p->size = size;
    atomic_fetch_add(c->used, size);
    *out = p;
    return 0;
}

int cuda_physical_destroy(struct gv_physical *p) {
    int status = p->context->b->driver.memory_release(p->handle);
    if (status) return status;
    atomic_fetch_sub(p->context->used, p->size);
    free(p);
    return 0;
}

int cuda_memory_map(struct gv_physical *p, uint64_t address, uint64_t size) {
    return p->context->b->driver.memory_map(address, size, 0, p->handle, 0);
}

int cuda_memory_unmap(struct gv_backend *b, uint64_t address, uint64_t size) { return b->driver.memory_unmap(address, size); }

int cuda_memory_access(struct gv_backend *b, uint64_t address, uint64_t size, uint32_t device, uint32_t rights) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = b->devices[device]}, .flags = (CUmemAccess_flags)rights};
    return b->driver.memory_access(address, size, &access, 1);
}
