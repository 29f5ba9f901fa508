/* Virtual memory management: physical memory with a handle, mapped at the program's addresses.
 *
 * Memory with one mapping, the common case, is private to its address: it can use huge pages and needs no file. When it is unmapped its pages are
 * moved elsewhere (DETACHED), because the contents belong to the handle. Memory that is mapped a second time, so that two addresses refer to the same
 * bytes, moves into a shared file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stream.h"
#include "mappings.h"
#include "physical.h"
#include "shared/shared.h"

/* MREMAP_DONTUNMAP, which neither every C library names nor every kernel knows. Tests set another. */
#ifndef SOFT_DONTUNMAP
#define SOFT_DONTUNMAP 4
#endif

#define FILE_BYTES (1ull << 46) /* bytes of the shared file, which is sparse, where it is made here */

/* Addresses set aside where there is no window. */
struct soft_reservation {
    struct soft_reservation *next;
    uint64_t address, size;
};

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

static bool whole_chunks(uint64_t address, uint64_t size) {
    return size && address % SOFT_CHUNK == 0 && size % SOFT_CHUNK == 0 && address + size > address;
}

/* Whether these addresses may be a reservation of the program. In a window the client keeps its reservations. */
static bool reserved(const struct gv_backend *b, uint64_t address, uint64_t size) {
    const struct soft_memory *m = &b->memory;
    for (uint32_t i = 0; m->size && i < b->n_devices; i++) {
        const struct gv_window_part *part = &b->devices[i].part;
        if (address >= part->base && size <= part->client_size && address - part->base <= part->client_size - size) return true;
    }
    for (const struct soft_reservation *r = m->reservations; r; r = r->next) {
        if (address >= r->address && size <= r->size && address - r->address <= r->size - size) return true;
    }
    return false;
}

