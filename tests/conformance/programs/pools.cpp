// Memory in the order of a stream, and the pools that it comes from.
#include "conformance.h"

static CUmemoryPool make_pool() {
    CUmemPoolProps properties = {};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    CUmemoryPool pool = garbage<CUmemoryPool>();
    CHECK(cuMemPoolCreate(&pool, &properties));
    return pool;
}

static cuuint64_t number(CUmemoryPool pool, CUmemPool_attribute name) {
    cuuint64_t value = garbage<cuuint64_t>();
    CHECK(cuMemPoolGetAttribute(pool, name, &value));
    return value;
}

CASE(alloc_and_free, "cuMemAllocAsync", "cuMemFreeAsync") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
    CUstream stream = make_stream();
    CUmemoryPool pool = garbage<CUmemoryPool>();
    CHECK(cuDeviceGetDefaultMemPool(&pool, device));
    cuuint64_t before = number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    CUdeviceptr memory = garbage<CUdeviceptr>();
    CHECK(cuMemAllocAsync(&memory, 4096, stream));
    CHECK(cuMemsetD32Async(memory, 77, 1024, stream));
    std::vector<unsigned> read(1024);
    CHECK(cuMemcpyDtoHAsync(read.data(), memory, 4096, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(read == filled(1024, 77u));
    EXPECT(number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= before + 4096);
    CHECK(cuMemFreeAsync(memory, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == before);
    REFUSED(cuMemAllocAsync(nullptr, 16, stream), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemAllocAsync(&memory, size_t{1} << 50, stream), CUDA_ERROR_OUT_OF_MEMORY);
    REFUSED(cuMemFreeAsync(garbage<CUdeviceptr>(), stream), CUDA_ERROR_INVALID_VALUE);
}

CASE(own_pool, "cuMemPoolCreate", "cuMemAllocFromPoolAsync", "cuMemPoolDestroy") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
    CUstream stream = make_stream();
    CUmemoryPool pool = make_pool(), fallback = garbage<CUmemoryPool>();
    CHECK(cuDeviceGetDefaultMemPool(&fallback, device));
    EXPECT(pool != fallback && pool != garbage<CUmemoryPool>());
    CUdeviceptr memory = garbage<CUdeviceptr>();
    CHECK(cuMemAllocFromPoolAsync(&memory, 4096, pool, stream));
    CHECK(cuMemsetD8Async(memory, 3, 4096, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(download<unsigned char>(memory, 4096) == filled<unsigned char>(4096, 3));
    EXPECT(number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 4096);
    CHECK(cuMemFreeAsync(memory, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemPoolDestroy(pool));
    CUmemPoolProps properties = {};
    REFUSED(cuMemPoolCreate(nullptr, &properties), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemPoolDestroy(nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemPoolDestroy(fallback), CUDA_ERROR_INVALID_VALUE);
    GONE(cuMemAllocFromPoolAsync(&memory, 4096, pool, stream));
}

CASE(pool_of_the_device, "cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool", "cuDeviceSetMemPool") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
    CUmemoryPool fallback = garbage<CUmemoryPool>(), present = garbage<CUmemoryPool>(), own = make_pool();
    CHECK(cuDeviceGetDefaultMemPool(&fallback, device));
    CHECK(cuDeviceGetMemPool(&present, device));
    EXPECT(present == fallback && fallback != garbage<CUmemoryPool>());
    CHECK(cuDeviceSetMemPool(device, own));
    CHECK(cuDeviceGetMemPool(&present, device));
    EXPECT(present == own);
    CUdeviceptr memory = garbage<CUdeviceptr>();
    CHECK(cuMemAllocAsync(&memory, 4096, nullptr)); // from the present one
    EXPECT(number(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 4096);
    REFUSED(cuDeviceGetDefaultMemPool(nullptr, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetMemPool(&present, device_count()), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceSetMemPool(device_count(), own), CUDA_ERROR_INVALID_VALUE);
}

CASE(attributes, "cuMemPoolGetAttribute", "cuMemPoolSetAttribute") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
    CUmemoryPool pool = make_pool();
    cuuint64_t threshold = 123456789, told = number(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    EXPECT(told == 0);
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    EXPECT(number(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == threshold);
    int reuse = 0;
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse));
    reuse = garbage<int>();
    CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse));
    EXPECT(reuse == 0);
    REFUSED(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(1000), &told), CUDA_ERROR_INVALID_VALUE);
    told = 5; // only 0 resets it
    REFUSED(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &told), CUDA_ERROR_INVALID_VALUE);
}

CASE(trim, "cuMemPoolTrimTo") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
    CUstream stream = make_stream();
    CUmemoryPool pool = make_pool();
    cuuint64_t keep_all = ~cuuint64_t{0};
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all));
    CUdeviceptr memory = garbage<CUdeviceptr>();
    CHECK(cuMemAllocFromPoolAsync(&memory, 8 << 20, pool, stream));
    CHECK(cuMemFreeAsync(memory, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 8 << 20);
    CHECK(cuMemPoolTrimTo(pool, 0));
    EXPECT(number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
    REFUSED(cuMemPoolTrimTo(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(access, "cuMemPoolSetAccess", "cuMemPoolGetAccess") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
    CUmemoryPool pool = make_pool();
    CUmemAccess_flags flags = garbage<CUmemAccess_flags>();
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    CHECK(cuMemPoolGetAccess(&flags, pool, &here));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (device_count() > 1) {
        CUmemAccessDesc there = {{CU_MEM_LOCATION_TYPE_DEVICE, {1}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CHECK(cuMemPoolGetAccess(&flags, pool, &there.location));
        EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
        int can = 0;
        CHECK(cuDeviceCanAccessPeer(&can, 1, 0));
        if (can) {
            CHECK(cuMemPoolSetAccess(pool, &there, 1));
            CHECK(cuMemPoolGetAccess(&flags, pool, &there.location));
            EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        }
    }
    CUmemAccessDesc unknown = {here, static_cast<CUmemAccess_flags>(2)};
    REFUSED(cuMemPoolSetAccess(pool, &unknown, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemPoolGetAccess(nullptr, pool, &here), CUDA_ERROR_INVALID_VALUE);
}

CASE(by_place, "cuMemGetDefaultMemPool", "cuMemGetMemPool", "cuMemSetMemPool") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    CUmemoryPool first = garbage<CUmemoryPool>(), pool = garbage<CUmemoryPool>(), own = make_pool();
    CHECK(cuDeviceGetDefaultMemPool(&first, device));
    CHECK(cuMemGetDefaultMemPool(&pool, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    EXPECT(pool == first);
    CHECK(cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, own));
    CHECK(cuDeviceGetMemPool(&pool, device));
    EXPECT(pool == own);
    pool = garbage<CUmemoryPool>();
    CHECK(cuMemGetMemPool(&pool, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    EXPECT(pool == own);
    REFUSED(cuMemGetDefaultMemPool(nullptr, &here, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemGetMemPool(nullptr, &here, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemSetMemPool(nullptr, CU_MEM_ALLOCATION_TYPE_PINNED, own), CUDA_ERROR_INVALID_VALUE);
}
