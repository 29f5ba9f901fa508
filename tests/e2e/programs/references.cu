// Texture and surface references of a module that is PTX text: compilers make none any more. references [FILE]: with it, prints "running", and does all of it again and
// again until FILE exists. A launch reads what was bound when it was made, also when it runs after others that were made later.
#include "check.h"

#include <cmath>
#include <cuda.h>
#include <dlfcn.h>
#include <initializer_list>
#include <string>
#include <unistd.h>
#include <vector>

template <typename F> static F *find(const char *name) {
    static void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    F *f = driver ? (F *)dlsym(driver, name) : nullptr;
    EXPECT(f);
    return f;
}
#define NAMED(symbol) #symbol // as cuda.h names the version that is used
#define DRIVER(name, symbol) static auto *const name = find<decltype(symbol)>(NAMED(symbol))
DRIVER(load_module, cuModuleLoadData);
DRIVER(unload_module, cuModuleUnload);
DRIVER(get_function, cuModuleGetFunction);
DRIVER(texture_reference, cuModuleGetTexRef);
DRIVER(surface_reference, cuModuleGetSurfRef);
DRIVER(set_array, cuTexRefSetArray);
DRIVER(set_rows, cuTexRefSetAddress2D);
DRIVER(set_mode, cuTexRefSetAddressMode);
DRIVER(set_filter, cuTexRefSetFilterMode);
DRIVER(set_surface, cuSurfRefSetArray);
DRIVER(launch_kernel, cuLaunchKernel);
DRIVER(wait_value, cuStreamWaitValue32_v2);
DRIVER(write_value, cuStreamWriteValue32_v2);
#define GOOD(call) EXPECT((call) == CUDA_SUCCESS)

static const char *const PTX = R"(.version 6.4
.target sm_50
.address_size 64
.global .texref plane;
.visible .global .texref other;
.global .surfref canvas;
// out[i] = plane at (at[2 * i], at[2 * i + 1]) + other at (0, 0)
.visible .entry sample(.param .u64 out, .param .u64 at, .param .u32 n) {
    .reg .u64 %p<6>;
    .reg .u32 %r<5>;
    .reg .f32 %f<12>;
    .reg .pred %q;
    ld.param.u64 %p0, [out];
    ld.param.u64 %p1, [at];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    setp.ge.u32 %q, %r1, %r0;
    @%q ret;
    cvta.to.global.u64 %p0, %p0;
    cvta.to.global.u64 %p1, %p1;
    mul.wide.u32 %p2, %r1, 8;
    add.u64 %p3, %p1, %p2;
    ld.global.v2.f32 {%f0, %f1}, [%p3];
    tex.2d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [plane, {%f0, %f1}];
    mov.f32 %f6, 0f00000000;
    tex.2d.v4.f32.f32 {%f7, %f8, %f9, %f10}, [other, {%f6, %f6}];
    add.f32 %f2, %f2, %f7;
    mul.wide.u32 %p4, %r1, 4;
    add.u64 %p5, %p0, %p4;
    st.global.f32 [%p5], %f2;
    ret;
}
// a row of the surface: 2 * what it was + 1
.visible .entry paint(.param .u32 row) {
    .reg .u32 %r<3>;
    .reg .f32 %f<2>;
    ld.param.u32 %r0, [row];
    mov.u32 %r1, %tid.x;
    shl.b32 %r1, %r1, 2;
    suld.b.2d.b32.trap {%r2}, [canvas, {%r1, %r0}];
    mov.b32 %f0, %r2;
    fma.rn.f32 %f0, %f0, 0f40000000, 0f3F800000;
    mov.b32 %r2, %f0;
    sust.b.2d.b32.trap [canvas, {%r1, %r0}], {%r2};
    ret;
}
)";

static const int WIDTH = 16, HEIGHT = 8, N = 512;
static cudaChannelFormatDesc format;
static CUtexref plane, other;

