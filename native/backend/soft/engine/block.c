/* Runs blocks on one thread: which clusters of them are resident, which warp runs next, and the end of warps, blocks and clusters. */
#undef _FORTIFY_SOURCE /* its siglongjmp takes a jump from a fiber's stack for an error */
#include "../driver_constants.h"
#include "exec_private.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#define MXCSR_FLUSH 0x8040u /* FTZ and DAZ */
/* Rounds in which all warps only waited for memory to change, after which more clusters become resident, an eighth as many: for programs that rely on a
 * whole wave of resident blocks. */
#define ROUNDS_BEFORE_COMPANY 256
#define COMPANY_SHARE 8
/* Number of claims for each core into which the rest of a grid is divided. */
#define RUNS_PER_HAND 16

_Noreturn void soft_leave(struct runner *r) { siglongjmp(r->jump, SOFT_LEFT); }

void soft_suspend(struct runner *r, struct fiber *f) {
    soft_switch(&f->sp, r->scheduler_sp);
    if (atomic_load_explicit(&r->grid->stop, memory_order_relaxed)) soft_leave(r);
}

/* Only at barriers, which every warp reaches, and where a warp has done work: where warps wait for memory to change, the scheduler must see each of
 * them wait. */
void soft_pass_on(struct runner *r, struct fiber *f) {
    struct block *b = f->block;
    r->progress = true;
    uint32_t later = b->runnable & ~((2u << f->warp.warp) - 1), next = later ? later : b->runnable;
    if (!next || r->draws.on) {
        soft_suspend(r, f);
        return;
    }
    struct fiber *to = b->fibers[__builtin_ctz(next)];
    to->yielded = false;
    r->running = to;
    r->warp = &to->warp;
    soft_switch(&f->sp, to->sp);
    if (atomic_load_explicit(&r->grid->stop, memory_order_relaxed)) soft_leave(r);
}

void soft_perhaps_preempt(struct fiber *f) {
    struct runner *r = f->block->runner;
    if (!r->draws.on || !r->grid->fibers || soft_draw(&r->draws, r->draws.often)) return;
    r->progress = true;
    soft_suspend(r, f);
}

/* ---- warps ---- */

/* How many blocks to take at once. Neighbouring blocks mostly use neighbouring memory: one core that runs many of them in order reads one stream,
 * which the processor's prefetchers follow; cores that alternate between blocks read broken streams. A share of the rest, so that the cores end
 * together; one block at a time while better code may come, because the next claim uses it. */
static uint64_t run_length(const struct grid *g) {
    const struct soft_code *code = g->launch->code;
    if (g->longest_run == 1 || (code->tier && soft_grid_entry(g) == code->entry)) return 1;
    uint64_t next = atomic_load_explicit(&g->next, memory_order_relaxed), left = next < g->total ? g->total - next : 0;
    uint64_t share = left / (RUNS_PER_HAND * (g->engine->n_threads + 1));
    return share < 1 ? 1 : share > g->longest_run ? g->longest_run : share;
}

/* It is not this session's turn. True: this thread has no block of the grid, and leaves it. */
static bool end_turn(struct runner *r, struct grid *g) {
    if (r != g->caller && r->run_next == r->run_end && (!g->fibers || !r->n_resident)) return true;
    soft_gate_pause(g);
    return false;
}

static bool claim(struct runner *r, struct grid *g, uint64_t *index) {
    if (soft_gate_closed(g->gate) && end_turn(r, g)) return false;
    if (atomic_load_explicit(&g->stop, memory_order_relaxed)) return false;
    if (r->run_next == r->run_end) {
        if (g->launch->code->tier) soft_grid_tier(g);
        if (g->alone) soft_grid_maybe_long(g);
        uint64_t length = run_length(g), first = atomic_fetch_add_explicit(&g->next, length, memory_order_relaxed);
        if (first >= g->total) return false;
        r->run_next = first;
        r->run_end = g->total - first < length ? g->total : first + length;
    }
    *index = r->run_next++;
    return true;
}

