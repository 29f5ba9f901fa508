// Texture and surface references: variables of a module by which its kernels read and write what the program binds to them.
#include "kernels.h"

static const char *const REFERENCES = R"(
.version 6.4
.target sm_50
.address_size 64
.global .texref line;
.global .texref plane;
.global .surfref canvas;
// out[i] = the integer at i of a texture of linear memory: integer coordinates are for these only
.visible .entry fetch(.param .u64 out) {
    .reg .u64 %p<3>;
    .reg .u32 %r<6>;
    ld.param.u64 %p0, [out];
    cvta.to.global.u64 %p0, %p0;
    mov.u32 %r0, %tid.x;
    tex.1d.v4.u32.s32 {%r1, %r2, %r3, %r4}, [line, {%r0}];
    mul.wide.u32 %p1, %r0, 4;
    add.u64 %p2, %p0, %p1;
    st.global.u32 [%p2], %r1;
    ret;
}
// the same of an array
.visible .entry texel(.param .u64 out) {
    .reg .u64 %p<3>;
    .reg .u32 %r<6>;
    .reg .f32 %f0;
    ld.param.u64 %p0, [out];
    cvta.to.global.u64 %p0, %p0;
    mov.u32 %r0, %tid.x;
    cvt.rn.f32.u32 %f0, %r0;
    tex.1d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [line, {%f0}];
    mul.wide.u32 %p1, %r0, 4;
    add.u64 %p2, %p0, %p1;
    st.global.u32 [%p2], %r1;
    ret;
}
// out[i] = the number at (x, y) + (i, 0) of a texture of two dimensions, in the level of detail `lod`
.visible .entry sample(.param .u64 out, .param .f32 x, .param .f32 y, .param .f32 lod) {
    .reg .u64 %p<3>;
    .reg .u32 %r<2>;
    .reg .f32 %f<10>;
    ld.param.u64 %p0, [out];
    cvta.to.global.u64 %p0, %p0;
    ld.param.f32 %f0, [x];
    ld.param.f32 %f1, [y];
    ld.param.f32 %f2, [lod];
    mov.u32 %r0, %tid.x;
    cvt.rn.f32.u32 %f3, %r0;
    add.f32 %f0, %f0, %f3;
    tex.level.2d.v4.f32.f32 {%f4, %f5, %f6, %f7}, [plane, {%f0, %f1}], %f2;
    mul.wide.u32 %p1, %r0, 4;
    add.u64 %p2, %p0, %p1;
    st.global.f32 [%p2], %f4;
    ret;
}
// the word at i of a surface of one dimension = 3 * i
.visible .entry paint() {
    .reg .u32 %r<4>;
    mov.u32 %r0, %tid.x;
    mul.lo.u32 %r1, %r0, 3;
    shl.b32 %r2, %r0, 2;
    sust.b.1d.b32.trap [canvas, {%r2}], {%r1};
    ret;
}
)";

static CUtexref texture_of(CUmodule module, const char *name) {
    CUtexref reference = garbage<CUtexref>();
    CHECK(cuModuleGetTexRef(&reference, module, name));
    return reference;
}

static CUarray make_array(size_t width, size_t height, CUarray_format format, unsigned flags = 0) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {width, height, 0, format, 1, flags};
    CUarray array = garbage<CUarray>();
    CHECK(cuArray3DCreate(&array, &shape));
    return array;
}

static std::vector<unsigned> fetch(CUmodule module, unsigned count, const char *by = "fetch") {
    CUdeviceptr out = allocate(count * 4);
    void *arguments[] = {&out};
    CHECK(cuLaunchKernel(kernel(module, by), 1, 1, 1, count, 1, 1, 0, nullptr, arguments, nullptr));
    return download<unsigned>(out, count);
}

static std::vector<float> sample(CUmodule module, unsigned count, float x, float y, float lod = 0) {
    CUdeviceptr out = allocate(count * 4);
    void *arguments[] = {&out, &x, &y, &lod};
    CHECK(cuLaunchKernel(kernel(module, "sample"), 1, 1, 1, count, 1, 1, 0, nullptr, arguments, nullptr));
    return download<float>(out, count);
}

