/* Loads the driver by name, as any CUDA program does, and makes the context, streams and events that measurements use. */
#include "bench.h"

#include <dlfcn.h>

struct driver cu;
void *context, *module;
stream_t stream;
event_t first, second;

static void *library;

static void find(void *into, const char *name) {
    void *found = dlsym(library, name);
    if (!found) fail(name, "libcuda.so.1 has no such call");
    memcpy(into, &found, sizeof found);
}

void must(int result, const char *call) {
    if (!result) return;
    int (*name_of)(int, const char **);
    const char *name = "an unknown error";
    find(&name_of, "cuGetErrorName");
    name_of(result, &name);
    fail(call, name);
}

#define CALL(name, ...)              \
    do {                             \
        int (*f)();                  \
        find(&f, #name);             \
        must(f(__VA_ARGS__), #name); \
    } while (0)

static const struct {
    void *into;
    const char *name;
} table[] = {
    {&cu.launch, "cuLaunchKernel"},
    {&cu.record, "cuEventRecord"},
    {&cu.sync_stream, "cuStreamSynchronize"},
    {&cu.sync_context, "cuCtxSynchronize"},
    {&cu.elapsed, "cuEventElapsedTime"},
    {&cu.copy_in, "cuMemcpyHtoD_v2"},
    {&cu.copy_out, "cuMemcpyDtoH_v2"},
    {&cu.fill_words, "cuMemsetD32_v2"},
    {&cu.allocate, "cuMemAlloc_v2"},
    {&cu.release, "cuMemFree_v2"},
    {&cu.allocate_host, "cuMemAllocHost_v2"},
    {&cu.release_host, "cuMemFreeHost"},
    {&cu.stream_create, "cuStreamCreate"},
    {&cu.stream_destroy, "cuStreamDestroy_v2"},
    {&cu.event_create, "cuEventCreate"},
    {&cu.set_context, "cuCtxSetCurrent"},
    {&cu.get_function, "cuModuleGetFunction"},
};

void driver_start(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) fail("libcuda.so.1", dlerror());
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) find(table[i].into, table[i].name);
    char name[256] = "";
    size_t memory = 0;
    int device = 0, processors = 0;
    double begun = now_us();
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDeviceGetName, name, (int)sizeof name, device);
    CALL(cuDeviceTotalMem_v2, &memory, device);
    CALL(cuDeviceGetAttribute, &processors, 16 /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */, device);
    put("attach_ms", (now_us() - begun) / 1e3);
    put_text("device", name);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, kernels);
    CALL(cuStreamCreate, &stream, 1u /* CU_STREAM_NON_BLOCKING */);
    CALL(cuEventCreate, &first, 0u);
    CALL(cuEventCreate, &second, 0u);
}

function_t kernel(const char *name) {
    function_t found;
    must(cu.get_function(&found, module, name), name);
    return found;
}

double waits_so_far(void) {
    uint64_t figures[3];
    void (*count)(uint64_t *);
    void *found = dlsym(library, "gpuvirt_figures");
    if (!found) return -1;
    memcpy(&count, &found, sizeof found);
    count(figures);
    return (double)figures[1];
}
