/* The device heap: malloc and free in kernels. */
#include "../driver_constants.h"
#include "exec_private.h"

#include <stdlib.h>

#define SOFT_EXPORT __attribute__((visibility("default")))
#define HEAP_MAGIC 0x70616568746f7367ull
#define HEAP_UNIT (256ull << 10) /* bytes in which the heap's memory is counted */

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
    uint64_t counted; /* bytes, units of HEAP_UNIT; not less than used */
    struct soft_heap_account account;
    struct piece pieces; /* ring */
};

struct soft_heap *soft_heap_create(uint64_t limit, const struct soft_heap_account *account) {
    struct soft_heap *h = calloc(1, sizeof *h);
    if (!h) return NULL;
    if (account) h->account = *account;
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

uint64_t soft_heap_get_limit(struct soft_heap *h) {
    pthread_mutex_lock(&h->lock);
    uint64_t limit = h->limit;
    pthread_mutex_unlock(&h->lock);
    return limit;
}

bool soft_heap_in_use(struct soft_heap *h) {
    pthread_mutex_lock(&h->lock);
    bool in_use = h->used != 0;
    pthread_mutex_unlock(&h->lock);
    return in_use;
}

void soft_heap_destroy(struct soft_heap *h) {
    if (!h) return;
    while (h->pieces.next != &h->pieces) {
        struct piece *p = h->pieces.next;
        h->pieces.next = p->next;
        free(p);
    }
    if (h->counted) h->account.give(h->account.arg, h->counted);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* Whether `size` bytes more may be used; counts them. lock held. */
static bool count(struct soft_heap *h, uint64_t size) {
    if (h->used > h->limit || size > h->limit - h->used) return false;
    if (!h->account.take || size <= h->counted - h->used) return true;
    uint64_t more = (h->used + size - h->counted + HEAP_UNIT - 1) / HEAP_UNIT * HEAP_UNIT;
    if (!h->account.take(h->account.arg, more)) return false;
    h->counted += more;
    return true;
}

/* Gives back what is counted and unused, but for a unit or two: a kernel may take it again at once. lock held. */
static void uncount(struct soft_heap *h) {
    if (!h->account.give || h->counted - h->used <= 2 * HEAP_UNIT) return;
    uint64_t less = (h->counted - h->used - HEAP_UNIT) / HEAP_UNIT * HEAP_UNIT;
    h->account.give(h->account.arg, less);
    h->counted -= less;
}

SOFT_EXPORT void *soft_malloc(struct soft_warp *w, uint32_t lane, uint64_t size) {
    (void)lane;
    struct runner *r = runner_of(w);
    struct soft_heap *h = r->grid->launch->heap;
    if (!h || !size || size > UINT64_MAX / 2) return NULL;
    uint64_t whole = ((size + 15) & ~15ull) + sizeof(struct piece);
    r->in_helper = 1; /* nothing may throw this thread out while it holds the heap's lock or is inside malloc */
    pthread_mutex_lock(&h->lock);
    struct piece *p = count(h, whole) ? aligned_alloc(16, whole) : NULL;
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
    uncount(h);
    pthread_mutex_unlock(&h->lock);
    r->in_helper = 0;
}