static void fill(CUarray array, const std::vector<float> &values, size_t width) {
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = values.data(), copy.srcPitch = width * 4;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY, copy.dstArray = array;
    copy.WidthInBytes = width * 4, copy.Height = values.size() / width;
    CHECK(cuMemcpy2D(&copy));
}

// `plane`, bound to four numbers a row: 0 1 2 3, then 4 5 6 7
static CUtexref bound_plane(CUmodule module) {
    CUtexref plane = texture_of(module, "plane");
    CUarray array = make_array(4, 2, CU_AD_FORMAT_FLOAT);
    fill(array, counting<float>(8), 4);
    CHECK(cuTexRefSetArray(plane, array, CU_TRSA_OVERRIDE_FORMAT));
    return plane;
}

CASE(array, "cuModuleGetTexRef", "cuTexRefSetArray", "cuTexRefGetArray") {
    CUmodule module = load(REFERENCES);
    CUtexref line = texture_of(module, "line");
    EXPECT(line == texture_of(module, "line") && line != texture_of(module, "plane"));
    CUarray one = make_array(32, 0, CU_AD_FORMAT_UNSIGNED_INT32), other = make_array(32, 0, CU_AD_FORMAT_UNSIGNED_INT32), told = garbage<CUarray>();
    CHECK(cuMemcpyHtoA(one, 0, counting<unsigned>(32, 70).data(), 128));
    CHECK(cuMemcpyHtoA(other, 0, counting<unsigned>(32, 9).data(), 128));
    REFUSED(cuTexRefGetArray(&told, line), CUDA_ERROR_INVALID_VALUE); // nothing is bound to it
    CHECK(cuTexRefSetArray(line, one, CU_TRSA_OVERRIDE_FORMAT));
    EXPECT(fetch(module, 32, "texel") == counting<unsigned>(32, 70));
    CHECK(cuTexRefSetArray(line, other, CU_TRSA_OVERRIDE_FORMAT));
    CHECK(cuTexRefGetArray(&told, line));
    EXPECT(told == other);
    EXPECT(fetch(module, 32, "texel") == counting<unsigned>(32, 9));
    CUtexref none = garbage<CUtexref>();
    CUmipmappedArray levels = garbage<CUmipmappedArray>();
    CUdeviceptr address = garbage<CUdeviceptr>();
    REFUSED(cuModuleGetTexRef(nullptr, module, "line"), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuModuleGetTexRef(&none, module, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuModuleGetTexRef(&none, module, "nothing"), CUDA_ERROR_NOT_FOUND);
    REFUSED(cuModuleGetTexRef(&none, module, "canvas"), CUDA_ERROR_NOT_FOUND); // a surface is no texture
    REFUSED(cuModuleGetTexRef(&none, module, "fetch"), CUDA_ERROR_NOT_FOUND);
    REFUSED(cuTexRefSetArray(line, other, 2), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetArray(nullptr, other, CU_TRSA_OVERRIDE_FORMAT), CUDA_ERROR_INVALID_HANDLE);
    UNCHECKED_BY_THE_DRIVER(cuTexRefGetArray(nullptr, line), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefGetArray(&told, nullptr), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuTexRefGetMipmappedArray(&levels, line), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefGetAddress(&address, line), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuModuleUnload(module));
    GONE(cuTexRefGetArray(&told, line));
}

CASE(linear, "cuTexRefSetFormat", "cuTexRefGetFormat", "cuTexRefSetAddress", "cuTexRefGetAddress") {
    CUmodule module = load(REFERENCES);
    CUtexref line = texture_of(module, "line");
    CUdeviceptr memory = upload(counting<unsigned short>(2048)), told = garbage<CUdeviceptr>();
    CUarray_format format = garbage<CUarray_format>();
    int channels = garbage<int>();
    size_t offset = garbage<size_t>();
    CHECK(cuTexRefSetFlags(line, CU_TRSF_READ_AS_INTEGER));
    CHECK(cuTexRefSetFormat(line, CU_AD_FORMAT_UNSIGNED_INT16, 1));
    CHECK(cuTexRefSetAddress(&offset, line, memory, 64));
    EXPECT(offset == 0);
    CHECK(cuTexRefGetFormat(&format, &channels, line));
    EXPECT(format == CU_AD_FORMAT_UNSIGNED_INT16 && channels == 1);
    CHECK(cuTexRefGetAddress(&told, line));
    EXPECT(told == memory);
    std::vector<unsigned> wanted = counting<unsigned>(40);
    for (unsigned i = 32; i < 40; i++) wanted[i] = 0; // outside of linear memory
    EXPECT(fetch(module, 40) == wanted);
    // An address that is not aligned: the offset says from where to read.
    CHECK(cuTexRefSetAddress(&offset, line, memory + 6, 64));
    EXPECT(offset == (memory + 6) % static_cast<size_t>(attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT)));
    EXPECT(fetch(module, 32)[offset / 2] == 3);
    CHECK(cuTexRefGetFormat(nullptr, &channels, line));
    CHECK(cuTexRefGetFormat(&format, nullptr, line));
    REFUSED(cuTexRefSetFormat(line, CU_AD_FORMAT_UNSIGNED_INT8, 3), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetFormat(nullptr, CU_AD_FORMAT_UNSIGNED_INT8, 1), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuTexRefGetFormat(&format, &channels, nullptr), CUDA_ERROR_INVALID_HANDLE);
    UNCHECKED_BY_THE_DRIVER(cuTexRefSetAddress(&offset, line, 0, 64), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetAddress(nullptr, line, memory + 6, 64), CUDA_ERROR_INVALID_VALUE); // the offset would be lost
    REFUSED(cuTexRefSetAddress(&offset, nullptr, memory, 64), CUDA_ERROR_INVALID_HANDLE);
    UNCHECKED_BY_THE_DRIVER(cuTexRefGetAddress(nullptr, line), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuTexRefSetAddress(nullptr, line, memory, 64));
    REFUSED(cuTexRefSetAddress(&offset, line, memory, size_t{2} << 40), CUDA_ERROR_INVALID_VALUE); // more elements than a texture may have
}

