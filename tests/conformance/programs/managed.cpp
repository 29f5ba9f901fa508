// Managed memory: what the host and kernels share, and the advice about it.
#include "kernels.h"
#include <atomic>

static CUmemLocation location(CUmemLocationType type, int id = 0) { return {type, {id}}; }

static unsigned *managed(size_t bytes) {
    CUdeviceptr address = garbage<CUdeviceptr>();
    CHECK(cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL));
    return reinterpret_cast<unsigned *>(address);
}

static CUdeviceptr address_of(unsigned *memory) { return reinterpret_cast<CUdeviceptr>(memory); }

CASE(shared_with_kernels, "cuMemAllocManaged") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    CUdeviceptr address = garbage<CUdeviceptr>();
    CHECK(cuMemAllocManaged(&address, 4096, CU_MEM_ATTACH_GLOBAL));
    auto *memory = reinterpret_cast<unsigned *>(address);
    for (unsigned i = 0; i < 8; i++) memory[i] = i;
    void *arguments[] = {&address};
    CHECK(cuLaunchKernel(kernel(load(), "add_word"), 1, 1, 1, 8, 1, 1, 0, nullptr, arguments, nullptr)); // each 7 more
    CHECK(cuCtxSynchronize());
    for (unsigned i = 0; i < 8; i++) EXPECT(memory[i] == i + 7);
    unsigned is_managed = 0;
    CHECK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
    EXPECT((is_managed & 0xff) == 1);
    REFUSED(cuMemAllocManaged(nullptr, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemAllocManaged(&address, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemAllocManaged(&address, 4096, 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(advice, "cuMemAdvise", "cuMemRangeGetAttribute", "cuMemRangeGetAttributes") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    CUdeviceptr memory = address_of(managed(1 << 21));
    int mostly = garbage<int>(), preferred = garbage<int>();
    CHECK(cuMemRangeGetAttribute(&mostly, sizeof mostly, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, 1 << 21));
    EXPECT(mostly == 0);
    CHECK(cuMemAdvise(memory, 1 << 21, CU_MEM_ADVISE_SET_READ_MOSTLY, location(CU_MEM_LOCATION_TYPE_DEVICE)));
    CHECK(cuMemAdvise(memory, 1 << 21, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location(CU_MEM_LOCATION_TYPE_HOST)));
    CHECK(cuMemRangeGetAttribute(&mostly, sizeof mostly, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, 1 << 21));
    EXPECT(mostly == 1);
    mostly = garbage<int>();
    void *places[] = {&mostly, &preferred};
    size_t sizes[] = {sizeof mostly, sizeof preferred};
    CUmem_range_attribute names[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION};
    CHECK(cuMemRangeGetAttributes(places, sizes, names, 2, memory, 1 << 21));
    EXPECT(mostly == 1 && preferred == CU_DEVICE_CPU);
    CHECK(cuMemAdvise(memory, 1 << 21, CU_MEM_ADVISE_UNSET_READ_MOSTLY, location(CU_MEM_LOCATION_TYPE_DEVICE)));
    CHECK(cuMemRangeGetAttribute(&mostly, sizeof mostly, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, 1 << 21));
    EXPECT(mostly == 0);
    REFUSED(cuMemAdvise(memory, 1 << 21, static_cast<CUmem_advise>(1000), location(CU_MEM_LOCATION_TYPE_DEVICE)), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemRangeGetAttribute(&mostly, 3, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, 1 << 21), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemRangeGetAttribute(nullptr, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, 1 << 21), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemRangeGetAttributes(places, sizes, names, 0, memory, 1 << 21), CUDA_ERROR_INVALID_VALUE);
}

CASE(prefetch, "cuMemPrefetchAsync", "cuMemPrefetchBatchAsync") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    unsigned *memory = managed(1 << 21);
    CUdeviceptr address = address_of(memory);
    memory[0] = 41;
    CUstream stream = make_stream();
    int last = garbage<int>();
    CHECK(cuMemPrefetchAsync(address, 1 << 21, location(CU_MEM_LOCATION_TYPE_DEVICE, device), 0, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemRangeGetAttribute(&last, sizeof last, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 1 << 21));
    EXPECT(last == device);
    size_t size = 1 << 21, first = 0;
    CUmemLocation host = location(CU_MEM_LOCATION_TYPE_HOST);
    CHECK(cuMemPrefetchBatchAsync(&address, &size, 1, &host, &first, 1, 0, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemRangeGetAttribute(&last, sizeof last, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 1 << 21));
    EXPECT(last == CU_DEVICE_CPU && memory[0] == 41);
    REFUSED(cuMemPrefetchAsync(address, 1 << 21, location(CU_MEM_LOCATION_TYPE_DEVICE, device_count()), 0, stream), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuMemPrefetchAsync(address, 1 << 21, location(CU_MEM_LOCATION_TYPE_DEVICE, device), 1, stream), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemPrefetchBatchAsync(&address, &size, 0, &host, &first, 1, 0, stream), CUDA_ERROR_INVALID_VALUE);
}

// What a kernel writes behind a prefetch is newer than what the prefetch brings.
CASE(prefetch_before_a_kernel, "cuMemPrefetchAsync") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    unsigned *memory = managed(1 << 16);
    CUdeviceptr address = address_of(memory);
    CUfunction add = kernel(load(), "add_word");
    void *arguments[] = {&address};
    CUstream stream = make_stream();
    for (unsigned i = 0; i < 8; i++) memory[i] = i;
    CHECK(cuLaunchKernel(add, 1, 1, 1, 8, 1, 1, 0, stream, arguments, nullptr)); // each 7 more
    CHECK(cuMemPrefetchAsync(address, 1 << 16, location(CU_MEM_LOCATION_TYPE_HOST), 0, stream));
    CHECK(cuLaunchKernel(add, 1, 1, 1, 8, 1, 1, 0, stream, arguments, nullptr));
    CHECK(cuStreamSynchronize(stream));
    for (unsigned i = 0; i < 8; i++) EXPECT(memory[i] == i + 14);
}

CASE(prefetch_beside_a_kernel, "cuMemPrefetchAsync") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    unsigned *memory = managed(1 << 16);
    CUdeviceptr address = address_of(memory), gate = upload<unsigned>({0});
    CUfunction add = kernel(load(), "add_word");
    void *arguments[] = {&address};
    CUstream stream = make_stream(), other = make_stream(), opener = make_stream();
    for (unsigned i = 0; i < 8; i++) memory[i] = i;
    CHECK(cuLaunchKernel(add, 1, 1, 1, 8, 1, 1, 0, stream, arguments, nullptr));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamWaitValue32(other, gate, 1, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(cuLaunchKernel(add, 1, 1, 1, 8, 1, 1, 0, other, arguments, nullptr));
    CHECK(cuMemPrefetchAsync(address, 1 << 16, location(CU_MEM_LOCATION_TYPE_HOST), 0, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamWriteValue32(opener, gate, 1, 0));
    CHECK(cuCtxSynchronize());
    for (unsigned i = 0; i < 8; i++) EXPECT(memory[i] == i + 14);
}

// On the legacy stream it stands between the blocking streams' work before and after it, also when there is nothing to copy.
CASE(prefetch_on_the_legacy_stream, "cuMemPrefetchAsync") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    CUdeviceptr memory = address_of(managed(1 << 16));
    CUdeviceptr gate = upload<unsigned>({0}), word = upload<unsigned>({0});
    CUstream before = make_stream(CU_STREAM_DEFAULT), after = make_stream(CU_STREAM_DEFAULT), beside = make_stream();
    CHECK(cuCtxSynchronize());
    CHECK(cuStreamWaitValue32(before, gate, 1, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(cuMemsetD32Async(word, 1, 1, before));
    CHECK(cuMemPrefetchAsync(memory, 1 << 16, location(CU_MEM_LOCATION_TYPE_HOST), 0, nullptr));
    CHECK(cuMemsetD32Async(word, 2, 1, after));
    CHECK(cuStreamWriteValue32(beside, gate, 1, 0));
    CHECK(cuCtxSynchronize());
    EXPECT(download<unsigned>(word, 1)[0] == 2);
}

// What is discarded has any content; only that the memory may be used again can be seen.
HINT_CASE(discard, "cuMemDiscardBatchAsync", "cuMemDiscardAndPrefetchBatchAsync") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    unsigned *memory = managed(1 << 21);
    CUdeviceptr address = address_of(memory);
    CUstream stream = make_stream();
    size_t size = 1 << 21, first = 0;
    CUmemLocation here = location(CU_MEM_LOCATION_TYPE_DEVICE, device);
    CHECK(cuMemDiscardBatchAsync(&address, &size, 1, 0, stream));
    CHECK(cuMemDiscardAndPrefetchBatchAsync(&address, &size, 1, &here, &first, 1, 0, stream));
    CHECK(cuMemsetD32Async(address, 3, 16, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(memory[15] == 3);
    REFUSED(cuMemDiscardBatchAsync(&address, &size, 0, 0, stream), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemDiscardAndPrefetchBatchAsync(&address, &size, 0, &here, &first, 1, 0, stream), CUDA_ERROR_INVALID_VALUE);
}

HINT_CASE(attach, "cuStreamAttachMemAsync") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    unsigned *memory = managed(4096);
    CUstream stream = make_stream();
    CHECK(cuStreamAttachMemAsync(stream, address_of(memory), 0, CU_MEM_ATTACH_SINGLE));
    CHECK(cuMemsetD32Async(address_of(memory), 3, 16, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(memory[15] == 3);
    CHECK(cuStreamAttachMemAsync(stream, address_of(memory), 0, CU_MEM_ATTACH_GLOBAL));
    CHECK(cuStreamSynchronize(stream));
    REFUSED(cuStreamAttachMemAsync(stream, address_of(memory), 0, 0x80), CUDA_ERROR_INVALID_VALUE);
}

static const char *const VARIABLE = R"(
.version 6.4
.target sm_50
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 counter = 5;
.visible .entry count() {
    .reg .u32 %r<2>;
    ld.global.u32 %r0, [counter];
    add.u32 %r0, %r0, 1;
    st.global.u32 [counter], %r0;
    ret;
}
)";

CASE(variables, "cuLibraryGetManaged") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    CUlibrary library = garbage<CUlibrary>();
    CHECK(cuLibraryLoadData(&library, VARIABLE, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUdeviceptr address = garbage<CUdeviceptr>();
    size_t size = garbage<size_t>();
    CHECK(cuLibraryGetManaged(&address, &size, library, "counter"));
    auto *counter = reinterpret_cast<unsigned *>(address);
    EXPECT(size == 4 && *counter == 5);
    *counter = 50;
    CUkernel count = garbage<CUkernel>();
    CHECK(cuLibraryGetKernel(&count, library, "count"));
    CHECK(cuLaunchKernel(reinterpret_cast<CUfunction>(count), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    CHECK(cuCtxSynchronize());
    EXPECT(*counter == 51);
    REFUSED(cuLibraryGetManaged(&address, &size, library, "no_such_variable"), CUDA_ERROR_NOT_FOUND);
}

// The program learns from a host function that the device is at rest, and not by a call.
CASE(after_a_host_function, "cuMemAllocManaged") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    unsigned *memory = managed(4096);
    CUdeviceptr address = address_of(memory);
    CUfunction add_word = kernel(load(), "add_word");
    CUstream stream = make_stream();
    std::atomic<int> said{0};
    memory[0] = 0;
    for (int i = 1; i <= 200; i++) {
        memory[0] += 1;
        void *arguments[] = {&address};
        CHECK(cuLaunchKernel(add_word, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr)); // 7 more
        CHECK(cuLaunchHostFunc(stream, [](void *at) { ++*static_cast<std::atomic<int> *>(at); }, &said));
        while (said != i) {
        }
        EXPECT(memory[0] == 8u * i);
    }
    CHECK(cuStreamSynchronize(stream));
}
