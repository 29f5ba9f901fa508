// Arrays: their shapes, and the copies that reach them.
#include "conformance.h"

using Bytes = std::vector<unsigned char>;

// A row of 256 bytes.
static CUarray row(size_t width = 256) {
    CUDA_ARRAY_DESCRIPTOR shape = {width, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    CUarray array = garbage<CUarray>();
    CHECK(cuArrayCreate(&array, &shape));
    return array;
}

static Bytes read(CUarray array, size_t offset, size_t bytes) {
    Bytes found(bytes, 0xa5);
    CHECK(cuMemcpyAtoH(found.data(), array, offset, bytes));
    return found;
}

static CUarray row_of(const Bytes &values) {
    CUarray array = row(values.size());
    CHECK(cuMemcpyHtoA(array, 0, values.data(), values.size()));
    return array;
}

CASE(create_and_destroy, "cuArrayCreate", "cuArrayGetDescriptor", "cuArrayDestroy") {
    CUDA_ARRAY_DESCRIPTOR wanted = {30, 20, CU_AD_FORMAT_FLOAT, 4}, told = garbage<CUDA_ARRAY_DESCRIPTOR>();
    CUarray array = garbage<CUarray>();
    CHECK(cuArrayCreate(&array, &wanted));
    CHECK(cuArrayGetDescriptor(&told, array));
    EXPECT(told.Width == 30 && told.Height == 20 && told.Format == CU_AD_FORMAT_FLOAT && told.NumChannels == 4);
    CHECK(cuArrayDestroy(array));
    REFUSED(cuArrayDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuArrayCreate(nullptr, &wanted), CUDA_ERROR_INVALID_VALUE);
    wanted.NumChannels = 3; // 1, 2 or 4
    REFUSED(cuArrayCreate(&array, &wanted), CUDA_ERROR_INVALID_VALUE);
    wanted = {0, 20, CU_AD_FORMAT_FLOAT, 4};
    REFUSED(cuArrayCreate(&array, &wanted), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuArrayGetDescriptor(nullptr, row()), CUDA_ERROR_INVALID_VALUE);
    GONE(cuArrayGetDescriptor(&told, array));
}

CASE(create_3d, "cuArray3DCreate", "cuArray3DGetDescriptor") {
    CUDA_ARRAY3D_DESCRIPTOR wanted = {8, 6, 4, CU_AD_FORMAT_UNSIGNED_INT16, 2, CUDA_ARRAY3D_SURFACE_LDST}, told = garbage<CUDA_ARRAY3D_DESCRIPTOR>();
    CUarray array = garbage<CUarray>();
    CHECK(cuArray3DCreate(&array, &wanted));
    CHECK(cuArray3DGetDescriptor(&told, array));
    EXPECT(told.Width == 8 && told.Height == 6 && told.Depth == 4 && told.Format == CU_AD_FORMAT_UNSIGNED_INT16 && told.NumChannels == 2);
    EXPECT(told.Flags == CUDA_ARRAY3D_SURFACE_LDST);
    // It holds a box, each layer in its place.
    Bytes box = counting<unsigned char>(8 * 6 * 4 * 4), back(box.size(), 0xa5);
    CUDA_MEMCPY3D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = box.data(), copy.srcPitch = 32, copy.srcHeight = 6;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY, copy.dstArray = array;
    copy.WidthInBytes = 32, copy.Height = 6, copy.Depth = 4;
    CHECK(cuMemcpy3D(&copy));
    CUDA_MEMCPY3D out = {};
    out.srcMemoryType = CU_MEMORYTYPE_ARRAY, out.srcArray = array;
    out.dstMemoryType = CU_MEMORYTYPE_HOST, out.dstHost = back.data(), out.dstPitch = 32, out.dstHeight = 6;
    out.WidthInBytes = 32, out.Height = 6, out.Depth = 4;
    CHECK(cuMemcpy3D(&out));
    EXPECT(back == box);
    REFUSED(cuArray3DGetDescriptor(nullptr, array), CUDA_ERROR_INVALID_VALUE);
    wanted.NumChannels = 3;
    REFUSED(cuArray3DCreate(&array, &wanted), CUDA_ERROR_INVALID_VALUE);
}

CASE(host_and_array, "cuMemcpyHtoA", "cuMemcpyAtoH") {
    Bytes source = counting<unsigned char>(256), back(202, 0xa5);
    CUarray array = row();
    CHECK(cuMemcpyHtoA(array, 0, filled<unsigned char>(256, 0xee).data(), 256));
    CHECK(cuMemcpyHtoA(array, 50, source.data(), 100));
    CHECK(cuMemcpyAtoH(back.data() + 1, array, 40, 200));
    EXPECT(back[0] == 0xa5 && back[1] == 0xee && back[11] == 0 && back[110] == 99 && back[111] == 0xee && back[200] == 0xee && back[201] == 0xa5);
    REFUSED(cuMemcpyHtoA(array, 200, source.data(), 100), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpyAtoH(back.data(), array, 200, 100), CUDA_ERROR_INVALID_VALUE);
}

CASE(host_and_array_in_a_stream, "cuMemcpyHtoAAsync", "cuMemcpyAtoHAsync") {
    CUstream stream = make_stream();
    void *source = garbage<void *>(), *back = garbage<void *>();
    CHECK(cuMemAllocHost(&source, 256));
    CHECK(cuMemAllocHost(&back, 256));
    std::memset(source, 0x21, 256);
    std::memset(back, 0x5a, 256);
    CUarray array = row_of(filled<unsigned char>(256, 0xee));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyHtoAAsync(array, 10, source, 100, stream));
    CHECK(cuMemcpyAtoHAsync(back, array, 0, 256, stream));
    CHECK(cuStreamSynchronize(stream));
    Bytes expected(256, 0xee);
    std::fill(expected.begin() + 10, expected.begin() + 110, 0x21);
    EXPECT(std::memcmp(back, expected.data(), 256) == 0 && read(array, 0, 256) == expected);
    REFUSED(cuMemcpyHtoAAsync(array, 200, source, 100, stream), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpyAtoHAsync(back, array, 200, 100, stream), CUDA_ERROR_INVALID_VALUE);
}