CASE(rows, "cuTexRefSetAddress2D") {
    CUmodule module = load(REFERENCES);
    CUtexref plane = texture_of(module, "plane");
    size_t pitch = static_cast<size_t>(attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT)) * 4;
    CUdeviceptr memory = upload(counting<float>(pitch)), told = garbage<CUdeviceptr>();
    CUDA_ARRAY_DESCRIPTOR shape = {6, 4, CU_AD_FORMAT_FLOAT, 1}, wrong = shape;
    CHECK(cuTexRefSetAddress2D(plane, &shape, memory, pitch));
    float row = static_cast<float>(pitch / 4);
    EXPECT(sample(module, 5, 1.5f, 2.5f) == counting<float>(5, 2 * row + 1));
    CHECK(cuTexRefGetAddress(&told, plane));
    EXPECT(told == memory);
    REFUSED(cuTexRefSetAddress2D(plane, nullptr, memory, pitch), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetAddress2D(nullptr, &shape, memory, pitch), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuTexRefSetAddress2D(plane, &shape, memory + 4, pitch), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetAddress2D(plane, &shape, memory, pitch + 4), CUDA_ERROR_INVALID_VALUE);
    wrong.NumChannels = 3;
    UNCHECKED_BY_THE_DRIVER(cuTexRefSetAddress2D(plane, &wrong, memory, pitch), CUDA_ERROR_INVALID_VALUE);
    wrong = shape, wrong.Width = static_cast<size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH)) + 1;
    REFUSED(cuTexRefSetAddress2D(plane, &wrong, memory, pitch), CUDA_ERROR_INVALID_VALUE);
}