static bool nothing_at(uint64_t address, uint64_t size) {
    return mmap(pointer(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/* ---- the file ---- */

static int take_offset(struct soft_memory *m, uint64_t size, uint64_t *offset) {
    if (!m->has_file) {
        int fd = memfd_create("gpuvirt-memory", MFD_CLOEXEC);
        if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
        if (ftruncate(fd, (off_t)FILE_BYTES)) {
            close(fd);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        m->file = fd;
        m->file_size = FILE_BYTES;
        m->has_file = true;
    }
    uint64_t at = 0;
    for (size_t i = 0; i < m->file_used.n && m->file_used.items[i].start - at < size; i++) at = m->file_used.items[i].end;
    if (at + size > m->file_size || !address_ranges_add(&m->file_used, at, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    *offset = at;
    return 0;
}

static void give_offset(struct soft_memory *m, uint64_t offset, uint64_t size) {
    fallocate(m->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size);
    address_ranges_remove(&m->file_used, offset, size); /* without memory to record it, that part of the file, which is empty, is not used again */
}

/* Moves the memory into the file. Writes of the device meanwhile would be lost: the caller makes sure that nothing runs. */
static int share(struct soft_memory *m, struct gv_physical *p) {
    uint64_t offset;
    if (p->state == SHARED || p->state == PIECES) return 0;
    int rc = take_offset(m, p->size, &offset);
    if (rc) return rc;
    struct mapping *mapping = p->state == PRIVATE ? &m->mappings.items[mappings_find(&m->mappings, p->at)] : NULL;
    int now = mapping ? soft_mapping_protection(mapping->rights) : PROT_READ;
    bool good = p->state == FRESH || ((now || !mprotect(pointer(p->at), p->size, PROT_READ)) && soft_copy_pages(m->file, offset, p->at, p->size));
    if (good && mapping) good = mmap(pointer(p->at), p->size, now, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, m->file, (off_t)offset) != MAP_FAILED;
    if (!good) {
        give_offset(m, offset, p->size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (p->state == DETACHED) munmap(pointer(p->at), p->size);
    p->state = SHARED;
    p->at = offset;
    return 0;
}

/* ---- handles ---- */

int soft_physical_new(struct gv_context *c, uint64_t size, struct gv_physical **out) {
    struct gv_backend *b = c->backend;
    struct soft_memory *m = &b->memory;
    if (!size || size % SOFT_CHUNK) return CUDA_ERROR_INVALID_VALUE;
    struct gv_physical *p = calloc(1, sizeof *p);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    *p = (struct gv_physical){.backend = b, .device = c->device, .size = size};
    pthread_mutex_lock(&m->lock);
    int rc = memory_charge(&b->memory.room, &p->device->share, size);
    if (!rc) {
        p->next = m->physicals;
        if (p->next) p->next->previous = p;
        m->physicals = p;
    }
    pthread_mutex_unlock(&m->lock);
    if (rc)
        free(p);
    else
        *out = p;
    return rc;
}

int soft_physical_create(struct gv_context *c, uint64_t size, struct gv_physical **out) {
    int rc = soft_physical_new(c, size, out);
    if (rc != CUDA_ERROR_OUT_OF_MEMORY) return rc;
    soft_memory_await_frees(c->backend);
    rc = soft_physical_new(c, size, out);
    for (int i = 0; rc == CUDA_ERROR_OUT_OF_MEMORY && i < SOFT_ROOM_TRIES && soft_memory_make_room(c->backend, c->device, size); i++)
        rc = soft_physical_new(c, size, out);
    return rc;
}

int soft_physical_destroy(struct gv_physical *p) {
    struct gv_backend *b = p->backend;
    struct soft_memory *m = &b->memory;
    pthread_mutex_lock(&m->lock);
    if (p->maps) {
        pthread_mutex_unlock(&m->lock);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (p->state == DETACHED) munmap(pointer(p->at), p->size);
    if (p->state == SHARED) give_offset(m, p->at, p->size);
    if (p->state == PIECES) soft_pieces_drop(p);
    if (!p->exporter) memory_discharge(&b->memory.room, &p->device->share, p->size);
    if (p->inherited) {
        p->device->share.beside -= p->size;
        memory_show(&b->memory.room, &p->device->share);
    }
    if (p->next) p->next->previous = p->previous;
    if (p->previous)
        p->previous->next = p->next;
    else
        m->physicals = p->next;
    pthread_mutex_unlock(&m->lock);
    free(p);
    return 0;
}

/* ---- mapping ---- */

/* Maps the memory at an address, without access rights. */
static int put(struct soft_memory *m, struct gv_physical *p, uint64_t address, uint64_t size) {
    if (p->state == PIECES) return soft_pieces_map(p, address, size, PROT_NONE) ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    if (p->state == SHARED || p->maps || size != p->size) {
        int rc = share(m, p);
        if (rc) return rc;
        void *at = mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, m->file, (off_t)p->at);
        return at == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : 0;
    }
    if (p->state == DETACHED) {
        if (mprotect(pointer(p->at), size, PROT_NONE)) return CUDA_ERROR_OUT_OF_MEMORY;
        void *at = mremap(pointer(p->at), size, size, MREMAP_MAYMOVE | MREMAP_FIXED, pointer(address));
        if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    } else if (!nothing_at(address, size)) { /* one mapping of its own, which can be moved as one */
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    p->state = PRIVATE;
    p->at = address;
    return 0;
}

int soft_memory_map(struct gv_physical *p, uint64_t address, uint64_t size) {
    struct gv_backend *b = p->backend;
    struct soft_memory *m = &b->memory;
    if (!whole_chunks(address, size) || size > p->size) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&m->lock);
    int rc = 0;
    if (!reserved(b, address, size) || address_ranges_touch(&m->backed, address, size) || mappings_touch(&m->mappings, address, size))
        rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc && !mappings_grow(&m->mappings)) rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (!rc) rc = put(m, p, address, size);
    if (!rc) {
        mappings_add(&m->mappings, (struct mapping){.address = address, .size = size, .physical = p});
        p->maps++;
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* Moves pages to another address. The old address keeps an empty mapping throughout, so that no other thread's memory is placed there; before Linux
 * 5.7 that is not possible, and the code relies on the kernel placing memory elsewhere. */
static void *park(uint64_t address, uint64_t size) {
    void *to = mremap(pointer(address), size, size, MREMAP_MAYMOVE | SOFT_DONTUNMAP, NULL);
    if (to != MAP_FAILED || errno != EINVAL) return to;
    void *room = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return MAP_FAILED;
    to = mremap(pointer(address), size, size, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    if (to == MAP_FAILED) munmap(room, size);
    return to;
}

/* Removes one mapping; its pages stay in the physical memory. */
static int take_away(struct mapping *g) {
    struct gv_physical *p = g->physical;
    if (p->state == PRIVATE) {
        void *to = park(g->address, g->size);
        if (to == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
        p->state = DETACHED;
        p->at = (uint64_t)(uintptr_t)to;
    }
    return nothing_at(g->address, g->size) ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

int soft_memory_unmap(struct gv_backend *b, uint64_t address, uint64_t size) {
    struct soft_memory *m = &b->memory;
    size_t first;
    pthread_mutex_lock(&m->lock);
    size_t n = mappings_whole(&m->mappings, address, size, &first);
    int rc = n && !soft_memory_held(m, address, size) ? 0 : CUDA_ERROR_INVALID_VALUE;
    while (n-- && !rc) {
        struct mapping *g = &m->mappings.items[first];
        if (g->rights && !address_ranges_remove(&m->backed, g->address, g->size)) {
            rc = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        g->rights = 0;
        rc = take_away(g);
        if (rc) break;
        g->physical->maps--;
        mappings_remove(&m->mappings, first);
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

static int set_rights(struct soft_memory *m, struct mapping *g, uint32_t rights) {
    int before = soft_mapping_protection(g->rights), after = soft_mapping_protection(rights);
    if (before & ~after && soft_memory_held(m, g->address, g->size)) return CUDA_ERROR_INVALID_VALUE;
    if (before != after) {
        if (!before && !address_ranges_add(&m->backed, g->address, g->size)) return CUDA_ERROR_OUT_OF_MEMORY;
        if (mprotect(pointer(g->address), g->size, after) || (before && !after && !address_ranges_remove(&m->backed, g->address, g->size))) {
            if (!before) address_ranges_remove(&m->backed, g->address, g->size); /* cannot fail: the range was just added */
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (!before) madvise(pointer(g->address), g->size, MADV_HUGEPAGE);
    }
    g->rights = rights;
    return 0;
}

int soft_memory_access(struct gv_backend *b, uint64_t address, uint64_t size, uint32_t device, uint32_t rights) {
    struct soft_memory *m = &b->memory;
    if (device >= b->n_devices || (rights != 0 && rights != 1 && rights != 3)) return CUDA_ERROR_INVALID_VALUE;
    size_t first;
    pthread_mutex_lock(&m->lock);
    size_t n = mappings_whole(&m->mappings, address, size, &first);
    int rc = n ? 0 : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = first; i < first + n && !rc; i++) {
        struct mapping *g = &m->mappings.items[i];
        rc = set_rights(m, g, (g->rights & ~(3u << 2 * device)) | rights << 2 * device);
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* ---- addresses, where there is no window ---- */

int soft_address_reserve(struct gv_backend *b, uint64_t size, uint64_t alignment, uint64_t *address) {
    struct soft_memory *m = &b->memory;
    if (m->size) return CUDA_ERROR_NOT_SUPPORTED; /* addresses are the client's */
    if (alignment < SOFT_CHUNK) alignment = SOFT_CHUNK;
    if (!size || size % SOFT_CHUNK || alignment & (alignment - 1)) return CUDA_ERROR_INVALID_VALUE;
    bool room = m->n_reservations < GV_RESERVATIONS_MAX && size + alignment > size;
    struct soft_reservation *r = room ? malloc(sizeof *r) : NULL;
    char *all = r ? mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
    if (all == MAP_FAILED) {
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t start = (uint64_t)(uintptr_t)all, at = (start + alignment - 1) & ~(alignment - 1);
    if (at > start) munmap(all, at - start);
    munmap(pointer(at + size), start + alignment - at);
    madvise(pointer(at), size, MADV_DONTDUMP);
    *r = (struct soft_reservation){.address = at, .size = size};
    pthread_mutex_lock(&m->lock);
    r->next = m->reservations;
    m->reservations = r;
    m->n_reservations++;
    pthread_mutex_unlock(&m->lock);
    *address = at;
    return 0;
}

int soft_address_free(struct gv_backend *b, uint64_t address, uint64_t size) {
    struct soft_memory *m = &b->memory;
    pthread_mutex_lock(&m->lock);
    struct soft_reservation **at = &m->reservations, *r;
    while (*at && ((*at)->address != address || (*at)->size != size)) at = &(*at)->next;
    r = *at;
    bool good = r && !mappings_touch(&m->mappings, address, size);
    if (good) *at = r->next;
    if (good) m->n_reservations--;
    pthread_mutex_unlock(&m->lock);
    if (!good) return CUDA_ERROR_INVALID_VALUE;
    munmap(pointer(address), size);
    free(r);
    return 0;
}

void soft_virtual_close(struct gv_backend *b) {
    struct soft_memory *m = &b->memory;
    m->source.make = NULL; /* whoever gives files knows that the session is over */
    while (m->physicals) {
        struct gv_physical *p = m->physicals;
        m->physicals = p->next;
        if (p->state == DETACHED) munmap(pointer(p->at), p->size);
        if (p->state == PIECES) soft_pieces_drop(p);
        free(p);
    }
    while (m->reservations) {
        struct soft_reservation *r = m->reservations;
        m->reservations = r->next;
        munmap(pointer(r->address), r->size);
        free(r);
    }
    mappings_free(&m->mappings);
    if (m->has_file) close(m->file);
    address_ranges_free(&m->file_used);
}
