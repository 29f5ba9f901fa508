/* Device memory. With fixed addresses the client places each allocation in memory that the worker has already backed (credit); only an allocation that
 * exceeds the credit waits for the worker. */
#include <stdlib.h>
#include <unistd.h>

#include "wire/window.h"
#include "objects/memory/allocator.h"
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"
#include "objects/ipc.h"
#include "objects/managed/managed.h"

/* Most bytes of free credit that are kept; the limit is a sixteenth of the device's memory if that is less. */
#define MOST_KEPT (256ull << 20)
/* Smaller blocks, in bytes, are not given back while the device has memory. */
#define SHRINK_LEAST (64ull << 20)

/* One device of the server. */
static struct device_memory {
    pthread_mutex_t lock;
    bool ready;
    uint32_t ctx;    /* context of the current command; under lock */
    uint64_t fenced; /* bytes in quarantine when fences were last posted */
    /* A request for credit in advance; its answer is read when memory is needed next. */
    bool asked;
    struct session_reply ahead;
    uint64_t ahead_address, ahead_size;
    uint64_t refused; /* bytes that were backed when the worker last refused */
    struct allocator allocator;
} devices[GV_MAX_DEVICES] = {[0 ... GV_MAX_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static bool fixed_addresses(void) { return session_server()->addresses == GV_ADDRESSES_FIXED; }

static int grow(void *arg, uint64_t address, uint64_t needed, bool waits, uint64_t *size) {
    struct device_memory *m = arg;
    struct session_reply reply;
    struct gv_reply_memory_grow answer = {0};
    int rc =
        call_memory_grow(m->ctx, &(struct gv_cmd_memory_grow){.address = address, .size = *size, .needed = needed, .waits = waits}, &answer, &reply);
    session_reply_done(&reply);
    if (rc) return rc;
    if (answer.size != *size && answer.size != needed) return CUDA_ERROR_UNKNOWN; /* no server of ours says that */
    *size = answer.size;
    return 0;
}

static void shrink(void *arg, uint64_t address, uint64_t size) {
    struct device_memory *m = arg;
    post_memory_shrink(m->ctx, 0, &(struct gv_cmd_memory_shrink){.address = address, .size = size});
}

/* Bytes of free credit to keep for later allocations; the rest is given back. */
static uint64_t most_kept(const struct shim_context *c) {
    uint64_t sixteenth = c->info->total_memory / 16;
    return sixteenth < MOST_KEPT ? sixteenth : MOST_KEPT;
}

/* Takes the answer to the request for credit in advance if it has arrived, or waits for it. True when there was a request. lock held. */
static bool ahead_answered(struct device_memory *m, bool wait) {
    if (!m->asked) return false;
    if (wait)
        session_wait_call(&m->ahead);
    else if (!atomic_load(&m->ahead.answered))
        return false;
    m->asked = false;
    int status = m->ahead.status;
    session_reply_done(&m->ahead);
    if (status) m->refused = m->allocator.backed;
    allocator_ahead_done(&m->allocator, m->ahead_address, m->ahead_size, !status);
    return true;
}

/* Requests credit without waiting when little is left, so that a program that continues to allocate does not wait: as many bytes as are backed, and
 * never so many that they would be given back. None of them is needed: the worker gives what is free, and a refusal is no error. lock held. */
static void grow_ahead(struct device_memory *m, const struct shim_context *c) {
    struct allocator *a = &m->allocator;
    uint64_t kept = most_kept(c), low = a->backed < kept ? a->backed / 4 : kept / 4, want = a->backed < kept / 2 ? a->backed : kept / 2;
    if (m->asked || a->free_bytes + a->quarantined >= low || a->backed == m->refused) return;
    m->ahead_size = allocator_ahead(a, want, &m->ahead_address);
    if (!m->ahead_size) return;
    struct gv_cmd_memory_grow command = {.address = m->ahead_address, .size = m->ahead_size};
    void *body = session_begin_call(GV_OP_MEMORY_GROW, m->ctx, (uint32_t)gv_cmd_memory_grow_size(&command), &m->ahead);
    if (body) gv_cmd_memory_grow_encode(&command, body);
    m->asked = body && session_send_call(&m->ahead);
    if (!m->asked) allocator_ahead_done(a, m->ahead_address, m->ahead_size, false); /* the session is lost */
}

/* The device's memory, set up at first use; lock held. */
static int prepare(struct device_memory *m, uint32_t server_device) {
    if (m->ready) return 0;
    const struct shim_server *server = session_server();
    struct gv_window_part part = gv_window_part(server->window_base, server->window_size, server->n_devices, server_device);
    uint64_t chunk = server->devices[server_device].chunk;
    if (allocator_init(&m->allocator, part.base, part.client_size, chunk ? chunk : ALLOCATOR_MIN_GROW, server->initial))
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->allocator.grow = grow;
    m->allocator.shrink = shrink;
    m->allocator.arg = m;
    m->ready = true;
    return 0;
}

/* Releases from quarantine what every stream has passed, and gives back free credit beyond the limit; lock held. */
static void settle(struct device_memory *m, const struct shim_context *c) {
    if (m->allocator.first) {
        uint64_t newest, passed;
        stream_progress(&newest, &passed);
        allocator_release(&m->allocator, passed);
        if (m->fenced > m->allocator.quarantined) m->fenced = m->allocator.quarantined;
    }
    uint64_t keep = most_kept(c);
    if (m->allocator.free_bytes > keep) allocator_shrink(&m->allocator, SHRINK_LEAST, keep);
}

/* Waits until all that is in quarantine now has been released; lock held, released during the wait. */
static void wait_quarantine(struct device_memory *m, const struct shim_context *c) {
    pthread_mutex_unlock(&m->lock);
    stream_drain_context(NULL);
    pthread_mutex_lock(&m->lock);
    m->ctx = c->id;
    settle(m, c);
}

/* Places `size` bytes (as allocator_round gives them) at a multiple of `alignment`. */
static int place(struct device_memory *m, struct shim_context *c, uint64_t size, uint64_t alignment, uint64_t *address) {
    struct allocator *a = &m->allocator;
    uint64_t needed = allocator_aligned(size, alignment);
    if (a->first) {
        session_poll();
        uint64_t newest, passed;
        stream_progress(&newest, &passed);
        allocator_release(a, passed);
    }
    ahead_answered(m, false);
    if ((*address = allocator_take_aligned(a, size, alignment))) return 0;
    if (ahead_answered(m, true) && (*address = allocator_take_aligned(a, size, alignment))) return 0;
    /* When most of the backed memory is in quarantine, wait for the device; else request more memory. What this session has itself is used first, before others
     * have to give way. */
    if (a->quarantined >= needed && a->quarantined >= a->backed / 2) {
        wait_quarantine(m, c);
        if ((*address = allocator_take_aligned(a, size, alignment))) return 0;
    }
    bool waits = !a->quarantined && a->free_bytes < a->chunk;
    int rc = allocator_grow(a, needed, c->info->total_memory / 8, waits);
    if (!rc) {
        *address = allocator_take_aligned(a, size, alignment);
        return *address ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (rc != CUDA_ERROR_OUT_OF_MEMORY) return rc;
    /* Last, wait for the quarantine; then give back all free credit, whose pieces are too small, and request one piece. */
    if (a->quarantined) {
        wait_quarantine(m, c);
        if ((*address = allocator_take_aligned(a, size, alignment))) return 0;
    }
    if (allocator_shrink(a, 0, 0) || !waits) rc = allocator_grow(a, needed, 0, true);
    if (!rc) {
        *address = allocator_take_aligned(a, size, alignment);
        return *address ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return rc;
}

/* Bytes that an allocation occupies; 0 when that does not fit 64 bits. Managed memory has whole pages of the host. */
static uint64_t occupied(uint64_t size, bool managed) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!managed) return allocator_round(size);
    return size > UINT64_MAX - page ? 0 : (size + page - 1) & ~(page - 1);
}

/* Asks the worker, which places memory itself. *lead: bytes to leave out at the beginning, for the alignment. */
static int allocate_there(struct shim_context *c, uint64_t bytes, uint64_t alignment, uint64_t *address, uint64_t *lead) {
    struct session_reply reply;
    struct gv_reply_memory_alloc answer = {0};
    uint64_t more = alignment > ALLOCATOR_ALIGN ? alignment : 0;
    int rc = call_memory_alloc(c->id, &(struct gv_cmd_memory_alloc){.size = bytes + more}, &answer, &reply);
    session_reply_done(&reply);
    *lead = more ? -answer.address & (alignment - 1) : 0;
    *address = answer.address + *lead;
    return rc;
}

static int allocate(struct shim_context *c, size_t size, bool managed, CUdeviceptr *out) {
    if (!size) return CUDA_ERROR_INVALID_VALUE;
    uint64_t bytes = occupied(size, managed), address = 0, lead = 0, alignment = managed ? (uint64_t)sysconf(_SC_PAGESIZE) : ALLOCATOR_ALIGN;
    if (!bytes || bytes > c->info->total_memory) return CUDA_ERROR_OUT_OF_MEMORY;
    int rc;
    if (fixed_addresses()) {
        struct device_memory *m = &devices[c->server_device];
        pthread_mutex_lock(&m->lock);
        m->ctx = c->id;
        rc = prepare(m, c->server_device);
        if (!rc) rc = place(m, c, bytes, alignment, &address);
        if (!rc) grow_ahead(m, c);
        pthread_mutex_unlock(&m->lock);
    } else {
        rc = allocate_there(c, managed ? bytes : size, alignment, &address, &lead);
    }
    if (rc) return rc;
    struct range r = {.size = size, .kind = RANGE_DEVICE, .ctx = c->id, .device = c->device, .context = c, .lead = lead, .managed = managed};
    rc = range_add(&r, address);
    if (!rc) *out = address;
    return rc;
}

int memory_allocate(struct shim_context *c, size_t size, CUdeviceptr *out) { return allocate(c, size, false, out); }

int memory_allocate_pages(struct shim_context *c, size_t size, CUdeviceptr *out) { return allocate(c, size, true, out); }

/* Gives back a range that is no longer in the map. */
static void give(const struct range *r) {
    if (r->exported) ipc_forget(range_base(r));
    if (r->managed) managed_forget(range_base(r));
    if (!fixed_addresses()) {
        post_memory_free(r->ctx, 0, &(struct gv_cmd_memory_free){.address = range_base(r) - r->lead});
        return;
    }
    struct device_memory *m = &devices[r->context->server_device];
    uint64_t newest, passed;
    stream_progress(&newest, &passed);
    pthread_mutex_lock(&m->lock);
    m->ctx = r->ctx;
    allocator_give(&m->allocator, range_base(r), occupied(r->size, r->managed), newest);
    settle(m, r->context);
    /* Fences from time to time tell how far the streams are, so that the quarantine empties while the program runs. */
    bool fence = m->allocator.quarantined > m->fenced + m->allocator.backed / 8;
    if (fence) m->fenced = m->allocator.quarantined;
    pthread_mutex_unlock(&m->lock);
    if (fence) stream_fence_all();
}

static int (*free_of_imported)(CUdeviceptr address);
static void (*imported_ended)(CUdeviceptr address);

void memory_on_imported(int (*freed)(CUdeviceptr address), void (*context_ended)(CUdeviceptr address)) {
    free_of_imported = freed;
    imported_ended = context_ended;
}

void memory_context_gone(struct shim_context *c) {
    struct range r;
    for (uint64_t from = 0; range_next_of(c->id, from, &r); from = range_base(&r) + 1) {
        enum range_kind kind = r.kind;
        if (!range_remove(range_base(&r), kind, kind, &r) || kind != RANGE_DEVICE) continue;
        if (r.imported)
            imported_ended(range_base(&r));
        else
            give(&r);
    }
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

CUresult impl_cuMemAlloc(CUdeviceptr *address, size_t size) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (!rc) rc = capture_unsafe();
    if (rc) return rc;
    if (!address) return CUDA_ERROR_INVALID_VALUE;
    return memory_allocate(c, size, address);
}

CUresult impl_cuMemAllocPitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!address || !pitch || !width || !height || (element != 4 && element != 8 && element != 16)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t align = (uint64_t)device_attribute(c->info, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    if (align < ALLOCATOR_ALIGN) align = ALLOCATOR_ALIGN;
    uint64_t row;
    if (width > SIZE_MAX - align) return CUDA_ERROR_INVALID_VALUE;
    row = (width + align - 1) / align * align;
    int most = device_attribute(c->info, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    if (most > 0 && row > (uint64_t)most) return CUDA_ERROR_INVALID_VALUE;
    if (height > SIZE_MAX / row) return CUDA_ERROR_OUT_OF_MEMORY;
    rc = memory_allocate(c, row * height, address);
    if (!rc) *pitch = row;
    return rc;
}

/* From any thread and with any current context: memory belongs to the context it was allocated in. */
static int (*free_of_graph)(CUdeviceptr address);

void memory_on_graph_free(int (*call)(CUdeviceptr address)) { free_of_graph = call; }

int memory_release(CUdeviceptr address) {
    struct range r;
    if (range_find_device(address, &r) && r.imported && range_base(&r) == address) return free_of_imported(address);
    if (range_find_device(address, &r) && r.graph && range_base(&r) == address) return free_of_graph(address);
    return range_find_device(address, &r) && r.mapped ? (int)CUDA_ERROR_INVALID_VALUE : memory_release_mapped(address);
}

int memory_release_mapped(CUdeviceptr address) {
    struct range r;
    if (!range_remove(address, RANGE_DEVICE, RANGE_DEVICE, &r)) return CUDA_ERROR_INVALID_VALUE;
    give(&r);
    return 0;
}

CUresult impl_cuMemFree(CUdeviceptr address) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc && (rc != CUDA_ERROR_INVALID_CONTEXT || !address)) return rc; /* no context need be current */
    return address ? memory_release(address) : 0;
}

void memory_trim(struct shim_context *c, uint64_t keep) {
    if (!fixed_addresses()) return;
    struct device_memory *m = &devices[c->server_device];
    pthread_mutex_lock(&m->lock);
    if (!prepare(m, c->server_device)) {
        m->ctx = c->id;
        ahead_answered(m, true);
        settle(m, c);
        allocator_shrink(&m->allocator, 0, keep);
    }
    pthread_mutex_unlock(&m->lock);
}

int memory_reserve(uint32_t server_device, uint64_t size, uint64_t alignment, uint64_t hint, uint64_t *address) {
    struct device_memory *m = &devices[server_device];
    pthread_mutex_lock(&m->lock);
    *address = prepare(m, server_device) ? 0 : allocator_reserve(&m->allocator, size, alignment, hint);
    pthread_mutex_unlock(&m->lock);
    return *address ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

void memory_unreserve(uint32_t server_device, uint64_t address, uint64_t size) {
    struct device_memory *m = &devices[server_device];
    pthread_mutex_lock(&m->lock);
    allocator_unreserve(&m->allocator, address, size);
    pthread_mutex_unlock(&m->lock);
}

int memory_back(struct shim_context *c, uint64_t address, uint64_t size) {
    struct device_memory *m = &devices[c->server_device];
    pthread_mutex_lock(&m->lock);
    m->ctx = c->id;
    int rc = grow(m, address, size, true, &size);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

void memory_unback(struct shim_context *c, uint64_t address, uint64_t size) {
    struct device_memory *m = &devices[c->server_device];
    pthread_mutex_lock(&m->lock);
    m->ctx = c->id;
    shrink(m, address, size);
    pthread_mutex_unlock(&m->lock);
}

void memory_usage(uint32_t server_device, uint64_t *reserved, uint64_t *used) {
    struct device_memory *m = &devices[server_device];
    pthread_mutex_lock(&m->lock);
    *reserved = m->allocator.backed;
    *used = m->allocator.used;
    pthread_mutex_unlock(&m->lock);
}

CUresult impl_cuMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    struct session_reply reply;
    struct gv_reply_memory_info answer = {0};
    rc = call_memory_info(c->id, &(struct gv_cmd_memory_info){0}, &answer, &reply);
    session_reply_done(&reply);
    if (rc) return rc;
    uint64_t credit = 0;
    if (fixed_addresses()) {
        struct device_memory *m = &devices[c->server_device];
        pthread_mutex_lock(&m->lock);
        ahead_answered(m, false); /* the worker counts requested credit as used */
        /* Backed memory that the program does not use is free memory to the program. */
        credit = m->ready ? m->allocator.backed - m->allocator.used : session_server()->initial;
        pthread_mutex_unlock(&m->lock);
    }
    answer.free += credit;
    if (free_bytes) *free_bytes = answer.free < answer.total ? answer.free : answer.total;
    if (total_bytes) *total_bytes = answer.total;
    return CUDA_SUCCESS;
}
