/* Virtual memory management and copies of the tests' own driver: physical memory is a file in memory, and is mapped where its addresses say. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_driver.h"

#define HANDLES 4096

struct fake_virtual fake_virtual;
static struct handle {
    int file;
    size_t size;
    bool there, exportable, foreign; /* foreign: another process's, which counts it */
} handles[HANDLES];
static struct {
    CUdeviceptr address;
    size_t size;
} mapped[HANDLES];

void fake_memory_empty(void) {
    for (unsigned i = 0; i < HANDLES; i++) {
        if (handles[i].there) close(handles[i].file);
        handles[i].there = false;
    }
    memset(mapped, 0, sizeof mapped);
    fake_virtual = (struct fake_virtual){0};
}

static CUresult virtual_state(enum fake_call call) {
    bool counts = fake_virtual.fail && (!fake_virtual.fails || fake_virtual.fails == call);
    if (!counts || fake_virtual.after-- > 0) return (CUresult)fake_driver_state();
    CUresult fail = (CUresult)fake_virtual.fail;
    fake_virtual.fail = fake_virtual.after = 0;
    return fail;
}

static bool in_room(size_t size) { return fake_virtual.bytes + size <= FAKE_DEVICE_MEMORY; }

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option) {
    *granularity = option == CU_MEM_ALLOC_GRANULARITY_MINIMUM && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? 2 << 20 : 1;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags) {
    fake_virtual.reserved = size, fake_virtual.alignment = alignment;
    CUresult status = flags ? CUDA_ERROR_INVALID_VALUE : virtual_state(FAKE_RESERVE);
    if (status) return status;
    /* A wish, which is ignored when something is there. */
    void *wish =
        addr ? mmap((void *)(uintptr_t)addr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) : MAP_FAILED;
    if (wish != MAP_FAILED) return *ptr = (CUdeviceptr)(uintptr_t)wish, CUDA_SUCCESS;
    uintptr_t at = (uintptr_t)mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *ptr = alignment ? (at + alignment - 1) / alignment * alignment : at;
    return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) { return (void)size, fake_virtual.freed = ptr, virtual_state(FAKE_FREE); }

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
    CUresult status = flags ? CUDA_ERROR_INVALID_VALUE : !in_room(size) ? CUDA_ERROR_OUT_OF_MEMORY : virtual_state(FAKE_CREATE);
    if (status) return status;
    fake_virtual.created = size, fake_virtual.prop = *prop;
    unsigned i = 1;
    while (handles[i].there) i++;
    handles[i] = (struct handle){.file = memfd_create("memory", 0), .size = size, .there = true};
    handles[i].exportable = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (ftruncate(handles[i].file, (off_t)size)) return CUDA_ERROR_OUT_OF_MEMORY;
    /* A driver promises nothing of what new memory holds. */
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, handles[i].file, 0);
    memset(at, 0xa5, size);
    munmap(at, size);
    fake_virtual.bytes += size;
    fake_virtual.handles++;
    *handle = i;
    return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    CUresult status = virtual_state(FAKE_RELEASE);
    if (status) return status;
    if (handle >= HANDLES || !handles[handle].there) return CUDA_ERROR_INVALID_VALUE;
    close(handles[handle].file);
    handles[handle].there = false;
    if (!handles[handle].foreign) fake_virtual.bytes -= handles[handle].size;
    fake_virtual.handles--;
    fake_virtual.released = handle;
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    CUresult status = offset || flags || !size ? CUDA_ERROR_INVALID_VALUE : virtual_state(FAKE_MAP);
    if (status) return status;
    if (handle >= HANDLES || !handles[handle].there || size > handles[handle].size) return CUDA_ERROR_INVALID_VALUE;
    void *at = (void *)(uintptr_t)ptr;
    if (mmap(at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, handles[handle].file, 0) == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
    fake_virtual.mapped = ptr, fake_virtual.handle = handle;
    unsigned i = 0;
    while (mapped[i].size) i++;
    mapped[i].address = ptr, mapped[i].size = size;
    fake_virtual.mapped_bytes += size;
    return CUDA_SUCCESS;
}
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr at, size_t size, CUmemRangeHandleType type, unsigned long long flags) {
    if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags || at % 4096 || size % 4096) return CUDA_ERROR_INVALID_VALUE;
    if (fake_rdma.refuses) return CUDA_ERROR_NOT_SUPPORTED;
    fake_rdma.address = at, fake_rdma.size = size;
    *(int *)handle = memfd_create("range", 0);
    return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    CUresult status = virtual_state(FAKE_UNMAP);
    if (status) return status;
    size_t there = 0;
    for (unsigned i = 0; i < HANDLES; i++)
        if (mapped[i].address >= ptr && mapped[i].address + mapped[i].size <= ptr + size) there += mapped[i].size;
    if (there != size) return CUDA_ERROR_INVALID_VALUE; /* not whole mappings */
    for (unsigned i = 0; i < HANDLES; i++)
        if (mapped[i].address >= ptr && mapped[i].address + mapped[i].size <= ptr + size) mapped[i].size = mapped[i].address = 0;
    if (mmap((void *)(uintptr_t)ptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    fake_virtual.unmapped = ptr;
    fake_virtual.mapped_bytes -= size;
    return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    CUresult status = !ptr || !size || count != 1 ? CUDA_ERROR_INVALID_VALUE : virtual_state(FAKE_ACCESS);
    if (status) return status;
    fake_virtual.access = *desc;
    int rights = desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE : desc->flags ? PROT_READ : PROT_NONE;
    return mprotect((void *)(uintptr_t)ptr, size, rights) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* ---- exports: descriptors of the memory's file ---- */

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
    bool there = handle < HANDLES && handles[handle].there && handles[handle].exportable;
    CUresult status = flags || !there || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_ERROR_INVALID_VALUE : virtual_state(FAKE_EXPORT);
    if (status) return status;
    int fd = dup(handles[handle].file);
    memcpy(out, &fd, sizeof fd);
    return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *from, CUmemAllocationHandleType type) {
    struct stat file;
    int fd = (int)(intptr_t)from;
    bool good = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !fstat(fd, &file) && S_ISREG(file.st_mode);
    CUresult status = good ? virtual_state(FAKE_IMPORT) : CUDA_ERROR_INVALID_VALUE;
    if (status) return status;
    unsigned i = 1;
    while (handles[i].there) i++;
    handles[i] = (struct handle){.file = dup(fd), .size = (size_t)file.st_size, .there = true, .foreign = true};
    fake_virtual.handles++;
    *handle = i;
    return CUDA_SUCCESS;
}

/* ---- copies, at once; of addresses that no call has reserved only what is said of them is noted ---- */

static bool real(CUdeviceptr address) { return address >= 1ull << 40; }

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    (void)stream;
    CUresult status = virtual_state(FAKE_COPY);
    if (!status && real(to)) memcpy((void *)(uintptr_t)to, from, size);
    return status;
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    (void)stream;
    CUresult status = virtual_state(FAKE_COPY);
    if (!status && real(from)) memcpy(to, (const void *)(uintptr_t)from, size);
    return status;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    (void)stream;
    CUresult status = virtual_state(FAKE_COPY);
    if (!status && real(to) && real(from)) memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, size);
    return status;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) {
    (void)stream;
    CUresult status = virtual_state(FAKE_COPY);
    if (!status && real(to)) memset((void *)(uintptr_t)to, value, size);
    return status;
}
