/* What blocks have while they are resident on a thread: shared and local memory, a fiber for each warp, and the other blocks of their cluster. */
#include "exec_private.h"
#include "matrix/tensor_memory.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Address space reserved from a block's shared memory on, so that every 32-bit offset out of bounds faults. Less where the kernel does not grant it. */
#define WINDOW_RESERVE (1ull << 32)
#define WINDOW_RESERVE_LEAST (1ull << 20)
#define KEEP_FIBERS 64 /* idle ones a thread keeps */
#define KEEP_BLOCKS 4

/* ---- memory ---- */

static void block_delete(struct block *b) {
    if (b->window) munmap(b->window, b->window_reserve);
    if (b->local) munmap(b->local, b->local_size);
    tensor_memory_delete(b->tensor);
    free(b);
}

static struct block *block_new(void) {
    struct block *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    for (b->window_reserve = WINDOW_RESERVE; b->window_reserve >= WINDOW_RESERVE_LEAST; b->window_reserve >>= 2) {
        b->window = mmap(NULL, b->window_reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (b->window != MAP_FAILED) return b;
    }
    free(b);
    return NULL;
}

/* From now on `wanted` bytes from `at` on are usable, whole pages, of which *ready were. */
static bool make_ready(char *at, size_t *ready, size_t wanted) {
    if (wanted == *ready) return true;
    size_t low = wanted < *ready ? wanted : *ready, high = wanted < *ready ? *ready : wanted;
    if (mprotect(at + low, high - low, wanted > *ready ? PROT_READ | PROT_WRITE : PROT_NONE)) return false;
    *ready = wanted;
    return true;
}

/* Memory that a block keeps for the next one is not cleared (its content is undefined on a GPU too). */
static bool shared_room(struct block *b, const struct grid *g) {
    size_t wanted = (g->shared_bytes + 4095u) & ~(size_t)4095;
    if (b->lead == b) {
        b->shared = b->window;
        return make_ready(b->window, &b->window_ready, wanted);
    }
    if ((b->rank + 1) * SOFT_RANK_BYTES > b->lead->window_reserve) return false;
    b->shared = b->lead->window + b->rank * SOFT_RANK_BYTES;
    return make_ready(b->shared, &b->shared_lent, wanted);
}

static bool local_room(struct block *b, const struct grid *g) {
    size_t local = (size_t)g->local_stride * SOFT_LANES * g->warps;
    if (local <= b->local_size) return true;
    if (b->local) munmap(b->local, b->local_size);
    b->local_size = (local + 4095) & ~(size_t)4095;
    b->local = mmap(NULL, b->local_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->local != MAP_FAILED) return true;
    b->local = NULL;
    b->local_size = 0;
    return false;
}

/* ---- blocks ---- */

/* Its part of the lead's window becomes out of bounds again. */
static void give_back_part(struct block *b) {
    if (!b->shared_lent) return;
    madvise(b->shared, b->shared_lent, MADV_DONTNEED);
    make_ready(b->shared, &b->shared_lent, 0);
}

static void block_retire(struct runner *r, struct block *b) {
    give_back_part(b);
    for (uint32_t i = 0; i < SOFT_MAX_WARPS && b->fibers[i]; i++) {
        struct fiber *f = b->fibers[i];
        b->fibers[i] = NULL;
        if (r->n_free_fibers >= KEEP_FIBERS) {
            soft_fiber_free(f);
            continue;
        }
        f->next_free = r->free_fibers;
        r->free_fibers = f;
        r->n_free_fibers++;
    }
    if (r->n_free_blocks >= KEEP_BLOCKS) {
        block_delete(b);
        return;
    }
    b->next_free = r->free_blocks;
    r->free_blocks = b;
    r->n_free_blocks++;
}

/* A block for a cluster that has one already (`lead`), or for a new one. */
static struct block *block_take(struct runner *r, const struct grid *g, struct block *lead, uint32_t rank) {
    struct block *b = r->free_blocks;
    if (b) {
        r->free_blocks = b->next_free;
        r->n_free_blocks--;
    } else if (!(b = block_new())) {
        return NULL;
    }
    b->runner = r;
    b->warps = g->warps;
    b->lead = lead ? lead : b;
    b->next = NULL;
    b->rank = rank;
    if (!shared_room(b, g) || !local_room(b, g)) {
        give_back_part(b);
        block_delete(b);
        return NULL;
    }
    for (uint32_t i = 0; g->fibers && i < g->warps; i++) {
        struct fiber *f = r->free_fibers;
        if (f) {
            r->free_fibers = f->next_free;
            r->n_free_fibers--;
        } else if (!(f = soft_fiber_new())) {
            block_retire(r, b);
            return NULL;
        }
        f->block = b;
        b->fibers[i] = f;
    }
    return b;
}

/* ---- clusters ---- */

void soft_cluster_retire(struct runner *r, struct block *lead) {
    for (struct block *b = lead->next, *next; b; b = next) { /* those that have a part of the lead's memory first */
        next = b->next;
        block_retire(r, b);
    }
    block_retire(r, lead);
}

static struct block *cluster_take(struct runner *r, const struct grid *g) {
    struct block *lead = block_take(r, g, NULL, 0), *last = lead;
    for (uint32_t rank = 1; last && rank < g->cluster; rank++) {
        last->next = block_take(r, g, lead, rank);
        if (!last->next) {
            soft_cluster_retire(r, lead);
            return NULL;
        }
        last = last->next;
    }
    return lead;
}

struct block *soft_resident_add(struct runner *r, const struct grid *g) {
    if (r->n_resident == r->resident_size) {
        uint32_t size = r->resident_size ? 2 * r->resident_size : 16;
        struct block **more = realloc(r->resident, size * sizeof *more);
        if (!more) return NULL;
        r->resident = more;
        r->resident_size = size;
    }
    struct block *lead = cluster_take(r, g);
    if (lead) r->resident[r->n_resident++] = lead;
    return lead;
}

void soft_runner_release(struct runner *r) {
    while (r->free_blocks) {
        struct block *b = r->free_blocks;
        r->free_blocks = b->next_free;
        block_delete(b);
    }
    while (r->free_fibers) {
        struct fiber *f = r->free_fibers;
        r->free_fibers = f->next_free;
        soft_fiber_free(f);
    }
    soft_lanes_free(r->direct.lanes);
    r->direct.lanes = NULL;
    soft_lanes_release(r);
    free(r->resident);
}
