// Arrays of all shapes, mipmapped arrays, textures and surfaces of them; copies from and to host memory, device memory and arrays, and batches of them; launches by
// offset, as they were before CUDA 4; and what must be refused. Prints
// "right". With an argument, a kernel that must fault: prints the name of the error.
#include "check.h"

#include <algorithm>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>
#include <string>
#include <vector>

// The driver's functions by the names of their newest versions (cuda.h defines these).
template <typename F> static F *find(const char *name) {
    static void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    F *f = driver ? (F *)dlsym(driver, name) : nullptr;
    EXPECT(f);
    return f;
}
#define NAME_OF(symbol) #symbol
#define NAMED(symbol) NAME_OF(symbol)
#define THE(symbol) find<decltype(symbol)>(NAMED(symbol))

typedef std::vector<float> Floats;
static const cudaError_t INVALID = cudaErrorInvalidValue;

static Floats numbers(size_t n, float from = 0) {
    Floats v(n);
    for (size_t i = 0; i < n; i++) v[i] = from + (float)i;
    return v;
}

static bool refused(cudaError_t error, cudaError_t as) {
    cudaGetLastError();
    if (error != as) std::printf("%s instead of %s\n", cudaGetErrorName(error), cudaGetErrorName(as));
    return error == as;
}

static size_t left() {
    size_t free, total;
    CHECK(cudaMemGetInfo(&free, &total));
    return free;
}

static cudaTextureDesc how(bool linear = false, bool normalized = false, cudaTextureAddressMode mode = cudaAddressModeClamp) {
    cudaTextureDesc d;
    std::memset(&d, 0, sizeof d);
    for (auto &m : d.addressMode) m = mode;
    d.filterMode = linear ? cudaFilterModeLinear : cudaFilterModePoint;
    d.normalizedCoords = normalized;
    return d;
}

static cudaResourceDesc of(cudaArray_t array) {
    cudaResourceDesc r;
    std::memset(&r, 0, sizeof r);
    r.resType = cudaResourceTypeArray;
    r.res.array.array = array;
    return r;
}

static cudaTextureObject_t texture(const cudaResourceDesc &r, const cudaTextureDesc &d) {
    cudaTextureObject_t t;
    CHECK(cudaCreateTextureObject(&t, &r, &d, nullptr));
    return t;
}

static cudaArray_t array(size_t w, size_t h, size_t d, unsigned flags = 0) {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t a;
    CHECK(cudaMalloc3DArray(&a, &format, make_cudaExtent(w, h, d), flags));
    return a;
}

static void copy(cudaArray_t to, const void *from, size_t w, size_t h, size_t d, cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t stream = nullptr) {
    cudaMemcpy3DParms p = {};
    p.srcPtr = make_cudaPitchedPtr(const_cast<void *>(from), w * 4, w, std::max<size_t>(h, 1));
    p.dstArray = to;
    p.extent = make_cudaExtent(w, std::max<size_t>(h, 1), std::max<size_t>(d, 1));
    p.kind = kind;
    CHECK(stream ? cudaMemcpy3DAsync(&p, stream) : cudaMemcpy3D(&p));
}

static Floats content(cudaArray_t from, size_t w, size_t h, size_t d) {
    Floats v(w * std::max<size_t>(h, 1) * std::max<size_t>(d, 1), -1);
    cudaMemcpy3DParms p = {};
    p.srcArray = from;
    p.dstPtr = make_cudaPitchedPtr(v.data(), w * 4, w, std::max<size_t>(h, 1));
    p.extent = make_cudaExtent(w, std::max<size_t>(h, 1), std::max<size_t>(d, 1));
    p.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3D(&p));
    return v;
}

enum Shape { ONE, TWO, THREE, ONE_LAYERED, TWO_LAYERED, CUBE };

