/* The device heap: malloc and free in kernels. */
#include "../driver_constants.h"
#include "exec_private.h"

#include <stdlib.h>

#define SOFT_EXPORT __attribute__((visibility("default")))
#define HEAP_MAGIC 0x70616568746f7367ull

static struct runner *runner_of(const struct soft_warp *w) { return soft_fiber_of(w)->block->runner; }

struct piece {
    uint64_t magic, size;
    struct piece *previous, *next;
    struct soft_heap *heap;
    uint64_t pad[3];
};

struct soft_heap {
    pthread_mutex_t lock;
    uint64_t used, limit;
    struct piece pieces; /* ring */
};

struct soft_heap *soft_heap_create(uint64_t limit) {
    struct soft_heap *h = calloc(1, sizeof *h);
    if (!h) return NULL;
    pthread_mutex_init(&h->lock, NULL);
    h->limit = limit;
    h->pieces.previous = h->pieces.next = &h->pieces;
    return h;
}

void soft_heap_limit(struct soft_heap *h, uint64_t limit) {
    pthread_mutex_lock(&h->lock);
    h->limit = limit;
    pthread_mutex_unlock(&h->lock);
}

void soft_heap_destroy(struct soft_heap *h) {
    if (!h) return;
    while (h->pieces.next != &h->pieces) {
        struct piece *p = h->pieces.next;
        h->pieces.next = p->next;
        free(p);
    }
    pthread_mutex_destroy(&h->lock);
    free(h);
}

SOFT_EXPORT void *soft_malloc(struct soft_warp *w, uint32_t lane, uint64_t size) {
    (void)lane;
    struct runner *r = runner_of(w);
    struct soft_heap *h = r->grid->launch->heap;
    if (!h || !size || size > UINT64_MAX / 2) return NULL;
    uint64_t whole = ((size + 15) & ~15ull) + sizeof(struct piece);
    r->in_helper = 1; /* nothing may throw this thread out while it holds the heap's lock or is inside malloc */
    pthread_mutex_lock(&h->lock);
    struct piece *p = h->used > h->limit || whole > h->limit - h->used ? NULL : aligned_alloc(16, whole);
    if (p) {
        *p = (struct piece){.magic = HEAP_MAGIC, .size = whole, .previous = &h->pieces, .next = h->pieces.next, .heap = h};
        p->next->previous = p;
        h->pieces.next = p;
        h->used += whole;
    }
    pthread_mutex_unlock(&h->lock);
    r->in_helper = 0;
    return p ? p + 1 : NULL;
}

SOFT_EXPORT void soft_free(struct soft_warp *w, uint32_t lane, void *address) {
    (void)lane;
    if (!address) return;
    struct runner *r = runner_of(w);
    struct soft_heap *h = r->grid->launch->heap;
    struct piece *p = (struct piece *)address - 1;
    /* A wild pointer faults here, before anything is held, like any other wild access. */
    if ((uintptr_t)address % 16 || p->magic != HEAP_MAGIC || p->heap != h) {
        soft_grid_fail(r->grid, CUDA_ERROR_ILLEGAL_ADDRESS, w, "free of 0x%llx, which malloc did not return", (unsigned long long)(uintptr_t)address);
        soft_leave(r);
    }
    r->in_helper = 1;
    pthread_mutex_lock(&h->lock);
    p->previous->next = p->next;
    p->next->previous = p->previous;
    h->used -= p->size;
    p->magic = 0;
    free(p);
    pthread_mutex_unlock(&h->lock);
    r->in_helper = 0;
}
