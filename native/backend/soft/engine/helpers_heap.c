/* The device heap: malloc and free in kernels. Everything it knows of its memory lies in that memory: arenas, each a row of pieces that know their size and
 * their neighbour's. So it goes with a session that moves or is parked, as other memory does. */
#include "../driver_constants.h"
#include "exec_private.h"

#include <stdlib.h>

#define SOFT_EXPORT __attribute__((visibility("default")))
#define USED 0x70616568746f7367ull /* a piece's kind */
#define FREE 0x65657266746f7367ull
#define END 0x20646e65746f7367ull /* behind the last piece of an arena */
#define PAGE 4096ull
#define ARENA_LEAST (256ull << 10) /* bytes of an arena: as many as the heap has already, within these bounds, or what one piece needs */
#define ARENA_MOST (16ull << 20)
#define BINS 48
#define TRIES 8 /* pieces of a bin that are looked at, of which not all are large enough */

static struct runner *runner_of(const struct soft_warp *w) { return soft_fiber_of(w)->block->runner; }

/* In front of what malloc returns, whose alignment is 16. A free piece has its neighbours in the bin behind it. */
struct piece {
    uint64_t kind, size, before; /* bytes with this; those of the piece before, 0: it is the arena's first */
    uint64_t heap;               /* its number: one context's heap does not free what another's has given */
};

struct links {
    struct piece *next, *previous;
};

#define PIECE_LEAST (sizeof(struct piece) + sizeof(struct links))

struct arena {
    struct arena *next;
    uint64_t address, size;
    void *taken;
};

struct soft_heap {
    pthread_mutex_t lock;
    uint64_t number, used, limit, total; /* total: bytes of all arenas */
    struct soft_heap_source source;
    struct arena *arenas;
    uint64_t filled;          /* bins that are not empty */
    struct piece *bins[BINS]; /* free pieces of at least 1 << i times PIECE_LEAST bytes, and less than twice that */
    struct piece *spare;      /* a whole arena that is free and stays */
    bool restored;            /* its arenas' pages have come since it was made: what is free is not in the bins yet */
};

static void *plain_take(void *arg, uint64_t size, uint64_t *address) {
    (void)arg;
    void *taken = aligned_alloc(PAGE, size);
    *address = (uint64_t)(uintptr_t)taken;
    return taken;
}

static void plain_give(void *arg, void *taken) {
    (void)arg;
    free(taken);
}

static _Atomic uint64_t numbers; /* the largest that a heap of this process has */