__global__ void fetch(cudaTextureObject_t t, Shape shape, float *out, int w, int h, int d) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = i % w, y = i / w % h, z = i / w / h;
    if (z >= d) return;
    float fx = x + 0.5f, fy = y + 0.5f, fz = z + 0.5f, s = 2 * fx / w - 1, u = 2 * fy / h - 1;
    switch (shape) {
    case ONE: out[i] = tex1D<float>(t, fx); break;
    case TWO: out[i] = tex2D<float>(t, fx, fy); break;
    case THREE: out[i] = tex3D<float>(t, fx, fy, fz); break;
    case ONE_LAYERED: out[i] = tex1DLayered<float>(t, fx, z); break;
    case TWO_LAYERED: out[i] = tex2DLayered<float>(t, fx, fy, z); break;
    case CUBE: {
        float3 at[] = {{1, -u, -s}, {-1, -u, s}, {s, 1, u}, {s, -1, -u}, {s, -u, 1}, {-s, -u, -1}};
        out[i] = texCubemap<float>(t, at[z].x, at[z].y, at[z].z);
    }
    }
}

__global__ void twice(cudaSurfaceObject_t s, Shape shape, int w, int h, int d) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = i % w, y = i / w % h, z = i / w / h;
    if (z >= d) return;
    float v;
    switch (shape) {
    case ONE: surf1Dread(&v, s, x * 4), surf1Dwrite(2 * v, s, x * 4); break;
    case TWO: surf2Dread(&v, s, x * 4, y), surf2Dwrite(2 * v, s, x * 4, y); break;
    case THREE: surf3Dread(&v, s, x * 4, y, z), surf3Dwrite(2 * v, s, x * 4, y, z); break;
    case ONE_LAYERED: surf1DLayeredread(&v, s, x * 4, z), surf1DLayeredwrite(2 * v, s, x * 4, z); break;
    case TWO_LAYERED: surf2DLayeredread(&v, s, x * 4, y, z), surf2DLayeredwrite(2 * v, s, x * 4, y, z); break;
    case CUBE: surfCubemapread(&v, s, x * 4, y, z), surfCubemapwrite(2 * v, s, x * 4, y, z); break;
    }
}

// Filled from the host, read by a texture, doubled by a surface, read back.
static void shapes() {
    struct {
        Shape shape;
        int w, h, d;
        unsigned flags;
    } all[] = {{ONE, 100, 0, 0, 0}, {TWO, 33, 17, 0, 0}, {THREE, 9, 7, 5, 0}, {ONE_LAYERED, 33, 0, 4, cudaArrayLayered},
               {TWO_LAYERED, 12, 9, 4, cudaArrayLayered}, {CUBE, 8, 8, 6, cudaArrayCubemap}};
    for (auto &a : all) {
        const int w = a.w, h = std::max(a.h, 1), d = std::max(a.d, 1), n = w * h * d;
        cudaArray_t made = array(a.w, a.h, a.d, a.flags | cudaArraySurfaceLoadStore);
        cudaChannelFormatDesc format;
        cudaExtent extent;
        unsigned flags;
        CHECK(cudaArrayGetInfo(&format, &extent, &flags, made));
        EXPECT(format.x == 32 && format.f == cudaChannelFormatKindFloat && extent.width == (size_t)a.w && extent.height == (size_t)a.h &&
               extent.depth == (size_t)a.d && flags == (a.flags | cudaArraySurfaceLoadStore));
        Floats values = numbers(n, 7);
        copy(made, values.data(), w, h, d);
        cudaTextureObject_t t = texture(of(made), how());
        cudaSurfaceObject_t s;
        cudaResourceDesc r = of(made);
        CHECK(cudaCreateSurfaceObject(&s, &r));
        float *out;
        CHECK(cudaMalloc(&out, n * 4));
        for (int round = 1; round <= 2; round++) {
            fetch<<<(n + 63) / 64, 64>>>(t, a.shape, out, w, h, d);
            Floats got(n);
            CHECK(cudaMemcpy(got.data(), out, n * 4, cudaMemcpyDeviceToHost));
            for (int i = 0; i < n; i++) EXPECT(got[i] == round * values[i]);
            if (round == 1) twice<<<(n + 63) / 64, 64>>>(s, a.shape, w, h, d);
        }
        Floats back = content(made, w, h, d);
        for (int i = 0; i < n; i++) EXPECT(back[i] == 2 * values[i]);
        cudaResourceDesc asked;
        CHECK(cudaGetSurfaceObjectResourceDesc(&asked, s));
        EXPECT(asked.resType == cudaResourceTypeArray && asked.res.array.array == made);
        CHECK(cudaDestroyTextureObject(t));
        CHECK(cudaDestroySurfaceObject(s));
        CHECK(cudaFreeArray(made));
        CHECK(cudaFree(out));
    }
}

