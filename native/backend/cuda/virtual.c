/* Virtual memory management by the driver. Its addresses are the program's. */
#include <stdlib.h>

#include "backend_cuda.h"

#define MOST_MAPPED ((uint64_t)GV_MAPPINGS_MAX << 21) /* bytes: as many mappings of 2 MiB, which is what a device maps at least */

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
    if (b->n_reservations >= GV_RESERVATIONS_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    int status = b->driver.address_reserve(&at, size, alignment, 0, 0);
    if (status) return status;
    b->n_reservations++;
    *address = at;
    return 0;
}

int cuda_address_free(struct gv_backend *b, uint64_t address, uint64_t size) {
    int status = b->driver.address_free(address, size);
    if (!status && b->n_reservations) b->n_reservations--;
    return status;
}

int cuda_physical_create(struct gv_context *c, uint64_t size, struct gv_physical **out) {
    if (!cuda_take(c, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct gv_physical *p = calloc(1, sizeof *p);
    CUmemAllocationProp prop = properties(c->device);
    int status = p ? (int)c->b->driver.memory_create(&p->handle, size, &prop, 0) : CUDA_ERROR_OUT_OF_MEMORY;
    if (status) {
        cuda_give(c, size);
        free(p);
        return status;
    }
    p->context = c;
    p->size = size;
    *out = p;
    return 0;
}

int cuda_physical_destroy(struct gv_physical *p) {
    int status = p->context->b->driver.memory_release(p->handle);
    if (status) return status;
    cuda_give(p->context, p->size);
    free(p);
    return 0;
}

int cuda_memory_map(struct gv_physical *p, uint64_t address, uint64_t size) {
    struct gv_backend *b = p->context->b;
    if (size > MOST_MAPPED - b->mapped) return CUDA_ERROR_OUT_OF_MEMORY;
    int status = b->driver.memory_map(address, size, 0, p->handle, 0);
    if (status) return status;
    b->mapped += size;
    if (!address_ranges_touch(&b->owned, address, size)) address_ranges_add(&b->owned, address, size);
    return 0;
}

int cuda_memory_unmap(struct gv_backend *b, uint64_t address, uint64_t size) {
    int status = b->driver.memory_unmap(address, size);
    if (status) return status;
    b->mapped -= size < b->mapped ? size : b->mapped;
    if (address_ranges_hold(&b->owned, address, size)) address_ranges_remove(&b->owned, address, size);
    return 0;
}

int cuda_memory_access(struct gv_backend *b, uint64_t address, uint64_t size, uint32_t device, uint32_t rights) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = b->devices[device]}, .flags = (CUmemAccess_flags)rights};
    return b->driver.memory_access(address, size, &access, 1);
}
