#include "objects/memory/host_mapping.h"

#include <string.h>

#include "objects/managed/managed.h"
#include "objects/managed/shadow.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* one range is mapped at a time */

/* Adds the range to the map of device memory as well. */
static int add(const struct range *host, uint64_t base) {
    struct range device = *host;
    device.kind = RANGE_DEVICE;
    device.mapped = true;
    return range_add(&device, base);
}

int host_mapped_allocate(struct shim_context *c, size_t size, unsigned flags, uint64_t *out) {
    uint64_t base;
    int rc = managed_host_allocate(c, size, &base);
    struct range host;
    if (rc) return rc;
    if (range_find_device(base, &host)) {
        range_set_mapped(base, flags);
        host.kind = RANGE_HOST;
        host.flags = flags;
        host.mapped = true;
        rc = range_add(&host, base);
    }
    if (rc)
        memory_release_mapped(base);
    else
        *out = base;
    return rc;
}

int host_map(const struct range *r) {
    uint64_t base = range_base(r);
    struct range now;
    int rc = 0;
    if (r->mapped) return 0;
    if (!r->placed) return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    if (range_find_host(base, &now) && !now.mapped) {
        /* Copies that are under way to and from the pages as host memory must be over: they would meet pages that are not accessible. */
        host_writes_wait(base, base + r->size);
        session_loans_wait(base, base + r->size);
        session_memory_take_back((void *)(uintptr_t)base); /* others take their place */
        rc = memory_back(r->context, base, host_chunks(r->context, r->size));
        if (!rc && (rc = managed_host_memory(r->context, base, r->size))) memory_unback(r->context, base, host_chunks(r->context, r->size));
        if (!rc) rc = add(r, base);
        if (!rc) range_set_mapped(base, r->flags);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int host_shadow(const struct range *r, uint64_t *device) {
    uint64_t base = range_base(r);
    struct range now;
    CUdeviceptr made = 0;
    int rc = CUDA_ERROR_INVALID_VALUE; /* it was freed meanwhile */
    pthread_mutex_lock(&lock);
    if (range_find_host(base, &now) && range_base(&now) == base) {
        *device = now.shadow;
        rc = now.shadow ? 0 : memory_allocate(now.context, now.size, &made);
    }
    if (!rc && made) {
        *device = made;
        rc = shadow_add(&now, made);
        if (rc) memory_release(made);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

void host_unshadow(const struct range *r) {
    if (!r->shadow) return;
    stream_drain_context(NULL); /* as in the driver: nothing may be using it */
    shadow_remove(range_base(r));
    memory_release_mapped(r->shadow);
}

static void forget(uint64_t base) {
    range_remove(base, RANGE_DEVICE, RANGE_DEVICE, NULL);
    managed_forget(base);
}

static void unback(uint64_t base, const struct range *r) {
    forget(base);
    memory_unback(r->context, base, host_chunks(r->context, r->size));
}

void host_unmap(uint64_t base, const struct range *r) {
    struct range device;
    stream_drain_context(NULL); /* as in the driver: nothing may be using it */
    if (!r->placed) {
        memory_release_mapped(base);
    } else if (range_find_device(base, &device) && device.mapped) { /* else its context has ended */
        forget(base);
        stream_drain_context(NULL); /* what other threads' launches have sent there meanwhile must have arrived: its memory goes at once */
        memory_unback(r->context, base, host_chunks(r->context, r->size));
    }
}

void host_context_gone(struct shim_context *c) {
    struct range r;
    for (uint64_t from = 0; range_next_of(c->id, from, &r); from = range_base(&r) + 1)
        if (r.mapped && r.placed) unback(range_base(&r), &r);
    shadow_context_gone(c); /* their memory goes with the context's */
}

/* A pointer to memory that is not mapped and can be. */
static bool to_be_mapped(uint64_t word, struct range *r) { return range_may_be_placed(word) && range_find_host(word, r) && r->placed && !r->mapped; }

static bool wanted(uint64_t word) {
    struct range r;
    return to_be_mapped(word, &r);
}

int host_map_pointers(const void *bytes, size_t size) {
    int rc = 0;
    for (size_t i = 0; i + 8 <= size && !rc; i += 8) {
        uint64_t word;
        struct range r;
        memcpy(&word, (const char *)bytes + i, 8);
        if (to_be_mapped(word, &r)) rc = host_map(&r);
    }
    return rc;
}

int host_map_reachable(const void *params, size_t size) {
    uint64_t found[64];
    int rc = host_map_pointers(params, size);
    /* What is mapped may point on. */
    while (!rc && atomic_load_explicit(&range_unmapped, memory_order_relaxed) && managed_in_use()) {
        size_t n = managed_pointers(wanted, found, sizeof found / sizeof *found);
        if (!n) break;
        rc = host_map_pointers(found, n * sizeof *found);
    }
    return rc;
}