// Parts of arrays, in all directions, on streams and from pinned memory.
static void copies() {
    const int w = 64, h = 48;
    cudaArray_t a = array(w, h, 0), b = array(w, h, 0);
    Floats values = numbers(w * h);
    CHECK(cudaMemcpy2DToArray(a, 0, 0, values.data(), w * 4, w * 4, h, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy2DArrayToArray(b, 0, 0, a, 0, 0, w * 4, h));
    Floats part(10 * 5, -1);
    CHECK(cudaMemcpy2DFromArray(part.data(), 40, b, 12 * 4, 30, 40, 5, cudaMemcpyDeviceToHost));
    for (int y = 0; y < 5; y++)
        for (int x = 0; x < 10; x++) EXPECT(part[y * 10 + x] == values[(30 + y) * w + 12 + x]);
    // From device memory of a pitch of its own, and back.
    float *pitched;
    size_t pitch;
    CHECK(cudaMallocPitch(&pitched, &pitch, 20 * 4, 6));
    CHECK(cudaMemcpy2DFromArray(pitched, pitch, a, 4, 1, 20 * 4, 6, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy2DToArray(b, 40 * 4, 40, pitched, pitch, 20 * 4, 6, cudaMemcpyDeviceToDevice));
    Floats whole = content(b, w, h, 0);
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            EXPECT(whole[y * w + x] == (x >= 40 && x < 60 && y >= 40 && y < 46 ? values[(y - 39) * w + x - 39] : values[y * w + x]));
    // A stream of its own: in, twice, out, from pinned memory that is used anew.
    cudaStream_t stream;
    float *in, *out;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMallocHost(&in, w * h * 4));
    CHECK(cudaMallocHost(&out, 4 * w * h * 4));
    for (int round = 0; round < 4; round++) {
        CHECK(cudaStreamSynchronize(stream));
        for (int i = 0; i < w * h; i++) in[i] = round * 1000.0f + i;
        CHECK(cudaMemcpy2DToArrayAsync(a, 0, 0, in, w * 4, w * 4, h, cudaMemcpyHostToDevice, stream));
        CHECK(cudaMemcpy2DFromArrayAsync(out + round * w * h, w * 4, a, 0, 0, w * 4, h, cudaMemcpyDeviceToHost, stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    for (int round = 0; round < 4; round++)
        for (int i = 0; i < w * h; i++) EXPECT(out[round * w * h + i] == round * 1000.0f + i);
    // What comes out of one array goes into the next, without a wait.
    CHECK(cudaMemcpy2DFromArrayAsync(in, w * 4, a, 0, 0, w * 4, h, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpy2DToArrayAsync(b, 0, 0, in, w * 4, w * 4, h, cudaMemcpyHostToDevice, stream));
    CHECK(cudaStreamSynchronize(stream));
    whole = content(b, w, h, 0);
    for (int i = 0; i < w * h; i++) EXPECT(whole[i] == 3000.0f + i);
    CHECK(cudaFreeHost(in));
    CHECK(cudaFreeHost(out));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(pitched));
    CHECK(cudaFreeArray(a));
    CHECK(cudaFreeArray(b));
}

// More than passes through device memory at a time, layers and rows.
static void large() {
    CHECK(cudaDeviceSynchronize()); // what was freed is free
    const size_t before = left();
    const size_t w = 2048, h = 1024, d = 6;
    cudaArray_t a = array(w, h, d, cudaArrayLayered);
    EXPECT(before - left() >= w * h * d * 4);
    Floats values = numbers(w * h * d);
    copy(a, values.data(), w, h, d);
    EXPECT(content(a, w, h, d) == values);
    CHECK(cudaFreeArray(a));
    cudaArray_t b = array(4096, 3000, 0);
    values = numbers(4096 * 3000, 3);
    copy(b, values.data(), 4096, 3000, 0);
    EXPECT(content(b, 4096, 3000, 0) == values);
    CHECK(cudaFreeArray(b));
    CHECK(cudaDeviceSynchronize());
    EXPECT(left() == before);
}

__global__ void filter(cudaTextureObject_t t, float4 *out) {
    out[0] = make_float4(tex2D<float>(t, 2.0f, 3.0f), tex2D<float>(t, 0.25f, 0.5f), tex2D<float>(t, -9, -9), tex2D<float>(t, 99, 99));
    out[1] = tex2Dgather<float4>(t, 2.0f, 3.0f);
}

__global__ void levels(cudaTextureObject_t t, float *out) {
    for (int i = 0; i < 4; i++) out[i] = tex2DLod<float>(t, 0.5f, 0.5f, i);
    out[4] = tex2DLod<float>(t, 0.5f, 0.5f, 1.5f);
    out[5] = tex2DGrad<float>(t, 0.5f, 0.5f, make_float2(0.25f, 0), make_float2(0, 0.25f));
}

static void sampling() {
    cudaArray_t a = array(8, 8, 0, cudaArrayTextureGather);
    Floats values = numbers(64), got(8);
    copy(a, values.data(), 8, 8, 0);
    cudaTextureObject_t t = texture(of(a), how(true));
    float *out;
    CHECK(cudaMalloc(&out, 64));
    filter<<<1, 1>>>(t, (float4 *)out);
    CHECK(cudaMemcpy(got.data(), out, 32, cudaMemcpyDeviceToHost));
    EXPECT(got[0] == (17 + 18 + 25 + 26) / 4.0f && got[1] == 0 && got[2] == 0 && got[3] == 63);
    EXPECT(got[4] == 25 && got[5] == 26 && got[6] == 18 && got[7] == 17);
    CHECK(cudaDestroyTextureObject(t));
    CHECK(cudaFreeArray(a));
    // Pitched memory of one's own.
    float *pitched;
    size_t pitch;
    CHECK(cudaMallocPitch(&pitched, &pitch, 32, 8));
    CHECK(cudaMemcpy2D(pitched, pitch, values.data(), 32, 32, 8, cudaMemcpyHostToDevice));
    cudaResourceDesc r;
    std::memset(&r, 0, sizeof r);
    r.resType = cudaResourceTypePitch2D;
    r.res.pitch2D.devPtr = pitched;
    r.res.pitch2D.desc = cudaCreateChannelDesc<float>();
    r.res.pitch2D.width = r.res.pitch2D.height = 8;
    r.res.pitch2D.pitchInBytes = pitch;
    t = texture(r, how(true, false, cudaAddressModeBorder));
    filter<<<1, 1>>>(t, (float4 *)out);
    CHECK(cudaMemcpy(got.data(), out, 16, cudaMemcpyDeviceToHost));
    EXPECT(got[0] == (17 + 18 + 25 + 26) / 4.0f && got[1] == 0 && got[2] == 0 && got[3] == 0);
    CHECK(cudaDestroyTextureObject(t));
    CHECK(cudaFree(pitched));
    // A mipmapped array, each level with a number of its own, doubled by a surface, for which a level needs no flag.
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaMipmappedArray_t mipmap;
    CHECK(cudaMallocMipmappedArray(&mipmap, &format, make_cudaExtent(8, 8, 0), 99));
    cudaArray_t level, again;
    for (int i = 0; i < 4; i++) {
        CHECK(cudaGetMipmappedArrayLevel(&level, mipmap, i));
        CHECK(cudaGetMipmappedArrayLevel(&again, mipmap, i));
        EXPECT(level == again);
        cudaExtent extent;
        CHECK(cudaArrayGetInfo(&format, &extent, nullptr, level));
        EXPECT(extent.width == (size_t)8 >> i && extent.height == (size_t)8 >> i && extent.depth == 0);
        Floats one(extent.width * extent.height, 5.0f * (i + 1));
        copy(level, one.data(), extent.width, extent.height, 0);
        cudaResourceDesc of_level = of(level);
        cudaSurfaceObject_t s;
        CHECK(cudaCreateSurfaceObject(&s, &of_level));
        twice<<<1, 64>>>(s, TWO, extent.width, extent.height, 1);
        CHECK(cudaDestroySurfaceObject(s));
    }
    EXPECT(refused(cudaGetMipmappedArrayLevel(&level, mipmap, 4), INVALID)); // as many as there can be
    std::memset(&r, 0, sizeof r);
    r.resType = cudaResourceTypeMipmappedArray;
    r.res.mipmap.mipmap = mipmap;
    cudaTextureDesc d = how(true, true);
    d.mipmapFilterMode = cudaFilterModeLinear;
    d.maxMipmapLevelClamp = 8;
    t = texture(r, d);
    levels<<<1, 1>>>(t, out);
    CHECK(cudaMemcpy(got.data(), out, 24, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 4; i++) EXPECT(got[i] == 10.0f * (i + 1));
    EXPECT(got[4] == 25 && got[5] == 20);
    CHECK(cudaDestroyTextureObject(t));
    CHECK(cudaFreeMipmappedArray(mipmap));
    EXPECT(refused(cudaFreeMipmappedArray(mipmap), cudaErrorContextIsDestroyed));
    CHECK(cudaFree(out));
}

static void refusals() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>(), three = cudaCreateChannelDesc(32, 32, 32, 0, cudaChannelFormatKindFloat);
    cudaArray_t a, plain = array(16, 16, 0);
    EXPECT(refused(cudaMallocArray(&a, &three, 16, 16), cudaErrorInvalidChannelDescriptor));
    EXPECT(refused(cudaMalloc3DArray(&a, &format, make_cudaExtent(0, 4, 4), 0), INVALID));
    EXPECT(refused(cudaMalloc3DArray(&a, &format, make_cudaExtent(8, 4, 6), cudaArrayCubemap), INVALID));
    EXPECT(refused(cudaMalloc3DArray(&a, &format, make_cudaExtent(8, 8, 5), cudaArrayCubemap), INVALID));
    EXPECT(refused(cudaMalloc3DArray(&a, &format, make_cudaExtent(1 << 20, 0, 0), 0), INVALID));
    EXPECT(refused(cudaMalloc3DArray(&a, &format, make_cudaExtent(16384, 16384, 16384), 0), cudaErrorMemoryAllocation));
    Floats values = numbers(17 * 17);
    EXPECT(refused(cudaMemcpy2DToArray(plain, 4, 0, values.data(), 64, 64, 16, cudaMemcpyHostToDevice), INVALID));
    EXPECT(refused(cudaMemcpy2DToArray(plain, 0, 1, values.data(), 64, 64, 16, cudaMemcpyHostToDevice), INVALID));
    CHECK(cudaMemcpy2DToArray(plain, 0, 0, values.data(), 64, 62, 16, cudaMemcpyHostToDevice)); // parts of texels are copied
    cudaSurfaceObject_t s;
    cudaResourceDesc r = of(plain);
    CHECK(cudaCreateSurfaceObject(&s, &r)); // also of an array that was not made for it
    CHECK(cudaDestroySurfaceObject(s));
    CHECK(cudaDestroySurfaceObject(0));
    CHECK(cudaDestroyTextureObject(0));
    cudaTextureObject_t t;
    cudaArray_t integers;
    cudaChannelFormatDesc ints = cudaCreateChannelDesc<int>();
    CHECK(cudaMallocArray(&integers, &ints, 8, 8));
    r = of(integers);
    cudaTextureDesc d = how(true);
    EXPECT(refused(cudaCreateTextureObject(&t, &r, &d, nullptr), cudaErrorInvalidFilterSetting)); // says the runtime, and the driver
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC sampling;
    CUtexObject object;
    std::memset(&resource, 0, sizeof resource);
    std::memset(&sampling, 0, sizeof sampling);
    resource.res.array.hArray = (CUarray)integers;
    sampling.filterMode = CU_TR_FILTER_MODE_LINEAR;
    EXPECT(THE(cuTexObjectCreate)(&object, &resource, &sampling, nullptr) == CUDA_SUCCESS); // the driver does not say so
    EXPECT(THE(cuTexObjectDestroy)(object) == CUDA_SUCCESS);
    sampling.filterMode = CU_TR_FILTER_MODE_POINT;
    sampling.flags = CU_TRSF_SEAMLESS_CUBEMAP;
    EXPECT(THE(cuTexObjectCreate)(&object, &resource, &sampling, nullptr) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(content(plain, 16, 16, 0).size() == 256);
    CHECK(cudaFreeArray(integers));
    CHECK(cudaFreeArray(plain));
    // The driver's own calls with rows.
    CUDA_ARRAY_DESCRIPTOR row = {64, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1}, asked;
    CUarray made;
    EXPECT(THE(cuArrayCreate)(&made, &row) == CUDA_SUCCESS && THE(cuArrayGetDescriptor)(&asked, made) == CUDA_SUCCESS);
    EXPECT(asked.Width == 64 && asked.Height == 0 && asked.Format == CU_AD_FORMAT_UNSIGNED_INT8 && asked.NumChannels == 1);
    char text[64] = "the quick brown fox jumps over the lazy dog, and back again", back[64] = "", there[64];
    CUdeviceptr memory;
    EXPECT(THE(cuMemAlloc)(&memory, 64) == CUDA_SUCCESS);
    EXPECT(THE(cuMemcpyHtoA)(made, 0, text, 64) == CUDA_SUCCESS && THE(cuMemcpyAtoD)(memory, made, 4, 40) == CUDA_SUCCESS);
    EXPECT(THE(cuMemcpyDtoA)(made, 20, memory, 5) == CUDA_SUCCESS && THE(cuMemcpyAtoH)(back, made, 0, 64) == CUDA_SUCCESS);
    std::memcpy(there, text, 64);
    std::memcpy(there + 20, text + 4, 5);
    EXPECT(std::memcmp(back, there, 64) == 0);
    EXPECT(THE(cuMemcpyAtoA)(made, 0, made, 40, 10) == CUDA_SUCCESS && THE(cuMemcpyAtoHAsync)(back, made, 0, 10, nullptr) == CUDA_SUCCESS);
    EXPECT(THE(cuStreamSynchronize)(nullptr) == CUDA_SUCCESS && std::memcmp(back, there + 40, 10) == 0);
    EXPECT(THE(cuMemcpyHtoAAsync)(made, 60, text, 4, nullptr) == CUDA_SUCCESS && THE(cuMemcpyHtoA)(made, 61, text, 4) == CUDA_ERROR_INVALID_VALUE);
    CUarray plane;
    EXPECT(THE(cuArrayGetPlane)(&plane, made, 0) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(THE(cuArrayDestroy)(made) == CUDA_SUCCESS);
    EXPECT_OF_OURS(THE(cuArrayDestroy)(made) == CUDA_ERROR_INVALID_HANDLE && THE(cuMemcpyHtoA)(made, 0, text, 4) == CUDA_ERROR_INVALID_HANDLE);
    EXPECT(THE(cuArrayCreate)(nullptr, &row) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(THE(cuMemFree)(memory) == CUDA_SUCCESS);
}

// Batches of copies, and copies with attributes (CUDA 12.8, 13.2); where the toolkit has none, there is nothing to be tried.
static void batches() {
#if CUDART_VERSION >= 13000
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUdeviceptr memory[3], sources[3];
    size_t sizes[] = {400, 1, 4096}, first[] = {0, 2};
    std::vector<char> host(4096), back(4096);
    for (int i = 0; i < 4096; i++) host[i] = (char)(i * 7);
    for (int i = 0; i < 3; i++) {
        EXPECT(THE(cuMemAlloc)(&memory[i], 4096) == CUDA_SUCCESS);
        sources[i] = (CUdeviceptr)host.data();
    }
    CUmemcpyAttributes how_to[2];
    std::memset(how_to, 0, sizeof how_to);
    how_to[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    how_to[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    const auto many = THE(cuMemcpyBatchAsync);
    EXPECT(many(memory, sources, sizes, 3, how_to, first, 2, (CUstream)stream) == CUDA_SUCCESS);
    CUdeviceptr to = (CUdeviceptr)back.data();
#if CUDART_VERSION >= 13020
    EXPECT(THE(cuMemcpyWithAttributesAsync)(to, memory[2], 4096, &how_to[0], (CUstream)stream) == CUDA_SUCCESS);
#else
    EXPECT(THE(cuMemcpyAsync)(to, memory[2], 4096, (CUstream)stream) == CUDA_SUCCESS);
#endif
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(back == host);
    EXPECT(many(memory, sources, sizes, 3, how_to, first, 2, nullptr) == CUDA_ERROR_INVALID_VALUE); // not on the legacy stream
    first[1] = 3;
    EXPECT(many(memory, sources, sizes, 3, how_to, first, 2, (CUstream)stream) == CUDA_ERROR_INVALID_VALUE);
    how_to[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
#if CUDART_VERSION >= 13020
    EXPECT(THE(cuMemcpyWithAttributesAsync)(memory[0], memory[1], 4, &how_to[0], (CUstream)stream) == CUDA_ERROR_INVALID_VALUE);
#endif
    // Boxes: into an array at an offset, counted in texels, and out of it into rows that lie apart.
    cudaArray_t a = array(32, 32, 0);
    Floats values = numbers(10 * 6, 5), got(20 * 6, -1);
    CUDA_MEMCPY3D_BATCH_OP ops[2];
    std::memset(ops, 0, sizeof ops);
    ops[0].src.type = ops[1].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    ops[0].dst.type = ops[1].src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    ops[0].src.op.ptr.ptr = (CUdeviceptr)values.data();
    ops[0].dst.op.array.array = ops[1].src.op.array.array = (CUarray)a;
    ops[0].dst.op.array.offset.x = ops[1].src.op.array.offset.x = 3;
    ops[0].dst.op.array.offset.y = ops[1].src.op.array.offset.y = 4;
    ops[1].dst.op.ptr.ptr = (CUdeviceptr)got.data();
    ops[1].dst.op.ptr.rowLength = 20;
    for (auto &op : ops) {
        op.extent = {10, 6, 1};
        op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    }
    EXPECT(THE(cuMemcpy3DBatchAsync)(2, ops, 0, (CUstream)stream) == CUDA_SUCCESS);
    CHECK(cudaStreamSynchronize(stream));
    for (int y = 0; y < 6; y++)
        for (int x = 0; x < 20; x++) EXPECT(got[y * 20 + x] == (x < 10 ? values[y * 10 + x] : -1));
    ops[0].extent.width = 30;
#if CUDART_VERSION >= 13020
    EXPECT(THE(cuMemcpy3DWithAttributesAsync)(&ops[0], 0, (CUstream)stream) == CUDA_ERROR_INVALID_VALUE);
#endif
    CHECK(cudaFreeArray(a));
    for (CUdeviceptr m : memory) EXPECT(THE(cuMemFree)(m) == CUDA_SUCCESS);
    CHECK(cudaStreamDestroy(stream));
#endif
}

// A launch as it was before CUDA 4, of a module of its own.
static void launched_by_offset() {
    const char *text = R"(.version 7.0
.target sm_50
.address_size 64
.visible .entry f(.param .u64 p, .param .u32 i, .param .f32 x) {
    .reg .b64 %q<3>; .reg .b32 %r<9>; .reg .f32 %x<4>;
    ld.param.u64 %q0, [p]; ld.param.u32 %r0, [i]; ld.param.f32 %x0, [x];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %q1, %r4, 4; add.u64 %q0, %q0, %q1;
    add.u32 %r5, %r4, %r0; cvt.rn.f32.u32 %x1, %r5; add.f32 %x1, %x1, %x0; st.global.f32 [%q0], %x1;
    ret;
})";
    CUmodule m;
    CUfunction f;
    CUdeviceptr memory;
    Floats got(64);
    EXPECT(THE(cuModuleLoadData)(&m, text) == CUDA_SUCCESS && THE(cuModuleGetFunction)(&f, m, "f") == CUDA_SUCCESS);
    EXPECT(THE(cuMemAlloc)(&memory, 256) == CUDA_SUCCESS);
    EXPECT(find<CUresult(CUfunction, int, int, int)>("cuFuncSetBlockShape")(f, 32, 1, 1) == CUDA_SUCCESS);
    EXPECT(find<CUresult(CUfunction, unsigned)>("cuFuncSetSharedSize")(f, 0) == CUDA_SUCCESS);
    EXPECT(find<CUresult(CUfunction, int, void *, unsigned)>("cuParamSetv")(f, 0, &memory, 8) == CUDA_SUCCESS);
    EXPECT(find<CUresult(CUfunction, int, unsigned)>("cuParamSeti")(f, 8, 100) == CUDA_SUCCESS);
    EXPECT(find<CUresult(CUfunction, int, float)>("cuParamSetf")(f, 12, 0.5f) == CUDA_SUCCESS);
    const auto grid = find<CUresult(CUfunction, int, int)>("cuLaunchGrid");
    EXPECT_OF_OURS(grid(f, 1, 2) == CUDA_ERROR_INVALID_VALUE); // its parameters have no size yet
    EXPECT(find<CUresult(CUfunction, unsigned)>("cuParamSetSize")(f, 16) == CUDA_SUCCESS && grid(f, 1, 2) == CUDA_SUCCESS);
    EXPECT(THE(cuMemcpyDtoH)(got.data(), memory, 256) == CUDA_SUCCESS);
    for (int i = 0; i < 64; i++) EXPECT(got[i] == i + 100.5f);
    if (!std::getenv("CHECK_GO_ON")) // driver 580 faults
        EXPECT(find<CUresult(CUfunction, int, unsigned)>("cuParamSeti")(f, -4, 1) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(find<CUresult(CUfunction, int, int, int)>("cuFuncSetBlockShape")(f, 0, 1, 1) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(THE(cuMemFree)(memory) == CUDA_SUCCESS && THE(cuModuleUnload)(m) == CUDA_SUCCESS);
}

__global__ void outside(cudaSurfaceObject_t s) { surf2Dwrite(1.0f, s, 16 * 4, 0); }
__global__ void wild(cudaTextureObject_t t, float *out) { *out = tex2D<float>(t, 0, 0); }

int main(int argc, char **argv) {
    if (argc > 1) {
        cudaArray_t a = array(16, 16, 0, cudaArraySurfaceLoadStore);
        cudaResourceDesc r = of(a);
        cudaSurfaceObject_t s;
        float *out;
        CHECK(cudaCreateSurfaceObject(&s, &r));
        CHECK(cudaMalloc(&out, 4));
        if (std::string(argv[1]) == "outside")
            outside<<<1, 1>>>(s);
        else
            wild<<<1, 1>>>(s, out); // a surface is no texture
        std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
        return 0;
    }
    CHECK(cudaFree(nullptr));
    const size_t before = left();
    shapes();
    copies();
    large();
    sampling();
    refusals();
    batches();
    launched_by_offset();
    CHECK(cudaDeviceSynchronize());
    EXPECT(left() >= before - (4 << 20)); // what textures lie in stays
    std::printf("right\n");
    return 0;
}