CASE(device_and_array, "cuMemcpyDtoA", "cuMemcpyAtoD") {
    CUdeviceptr source = upload(counting<unsigned char>(256)), back = upload(filled<unsigned char>(256, 0xcc));
    CUarray array = row_of(filled<unsigned char>(256, 0xee));
    CHECK(cuMemcpyDtoA(array, 20, source, 100));
    CHECK(cuMemcpyAtoD(back + 5, array, 10, 200));
    CHECK(cuCtxSynchronize());
    Bytes found = download<unsigned char>(back, 256);
    EXPECT(found[4] == 0xcc && found[5] == 0xee && found[15] == 0 && found[114] == 99 && found[115] == 0xee && found[205] == 0xcc);
    REFUSED(cuMemcpyDtoA(array, 200, source, 100), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpyAtoD(back, array, 200, 100), CUDA_ERROR_INVALID_VALUE);
}

CASE(array_to_array, "cuMemcpyAtoA") {
    CUarray source = row_of(counting<unsigned char>(256)), destination = row_of(filled<unsigned char>(256, 0xee));
    CHECK(cuMemcpyAtoA(destination, 10, source, 20, 50));
    CHECK(cuCtxSynchronize());
    Bytes found = read(destination, 0, 256);
    EXPECT(found[9] == 0xee && found[10] == 20 && found[59] == 69 && found[60] == 0xee);
    REFUSED(cuMemcpyAtoA(destination, 200, source, 0, 100), CUDA_ERROR_INVALID_VALUE);
}

CASE(mipmapped, "cuMipmappedArrayCreate", "cuMipmappedArrayGetLevel", "cuMipmappedArrayDestroy") {
    CUDA_ARRAY3D_DESCRIPTOR shape = {64, 32, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    CUmipmappedArray levels = garbage<CUmipmappedArray>();
    CHECK(cuMipmappedArrayCreate(&levels, &shape, 3));
    CUarray level = garbage<CUarray>();
    CUDA_ARRAY_DESCRIPTOR told = garbage<CUDA_ARRAY_DESCRIPTOR>();
    CHECK(cuMipmappedArrayGetLevel(&level, levels, 2));
    CHECK(cuArrayGetDescriptor(&told, level));
    EXPECT(told.Width == 16 && told.Height == 8);
    REFUSED(cuMipmappedArrayGetLevel(&level, levels, 3), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMipmappedArrayDestroy(levels));
    REFUSED(cuMipmappedArrayDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuMipmappedArrayCreate(nullptr, &shape, 3), CUDA_ERROR_INVALID_VALUE);
    GONE(cuMipmappedArrayGetLevel(&level, levels, 0));
}

// What only sparse arrays, and arrays of several planes, have: others are refused.
HINT_CASE(neither_sparse_nor_planar, "cuArrayGetPlane", "cuArrayGetSparseProperties", "cuMipmappedArrayGetSparseProperties",
          "cuArrayGetMemoryRequirements", "cuMipmappedArrayGetMemoryRequirements") {
    CUDA_ARRAY3D_DESCRIPTOR shape = {64, 32, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    CUmipmappedArray levels = garbage<CUmipmappedArray>();
    CHECK(cuMipmappedArrayCreate(&levels, &shape, 3));
    CUarray array = row(), plane = garbage<CUarray>();
    CUDA_ARRAY_SPARSE_PROPERTIES sparse;
    CUDA_ARRAY_MEMORY_REQUIREMENTS memory;
    REFUSED(cuArrayGetPlane(&plane, array, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuArrayGetSparseProperties(&sparse, array), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMipmappedArrayGetSparseProperties(&sparse, levels), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuArrayGetMemoryRequirements(&memory, array, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMipmappedArrayGetMemoryRequirements(&memory, levels, device), CUDA_ERROR_INVALID_VALUE);
}
