/* What the device runtime library asks of the engine: launches, which wait for the end of the grid, the last error of a thread, and the conditions of graphs. */
#include <stdlib.h>
#include <string.h>

#include "children.h"
#include "exec_private.h"

#define SOFT_EXPORT __attribute__((visibility("default")))
#define MOST_CHILDREN (1u << 22) /* of a grid */

static struct runner *runner_of(const struct soft_warp *w) { return soft_fiber_of(w)->block->runner; }

static void push(_Atomic(struct soft_child *) *last, struct soft_child *c, struct soft_child **link) {
    *link = atomic_load_explicit(last, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(last, link, c, memory_order_release, memory_order_relaxed)) {
    }
}

SOFT_EXPORT void *soft_child_buffer(struct soft_warp *w, uint32_t lane, uint64_t kernel) {
    (void)lane;
    struct runner *r = runner_of(w);
    struct soft_children *children = r->grid->launch->children;
    int64_t bytes = children ? children->param_bytes(children->arg, kernel) : -1;
    if (bytes < 0 || atomic_fetch_add(&children->n, 1) >= MOST_CHILDREN) return NULL;
    r->in_helper = 1; /* nothing may throw this thread out while it holds the allocator's lock */
    size_t size = (sizeof(struct soft_child) + (size_t)bytes + 63) & ~(size_t)63;
    struct soft_child *c = aligned_alloc(64, size);
    if (c) {
        memset(c, 0, size);
        c->kernel = kernel;
        push(&children->made, c, &c->made);
    }
    r->in_helper = 0;
    return c ? c->params : NULL;
}

SOFT_EXPORT uint32_t soft_child_launch(struct soft_warp *w, uint32_t lane, void *params, uint64_t stream) {
    (void)lane;
    struct soft_children *children = runner_of(w)->grid->launch->children;
    if (!params || !children) return SOFT_CHILD_INVALID_VALUE;
    struct soft_child *c = (struct soft_child *)((char *)params - sizeof *c);
    if (c->launched) return SOFT_CHILD_INVALID_VALUE;
    uint32_t error = children->check(children->arg, c);
    if (error) return error;
    c->stream = stream;
    c->launched = 1;
    push(&children->launched, c, &c->next);
    return 0;
}

SOFT_EXPORT void soft_set_condition(struct soft_warp *w, uint32_t lane, uint64_t handle, uint32_t value) {
    (void)w, (void)lane;
    __atomic_store_n((uint32_t *)(uintptr_t)handle, value, __ATOMIC_RELAXED); /* what is no handle faults as any address does */
}

SOFT_EXPORT uint32_t soft_last_error(struct soft_warp *w, uint32_t lane, uint32_t error, uint32_t set) {
    struct last_errors *l = &soft_fiber_of(w)->errors;
    if (l->grid_id != w->grid_id || l->warp != w->warp || memcmp(l->ctaid, w->ctaid, sizeof l->ctaid) != 0) {
        *l = (struct last_errors){.grid_id = w->grid_id, .warp = w->warp};
        memcpy(l->ctaid, w->ctaid, sizeof l->ctaid);
    }
    uint32_t before = l->of[lane];
    if (set) l->of[lane] = error;
    return before;
}
