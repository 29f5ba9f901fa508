#include "objects/memory/allocator.h"

#include <stdbool.h>
#include <stdlib.h>

#define OUT_OF_MEMORY 2 /* CUDA_ERROR_OUT_OF_MEMORY */

/* A range of addresses: in both trees of free credit, or (by_address only) in the tree of unbacked addresses. */
struct allocator_extent {
    struct treap_node by_address; /* key: address */
    struct treap_node by_size;    /* key: size, sub: address */
    uint64_t size;
};

struct allocator_quarantine {
    struct allocator_quarantine *next;
    uint64_t address, size, stamp;
};

#define BY_ADDRESS(node) treap_entry(node, struct allocator_extent, by_address)
#define BY_SIZE(node) treap_entry(node, struct allocator_extent, by_size)

static uint64_t extent_end(const struct allocator_extent *e) { return e->by_address.key + e->size; }

static void index_size(struct allocator *a, struct allocator_extent *e) {
    e->by_size.key = e->size;
    e->by_size.sub = e->by_address.key;
    treap_insert(&a->free_by_size, &e->by_size);
}

/* Adds [address, address + size) to a tree and joins it with its neighbours. sized: the tree is that of free credit. */
static int add_run(struct allocator *a, struct treap *tree, bool sized, uint64_t address, uint64_t size) {
    struct treap_node *node = treap_floor(tree, address, 0);
    struct allocator_extent *left = node ? BY_ADDRESS(node) : NULL;
    if (left && extent_end(left) != address) left = NULL;
    node = treap_ceiling(tree, address, 0);
    struct allocator_extent *right = node ? BY_ADDRESS(node) : NULL;
    if (right && right->by_address.key != address + size) right = NULL;

    if (left) {
        if (sized) treap_remove(&a->free_by_size, &left->by_size);
        left->size += size;
        if (right) {
            treap_remove(tree, &right->by_address);
            if (sized) treap_remove(&a->free_by_size, &right->by_size);
            left->size += right->size;
            free(right);
        }
        if (sized) index_size(a, left);
        return 0;
    }
    if (right) {
        treap_remove(tree, &right->by_address);
        if (sized) treap_remove(&a->free_by_size, &right->by_size);
        right->by_address.key = address;
        right->size += size;
        treap_insert(tree, &right->by_address);
        if (sized) index_size(a, right);
        return 0;
    }
    struct allocator_extent *e = calloc(1, sizeof *e);
    if (!e) return -1;
    e->by_address.key = address;
    e->size = size;
    treap_insert(tree, &e->by_address);
    if (sized) index_size(a, e);
    return 0;
}

/* Removes [address, address + size) from range e, which contains it. */
static int cut_run(struct allocator *a, struct treap *tree, bool sized, struct allocator_extent *e, uint64_t address, uint64_t size) {
    uint64_t start = e->by_address.key, end = extent_end(e);
    struct allocator_extent *tail = NULL;
    if (address > start && address + size < end) {
        tail = calloc(1, sizeof *tail);
        if (!tail) return -1;
    }
    if (sized) treap_remove(&a->free_by_size, &e->by_size);
    if (address == start) {
        treap_remove(tree, &e->by_address);
        if (address + size == end) {
            free(e);
            return 0;
        }
        e->by_address.key = address + size;
        e->size = end - address - size;
        treap_insert(tree, &e->by_address);
        if (sized) index_size(a, e);
        return 0;
    }
    e->size = address - start;
    if (sized) index_size(a, e);
    if (tail) {
        tail->by_address.key = address + size;
        tail->size = end - address - size;
        treap_insert(tree, &tail->by_address);
        if (sized) index_size(a, tail);
    }
    return 0;
}

