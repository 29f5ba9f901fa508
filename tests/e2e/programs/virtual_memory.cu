// Virtual memory management, with the runtime beside it. Without an argument everything that must work, and every refusal: prints "right". With one, a kernel that must
// fault: prints the name of the error.
#include "check.h"
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>
#include <vector>

template <typename F> static F *find(const char *name) {
    static void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    F *f = driver ? (F *)dlsym(driver, name) : nullptr;
    if (!f) {
        std::printf("no %s\n", name);
        std::_Exit(5);
    }
    return f;
}
#define NAMED(symbol) #symbol // as cuda.h names the version that is used
#define DRIVER(name, symbol) static auto *const name = find<decltype(symbol)>(NAMED(symbol))
DRIVER(granularity, cuMemGetAllocationGranularity);
DRIVER(reserve, cuMemAddressReserve);
DRIVER(unreserve, cuMemAddressFree);
DRIVER(create, cuMemCreate);
DRIVER(release, cuMemRelease);
DRIVER(map, cuMemMap);
DRIVER(unmap, cuMemUnmap);
DRIVER(set_access, cuMemSetAccess);
DRIVER(get_access, cuMemGetAccess);
DRIVER(retain, cuMemRetainAllocationHandle);
DRIVER(properties, cuMemGetAllocationPropertiesFromHandle);
DRIVER(export_handle, cuMemExportToShareableHandle);
DRIVER(pointer_attribute, cuPointerGetAttribute);
DRIVER(address_range, cuMemGetAddressRange);
DRIVER(device_attribute, cuDeviceGetAttribute);

typedef CUmemGenericAllocationHandle Handle;
static const CUresult INVALID = CUDA_ERROR_INVALID_VALUE, UNSUPPORTED = CUDA_ERROR_NOT_SUPPORTED;
static const unsigned long long READ = CU_MEM_ACCESS_FLAGS_PROT_READ, ALL = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
static size_t unit;

__global__ void add(unsigned *v, size_t n, unsigned what) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) v[i] += what + (unsigned)i;
}

static CUmemAllocationProp on(int device) {
    CUmemAllocationProp p;
    std::memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    return p;
}

static Handle made(size_t size, int device = 0) {
    CUmemAllocationProp p = on(device);
    Handle h = 0;
    EXPECT(create(&h, size, &p, 0) == 0);
    return h;
}

static CUresult allow(CUdeviceptr at, size_t size, unsigned long long rights, int device = 0) {
    CUmemAccessDesc d;
    std::memset(&d, 0, sizeof d);
    d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    d.location.id = device;
    d.flags = (CUmemAccess_flags)rights;
    return set_access(at, size, &d, 1);
}

static unsigned long long allowed(CUdeviceptr at, int device = 0) {
    CUmemLocation l;
    std::memset(&l, 0, sizeof l);
    l.type = CU_MEM_LOCATION_TYPE_DEVICE;
    l.id = device;
    unsigned long long rights = 99;
    EXPECT(get_access(&rights, &l, at) == 0);
    return rights;
}

