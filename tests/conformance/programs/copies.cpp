// Copies of linear memory, between host and device and between contexts: the bytes at the other end, and no others.
#include "gate.h"

using Bytes = std::vector<unsigned char>;

static CUdeviceptr as_device(const void *host) { return reinterpret_cast<CUdeviceptr>(host); }

static unsigned char *pinned(size_t bytes) {
    void *memory = garbage<void *>();
    CHECK(cuMemAllocHost(&memory, bytes));
    std::memset(memory, 0x5a, bytes);
    return static_cast<unsigned char *>(memory);
}

CASE(host_to_device_and_back, "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyDtoD") {
    Bytes source = counting<unsigned char>(1000), back(1002, 0xa5);
    CUdeviceptr memory = allocate(1000), other = allocate(1000);
    CHECK(cuMemsetD8(memory, 0xff, 1000));
    CHECK(cuMemsetD8(other, 0xee, 1000));
    CHECK(cuMemcpyHtoD(memory + 1, source.data(), 998));
    CHECK(cuMemcpyDtoD(other + 2, memory, 996));
    CHECK(cuMemcpyDtoH(back.data() + 1, other, 1000));
    EXPECT(back[0] == 0xa5 && back[1] == 0xee && back[2] == 0xee && back[3] == 0xff && back[999] == 0xee && back[1000] == 0xee && back[1001] == 0xa5);
    EXPECT(Bytes(back.begin() + 4, back.begin() + 999) == Bytes(source.begin(), source.begin() + 995));
    CHECK(cuMemcpyHtoD(memory, source.data(), 0)); // nothing to do
    REFUSED(cuMemcpyHtoD(memory + 1, source.data(), 1000), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpyDtoH(back.data(), memory + 1, 1000), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpyDtoD(memory, other + 1, 1000), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpyHtoD(memory, nullptr, 10), CUDA_ERROR_INVALID_VALUE);
}

CASE(in_a_stream, "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync") {
    CUstream stream = make_stream();
    unsigned char *source = pinned(1000), *back = pinned(1000);
    CUdeviceptr memory = allocate(1000), other = allocate(1000);
    for (int i = 0; i < 1000; i++) source[i] = static_cast<unsigned char>(i * 7);
    Gate gate;
    gate.put(stream);
    CHECK(cuMemcpyHtoDAsync(memory, source, 1000, stream));
    CHECK(cuMemcpyDtoDAsync(other, memory, 1000, stream));
    CHECK(cuMemcpyDtoHAsync(back, other, 1000, stream));
    EXPECT(back[0] == 0x5a && back[999] == 0x5a); // the stream has not come so far
    gate.open = true;
    CHECK(cuStreamSynchronize(stream));
    EXPECT(std::memcmp(source, back, 1000) == 0);
    REFUSED(cuMemcpyHtoDAsync(memory + 1, source, 1000, stream), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpyDtoHAsync(back, memory + 1, 1000, stream), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpyDtoDAsync(other, memory + 1, 1000, stream), CUDA_ERROR_INVALID_VALUE);
}

