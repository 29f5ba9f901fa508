/* Device memory: the window and its backed ranges, allocations placed by the worker, and the limits of session, device and pool. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stream.h"
#include "../../wire/clock.h"
#include "mappings.h"
#include "shared/shared.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

#define HUGE_PAGE (2u << 20)
#define DEFAULT_MEMORY (4ull << 30)
#define FREE_PATIENCE 10000000000 /* ns that an allocation waits for frees that wait for the device */

static uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) & ~(unit - 1); }

/* ---- limits ---- */

/* What is refused for want of room may be refused for another reason too: whoever asks, asks a few times at most. */
bool soft_memory_make_room(struct gv_backend *b, const struct soft_device *d, uint64_t size) {
    struct soft_memory *m = &b->memory;
    pthread_mutex_lock(&m->lock);
    bool others_have_it = memory_others_have_it(&m->room, &d->share, size);
    bool short_of_room = others_have_it && memory_unused(&m->room, &d->share) < size;
    pthread_mutex_unlock(&m->lock);
    if (!short_of_room || !m->room.make) return others_have_it && !short_of_room;
    return m->room.make(m->room.make_arg, d->share.ordinal, size);
}

int soft_memory_info(struct gv_context *c, uint64_t *free_bytes, uint64_t *total_bytes) {
    struct gv_backend *b = c->backend;
    struct soft_device *d = c->device;
    pthread_mutex_lock(&b->memory.lock);
    uint64_t left = d->share.limit - d->share.used;
    if (b->memory.room.usage) {
        uint64_t pool = memory_unused(&b->memory.room, &d->share);
        if (left > pool) left = pool;
    }
    left += d->freed; /* which an allocation waits for */
    pthread_mutex_unlock(&b->memory.lock);
    *free_bytes = left;
    *total_bytes = d->share.limit;
    return 0;
}

/* ---- open, close ---- */

int soft_memory_open(struct gv_backend *b, const struct gv_backend_config *config, char *err) {
    struct soft_memory *m = &b->memory;
    pthread_mutex_init(&m->lock, NULL);
    if (config->memory_file > 0) {
        struct stat file;
        if (fstat(config->memory_file, &file)) {
            snprintf(err, GV_ERR_SIZE, "the file for shared device memory: %s", strerror(errno));
            return CUDA_ERROR_INVALID_VALUE;
        }
        m->file = config->memory_file;
        m->file_size = (uint64_t)file.st_size;
        m->has_file = true;
    }
    soft_shared_open(b, config);
    int status = memory_room_open(&m->room, config, err);
    uint64_t total = config->device_memory ? config->device_memory : DEFAULT_MEMORY;
    for (uint32_t i = 0; !status && i < b->n_devices; i++) memory_share_open(&m->room, &b->devices[i].share, config, i, total);
    return status;
}