struct soft_heap *soft_heap_create(uint64_t limit, const struct soft_heap_source *source) {
    struct soft_heap *h = calloc(1, sizeof *h);
    if (!h) return NULL;
    h->source = source ? *source : (struct soft_heap_source){plain_take, plain_give, NULL};
    pthread_mutex_init(&h->lock, NULL);
    h->limit = limit;
    h->number = atomic_fetch_add(&numbers, 1) + 1;
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

void soft_heap_destroy(struct soft_heap *h) {
    if (!h) return;
    for (struct arena *a = h->arenas, *next; a; a = next) {
        next = a->next;
        h->source.give(h->source.arg, a->taken);
        free(a);
    }
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* ---- pieces: lock held in all of these ---- */

static struct links *links_of(struct piece *p) { return (struct links *)(p + 1); }
static struct piece *after(struct piece *p) { return (struct piece *)((char *)p + p->size); }
static struct piece *before(struct piece *p) { return (struct piece *)((char *)p - p->before); }

static uint32_t bin_of(uint64_t size) {
    uint32_t bin = 63u - (uint32_t)__builtin_clzll(size / PIECE_LEAST);
    return bin < BINS ? bin : BINS - 1;
}

static void put_free(struct soft_heap *h, struct piece *p) {
    uint32_t bin = bin_of(p->size);
    p->kind = FREE;
    *links_of(p) = (struct links){.next = h->bins[bin]};
    if (h->bins[bin]) links_of(h->bins[bin])->previous = p;
    h->bins[bin] = p;
    h->filled |= 1ull << bin;
}

static void take_free(struct soft_heap *h, struct piece *p) {
    struct links l = *links_of(p);
    uint32_t bin = bin_of(p->size);
    if (l.next) links_of(l.next)->previous = l.previous;
    if (l.previous)
        links_of(l.previous)->next = l.next;
    else
        h->bins[bin] = l.next;
    if (!h->bins[bin]) h->filled &= ~(1ull << bin);
}

/* A free piece of at least that size, which is in no bin any more. NULL: there is none. */
static struct piece *find_free(struct soft_heap *h, uint64_t size) {
    uint32_t bin = bin_of(size), tries = TRIES;
    struct piece *p = h->bins[bin];
    while (p && p->size < size) p = tries-- ? links_of(p)->next : NULL;
    if (!p) {
        uint64_t larger = bin + 1 < BINS ? h->filled >> (bin + 1) << (bin + 1) : 0;
        if (larger) p = h->bins[__builtin_ctzll(larger)];
    }
    if (p) take_free(h, p);
    if (p == h->spare) h->spare = NULL;
    return p;
}

/* Whether a new arena has a piece of that size. */
static bool grow(struct soft_heap *h, uint64_t size) {
    uint64_t least = (size + sizeof(struct piece) + PAGE - 1) / PAGE * PAGE, want = h->total;
    if (want < ARENA_LEAST) want = ARENA_LEAST;
    if (want > ARENA_MOST) want = ARENA_MOST;
    if (want < least) want = least;
    struct arena *a = calloc(1, sizeof *a);
    if (!a) return false;
    while (!(a->taken = h->source.take(h->source.arg, want, &a->address)) && want > least) want = want / 4 > least ? want / 4 / PAGE * PAGE : least;
    if (!a->taken) {
        free(a);
        return false;
    }
    a->size = want;
    a->next = h->arenas;
    h->arenas = a;
    h->total += a->size;
    struct piece *p = (struct piece *)(uintptr_t)a->address;
    *p = (struct piece){.size = a->size - sizeof *p, .heap = h->number};
    *after(p) = (struct piece){.kind = END, .size = sizeof *p, .before = p->size, .heap = h->number};
    put_free(h, p);
    return true;
}

/* Gives back the arena that is this one free piece, but for a small one: a kernel may want it again at once. */
static void give_back(struct soft_heap *h, struct piece *whole) {
    struct arena **at = &h->arenas, *a;
    if (!h->spare && whole->size <= ARENA_LEAST) {
        h->spare = whole;
        return;
    }
    while ((a = *at) && a->address != (uint64_t)(uintptr_t)whole) at = &a->next;
    if (!a) return;
    take_free(h, whole);
    *at = a->next;
    h->total -= a->size;
    h->source.give(h->source.arg, a->taken);
    free(a);
}

/* ---- in a session's image ---- */

void soft_heap_save(struct soft_heap *h, void (*put)(void *out, uint64_t value), void *out) {
    pthread_mutex_lock(&h->lock);
    uint64_t n = 0;
    for (const struct arena *a = h->arenas; a; a = a->next) n++;
    put(out, h->limit);
    put(out, h->number);
    put(out, n);
    for (const struct arena *a = h->arenas; a; a = a->next) {
        put(out, a->address);
        put(out, a->size);
    }
    pthread_mutex_unlock(&h->lock);
}

void soft_heap_number(struct soft_heap *h, uint64_t number) {
    uint64_t largest = atomic_load(&numbers);
    while (largest < number && !atomic_compare_exchange_weak(&numbers, &largest, number)) {
    }
    h->number = number;
    h->restored = true;
}

bool soft_heap_adopt(struct soft_heap *h, void *taken, uint64_t address, uint64_t size) {
    struct arena *a = calloc(1, sizeof *a);
    if (!a) return false;
    *a = (struct arena){h->arenas, address, size, taken};
    h->arenas = a;
    h->total += size;
    return true;
}

/* Finds out what is free in arenas whose pages have come from an image; what is no row of pieces is in use for ever. lock held. */
static void look_through(struct soft_heap *h) {
    h->restored = false;
    for (const struct arena *a = h->arenas; a; a = a->next) {
        struct piece *p = (struct piece *)(uintptr_t)a->address;
        for (uint64_t left = a->size, last = 0; left >= PIECE_LEAST; left -= p->size, last = p->size, p = after(p)) {
            bool good = (p->kind == USED || p->kind == FREE) && p->size >= PIECE_LEAST && p->size % 16 == 0 && p->size <= left && p->before == last;
            if (!good) break;
            if (p->kind == FREE)
                put_free(h, p);
            else
                h->used += p->size;
        }
    }
}

/* ---- what kernels call ---- */

static struct piece *allocate(struct soft_heap *h, uint64_t size) {
    if (h->restored) look_through(h);
    if (h->used > h->limit || size > h->limit - h->used) return NULL;
    struct piece *p = find_free(h, size);
    if (!p && grow(h, size)) p = find_free(h, size);
    if (!p) return NULL;
    if (p->size - size >= PIECE_LEAST) {
        struct piece *rest = (struct piece *)((char *)p + size);
        *rest = (struct piece){.size = p->size - size, .before = size, .heap = h->number};
        p->size = size;
        after(rest)->before = rest->size;
        put_free(h, rest);
    }
    p->kind = USED;
    h->used += p->size;
    return p;
}

static void release(struct soft_heap *h, struct piece *p) {
    if (h->restored) look_through(h);
    h->used -= p->size;
    struct piece *next = after(p), *last = p->before ? before(p) : NULL;
    p->kind = 0; /* where it becomes part of another piece, freeing it again is noticed */
    if (next->kind == FREE) {
        take_free(h, next);
        next->kind = 0;
        p->size += next->size;
    }
    if (last && last->kind == FREE) {
        take_free(h, last);
        last->size += p->size;
        p = last;
    }
    after(p)->before = p->size;
    put_free(h, p);
    if (!p->before && after(p)->kind == END) give_back(h, p);
}

SOFT_EXPORT void *soft_malloc(struct soft_warp *w, uint32_t lane, uint64_t size) {
    (void)lane;
    struct runner *r = runner_of(w);
    struct soft_heap *h = r->grid->launch->heap;
    if (!h || !size || size > UINT64_MAX / 2) return NULL;
    uint64_t whole = ((size + 15) & ~15ull) + sizeof(struct piece);
    if (whole < PIECE_LEAST) whole = PIECE_LEAST;
    r->in_helper = 1; /* nothing may throw this thread out while it holds the heap's lock */
    pthread_mutex_lock(&h->lock);
    struct piece *p = allocate(h, whole);
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
    if ((uintptr_t)address % 16 || p->kind != USED || p->heap != h->number) {
        soft_grid_fail(r->grid, CUDA_ERROR_ILLEGAL_ADDRESS, w, "free of 0x%llx, which malloc did not return", (unsigned long long)(uintptr_t)address);
        soft_leave(r);
    }
    r->in_helper = 1;
    pthread_mutex_lock(&h->lock);
    release(h, p);
    pthread_mutex_unlock(&h->lock);
    r->in_helper = 0;
}
