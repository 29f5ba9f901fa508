// How blocks of each kind come and go.
#pragma once
#include "objects.h"

inline size_t granularity(const CUmemAllocationProp &prop) {
    size_t bytes = 0;
    CHECK(cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    return bytes;
}

// Two pieces of physical memory side by side; the block lies across their border.
inline void make_virtual(Block &block) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    size_t part = granularity(prop);
    while (part < block.size) part += granularity(prop);
    CHECK(cuMemAddressReserve(&block.reserved, 2 * part, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        CHECK(cuMemCreate(&block.parts[i], part, &prop, 0));
        CHECK(cuMemMap(block.reserved + i * part, part, 0, block.parts[i], 0));
    }
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(cuMemSetAccess(block.reserved, 2 * part, &access, 1));
    block.address = block.reserved + part - (block.size / 2 & ~size_t{15});
}

inline void free_virtual(const Block &block) {
    size_t whole = 0;
    for (int i = 0; i < 2; i++) {
        CUmemAllocationProp prop = {};
        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
        size_t part = granularity(prop);
        while (part < block.size) part += granularity(prop);
        CHECK(cuMemUnmap(block.reserved + i * part, part));
        CHECK(cuMemRelease(block.parts[i]));
        whole += part;
    }
    CHECK(cuMemAddressFree(block.reserved, whole));
}

inline Block make_block(Kind kind, size_t size, CUstream stream) {
    Block block = {};
    block.kind = kind;
    block.size = size;
    void *host = nullptr;
    size_t pitch = 0, bytes = 0;
    switch (kind) {
    case DEVICE: CHECK(cuMemAlloc(&block.address, size)); break;
    case ASYNC: CHECK(cuMemAllocAsync(&block.address, size, stream)); break;
    case PITCHED: CHECK(cuMemAllocPitch(&block.address, &pitch, (size + 7) / 8, 8, 4)); break;
    case VIRTUAL: make_virtual(block); break;
    case VARIABLE:
        CHECK(cuModuleLoadData(&block.module, kernels::variable(size).c_str()));
        CHECK(cuModuleGetGlobal(&block.address, &bytes, block.module, "block"));
        break;
    case MANAGED:
        CHECK(cuMemAllocManaged(&block.address, size, CU_MEM_ATTACH_GLOBAL));
        host = reinterpret_cast<void *>(block.address);
        break;
    case PAGEABLE: host = std::malloc(size); break;
    case PINNED: CHECK(cuMemAllocHost(&host, size)); break;
    case MAPPED: CHECK(cuMemHostAlloc(&host, size, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE)); break;
    case ASKED: CHECK(cuMemAllocHost(&host, size)); break;
    case REGISTERED:
    case SHADOWED:
        host = std::aligned_alloc(4096, (size + 4095) & ~size_t{4095});
        CHECK(cuMemHostRegister(host, size, 0));
        break;
    }
    block.host = static_cast<unsigned char *>(host);
    if (kind == PAGEABLE || kind == PINNED || kind == REGISTERED) block.address = reinterpret_cast<CUdeviceptr>(host);
    if (kind == MAPPED || kind == ASKED || kind == SHADOWED) CHECK(cuMemHostGetDevicePointer(&block.address, host, 0));
    return block;
}

inline void free_block(Block &block, CUstream stream) {
    switch (block.kind) {
    case DEVICE:
    case PITCHED:
    case MANAGED: CHECK(cuMemFree(block.address)); break;
    case ASYNC: CHECK(cuMemFreeAsync(block.address, stream)); break;
    case VIRTUAL: free_virtual(block); break;
    case VARIABLE: CHECK(cuModuleUnload(block.module)); break;
    case PAGEABLE: std::free(block.host); break;
    case PINNED:
    case MAPPED:
    case ASKED: CHECK(cuMemFreeHost(block.host)); break;
    case REGISTERED:
    case SHADOWED:
        CHECK(cuMemHostUnregister(block.host));
        std::free(block.host);
        break;
    }
    block = {};
}