/* Which of the grid's blocks it is: of the cluster with that index, the one of its rank. */
static void block_place(struct block *b, const struct grid *g, uint64_t index) {
    const uint32_t *shape = g->launch->grid, *cluster = g->model.cluster;
    b->tensor_allocated = 0;
    b->tensor_relinquished = false;
    if (g->cluster > 1) {
        uint32_t rank = b->rank;
        for (int i = 0; i < 3; i++) {
            uint32_t clusters = shape[i] / cluster[i];
            b->index[i] = (uint32_t)(index % clusters) * cluster[i] + rank % cluster[i];
            index /= clusters;
            rank /= cluster[i];
        }
    } else if (index < shape[0]) {
        b->index[0] = (uint32_t)index;
        b->index[1] = b->index[2] = 0;
    } else {
        b->index[0] = (uint32_t)(index % shape[0]);
        index /= shape[0];
        b->index[1] = (uint32_t)(index % shape[1]);
        b->index[2] = (uint32_t)(index / shape[1]);
    }
}

static void warp_fill(struct fiber *f, const struct block *b, const struct grid *g, uint32_t warp) {
    struct soft_warp *w = &f->warp;
    *w = g->model;
    memcpy(w->ctaid, b->index, sizeof w->ctaid);
    w->warp = warp;
    w->first_thread = warp * SOFT_LANES;
    uint32_t rest = g->threads - w->first_thread;
    w->lanes = rest >= SOFT_LANES ? ~0u : (1u << rest) - 1;
    w->smid = b->runner->core;
    w->shared = b->shared;
    w->window = b->lead->window;
    w->rank = b->rank;
    w->local = b->local ? b->local + (size_t)g->local_stride * SOFT_LANES * warp : NULL;
    w->engine = f;
    f->bit = 1u << warp;
    f->beside = b->runner->draws.on ? f : b->fibers[warp + 1 < b->warps ? warp + 1 : 0]; /* drawn: the scheduler says who is next */
    f->lanes_run = f->arrived = false;
}

/* The code for the next warp: in a seeded schedule some get the first code although there is better. */
static soft_entry *warp_entry(struct runner *r) {
    const struct soft_code *code = r->grid->launch->code;
    return r->draws.on && soft_draw(&r->draws, 2) && code->tier ? code->entry : soft_grid_entry(r->grid);
}

/* Runs a warp from start to end, then, without the scheduler, the next runnable warp of its block. */
static void fiber_main(struct fiber *f) {
    struct block *b = f->block;
    struct runner *r = b->runner;
    warp_entry(r)(&f->warp);
    uint32_t warp = f->warp.warp;
    soft_warp_exited(b, warp);
    r->progress = true;
    void *to = r->scheduler_sp;
    if (b->runnable && !r->draws.on && !atomic_load_explicit(&r->grid->stop, memory_order_relaxed)) {
        uint32_t later = b->runnable & ~((2u << warp) - 1);
        struct fiber *next = b->fibers[__builtin_ctz(later ? later : b->runnable)];
        next->yielded = false;
        r->running = next;
        r->warp = &next->warp;
        to = next->sp;
    }
    soft_switch(&f->sp, to);
    __builtin_unreachable();
}

/* Without fibers: the warps of a block one after the other on this thread's own stack. */
static void run_direct(struct runner *r, struct grid *g) {
    struct block *b = soft_resident_add(r, g);
    if (!b) {
        soft_grid_fail(g, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, NULL, "no memory for a block");
        return;
    }
    struct fiber *f = &r->direct;
    f->block = b;
    uint64_t index;
    while (claim(r, g, &index)) {
        soft_entry *entry = soft_grid_entry(g);
        block_place(b, g, index);
        b->live = 1;
        if (g->launch->code->loops) {
            warp_fill(f, b, g, 0);
            f->warp.blocks = (uint32_t)(r->run_end - index);
            r->run_next = r->run_end;
            r->warp = &f->warp;
            r->in_kernel = 1;
            entry(&f->warp);
            r->in_kernel = 0;
            continue;
        }
        for (uint32_t warp = 0; warp < g->warps; warp++) {
            warp_fill(f, b, g, warp);
            r->warp = &f->warp;
            r->in_kernel = 1;
            entry(&f->warp);
            r->in_kernel = 0;
        }
    }
}