CASE(of_any_kind, "cuMemcpy", "cuMemcpyAsync") {
    Bytes source = counting<unsigned char>(500), back(500, 0xa5);
    CUdeviceptr memory = allocate(500);
    CHECK(cuMemcpy(memory, as_device(source.data()), 500)); // which way is known from the addresses
    CHECK(cuMemcpy(as_device(back.data()), memory, 500));
    EXPECT(back == source);
    CUstream stream = make_stream();
    unsigned char *first = pinned(500), *second = pinned(500);
    first[499] = 1;
    CHECK(cuMemcpyAsync(memory, as_device(first), 500, stream));
    CHECK(cuMemcpyAsync(as_device(second), memory, 500, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(std::memcmp(first, second, 500) == 0);
    // Pinned memory has one address for both sides: it may be given where an address of the device is asked for.
    first[0] = 77;
    CHECK(cuMemcpyDtoH(second, as_device(first), 500));
    EXPECT(second[0] == 77);
    first[0] = 78;
    CHECK(cuMemcpyHtoD(as_device(second), first, 500));
    EXPECT(second[0] == 78);
    CHECK(cuMemcpyDtoHAsync(back.data(), as_device(first), 500, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(back[0] == 78);
    REFUSED(cuMemcpy(memory + 1, as_device(source.data()), 500), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpyAsync(memory + 1, as_device(first), 500, stream), CUDA_ERROR_INVALID_VALUE);
}

CASE(between_contexts, "cuMemcpyPeer", "cuMemcpyPeerAsync") {
    CUcontext other = garbage<CUcontext>();
    CUdeviceptr here = upload(counting<unsigned>(64, 9)), there = garbage<CUdeviceptr>();
    CHECK(cuCtxCreate(&other, nullptr, 0, device_count() - 1)); // another device where there is one
    there = allocate(512);
    CHECK(cuMemsetD8(there, 0, 512));
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxSetCurrent(primary));
    CHECK(cuMemcpyPeer(there, other, here, primary, 256));
    CUstream stream = make_stream();
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyPeerAsync(there + 256, other, here, primary, 128, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuCtxSetCurrent(other));
    EXPECT(download<unsigned>(there, 64) == counting<unsigned>(64, 9));
    EXPECT(download<unsigned>(there + 256, 32) == counting<unsigned>(32, 9));
    EXPECT(download<unsigned>(there + 384, 1)[0] == 0);
    CHECK(cuCtxSetCurrent(primary));
    CHECK(cuMemcpyPeer(there, nullptr, here + 4, primary, 4)); // the addresses say of which devices they are
    CHECK(cuMemcpyPeerAsync(there + 4, other, here + 4, nullptr, 4, stream));
    CHECK(cuCtxSynchronize()); // the legacy stream's copy, too
    CHECK(cuCtxSetCurrent(other));
    EXPECT(download<unsigned>(there, 2) == filled(2, 10u));
    CHECK(cuCtxSetCurrent(primary));
    REFUSED(cuMemcpyPeer(there, other, here + 4, primary, 256), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpyPeerAsync(there, other, here + 4, primary, 256, stream), CUDA_ERROR_INVALID_VALUE);
}

CASE(batch, "cuMemcpyBatchAsync") {
    CUstream stream = make_stream();
    CUdeviceptr from = upload(counting<unsigned>(64, 5)), to = allocate(256);
    CHECK(cuMemsetD8(to, 0, 256));
    CHECK(cuCtxSynchronize());
    CUdeviceptr destinations[] = {to, to + 128}, sources[] = {from + 64, from};
    size_t sizes[] = {64, 32}, first = 0;
    CUmemcpyAttributes attributes = {};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    CHECK(cuMemcpyBatchAsync(destinations, sources, sizes, 2, &attributes, &first, 1, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(download<unsigned>(to, 16) == counting<unsigned>(16, 21));
    EXPECT(download<unsigned>(to + 128, 8) == counting<unsigned>(8, 5));
    EXPECT(download<unsigned>(to + 64, 16) == filled(16, 0u));
    REFUSED(cuMemcpyBatchAsync(destinations, sources, sizes, 2, &attributes, &first, 0, stream), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpyBatchAsync(destinations, sources, sizes, 2, &attributes, &first, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(with_attributes, "cuMemcpyWithAttributesAsync") {
    NEEDS_FUNCTION(cuMemcpyWithAttributesAsync);
    CUstream stream = make_stream();
    CUdeviceptr from = upload(counting<unsigned>(64, 5)), to = allocate(256);
    CUmemcpyAttributes attributes = {};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    CHECK(cuMemsetD8(to, 0, 256));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyWithAttributesAsync(to, from, 256, &attributes, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(download<unsigned>(to, 64) == counting<unsigned>(64, 5));
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
    REFUSED(cuMemcpyWithAttributesAsync(to, from, 256, &attributes, stream), CUDA_ERROR_INVALID_VALUE);
}

// Copies to the same host memory, one after the other by an event: the bytes of the last one stay, whatever their sizes.
CASE(the_last_copy_stays, "cuMemcpyDtoHAsync") {
    CUdeviceptr ones = allocate(1 << 16), twos = allocate(1 << 16);
    CHECK(cuMemsetD8(ones, 1, 1 << 16));
    CHECK(cuMemsetD8(twos, 2, 1 << 16));
    CHECK(cuCtxSynchronize()); // the streams do not wait for the legacy one
    CUstream first = make_stream(), second = make_stream();
    CUevent event = garbage<CUevent>();
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    unsigned char *back = pinned(1 << 16);
    for (int i = 0; i < 200; i++) {
        size_t before = i % 2 ? 16 : 1 << 12, after = i % 2 ? 1 << 12 : 16;
        CHECK(cuMemcpyDtoHAsync(back, ones, before, first));
        CHECK(cuEventRecord(event, first));
        CHECK(cuStreamWaitEvent(second, event, 0));
        CHECK(cuMemcpyDtoHAsync(back, twos, after, second));
        CHECK(cuStreamSynchronize(second));
        EXPECT(back[0] == 2 && back[after - 1] == 2);
    }
}

// What a synchronous copy's stream was given before it is over when the call returns: here the bytes of another copy have come.
CASE(what_was_queued_before_is_over, "cuMemcpyHtoD") {
    size_t size = 8 << 20;
    CUdeviceptr memory = allocate(size), other = allocate(64);
    unsigned char *source = pinned(64), *back = pinned(size);
    for (unsigned char i = 1; i <= 10; i++) {
        CHECK(cuMemsetD8(memory, i, size));
        CHECK(cuMemcpyDtoHAsync(back, memory, size, nullptr));
        CHECK(cuMemcpyHtoD(other, source, 64));
        EXPECT(back[0] == i && back[size - 1] == i);
    }
}

// A synchronous copy from pinned memory that kernels may use, too, is over when the call returns: also for a stream that is ordered with nothing.
CASE(from_mapped_memory, "cuMemcpyHtoD") {
    void *source = garbage<void *>();
    CHECK(cuMemHostAlloc(&source, 1 << 16, CU_MEMHOSTALLOC_DEVICEMAP));
    std::memset(source, 1, 1 << 16);
    CUdeviceptr memory = allocate(1 << 16);
    CUstream apart = make_stream();
    for (int i = 0; i < 200; i++) {
        CHECK(cuMemcpyHtoD(memory, source, 1 << 16));
        CHECK(cuMemsetD8Async(memory, 2, 1 << 16, apart));
        CHECK(cuStreamSynchronize(apart));
        EXPECT(download<unsigned char>(memory + (1 << 16) - 1, 1)[0] == 2);
    }
}
