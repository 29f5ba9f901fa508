/* The lane fallback: when the lanes of a warp wait for each other in a way that vector code cannot serve, each lane gets a stack and runs code for
 * one lane, in which registers are scalars. Lanes meet at the program's exchanges and barriers and otherwise run in the order of lane_order.c. All
 * lanes of a warp run on one thread, one at a time, so plain integers suffice. */
#include "../../../wire/clock.h"
#include "../driver_constants.h"
#include "exec_private.h"
#include "lane_order.h"

#include <stdlib.h>
#include <string.h>

#define SOFT_EXPORT __attribute__((visibility("default")))
#define AREA_VALUES 144 /* registers that one instruction exchanges, at most */
#define KEY_PART 0x80000000u
#define KEY_BARRIER 0x40000000u
#define KEY_ACTIVE 0x20000000u
/* Turns of a loop, of SPIN_YIELD iterations each, before the clock is read; and the time that the first warp of a grid waits then, by the clock and
 * by its CPU time. Loops that look back at other blocks are served sooner, also where the other block's thread waits for a core; each warp after one
 * that took the fallback waits half as long as that one. */
#define TURNS 64
#define PATIENCE_NS 30000000ull
#define PATIENCE_CPU_NS 5000000ull
#define HALVINGS 5
/* Warps of a grid that run so at once, unless one has waited for MANY_TURNS: each has 32 stacks, and the kernel grants a process some 65,000 mappings
 * (vm.max_map_count), of which a stack takes two. */
#define APART_MOST 512u
#define MANY_TURNS (1u << 14)
#define KEEP_LANES 16 /* a thread's, with their stacks */

/* The frame that vector code writes for one call, from which lanes continue; innermost first. Compiled code fills the rest. */
struct frame {
    struct frame *inner;
    char rest[];
};

struct lanes {
    struct lanes *next_free;
    struct fiber *fiber[SOFT_LANES]; /* of which warp, sp and stack are used */
    uint32_t named[SOFT_LANES], key[SOFT_LANES], met[SOFT_LANES], value[SOFT_LANES];
    uint32_t alive, waits; /* lanes that have not ended; those of them that wait for others at an exchange or barrier */
    uint32_t running;      /* a lane's number */
    uint32_t group;        /* the lanes that were at one point and run to their next: the running one and others */
    struct lane_order order;
    void *home; /* the warp's own stack */
    void (*entry)(struct soft_warp *, void *);
    struct frame *frames;
    uint64_t area[AREA_VALUES][SOFT_LANES];
};

static void drop_frames(struct lanes *s) {
    while (s->frames) {
        struct frame *inner = s->frames->inner;
        free(s->frames);
        s->frames = inner;
    }
}

void soft_lanes_free(struct lanes *s) {
    if (!s) return;
    drop_frames(s);
    for (uint32_t i = 0; i < SOFT_LANES; i++)
        if (s->fiber[i]) soft_fiber_free(s->fiber[i]);
    free(s);
}

void soft_lanes_release(struct runner *r) {
    while (r->free_lanes) {
        struct lanes *next = r->free_lanes->next_free;
        soft_lanes_free(r->free_lanes);
        r->free_lanes = next;
    }
    r->n_free_lanes = 0;
}

/* For a fiber that has none; NULL: no memory. */
static struct lanes *take(struct runner *r) {
    struct lanes *s = r->free_lanes;
    if (!s) return calloc(1, sizeof *s);
    r->free_lanes = s->next_free;
    r->n_free_lanes--;
    return s;
}

static void give_back(struct runner *r, struct fiber *f) {
    struct lanes *s = f->lanes;
    f->lanes = NULL;
    f->lanes_run = false;
    drop_frames(s);
    if (r->n_free_lanes >= KEEP_LANES) {
        soft_lanes_free(s);
        return;
    }
    s->next_free = r->free_lanes;
    r->free_lanes = s;
    r->n_free_lanes++;
}

/* ---- from code for 32 lanes to code for one ---- */

SOFT_EXPORT uint32_t soft_spin_wait(struct soft_warp *w, uint32_t turns) {
    struct fiber *f = soft_fiber_of(w);
    soft_yield(w);
    struct runner *r = f->block->runner;
    bool full = turns < MANY_TURNS && atomic_load_explicit(&r->grid->apart, memory_order_relaxed) >= APART_MOST;
    if (r->grid->engine->eager_lanes) return !full;
    if (r->draws.on) return !full && turns >= r->draws.spin_patience;
    if (turns <= 1) f->waits_since = (uint64_t)gv_clock_ns(CLOCK_MONOTONIC);
    if (turns < TURNS) return 0;
    if (turns == TURNS) f->waits_since_cpu = (uint64_t)gv_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    uint32_t before = atomic_load_explicit(&r->grid->fallbacks, memory_order_relaxed);
    if (before > HALVINGS) before = HALVINGS;
    return !full && (uint64_t)gv_clock_ns(CLOCK_MONOTONIC) - f->waits_since > PATIENCE_NS >> before &&
           (uint64_t)gv_clock_ns(CLOCK_THREAD_CPUTIME_ID) - f->waits_since_cpu > PATIENCE_CPU_NS >> before;
}