/* Sets a resident cluster up to run the grid's cluster of that index. */
static void begin(struct block *lead, const struct grid *g, uint64_t index) {
    lead->cluster = (struct cluster_barrier){.live = g->cluster * g->warps};
    for (struct block *b = lead; b; b = b->next) {
        block_place(b, g, index);
        b->live = b->warps;
        b->runnable = b->alive = b->warps == 32 ? ~0u : (1u << b->warps) - 1;
        b->cluster_waiting = 0;
        memset(b->barriers, 0, sizeof b->barriers);
        for (uint32_t i = 0; i < b->warps; i++) {
            struct fiber *f = b->fibers[i];
            memcpy(f->warp.ctaid, b->index, sizeof f->warp.ctaid);
            f->warp.exited = 0;
            f->lanes_run = f->arrived = false;
            soft_fiber_prepare(f, fiber_main);
        }
    }
}

static bool admit(struct runner *r, struct grid *g, uint64_t index) {
    struct block *lead = soft_resident_add(r, g);
    if (!lead) return false;
    for (struct block *b = lead; b; b = b->next)
        for (uint32_t i = 0; i < b->warps; i++) warp_fill(b->fibers[i], b, g, i);
    begin(lead, g, index);
    return true;
}

/* Runs a warp until it waits, or one to which it passed on does. */
static void run_warp(struct runner *r, struct fiber *f) {
    f->yielded = false;
    r->running = f;
    r->warp = &f->warp;
    r->in_kernel = 1;
    soft_switch(&r->scheduler_sp, f->sp);
    r->in_kernel = 0;
    r->progress |= !r->running->yielded; /* of the fiber that returned */
}

/* In a seeded schedule: a block of the cluster that can go on; there is one. */
static struct block *draw_member(struct runner *r, struct block *lead) {
    uint32_t n = 0;
    for (struct block *b = lead; b; b = b->next) n += b->runnable != 0;
    uint32_t skip = soft_draw(&r->draws, n);
    for (struct block *b = lead; b; b = b->next)
        if (b->runnable && !skip--) return b;
    return lead;
}

/* Runs every runnable warp of the cluster; in a seeded schedule one that is drawn. True when one of them did more than wait for memory to change. */
static bool run_round(struct runner *r, struct block *lead) {
    r->progress = false;
    if (r->draws.on) {
        struct block *b = lead->next ? draw_member(r, lead) : lead;
        run_warp(r, b->fibers[soft_draw_warp(&r->draws, b->runnable)]);
        return r->progress;
    }
    for (struct block *b = lead; b; b = b->next)
        for (uint32_t todo = b->runnable; todo; todo &= todo - 1) {
            uint32_t i = (uint32_t)__builtin_ctz(todo);
            if (b->runnable >> i & 1) run_warp(r, b->fibers[i]); /* else another warp passed on to it */
        }
    return r->progress;
}

/* Which of the resident clusters runs next in a seeded schedule. */
static uint32_t draw_block(struct runner *r) {
    uint32_t k = soft_draw(&r->draws, r->n_resident);
    bool slow = r->draws.slow_blocks && r->resident[k]->index[0] % 2;
    return slow && soft_draw(&r->draws, 2) ? soft_draw(&r->draws, r->n_resident) : k;
}

/* In a seeded schedule: how many clusters are resident at first, at most; and turns of warps without a cluster's end after which more are. */
#define DRAWN_AT_FIRST 8u
#define DRAWN_TURNS_BEFORE_COMPANY 20000u