int allocator_init(struct allocator *a, uint64_t base, uint64_t size, uint64_t chunk, uint64_t initial) {
    a->base = base;
    a->size = size & ~(chunk - 1);
    a->chunk = chunk;
    if (initial > a->size) initial = a->size;
    if (a->size > initial && add_run(a, &a->unbacked, false, base + initial, a->size - initial)) return -1;
    if (initial && add_run(a, &a->free_by_address, true, base, initial)) return -1;
    a->backed = a->free_bytes = initial;
    return 0;
}

static void free_tree(struct treap_node *n) {
    if (!n) return;
    free_tree(n->left);
    free_tree(n->right);
    free(BY_ADDRESS(n));
}

void allocator_fini(struct allocator *a) {
    free_tree(a->free_by_address.root);
    free_tree(a->unbacked.root);
    while (a->first) {
        struct allocator_quarantine *q = a->first;
        a->first = q->next;
        free(q);
    }
    a->free_by_address.root = a->free_by_size.root = a->unbacked.root = NULL;
    a->last = NULL;
}

uint64_t allocator_round(uint64_t size) {
    if (size > UINT64_MAX - ALLOCATOR_ALIGN) return 0;
    return (size + ALLOCATOR_ALIGN - 1) & ~(ALLOCATOR_ALIGN - 1);
}

uint64_t allocator_take(struct allocator *a, uint64_t size) { return allocator_take_aligned(a, size, ALLOCATOR_ALIGN); }

uint64_t allocator_take_aligned(struct allocator *a, uint64_t size, uint64_t alignment) {
    struct treap_node *node = treap_ceiling(&a->free_by_size, allocator_aligned(size, alignment), 0);
    if (!node) return 0;
    struct allocator_extent *e = BY_SIZE(node);
    uint64_t address = (e->by_address.key + alignment - 1) & ~(alignment - 1);
    if (cut_run(a, &a->free_by_address, true, e, address, size)) return 0;
    a->free_bytes -= size;
    a->used += size;
    return address;
}

/* Backs [e's start, + amount), or `needed` bytes of it, and adds that to the free credit. */
static int back(struct allocator *a, struct allocator_extent *e, uint64_t needed, uint64_t amount, bool waits) {
    uint64_t address = e->by_address.key;
    int rc = a->grow(a->arg, address, needed, waits, &amount);
    if (rc) return rc;
    if (cut_run(a, &a->unbacked, false, e, address, amount) || add_run(a, &a->free_by_address, true, address, amount)) return OUT_OF_MEMORY;
    a->backed += amount;
    a->free_bytes += amount;
    return 0;
}

int allocator_grow(struct allocator *a, uint64_t size, uint64_t most, bool waits) {
    for (struct treap_node *node = treap_first(&a->unbacked); node; node = treap_next(&a->unbacked, node)) {
        struct allocator_extent *e = BY_ADDRESS(node);
        /* A free block that ends where this range begins reduces the amount by its size. */
        struct treap_node *before = treap_floor(&a->free_by_address, e->by_address.key, 0);
        uint64_t joined = before && extent_end(BY_ADDRESS(before)) == e->by_address.key ? BY_ADDRESS(before)->size : 0;
        uint64_t need = size > joined ? size - joined : 0;
        if (need > e->size) continue;
        need = (need + a->chunk - 1) & ~(a->chunk - 1);
        if (!need) need = a->chunk;
        if (need > e->size) continue;
        uint64_t want = a->backed < most ? a->backed : most;
        if (want < ALLOCATOR_MIN_GROW) want = ALLOCATOR_MIN_GROW;
        want = (want + a->chunk - 1) & ~(a->chunk - 1);
        if (want < need) want = need;
        if (want > e->size) want = e->size;
        return back(a, e, need, want, waits);
    }
    return OUT_OF_MEMORY;
}

uint64_t allocator_ahead(struct allocator *a, uint64_t want, uint64_t *address) {
    want &= ~(a->chunk - 1);
    struct treap_node *node = want ? treap_first(&a->unbacked) : NULL;
    if (!node) return 0;
    struct allocator_extent *e = BY_ADDRESS(node);
    uint64_t size = want < e->size ? want : e->size;
    *address = e->by_address.key;
    return cut_run(a, &a->unbacked, false, e, *address, size) ? 0 : size;
}

