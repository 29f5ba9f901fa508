// Virtual memory management: addresses, memory, and the one mapped at the other.
#include "conformance.h"

static CUmemAllocationProp properties() {
    CUmemAllocationProp wanted = {};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    return wanted;
}

static size_t granularity() {
    CUmemAllocationProp wanted = properties();
    size_t bytes = garbage<size_t>();
    CHECK(cuMemGetAllocationGranularity(&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    return bytes;
}

static CUmemAccessDesc access(CUmemAccess_flags flags) { return {{CU_MEM_LOCATION_TYPE_DEVICE, {device}}, flags}; }

// Reserved addresses with memory of their own behind them, which the device may use.
struct Mapped {
    CUmemAllocationProp wanted = properties();
    size_t size = granularity();
    CUdeviceptr address = garbage<CUdeviceptr>();
    CUmemGenericAllocationHandle handle = garbage<CUmemGenericAllocationHandle>();

    Mapped() {
        CHECK(cuMemAddressReserve(&address, 2 * size, 0, 0, 0));
        CHECK(cuMemCreate(&handle, size, &wanted, 0));
        CHECK(cuMemMap(address, size, 0, handle, 0));
        CUmemAccessDesc both = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        CHECK(cuMemSetAccess(address, size, &both, 1));
    }
};

CASE(granularity, "cuMemGetAllocationGranularity") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
    CUmemAllocationProp wanted = properties();
    size_t least = garbage<size_t>(), best = garbage<size_t>();
    CHECK(cuMemGetAllocationGranularity(&least, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(cuMemGetAllocationGranularity(&best, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    EXPECT(least >= 4096 && least <= best && best <= 1 << 30 && best % least == 0);
    REFUSED(cuMemGetAllocationGranularity(nullptr, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM), CUDA_ERROR_INVALID_VALUE);
    CUmemAllocationProp host = wanted; // libraries ask before they try to create some
    host.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    host.location.id = 0;
    size_t of_host = garbage<size_t>();
    CHECK(cuMemGetAllocationGranularity(&of_host, &host, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT(of_host >= 4096 && of_host <= 1 << 30);
    wanted.location.id = device_count(); // which is not looked at
    CHECK(cuMemGetAllocationGranularity(&least, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

CASE(map, "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
    Mapped m;
    EXPECT(m.address % m.size == 0);
    CHECK(cuMemsetD8(m.address, 0x42, m.size));
    EXPECT(download<unsigned char>(m.address, m.size) == filled<unsigned char>(m.size, 0x42));
    REFUSED(cuMemAddressReserve(&m.address, 100, 0, 0, 0), CUDA_ERROR_INVALID_VALUE); // not a multiple of the granularity
    REFUSED(cuMemCreate(&m.handle, 100, &m.wanted, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemCreate(&m.handle, m.size, &m.wanted, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemMap(m.address, m.size, 0, m.handle, 0), CUDA_ERROR_INVALID_VALUE);              // something is mapped there
    REFUSED(cuMemMap(m.address + m.size, 2 * m.size, 0, m.handle, 0), CUDA_ERROR_NOT_SUPPORTED); // more than the memory has
    CUmemAccessDesc both = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    REFUSED(cuMemSetAccess(m.address + m.size, m.size, &both, 1), CUDA_ERROR_INVALID_VALUE); // nothing is
}

CASE(access, "cuMemGetAccess") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
    Mapped m;
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    unsigned long long flags = garbage<unsigned long long>();
    CHECK(cuMemGetAccess(&flags, &here, m.address));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUmemAccessDesc read_only = access(CU_MEM_ACCESS_FLAGS_PROT_READ);
    CHECK(cuMemSetAccess(m.address, m.size, &read_only, 1));
    CHECK(cuMemGetAccess(&flags, &here, m.address));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
    REFUSED(cuMemGetAccess(nullptr, &here, m.address), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemGetAccess(&flags, &here, 4096), CUDA_ERROR_INVALID_VALUE);
}

static size_t free_memory() {
    size_t left = garbage<size_t>(), total = garbage<size_t>();
    CHECK(cuMemGetInfo(&left, &total));
    return left;
}

CASE(unmap, "cuMemUnmap", "cuMemRelease", "cuMemAddressFree") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
    Mapped m;
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    unsigned long long flags = garbage<unsigned long long>();
    REFUSED(cuMemAddressFree(m.address, 2 * m.size), CUDA_ERROR_INVALID_VALUE); // something is mapped there
    CHECK(cuMemsetD8(m.address, 0x42, m.size));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemUnmap(m.address, m.size));
    EXPECT(cuMemGetAccess(&flags, &here, m.address) != CUDA_SUCCESS);
    CHECK(cuMemMap(m.address + m.size, m.size, 0, m.handle, 0)); // the memory keeps what it holds
    CUmemAccessDesc both = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK(cuMemSetAccess(m.address + m.size, m.size, &both, 1));
    EXPECT(download<unsigned char>(m.address + m.size, 100) == filled<unsigned char>(100, 0x42));
    CHECK(cuMemUnmap(m.address, 2 * m.size)); // of which a half is not mapped
    CHECK(cuMemUnmap(m.address, m.size));
    CHECK(cuMemRelease(m.handle));
    CUmemGenericAllocationHandle large = garbage<CUmemGenericAllocationHandle>(), other = garbage<CUmemGenericAllocationHandle>();
    const size_t before = free_memory();
    CHECK(cuMemCreate(&large, 32 * m.size, &m.wanted, 0));
    EXPECT(free_memory() <= before - 32 * m.size);
    CHECK(cuMemRelease(large));
    EVENTUALLY(free_memory() >= before);
    CHECK(cuMemCreate(&other, m.size, &m.wanted, 0));
    CHECK(cuMemMap(m.address, m.size, 0, other, 0));
    CHECK(cuMemRelease(other));
    EXPECT(cuMemRelease(other) != CUDA_SUCCESS); // the mapping keeps the memory, and nobody the handle
    REFUSED(cuMemUnmap(m.address, m.size / 2), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(m.address, m.size));
    CHECK(cuMemCreate(&other, m.size, &m.wanted, 0));
    CHECK(cuMemAddressFree(m.address, 2 * m.size));
    EXPECT(cuMemMap(m.address, m.size, 0, other, 0) != CUDA_SUCCESS); // no longer reserved
    REFUSED(cuMemUnmap(m.address, m.size), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemRelease(0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemAddressFree(m.address, 2 * m.size), CUDA_ERROR_INVALID_VALUE);
}

CASE(handles, "cuMemRetainAllocationHandle", "cuMemGetAllocationPropertiesFromHandle") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
    Mapped m;
    CUmemAllocationProp told = garbage<CUmemAllocationProp>();
    CHECK(cuMemGetAllocationPropertiesFromHandle(&told, m.handle));
    EXPECT(told.type == CU_MEM_ALLOCATION_TYPE_PINNED && told.location.type == CU_MEM_LOCATION_TYPE_DEVICE && told.location.id == device);
    CUmemGenericAllocationHandle retained = garbage<CUmemGenericAllocationHandle>();
    CHECK(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void *>(m.address + 100)));
    EXPECT(retained == m.handle);
    CHECK(cuMemRelease(m.handle));
    CHECK(cuMemGetAllocationPropertiesFromHandle(&told, retained)); // it was retained once more
    CHECK(cuMemRelease(retained));
    REFUSED(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void *>(m.address + m.size)), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemGetAllocationPropertiesFromHandle(nullptr, retained), CUDA_ERROR_INVALID_VALUE);
}