/* Releases pages of the window: later accesses get new zero pages. False: the kernel has no memory for it. */
static bool release_pages(uint64_t address, uint64_t size) {
    void *at = (void *)(uintptr_t)address;
    return mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

static void unmap_placed(struct soft_placed *p) {
    void *at = (void *)(uintptr_t)p->address;
    if (p->own_mapping)
        munmap((char *)at - SOFT_PAGE, p->size + 2 * SOFT_PAGE);
    else if (!release_pages(p->address, p->size)) /* release at least the contents */
        madvise(at, p->size, MADV_DONTNEED);
}

void soft_memory_close(struct gv_backend *b) {
    struct soft_memory *m = &b->memory;
    while (m->placed) {
        struct soft_placed *p = m->placed;
        m->placed = p->next;
        if (p->own_mapping) unmap_placed(p);
        free(p);
    }
    while (m->holds) {
        struct soft_hold *h = m->holds;
        m->holds = h->next;
        free(h);
    }
    if (m->size) munmap((void *)(uintptr_t)m->base, m->size);
    for (uint32_t i = 0; i < b->n_devices; i++) memory_discharge(&m->room, &b->devices[i].share, b->devices[i].share.used);
    memory_room_close(&m->room);
    soft_shared_close(b);
    address_ranges_free(&m->backed);
    pthread_mutex_destroy(&m->lock);
}

/* ---- the window ---- */

int soft_reserve_window(struct gv_backend *b, uint64_t base, uint64_t size) {
    struct soft_memory *m = &b->memory;
    if (b->strict) return CUDA_ERROR_NOT_SUPPORTED;
    if (m->size || !size || base % SOFT_PAGE || size % SOFT_PAGE || base + size < base) return CUDA_ERROR_INVALID_VALUE;
    struct gv_window_part parts[GV_MAX_DEVICES];
    for (uint32_t i = 0; i < b->n_devices; i++) {
        parts[i] = gv_window_part(base, size, b->n_devices, i);
        if (!parts[i].worker_size || parts[i].client_size < b->devices[i].share.limit) return CUDA_ERROR_INVALID_VALUE;
    }
    void *got = mmap((void *)(uintptr_t)base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
    if (got != (void *)(uintptr_t)base) { /* a kernel without MAP_FIXED_NOREPLACE */
        munmap(got, size);
        return CUDA_ERROR_INVALID_VALUE;
    }
    madvise(got, size, MADV_DONTDUMP);
    pthread_mutex_lock(&m->lock);
    m->base = base;
    m->size = size;
    for (uint32_t i = 0; i < b->n_devices; i++) b->devices[i].part = parts[i];
    pthread_mutex_unlock(&m->lock);
    return 0;
}

/* Whether a client may ask for this range; lock held. */
static bool client_range(const struct gv_context *c, uint64_t address, uint64_t size) {
    const struct gv_window_part *part = &c->device->part;
    return size && address % SOFT_CHUNK == 0 && size % SOFT_CHUNK == 0 && address >= part->base && size <= part->client_size &&
           address - part->base <= part->client_size - size;
}

bool soft_memory_held(const struct soft_memory *m, uint64_t address, uint64_t size) {
    for (const struct soft_hold *h = m->holds; h; h = h->next)
        if (h->address < address + size && address < h->address + h->size) return true;
    return false;
}

/* Only memory that the client placed or mapped in the window, which only the client frees. With --strict the CPU cannot address device memory, as
 * with a real device. */
void *soft_host_view(struct gv_backend *b, uint64_t address, uint64_t size) {
    struct soft_memory *m = &b->memory;
    struct soft_hold *h = b->strict || !size ? NULL : malloc(sizeof *h);
    if (!h) return NULL;
    *h = (struct soft_hold){.address = address, .size = size};
    pthread_mutex_lock(&m->lock);
    bool good = false;
    for (uint32_t i = 0; m->size && i < b->n_devices && !good; i++) {
        const struct gv_window_part *part = &b->devices[i].part;
        good = address >= part->base && size <= part->client_size && address - part->base <= part->client_size - size;
    }
    if (good) good = address_ranges_hold(&m->backed, address, size) && soft_mappings_writable(m, address, size);
    if (good) {
        h->next = m->holds;
        m->holds = h;
    }
    pthread_mutex_unlock(&m->lock);
    if (good) return (void *)(uintptr_t)address;
    free(h);
    return NULL;
}

void soft_host_view_end(struct gv_backend *b, uint64_t address, uint64_t size) {
    struct soft_memory *m = &b->memory;
    pthread_mutex_lock(&m->lock);
    struct soft_hold **at = &m->holds;
    while (*at && ((*at)->address != address || (*at)->size != size)) at = &(*at)->next;
    struct soft_hold *h = *at;
    if (h) *at = h->next;
    pthread_mutex_unlock(&m->lock);
    free(h);
}

static int back(struct gv_context *c, uint64_t address, uint64_t size) {
    struct gv_backend *b = c->backend;
    struct soft_memory *m = &b->memory;
    if (!m->size) return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&m->lock);
    bool fresh = client_range(c, address, size) && !address_ranges_touch(&m->backed, address, size) && !mappings_touch(&m->mappings, address, size);
    int rc = fresh ? memory_charge(&m->room, &c->device->share, size) : CUDA_ERROR_INVALID_VALUE;
    if (!rc) {
        if (!address_ranges_add(&m->backed, address, size)) {
            rc = CUDA_ERROR_OUT_OF_MEMORY;
        } else if (mprotect((void *)(uintptr_t)address, size, PROT_READ | PROT_WRITE)) {
            address_ranges_remove(&m->backed, address, size);
            rc = CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (rc) memory_discharge(&m->room, &c->device->share, size);
        /* Kernels access memory in the grid's order, in scattered pieces: with small pages each piece costs a TLB miss. */
        if (!rc && size >= HUGE_PAGE) madvise((void *)(uintptr_t)address, size, MADV_HUGEPAGE);
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

int soft_memory_back(struct gv_context *c, uint64_t address, uint64_t size, bool waits) {
    int rc = back(c, address, size);
    for (int i = 0; waits && rc == CUDA_ERROR_OUT_OF_MEMORY && i < SOFT_ROOM_TRIES && soft_memory_make_room(c->backend, c->device, size); i++)
        rc = back(c, address, size);
    return rc;
}

int soft_memory_unback(struct gv_context *c, uint64_t address, uint64_t size) {
    struct gv_backend *b = c->backend;
    struct soft_memory *m = &b->memory;
    if (!m->size) return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&m->lock);
    bool ours = client_range(c, address, size) && address_ranges_hold(&m->backed, address, size) && !mappings_touch(&m->mappings, address, size);
    int rc = ours && !soft_memory_held(m, address, size) ? 0 : CUDA_ERROR_INVALID_VALUE;
    if (!rc && !address_ranges_remove(&m->backed, address, size)) rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (!rc && !release_pages(address, size)) {
        address_ranges_add(&m->backed, address, size); /* cannot fail: the range was just removed */
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!rc) soft_segments_forget(b, address, size);
    if (!rc) memory_discharge(&m->room, &c->device->share, size);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

bool soft_memory_valid(struct gv_backend *b, uint64_t address, uint64_t size) {
    pthread_mutex_lock(&b->memory.lock);
    bool valid = address_ranges_hold(&b->memory.backed, address, size);
    pthread_mutex_unlock(&b->memory.lock);
    return valid;
}

/* ---- what the worker places ---- */

void soft_memory_await_frees(struct gv_backend *b) {
    struct timespec until = gv_deadline(CLOCK_REALTIME, FREE_PATIENCE);
    pthread_mutex_lock(&b->lock);
    bool late = false;
    while (b->frees && !b->closing && !late) {
        b->waiters++;
        late = pthread_cond_timedwait(&b->done, &b->lock, &until) == ETIMEDOUT;
        b->waiters--;
    }
    pthread_mutex_unlock(&b->lock);
}

/* First gap of the device's own part that is large enough, and the link to insert at; lock held. A free page stays between neighbours, so that
 * running over an end faults. */
static uint64_t find_gap(struct soft_memory *m, struct soft_device *d, uint64_t size, struct soft_placed ***link) {
    uint64_t at = d->part.worker_base, end = at + d->part.worker_size;
    struct soft_placed **l = &m->placed;
    for (; *l && (*l)->address < end; l = &(*l)->next) {
        struct soft_placed *p = *l;
        if (p->address < at) continue;
        if (p->address - at >= size + SOFT_PAGE) break;
        at = p->address + p->size + SOFT_PAGE;
    }
    *link = l;
    return at + size + SOFT_PAGE <= end ? at : 0;
}

/* Whether [at, at + size) of the device's own part is free, its neighbours' free pages included; lock held. */
static bool is_gap(struct soft_memory *m, const struct soft_device *d, uint64_t at, uint64_t size, struct soft_placed ***link) {
    uint64_t first = d->part.worker_base, end = first + d->part.worker_size;
    if (!m->size || at % SOFT_PAGE || at < first || at >= end || end - at < size + SOFT_PAGE) return false;
    struct soft_placed **l = &m->placed;
    while (*l && (*l)->address + (*l)->size + SOFT_PAGE <= at) l = &(*l)->next;
    *link = l;
    return !*l || (*l)->address >= at + size + SOFT_PAGE;
}

/* wanted: the address that it has to have, 0: any. */
static int place(struct gv_backend *b, struct soft_device *d, uint64_t size, bool user, uint64_t wanted, struct soft_placed **out) {
    struct soft_memory *m = &b->memory;
    if (!size || size > d->share.limit) return CUDA_ERROR_OUT_OF_MEMORY;
    size = round_up(size, SOFT_PAGE);
    struct soft_placed *p = calloc(1, sizeof *p), **link = &m->placed;
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    *p = (struct soft_placed){.device = d, .size = size, .own_mapping = !m->size, .user = user};
    pthread_mutex_lock(&m->lock);
    int rc = memory_charge(&m->room, &d->share, size);
    if (!rc) {
        if (wanted) {
            p->address = is_gap(m, d, wanted, size, &link) ? wanted : 0;
        } else if (p->own_mapping) {
            char *all = mmap(NULL, size + 2 * SOFT_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (all != MAP_FAILED) p->address = (uint64_t)(uintptr_t)all + SOFT_PAGE;
            while (*link && (*link)->address < p->address) link = &(*link)->next;
        } else {
            p->address = find_gap(m, d, size, &link);
        }
        if (!p->address) {
            rc = CUDA_ERROR_OUT_OF_MEMORY;
        } else if (mprotect((void *)(uintptr_t)p->address, size, PROT_READ | PROT_WRITE) || !address_ranges_add(&m->backed, p->address, size)) {
            unmap_placed(p);
            rc = CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (rc) memory_discharge(&m->room, &d->share, size);
    }
    if (!rc) {
        p->next = *link;
        *link = p;
        *out = p;
    }
    pthread_mutex_unlock(&m->lock);
    if (rc) free(p);
    return rc;
}

int soft_memory_place(struct gv_backend *b, struct soft_device *d, uint64_t size, bool user, struct soft_placed **out) {
    int rc = place(b, d, size, user, 0, out);
    if (rc != CUDA_ERROR_OUT_OF_MEMORY) return rc;
    soft_memory_await_frees(b);
    rc = place(b, d, size, user, 0, out);
    for (int i = 0; rc == CUDA_ERROR_OUT_OF_MEMORY && i < SOFT_ROOM_TRIES && soft_memory_make_room(b, d, round_up(size, SOFT_PAGE)); i++)
        rc = place(b, d, size, user, 0, out);
    return rc;
}

int soft_memory_place_at(struct gv_backend *b, struct soft_device *d, uint64_t size, uint64_t address, struct soft_placed **out) {
    return place(b, d, size, false, address, out);
}

void soft_memory_unplace(struct gv_backend *b, struct soft_placed *p) {
    struct soft_memory *m = &b->memory;
    pthread_mutex_lock(&m->lock);
    struct soft_placed **link = &m->placed;
    while (*link != p) link = &(*link)->next;
    *link = p->next;
    address_ranges_remove(&m->backed, p->address, p->size);
    unmap_placed(p);
    soft_segments_forget(b, p->address, p->size);
    memory_discharge(&m->room, &p->device->share, p->size);
    if (p->freed) p->device->freed -= p->size;
    pthread_mutex_unlock(&m->lock);
    free(p);
}

void *soft_memory_heap_take(void *context, uint64_t size, uint64_t *address) {
    struct gv_context *c = context;
    struct soft_placed *p;
    if (place(c->backend, c->device, size, false, 0, &p)) return NULL; /* without waiting for frees or for room: a kernel asks */
    *address = p->address;
    return p;
}

void soft_memory_heap_give(void *context, void *placed) {
    struct gv_context *c = context;
    soft_memory_unplace(c->backend, placed);
}

/* ---- allocation where the backend chooses addresses ---- */

int soft_memory_alloc(struct gv_context *c, uint64_t size, uint64_t *address) {
    struct gv_backend *b = c->backend;
    if (!size) return CUDA_ERROR_INVALID_VALUE;
    if (b->memory.size) return CUDA_ERROR_NOT_SUPPORTED; /* addresses are the client's */
    struct soft_placed *p;
    int rc = soft_memory_place(b, c->device, size, true, &p);
    if (!rc) *address = p->address;
    return rc;
}

struct free_op {
    struct op op;
    struct soft_placed *placed;
};

static void free_drop(struct gv_stream *s, struct op *op) {
    struct gv_backend *b = s->context->backend;
    soft_memory_unplace(b, ((struct free_op *)op)->placed);
    pthread_mutex_lock(&b->lock);
    b->frees--;
    if (b->waiters) pthread_cond_broadcast(&b->done);
    pthread_mutex_unlock(&b->lock);
}

/* Waits for the device as a driver's free does, but on a separate stream: the caller may be the thread that the device's work waits for. */
int soft_memory_unplace_later(struct gv_context *c, struct soft_placed *p) {
    struct gv_backend *b = c->backend;
    struct free_op *f = soft_op_new(sizeof *f, OP_ALWAYS, NULL, free_drop);
    if (!f) return CUDA_ERROR_OUT_OF_MEMORY;
    f->placed = p;
    pthread_mutex_lock(&b->memory.lock);
    p->freed = true;
    p->device->freed += p->size;
    pthread_mutex_unlock(&b->memory.lock);
    pthread_mutex_lock(&b->lock);
    b->frees++;
    pthread_mutex_unlock(&b->lock);
    return soft_stream_after_all(c, &f->op);
}

int soft_memory_free(struct gv_context *c, uint64_t address) {
    struct gv_backend *b = c->backend;
    pthread_mutex_lock(&b->memory.lock);
    struct soft_placed *p = b->memory.placed;
    while (p && p->address != address) p = p->next;
    if (p && p->user)
        p->user = false; /* a second free finds nothing */
    else
        p = NULL;
    pthread_mutex_unlock(&b->memory.lock);
    return p ? soft_memory_unplace_later(c, p) : CUDA_ERROR_INVALID_VALUE;
}