static void back_off(uint32_t rounds) {
    if (rounds < 16) return;
    if (rounds < 4096)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static void run_fibers(struct runner *r, struct grid *g) {
    uint64_t most = g->launch->cooperative ? g->quota : 1, fits = soft_resident_blocks(g->threads, g->shared_bytes) / g->cluster;
    if (!fits) fits = 1;
    uint32_t idle = 0, turns = 0;
    bool more = true, drawn = r->draws.on;
    if (drawn && most == 1) most = 1 + soft_draw(&r->draws, fits < DRAWN_AT_FIRST ? (uint32_t)fits : DRAWN_AT_FIRST);
    for (;;) {
        uint64_t index;
        while (more && r->n_resident < most) {
            if (!(more = claim(r, g, &index))) break;
            if (!admit(r, g, index)) {
                soft_grid_fail(g, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, NULL, "no memory for a block");
                return;
            }
        }
        if (!r->n_resident) return;
        if (soft_gate_closed(g->gate)) soft_gate_pause(g);
        if (atomic_load_explicit(&g->stop, memory_order_relaxed)) return;
        bool progress = false;
        uint32_t first = drawn ? draw_block(r) : 0;
        for (uint32_t k = first; k < r->n_resident && !(drawn && k > first);) {
            struct block *lead = r->resident[k];
            progress |= run_round(r, lead);
            if (!lead->cluster.live) {
                turns = 0;
                if (more && r->n_resident <= most && (more = claim(r, g, &index))) {
                    begin(lead, g, index);
                    k++;
                    continue;
                }
                r->resident[k] = r->resident[--r->n_resident];
                soft_cluster_retire(r, lead);
            } else if (!soft_cluster_runnable(lead)) {
                soft_grid_fail(g, CUDA_ERROR_LAUNCH_FAILED, &lead->fibers[0]->warp,
                               "all %u remaining warps wait at barriers that nobody else will reach", lead->cluster.live);
                return;
            } else {
                k++;
            }
        }
        if (g->launch->cooperative) most = g->total; /* after a first share each, whatever is left must become resident too */
        idle = progress ? 0 : idle + 1;
        bool company = drawn ? ++turns % DRAWN_TURNS_BEFORE_COMPANY == 0 : idle && idle % ROUNDS_BEFORE_COMPANY == 0;
        if (!g->launch->cooperative && company && most < fits) most += 1 + most / COMPANY_SHARE;
        if (most > fits && !g->launch->cooperative) most = fits;
        back_off(idle);
    }
}

void soft_run_grid(struct runner *r, struct grid *g) {
    r->grid = g;
    r->warp = NULL;
    r->run_next = r->run_end = 0;
    soft_draws_begin(&r->draws, &g->engine->schedule);
    uint32_t mxcsr = __builtin_ia32_stmxcsr();
    switch (sigsetjmp(r->jump, 0)) {
    case 0:
        /* Once for the whole grid: fibers take the mode over, so that switching between them never changes it. */
        if (g->launch->code->flush) __builtin_ia32_ldmxcsr(mxcsr | MXCSR_FLUSH);
        if (g->fibers)
            run_fibers(r, g);
        else
            run_direct(r, g);
        break;
    case SOFT_LEFT_FAULT:
        r->in_kernel = 0;
        soft_fault_report(r);
        break;
    case SOFT_LEFT_TOLD:
        r->in_kernel = 0; /* first: another signal may be pending */
        soft_stop_unblock();
        break;
    default: break;
    }
    r->in_kernel = 0;
    r->in_helper = 0;
    __builtin_ia32_ldmxcsr(mxcsr);
    while (r->n_resident) soft_cluster_retire(r, r->resident[--r->n_resident]);
    soft_draws_end(&r->draws, &g->engine->schedule);
    r->grid = NULL;
}
