/* Calls on memory: what allocations, copies and mappings cost (commands and waits), when a range is handed out again, what is refused. */
#include "memory_calls.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fake_session.h"
#include "gv_impl.h"
#include "objects/objects.h"
#include "wire/session_limits.h"

void memory(void) {
    CUdeviceptr p[64], base;
    size_t size, free_bytes, total;
    fake_reset();
    EQUAL(impl_cuMemAlloc(&p[0], 0), CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 16; i++) EQUAL(impl_cuMemAlloc(&p[i], 1000), 0);
    EQUAL(fake.waits, 0); /* from the initial credit */
    for (int i = 1; i < 16; i++) CHECK(p[i] % 512 == 0 && p[i] - p[i - 1] >= 1000);
    EQUAL(impl_cuMemGetAddressRange(&base, &size, p[3] + 999), 0);
    CHECK(base == p[3] && size == 1000);
    EQUAL(impl_cuMemGetAddressRange(&base, &size, p[3] + 1000), CUDA_ERROR_NOT_FOUND);
    EQUAL(impl_cuMemFree(p[3] + 512), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemFree(p[3]), 0);
    EQUAL(impl_cuMemFree(p[3]), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemFree(0), 0);
    EQUAL(impl_cuMemAlloc(&p[3], 1000), 0); /* nothing runs: free again at once */
    EQUAL(fake.waits, 0);
    EQUAL(impl_cuMemGetInfo(&free_bytes, &total), 0);
    EQUAL(free_bytes, FAKE_DEVICE_MEMORY - 16 * 1024);
    EQUAL(total, FAKE_DEVICE_MEMORY);

    /* Exact: what is left can be had, one more cannot, and nothing is lost by asking. */
    CUdeviceptr big, more;
    EQUAL(impl_cuMemAlloc(&big, FAKE_DEVICE_MEMORY), CUDA_ERROR_OUT_OF_MEMORY);
    EQUAL(impl_cuMemAlloc(&big, FAKE_DEVICE_MEMORY - (4 << 20)), 0);
    EQUAL(impl_cuMemAlloc(&more, 4 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    EQUAL(impl_cuMemFree(big), 0);
    EQUAL(impl_cuMemGetInfo(&free_bytes, &total), 0);
    EQUAL(free_bytes, FAKE_DEVICE_MEMORY - 16 * 1024);
    CHECK(fake.count[GV_OP_MEMORY_SHRINK] > 0);
    for (int i = 0; i < 16; i++) EQUAL(impl_cuMemFree(p[i]), 0);

    unsigned type = 99;
    int ordinal = 99;
    EQUAL(impl_cuMemAlloc(&big, 4096), 0);
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *data[] = {&type, &ordinal};
    EQUAL(impl_cuPointerGetAttributes(2, which, data, big + 4095), 0);
    CHECK(type == CU_MEMORYTYPE_DEVICE && ordinal == 0);
    EQUAL(impl_cuPointerGetAttributes(2, which, data, (CUdeviceptr)(uintptr_t)&type), 0);
    CHECK(type == 0 && ordinal == -2);
    EQUAL(impl_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, big + 4096), CUDA_ERROR_INVALID_VALUE);
    for (int wrong = 0; wrong < 3; wrong++) {
        which[1] = (CUpointer_attribute)((const int[]){0, 23, 9999})[wrong];
        EQUAL(impl_cuPointerGetAttributes(2, which, data, big), CUDA_ERROR_INVALID_VALUE);
    }
    which[1] = (CUpointer_attribute)22; /* CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL */
    EQUAL(impl_cuPointerGetAttributes(2, which, data, big), 0);
    EQUAL(ordinal, -1);

    /* Memory is freed whatever context is current, if any. */
    EQUAL(impl_cuCtxSetCurrent(NULL), 0);
    EQUAL(impl_cuMemFree(big), 0);
    EQUAL(impl_cuMemFree(big), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemAlloc(&big, 4096), CUDA_ERROR_INVALID_CONTEXT);
    EQUAL(impl_cuCtxSetCurrent(context), 0);
}

/* A freed range is not handed out while a stream may still use it, and no wait is needed for that. */
void quarantine(void) {
    CUdeviceptr a, b, c;
    CUstream stream;
    fake.hold = true;
    EQUAL(impl_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
    EQUAL(impl_cuMemAlloc(&a, 4096), 0);
    EQUAL(impl_cuMemsetD8Async(a, 1, 4096, stream), 0);
    fake_reset();
    EQUAL(impl_cuMemFree(a), 0);
    EQUAL(impl_cuMemAlloc(&b, 4096), 0);
    CHECK(a != b);
    EQUAL(fake.waits, 0);
    EQUAL(impl_cuStreamSynchronize(stream), 0);
    EQUAL(impl_cuMemAlloc(&c, 4096), 0);
    CHECK(c == a);
    /* Allocating and freeing in a loop stays within bounds though the device never says anything by itself. */
    fake_reset();
    uint64_t before = fake.backed[1];
    for (int i = 0; i < 1000; i++) {
        CUdeviceptr p;
        EQUAL(impl_cuMemAlloc(&p, 1 << 20), 0);
        EQUAL(impl_cuMemsetD8Async(p, 1, 16, stream), 0);
        EQUAL(impl_cuMemFree(p), 0);
    }
    CHECK(fake.backed[1] <= before + (32 << 20));
    EQUAL(impl_cuMemFree(b), 0);
    EQUAL(impl_cuMemFree(c), 0);
    EQUAL(impl_cuStreamDestroy(stream), 0);
    EQUAL(impl_cuCtxSynchronize(), 0);
    fake.hold = false;
}

/* A program that allocates little by little is never kept waiting, and the device is used to its end. */
void memory_is_asked_for_ahead(void) {
    static CUdeviceptr blocks[4096];
    size_t before, after, total;
    unsigned n = 0;
    EQUAL(impl_cuMemGetInfo(&before, &total), 0);
    fake_reset();
    for (; n < 400; n++) EQUAL(impl_cuMemAlloc(&blocks[n], 100000), 0);
    EQUAL(fake.waits, 0);
    CHECK(fake.count[GV_OP_MEMORY_GROW] > 1 && fake.count[GV_OP_MEMORY_GROW] < 20);
    EQUAL(impl_cuMemGetInfo(&after, &total), 0);
    EQUAL(after, before - 400 * 100352);
    while (n < 4096 && !impl_cuMemAlloc(&blocks[n], 100000)) n++;
    CHECK(n > 2500 && n < 4096); /* of 256 MiB */
    EQUAL(impl_cuMemGetInfo(&after, &total), 0);
    CHECK(after < 100352 + (2 << 20));
    while (n) EQUAL(impl_cuMemFree(blocks[--n]), 0);
    EQUAL(impl_cuCtxSynchronize(), 0);
    EQUAL(impl_cuMemGetInfo(&after, &total), 0);
    EQUAL(after, before);
    fake_reset();
    EQUAL(impl_cuMemAlloc(&blocks[0], 150 << 20), 0); /* more than there is credit: that has to be asked for */
    CHECK(fake.waits >= 1);
    EQUAL(impl_cuMemFree(blocks[0]), 0);
}

void copies(void) {
    CUdeviceptr d, e;
    size_t big = 9 << 20;
    unsigned char *host = malloc(big), *back = malloc(big);
    for (size_t i = 0; i < big; i++) host[i] = (unsigned char)(i * 7 + i / 251);
    EQUAL(impl_cuMemAlloc(&d, big), 0);
    EQUAL(impl_cuMemAlloc(&e, big), 0);
    fake_reset();
    EQUAL(impl_cuMemcpyHtoD(d, host, 1000), 0);
    EQUAL(fake.count[GV_OP_COPY_IN], 1);
    EQUAL(impl_cuMemcpyHtoD(d, host, big), 0);
    EQUAL(fake.count[GV_OP_COPY_IN], 2); /* one more: all of it is one run */
    EQUAL(fake.waits, 0);
    EQUAL(impl_cuMemcpyDtoD(e, d, big), 0);
    EQUAL(impl_cuMemcpyDtoH(back, e, big), 0);
    CHECK(!memcmp(host, back, big));
    CHECK(fake.waits > 0);

    EQUAL(impl_cuMemcpyHtoD(d + 1, host, big), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemcpyDtoH(back, d - 1, 1), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemcpyDtoH(back, e + big, 1), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemcpyDtoD(d, e, SIZE_MAX), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemcpyHtoD(d, NULL, 0), 0);
    EQUAL(impl_cuMemcpyHtoD(d, NULL, 1), CUDA_ERROR_INVALID_VALUE);
    /* Directions found from the addresses; an address of the window that is no allocation is not the host's. */
    memset(back, 0, big);
    EQUAL(impl_cuMemcpy((CUdeviceptr)(uintptr_t)back, d, 500), 0);
    CHECK(!memcmp(host, back, 500));
    EQUAL(impl_cuMemcpy((CUdeviceptr)(uintptr_t)(back + 500), (CUdeviceptr)(uintptr_t)(host + 500), 500), 0);
    CHECK(!memcmp(host, back, 1000));
    EQUAL(impl_cuMemcpy(e + big + 4096, d, 1), CUDA_ERROR_INVALID_VALUE);

    /* Rectangles: a window of the host array into a pitched device array, and back packed. */
    CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = host,
                        .srcPitch = 100,
                        .srcXInBytes = 10,
                        .srcY = 2,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = d,
                        .dstPitch = 512,
                        .dstXInBytes = 4,
                        .dstY = 1,
                        .WidthInBytes = 60,
                        .Height = 30};
    EQUAL(impl_cuMemcpy2D(&in), 0);
    CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = d,
                         .srcPitch = 512,
                         .srcXInBytes = 4,
                         .srcY = 1,
                         .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = back,
                         .dstPitch = 64,
                         .WidthInBytes = 60,
                         .Height = 30};
    EQUAL(impl_cuMemcpy2D(&out), 0);
    for (int y = 0; y < 30; y++) CHECK(!memcmp(back + y * 64, host + (y + 2) * 100 + 10, 60));
    out.srcPitch = 59;
    EQUAL(impl_cuMemcpy2D(&out), CUDA_ERROR_INVALID_VALUE);
    in.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    EQUAL(impl_cuMemcpy2D(&in), CUDA_ERROR_INVALID_HANDLE);

    /* A box that is large and has gaps on both sides: pieces of rows, through staging. */
    CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                         .srcHost = host,
                         .srcPitch = 3000,
                         .srcHeight = 500,
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                         .dstDevice = e,
                         .dstPitch = 4096,
                         .dstHeight = 450,
                         .WidthInBytes = 2900,
                         .Height = 400,
                         .Depth = 5};
    EQUAL(impl_cuMemcpy3D(&box), 0);
    CUDA_MEMCPY3D unbox = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = e,
                           .srcPitch = 4096,
                           .srcHeight = 450,
                           .dstMemoryType = CU_MEMORYTYPE_HOST,
                           .dstHost = back,
                           .dstPitch = 2900,
                           .dstHeight = 400,
                           .WidthInBytes = 2900,
                           .Height = 400,
                           .Depth = 5};
    EQUAL(impl_cuMemcpy3D(&unbox), 0);
    for (int z = 0; z < 5; z++) {
        for (int y = 0; y < 400; y++) CHECK(!memcmp(back + (z * 400 + y) * 2900, host + (z * 500 + y) * 3000, 2900));
    }
    box.Depth = 6; /* beyond the allocation */
    EQUAL(impl_cuMemcpy3D(&box), CUDA_ERROR_INVALID_VALUE);

    /* Fills. */
    EQUAL(impl_cuMemsetD32(d, 0x01020304, 100), 0);
    EQUAL(impl_cuMemsetD16(d + 400, 0xabcd, 10), 0);
    EQUAL(impl_cuMemsetD8(d + 420, 0x77, 5), 0);
    EQUAL(impl_cuMemsetD32(d + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemsetD16(d + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemsetD8(d, 0, big + 1), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemcpyDtoH(back, d, 425), 0);
    CHECK(back[0] == 4 && back[3] == 1 && back[399] == 1 && back[400] == 0xcd && back[419] == 0xab && back[424] == 0x77);
    EQUAL(impl_cuMemsetD2D8(d, 512, 9, 3, 2), 0);
    EQUAL(impl_cuMemcpyDtoH(back, d, 1024), 0);
    CHECK(back[2] == 9 && back[3] == 1 && back[512] == 9 && back[514] == 9);

    EQUAL(impl_cuMemFree(d), 0);
    EQUAL(impl_cuMemFree(e), 0);
    free(host);
    free(back);
}

/* Asynchronous copies into pinned memory do not wait; what reads that memory afterwards comes after them. */
void pinned(void) {
    CUdeviceptr d;
    CUstream stream;
    char *host, pageable[256];
    fake.hold = true;
    EQUAL(impl_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
    EQUAL(impl_cuMemAlloc(&d, 4096), 0);
    EQUAL(impl_cuMemHostAlloc((void **)&host, 4096, CU_MEMHOSTALLOC_PORTABLE), 0);
    unsigned flags;
    EQUAL(impl_cuMemHostGetFlags(&flags, host), 0);
    EQUAL(flags, CU_MEMHOSTALLOC_DEVICEMAP);
    EQUAL(impl_cuMemsetD8Async(d, 0x5a, 4096, stream), 0);
    fake_reset();
    EQUAL(impl_cuMemcpyDtoHAsync(host, d, 4096, stream), 0);
    EQUAL(fake.waits, 0);
    EQUAL(impl_cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    EQUAL(impl_cuMemcpyHtoDAsync(d, host + 4000, 96, stream), 0); /* what is copied is written first: sent when the stream gets there */
    EQUAL(fake.count[GV_OP_HOST_FUNC], 1);
    EQUAL(fake.count[GV_OP_COPY_IN], 1);
    EQUAL(fake.waits, 0);
    char other[16] = {0};
    EQUAL(impl_cuMemcpyHtoDAsync(d, other, 16, stream), 0); /* pageable memory is taken at once */
    EQUAL(fake.count[GV_OP_HOST_FUNC], 1);
    EQUAL(impl_cuMemcpyDtoHAsync(pageable, d, 256, stream), 0); /* as with a real driver: waits */
    EQUAL(fake.waits, 1);
    EQUAL(pageable[255], 0x5a);
    EQUAL(impl_cuMemcpyDtoHAsync(host, d, 5000, stream), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemHostRegister(pageable, sizeof pageable, 0), 0);
    EQUAL(impl_cuMemHostRegister(pageable + 10, 10, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EQUAL(impl_cuMemHostUnregister(pageable + 10), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    EQUAL(impl_cuMemHostUnregister(pageable), 0);
    EQUAL(impl_cuMemFreeHost(host + 1), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemcpyDtoHAsync(host, d, 4096, stream), 0);
    fake_reset();
    EQUAL(impl_cuMemFreeHost(host), 0); /* not before the copy has landed */
    EQUAL(fake.waits, 1);
    EQUAL(impl_cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuStreamDestroy(stream), 0);
    EQUAL(impl_cuMemFree(d), 0);
    fake.hold = false;
}

/* Pinned memory is sent from where it lies by calls that do not wait, and is not freed before. */
void lending(void) {
    const size_t size = 1 << 20;
    unsigned offers = fake.offers;
    CUdeviceptr d;
    CUstream stream;
    char *host, *pageable = malloc(size);
    EQUAL(impl_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
    EQUAL(impl_cuMemAlloc(&d, size), 0);
    EQUAL(impl_cuMemAllocHost((void **)&host, size), 0);
    memset(pageable, 1, size);
    fake.lent = 0;
    EQUAL(impl_cuMemcpyHtoDAsync(d, host, size, stream), 0);
    EQUAL(fake.lent, 1);
    EQUAL(impl_cuMemcpyHtoDAsync(d, pageable, size, stream), 0);
    EQUAL(impl_cuMemcpyHtoD(d, host, size), 0); /* the program may write there as soon as it returns */
    EQUAL(fake.lent, 1);
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = host,
                          .srcPitch = 2048,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = d,
                          .dstPitch = 1024,
                          .WidthInBytes = 1024,
                          .Height = 400};
    EQUAL(impl_cuMemcpy2DAsync(&rows, stream), 0); /* packed first */
    EQUAL(fake.lent, 1);
    fake.hold = true;
    EQUAL(impl_cuMemcpyDtoHAsync(host, d, 4096, stream), 0); /* a writer on its way */
    EQUAL(impl_cuMemcpyHtoDAsync(d, host, size, stream), 0);
    EQUAL(fake.lent, 1);
    fake.hold = false;
    fake_complete();
    EQUAL(impl_cuMemHostRegister(pageable, size, 0), 0);
    EQUAL(impl_cuMemcpyHtoDAsync(d, pageable, size, stream), 0);
    EQUAL(fake.lent, 2);
    EQUAL(impl_cuMemHostUnregister(pageable), 0);
    EQUAL(fake.loans_low, (uint64_t)(uintptr_t)pageable);
    EQUAL(fake.taken_back, (const void *)pageable);
    EQUAL(fake.loans_high, (uint64_t)(uintptr_t)pageable + size);
    EQUAL(fake.offers, offers + 2);
    EQUAL(impl_cuMemFreeHost(host), 0);
    EQUAL(fake.loans_low, (uint64_t)(uintptr_t)host);
    EQUAL(fake.taken_back, (const void *)host);
    EQUAL(fake.loans_high, (uint64_t)(uintptr_t)host + size);
    EQUAL(impl_cuStreamDestroy(stream), 0);
    EQUAL(impl_cuMemFree(d), 0);
    free(pageable);
}

/* What it costs, and that all of a device can be had this way too; what is refused is in tests/e2e/programs/virtual_memory.cu. */
void virtual_memory(void) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle a, b, again;
    CUdeviceptr at, hinted;
    size_t unit = 0, free_bytes, total, now;
    unsigned long long rights;
    CUstream s;
    EQUAL(impl_cuMemGetInfo(&free_bytes, &total), 0);
    EQUAL(impl_cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM), 0);
    EQUAL(unit, 2 << 20);
    CUmemAllocationProp host = prop;
    CUmemGenericAllocationHandle of_host;
    host.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    unit = 0;
    EQUAL(impl_cuMemGetAllocationGranularity(&unit, &host, CU_MEM_ALLOC_GRANULARITY_MINIMUM), 0); /* libraries take the refusal where they try: */
    EQUAL(unit, 2 << 20);
    EQUAL(impl_cuMemCreate(&of_host, unit, &host, 0), CUDA_ERROR_NOT_SUPPORTED);
    host.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    EQUAL(impl_cuMemGetAllocationGranularity(&unit, &host, CU_MEM_ALLOC_GRANULARITY_MINIMUM), CUDA_ERROR_INVALID_VALUE);
    fake_reset();
    EQUAL(impl_cuMemAddressReserve(&at, 8 * unit, 0, 0, 0), 0);
    EQUAL(impl_cuMemAddressFree(at, 8 * unit), 0);
    EQUAL(impl_cuMemAddressReserve(&hinted, 4 * unit, 0, at - 64 * unit, 0), 0);
    EQUAL(hinted, at - 64 * unit);
    EQUAL(impl_cuMemAddressFree(hinted, 4 * unit), 0);
    EQUAL(impl_cuMemAddressReserve(&at, 8 * unit, 64 * unit, 0, 0), 0);
    EQUAL(at % (64 * unit), 0);
    EQUAL(fake.waits, 0);
    EQUAL(impl_cuMemCreate(&a, 2 * unit, &prop, 0), 0);
    EQUAL(impl_cuMemCreate(&b, 2 * unit, &prop, 0), 0);
    EQUAL(fake.waits, 2);
    EQUAL(impl_cuMemMap(at, 2 * unit, 0, a, 0), 0);
    EQUAL(impl_cuMemMap(at + 2 * unit, 2 * unit, 0, b, 0), 0);
    EQUAL(impl_cuMemRelease(b), 0);
    EQUAL(fake.count[GV_OP_MEMORY_DESTROY], 0); /* the mapping has it */
    fake.access_status = CUDA_ERROR_OUT_OF_MEMORY;
    EQUAL(impl_cuMemSetAccess(at, 4 * unit, &access, 1), CUDA_ERROR_OUT_OF_MEMORY);
    EQUAL(impl_cuMemGetAccess(&rights, &prop.location, at), 0);
    EQUAL(rights, 0);
    fake.access_status = 0;
    EQUAL(impl_cuMemsetD8(at, 1, 4 * unit), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemSetAccess(at, 4 * unit, &access, 1), 0);
    EQUAL(fake.waits, 4); /* the two answers about access */
    EQUAL(fake.mapped, 4 * unit);
    EQUAL(impl_cuMemsetD8(at, 1, 4 * unit), 0);
    EQUAL(((char *)(uintptr_t)at)[3 * unit], 1);
    EQUAL(impl_cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + 3 * unit)), 0);
    EQUAL(again, b);
    EQUAL(impl_cuMemRelease(again), 0);

    /* Unmapping waits for what is under way, and for nothing else. */
    EQUAL(impl_cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), 0);
    EQUAL(impl_cuCtxSynchronize(), 0);
    fake_reset();
    fake.hold = true;
    EQUAL(impl_cuMemUnmap(at + 2 * unit, 2 * unit), 0);
    EQUAL(fake.waits, 0);
    EQUAL(fake.count[GV_OP_MEMORY_DESTROY], 1);
    EQUAL(impl_cuMemsetD8Async(at, 2, unit, s), 0);
    EQUAL(impl_cuMemUnmap(at, 2 * unit), 0);
    EQUAL(fake.waits, 1);
    fake.hold = false;
    EQUAL(impl_cuMemsetD8(at, 1, 1), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemRelease(a), 0);
    EQUAL(fake.mapped, 0);

    /* All there is; credit that is kept for plain allocations is given back for it, and taken again. */
    CUdeviceptr plain;
    EQUAL(impl_cuMemAlloc(&plain, 32 << 20), 0);
    EQUAL(impl_cuMemFree(plain), 0);
    EQUAL(impl_cuMemCreate(&a, free_bytes / unit * unit, &prop, 0), 0);
    EQUAL(impl_cuMemCreate(&b, unit, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EQUAL(impl_cuMemAlloc(&plain, unit), CUDA_ERROR_OUT_OF_MEMORY);
    EQUAL(impl_cuMemGetInfo(&now, &total), 0);
    CHECK(now < unit);
    EQUAL(impl_cuMemRelease(a), 0);
    EQUAL(impl_cuMemAlloc(&plain, 32 << 20), 0);
    EQUAL(impl_cuMemFree(plain), 0);
    EQUAL(impl_cuMemGetInfo(&now, &total), 0);
    EQUAL(now, free_bytes);

    /* They are the program's, not a context's: what is left when the session is lost does not hang. */
    EQUAL(impl_cuMemCreate(&a, unit, &prop, 0), 0);
    EQUAL(impl_cuMemMap(at, unit, 0, a, 0), 0);
    EQUAL(impl_cuMemSetAccess(at, unit, &access, 1), 0);
}

/* What a server gives one session of a kind is known here: one more is out of memory at once, without a word to the server, and there is room again
 * when one has gone. */
void as_many_as_a_session_may_have(void) {
    static CUstream streams[GV_STREAMS_MAX + 1];
    unsigned n = 0;
    int rc = 0;
    fake_reset();
    while (n <= GV_STREAMS_MAX && !(rc = impl_cuStreamCreate(&streams[n], CU_STREAM_NON_BLOCKING))) n++;
    EQUAL(rc, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(n > GV_STREAMS_MAX - 64 && n <= GV_STREAMS_MAX);
    EQUAL(fake.count[GV_OP_STREAM_CREATE], (int)n);
    EQUAL(impl_cuStreamDestroy(streams[0]), 0);
    EQUAL(impl_cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING), 0);
    EQUAL(impl_cuStreamCreate(&streams[n], CU_STREAM_NON_BLOCKING), CUDA_ERROR_OUT_OF_MEMORY);
    while (n--) EQUAL(impl_cuStreamDestroy(streams[n]), 0);
    EQUAL(impl_cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING), 0);
    EQUAL(impl_cuStreamDestroy(streams[0]), 0);
}
