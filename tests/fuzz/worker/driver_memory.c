/* The fake driver's device memory (tests/native/worker/cuda/fake_driver.c has the rest): copies and fills move bytes, in their streams' order, and refuse
 * what lies outside. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../native/worker/cuda/fake_driver.h"

#define BEGIN 0x10000000ull /* where fake_driver.c places allocations, 16 MiB from one to the next */
#define PLACED (256ull << 20)
#define SIZE (8ull << 30) /* behind those, addresses that are reserved */

static uint8_t *memory(uint64_t address, uint64_t size) {
    static uint8_t *all;
    if (!all) all = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return address < BEGIN || address - BEGIN > SIZE || size > SIZE - (address - BEGIN) ? NULL : all + (address - BEGIN);
}

/* ---- virtual memory management: all addresses can be reached, whatever is mapped; none is reserved twice ---- */

struct fake_virtual fake_virtual;
static uint64_t reserved = PLACED;

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option) {
    return (void)prop, (void)option, *granularity = 2 << 20, CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags) {
    if (!size || alignment & (alignment - 1)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t at = alignment ? (reserved + alignment - 1) / alignment * alignment : reserved;
    if (addr || flags || at > SIZE || size > SIZE - at) return CUDA_ERROR_OUT_OF_MEMORY;
    reserved = at + size;
    return *ptr = BEGIN + at, fake_driver_state();
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
    static unsigned handles;
    if (!size || size % (2 << 20)) return CUDA_ERROR_INVALID_VALUE;
    return (void)prop, (void)flags, *handle = ++handles, size > FAKE_DEVICE_MEMORY ? CUDA_ERROR_OUT_OF_MEMORY : fake_driver_state();
}
CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    return (void)handle, offset || flags || !memory(ptr, size) ? CUDA_ERROR_INVALID_VALUE : fake_driver_state();
}

/* ---- copies and fills ---- */

/* Rows of bytes from one place to another; without a source they are filled with an element. */
struct job {
    uint8_t *to;
    const uint8_t *from;
    uint64_t width, height, depth, to_pitch, to_slice, from_pitch, from_slice;
    uint32_t element, value;
};

static void run(void *arg) {
    struct job *j = arg;
    for (uint64_t z = 0; z < j->depth; z++)
        for (uint64_t y = 0; y < j->height; y++) {
            uint8_t *to = j->to + z * j->to_slice + y * j->to_pitch;
            if (j->from)
                memmove(to, j->from + z * j->from_slice + y * j->from_pitch, j->width);
            else
                for (uint64_t x = 0; x + j->element <= j->width; x += j->element) memcpy(to + x, &j->value, j->element);
        }
    free(j);
}

/* Bytes from the first to the last of a cuboid; 0: it has none, or too many. */
static uint64_t extent(const struct job *j, uint64_t pitch, uint64_t slice) {
    if (!j->width || !j->height || !j->depth || j->width > SIZE || j->height > SIZE || j->depth > SIZE || pitch > SIZE || slice > SIZE) return 0;
    return (j->depth - 1) * slice + (j->height - 1) * pitch + j->width;
}

static CUresult queue(CUstream stream, struct job job) {
    struct job *j = malloc(sizeof *j);
    *j = job;
    CUresult status = fake_driver_work(stream, run, j);
    if (status) free(j);
    return status;
}

static CUresult to_device(struct job j, CUdeviceptr dst, CUstream stream) {
    uint64_t size = extent(&j, j.to_pitch, j.to_slice);
    j.to = size ? memory(dst, size) : NULL;
    return j.to ? queue(stream, j) : CUDA_ERROR_INVALID_VALUE;
}

static bool from_device(struct job *j, CUdeviceptr src) {
    uint64_t size = extent(j, j->from_pitch, j->from_slice);
    return size && (j->from = memory(src, size)) != NULL;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t size, CUstream s) {
    return to_device((struct job){.from = src, .width = size, .height = 1, .depth = 1}, dst, s);
}
CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, CUstream s) {
    struct job j = {.to = dst, .width = size, .height = 1, .depth = 1};
    return from_device(&j, src) ? queue(s, j) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream s) {
    struct job j = {.width = size, .height = 1, .depth = 1};
    return from_device(&j, src) ? to_device(j, dst, s) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t size, CUstream s) {
    (void)dst_context, (void)src_context;
    return cuMemcpyDtoDAsync_v2(dst, src, size, s);
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *c, CUstream s) {
    if (c->srcMemoryType == CU_MEMORYTYPE_ARRAY || c->dstMemoryType == CU_MEMORYTYPE_ARRAY) return CUDA_SUCCESS; /* there is nothing in them */
    struct job j = {.width = c->WidthInBytes,
                    .height = c->Height,
                    .depth = c->Depth,
                    .to_pitch = c->dstPitch,
                    .from_pitch = c->srcPitch,
                    .to_slice = c->dstPitch * c->dstHeight,
                    .from_slice = c->srcPitch * c->srcHeight};
    j.from = c->srcHost;
    if (c->srcMemoryType == CU_MEMORYTYPE_DEVICE && !from_device(&j, c->srcDevice)) return CUDA_ERROR_INVALID_VALUE;
    if (c->dstMemoryType == CU_MEMORYTYPE_DEVICE) return to_device(j, c->dstDevice, s);
    j.to = c->dstHost;
    return queue(s, j);
}
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *c, CUstream s) {
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = c->srcDevice,
                          .srcPitch = c->srcPitch,
                          .srcHeight = c->srcHeight,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = c->dstDevice,
                          .dstPitch = c->dstPitch,
                          .dstHeight = c->dstHeight,
                          .WidthInBytes = c->WidthInBytes,
                          .Height = c->Height,
                          .Depth = c->Depth};
    return cuMemcpy3DAsync_v2(&copy, s);
}

static CUresult fill(CUdeviceptr dst, size_t pitch, uint32_t element, uint32_t value, size_t width, size_t height, CUstream s) {
    if (width > SIZE) return CUDA_ERROR_INVALID_VALUE;
    return to_device((struct job){.width = width * element, .height = height, .depth = 1, .to_pitch = pitch, .element = element, .value = value}, dst,
                     s);
}
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream s) { return fill(dst, 0, 1, value, n, 1, s); }
CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t n, CUstream s) { return fill(dst, 0, 2, value, n, 1, s); }
CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t n, CUstream s) { return fill(dst, 0, 4, value, n, 1, s); }
CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height, CUstream s) {
    return fill(dst, pitch, 1, value, width, height, s);
}
CUresult cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height, CUstream s) {
    return fill(dst, pitch, 2, value, width, height, s);
}
CUresult cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height, CUstream s) {
    return fill(dst, pitch, 4, value, width, height, s);
}