static cudaArray_t array_of(const std::vector<float> &values, unsigned flags = 0) {
    cudaArray_t array;
    CHECK(cudaMallocArray(&array, &format, WIDTH, HEIGHT, flags));
    CHECK(cudaMemcpy2DToArray(array, 0, 0, values.data(), WIDTH * 4, WIDTH * 4, HEIGHT, cudaMemcpyHostToDevice));
    return array;
}
static void bind(CUtexref reference, cudaArray_t array) { GOOD(set_array(reference, (CUarray)array, CU_TRSA_OVERRIDE_FORMAT)); }
static std::vector<float> constant(float value) { return std::vector<float>(WIDTH * HEIGHT, value); }

static void launch(CUfunction f, cudaStream_t stream, float *out, const float *at) {
    unsigned n = N;
    void *arguments[] = {&out, &at, &n};
    GOOD(launch_kernel(f, N / 128, 1, 1, 128, 1, 1, 0, (CUstream)stream, arguments, nullptr));
}

// A texture as the programming guide describes it, with clamped coordinates: the nearest texel, or four of them with weights of eight fractional bits.
static float model(const std::vector<float> &texels, float x, float y, bool linear) {
    auto texel = [&](int i, int j) { return texels[(j < 0 ? 0 : j < HEIGHT ? j : HEIGHT - 1) * WIDTH + (i < 0 ? 0 : i < WIDTH ? i : WIDTH - 1)]; };
    if (!linear) return texel((int)std::floor(x), (int)std::floor(y));
    float bx = x - 0.5f, by = y - 0.5f;
    int i = (int)std::floor(bx), j = (int)std::floor(by);
    float a = std::round((bx - i) * 256) / 256, b = std::round((by - j) * 256) / 256;
    return (1 - a) * (1 - b) * texel(i, j) + a * (1 - b) * texel(i + 1, j) + (1 - a) * b * texel(i, j + 1) + a * b * texel(i + 1, j + 1);
}

static void expect_all(const float *device, float value) {
    std::vector<float> found(N);
    CHECK(cudaMemcpy(found.data(), device, N * 4, cudaMemcpyDeviceToHost));
    for (float f : found) EXPECT(f == value);
}

