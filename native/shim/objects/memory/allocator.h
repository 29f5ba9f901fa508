/* Places allocations inside one device's part of the window. It does no I/O: the two callbacks ask the worker, so that it can be tested alone.
 * Not thread-safe; the caller (memory.c) holds the device's lock.
 *
 * Address space is in one of four states:  unbacked -> (grow) -> free credit -> (take) -> in use -> (give) -> quarantine -> (release) -> free credit -> (shrink) -> unbacked.
 * A range leaves quarantine when every stream has passed the stamp (a sequence number) it was freed at. */
#ifndef SHIM_ALLOCATOR_H
#define SHIM_ALLOCATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "objects/memory/treap.h"

#define ALLOCATOR_ALIGN 512ull
#define ALLOCATOR_MIN_GROW (2ull << 20)

struct allocator_extent;

struct allocator {
    uint64_t base, size;                            /* the client's part; base is a multiple of chunk */
    uint64_t chunk;                                 /* granularity of backing, a power of two */
    struct treap free_by_address, free_by_size;     /* backed, reusable */
    struct treap unbacked;                          /* by address, chunk multiples */
    struct allocator_quarantine *first, *last;      /* stamps never fall from first to last */
    uint64_t backed, free_bytes, quarantined, used; /* backed = free + quarantined + used */
    /* Backs *size bytes, or `needed` of them if there are no more, and says in *size which; `waits`: until other sessions have given way, if need be. 0, or the
     * CUresult of the worker (out of memory). */
    int (*grow)(void *arg, uint64_t address, uint64_t needed, bool waits, uint64_t *size);
    void (*shrink)(void *arg, uint64_t address, uint64_t size);
    void *arg;
};

/* `initial` bytes at the start are backed already. 0, or -1 without memory. */
int allocator_init(struct allocator *a, uint64_t base, uint64_t size, uint64_t chunk, uint64_t initial);
void allocator_fini(struct allocator *a);

/* Bytes that an allocation of `size` bytes occupies; 0 when that does not fit 64 bits. */
uint64_t allocator_round(uint64_t size);
/* An address from free credit, best fit, or 0 when nothing fits. `size` as allocator_round gives it. */
uint64_t allocator_take(struct allocator *a, uint64_t size);
/* The same at a multiple of `alignment`, a power of two of at least ALLOCATOR_ALIGN; it finds a place whenever a free block of allocator_aligned(size, alignment) bytes exists. */
uint64_t allocator_take_aligned(struct allocator *a, uint64_t size, uint64_t alignment);
static inline uint64_t allocator_aligned(uint64_t size, uint64_t alignment) { return size + alignment - ALLOCATOR_ALIGN; }
/* Gets more credit, so that a following take of `size` succeeds: doubling up to `most` bytes at a time, and exactly what is needed when the worker does not have that at once.
 * 0, or the worker's CUresult, or CUDA_ERROR_OUT_OF_MEMORY when the window itself is full. */
int allocator_grow(struct allocator *a, uint64_t size, uint64_t most, bool waits);
/* Takes at most `want` bytes of unbacked addresses at *address and returns their number, 0 when the window is full. The caller asks the worker to back them and does not
 * wait; until allocator_ahead_done they are in none of the states. */
uint64_t allocator_ahead(struct allocator *a, uint64_t want, uint64_t *address);
/* The worker has answered: the range becomes free credit, or unbacked again. */
void allocator_ahead_done(struct allocator *a, uint64_t address, uint64_t size, bool backed);
/* Takes `size` bytes (whole chunks) of unbacked addresses, at `hint` if that is free, else as high as possible, which allocator_grow uses last. 0: no room. */
uint64_t allocator_reserve(struct allocator *a, uint64_t size, uint64_t alignment, uint64_t hint);
/* Gives them back. */
void allocator_unreserve(struct allocator *a, uint64_t address, uint64_t size);
/* Frees an allocation; it is reusable after release(passed >= stamp). 0, or -1 when memory for the record runs out (the range is then lost for the session). */
int allocator_give(struct allocator *a, uint64_t address, uint64_t size, uint64_t stamp);
/* Every stream has passed `passed`. Returns the bytes that became free. */
uint64_t allocator_release(struct allocator *a, uint64_t passed);
/* Gives free credit back in whole chunks: blocks of at least `least` bytes, until at most `keep` bytes of free credit are left. Returns the bytes given back. */
uint64_t allocator_shrink(struct allocator *a, uint64_t least, uint64_t keep);

#endif
