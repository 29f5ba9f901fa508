// A program that keeps in device memory what must mean the same after its session has moved: addresses of allocations and globals, function pointers,
// textures, memory that is mapped twice, lists from malloc in kernels. Prints "running", checks all of it again and again until FILE exists, and prints "right". moved FILE [host | holds MIB | pauses]: with "host",
// a host function waits for FILE; with "holds" it has so much memory and does nothing until FILE exists; with "pauses" it says each round's number, and waits for
// FILE.NUMBER.
#include "check.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>
#include <string>
#include <unistd.h>
#include <vector>

template <typename F> static F *find(const char *name) {
    static void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    F *f = driver ? (F *)dlsym(driver, name) : nullptr;
    EXPECT(f);
    return f;
}
#define DRIVER(name, symbol) static auto *const name = find<decltype(symbol)>(#symbol)
DRIVER(reserve, cuMemAddressReserve);
DRIVER(create, cuMemCreate);
DRIVER(map, cuMemMap);
DRIVER(unmap, cuMemUnmap);
DRIVER(set_access, cuMemSetAccess);

typedef int (*Function)(int);
__device__ int twice(int x) { return 2 * x; }
__device__ int square(int x) { return x * x; }
__device__ int table[1000];
__device__ int *of_table = table; // an address in a global's initial value
__device__ Function by_name[2] = {twice, square};
__constant__ int scale[16];
__device__ unsigned long long counter;

struct Node { // from malloc in kernels
    Node *next;
    int number, size, *numbers;
};

struct Kept { // in device memory
    Node *list;
    int *table;
    unsigned long long *counter;
    Function functions[2];
    Kept *self;
    int *memory;
    cudaTextureObject_t texture, image, level;
    cudaSurfaceObject_t surface;
};

__global__ void keep(Kept *k, int *memory, cudaTextureObject_t texture, cudaTextureObject_t image, cudaTextureObject_t level, cudaSurfaceObject_t surface) {
    *k = {nullptr, table, &counter, {by_name[0], by_name[1]}, k, memory, texture, image, level, surface};
    for (int i = 0; i < 1000; i++) table[i] = 3 * i;
    for (int i = 0; i < 200; i++) k->list = new Node{k->list, i, 0, nullptr};
}

// Each round checks what the rounds before have left in memory of malloc, and has some of it anew.
__global__ void check_heap(Kept *k, int round, unsigned *bad) {
    int number = 200;
    for (Node *n = k->list; n; n = n->next) {
        if (n->number != --number) atomicAdd(bad, 1);
        for (int i = 0; i < n->size; i++)
            if (n->numbers[i] != n->number + i) atomicAdd(bad, 0x100);
        if (n->numbers && (n->number + round) % 7) continue;
        delete[] n->numbers;
        n->size = n->number * 37 % 3000; // so that all rounds need as much
        n->numbers = new int[n->size];
        for (int i = 0; i < n->size; i++) n->numbers[i] = n->number + i;
    }
    if (number) atomicAdd(bad, 0x10000);
}

__global__ void check(Kept *k, int round, unsigned *bad) {
    int i = threadIdx.x;
    if (k->self != k || k->table != table || of_table != table || k->counter != &counter) atomicAdd(bad, 1);
    if (k->table[i] != 3 * i || k->memory[i] != i + round) atomicAdd(bad, 0x100);
    if (k->functions[0](i) != 2 * i || k->functions[1](i) != i * i || by_name[i % 2](i) != (i % 2 ? i * i : 2 * i)) atomicAdd(bad, 0x10000);
    if (scale[i % 16] != 7 + i % 16 || tex1Dfetch<int>(k->texture, i) != 5 * i) atomicAdd(bad, 0x1000000);
    // The image is written by its surface in each round, and read by its texture in the next.
    int x = i % 40, y = i / 40;
    if (round && tex2D<int>(k->image, x, y) != i + 1000 * round) atomicAdd(bad, 0x10000000);
    surf2Dwrite(i + 1000 * (round + 1), k->surface, 4 * x, y);
    if (tex2DLod<float>(k->level, 0.5f, 0.5f, 2) != 42) atomicAdd(bad, 0x10000000);
    k->memory[i]++;
    if (i == 0) atomicAdd(k->counter, 1ull);
}

__global__ void large(int *out, int words) { // more dynamic shared memory than a kernel has without asking
    extern __shared__ int shared[];
    for (int i = threadIdx.x; i < words; i += blockDim.x) shared[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) *out = shared[words - 1];
}

__global__ void put(unsigned *v, unsigned value) { v[threadIdx.x] = value + threadIdx.x; }

static bool exists(const char *file) { return access(file, F_OK) == 0; }

static std::atomic<int> called;
static void CUDART_CB wait_for(void *file) {
    while (!exists((const char *)file)) usleep(1000);
    called++;
}

