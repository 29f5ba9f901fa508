// A tenant who may have LIMIT bytes of a GPU, memory_limit LIMIT, and tries to have more, whatever the way to allocate. Prints "right" when it has
// LIMIT bytes exactly, by each way, and by none of them more.
#include "check.h"

#include <cuda.h>
#include <string>
#include <vector>

// A function of the driver, which nothing here is linked with.
#define THE(name) (reinterpret_cast<decltype(&name)>(entry(#name)))
#define DRIVER(call) EXPECT((call) == CUDA_SUCCESS)

static void *entry(const char *name) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    int driver;
    CHECK(cudaDriverGetVersion(&driver)); // which refuses to be asked for what came after it
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, CUDART_VERSION < driver ? CUDART_VERSION : driver, cudaEnableDefault, &result));
    EXPECT(found && result == cudaDriverEntryPointSuccess);
    return found;
}

static size_t limit;

static size_t left() {
    size_t free = 0, total = 0;
    CHECK(cudaMemGetInfo(&free, &total));
    EXPECT(total == limit && free <= total);
    return free;
}

static bool refused(cudaError_t error) {
    cudaGetLastError();
    return error == cudaErrorMemoryAllocation;
}

__global__ void touch(char *at, size_t size, char value) {
    for (size_t i = (size_t)(blockIdx.x * blockDim.x + threadIdx.x) * 4096; i < size; i += (size_t)gridDim.x * blockDim.x * 4096) at[i] = value;
}

__global__ void take(size_t each, unsigned pieces, unsigned *got, void **kept) {
    for (unsigned i = 0; i < pieces; i++)
        if ((kept[i] = malloc(each))) {
            memset(kept[i], 1, each);
            ++*got;
        }
}

__global__ void give(unsigned pieces, void **kept) {
    for (unsigned i = 0; i < pieces; i++) free(kept[i]);
}

// A module whose only variable has so many bytes.
static std::string module_of(size_t bytes) {
    return ".version 7.0\n.target sm_50\n.address_size 64\n.visible .global .align 8 .b8 room[" + std::to_string(bytes) + "];\n";
}

// With half of it taken by cudaMalloc, all other ways together come to the rest and no further.
static void by_every_other_way() {
    const size_t rest = left();
    void *p;
    // Pools, whatever their thresholds.
    cudaMemPool_t pool;
    unsigned long long keep = ~0ull;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    EXPECT(refused(cudaMallocAsync(&p, rest + 1, nullptr)));
    CHECK(cudaMallocAsync(&p, rest, nullptr));
    touch<<<8, 64>>>((char *)p, rest, 1);
    CHECK(cudaDeviceSynchronize());
    void *q;
    EXPECT(refused(cudaMalloc(&q, 1)));
    CHECK(cudaFreeAsync(p, nullptr));
    CHECK(cudaDeviceSynchronize());
    // Virtual memory: a second mapping costs nothing, a second handle does.
    CUmemAllocationProp where = {};
    where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    where.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    size_t unit;
    DRIVER(THE(cuMemGetAllocationGranularity)(&unit, &where, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    std::vector<CUmemGenericAllocationHandle> handles;
    for (CUmemGenericAllocationHandle h; THE(cuMemCreate)(&h, unit, &where, 0) == CUDA_SUCCESS;) {
        handles.push_back(h);
        EXPECT(handles.size() <= rest / unit);
    }
    EXPECT(handles.size() == rest / unit);
    for (CUmemGenericAllocationHandle h : handles) DRIVER(THE(cuMemRelease)(h));
    // Globals of modules.
    CUmodule module;
    EXPECT(THE(cuModuleLoadData)(&module, module_of(rest + 4096).c_str()) == CUDA_ERROR_OUT_OF_MEMORY);
    DRIVER(THE(cuModuleLoadData)(&module, module_of(rest / 2).c_str()));
    EXPECT(left() <= rest - rest / 2);
    EXPECT(refused(cudaMalloc(&p, rest / 2 + 4096)));
    DRIVER(THE(cuModuleUnload)(module));
    EXPECT(left() == rest);
    // Rows that are padded.
    size_t pitch;
    EXPECT(refused(cudaMallocPitch(&p, &pitch, 1, rest)));
    EXPECT(left() == rest);
    // Another context has no memory of its own.
    CUdevice device;
    CUcontext own, other;
    DRIVER(THE(cuCtxGetCurrent)(&own));
    DRIVER(THE(cuDeviceGet)(&device, 0));
    DRIVER(THE(cuCtxCreate)(&other, nullptr, 0, device));
    CUdeviceptr at;
    EXPECT(THE(cuMemAlloc)(&at, rest + 1) == CUDA_ERROR_OUT_OF_MEMORY);
    DRIVER(THE(cuMemAlloc)(&at, rest));
    DRIVER(THE(cuCtxSetCurrent)(own));
    EXPECT(refused(cudaMalloc(&p, 1)));
    DRIVER(THE(cuCtxDestroy)(other)); // takes its memory along
    DRIVER(THE(cuCtxSetCurrent)(own));
    EXPECT(left() == rest);
}

// What kernels get from malloc comes out of the same memory.
static void by_kernels() {
    const size_t each = 1 << 20;
    const unsigned pieces = (unsigned)(limit / each) + 8;
    unsigned *got;
    void **kept, *p;
    CHECK(cudaMalloc(&got, sizeof *got));
    CHECK(cudaMalloc(&kept, pieces * sizeof *kept));
    CHECK(cudaMemset(got, 0, sizeof *got));
    const size_t before = left();
    EXPECT(cudaDeviceSetLimit(cudaLimitMallocHeapSize, limit * 4) != cudaSuccess);
    cudaGetLastError();
    CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, before)); // counted when kernels use it
    take<<<1, 1>>>(each, pieces, got, kept);
    CHECK(cudaDeviceSynchronize());
    unsigned had;
    CHECK(cudaMemcpy(&had, got, sizeof had, cudaMemcpyDeviceToHost));
    EXPECT((size_t)had * each > before - before / 4 && (size_t)had * each <= before);
    EXPECT(refused(cudaMalloc(&p, before - (size_t)had * each + 1)));
    give<<<1, 1>>>(pieces, kept);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaFree(got));
    CHECK(cudaFree(kept));
}

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    limit = std::strtoull(argv[1], nullptr, 10);
    void *p, *q;
    const size_t all = left();
    EXPECT(all == limit);
    // All of it at once, and not a byte more.
    EXPECT(refused(cudaMalloc(&p, all + 1)));
    CHECK(cudaMalloc(&p, all));
    touch<<<8, 64>>>((char *)p, all, 1);
    CHECK(cudaDeviceSynchronize());
    EXPECT(left() == 0);
    EXPECT(refused(cudaMalloc(&q, 1)) && refused(cudaMallocAsync(&q, 1, nullptr)));
    CHECK(cudaFree(p));
    EXPECT(left() == all);
    // Half of it, and the rest by every other way.
    CHECK(cudaMalloc(&p, all / 2));
    by_every_other_way();
    CHECK(cudaFree(p));
    EXPECT(left() == all);
    by_kernels();
    std::printf("right\n");
    return 0;
}