void allocator_ahead_done(struct allocator *a, uint64_t address, uint64_t size, bool backed) {
    /* When memory for the record runs out the range is lost for the session, as in allocator_shrink. */
    if (add_run(a, backed ? &a->free_by_address : &a->unbacked, backed, address, size) || !backed) return;
    a->backed += size;
    a->free_bytes += size;
}

uint64_t allocator_reserve(struct allocator *a, uint64_t size, uint64_t alignment, uint64_t hint) {
    if (alignment < a->chunk) alignment = a->chunk;
    struct treap_node *node = hint && hint % alignment == 0 ? treap_floor(&a->unbacked, hint, 0) : NULL;
    if (node) {
        struct allocator_extent *e = BY_ADDRESS(node);
        uint64_t before = hint - node->key;
        if (before < e->size && size <= e->size - before) return cut_run(a, &a->unbacked, false, e, hint, size) ? 0 : hint;
    }
    for (node = treap_floor(&a->unbacked, UINT64_MAX, 0); node; node = node->key ? treap_floor(&a->unbacked, node->key - 1, 0) : NULL) {
        struct allocator_extent *e = BY_ADDRESS(node);
        if (size > e->size) continue;
        uint64_t address = (extent_end(e) - size) & ~(alignment - 1);
        if (address >= node->key) return cut_run(a, &a->unbacked, false, e, address, size) ? 0 : address;
    }
    return 0;
}

void allocator_unreserve(struct allocator *a, uint64_t address, uint64_t size) {
    add_run(a, &a->unbacked, false, address, size); /* a failure loses address space only */
}

int allocator_give(struct allocator *a, uint64_t address, uint64_t size, uint64_t stamp) {
    struct allocator_quarantine *q = malloc(sizeof *q);
    if (!q) return -1;
    *q = (struct allocator_quarantine){.address = address, .size = size, .stamp = stamp};
    if (a->last) {
        if (a->last->stamp > stamp) q->stamp = a->last->stamp;
        a->last->next = q;
    } else {
        a->first = q;
    }
    a->last = q;
    a->used -= size;
    a->quarantined += size;
    return 0;
}

uint64_t allocator_release(struct allocator *a, uint64_t passed) {
    uint64_t released = 0;
    while (a->first && a->first->stamp <= passed) {
        struct allocator_quarantine *q = a->first;
        if (add_run(a, &a->free_by_address, true, q->address, q->size)) break; /* out of memory for the record: the range stays in quarantine */
        a->first = q->next;
        if (!a->first) a->last = NULL;
        a->quarantined -= q->size;
        a->free_bytes += q->size;
        released += q->size;
        free(q);
    }
    return released;
}

uint64_t allocator_shrink(struct allocator *a, uint64_t least, uint64_t keep) {
    uint64_t given = 0;
    for (struct treap_node *node = treap_first(&a->free_by_address); node && a->free_bytes > keep;) {
        struct allocator_extent *e = BY_ADDRESS(node);
        uint64_t start = e->by_address.key, end = extent_end(e);
        uint64_t low = (start + a->chunk - 1) & ~(a->chunk - 1), high = end & ~(a->chunk - 1);
        if (e->size >= least && high > low) {
            uint64_t excess = (a->free_bytes - keep) & ~(a->chunk - 1);
            if (!excess) break;
            if (high - low > excess) low = high - excess;
            if (cut_run(a, &a->free_by_address, true, e, low, high - low)) break;
            a->shrink(a->arg, low, high - low);
            add_run(a, &a->unbacked, false, low, high - low); /* a failure loses address space only */
            a->backed -= high - low;
            a->free_bytes -= high - low;
            given += high - low;
        }
        node = treap_ceiling(&a->free_by_address, end, 0);
    }
    return given;
}
