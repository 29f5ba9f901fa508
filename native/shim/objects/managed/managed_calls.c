/* The driver's calls for managed memory: allocation, hints, and which streams use it. */
#include "objects/managed/managed.h"

#include <unistd.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"
#include "objects/managed/advice.h"
#include "objects/managed/coherence.h"
#include "objects/managed/transfer.h"

/* ---- allocation ---- */

/* Both copies begin as zeros: the host's pages are, and the device's memory, which may have been used before, is filled. */
static int fill(struct shim_context *c, uint64_t address, uint64_t size) {
    struct shim_stream *s = c->legacy;
    struct gv_cmd_fill f = {.stream = stream_id(s), .dst = address, .pitch = size, .elem = 1, .width = size, .height = 1};
    uint64_t seq = post_fill(stream_ctx(s), GV_RECORD_MARK, &f);
    if (!seq) return post_refused();
    stream_posted(s, seq, true);
    stream_copied(s, seq);
    pthread_mutex_lock(&region_lock);
    struct region *r = region_find(address);
    if (r) r->pushed = (struct passing){s, s->object.id, seq}; /* as a copy to the device, which what is sent on another stream must not overtake */
    pthread_mutex_unlock(&region_lock);
    return 0;
}

/* The pages at `low`, in which [address, address + size) are the program's. As region_make. */
static int make_at(struct shim_context *c, uint64_t low, uint64_t address, uint64_t size, unsigned attached, enum block_state state, bool shared) {
    int rc = region_make(c, low, address - low + size, attached, state, shared, &coherence_watch);
    pthread_mutex_lock(&region_lock);
    struct region *r = region_find(low);
    for (; !rc && r && region_base(r) < address + size; r = region_next(region_base(r) + 1))
        rc = state != BLOCK_STALE ? region_extend(r, address, size) : coherence_add(r, address, size);
    pthread_mutex_unlock(&region_lock);
    return rc;
}

static int make(struct shim_context *c, uint64_t low, uint64_t address, uint64_t size, unsigned attached, enum block_state state, bool shared) {
    int rc = make_at(c, low, address, size, attached, state, shared);
    if (rc != CUDA_ERROR_ALREADY_MAPPED) return rc;
    shim_log_once("managed memory: this process uses the addresses at %#llx, where the server's driver placed it", (unsigned long long)low);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

int managed_variable(struct shim_context *c, uint64_t address, uint64_t size) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), low = address & ~(page - 1);
    int rc = transfer_prepare(c);
    return rc ? rc : make(c, low, address, size, CU_MEM_ATTACH_GLOBAL, BLOCK_STALE, false);
}

static void note_mapped(uint64_t address) {
    pthread_mutex_lock(&region_lock);
    struct region *r = region_find(address);
    if (r) r->mapped = true;
    pthread_mutex_unlock(&region_lock);
}

int managed_host_memory(struct shim_context *c, uint64_t address, uint64_t size) {
    int rc = transfer_prepare(c);
    if (!rc) rc = make(c, address, address, size, CU_MEM_ATTACH_GLOBAL, BLOCK_DIRTY, true);
    if (!rc) note_mapped(address);
    return rc;
}

/* Tries to have addresses that both the server's driver and this process have free. */
#define PLACES 16

static int allocate(struct shim_context *c, size_t size, unsigned flags, CUdeviceptr *out) {
    CUdeviceptr taken[PLACES], address;
    unsigned n = 0;
    int rc = transfer_prepare(c);
    while (!rc) {
        rc = memory_allocate_pages(c, size, &address);
        if (rc) break;
        bool last = n == PLACES;
        rc = (last ? make : make_at)(c, address, address, size, flags, BLOCK_CLEAN, false);
        if (rc == CUDA_ERROR_ALREADY_MAPPED) {
            taken[n++] = address; /* held, so that the next one is another */
            rc = 0;
            continue;
        }
        if (!rc) rc = fill(c, address, size);
        if (rc)
            memory_release(address);
        else
            *out = address;
        break;
    }
    while (n) memory_release(taken[--n]);
    return rc;
}

int managed_host_allocate(struct shim_context *c, uint64_t size, uint64_t *out) {
    CUdeviceptr made;
    int rc = allocate(c, size, CU_MEM_ATTACH_GLOBAL, &made);
    if (!rc) note_mapped(*out = made);
    return rc;
}

CUresult impl_cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (!rc) rc = capture_unsafe();
    if (rc) return rc;
    if (!address || !size || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) return CUDA_ERROR_INVALID_VALUE;
    if (!device_attribute(c->info, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)) return CUDA_ERROR_NOT_SUPPORTED;
    CUdeviceptr made = 0;
    rc = allocate(c, size, flags, &made);
    if (!rc) *address = made;
    return rc;
}

