/* Runs blocks on one thread: which blocks are resident, which warp runs next, and the end of warps and blocks. */
#undef _FORTIFY_SOURCE /* its siglongjmp takes a jump from a fiber's stack for an error */
#include "../driver_constants.h"
#include "exec_private.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Address space reserved behind a block's shared memory, so that every 32-bit offset out of bounds faults. Less where the kernel does not grant
 * it. */
#define SHARED_RESERVE (1ull << 32)
#define SHARED_RESERVE_LEAST (1ull << 20)
#define MXCSR_FLUSH 0x8040u /* FTZ and DAZ */
#define KEEP_FIBERS 64      /* idle ones a thread keeps */
#define KEEP_BLOCKS 4
/* Rounds in which all warps only waited for memory to change, after which more blocks become resident, an eighth as many: for programs that rely on a
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

/* ---- blocks and their memory ---- */

static void block_delete(struct block *b) {
    if (b->shared) munmap(b->shared, b->shared_reserve);
    if (b->local) munmap(b->local, b->local_size);
    free(b);
}

static struct block *block_new(void) {
    struct block *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    for (b->shared_reserve = SHARED_RESERVE; b->shared_reserve >= SHARED_RESERVE_LEAST; b->shared_reserve >>= 2) {
        b->shared = mmap(NULL, b->shared_reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (b->shared != MAP_FAILED) return b;
    }
    free(b);
    return NULL;
}

/* Makes room for what this grid needs; memory only grows, and keeps what the last block left in it (its content is undefined on a GPU too). */
static bool block_room(struct block *b, const struct grid *g) {
    size_t shared = (g->shared_bytes + 4095u) & ~(size_t)4095;
    if (shared != b->shared_ready) {
        size_t low = shared < b->shared_ready ? shared : b->shared_ready, high = shared < b->shared_ready ? b->shared_ready : shared;
        if (mprotect(b->shared + low, high - low, shared > b->shared_ready ? PROT_READ | PROT_WRITE : PROT_NONE)) return false;
        b->shared_ready = shared;
    }
    size_t local = (size_t)g->local_stride * SOFT_LANES * g->warps;
    if (local > b->local_size) {
        if (b->local) munmap(b->local, b->local_size);
        b->local_size = (local + 4095) & ~(size_t)4095;
        b->local = mmap(NULL, b->local_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (b->local == MAP_FAILED) {
            b->local = NULL;
            b->local_size = 0;
            return false;
        }
    }
    return true;
}

static void block_retire(struct runner *r, struct block *b) {
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

static struct block *block_take(struct runner *r, const struct grid *g) {
    struct block *b = r->free_blocks;
    if (b) {
        r->free_blocks = b->next_free;
        r->n_free_blocks--;
    } else if (!(b = block_new())) {
        return NULL;
    }
    b->runner = r;
    b->warps = g->warps;
    if (!block_room(b, g)) {
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

/* Makes a block resident on this thread. */
static struct block *resident_add(struct runner *r, const struct grid *g) {
    if (r->n_resident == r->resident_size) {
        uint32_t size = r->resident_size ? 2 * r->resident_size : 16;
        struct block **more = realloc(r->resident, size * sizeof *more);
        if (!more) return NULL;
        r->resident = more;
        r->resident_size = size;
    }
    struct block *b = block_take(r, g);
    if (b) r->resident[r->n_resident++] = b;
    return b;
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

static void block_place(struct block *b, const struct grid *g, uint64_t index) {
    const uint32_t *shape = g->launch->grid;
    if (index < shape[0]) {
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
    w->local = b->local ? b->local + (size_t)g->local_stride * SOFT_LANES * warp : NULL;
    w->engine = f;
    f->bit = 1u << warp;
    f->beside = b->runner->draws.on ? f : b->fibers[warp + 1 < b->warps ? warp + 1 : 0]; /* drawn: the scheduler says who is next */
    f->lanes_run = false;
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
    struct block *b = resident_add(r, g);
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

/* Sets a resident block up to run the grid's block of that index. */
static void begin(struct block *b, const struct grid *g, uint64_t index) {
    block_place(b, g, index);
    b->live = b->warps;
    b->runnable = b->alive = b->warps == 32 ? ~0u : (1u << b->warps) - 1;
    memset(b->barriers, 0, sizeof b->barriers);
    for (uint32_t i = 0; i < b->warps; i++) {
        struct fiber *f = b->fibers[i];
        memcpy(f->warp.ctaid, b->index, sizeof f->warp.ctaid);
        f->warp.exited = 0;
        f->lanes_run = false;
        soft_fiber_prepare(f, fiber_main);
    }
}

static bool admit(struct runner *r, struct grid *g, uint64_t index) {
    struct block *b = resident_add(r, g);
    if (!b) return false;
    for (uint32_t i = 0; i < b->warps; i++) warp_fill(b->fibers[i], b, g, i);
    begin(b, g, index);
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

/* Runs every runnable warp of the block; in a seeded schedule one that is drawn. True when one of them did more than wait for memory to change. */
static bool run_round(struct runner *r, struct block *b) {
    r->progress = false;
    if (r->draws.on) {
        run_warp(r, b->fibers[soft_draw_warp(&r->draws, b->runnable)]);
        return r->progress;
    }
    for (uint32_t todo = b->runnable; todo; todo &= todo - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(todo);
        if (b->runnable >> i & 1) run_warp(r, b->fibers[i]); /* else another warp passed on to it */
    }
    return r->progress;
}

/* Which of the resident blocks runs next in a seeded schedule. */
static uint32_t draw_block(struct runner *r) {
    uint32_t k = soft_draw(&r->draws, r->n_resident);
    bool slow = r->draws.slow_blocks && r->resident[k]->index[0] % 2;
    return slow && soft_draw(&r->draws, 2) ? soft_draw(&r->draws, r->n_resident) : k;
}

/* In a seeded schedule: how many blocks are resident at first, at most; and turns of warps without a block's end after which more are. */
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
    uint64_t most = g->launch->cooperative ? g->quota : 1, fits = soft_resident_blocks(g->threads, g->shared_bytes);
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
            struct block *b = r->resident[k];
            progress |= run_round(r, b);
            if (!b->live) {
                turns = 0;
                if (more && r->n_resident <= most && (more = claim(r, g, &index))) {
                    begin(b, g, index);
                    k++;
                    continue;
                }
                r->resident[k] = r->resident[--r->n_resident];
                block_retire(r, b);
            } else if (!b->runnable) {
                soft_grid_fail(g, CUDA_ERROR_LAUNCH_FAILED, &b->fibers[0]->warp,
                               "all %u remaining warps wait at barriers that nobody else will reach", b->live);
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
    while (r->n_resident) block_retire(r, r->resident[--r->n_resident]);
    soft_draws_end(&r->draws, &g->engine->schedule);
    r->grid = NULL;
}
