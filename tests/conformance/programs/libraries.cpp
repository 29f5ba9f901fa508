// Libraries: kernels that belong to no context, loaded where they are first used.
#include "kernels.h"
#include <unistd.h>

static CUlibrary load_library() {
    CUlibrary library = garbage<CUlibrary>();
    CHECK(cuLibraryLoadData(&library, KERNELS, nullptr, nullptr, 0, nullptr, nullptr, 0));
    return library;
}

static CUkernel library_kernel(CUlibrary library, const char *name) {
    CUkernel found = garbage<CUkernel>();
    CHECK(cuLibraryGetKernel(&found, library, name));
    return found;
}

// A kernel may be launched as it is, in the place of a function.
static bool runs(CUkernel store) {
    CUdeviceptr out = allocate(64);
    CHECK(cuMemsetD8(out, 0, 64));
    launch_store(reinterpret_cast<CUfunction>(store), out, 100, 16, nullptr);
    return download<unsigned>(out, 16) == counting<unsigned>(16, 100);
}

CASE(load_data, "cuLibraryLoadData", "cuLibraryGetKernel") {
    CUlibrary one = garbage<CUlibrary>(), two = load_library();
    CHECK(cuLibraryLoadData(&one, KERNELS, nullptr, nullptr, 0, nullptr, nullptr, 0));
    EXPECT(one != two && runs(library_kernel(one, "store")));
    CUkernel found;
    REFUSED(cuLibraryLoadData(nullptr, KERNELS, nullptr, nullptr, 0, nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLibraryGetKernel(&found, one, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
    REFUSED(cuLibraryGetKernel(nullptr, one, "store"), CUDA_ERROR_INVALID_VALUE);
}

CASE(load_file, "cuLibraryLoadFromFile") {
    char path[64] = "/tmp/conformance-XXXXXX";
    int file = mkstemp(path);
    EXPECT(file >= 0 && write(file, KERNELS, std::strlen(KERNELS)) == static_cast<ssize_t>(std::strlen(KERNELS)));
    close(file);
    CUlibrary library = garbage<CUlibrary>();
    CUresult result = cuLibraryLoadFromFile(&library, path, nullptr, nullptr, 0, nullptr, nullptr, 0);
    unlink(path);
    CHECK(result);
    EXPECT(runs(library_kernel(library, "store")));
    REFUSED(cuLibraryLoadFromFile(&library, "/no/such/file", nullptr, nullptr, 0, nullptr, nullptr, 0), CUDA_ERROR_FILE_NOT_FOUND);
}

CASE(unload, "cuLibraryUnload") {
    CUlibrary library = load_library();
    CUkernel found = library_kernel(library, "store");
    CHECK(cuLibraryUnload(library));
    REFUSED(cuLibraryUnload(nullptr), CUDA_ERROR_INVALID_HANDLE);
    GONE(cuLibraryGetKernel(&found, library, "store"));
}

CASE(kernels, "cuLibraryGetKernelCount", "cuLibraryEnumerateKernels") {
    CUlibrary library = load_library();
    unsigned count = garbage<unsigned>();
    CHECK(cuLibraryGetKernelCount(&count, library));
    EXPECT(count == 3);
    CUkernel found[3] = {};
    CHECK(cuLibraryEnumerateKernels(found, 3, library));
    for (const char *name : {"store", "add_word", "shape"}) {
        CUkernel one = library_kernel(library, name);
        EXPECT(one == found[0] || one == found[1] || one == found[2]);
    }
    REFUSED(cuLibraryGetKernelCount(nullptr, library), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLibraryEnumerateKernels(nullptr, 3, library), CUDA_ERROR_INVALID_VALUE);
}

CASE(module_and_globals, "cuLibraryGetModule", "cuLibraryGetGlobal", "cuKernelGetFunction") {
    CUlibrary library = load_library();
    CUmodule module = garbage<CUmodule>(), of_function = garbage<CUmodule>();
    CHECK(cuLibraryGetModule(&module, library)); // the one of the current context
    CUdeviceptr from_library = garbage<CUdeviceptr>(), from_module = garbage<CUdeviceptr>();
    size_t size = garbage<size_t>();
    CHECK(cuLibraryGetGlobal(&from_library, &size, library, "word"));
    EXPECT(size == 4 && download<unsigned>(from_library, 1)[0] == 7);
    CHECK(cuModuleGetGlobal(&from_module, &size, module, "word"));
    EXPECT(from_library == from_module);
    CUfunction function = garbage<CUfunction>();
    CHECK(cuKernelGetFunction(&function, library_kernel(library, "store")));
    CHECK(cuFuncGetModule(&of_function, function));
    EXPECT(of_function == module);
    CUdeviceptr out = allocate(64);
    launch_store(function, out, 3, 16, nullptr);
    EXPECT(download<unsigned>(out, 16) == counting<unsigned>(16, 3));
    REFUSED(cuLibraryGetModule(nullptr, library), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLibraryGetGlobal(&from_library, &size, library, "no_such_global"), CUDA_ERROR_NOT_FOUND);
    REFUSED(cuKernelGetFunction(nullptr, library_kernel(library, "store")), CUDA_ERROR_INVALID_VALUE);
}

CASE(what_a_kernel_is, "cuKernelGetLibrary", "cuKernelGetName", "cuKernelGetParamInfo", "cuKernelGetParamCount") {
    NEEDS_FUNCTION(cuKernelGetParamCount);
    CUlibrary library = load_library(), told = garbage<CUlibrary>();
    CUkernel store = library_kernel(library, "store");
    CHECK(cuKernelGetLibrary(&told, store));
    EXPECT(told == library);
    const char *name = garbage<const char *>();
    CHECK(cuKernelGetName(&name, store));
    EXPECT(std::strcmp(name, "store") == 0);
    size_t offset = garbage<size_t>(), size = garbage<size_t>(), count = garbage<size_t>();
    CHECK(cuKernelGetParamInfo(store, 1, &offset, &size));
    EXPECT(offset == 8 && size == 4);
    CHECK(cuKernelGetParamCount(store, &count));
    EXPECT(count == 2);
    REFUSED(cuKernelGetLibrary(nullptr, store), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuKernelGetName(nullptr, store), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuKernelGetParamInfo(store, 2, &offset, &size), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuKernelGetParamCount(store, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(attributes, "cuKernelGetAttribute", "cuKernelSetAttribute") {
    CUkernel store = library_kernel(load_library(), "store");
    int value = garbage<int>();
    CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, store, device));
    EXPECT(value > 0 && value <= attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
    CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024, store, device));
    CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, store, device));
    EXPECT(value == 1024);
    REFUSED(cuKernelGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, store, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, store, device_count()), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NUM_REGS, 8, store, device), CUDA_ERROR_INVALID_VALUE);
}

HINT_CASE(caches, "cuKernelSetCacheConfig") {
    CUkernel store = library_kernel(load_library(), "store");
    CHECK(cuKernelSetCacheConfig(store, CU_FUNC_CACHE_PREFER_L1, device));
    REFUSED(cuKernelSetCacheConfig(store, static_cast<CUfunc_cache>(17), device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuKernelSetCacheConfig(store, CU_FUNC_CACHE_PREFER_L1, device_count()), CUDA_ERROR_INVALID_DEVICE);
}

// Without devices on which host and device share a function's address there is none.
HINT_CASE(unified_functions, "cuLibraryGetUnifiedFunction") {
    void *function = nullptr;
    CUlibrary library = load_library();
    REFUSED(cuLibraryGetUnifiedFunction(&function, library, "nothing"), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLibraryGetUnifiedFunction(nullptr, library, "store"), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLibraryGetUnifiedFunction(&function, library, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLibraryGetUnifiedFunction(&function, nullptr, "store"), CUDA_ERROR_INVALID_HANDLE);
}