static void round_of_all(unsigned seed, const float *at, const std::vector<float> &points, float *out) {
    CUmodule module;
    CUfunction sample, paint;
    CUsurfref canvas;
    GOOD(load_module(&module, PTX));
    GOOD(get_function(&sample, module, "sample"));
    GOOD(get_function(&paint, module, "paint"));
    GOOD(texture_reference(&plane, module, "plane"));
    GOOD(texture_reference(&other, module, "other"));
    GOOD(surface_reference(&canvas, module, "canvas"));
    std::vector<float> texels(WIDTH * HEIGHT), found(N);
    for (float &t : texels) t = (float)((seed = seed * 1664525 + 1013904223) >> 20);
    cudaArray_t array = array_of(texels, cudaArraySurfaceLoadStore), seven = array_of(constant(7));
    bind(other, seven);
    // Of an array, of rows of memory, with and without filter.
    float *rows;
    size_t pitch;
    CHECK(cudaMallocPitch(&rows, &pitch, WIDTH * 4, HEIGHT));
    CHECK(cudaMemcpy2D(rows, pitch, texels.data(), WIDTH * 4, WIDTH * 4, HEIGHT, cudaMemcpyHostToDevice));
    const CUDA_ARRAY_DESCRIPTOR shape = {(size_t)WIDTH, (size_t)HEIGHT, CU_AD_FORMAT_FLOAT, 1};
    for (int i = 0; i < 2; i++) GOOD(set_mode(plane, i, CU_TR_ADDRESS_MODE_CLAMP));
    for (bool of_rows : {false, true})
        for (bool linear : {false, true}) {
            if (of_rows)
                GOOD(set_rows(plane, &shape, (CUdeviceptr)rows, pitch));
            else
                bind(plane, array);
            GOOD(set_filter(plane, linear ? CU_TR_FILTER_MODE_LINEAR : CU_TR_FILTER_MODE_POINT));
            launch(sample, nullptr, out, at);
            CHECK(cudaMemcpy(found.data(), out, N * 4, cudaMemcpyDeviceToHost));
            for (int i = 0; i < N; i++) {
                float wanted = 7 + model(texels, points[2 * i], points[2 * i + 1], linear);
                EXPECT(std::fabs(found[i] - wanted) <= (linear ? 2 * 4096 / 256.0f : 0)); // weights have 8 bits, and each axis has one
            }
        }
    GOOD(set_filter(plane, CU_TR_FILTER_MODE_POINT));
    // The surface writes what the texture then reads.
    GOOD(set_surface(canvas, (CUarray)array, 0));
    for (unsigned row = 0; row < (unsigned)HEIGHT; row++) {
        void *arguments[] = {&row};
        GOOD(launch_kernel(paint, 1, 1, 1, WIDTH, 1, 1, 0, nullptr, arguments, nullptr));
    }
    for (float &t : texels) t = 2 * t + 1;
    bind(plane, array);
    launch(sample, nullptr, out, at);
    CHECK(cudaMemcpy(found.data(), out, N * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) EXPECT(found[i] == 7 + model(texels, points[2 * i], points[2 * i + 1], false));
    // The first launch waits for a flag that is written behind the second one, which reads something else by the same reference.
    cudaStream_t waits, goes_on;
    unsigned *flag;
    CHECK(cudaStreamCreateWithFlags(&waits, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&goes_on, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&flag, 4));
    CHECK(cudaMemset(flag, 0, 4));
    cudaArray_t hundred = array_of(constant(100)), thousand = array_of(constant(1000));
    CHECK(cudaDeviceSynchronize()); // the streams do not wait for the legacy one
    GOOD(wait_value((CUstream)waits, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
    bind(plane, hundred);
    launch(sample, waits, out, at);
    bind(plane, thousand);
    launch(sample, goes_on, out + N, at);
    CHECK(cudaStreamSynchronize(goes_on));
    expect_all(out + N, 1007);
    GOOD(write_value((CUstream)goes_on, (CUdeviceptr)flag, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    CHECK(cudaStreamSynchronize(waits));
    expect_all(out, 107);
    launch(sample, waits, out, at);
    CHECK(cudaStreamSynchronize(waits));
    expect_all(out, 1007);
    for (cudaArray_t a : {array, seven, hundred, thousand}) CHECK(cudaFreeArray(a));
    CHECK(cudaStreamDestroy(waits));
    CHECK(cudaStreamDestroy(goes_on));
    CHECK(cudaFree(rows));
    CHECK(cudaFree(flag));
    GOOD(unload_module(module));
}

int main(int argc, char **argv) {
    format = cudaCreateChannelDesc<float>();
    std::vector<float> points(2 * N);
    unsigned seed = 1;
    for (float &p : points) p = (float)((seed = seed * 1664525 + 1013904223) >> 12) / (float)(1 << 20) * 24 - 4;
    for (float &p : points) p = std::floor(p * 64) / 64 + 1 / 256.0f; // off the halves, so that no rounding decides which texel it is
    float *at, *out;
    CHECK(cudaMalloc(&at, 2 * N * 4));
    CHECK(cudaMalloc(&out, 2 * N * 4));
    CHECK(cudaMemcpy(at, points.data(), 2 * N * 4, cudaMemcpyHostToDevice));
    // What is bound stays bound while other things happen.
    CUmodule kept;
    CUfunction function;
    CUtexref one, two;
    GOOD(load_module(&kept, PTX));
    GOOD(get_function(&function, kept, "sample"));
    GOOD(texture_reference(&one, kept, "plane"));
    GOOD(texture_reference(&two, kept, "other"));
    bind(one, array_of(constant(30)));
    bind(two, array_of(constant(4)));
    launch(function, nullptr, out, at);
    expect_all(out, 34);
    if (argc > 1) std::printf("running\n");
    std::fflush(stdout);
    unsigned round = 0;
    do {
        round_of_all(++round, at, points, out);
        launch(function, nullptr, out, at);
        expect_all(out, 34);
    } while (argc > 1 && access(argv[1], F_OK) != 0);
    std::printf("right\n");
    return 0;
}
