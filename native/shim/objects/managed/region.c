#define _GNU_SOURCE
#include "objects/managed/region.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "objects/managed/managed.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

/* Most blocks of a region, and their least and greatest size: the kernel has room for some 65,000 stretches of pages with different access. */
#define MOST_BLOCKS 4096
#define LEAST_SHIFT 12
#define MOST_SHIFT 21

_Atomic uint64_t managed_regions, managed_provisional;
pthread_mutex_t region_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t region_changed = PTHREAD_COND_INITIALIZER;
struct region *region_list;
_Atomic uint64_t region_posting;
uint64_t region_launches;
static struct treap regions;
static const struct pager *pager;

#define REGION(at) treap_entry(at, struct region, node)

struct region *region_find(uint64_t address) {
    struct treap_node *n = treap_floor(&regions, address, UINT64_MAX);
    return n && address - n->key < REGION(n)->size ? REGION(n) : NULL;
}

struct region *region_next(uint64_t address) {
    struct treap_node *n = treap_ceiling(&regions, address, 0);
    return n ? REGION(n) : NULL;
}

/* ---- pages ---- */

static bool in_window(uint64_t base) {
    const struct shim_server *server = session_server();
    return server->addresses == GV_ADDRESSES_FIXED && base - server->window_base < server->window_size;
}

/* Addresses of the window stay kept when no memory is there. */
static void unmap(uint64_t base, uint64_t size) {
    void *at = (void *)(uintptr_t)base;
    bool kept = in_window(base) && mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at;
    if (!kept) munmap(at, size);
}