int main(int argc, char **argv) {
    const char *file = argv[1];
    EXPECT(argc > 1);
    const std::string mode = argc > 2 ? argv[2] : "";
    if (mode == "holds") {
        void *held;
        CHECK(cudaMalloc(&held, (size_t)std::atoi(argv[3]) << 20));
        CHECK(cudaMemset(held, 1, (size_t)std::atoi(argv[3]) << 20));
        CHECK(cudaDeviceSynchronize());
        std::printf("running\n");
        std::fflush(stdout);
        while (!exists(file)) usleep(1000);
        std::vector<unsigned char> found((size_t)std::atoi(argv[3]) << 20);
        CHECK(cudaMemcpy(found.data(), held, found.size(), cudaMemcpyDeviceToHost));
        EXPECT(std::count(found.begin(), found.end(), 1) == (ptrdiff_t)found.size());
        std::printf("right\n");
        return 0;
    }
    int constants[16], *memory, *out, large_words = 20000;
    Kept *kept;
    unsigned *bad, *pinned, *back;
    cudaStream_t blocking, other, urgent;
    cudaEvent_t first, recorded, never;
    for (int i = 0; i < 16; i++) constants[i] = 7 + i;
    CHECK(cudaMalloc(&kept, sizeof *kept));
    CHECK(cudaMalloc(&memory, 4096));
    CHECK(cudaMalloc(&out, 4));
    CHECK(cudaMalloc(&bad, 4));
    CHECK(cudaMemset(bad, 0, 4));
    CHECK(cudaMallocHost(&pinned, 1 << 20));
    CHECK(cudaMallocHost(&back, 1 << 20));
    std::vector<int> host(1000);
    for (int i = 0; i < 1000; i++) host[i] = i;
    CHECK(cudaMemcpy(memory, host.data(), 4000, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpyToSymbol(scale, constants, sizeof constants));
    CHECK(cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, large_words * 4));
    CHECK(cudaStreamCreate(&blocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, -1));
    CHECK(cudaEventCreate(&first));
    CHECK(cudaEventCreate(&recorded));
    CHECK(cudaEventCreate(&never));
    int *texels;
    CHECK(cudaMalloc(&texels, 4000));
    for (int i = 0; i < 1000; i++) host[i] = 5 * i;
    CHECK(cudaMemcpy(texels, host.data(), 4000, cudaMemcpyHostToDevice));
    cudaTextureObject_t texture, gone;
    cudaResourceDesc resource;
    cudaTextureDesc how;
    std::memset(&resource, 0, sizeof resource);
    std::memset(&how, 0, sizeof how);
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = texels;
    resource.res.linear.desc = cudaCreateChannelDesc<int>();
    resource.res.linear.sizeInBytes = 4000;
    CHECK(cudaCreateTextureObject(&gone, &resource, &how, nullptr));
    CHECK(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
    CHECK(cudaDestroyTextureObject(gone));
    // An array with a texture and a surface, and one level of a mipmapped one.
    cudaChannelFormatDesc ints = cudaCreateChannelDesc<int>(), floats = cudaCreateChannelDesc<float>();
    cudaArray_t array, level;
    cudaMipmappedArray_t levels;
    cudaTextureObject_t image, of_level;
    cudaSurfaceObject_t surface;
    CHECK(cudaMallocArray(&array, &ints, 40, 25, cudaArraySurfaceLoadStore));
    CHECK(cudaMallocMipmappedArray(&levels, &floats, make_cudaExtent(16, 16, 0), 3));
    CHECK(cudaGetMipmappedArrayLevel(&level, levels, 2));
    std::vector<float> texels_of_level(16, 42);
    CHECK(cudaMemcpy2DToArray(level, 0, 0, texels_of_level.data(), 16, 16, 4, cudaMemcpyHostToDevice));
    cudaResourceDesc whole;
    std::memset(&whole, 0, sizeof whole);
    whole.resType = cudaResourceTypeArray;
    whole.res.array.array = array;
    CHECK(cudaCreateTextureObject(&image, &whole, &how, nullptr));
    CHECK(cudaCreateSurfaceObject(&surface, &whole));
    whole.resType = cudaResourceTypeMipmappedArray;
    whole.res.mipmap.mipmap = levels;
    cudaTextureDesc detailed = how;
    detailed.normalizedCoords = 1;
    detailed.maxMipmapLevelClamp = 9;
    CHECK(cudaCreateTextureObject(&of_level, &whole, &detailed, nullptr));
    keep<<<1, 1>>>(kept, memory, texture, image, of_level, surface);
    CHECK(cudaEventRecord(first));

    // Physical memory at two addresses, at one, and at none.
    CUmemAllocationProp where;
    std::memset(&where, 0, sizeof where);
    where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    where.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc all = {where.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}, read = {where.location, CU_MEM_ACCESS_FLAGS_PROT_READ};
    const size_t unit = 2 << 20;
    CUdeviceptr at;
    CUmemGenericAllocationHandle shared, own, loose;
    EXPECT(reserve(&at, 4 * unit, 0, 0, 0) == 0);
    EXPECT(create(&shared, unit, &where, 0) == 0 && create(&own, unit, &where, 0) == 0 && create(&loose, unit, &where, 0) == 0);
    EXPECT(map(at, unit, 0, shared, 0) == 0 && map(at + unit, unit, 0, shared, 0) == 0);
    EXPECT(map(at + 2 * unit, unit, 0, own, 0) == 0 && map(at + 3 * unit, unit, 0, loose, 0) == 0);
    EXPECT(set_access(at, 4 * unit, &all, 1) == 0);
    put<<<1, 256>>>((unsigned *)(at + 3 * unit), 900);
    put<<<1, 256>>>((unsigned *)(at + 2 * unit), 500);
    CHECK(cudaDeviceSynchronize());
    EXPECT(unmap(at + 3 * unit, unit) == 0);
    EXPECT(set_access(at + 2 * unit, unit, &read, 1) == 0);
    if (mode == "host") CHECK(cudaLaunchHostFunc(other, wait_for, argv[1]));
    std::printf("running\n");
    std::fflush(stdout);

    int rounds = 0;
    for (; !exists(file) || rounds < 3; rounds++) {
        unsigned wrong = 1, value = 0;
        check<<<1, 1000, 0, blocking>>>(kept, rounds, bad);
        check_heap<<<1, 1, 0, blocking>>>(kept, rounds, bad);
        large<<<1, 128, large_words * 4, urgent>>>(out, large_words);
        put<<<1, 256, 0, urgent>>>((unsigned *)at, rounds);
        CHECK(cudaMemcpyAsync(back, (void *)(at + unit), 1024, cudaMemcpyDeviceToHost, urgent));
        for (int i = 0; i < 1 << 18; i++) pinned[i] = rounds * 77 + i;
        CHECK(cudaMemcpyAsync((void *)(at + unit), pinned, 1 << 20, cudaMemcpyHostToDevice, urgent)); // in flight while the session moves
        CHECK(cudaEventRecord(recorded, urgent));
        CHECK(cudaStreamWaitEvent(blocking, recorded, 0));
        CHECK(cudaMemcpyAsync(back + 1024, (void *)at, 1 << 19, cudaMemcpyDeviceToHost, blocking));
        CHECK(cudaStreamSynchronize(blocking));
        EXPECT(back[0] == (unsigned)rounds && back[255] == rounds + 255u);
        EXPECT(back[1024] == (unsigned)rounds * 77 && back[1024 + (1 << 17) - 1] == rounds * 77u + (1 << 17) - 1);
        CHECK(cudaMemcpy(&wrong, bad, 4, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(&value, out, 4, cudaMemcpyDeviceToHost));
        if (wrong) std::printf("round %d: %x\n", rounds, wrong);
        EXPECT(wrong == 0 && value == (unsigned)large_words - 1);
        CHECK(cudaMemcpy(&value, (void *)(at + 2 * unit + 40), 4, cudaMemcpyDeviceToHost));
        EXPECT(value == 510);
        float since_first = -1;
        CHECK(cudaEventSynchronize(recorded));
        CHECK(cudaEventElapsedTime(&since_first, first, recorded));
        EXPECT(since_first > 0 && since_first < 1e6f);
        EXPECT(cudaEventElapsedTime(&since_first, first, never) == cudaErrorInvalidResourceHandle);
        if (mode == "pauses") {
            std::printf("round %d\n", rounds);
            std::fflush(stdout);
            while (!exists((std::string(file) + '.' + std::to_string(rounds)).c_str()) && !exists(file)) usleep(1000);
        }
        usleep(2000);
    }
    unsigned long long counted = 0;
    unsigned value = 0;
    EXPECT(map(at + 3 * unit, unit, 0, loose, 0) == 0 && set_access(at + 3 * unit, unit, &all, 1) == 0);
    CHECK(cudaMemcpy(&value, (void *)(at + 3 * unit + 40), 4, cudaMemcpyDeviceToHost));
    EXPECT(value == 910);
    CHECK(cudaMemcpyFromSymbol(&counted, counter, 8));
    EXPECT(counted == (unsigned long long)rounds);
    std::vector<int> pixels(1000);
    CHECK(cudaMemcpy2DFromArray(pixels.data(), 160, array, 0, 0, 160, 25, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 1000; i++) EXPECT(pixels[i] == i + 1000 * rounds);
    CHECK(cudaFreeArray(array));
    CHECK(cudaFreeMipmappedArray(levels));
    CHECK(cudaDestroyTextureObject(texture));
    CHECK(cudaDeviceSynchronize());
    EXPECT(called == (mode == "host" ? 1 : 0));
    std::printf("right\n");
    return 0;
}
