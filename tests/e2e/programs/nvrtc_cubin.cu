// Asks NVRTC, to which it is linked, for machine code and for PTX of devices that it knows and that it does not, and runs what it gets. Prints "right".
#include <cuda_runtime.h>

#include <cstdio>
#include <string>
#include <vector>

#include "check.h"

extern "C" {
typedef void *nvrtcProgram;
int nvrtcCreateProgram(nvrtcProgram *, const char *, const char *, int, const char *const *, const char *const *);
int nvrtcCompileProgram(nvrtcProgram, int, const char *const *);
int nvrtcGetCUBINSize(nvrtcProgram, size_t *);
int nvrtcGetCUBIN(nvrtcProgram, char *);
int nvrtcGetPTXSize(nvrtcProgram, size_t *);
int nvrtcGetPTX(nvrtcProgram, char *);
int nvrtcGetProgramLogSize(nvrtcProgram, size_t *);
int nvrtcGetProgramLog(nvrtcProgram, char *);
int nvrtcDestroyProgram(nvrtcProgram *);
}

static const char *SOURCE = "extern \"C\" __global__ void k(int *out) { out[threadIdx.x] = 3 * threadIdx.x + __CUDA_ARCH__ / 10000; }";

static int compile(const char *source, std::vector<const char *> options, nvrtcProgram *program) {
    if (nvrtcCreateProgram(program, source, "k.cu", 0, nullptr, nullptr)) return -1;
    return nvrtcCompileProgram(*program, (int)options.size(), options.data());
}

static int runs(const std::string &image) {
    cudaLibrary_t library;
    cudaKernel_t kernel;
    int *memory, out[32];
    CHECK(cudaLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    CHECK(cudaLibraryGetKernel(&kernel, library, "k"));
    CHECK(cudaMalloc(&memory, sizeof out));
    void *parameters[] = {&memory};
    CHECK(cudaLaunchKernel((const void *)kernel, dim3(1), dim3(32), parameters, 0, nullptr));
    CHECK(cudaMemcpy(out, memory, sizeof out, cudaMemcpyDeviceToHost));
    for (int i = 1; i < 32; i++)
        if (out[i] != 3 * i + out[0]) return 0;
    CHECK(cudaFree(memory));
    CHECK(cudaLibraryUnload(library));
    return 1;
}

int main() {
    const std::vector<std::vector<const char *>> machine_code = {
        {"--gpu-architecture=sm_130"}, {"-arch=sm_90"}, {"-arch", "sm_9990", "-lineinfo"}, {"-DX=1", "--gpu-architecture", "sm_80"}, {"-arch=sm_90a"}};
    for (auto &options : machine_code) {
        nvrtcProgram program;
        size_t size = 0;
        if (compile(SOURCE, options, &program) || nvrtcGetCUBINSize(program, &size) || size < 100) return std::printf("%s: size %zu\n", options[0], size);
        std::string image(size, 'x');
        if (nvrtcGetCUBIN(program, &image[0]) || !runs(image)) return std::printf("%s: not run\n", options[0]);
        if (nvrtcDestroyProgram(&program) || program) return std::printf("not destroyed\n");
    }
    const std::vector<std::vector<const char *>> ptx = {{"-arch=compute_130"}, {"--gpu-architecture=compute_90"}, {"-arch=sm_130", "-arch=compute_90"}, {}};
    for (auto &options : ptx) {
        nvrtcProgram program;
        size_t size = 0;
        if (compile(SOURCE, options, &program) || nvrtcGetPTXSize(program, &size)) return std::printf("PTX %zu\n", options.size());
        std::string image(size, 'x');
        if (nvrtcGetPTX(program, &image[0]) || !runs(image)) return std::printf("PTX not run\n");
        if (nvrtcGetCUBINSize(program, &size) == 0 && size) return std::printf("machine code of %zu bytes\n", size); // nobody asked for any
        nvrtcDestroyProgram(&program);
    }
    nvrtcProgram program;
    size_t size = 0;
    if (compile("no C++", {"-arch=sm_130"}, &program) != 6 || nvrtcGetProgramLogSize(program, &size) || size < 10) return std::printf("no error\n");
    std::string log(size, 'x');
    if (nvrtcGetProgramLog(program, &log[0]) || log.find("error") == std::string::npos) return std::printf("log: %s\n", log.c_str());
    nvrtcDestroyProgram(&program);
    if (compile(SOURCE, {"-arch=nonsense"}, &program) != 5) return std::printf("nonsense is taken\n");
    std::puts("right");
    return 0;
}
