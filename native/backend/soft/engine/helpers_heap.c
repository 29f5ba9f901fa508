/* What compiled kernels call besides barriers: time, the device heap, traps. */
#include "../driver_constants.h"
#include "../../../wire/clock.h"
#include "exec_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOFT_EXPORT __attribute__((visibility("default")))
#define HEAP_MAGIC 0x70616568746f7367ull

static struct runner *runner_of(const struct soft_warp *w) { return soft_fiber_of(w)->block->runner; }

SOFT_EXPORT uint64_t soft_globaltimer(struct soft_warp *w) {
    (void)w;
    return (uint64_t)gv_clock_ns(CLOCK_REALTIME);
}

/* ---- the device heap ---- */

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

/* ---- ends ---- */

SOFT_EXPORT _Noreturn void soft_assert_fail(struct soft_warp *w, uint32_t lane, const char *message, const char *file, uint32_t line,
                                            const char *function) {
    struct runner *r = runner_of(w);
    uint32_t thread = w->first_thread + lane, x = thread % w->ntid[0], y = thread / w->ntid[0] % w->ntid[1], z = thread / w->ntid[0] / w->ntid[1];
    /* The text belongs on standard error, as CUDA has it: it travels with the error, not with what kernels print. */
    soft_grid_fail(r->grid, CUDA_ERROR_ASSERT, w, "%.200s:%u: %.200s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%.200s` failed",
                   file ? file : "", line, function ? function : "", w->ctaid[0], w->ctaid[1], w->ctaid[2], x, y, z, message ? message : "");
    soft_leave(r);
}

SOFT_EXPORT _Noreturn void soft_trap(struct soft_warp *w, uint32_t lanes, uint32_t kind) {
    static const struct {
        int error;
        const char *text;
    } kinds[] = {
        [SOFT_TRAP] = {CUDA_ERROR_LAUNCH_FAILED, "trap"},
        [SOFT_TRAP_STACK] = {CUDA_ERROR_HARDWARE_STACK_ERROR, "stack exhausted by recursion"},
        [SOFT_TRAP_BAD_PC] = {CUDA_ERROR_INVALID_PC, "call of what is no function"},
        [SOFT_TRAP_MISALIGNED] = {CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"},
    };
    struct runner *r = runner_of(w);
    uint32_t k = kind < sizeof kinds / sizeof *kinds ? kind : SOFT_TRAP;
    soft_grid_fail(r->grid, kinds[k].error, w, "%s (lanes 0x%08x)", kinds[k].text, lanes);
    soft_leave(r);
}

SOFT_EXPORT _Noreturn void soft_misaligned(struct soft_warp *w, uint32_t lanes, uint64_t address, uint32_t size, uint32_t space) {
    static const char *const names[] = {"", "shared ", "local "};
    struct runner *r = runner_of(w);
    soft_grid_fail(r->grid, CUDA_ERROR_MISALIGNED_ADDRESS, w, "misaligned %saddress 0x%llx for %u bytes (lanes 0x%08x)", names[space < 3 ? space : 0],
                   (unsigned long long)address, size, lanes);
    soft_leave(r);
}

SOFT_EXPORT _Noreturn void soft_unsupported(struct soft_warp *w, const char *text) {
    struct runner *r = runner_of(w);
    soft_grid_fail(r->grid, CUDA_ERROR_ILLEGAL_INSTRUCTION, w, "the software GPU lacks %.200s", text);
    soft_leave(r);
}
