// Device memory: allocation and release, what is told of addresses.
#include "conformance.h"

CASE(alloc_and_free, "cuMemAlloc", "cuMemFree", "cuMemGetAddressRange") {
    CUdeviceptr one = garbage<CUdeviceptr>(), two = garbage<CUdeviceptr>(), base = garbage<CUdeviceptr>();
    size_t size = garbage<size_t>();
    CHECK(cuMemAlloc(&one, 1000));
    CHECK(cuMemAlloc(&two, 1000));
    EXPECT(one % 256 == 0 && two % 256 == 0 && (one + 1000 <= two || two + 1000 <= one));
    CHECK(cuMemsetD8(one, 1, 1000));
    CHECK(cuMemsetD8(two, 2, 1000));
    EXPECT(download<unsigned char>(one, 1000) == filled<unsigned char>(1000, 1));
    CHECK(cuMemGetAddressRange(&base, &size, one + 999));
    EXPECT(base == one && size == 1000);
    CHECK(cuMemGetAddressRange(nullptr, &size, two)); // both are optional
    CHECK(cuMemGetAddressRange(&base, nullptr, two));
    EXPECT(base == two);
    CHECK(cuMemFree(one));
    EXPECT(cuMemGetAddressRange(&base, &size, one) != CUDA_SUCCESS);
    CHECK(cuMemFree(0)); // "no operation"
    REFUSED(cuMemFree(two + 8), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemAlloc(&one, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemAlloc(nullptr, 16), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemAlloc(&one, size_t{1} << 50), CUDA_ERROR_OUT_OF_MEMORY);
    REFUSED(cuMemGetAddressRange(&base, &size, 8), CUDA_ERROR_NOT_FOUND);
}

CASE(info, "cuMemGetInfo") {
    size_t free_before = garbage<size_t>(), free_after = garbage<size_t>(), total = garbage<size_t>();
    CHECK(cuMemGetInfo(&free_before, &total));
    EXPECT(total > 0 && free_before <= total);
    CUdeviceptr memory = allocate(200 << 20);
    CHECK(cuMemGetInfo(&free_after, &total));
    EXPECT(free_after <= total && free_after < free_before);
    CHECK(cuMemFree(memory));
    CHECK(cuCtxSetCurrent(nullptr));
    REFUSED(cuMemGetInfo(&free_before, &total), CUDA_ERROR_INVALID_CONTEXT);
}

CASE(pitch, "cuMemAllocPitch") {
    CUdeviceptr memory = garbage<CUdeviceptr>(), base = garbage<CUdeviceptr>();
    size_t pitch = garbage<size_t>(), size = garbage<size_t>();
    CHECK(cuMemAllocPitch(&memory, &pitch, 100, 7, 4));
    EXPECT(pitch >= 100 && pitch % attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT) == 0);
    CHECK(cuMemGetAddressRange(&base, &size, memory));
    EXPECT(base == memory && size >= pitch * 6 + 100);
    CHECK(cuMemsetD2D8(memory, pitch, 9, 100, 7));
    EXPECT(download<unsigned char>(memory + 6 * pitch, 100) == filled<unsigned char>(100, 9));
    REFUSED(cuMemAllocPitch(&memory, &pitch, 100, 7, 3), CUDA_ERROR_INVALID_VALUE); // elements of 4, 8, 16 bytes
    REFUSED(cuMemAllocPitch(&memory, &pitch, 0, 7, 4), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemAllocPitch(&memory, nullptr, 100, 7, 4), CUDA_ERROR_INVALID_VALUE);
}
