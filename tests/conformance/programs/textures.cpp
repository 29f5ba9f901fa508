// Texture and surface objects: what a kernel reads and writes by them, and what is told of them.
#include "kernels.h"

static const char *const SAMPLERS = R"(
.version 6.4
.target sm_50
.address_size 64
// out[i] = the word at i of a texture of one dimension
.visible .entry fetch(.param .u64 out, .param .u64 texture) {
    .reg .u64 %p<4>;
    .reg .u32 %r<6>;
    .reg .f32 %f0;
    ld.param.u64 %p0, [out];
    ld.param.u64 %p1, [texture];
    cvta.to.global.u64 %p0, %p0;
    mov.u32 %r0, %tid.x;
    cvt.rn.f32.u32 %f0, %r0;
    tex.1d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%p1, {%f0}];
    mul.wide.u32 %p2, %r0, 4;
    add.u64 %p3, %p0, %p2;
    st.global.u32 [%p3], %r1;
    ret;
}
// the word at i of a surface of one dimension = 3 * i
.visible .entry paint(.param .u64 surface) {
    .reg .u64 %p<2>;
    .reg .u32 %r<4>;
    ld.param.u64 %p0, [surface];
    mov.u32 %r0, %tid.x;
    mul.lo.u32 %r1, %r0, 3;
    shl.b32 %r2, %r0, 2;
    sust.b.1d.b32.trap [%p0, {%r2}], {%r1};
    ret;
}
)";

static CUarray words(size_t count, unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {count, 0, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, flags};
    CUarray array = garbage<CUarray>();
    CHECK(cuArray3DCreate(&array, &shape));
    return array;
}

static CUDA_RESOURCE_DESC resource_of(CUarray array) {
    CUDA_RESOURCE_DESC resource = {};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    return resource;
}

CASE(texture, "cuTexObjectCreate", "cuTexObjectGetResourceDesc", "cuTexObjectGetTextureDesc", "cuTexObjectDestroy") {
    CUarray array = words(32, 0);
    CHECK(cuMemcpyHtoA(array, 0, counting<unsigned>(32, 70).data(), 128));
    CUDA_RESOURCE_DESC resource = resource_of(array), told_resource = garbage<CUDA_RESOURCE_DESC>();
    CUDA_TEXTURE_DESC sampling = {}, told_sampling = garbage<CUDA_TEXTURE_DESC>();
    sampling.addressMode[0] = sampling.addressMode[1] = sampling.addressMode[2] = CU_TR_ADDRESS_MODE_CLAMP;
    sampling.filterMode = CU_TR_FILTER_MODE_POINT;
    sampling.flags = CU_TRSF_READ_AS_INTEGER;
    CUtexObject texture = garbage<CUtexObject>();
    CHECK(cuTexObjectCreate(&texture, &resource, &sampling, nullptr));
    CUdeviceptr out = allocate(128);
    void *arguments[] = {&out, &texture};
    CHECK(cuLaunchKernel(kernel(load(SAMPLERS), "fetch"), 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
    EXPECT(download<unsigned>(out, 32) == counting<unsigned>(32, 70));
    CHECK(cuTexObjectGetResourceDesc(&told_resource, texture));
    EXPECT(told_resource.resType == CU_RESOURCE_TYPE_ARRAY && told_resource.res.array.hArray == array);
    CHECK(cuTexObjectGetTextureDesc(&told_sampling, texture));
    EXPECT(told_sampling.filterMode == CU_TR_FILTER_MODE_POINT && told_sampling.addressMode[0] == CU_TR_ADDRESS_MODE_CLAMP);
    EXPECT(told_sampling.flags & CU_TRSF_READ_AS_INTEGER);
    UNCHECKED_BY_THE_DRIVER(cuTexObjectGetResourceDesc(nullptr, texture), CUDA_ERROR_INVALID_VALUE);
    UNCHECKED_BY_THE_DRIVER(cuTexObjectGetTextureDesc(nullptr, texture), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuTexObjectDestroy(texture));
    REFUSED(cuTexObjectCreate(nullptr, &resource, &sampling, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexObjectCreate(&texture, nullptr, &sampling, nullptr), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuTexObjectDestroy(0)); // what is none is not looked for
    GONE(cuTexObjectGetResourceDesc(&told_resource, texture));
}

CASE(view, "cuTexObjectGetResourceViewDesc") {
    CUDA_RESOURCE_DESC resource = resource_of(words(32, 0));
    CUDA_TEXTURE_DESC sampling = {};
    sampling.flags = CU_TRSF_READ_AS_INTEGER;
    CUDA_RESOURCE_VIEW_DESC view = {}, told = garbage<CUDA_RESOURCE_VIEW_DESC>();
    view.format = CU_RES_VIEW_FORMAT_UINT_1X32, view.width = 32;
    CUtexObject texture = garbage<CUtexObject>(), plain = garbage<CUtexObject>();
    CHECK(cuTexObjectCreate(&texture, &resource, &sampling, &view));
    CHECK(cuTexObjectGetResourceViewDesc(&told, texture));
    EXPECT(told.format == CU_RES_VIEW_FORMAT_UINT_1X32 && told.width == 32);
    CHECK(cuTexObjectCreate(&plain, &resource, &sampling, nullptr));
    CHECK(cuTexObjectGetResourceViewDesc(&told, plain));
    EXPECT_NUMBER(told.format, CU_RES_VIEW_FORMAT_UINT_1X32); // it has none: that of the array
    UNCHECKED_BY_THE_DRIVER(cuTexObjectGetResourceViewDesc(nullptr, texture), CUDA_ERROR_INVALID_VALUE);
}

CASE(surface, "cuSurfObjectCreate", "cuSurfObjectGetResourceDesc", "cuSurfObjectDestroy") {
    CUarray array = words(32, CUDA_ARRAY3D_SURFACE_LDST);
    CUDA_RESOURCE_DESC resource = resource_of(array), told = garbage<CUDA_RESOURCE_DESC>();
    CUsurfObject surface = garbage<CUsurfObject>();
    CHECK(cuSurfObjectCreate(&surface, &resource));
    void *arguments[] = {&surface};
    CHECK(cuLaunchKernel(kernel(load(SAMPLERS), "paint"), 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
    std::vector<unsigned> found(32, garbage<unsigned>());
    CHECK(cuMemcpyAtoH(found.data(), array, 0, 128));
    for (unsigned i = 0; i < 32; i++) EXPECT(found[i] == 3 * i);
    CHECK(cuSurfObjectGetResourceDesc(&told, surface));
    EXPECT(told.resType == CU_RESOURCE_TYPE_ARRAY && told.res.array.hArray == array);
    UNCHECKED_BY_THE_DRIVER(cuSurfObjectGetResourceDesc(nullptr, surface), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuSurfObjectDestroy(surface));
    UNCHECKED_BY_THE_DRIVER(cuSurfObjectCreate(nullptr, &resource), CUDA_ERROR_INVALID_VALUE);
    CUDA_RESOURCE_DESC linear = {};
    linear.resType = CU_RESOURCE_TYPE_LINEAR; // surfaces are of arrays
    REFUSED(cuSurfObjectCreate(&surface, &linear), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuSurfObjectDestroy(0));
    GONE(cuSurfObjectGetResourceDesc(&told, surface));
}
