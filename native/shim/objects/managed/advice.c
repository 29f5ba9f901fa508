#include "objects/managed/advice.h"

#include <stdlib.h>
#include <string.h>

#include "gv_impl.h"
#include "objects/managed/region.h"

int advice_range(CUdeviceptr address, size_t size) {
    struct range r;
    if (!size || !range_find_device(address, &r) || !r.managed || r.mapped) return CUDA_ERROR_INVALID_VALUE;
    return size <= r.size - (address - range_base(&r)) ? 0 : CUDA_ERROR_INVALID_VALUE;
}

int advice_location(CUmemLocation place) {
    switch ((int)place.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return device_info(place.id) ? 0 : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return 0;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUmemLocation advice_device(CUdevice device) {
    if (device == CU_DEVICE_CPU) return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST};
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

/* The advice of the blocks that a range touches, with region_lock held; NULL: out of memory, or no such range. */
static struct advice *of(uint64_t address, uint64_t size, size_t *n) {
    struct region *r = region_find(address);
    if (!r) return NULL;
    if (!r->advice) r->advice = calloc(r->n, sizeof *r->advice);
    uint64_t low = address - region_base(r);
    size_t first = low >> r->shift;
    *n = ((low + size - 1) >> r->shift) - first + 1;
    return r->advice ? r->advice + first : NULL;
}

void advice_prefetched(uint64_t address, uint64_t size, CUmemLocation to) {
    size_t n = 0;
    pthread_mutex_lock(&region_lock);
    struct advice *a = of(address, size, &n);
    for (size_t i = 0; a && i < n; i++) a[i].prefetched = to;
    pthread_mutex_unlock(&region_lock);
}

/* ---- giving ---- */

static void give(struct advice *a, CUmem_advise what, CUmemLocation place) {
    bool device = place.type == CU_MEM_LOCATION_TYPE_DEVICE;
    switch (what) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY: a->read_mostly = true; break;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY: a->read_mostly = false; break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: a->preferred = place; break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: a->preferred = (CUmemLocation){0}; break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        if (device)
            a->accessed_by |= 1u << place.id;
        else
            a->accessed_by_host = true;
        break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        if (device)
            a->accessed_by &= ~(1u << place.id);
        else
            a->accessed_by_host = false;
        break;
    }
}

CUresult impl_cuMemAdvise_v2(CUdeviceptr address, size_t size, CUmem_advise what, CUmemLocation place) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if ((int)what < CU_MEM_ADVISE_SET_READ_MOSTLY || what > CU_MEM_ADVISE_UNSET_ACCESSED_BY) return CUDA_ERROR_INVALID_VALUE;
    bool placed = what == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || what >= CU_MEM_ADVISE_SET_ACCESSED_BY;
    if (placed) rc = advice_location(place);
    if (!rc) rc = advice_range(address, size);
    if (rc) return rc;
    size_t n = 0;
    pthread_mutex_lock(&region_lock);
    struct advice *a = of(address, size, &n);
    for (size_t i = 0; a && i < n; i++) give(&a[i], what, place);
    pthread_mutex_unlock(&region_lock);
    return a ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult impl_cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise what, CUdevice device) {
    return impl_cuMemAdvise_v2(address, size, what, advice_device(device));
}

/* ---- asking ---- */

static bool same(CUmemLocation a, CUmemLocation b) { return a.type == b.type && a.id == b.id; }

/* What holds for all blocks. */
static struct advice common(const struct advice *a, size_t n) {
    struct advice all = a[0];
    for (size_t i = 1; i < n; i++) {
        all.read_mostly &= a[i].read_mostly;
        all.accessed_by &= a[i].accessed_by;
        all.accessed_by_host &= a[i].accessed_by_host;
        if (!same(all.preferred, a[i].preferred)) all.preferred = (CUmemLocation){0};
        if (!same(all.prefetched, a[i].prefetched)) all.prefetched = (CUmemLocation){0};
    }
    return all;
}

static int device_of(CUmemLocation place) {
    return place.type == CU_MEM_LOCATION_TYPE_DEVICE ? place.id : place.type == CU_MEM_LOCATION_TYPE_INVALID ? CU_DEVICE_INVALID : CU_DEVICE_CPU;
}

static void write_accessors(const struct advice *a, int *out, size_t n) {
    size_t k = 0;
    if (a->accessed_by_host && k < n) out[k++] = CU_DEVICE_CPU;
    for (int d = 0; d < GV_MAX_DEVICES; d++)
        if (a->accessed_by >> d & 1 && k < n) out[k++] = d;
    while (k < n) out[k++] = CU_DEVICE_INVALID;
}

static int check_size(CUmem_range_attribute which, size_t size) {
    if (which == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) return size && size % 4 == 0 ? 0 : CUDA_ERROR_INVALID_VALUE;
    return (int)which >= CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY && (int)which <= CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID && size == 4
               ? 0
               : CUDA_ERROR_INVALID_VALUE;
}

static void answer(const struct advice *a, CUmem_range_attribute which, int *out, size_t size) {
    switch ((int)which) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: *out = a->read_mostly; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: *out = device_of(a->preferred); break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: write_accessors(a, out, size / 4); break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: *out = device_of(a->prefetched); break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: *out = (int)a->preferred.type; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: *out = a->preferred.id; break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: *out = (int)a->prefetched.type; break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: *out = a->prefetched.id; break;
    default: break;
    }
}

CUresult impl_cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *which, size_t n, CUdeviceptr address, size_t size) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!data || !sizes || !which || !n) return CUDA_ERROR_INVALID_VALUE;
    int rc = advice_range(address, size);
    for (size_t i = 0; i < n && !rc; i++) rc = data[i] ? check_size(which[i], sizes[i]) : CUDA_ERROR_INVALID_VALUE;
    if (rc) return rc;
    size_t blocks = 0;
    struct advice all = {0};
    pthread_mutex_lock(&region_lock);
    const struct advice *a = of(address, size, &blocks);
    if (a) all = common(a, blocks);
    pthread_mutex_unlock(&region_lock);
    for (size_t i = 0; i < n && a; i++) answer(&all, which[i], data[i], sizes[i]);
    return a ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult impl_cuMemRangeGetAttribute(void *data, size_t data_size, CUmem_range_attribute which, CUdeviceptr address, size_t size) {
    return impl_cuMemRangeGetAttributes(&data, &data_size, &which, 1, address, size);
}
