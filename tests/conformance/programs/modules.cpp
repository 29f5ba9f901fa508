// Modules: PTX that is loaded, its functions, globals, and what is told of them.
#include "fat_binary.h"
#include "kernels.h"
#include <unistd.h>

// A file of the kernels' PTX, which is gone at the end.
struct KernelFile {
    char path[64] = "/tmp/conformance-XXXXXX";
    KernelFile() {
        int file = mkstemp(path);
        EXPECT(file >= 0 && write(file, KERNELS, std::strlen(KERNELS)) == static_cast<ssize_t>(std::strlen(KERNELS)));
        close(file);
    }
    ~KernelFile() { unlink(path); }
};

static bool runs(CUmodule module) {
    CUdeviceptr out = allocate(64);
    CHECK(cuMemsetD8(out, 0, 64));
    launch_store(kernel(module, "store"), out, 100, 16, nullptr);
    return download<unsigned>(out, 16) == counting<unsigned>(16, 100);
}

CASE(load_data, "cuModuleLoadData", "cuModuleGetFunction") {
    CUmodule module = garbage<CUmodule>(), again = garbage<CUmodule>();
    CHECK(cuModuleLoadData(&module, KERNELS));
    CHECK(cuModuleLoadData(&again, KERNELS));
    EXPECT(module != again && runs(module) && runs(again));
    CUfunction function = garbage<CUfunction>();
    REFUSED(cuModuleLoadData(nullptr, KERNELS), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuModuleLoadData(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuModuleLoadData(&module, ".version 6.4\n.target sm_50\n.address_size 64\nno ptx\n"), CUDA_ERROR_INVALID_PTX);
    REFUSED(cuModuleGetFunction(&function, again, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
    REFUSED(cuModuleGetFunction(nullptr, again, "store"), CUDA_ERROR_INVALID_VALUE);
}

CASE(load_file, "cuModuleLoad") {
    KernelFile file;
    CUmodule module = garbage<CUmodule>();
    CHECK(cuModuleLoad(&module, file.path));
    EXPECT(runs(module));
    REFUSED(cuModuleLoad(&module, "/no/such/file"), CUDA_ERROR_FILE_NOT_FOUND);
    REFUSED(cuModuleLoad(nullptr, file.path), CUDA_ERROR_INVALID_VALUE);
}

CASE(load_with_options, "cuModuleLoadDataEx") {
    CUmodule module = garbage<CUmodule>();
    char log[512];
    std::memset(log, 0, sizeof log);
    CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, reinterpret_cast<void *>(sizeof log)};
    CHECK(cuModuleLoadDataEx(&module, KERNELS, 2, names, values));
    EXPECT(runs(module));
    values[1] = reinterpret_cast<void *>(sizeof log);
    REFUSED(cuModuleLoadDataEx(&module, ".version 6.4\n.target sm_50\n.address_size 64\nno ptx\n", 2, names, values), CUDA_ERROR_INVALID_PTX);
    if (!conformance::effects_only) EXPECT(log[0] != 0 && std::memchr(log, 0, sizeof log)); // why not
    REFUSED(cuModuleLoadDataEx(nullptr, KERNELS, 0, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(load_fat_binary, "cuModuleLoadFatBinary") {
    CUmodule module = garbage<CUmodule>();
    CHECK(cuModuleLoadFatBinary(&module, FAT_BINARY));
    CUdeviceptr out = upload(filled(1, 0u));
    void *arguments[] = {&out};
    CHECK(cuLaunchKernel(kernel(module, "seven"), 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
    EXPECT(download<unsigned>(out, 1)[0] == 7);
    REFUSED(cuModuleLoadFatBinary(nullptr, FAT_BINARY), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuModuleLoadFatBinary(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(unload, "cuModuleUnload") {
    CUmodule module = load();
    CUfunction function = garbage<CUfunction>();
    CHECK(cuModuleUnload(module));
    REFUSED(cuModuleUnload(nullptr), CUDA_ERROR_INVALID_HANDLE);
    GONE(cuModuleGetFunction(&function, module, "store"));
}

CASE(functions, "cuModuleGetFunctionCount", "cuModuleEnumerateFunctions") {
    CUmodule module = load();
    unsigned count = garbage<unsigned>();
    CHECK(cuModuleGetFunctionCount(&count, module));
    EXPECT(count == 3);
    CUfunction found[3] = {};
    CHECK(cuModuleEnumerateFunctions(found, 3, module));
    for (const char *name : {"store", "add_word", "shape"}) {
        CUfunction one = kernel(module, name);
        EXPECT(one == found[0] || one == found[1] || one == found[2]);
    }
    REFUSED(cuModuleGetFunctionCount(nullptr, module), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuModuleEnumerateFunctions(nullptr, 3, module), CUDA_ERROR_INVALID_VALUE);
}

CASE(global, "cuModuleGetGlobal") {
    CUmodule module = load();
    CUdeviceptr word = garbage<CUdeviceptr>(), table = garbage<CUdeviceptr>();
    size_t size = garbage<size_t>();
    CHECK(cuModuleGetGlobal(&word, &size, module, "word"));
    EXPECT(size == 4 && download<unsigned>(word, 1)[0] == 7);
    CHECK(cuModuleGetGlobal(&table, &size, module, "table"));
    EXPECT(size == 16 && download<unsigned>(table, 4) == (std::vector<unsigned>{10, 20, 30, 40}));
    CHECK(cuMemsetD32(word, 1000, 1)); // and the kernel reads what is written there
    CUdeviceptr out = upload(counting<unsigned>(8));
    void *arguments[] = {&out};
    CHECK(cuLaunchKernel(kernel(module, "add_word"), 1, 1, 1, 8, 1, 1, 0, nullptr, arguments, nullptr));
    EXPECT(download<unsigned>(out, 8) == counting<unsigned>(8, 1000));
    REFUSED(cuModuleGetGlobal(&word, &size, module, "no_such_global"), CUDA_ERROR_NOT_FOUND);
    REFUSED(cuModuleGetGlobal(&word, &size, module, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(loading_mode, "cuModuleGetLoadingMode") {
    CUmoduleLoadingMode mode = garbage<CUmoduleLoadingMode>();
    CHECK(cuModuleGetLoadingMode(&mode));
    EXPECT(mode == CU_MODULE_EAGER_LOADING || mode == CU_MODULE_LAZY_LOADING);
    UNCHECKED_BY_THE_DRIVER(cuModuleGetLoadingMode(nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(function_attributes, "cuFuncGetAttribute", "cuFuncSetAttribute") {
    CUfunction store = kernel(load(), "store");
    int value = garbage<int>();
    CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, store));
    EXPECT(value > 0 && value <= attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
    value = garbage<int>();
    CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, store));
    EXPECT(value == 0);
    CHECK(cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
    CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, store));
    EXPECT(value == 1024);
    REFUSED(cuFuncGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, store), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(1000), store), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_NUM_REGS, 8), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30), CUDA_ERROR_INVALID_VALUE);
}

HINT_CASE(function_caches, "cuFuncSetCacheConfig", "cuFuncSetSharedMemConfig") {
    CUfunction store = kernel(load(), "store");
    CHECK(cuFuncSetCacheConfig(store, CU_FUNC_CACHE_PREFER_L1));
    CHECK(cuFuncSetSharedMemConfig(store, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
    REFUSED(cuFuncSetCacheConfig(store, static_cast<CUfunc_cache>(17)), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuFuncSetSharedMemConfig(store, static_cast<CUsharedconfig>(17)), CUDA_ERROR_INVALID_VALUE);
}

CASE(what_a_function_is, "cuFuncGetModule", "cuFuncGetName", "cuFuncGetParamInfo", "cuFuncGetParamCount") {
    NEEDS_FUNCTION(cuFuncGetParamCount);
    CUmodule module = load(), told = garbage<CUmodule>();
    CUfunction store = kernel(module, "store");
    CHECK(cuFuncGetModule(&told, store));
    EXPECT(told == module);
    const char *name = garbage<const char *>();
    CHECK(cuFuncGetName(&name, store));
    EXPECT(std::strcmp(name, "store") == 0);
    size_t offset = garbage<size_t>(), size = garbage<size_t>(), count = garbage<size_t>();
    CHECK(cuFuncGetParamInfo(store, 1, &offset, &size));
    EXPECT(offset == 8 && size == 4);
    CHECK(cuFuncGetParamCount(store, &count));
    EXPECT(count == 2);
    REFUSED(cuFuncGetModule(nullptr, store), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuFuncGetName(nullptr, store), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuFuncGetParamInfo(store, 2, &offset, &size), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuFuncGetParamCount(store, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(loading, "cuFuncIsLoaded") {
    CUfunction store = kernel(load(), "store");
    CUfunctionLoadingState state = garbage<CUfunctionLoadingState>();
    CHECK(cuFuncIsLoaded(&state, store));
    EXPECT(state == CU_FUNCTION_LOADING_STATE_UNLOADED || state == CU_FUNCTION_LOADING_STATE_LOADED);
    CHECK(cuFuncLoad(store));
    CHECK(cuFuncIsLoaded(&state, store));
    EXPECT(state == CU_FUNCTION_LOADING_STATE_LOADED);
    REFUSED(cuFuncIsLoaded(nullptr, store), CUDA_ERROR_INVALID_VALUE);
}

// Where modules are loaded eagerly every function is there before.
HINT_CASE(load_function, "cuFuncLoad") {
    CHECK(cuFuncLoad(kernel(load(), "store")));
    REFUSED(cuFuncLoad(nullptr), CUDA_ERROR_INVALID_HANDLE);
}

CASE(link, "cuLinkCreate", "cuLinkAddData", "cuLinkComplete") {
    CUlinkState link = garbage<CUlinkState>();
    CHECK(cuLinkCreate(0, nullptr, nullptr, &link));
    CHECK(cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char *>(KERNELS), std::strlen(KERNELS) + 1, "kernels", 0, nullptr, nullptr));
    void *image = garbage<void *>();
    size_t size = garbage<size_t>();
    CHECK(cuLinkComplete(link, &image, &size));
    EXPECT(size > 100 && size < 1 << 20);
    CUmodule module = load(static_cast<const char *>(image));
    EXPECT(runs(module));
    REFUSED(cuLinkAddData(link, static_cast<CUjitInputType>(1000), const_cast<char *>(KERNELS), 10, "kernels", 0, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLinkCreate(0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLinkComplete(link, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}

HINT_CASE(link_end, "cuLinkDestroy") {
    CUlinkState link = garbage<CUlinkState>();
    CHECK(cuLinkCreate(0, nullptr, nullptr, &link));
    CHECK(cuLinkDestroy(link));
    REFUSED(cuLinkDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
}

CASE(link_file, "cuLinkAddFile") {
    KernelFile file;
    CUlinkState link = garbage<CUlinkState>();
    CHECK(cuLinkCreate(0, nullptr, nullptr, &link));
    CHECK(cuLinkAddFile(link, CU_JIT_INPUT_PTX, file.path, 0, nullptr, nullptr));
    void *image = garbage<void *>();
    size_t size = garbage<size_t>();
    CHECK(cuLinkComplete(link, &image, &size));
    EXPECT(runs(load(static_cast<const char *>(image))));
    REFUSED(cuLinkAddFile(link, CU_JIT_INPUT_PTX, "/no/such/file", 0, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE); // it is complete
    CUlinkState other = garbage<CUlinkState>();
    CHECK(cuLinkCreate(0, nullptr, nullptr, &other));
    REFUSED(cuLinkAddFile(other, CU_JIT_INPUT_PTX, "/no/such/file", 0, nullptr, nullptr), CUDA_ERROR_FILE_NOT_FOUND);
}