CASE(modes, "cuTexRefSetAddressMode", "cuTexRefGetAddressMode", "cuTexRefSetBorderColor", "cuTexRefGetBorderColor", "cuTexRefSetFlags",
     "cuTexRefGetFlags") {
    CUmodule module = load(REFERENCES);
    CUtexref plane = bound_plane(module);
    CUaddress_mode mode = garbage<CUaddress_mode>();
    unsigned flags = garbage<unsigned>();
    float border[4] = {60, 61, 62, 63}, told[4] = {-1, -1, -1, -1};
    CHECK(cuTexRefSetAddressMode(plane, 0, CU_TR_ADDRESS_MODE_CLAMP));
    CHECK(cuTexRefSetAddressMode(plane, 1, CU_TR_ADDRESS_MODE_CLAMP));
    EXPECT((sample(module, 6, 0.5f, 0.5f) == std::vector<float>{0, 1, 2, 3, 3, 3}));
    CHECK(cuTexRefSetAddressMode(plane, 0, CU_TR_ADDRESS_MODE_BORDER));
    CHECK(cuTexRefSetBorderColor(plane, border));
    EXPECT((sample(module, 6, 0.5f, 0.5f) == std::vector<float>{0, 1, 2, 3, 60, 60}));
    CHECK(cuTexRefGetAddressMode(&mode, plane, 0));
    EXPECT(mode == CU_TR_ADDRESS_MODE_BORDER);
    CHECK(cuTexRefGetAddressMode(&mode, plane, 1));
    EXPECT(mode == CU_TR_ADDRESS_MODE_CLAMP);
    CHECK(cuTexRefGetBorderColor(told, plane));
    EXPECT(told[0] == 60 && told[3] == 63);
    CHECK(cuTexRefSetAddressMode(plane, 0, CU_TR_ADDRESS_MODE_WRAP));
    CHECK(cuTexRefSetFlags(plane, CU_TRSF_NORMALIZED_COORDINATES));
    EXPECT((sample(module, 3, 0.625f, 0.75f) == std::vector<float>{6, 6, 6})); // whole turns
    CHECK(cuTexRefGetFlags(&flags, plane));
    EXPECT(flags == CU_TRSF_NORMALIZED_COORDINATES);
    REFUSED(cuTexRefSetAddressMode(plane, 3, CU_TR_ADDRESS_MODE_CLAMP), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetAddressMode(plane, -1, CU_TR_ADDRESS_MODE_CLAMP), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetAddressMode(nullptr, 0, CU_TR_ADDRESS_MODE_CLAMP), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuTexRefGetAddressMode(nullptr, plane, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefGetAddressMode(&mode, plane, 3), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetBorderColor(plane, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetBorderColor(nullptr, border), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuTexRefGetBorderColor(nullptr, plane), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetFlags(plane, 0x1000), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetFlags(nullptr, 0), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuTexRefGetFlags(nullptr, plane), CUDA_ERROR_INVALID_VALUE);
}

CASE(filter, "cuTexRefSetFilterMode", "cuTexRefGetFilterMode") {
    CUmodule module = load(REFERENCES);
    CUtexref plane = bound_plane(module);
    CUfilter_mode mode = garbage<CUfilter_mode>();
    CHECK(cuTexRefSetFilterMode(plane, CU_TR_FILTER_MODE_LINEAR));
    EXPECT((sample(module, 2, 1, 1) == std::vector<float>{2.5f, 3.5f})); // between four texels
    CHECK(cuTexRefGetFilterMode(&mode, plane));
    EXPECT(mode == CU_TR_FILTER_MODE_LINEAR);
    CHECK(cuTexRefSetFilterMode(plane, CU_TR_FILTER_MODE_POINT));
    EXPECT((sample(module, 2, 1.25f, 1.25f) == std::vector<float>{5, 6}));
    REFUSED(cuTexRefSetFilterMode(nullptr, CU_TR_FILTER_MODE_POINT), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuTexRefGetFilterMode(nullptr, plane), CUDA_ERROR_INVALID_VALUE);
}

CASE(levels, "cuTexRefSetMipmappedArray", "cuTexRefGetMipmappedArray", "cuTexRefSetMipmapFilterMode", "cuTexRefGetMipmapFilterMode",
     "cuTexRefSetMipmapLevelBias", "cuTexRefGetMipmapLevelBias", "cuTexRefSetMipmapLevelClamp", "cuTexRefGetMipmapLevelClamp") {
    CUmodule module = load(REFERENCES);
    CUtexref plane = texture_of(module, "plane");
    CUDA_ARRAY3D_DESCRIPTOR shape = {4, 4, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmipmappedArray levels = garbage<CUmipmappedArray>(), told = garbage<CUmipmappedArray>();
    CHECK(cuMipmappedArrayCreate(&levels, &shape, 2));
    for (unsigned level = 0; level < 2; level++) {
        CUarray array = garbage<CUarray>();
        CHECK(cuMipmappedArrayGetLevel(&array, levels, level));
        fill(array, filled<float>(level ? 4 : 16, level ? 20 : 10), level ? 2 : 4);
    }
    CHECK(cuTexRefSetFlags(plane, CU_TRSF_NORMALIZED_COORDINATES));
    CHECK(cuTexRefSetMipmappedArray(plane, levels, CU_TRSA_OVERRIDE_FORMAT));
    CHECK(cuTexRefGetMipmappedArray(&told, plane));
    EXPECT(told == levels);
    CHECK(cuTexRefSetMipmapLevelClamp(plane, 0, 1));
    EXPECT(sample(module, 1, 0.5f, 0.5f, 0)[0] == 10 && sample(module, 1, 0.5f, 0.5f, 1)[0] == 20);
    CHECK(cuTexRefSetMipmapFilterMode(plane, CU_TR_FILTER_MODE_LINEAR));
    EXPECT(sample(module, 1, 0.5f, 0.5f, 0.5f)[0] == 15);
    CHECK(cuTexRefSetMipmapLevelBias(plane, 0.25f));
    EXPECT(sample(module, 1, 0.5f, 0.5f, 0.5f)[0] == 17.5f);
    CHECK(cuTexRefSetMipmapLevelClamp(plane, 0, 0.5f));
    EXPECT(sample(module, 1, 0.5f, 0.5f, 0.5f)[0] == 15);
    CUfilter_mode filter = garbage<CUfilter_mode>();
    float bias = garbage<float>(), least = garbage<float>(), most = garbage<float>();
    CHECK(cuTexRefGetMipmapFilterMode(&filter, plane));
    CHECK(cuTexRefGetMipmapLevelBias(&bias, plane));
    CHECK(cuTexRefGetMipmapLevelClamp(&least, &most, plane));
    EXPECT(filter == CU_TR_FILTER_MODE_LINEAR && bias == 0.25f && least == 0 && most == 0.5f);
    REFUSED(cuTexRefSetMipmappedArray(plane, levels, 2), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetMipmappedArray(nullptr, levels, CU_TRSA_OVERRIDE_FORMAT), CUDA_ERROR_INVALID_HANDLE);
    UNCHECKED_BY_THE_DRIVER(cuTexRefGetMipmappedArray(nullptr, plane), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetMipmapFilterMode(nullptr, CU_TR_FILTER_MODE_LINEAR), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuTexRefGetMipmapFilterMode(nullptr, plane), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetMipmapLevelBias(nullptr, 0), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuTexRefGetMipmapLevelBias(nullptr, plane), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefSetMipmapLevelClamp(nullptr, 0, 1), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuTexRefGetMipmapLevelClamp(&least, nullptr, plane), CUDA_ERROR_INVALID_VALUE);
    CUarray array = garbage<CUarray>();
    REFUSED(cuTexRefGetArray(&array, plane), CUDA_ERROR_INVALID_VALUE);
}

CASE(anisotropy, "cuTexRefSetMaxAnisotropy", "cuTexRefGetMaxAnisotropy") {
    CUtexref plane = texture_of(load(REFERENCES), "plane");
    int told = garbage<int>();
    CHECK(cuTexRefSetMaxAnisotropy(plane, 8));
    CHECK(cuTexRefGetMaxAnisotropy(&told, plane));
    EXPECT(told == 8);
    REFUSED(cuTexRefSetMaxAnisotropy(nullptr, 8), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuTexRefGetMaxAnisotropy(nullptr, plane), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefGetMaxAnisotropy(&told, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

// One of no module: it keeps what is set, and no kernel reads by it.
CASE(created, "cuTexRefCreate", "cuTexRefDestroy") {
    CUtexref one = garbage<CUtexref>(), other = garbage<CUtexref>();
    int told = garbage<int>();
    CHECK(cuTexRefCreate(&one));
    CHECK(cuTexRefCreate(&other));
    CHECK(cuTexRefSetMaxAnisotropy(one, 4));
    CHECK(cuTexRefSetMaxAnisotropy(other, 2));
    CHECK(cuTexRefGetMaxAnisotropy(&told, one));
    EXPECT(one != other && told == 4);
    REFUSED(cuTexRefCreate(nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuTexRefDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuTexRefDestroy(one));
    GONE(cuTexRefGetMaxAnisotropy(&told, one));
}

HINT_CASE(parameter, "cuParamSetTexRef") {
    CUmodule module = load(REFERENCES);
    CUtexref line = texture_of(module, "line"), strange = garbage<CUtexref>();
    CUarray array = make_array(32, 0, CU_AD_FORMAT_UNSIGNED_INT32);
    CHECK(cuTexRefSetArray(line, array, CU_TRSA_OVERRIDE_FORMAT));
    CHECK(cuParamSetTexRef(kernel(module, "fetch"), CU_PARAM_TR_DEFAULT, line));
    CHECK(cuParamSetTexRef(kernel(module, "fetch"), 0, line)); // the unit is not looked at
    REFUSED(cuParamSetTexRef(nullptr, CU_PARAM_TR_DEFAULT, line), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuParamSetTexRef(kernel(module, "fetch"), CU_PARAM_TR_DEFAULT, nullptr), CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuTexRefCreate(&strange)); // it has to come from cuModuleGetTexRef
    REFUSED(cuParamSetTexRef(kernel(module, "fetch"), CU_PARAM_TR_DEFAULT, strange), CUDA_ERROR_INVALID_VALUE);
}

CASE(surface, "cuModuleGetSurfRef", "cuSurfRefSetArray", "cuSurfRefGetArray") {
    CUmodule module = load(REFERENCES);
    CUarray array = make_array(32, 0, CU_AD_FORMAT_UNSIGNED_INT32, CUDA_ARRAY3D_SURFACE_LDST), told = garbage<CUarray>();
    CUsurfref canvas = garbage<CUsurfref>(), none = garbage<CUsurfref>();
    CHECK(cuModuleGetSurfRef(&canvas, module, "canvas"));
    CHECK(cuSurfRefSetArray(canvas, array, 0));
    CHECK(cuLaunchKernel(kernel(module, "paint"), 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
    std::vector<unsigned> found(32, garbage<unsigned>());
    CHECK(cuMemcpyAtoH(found.data(), array, 0, 128));
    for (unsigned i = 0; i < 32; i++) EXPECT(found[i] == 3 * i);
    CHECK(cuSurfRefGetArray(&told, canvas));
    EXPECT(told == array);
    REFUSED(cuModuleGetSurfRef(nullptr, module, "canvas"), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuModuleGetSurfRef(&none, module, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuModuleGetSurfRef(&none, module, "line"), CUDA_ERROR_NOT_FOUND);
    REFUSED(cuSurfRefSetArray(canvas, array, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuSurfRefSetArray(canvas, make_array(32, 0, CU_AD_FORMAT_UNSIGNED_INT32), 0), CUDA_ERROR_INVALID_VALUE); // not made for surfaces
    REFUSED(cuSurfRefSetArray(nullptr, array, 0), CUDA_ERROR_INVALID_HANDLE);
    UNCHECKED_BY_THE_DRIVER(cuSurfRefGetArray(nullptr, canvas), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuModuleUnload(module));
    GONE(cuSurfRefGetArray(&told, canvas));
}

// A kernel that is under way goes on with what was bound when it was launched.
CASE(rebound, "cuTexRefSetArray") {
    CUmodule module = load(REFERENCES);
    CUtexref line = texture_of(module, "line");
    CUfunction function = kernel(module, "texel");
    const unsigned n = 12;
    CUdeviceptr out = allocate(n * 128);
    CUstream streams[3] = {make_stream(), make_stream(), make_stream()};
    CUarray arrays[n];
    for (unsigned i = 0; i < n; i++) {
        arrays[i] = make_array(32, 0, CU_AD_FORMAT_UNSIGNED_INT32);
        CHECK(cuMemcpyHtoA(arrays[i], 0, counting<unsigned>(32, 100 * i).data(), 128));
    }
    CHECK(cuCtxSynchronize()); // the streams do not wait for the legacy one
    for (unsigned i = 0; i < n; i++) {
        CHECK(cuTexRefSetArray(line, arrays[i], CU_TRSA_OVERRIDE_FORMAT));
        CUdeviceptr to = out + i * 128;
        void *arguments[] = {&to};
        CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, streams[i % 3], arguments, nullptr));
    }
    CHECK(cuCtxSynchronize());
    for (unsigned i = 0; i < n; i++) EXPECT(download<unsigned>(out + i * 128, 32) == counting<unsigned>(32, 100 * i));
}
