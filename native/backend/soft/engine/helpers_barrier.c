/* Barriers of a block, and the waiting that spin loops do. All warps of a block run on one thread, so plain integers do. */
#include "../driver_constants.h"
#include "exec_private.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#define SOFT_EXPORT __attribute__((visibility("default")))

static void complete(struct block *b, struct barrier *bar) {
    for (uint32_t todo = bar->waiting; todo; todo &= todo - 1) b->fibers[__builtin_ctz(todo)]->value = bar->value;
    b->runnable |= bar->waiting;
    memset(bar, 0, sizeof *bar);
}

/* A warp that exits is no longer awaited by barriers of the whole block; barriers with a thread count still wait for that many. */
void soft_warp_exited(struct block *b, uint32_t warp) {
    b->runnable &= ~(1u << warp);
    b->alive &= ~(1u << warp);
    b->live--;
    soft_cluster_warp_exited(b, b->fibers[warp]);
    if (b->alive == b->runnable) return; /* no warp waits */
    for (uint32_t i = 0; i < SOFT_BARRIERS; i++) {
        struct barrier *bar = &b->barriers[i];
        if (bar->waiting && bar->all && bar->arrived >= b->live) complete(b, bar);
    }
}

static uint32_t reduce(uint32_t value, bool first, uint32_t op, uint32_t lanes, uint32_t set) {
    switch (op) {
    case SOFT_RED_AND: return (first || value) && (set & lanes) == lanes;
    case SOFT_RED_OR: return value || (set & lanes);
    default: return value + (uint32_t)__builtin_popcount(set & lanes);
    }
}

static uint32_t arrive_at(struct soft_warp *w, uint32_t id, uint32_t threads, uint32_t lanes, uint32_t op, uint32_t set, bool wait) {
    struct fiber *f = soft_fiber_of(w);
    struct block *b = f->block;
    struct runner *r = b->runner;
    struct grid *g = r->grid;
    if (!g->fibers) { /* one warp a block, or a kernel that was said to have no barriers */
        if (g->warps > 1 || (wait && threads > SOFT_LANES)) {
            soft_grid_fail(g, CUDA_ERROR_LAUNCH_FAILED, w, "barrier %u waits for %u threads that never come", id, threads);
            soft_leave(r);
        }
        return reduce(0, true, op, lanes, set);
    }
    struct barrier *bar = &b->barriers[id];
    bar->value = reduce(bar->value, !bar->arrived, op, lanes, set);
    bar->reduces = true;
    bar->arrived++;
    bar->all = !threads;
    uint32_t value = bar->value;
    if (bar->arrived >= (threads ? threads / SOFT_LANES : b->live)) {
        complete(b, bar);
        return value;
    }
    if (!wait) return 0;
    bar->waiting |= 1u << w->warp;
    b->runnable &= ~(1u << w->warp);
    soft_pass_on(r, f);
    return f->value;
}

static uint32_t arrive(struct soft_warp *w, uint32_t id, uint32_t threads, uint32_t lanes, uint32_t op, uint32_t set, bool wait) {
    if (id >= SOFT_BARRIERS || threads % SOFT_LANES) {
        struct runner *r = soft_fiber_of(w)->block->runner;
        soft_grid_fail(r->grid, CUDA_ERROR_ILLEGAL_INSTRUCTION, w, "barrier %u of %u threads", id, threads);
        soft_leave(r);
    }
    return arrive_at(w, id, threads, lanes, op, set, wait);
}

SOFT_EXPORT void soft_warpgroup_sync(struct soft_warp *w) {
    arrive_at(w, SOFT_BARRIERS + w->warp / 4, 4 * SOFT_LANES, w->lanes, SOFT_RED_OR, 0, true);
}

/* The whole block's barrier, the most frequent one, does the same as `arrive` and `soft_pass_on` in one function. The next warp depends on the
 * address of its stack, so the path from this warp's address to that one is short: two loads, behind branches that are predicted. */
SOFT_EXPORT void soft_barrier_sync(struct soft_warp *w, uint32_t id, uint32_t threads, uint32_t lanes) {
    struct fiber *f = (struct fiber *)w, *to = f->beside;
    struct block *b = f->block;
    struct barrier *bar = &b->barriers[id % SOFT_BARRIERS];
    if (w->engine != w || threads || id >= SOFT_BARRIERS || !b->fibers[0] || bar->reduces) {
        arrive(w, id, threads, lanes, SOFT_RED_OR, 0, true);
        return;
    }
    if (++bar->arrived >= b->live) {
        b->runnable |= bar->waiting;
        bar->arrived = bar->waiting = 0;
        return;
    }
    uint32_t next = b->runnable & ~f->bit;
    bar->all = 1;
    bar->waiting |= f->bit;
    b->runnable = next;
    struct runner *r = b->runner;
    if (!(next & to->bit)) {
        soft_pass_on(r, f);
        return;
    }
    r->progress = true;
    to->yielded = false;
    r->running = to;
    r->warp = &to->warp;
    if (atomic_load_explicit(&r->grid->stop, memory_order_relaxed)) soft_leave(r);
    soft_switch_jump(&f->sp, to->sp); /* the last thing, so that it goes back into compiled code itself */
}

SOFT_EXPORT void soft_barrier_arrive(struct soft_warp *w, uint32_t id, uint32_t threads, uint32_t lanes) {
    arrive(w, id, threads, lanes, SOFT_RED_OR, 0, false);
}

SOFT_EXPORT uint32_t soft_barrier_red(struct soft_warp *w, uint32_t id, uint32_t threads, uint32_t lanes, uint32_t op, uint32_t set) {
    return arrive(w, id, threads, lanes, op, set, true);
}

void soft_warp_yield(struct fiber *f) {
    struct runner *r = f->block->runner;
    if (r->grid->fibers) {
        f->yielded = true;
        soft_suspend(r, f);
        return;
    }
    if (atomic_load_explicit(&r->grid->stop, memory_order_relaxed)) soft_leave(r);
    sched_yield();
}

SOFT_EXPORT void soft_turn(struct soft_warp *w) {
    struct fiber *f = soft_fiber_of(w);
    struct block *b = f->block;
    if (b->runner->grid->fibers && b->runnable & ~(1u << w->warp)) soft_pass_on(b->runner, f);
}

SOFT_EXPORT void soft_preempt(struct soft_warp *w) {
    struct fiber *f = soft_fiber_of(w);
    if (!f->lanes_run) soft_perhaps_preempt(f);
}

SOFT_EXPORT void soft_yield(struct soft_warp *w) {
    struct fiber *f = soft_fiber_of(w);
    if (f->lanes_run)
        soft_lane_yield(f);
    else
        soft_warp_yield(f);
}

SOFT_EXPORT void soft_nanosleep(struct soft_warp *w, uint32_t ns) {
    struct fiber *f = soft_fiber_of(w);
    struct block *b = f->block;
    struct runner *r = b->runner;
    if (f->lanes_run) {
        soft_lane_yield(f);
        return;
    }
    bool alone = !r->grid->fibers || (r->n_resident == 1 && !b->lead->next && !(b->runnable & (b->runnable - 1)));
    soft_yield(w);
    /* Does not sleep where other warps could run on this thread. */
    if (alone) nanosleep(&(struct timespec){.tv_nsec = ns < 100000 ? ns : 100000}, NULL);
}