static size_t left() {
    size_t free_bytes, total;
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

// Where the driver frees late, it takes a moment.
static size_t settled() {
    size_t now = left(), before;
    do {
        before = now;
        usleep(20000);
        now = left();
    } while (now != before);
    return now;
}

static bool left_is(size_t bytes) {
    for (int i = 0; i < 2000 && left() != bytes; i++) usleep(1000);
    return left() == bytes;
}

static void check_values(CUdeviceptr at, size_t n, unsigned base, unsigned times) {
    std::vector<unsigned> host(n);
    CHECK(cudaMemcpy(host.data(), (void *)at, n * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) EXPECT(host[i] == base + times * (unsigned)i);
}

// Three handles side by side, used as one range.
static void side_by_side() {
    size_t before = settled(), size = 6 * unit, n = size / 4;
    CUdeviceptr at;
    EXPECT(reserve(&at, 16 * unit, 0, 0, 0) == 0 && at % unit == 0);
    EXPECT(left_is(before)); // addresses cost nothing
    const size_t sizes[] = {unit, 3 * unit, 2 * unit};
    CUdeviceptr to = at + unit;
    for (size_t each : sizes) {
        Handle h = made(each);
        EXPECT(map(to, each, 0, h, 0) == 0);
        EXPECT(release(h) == 0); // the mapping keeps it
        EXPECT(release(h) == INVALID);
        to += each;
    }
    CUdeviceptr p = at + unit;
    EXPECT(left_is(before - size));
    EXPECT(allowed(p) == 0);
    EXPECT(cudaMemset((void *)p, 0, 4) == cudaErrorInvalidValue); // nobody may yet
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    EXPECT(allow(p, size, ALL) == 0 && allowed(p) == ALL && allowed(p + size - 1) == ALL);
    CHECK(cudaMemset((void *)p, 0, size));
    add<<<64, 256>>>((unsigned *)p, n, 7);
    check_values(p, n, 7, 1);
    std::vector<unsigned> host(n);
    for (size_t i = 0; i < n; i++) host[i] = 5;
    CHECK(cudaMemcpy((void *)p, host.data(), size, cudaMemcpyHostToDevice));
    add<<<64, 256>>>((unsigned *)p, n, 2);
    check_values(p, n, 7, 1);
    unsigned *plain;
    CHECK(cudaMalloc(&plain, size));
    CHECK(cudaMemcpy(plain, (void *)p, size, cudaMemcpyDeviceToDevice));
    check_values((CUdeviceptr)plain, n, 7, 1);
    CHECK(cudaMemset((void *)(p + unit - 4), 0, 8)); // across a border
    CHECK(cudaMemcpy(host.data(), (void *)(p + unit - 8), 16, cudaMemcpyDeviceToHost));
    EXPECT(host[0] == 7 + unit / 4 - 2 && !host[1] && !host[2] && host[3] == 7 + unit / 4 + 1);
    CHECK(cudaFree(plain));

    EXPECT(cudaMemset((void *)(p + size - 4), 0, 8) == cudaErrorInvalidValue); // over the end
    EXPECT(cudaMemset((void *)at, 0, 4) == cudaErrorInvalidValue);             // set aside, not mapped
    EXPECT(cudaFree((void *)p) == cudaErrorInvalidValue);
    cudaGetLastError();

    cudaPointerAttributes a;
    CHECK(cudaPointerGetAttributes(&a, (void *)(p + unit + 5)));
    EXPECT(a.type == cudaMemoryTypeDevice && a.device == 0 && a.devicePointer == (void *)(p + unit + 5));
    CUdeviceptr base = 0;
    size_t extent = 0;
    unsigned word = 9;
    EXPECT(address_range(&base, &extent, p + 2 * unit) == 0 && base == p + unit && extent == 3 * unit);
    EXPECT(pointer_attribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p) == 0 && base == at);
    EXPECT(pointer_attribute(&extent, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p) == 0 && extent == 16 * unit);
    EXPECT(pointer_attribute(&extent, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, p) == 0 && extent == unit);
    EXPECT(pointer_attribute(&word, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, p) == 0 && word == ALL);
    EXPECT(pointer_attribute(&word, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p) == 0 && word == CU_MEMORYTYPE_DEVICE);
    EXPECT(pointer_attribute(&word, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) == INVALID);

    EXPECT(unmap(p, unit + 1) == INVALID && unmap(p + unit, unit) == INVALID);
    EXPECT(unmap(at, unit) == 0); // what is not mapped may be unmapped
    EXPECT(unreserve(at, 16 * unit) == INVALID); // still in use
    EXPECT(unmap(p + unit, 3 * unit) == 0);      // the middle one alone
    EXPECT(left_is(before - 3 * unit));
    EXPECT(cudaMemset((void *)p, 0, 2 * unit) == cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(cudaMemset((void *)p, 0, unit));
    Handle h = made(3 * unit);
    EXPECT(map(p + unit, 3 * unit, 0, h, 0) == 0 && allow(p, size, ALL) == 0 && release(h) == 0);
    CHECK(cudaMemset((void *)p, 0, size));
    EXPECT(unmap(p, size) == 0 && left_is(before));
    EXPECT(unreserve(at, unit) == INVALID && unreserve(at + unit, unit) == INVALID);
    EXPECT(unreserve(at, 16 * unit) == 0 && unreserve(at, 16 * unit) == INVALID);
}

// One memory at several addresses, and none: what was written stays.
static void several_addresses() {
    size_t n = unit / 4, before = settled();
    CUdeviceptr a, b;
    EXPECT(reserve(&a, 4 * unit, 0, 0, 0) == 0 && reserve(&b, 4 * unit, 8 * unit, 0, 0) == 0 && b % (8 * unit) == 0);
    Handle h = made(2 * unit), again = 0;
    EXPECT(map(a, 2 * unit, 0, h, 0) == 0 && allow(a, 2 * unit, ALL) == 0);
    CHECK(cudaMemset((void *)a, 0, 2 * unit));
    add<<<64, 256>>>((unsigned *)a, 2 * n, 3);
    EXPECT(unmap(a, 2 * unit) == 0 && left_is(before - 2 * unit)); // nowhere
    EXPECT(map(b + unit, 2 * unit, 0, h, 0) == 0 && allow(b + unit, 2 * unit, READ) == 0 && allowed(b + unit) == READ);
    check_values(b + unit, 2 * n, 3, 1);
    EXPECT(cudaMemset((void *)(b + unit), 0, 4) == cudaErrorInvalidValue); // may be read only
    cudaGetLastError();
    EXPECT(map(a + unit, 2 * unit, 0, h, 0) == 0 && allow(a + unit, 2 * unit, ALL) == 0); // a second address
    check_values(a + unit, 2 * n, 3, 1);
    add<<<64, 256>>>((unsigned *)(a + unit), 2 * n, 1);
    check_values(b + unit, 2 * n, 4, 2);
    EXPECT(allow(b + unit, 2 * unit, ALL) == 0);
    add<<<64, 256>>>((unsigned *)(b + unit), 2 * n, 1);
    check_values(a + unit, 2 * n, 5, 3);
    EXPECT(retain(&again, (void *)(b + 2 * unit)) == 0 && again == h);
    EXPECT(release(h) == 0 && unmap(a + unit, 2 * unit) == 0 && unmap(b + unit, 2 * unit) == 0);
    if (!std::getenv("CHECK_GO_ON")) { // a part of it, which a driver refuses
        EXPECT(map(b, unit, 0, again, 0) == 0 && allow(b, unit, ALL) == 0);
        check_values(b, n, 5, 3);
        EXPECT(unmap(b, unit) == 0);
    }
    EXPECT(left_is(before - 2 * unit));
    EXPECT(release(again) == 0 && release(again) == INVALID && left_is(before));
    EXPECT(retain(&again, (void *)b) == INVALID);
    EXPECT(unreserve(a, 4 * unit) == 0 && unreserve(b, 4 * unit) == 0);
}

static void refusals() {
    CUmemAllocationProp p = on(0);
    CUdeviceptr at;
    Handle h = 1;
    size_t size, before = settled(), total;
    EXPECT(granularity(&size, nullptr, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == INVALID);
    EXPECT(granularity(&size, &p, (CUmemAllocationGranularity_flags)7) == INVALID);
    EXPECT(create(&h, unit + 1, &p, 0) == INVALID && create(&h, 0, &p, 0) == INVALID && create(&h, unit, &p, 1) == INVALID);
    EXPECT(create(nullptr, unit, &p, 0) == INVALID && create(&h, unit, nullptr, 0) == INVALID);
    p.location.id = 99;
    EXPECT(create(&h, unit, &p, 0) == CUDA_ERROR_INVALID_DEVICE);
    p = on(0);
    p.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    EXPECT(create(&h, unit, &p, 0) == INVALID);
    p = on(0);
    const bool ours = !std::getenv("CHECK_GO_ON"); // a driver may have memory of the host, handles for a fabric, and compression
    p.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    EXPECT(!ours || create(&h, unit, &p, 0) == UNSUPPORTED);
    p = on(0);
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    EXPECT(!ours || create(&h, unit, &p, 0) == UNSUPPORTED);
    p = on(0);
    p.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC; // a hint
    EXPECT(create(&h, unit, &p, 0) == 0 && properties(&p, h) == 0);
    EXPECT((!ours || p.allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_NONE) && p.location.id == 0 && p.type == CU_MEM_ALLOCATION_TYPE_PINNED);
    EXPECT(properties(nullptr, h) == INVALID && properties(&p, h + 1) == INVALID && properties(&p, 0) == INVALID);
    int fd = -1;
    EXPECT(export_handle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == INVALID); // not asked for at cuMemCreate
    EXPECT(reserve(&at, unit - 1, 0, 0, 0) == INVALID && reserve(&at, unit, 3, 0, 0) == INVALID && reserve(&at, unit, 0, 0, 1) == INVALID);
    EXPECT(reserve(nullptr, unit, 0, 0, 0) == INVALID && reserve(&at, (size_t)1 << 60, 0, 0, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(reserve(&at, 4 * unit, 0, 0, 0) == 0);
    EXPECT(map(at, unit, 0, h + 1, 0) == INVALID && map(at, unit, unit, h, 0) == INVALID && map(at, unit, 0, h, 1) == INVALID);
    EXPECT(map(at, 2 * unit, 0, h, 0) == UNSUPPORTED && map(at + 4 * unit, unit, 0, h, 0) == INVALID && map(at + 1, unit, 0, h, 0) == INVALID);
    EXPECT(map(at, unit, 0, h, 0) == 0 && map(at, unit, 0, h, 0) == INVALID);
    EXPECT(allow(at, 2 * unit, ALL) == INVALID && allow(at, unit, 2) == INVALID && allow(at, unit, ALL, 99) == CUDA_ERROR_INVALID_DEVICE);
    EXPECT(set_access(at, unit, nullptr, 1) == INVALID);
    EXPECT(get_access(nullptr, &p.location, at) == INVALID);
    unsigned long long rights;
    EXPECT(get_access(&rights, &p.location, at + unit) == INVALID);
    EXPECT(unmap(at, unit) == 0 && unmap(at, unit) == 0 && release(h) == 0);

    // All there is, in pieces; then exactly that much again in one. What the program had freed counts.
    void *freed;
    CHECK(cudaMalloc(&freed, before / 2));
    CHECK(cudaFree(freed));
    EXPECT(left_is(before));
    CHECK(cudaMemGetInfo(&size, &total));
    std::vector<Handle> all;
    p = on(0);
    while (create(&h, 16 * unit, &p, 0) == 0) {
        all.push_back(h);
        EXPECT(all.size() <= total / (16 * unit));
    }
    EXPECT(all.size() == before / (16 * unit));
    EXPECT(cudaMalloc(&freed, 16 * unit) == cudaErrorMemoryAllocation);
    cudaGetLastError();
    for (Handle each : all) EXPECT(release(each) == 0);
    EXPECT(create(&h, before / unit * unit, &p, 0) == 0 && left() < unit && release(h) == 0 && left_is(before));
    EXPECT(unreserve(at, 4 * unit) == 0);
    unsigned *plain;
    CHECK(cudaMalloc(&plain, unit));
    CHECK(cudaMemset(plain, 0, unit));
    add<<<64, 256>>>(plain, unit / 4, 1);
    check_values((CUdeviceptr)plain, unit / 4, 1, 1);
    CHECK(cudaFree(plain));
}

// Memory of one device that the other uses.
static void two_devices() {
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices));
    if (devices < 2) return;
    CUdeviceptr at;
    Handle h = made(2 * unit, 1);
    EXPECT(reserve(&at, 2 * unit, 0, 0, 0) == 0 && map(at, 2 * unit, 0, h, 0) == 0 && release(h) == 0);
    EXPECT(allow(at, 2 * unit, ALL, 1) == 0 && allowed(at, 0) == 0 && allowed(at, 1) == ALL);
    CHECK(cudaSetDevice(1));
    CHECK(cudaMemset((void *)at, 0, 2 * unit));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaSetDevice(0));
    EXPECT(allow(at, 2 * unit, ALL, 0) == 0 && allowed(at, 0) == ALL);
    add<<<64, 256>>>((unsigned *)at, unit / 2, 6);
    check_values(at, unit / 2, 6, 1);
    unsigned *plain;
    CHECK(cudaMalloc(&plain, 2 * unit));
    CHECK(cudaMemcpyPeer(plain, 0, (void *)at, 1, 2 * unit));
    check_values((CUdeviceptr)plain, unit / 2, 6, 1);
    cudaPointerAttributes a;
    CHECK(cudaPointerGetAttributes(&a, (void *)at));
    EXPECT(a.device == 1);
    CHECK(cudaFree(plain));
    EXPECT(unmap(at, 2 * unit) == 0 && unreserve(at, 2 * unit) == 0);
}

// A kernel where nothing may be used, or less than it does.
static int fault(const char *how) {
    CUdeviceptr at;
    Handle h = made(2 * unit);
    EXPECT(reserve(&at, 4 * unit, 0, 0, 0) == 0 && map(at, 2 * unit, 0, h, 0) == 0);
    if (strcmp(how, "no-access")) EXPECT(allow(at, 2 * unit, strcmp(how, "read-only") ? ALL : READ) == 0);
    if (!strcmp(how, "unmapped")) EXPECT(unmap(at, 2 * unit) == 0);
    if (!strcmp(how, "taken-away")) EXPECT(allow(at, 2 * unit, 0) == 0);
    add<<<1, 32>>>((unsigned *)at, strcmp(how, "over-the-end") ? 32 : unit, 1);
    std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    // Taking it down after that neither hangs nor fails for another reason.
    const bool mapped = strcmp(how, "unmapped");
    const CUresult results[] = {mapped ? unmap(at, 2 * unit) : CUDA_SUCCESS, release(h), unreserve(at, 4 * unit)};
    for (CUresult r : results) EXPECT(r == CUDA_SUCCESS || r == CUDA_ERROR_ILLEGAL_ADDRESS);
    return 0;
}

int main(int argc, char **argv) {
    CHECK(cudaFree(nullptr));
    int supported = 0;
    EXPECT(device_attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0) == 0 && supported == 1);
    EXPECT(device_attribute(&supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0) == 0 && (supported == 0 || supported == 1));
    EXPECT(device_attribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0) == 0 && (supported == 0 || supported == 1));
    CUmemAllocationProp p = on(0);
    size_t minimum = 0;
    EXPECT(granularity(&minimum, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == 0 && granularity(&unit, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == 0);
    EXPECT(minimum && unit && unit % minimum == 0);
    if (argc > 1) return fault(argv[1]);
    side_by_side();
    several_addresses();
    refusals();
    two_devices();
    side_by_side();
    CHECK(cudaDeviceSynchronize());
    std::printf("right\n");
    return 0;
}