static _Noreturn void no_memory(struct fiber *f) {
    struct runner *r = f->block->runner;
    soft_grid_fail(r->grid, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, &f->warp, "no memory for the lane fallback");
    soft_leave(r);
}

SOFT_EXPORT void *soft_fallback_frame(struct soft_warp *w, uint64_t bytes) {
    struct fiber *f = soft_fiber_of(w);
    if (!f->lanes && !(f->lanes = take(f->block->runner))) no_memory(f);
    if (!f->lanes_run) drop_frames(f->lanes); /* the grid has failed */
    f->lanes_run = true;
    struct frame *frame = aligned_alloc(64, (bytes + 63) & ~63ull);
    if (!frame) no_memory(f);
    memset(frame, 0, bytes);
    frame->inner = f->lanes->frames;
    return f->lanes->frames = frame;
}

/* The lanes with which lane i converges, if it can now: everybody whom it names, and who is still there, waits for the same. */
static uint32_t complete(struct lanes *s, uint32_t i) {
    uint32_t want = (s->named[i] & s->alive) | 1u << i;
    for (uint32_t todo = want; todo; todo &= todo - 1) {
        uint32_t j = (uint32_t)__builtin_ctz(todo);
        if (!(s->waits >> j & 1) || s->key[j] != s->key[i] || ((s->named[j] & s->alive) | 1u << j) != want) return 0;
    }
    return want;
}

static void release(struct lanes *s, uint32_t group) {
    s->waits &= ~group;
    s->order.ready |= group;
    for (uint32_t todo = group; todo; todo &= todo - 1) s->met[__builtin_ctz(todo)] = group;
}

static void lane_main(struct fiber *l) {
    struct lanes *s = soft_fiber_of(&l->warp)->lanes;
    s->entry(&l->warp, s->frames);
    s->alive &= ~l->warp.lanes;
    for (uint32_t todo = s->alive; todo; todo &= todo - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(todo);
        if (s->waits >> i & 1) release(s, complete(s, i));
    }
    soft_switch(&l->sp, s->home);
    __builtin_unreachable();
}

/* No lane can run. Programs that name lanes which never arrive are invalid, but exist: the lanes that are there meet. */
static void release_some(struct lanes *s) {
    uint32_t first = (uint32_t)__builtin_ctz(s->alive), group = 0;
    for (uint32_t todo = s->alive; todo; todo &= todo - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(todo);
        if (s->key[i] == s->key[first] && s->named[i] == s->named[first]) group |= 1u << i;
    }
    release(s, group);
}

SOFT_EXPORT void soft_fall_back(struct soft_warp *w, void (*entry)(struct soft_warp *, void *)) {
    struct fiber *f = soft_fiber_of(w);
    struct runner *r = f->block->runner;
    struct grid *g = r->grid;
    struct lanes *s = f->lanes;
    atomic_fetch_add_explicit(&g->fallbacks, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&g->apart, 1, memory_order_relaxed);
    s->entry = entry;
    s->alive = w->lanes;
    s->waits = 0;
    lane_order_begin(&s->order, s->alive);
    for (uint32_t todo = s->alive; todo; todo &= todo - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(todo);
        struct fiber *l = s->fiber[i];
        if (!l && !(l = s->fiber[i] = soft_fiber_new())) no_memory(f);
        l->warp = *w;
        l->warp.lanes = 1u << i;
        soft_fiber_prepare(l, lane_main);
    }
    while (s->alive) {
        if (s->waits == s->alive) release_some(s);
        uint32_t group = lane_order_next(&s->order, s->alive & ~s->waits);
        s->group = group;
        for (uint32_t todo = group; todo; todo &= ~(1u << s->running)) {
            s->running = r->draws.on ? soft_draw_bit(&r->draws, todo) : (uint32_t)__builtin_ctz(todo);
            struct fiber *l = s->fiber[s->running];
            r->warp = &l->warp;
            soft_switch(&s->home, l->sp);
            soft_perhaps_preempt(f);
        }
        r->warp = w;
        if (lane_order_ran(&s->order, group, s->alive & ~s->waits)) soft_warp_yield(f);
        if (atomic_load_explicit(&g->stop, memory_order_relaxed)) soft_leave(r);
    }
    atomic_fetch_sub_explicit(&g->apart, 1, memory_order_relaxed);
    give_back(r, f);
}