/* Maps the same pages twice: at the program's addresses, and where the program does not look. */
static int map(struct region *r, uint64_t base, bool shared) {
    void *at = (void *)(uintptr_t)base;
    if (shared) {
        r->view = mremap(at, 0, r->size, MREMAP_MAYMOVE);
        if (r->view == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
        if (!madvise(at, r->size, MADV_DONTFORK) && !madvise(r->view, r->size, MADV_DONTFORK) && !pager->watch(base, r->size)) return 0;
        munmap(r->view, r->size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!in_window(base)) {
        void *got = mmap(at, r->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (got != MAP_FAILED && got != at) munmap(got, r->size);
        if (got != at) return CUDA_ERROR_ALREADY_MAPPED;
    }
    r->view = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r->view == MAP_FAILED) {
        unmap(base, r->size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* An old size of 0 maps shared pages once more. The child of a fork has neither: it could not tell the device what it wrote. */
    bool mapped = mremap(r->view, 0, r->size, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at;
    if (mapped && !madvise(at, r->size, MADV_DONTFORK) && !madvise(r->view, r->size, MADV_DONTFORK) && !pager->watch(base, r->size)) return 0;
    munmap(r->view, r->size);
    unmap(base, r->size);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static enum page_access allowed(enum block_state state) {
    return state == BLOCK_DIRTY ? PAGES_WRITE : state == BLOCK_CLEAN ? PAGES_READ : PAGES_NONE;
}

/* ---- regions ---- */

/* Shortens it to the pages that are in no other one. False: there are none. Of variables a driver may place several in a page. */
static bool leave_to_others(uint64_t *base, uint64_t *size) {
    const struct region *other = region_find(*base);
    uint64_t end = *base + *size, taken = other ? region_base(other) + other->size : *base;
    *base = taken < end ? taken : end;
    other = region_next(*base);
    if (other && region_base(other) < end) end = region_base(other);
    *size = end - *base;
    return *size != 0;
}

static struct region *describe(struct shim_context *c, uint64_t base, uint64_t size, unsigned attached) {
    struct region *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->node.key = base;
    r->size = size;
    r->shift = LEAST_SHIFT;
    while (r->shift < MOST_SHIFT && r->size >> r->shift > MOST_BLOCKS) r->shift++;
    r->n = (r->size + (1ull << r->shift) - 1) >> r->shift;
    r->context = c;
    r->attached = attached;
    r->blocks = calloc(1, r->n);
    if (r->blocks) return r;
    free(r);
    return NULL;
}

int region_extend(struct region *r, uint64_t address, uint64_t size) {
    uint64_t base = region_base(r), end = address + size < base + r->size ? address + size : base + r->size;
    struct extent *more = realloc(r->extents, (r->n_extents + 1) * sizeof *more);
    if (!more) return CUDA_ERROR_OUT_OF_MEMORY;
    r->extents = more;
    r->extents[r->n_extents++] = (struct extent){address > base ? address - base : 0, end - base};
    return 0;
}

int region_make(struct shim_context *c, uint64_t base, uint64_t size, unsigned attached, enum block_state state, bool shared,
                const struct page_watch *watch) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    size = (size + page - 1) & ~(page - 1);
    int rc = 0;
    pthread_mutex_lock(&region_lock);
    if (!pager) pager = pager_start(watch);
    if (leave_to_others(&base, &size)) {
        struct region *r = pager ? describe(c, base, size, attached) : NULL;
        rc = r ? map(r, base, shared) : (int)CUDA_ERROR_OUT_OF_MEMORY;
        if (!rc) {
            treap_insert(&regions, &r->node);
            atomic_fetch_add(&managed_regions, 1);
            region_set(r, 0, r->n, state, 0);
        } else if (r) {
            free(r->blocks);
            free(r);
        }
    }
    pthread_mutex_unlock(&region_lock);
    return rc;
}

/* The list has those that a launch must look at. */
static void list(struct region *r) {
    bool wanted = r->accessible != 0;
    if (wanted == r->listed) return;
    r->listed = wanted;
    if (wanted) {
        r->previous = NULL;
        r->next = region_list;
        if (r->next) r->next->previous = r;
        region_list = r;
        return;
    }
    if (r->next) r->next->previous = r->previous;
    if (r->previous)
        r->previous->next = r->next;
    else
        region_list = r->next;
}

static void count(struct region *r, size_t block, int sign) {
    uint8_t b = r->blocks[block];
    enum block_state state = b & BLOCK_STATE;
    if (state == BLOCK_CLEAN || state == BLOCK_DIRTY) r->accessible += (size_t)sign;
    if (state == BLOCK_DIRTY) r->dirty += (size_t)sign;
    if (b & BLOCK_PROVISIONAL) atomic_fetch_add(&managed_provisional, (uint64_t)sign);
}

int region_set(struct region *r, size_t first, size_t n, enum block_state state, unsigned flags) {
    for (size_t i = first; i < first + n; i++) {
        count(r, i, -1);
        r->blocks[i] = (uint8_t)(state | flags);
        count(r, i, 1);
    }
    list(r);
    uint64_t low = (uint64_t)first << r->shift;
    return pager->protect(region_base(r) + low, r->view + low, region_bytes(r, first, n), allowed(state));
}

int region_invalidate(struct region *r, size_t first, size_t n) {
    for (size_t i = first; i < first + n; i++) {
        enum block_state state = region_state(r, i);
        if (state == BLOCK_FETCHING) continue;
        count(r, i, -1);
        r->blocks[i] = (uint8_t)(BLOCK_STALE | (state == BLOCK_DIRTY ? BLOCK_SENDING : 0));
        count(r, i, 1);
    }
    list(r);
    uint64_t low = (uint64_t)first << r->shift;
    return pager->protect(region_base(r) + low, r->view + low, region_bytes(r, first, n), PAGES_NONE);
}

void region_renew(void) {
    if (pager && pager->renew) pager->renew();
}

void region_retire(struct region *r) {
    r->gone = true;
    while (r->users) pthread_cond_wait(&region_changed, &region_lock);
}

void region_free(struct region *r) {
    treap_remove(&regions, &r->node);
    atomic_fetch_sub(&managed_regions, 1);
    region_set(r, 0, r->n, BLOCK_STALE, 0);
    pager->forget(region_base(r), r->size);
    unmap(region_base(r), r->size);
    munmap(r->view, r->size);
    free(r->advice);
    free(r->extents);
    free(r->blocks);
    free(r);
}
