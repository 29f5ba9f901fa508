/* Pinned host memory. The client pins nothing: the memory is ordinary memory that the address map records, so that copies may send from it after they return. */
#include <sys/mman.h>
#include <unistd.h>

#include "gv_impl.h"
#include "objects/memory/host_mapping.h"
#include "objects/objects.h"

/* ---- allocation ---------------------------------------------------------------------------------------------------- */

/* Largest allocation, in bytes, that lies at addresses of the window, where it can become device memory as well. Larger ones are private pages, which the kernel makes huge ones of. */
#define MOST_PLACED (16ull << 20)

static size_t page_round(size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) & ~(page - 1);
}

static void unplace(struct shim_context *c, uint64_t base, uint64_t size) {
    void *at = (void *)(uintptr_t)base;
    bool kept = mmap(at, page_round(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at;
    if (kept) memory_unreserve(c->server_device, base, host_chunks(c, size)); /* else the addresses are lost for the session */
}

/* Shared pages at addresses of the window. 0: there is no room. */
static uint64_t place(struct shim_context *c, size_t size) {
    uint64_t base;
    if (session_server()->addresses != GV_ADDRESSES_FIXED || size > MOST_PLACED) return 0;
    if (memory_reserve(c->server_device, host_chunks(c, size), 0, 0, &base)) return 0;
    void *at = (void *)(uintptr_t)base;
    if (mmap(at, page_round(size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at) return base;
    unplace(c, base, size);
    return 0;
}

static int allocate(struct shim_context *c, size_t size, unsigned flags, uint64_t *out) {
    struct range r = {.size = size, .kind = RANGE_HOST, .ctx = c->id, .device = c->device, .context = c, .flags = flags};
    uint64_t base = place(c, size);
    r.placed = base != 0;
    if (!base) {
        void *memory = mmap(NULL, page_round(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
        base = (uint64_t)(uintptr_t)memory;
    }
    int rc = range_add(&r, base);
    if (!rc) {
        session_memory_offer((void *)(uintptr_t)base, size);
        *out = base;
    } else if (r.placed) {
        unplace(c, base, size);
    } else {
        munmap((void *)(uintptr_t)base, page_round(size));
    }
    return rc;
}

CUresult impl_cuMemHostAlloc(void **out, size_t size, unsigned int flags) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    const unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (!out || !size || flags & ~known || size > SIZE_MAX / 2) return CUDA_ERROR_INVALID_VALUE;
    uint64_t base;
    rc = flags & CU_MEMHOSTALLOC_DEVICEMAP ? host_mapped_allocate(c, size, flags, &base) : allocate(c, size, flags, &base);
    if (!rc) *out = (void *)(uintptr_t)base;
    return rc;
}

CUresult impl_cuMemAllocHost(void **out, size_t size) { return impl_cuMemHostAlloc(out, size, 0); }

CUresult impl_cuMemFreeHost(void *memory) {
    struct range r;
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!memory) return CUDA_SUCCESS; /* as free(), cudaFree and cudaFreeHost have it */
    uint64_t base = (uint64_t)(uintptr_t)memory;
    if (!range_find_host(base, &r) || range_base(&r) != base || r.kind != RANGE_HOST) return CUDA_ERROR_INVALID_VALUE;
    host_writes_wait(base, base + r.size);   /* no writer may be left */
    session_loans_wait(base, base + r.size); /* and no reader */
    host_unshadow(&r);
    if (!range_remove(base, RANGE_HOST, RANGE_HOST, &r)) return CUDA_ERROR_INVALID_VALUE;
    session_memory_take_back(memory);
    if (r.mapped) host_unmap(base, &r);
    if (r.placed)
        unplace(r.context, base, r.size);
    else if (!r.mapped)
        munmap(memory, page_round(r.size));
    return CUDA_SUCCESS;
}

CUresult impl_cuMemHostGetFlags(unsigned int *flags, void *memory) {
    struct range r;
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!flags || !range_find_host((uint64_t)(uintptr_t)memory, &r) || r.kind != RANGE_HOST) return CUDA_ERROR_INVALID_VALUE;
    /* As drivers have it where addresses are unified: all memory is mapped, and that it is portable is not told. */
    *flags = (r.flags & ~(unsigned)CU_MEMHOSTALLOC_PORTABLE) | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemHostGetDevicePointer(CUdeviceptr *address, void *memory, unsigned int flags) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    struct range r;
    uint64_t at = (uint64_t)(uintptr_t)memory;
    if (!address || flags || !range_find_host(at, &r)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t base = range_base(&r);
    rc = r.placed || r.mapped ? host_map(&r) : host_shadow(&r, &base);
    if (!rc) *address = base + (at - range_base(&r));
    return rc;
}

/* ---- registration -------------------------------------------------------------------------------------------------- */

CUresult impl_cuMemHostRegister(void *memory, size_t size, unsigned int flags) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    const unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    uint64_t base = (uint64_t)(uintptr_t)memory;
    if (!memory || !size || flags & ~known || size > UINT64_MAX - base) return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_MEMHOSTREGISTER_IOMEMORY) {
        shim_log_once("cuMemHostRegister: memory of other devices is not supported");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (range_host_overlaps(base, size)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct range r = {.size = size, .kind = RANGE_REGISTERED, .ctx = c->id, .device = c->device, .context = c, .flags = flags};
    rc = range_add(&r, base);
    if (!rc) session_memory_offer(memory, size);
    return rc;
}

CUresult impl_cuMemHostUnregister(void *memory) {
    struct range r;
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    uint64_t base = (uint64_t)(uintptr_t)memory;
    if (!range_find_host(base, &r) || range_base(&r) != base || r.kind != RANGE_REGISTERED) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    host_writes_wait(base, base + r.size);
    session_loans_wait(base, base + r.size);
    host_unshadow(&r);
    if (!range_remove(base, RANGE_REGISTERED, RANGE_REGISTERED, &r)) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    session_memory_take_back(memory);
    return CUDA_SUCCESS;
}