/* ---- streams ---- */

CUresult impl_cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t length, unsigned int flags) {
    struct shim_stream *s;
    struct range range;
    int rc = stream_require(stream, &s);
    if (!rc && stream_captures(s)) rc = capture_forbidden(s);
    if (rc) return rc;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE) return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_MEM_ATTACH_SINGLE && stream_is_default(s)) return CUDA_ERROR_INVALID_VALUE;
    if (!range_find_device(address, &range) || !range.managed || range.mapped || range_base(&range) != address) return CUDA_ERROR_INVALID_VALUE;
    if (length && length != range.size) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&region_lock);
    struct region *r = region_find(address);
    if (r) {
        r->attached = flags;
        r->stream = s;
        r->stream_id = s->object.id;
    }
    pthread_mutex_unlock(&region_lock);
    return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- prefetching ---- */

/* To a device: what the host has written is sent now. Reading it on the host needs no copy back then. On the legacy stream it stands between the work of
 * other streams before and after it, also when there is nothing to copy. */
static int prefetch(struct shim_stream *s, uint64_t address, uint64_t size, CUmemLocation to) {
    int rc = to.type == CU_MEM_LOCATION_TYPE_DEVICE ? managed_access(s, address, size, false, false) : coherence_prefetch(s, address, size);
    if (!rc && s->kind == STREAM_LEGACY) rc = stream_barrier(s);
    if (!rc) advice_prefetched(address, size, to);
    return rc;
}

static int check(CUdeviceptr address, size_t size, CUmemLocation to) {
    int rc = advice_location(to);
    return rc ? rc : advice_range(address, size);
}

CUresult impl_cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation to, unsigned int flags, CUstream stream) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (!rc && stream_captures(s)) rc = capture_forbidden(s);
    if (!rc && flags) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = check(address, size, to);
    return rc ? rc : prefetch(s, address, size, to);
}

CUresult impl_cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream stream) {
    return impl_cuMemPrefetchAsync_v2(address, size, advice_device(device), 0, stream);
}

/* The place of the range `i` of a batch. */
static CUmemLocation place(const CUmemLocation *to, const size_t *from, size_t n, size_t i) {
    size_t k = 0;
    while (k + 1 < n && from[k + 1] <= i) k++;
    return to[k];
}

static int check_batch(const CUdeviceptr *addresses, const size_t *sizes, size_t n, const CUmemLocation *to, const size_t *from, size_t n_to,
                       unsigned long long flags, CUstream stream) {
    if (!addresses || !sizes || !n || flags || !stream || stream == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_VALUE;
    if (to && (!from || !n_to || n_to > n || from[0])) return CUDA_ERROR_INVALID_VALUE;
    for (size_t k = 1; to && k < n_to; k++)
        if (from[k] <= from[k - 1] || from[k] >= n) return CUDA_ERROR_INVALID_VALUE;
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) rc = to ? check(addresses[i], sizes[i], place(to, from, n_to, i)) : advice_range(addresses[i], sizes[i]);
    return rc;
}

static int batch(const CUdeviceptr *addresses, const size_t *sizes, size_t n, const CUmemLocation *to, const size_t *from, size_t n_to,
                 unsigned long long flags, CUstream stream, bool discard) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (!rc && stream_captures(s)) rc = capture_forbidden(s);
    if (!rc) rc = check_batch(addresses, sizes, n, to, from, n_to, flags, stream);
    for (size_t i = 0; i < n && !rc; i++) {
        if (discard) rc = managed_access(s, addresses[i], sizes[i], true, true); /* what the host has written is not sent */
        if (!rc && to) rc = prefetch(s, addresses[i], sizes[i], place(to, from, n_to, i));
    }
    return rc;
}

CUresult impl_cuMemPrefetchBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t n, CUmemLocation *to, size_t *from, size_t n_to,
                                      unsigned long long flags, CUstream stream) {
    if (!to) return shim_initialized() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    return batch(addresses, sizes, n, to, from, n_to, flags, stream, false);
}

CUresult impl_cuMemDiscardBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t n, unsigned long long flags, CUstream stream) {
    return batch(addresses, sizes, n, NULL, NULL, 0, flags, stream, true);
}

CUresult impl_cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t n, CUmemLocation *to, size_t *from, size_t n_to,
                                                unsigned long long flags, CUstream stream) {
    if (!to) return shim_initialized() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    return batch(addresses, sizes, n, to, from, n_to, flags, stream, true);
}
