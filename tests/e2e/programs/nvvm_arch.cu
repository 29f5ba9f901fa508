// Asks libNVVM, to which it is linked, for PTX of architectures that it knows and that it does not, and runs what it gets. Prints "right".
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"

extern "C" {
typedef void *nvvmProgram;
int nvvmCreateProgram(nvvmProgram *);
int nvvmAddModuleToProgram(nvvmProgram, const char *, size_t, const char *);
int nvvmVerifyProgram(nvvmProgram, int, const char **);
int nvvmCompileProgram(nvvmProgram, int, const char **);
int nvvmGetCompiledResultSize(nvvmProgram, size_t *);
int nvvmGetCompiledResult(nvvmProgram, char *);
int nvvmGetProgramLogSize(nvvmProgram, size_t *);
int nvvmGetProgramLog(nvvmProgram, char *);
int nvvmDestroyProgram(nvvmProgram *);
}

static const char *SOURCE = R"(
target datalayout = "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-f32:32:32-f64:64:64-v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64"
target triple = "nvptx64-nvidia-cuda"
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
define void @k(i32* %out) {
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %x = mul i32 %i, 3
  %p = getelementptr i32, i32* %out, i32 %i
  store i32 %x, i32* %p
  ret void
}
!nvvm.annotations = !{!0}
!0 = !{void (i32*)* @k, !"kernel", i32 1}
!nvvmir.version = !{!1}
!1 = !{i32 2, i32 0}
)";

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
    for (int i = 0; i < 32; i++)
        if (out[i] != 3 * i) return 0;
    CHECK(cudaFree(memory));
    CHECK(cudaLibraryUnload(library));
    return 1;
}

int main() {
    const std::vector<std::vector<const char *>> good = {{"-arch=compute_130"}, {"-arch=compute_90"}, {}, {"-opt=0", "-arch=compute_9990"}};
    for (auto &given : good) {
        std::vector<const char *> options = given;
        nvvmProgram program;
        size_t size;
        if (nvvmCreateProgram(&program) || nvvmAddModuleToProgram(program, SOURCE, strlen(SOURCE), "k")) return printf("no program\n");
        if (int rc = nvvmVerifyProgram(program, (int)options.size(), options.data())) return printf("not verified: %d\n", rc);
        if (int rc = nvvmCompileProgram(program, (int)options.size(), options.data())) return printf("not compiled: %d\n", rc);
        if (options != given) return printf("the program's own options were changed\n");
        if (nvvmGetCompiledResultSize(program, &size)) return printf("no result\n");
        std::string image(size, 0);
        if (nvvmGetCompiledResult(program, image.data()) || !runs(image)) return printf("wrong\n");
        if (nvvmDestroyProgram(&program)) return printf("not destroyed\n");
    }
    for (const char *wrong : {"-arch=compute_1", "-no-such-option", "-arch=sm_130"}) { // what is no architecture stays the library's to refuse
        nvvmProgram program;
        if (nvvmCreateProgram(&program) || nvvmAddModuleToProgram(program, SOURCE, strlen(SOURCE), "k")) return printf("no program\n");
        if (int rc = nvvmCompileProgram(program, 1, &wrong); rc != 7) return printf("%s: %d\n", wrong, rc);
        nvvmDestroyProgram(&program);
    }
    printf("right\n");
}
