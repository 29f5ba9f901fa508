/* Queries about an address, answered from the address map. */
#include "gv_impl.h"
#include "objects/objects.h"

#define LOCALITY_DOMAIN_ORDINAL 22 /* CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL, which older headers lack */

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

static bool ipc_of(const struct range *r) { return device_attribute(device_info(r->device), CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED); }

static bool is_host(const struct range *r) { return r->kind == RANGE_HOST || r->kind == RANGE_REGISTERED || r->mapped; }

/* Programs for integrated or unified memory let kernels read and write it. */
static const char *illegal_address(uint64_t address) {
    struct range r;
    return range_find(address, &r) && is_host(&r)
               ? ", which is pinned host memory: kernels reach it where its address is one of their parameters, lies in mapped or managed memory "
                 "or in a structure of up to 4 KiB that was copied to the device, or cuMemHostGetDevicePointer was asked for it; else "
                 "copy it to the device"
               : NULL;
}

__attribute__((constructor)) static void explain_addresses(void) { session_on_illegal_address(illegal_address); }

/* One attribute of an address; r is NULL for an address that is not in the map. CUDA_ERROR_INVALID_VALUE when the attribute does not apply. */
static int attribute(CUpointer_attribute which, uint64_t address, const struct range *r, void *data) {
    bool host = r && is_host(r);
    uint64_t base = r ? range_base(r) : 0, size = r ? r->size : 0;
    if (r && r->kind == RANGE_MAPPED) virtual_reservation(address, &base, &size);
    switch ((int)which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = r ? (CUcontext)r->context : NULL; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = !r ? 0 : host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = !r ? 0 : !host || r->mapped || r->placed ? address : r->shadow ? r->shadow + (address - base) : 0;
        return host && !r->mapped && !r->placed && !r->shadow ? CUDA_ERROR_INVALID_VALUE : 0; /* cuMemHostGetDevicePointer maps other host memory */
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = !host && !(r && r->managed) ? NULL : (void *)(uintptr_t)(r->mapped && r->shadow ? r->shadow + (address - base) : address);
        return r && !host && !r->managed ? CUDA_ERROR_INVALID_VALUE : 0;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)data = r && r->sync_memops; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = r ? r->buffer_id : 0; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)data = r && r->managed && !r->mapped; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = r ? r->device : -2; break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)data = r && r->kind == RANGE_DEVICE && !r->managed && !r->mapped && !r->imported && ipc_of(r);
        break;
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
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: *(bool *)data = false; break;
    case LOCALITY_DOMAIN_ORDINAL: *(int *)data = -1; break;
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

/* The token of GPUDirect is none that a program could use. */
static bool is_attribute(CUpointer_attribute which) {
    return (int)which >= CU_POINTER_ATTRIBUTE_CONTEXT && (int)which <= LOCALITY_DOMAIN_ORDINAL && (int)which != CU_POINTER_ATTRIBUTE_P2P_TOKENS;
}

/* Unlike the single query this succeeds for any address; an attribute that does not apply is 0. */
CUresult impl_cuPointerGetAttributes(unsigned int n, CUpointer_attribute *which, void **data, CUdeviceptr address) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!n || !which || !data) return CUDA_ERROR_INVALID_VALUE;
    struct range r;
    bool found = range_find(address, &r);
    for (unsigned i = 0; i < n; i++) {
        if (!data[i] || !is_attribute(which[i])) return CUDA_ERROR_INVALID_VALUE;
        attribute(which[i], address, found ? &r : NULL, data[i]);
    }
    return CUDA_SUCCESS;
}

CUresult impl_cuPointerSetAttribute(const void *value, CUpointer_attribute which, CUdeviceptr address) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!value || which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    return range_set_sync_memops(address, *(const unsigned *)value != 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
