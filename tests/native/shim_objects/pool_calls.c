/* Memory pools: the default one, the program's own, and who may reach their memory. */
#include "pool_calls.h"

#include "check.h"
#include "fake_session.h"
#include "gv_impl.h"
#include "memory_calls.h"

static CUmemAccess_flags access_of(CUmemoryPool pool, CUdevice device) {
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    CUmemAccess_flags flags = (CUmemAccess_flags)99;
    EQUAL(impl_cuMemPoolGetAccess(&flags, pool, &location), 0);
    return flags;
}

static int set_access(CUmemoryPool pool, CUdevice device, int flags) {
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = (CUmemAccess_flags)flags};
    return (int)impl_cuMemPoolSetAccess(pool, &desc, 1);
}

static void access(CUmemoryPool pool, CUdevice own, CUdevice other) {
    EQUAL(access_of(pool, own), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    EQUAL(access_of(pool, other), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    EQUAL(set_access(pool, own, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), 0);
    EQUAL(set_access(pool, own, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_ERROR_INVALID_DEVICE);
    EQUAL(set_access(pool, own, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_ERROR_INVALID_DEVICE);
    static const int each[] = {CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READ,
                               CU_MEM_ACCESS_FLAGS_PROT_NONE};
    for (unsigned i = 0; i < sizeof each / sizeof *each; i++) {
        EQUAL(set_access(pool, other, each[i]), 0);
        EQUAL(access_of(pool, other), each[i]);
    }
    EQUAL(set_access(pool, other, 2), CUDA_ERROR_INVALID_VALUE);
    EQUAL(set_access(pool, 99, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_ERROR_INVALID_DEVICE);
    EQUAL(impl_cuMemPoolSetAccess(pool, NULL, 1), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemPoolSetAccess(pool, NULL, 0), 0);

    /* Of several, all or none. */
    CUmemAccessDesc two[2] = {{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = other}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READ},
                              {.location = {.type = CU_MEM_LOCATION_TYPE_HOST}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READ}};
    EQUAL(impl_cuMemPoolSetAccess(pool, two, 2), CUDA_ERROR_NOT_SUPPORTED);
    EQUAL(access_of(pool, other), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CUmemAccess_flags flags;
    EQUAL(impl_cuMemPoolGetAccess(NULL, pool, &two[0].location), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemPoolGetAccess(&flags, pool, NULL), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemPoolGetAccess(&flags, NULL, &two[0].location), CUDA_ERROR_INVALID_VALUE);
}

void pools(void) {
    CUmemoryPool pool, own;
    fake_reset();
    EQUAL(impl_cuDeviceGetDefaultMemPool(&pool, 1), 0);
    access(pool, 1, 0);
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    EQUAL(impl_cuMemPoolCreate(&own, &properties), 0);
    EQUAL(set_access(pool, 0, CU_MEM_ACCESS_FLAGS_PROT_READ), 0);
    access(own, 0, 1); /* each has its own */
    EQUAL(impl_cuMemPoolDestroy(own), 0);
    EQUAL(set_access(own, 1, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_ERROR_INVALID_VALUE);
}
