// Page-locked memory of the host, and what is told of pointers.
#include "conformance.h"
#include <cstdlib>

CASE(allocate_and_free, "cuMemAllocHost", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostGetFlags") {
    void *plain = garbage<void *>(), *mapped = garbage<void *>();
    CHECK(cuMemAllocHost(&plain, 5000));
    CHECK(cuMemHostAlloc(&mapped, 5000, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    std::memset(plain, 1, 5000);
    std::memset(mapped, 2, 5000);
    EXPECT(static_cast<char *>(plain)[4999] == 1);
    CUmemorytype type = garbage<CUmemorytype>();
    CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(plain)));
    EXPECT(type == CU_MEMORYTYPE_HOST);
    unsigned flags = garbage<unsigned>();
    CHECK(cuMemHostGetFlags(&flags, mapped));
    EXPECT_NUMBER(flags & ~unsigned{CU_MEMHOSTALLOC_PORTABLE}, CU_MEMHOSTALLOC_DEVICEMAP); // all memory is portable: it need not be told
    CHECK(cuMemFreeHost(plain));
    EXPECT(cuMemHostGetFlags(&flags, plain) != CUDA_SUCCESS);
    REFUSED(cuMemAllocHost(nullptr, 16), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemHostAlloc(&plain, 16, 0x80), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemFreeHost(&flags), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemHostGetFlags(&flags, &flags), CUDA_ERROR_INVALID_VALUE);
}

CASE(registered, "cuMemHostRegister", "cuMemHostUnregister") {
    void *memory = std::aligned_alloc(4096, 8192);
    const CUdeviceptr inside = reinterpret_cast<CUdeviceptr>(memory) + 5000;
    CUmemorytype type = garbage<CUmemorytype>();
    CHECK(cuMemHostRegister(memory, 8192, CU_MEMHOSTREGISTER_PORTABLE));
    CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside));
    EXPECT(type == CU_MEMORYTYPE_HOST);
    REFUSED(cuMemHostRegister(memory, 8192, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CHECK(cuMemHostUnregister(memory));
    EXPECT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside) != CUDA_SUCCESS);
    CHECK(cuMemHostRegister(memory, 8192, 0)); // as it was given back
    CHECK(cuMemHostUnregister(memory));
    REFUSED(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    REFUSED(cuMemHostRegister(nullptr, 8192, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemHostRegister(memory, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

// Devices that cannot map host memory refuse all of it; there only the refusals tell this function from one that does nothing.
HINT_CASE(device_pointer, "cuMemHostGetDevicePointer") {
    void *memory = garbage<void *>();
    CHECK(cuMemHostAlloc(&memory, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    CUdeviceptr address = garbage<CUdeviceptr>(), told = garbage<CUdeviceptr>();
    if (attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)) {
        CHECK(cuMemHostGetDevicePointer(&address, memory, 0));
        CHECK(cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, reinterpret_cast<CUdeviceptr>(memory)));
        EXPECT(told == address);
    }
    if (attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)) { // also of the program's own, which devices may have elsewhere
        char *own = static_cast<char *>(std::aligned_alloc(4096, 8192));
        void *back = garbage<void *>();
        std::memset(own, 7, 8192);
        CHECK(cuMemHostRegister(own, 8192, CU_MEMHOSTREGISTER_DEVICEMAP));
        CHECK(cuMemHostGetDevicePointer(&address, own + 5000, 0));
        CHECK(cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, reinterpret_cast<CUdeviceptr>(own + 5000)));
        CHECK(cuPointerGetAttribute(&back, CU_POINTER_ATTRIBUTE_HOST_POINTER, address));
        EXPECT(told == address && back == own + 5000);
        CHECK(cuMemsetD8(address, 9, 100));
        CHECK(cuCtxSynchronize());
        EXPECT(own[4999] == 7 && own[5000] == 9 && own[5099] == 9 && own[5100] == 7);
        CHECK(cuMemHostUnregister(own));
        std::free(own);
    }
    REFUSED(cuMemHostGetDevicePointer(nullptr, memory, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemHostGetDevicePointer(&address, memory, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemHostGetDevicePointer(&address, &address, 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(pointer_attributes, "cuPointerGetAttribute", "cuPointerGetAttributes") {
    CUdeviceptr memory = allocate(1000), start_of = garbage<CUdeviceptr>();
    CUmemorytype type = garbage<CUmemorytype>();
    CUcontext context = garbage<CUcontext>();
    size_t size = garbage<size_t>();
    int ordinal = garbage<int>();
    unsigned managed = garbage<unsigned>();
    CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + 10));
    CHECK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, memory + 10));
    CHECK(cuPointerGetAttribute(&start_of, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory + 10));
    CHECK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory + 10));
    CHECK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory + 10));
    CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, memory + 10));
    EXPECT(type == CU_MEMORYTYPE_DEVICE && context == primary && start_of == memory && size == 1000 && ordinal == 0 && (managed & 0xff) == 0);

    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *places[] = {&type, &ordinal, &size};
    type = garbage<CUmemorytype>(), ordinal = garbage<int>(), size = garbage<size_t>();
    CHECK(cuPointerGetAttributes(3, names, places, memory));
    EXPECT(type == CU_MEMORYTYPE_DEVICE && ordinal == 0 && size == 1000);
    CHECK(cuPointerGetAttributes(1, names, places, reinterpret_cast<CUdeviceptr>(&size))); // not the driver's: 0, and no error
    EXPECT(type == 0);
    REFUSED(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&size)), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuPointerGetAttributes(3, names, nullptr, memory), CUDA_ERROR_INVALID_VALUE);
}

CASE(set_pointer_attribute, "cuPointerSetAttribute") {
    CUdeviceptr memory = allocate(1000);
    unsigned on = 1, told = 0;
    CHECK(cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
    EXPECT((told & 0xff) == 0);
    CHECK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
    told = 0;
    CHECK(cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
    EXPECT((told & 0xff) == 1);
    REFUSED(cuPointerSetAttribute(nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory), CUDA_ERROR_INVALID_VALUE);
}