/* ---- lanes that run by themselves ---- */

void soft_lane_yield(struct fiber *f) {
    struct lanes *s = f->lanes;
    soft_switch(&s->fiber[s->running]->sp, s->home);
}

/* Waits until all lanes in `named` that have not ended have arrived with the same key; returns them. */
static uint32_t converge(struct lanes *s, uint32_t named, uint32_t key) {
    uint32_t i = s->running;
    s->named[i] = named;
    s->key[i] = key;
    s->waits |= 1u << i;
    lane_order_acts(&s->order, i);
    uint32_t group = complete(s, i);
    release(s, group);
    if (group)
        s->order.ready &= ~(1u << i); /* the last one to arrive continues at once */
    else
        soft_switch(&s->fiber[i]->sp, s->home);
    return s->met[i];
}

SOFT_EXPORT void soft_lane_begin(struct soft_warp *w, const struct soft_lane_loop *loops) { soft_fiber_of(w)->lanes->order.loops = loops; }

SOFT_EXPORT void soft_lane_point(struct soft_warp *w, uint32_t point, uint32_t loop, uint32_t acts) {
    struct fiber *f = soft_fiber_of(w);
    lane_order_point(&f->lanes->order, f->lanes->running, point, loop, acts);
    soft_lane_yield(f);
}

SOFT_EXPORT void soft_lane_spin_round(struct soft_warp *w, uint32_t loop) {
    struct lanes *s = soft_fiber_of(w)->lanes;
    lane_order_spin_round(&s->order, s->running, loop);
}

SOFT_EXPORT void soft_lane_enter(struct soft_warp *w) {
    struct lanes *s = soft_fiber_of(w)->lanes;
    lane_order_enter(&s->order, s->running);
}

SOFT_EXPORT void soft_lane_leave(struct soft_warp *w) {
    struct lanes *s = soft_fiber_of(w)->lanes;
    lane_order_leave(&s->order, s->running);
}

SOFT_EXPORT uint64_t *soft_lane_exchange_area(struct soft_warp *w) { return soft_fiber_of(w)->lanes->area[0]; }

SOFT_EXPORT uint32_t soft_lane_exchange_begin(struct soft_warp *w, uint32_t named, uint32_t key) {
    return converge(soft_fiber_of(w)->lanes, named, key);
}

SOFT_EXPORT void soft_lane_exchange_end(struct soft_warp *w, uint32_t group) { converge(soft_fiber_of(w)->lanes, group, KEY_PART); }

SOFT_EXPORT uint32_t soft_lane_active(struct soft_warp *w, uint32_t executes) {
    struct lanes *s = soft_fiber_of(w)->lanes;
    s->value[s->running] = executes;
    uint32_t group = converge(s, s->group, KEY_ACTIVE), active = 0;
    for (uint32_t todo = group; todo; todo &= todo - 1)
        if (s->value[__builtin_ctz(todo)]) active |= todo & -todo;
    converge(s, group, KEY_PART);
    return active;
}

SOFT_EXPORT uint32_t soft_lane_barrier(struct soft_warp *w, uint32_t id, uint32_t threads, uint32_t op, uint32_t set) {
    struct lanes *s = soft_fiber_of(w)->lanes;
    uint32_t i = s->running;
    s->value[i] = set;
    uint32_t group = converge(s, ~0u, KEY_BARRIER | id), first = (uint32_t)__builtin_ctz(group);
    if (first == i) { /* one arrives for the whole warp */
        uint32_t bits = 0;
        for (uint32_t j = 0; j < SOFT_LANES; j++) bits |= (group >> j & 1 && s->value[j]) ? 1u << j : 0;
        if (op == SOFT_LANE_ARRIVE)
            soft_barrier_arrive(w, id, threads, group);
        else if (op == SOFT_LANE_SYNC)
            soft_barrier_sync(w, id, threads, group);
        else if (op == SOFT_LANE_CLUSTER_ARRIVE)
            soft_cluster_arrive(w);
        else if (op == SOFT_LANE_CLUSTER_WAIT)
            soft_cluster_wait(w);
        else if (op == SOFT_LANE_WARPGROUP)
            soft_warpgroup_sync(w);
        else
            s->value[i] = soft_barrier_red(w, id, threads, group, op, bits);
    }
    converge(s, group, KEY_PART);
    return s->value[first];
}
