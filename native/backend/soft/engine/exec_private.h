/* The engine's own structures; who is who:
 *
 *   engine   the pool, one a backend
 *   grid     one launch, on the stack of the thread that called soft_engine_run
 *   runner   one thread that runs blocks: a helper of the pool or a caller
 *   block    one block while it is resident on a runner, with its shared memory; the blocks of a cluster are resident together, on one runner
 *   fiber    one warp of a resident block, with its stack */
#ifndef SOFT_EXEC_PRIVATE_H
#define SOFT_EXEC_PRIVATE_H

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../turn_words.h"
#include "exec.h"
#include "kernel_abi.h"
#include "../limits.h"
#include "schedule.h"

/* Bytes of a fiber's stack, of which only what is used costs memory: one frame of a large kernel took more than 1 MiB. */
#ifdef __SANITIZE_ADDRESS__ /* which marks all of it usable, again and again */
#define SOFT_STACK (1u << 20)
#else
#define SOFT_STACK (8u << 20)
#endif
#define SOFT_BARRIERS 16                     /* that programs number */
#define SOFT_WARPGROUPS (SOFT_MAX_WARPS / 4) /* each of which has a barrier behind them */
/* Waking another thread costs some microseconds. A grid that is predicted to end sooner, by the recent blocks of its kernel, stays on the thread that
 * submitted it. */
#ifndef SHORT_CYCLES /* tests raise it, so that preemption on a busy machine is short in comparison */
#define SHORT_CYCLES 20000
#endif
#define SOFT_TEXT (64u << 10) /* device printf's buffer, bytes a grid */

/* Of one device: whether its grids may run. Under the engine's lock, but for `closed`. */
struct soft_gate {
    _Atomic bool closed;
    struct turn_words words;
    uint32_t inside, waiting; /* runners in its grids; those that wait for it to open */
    uint64_t entered;         /* how often a runner has come inside */
    pthread_cond_t opened;
};

struct soft_engine {
    pthread_mutex_t lock;
    pthread_cond_t work; /* helpers wait here */
    struct grid *grids;  /* that want help, oldest first */
    pthread_t *threads;
    uint32_t n_threads, sleeping;
    uint32_t cores; /* for %smid */
    bool
        eager_lanes; /* GPUVIRT_SOFT_LANES=always: a test mode in which lanes leave the code for 32 of them where they may, without waiting long first */
    struct soft_schedule schedule;
    struct runner *running; /* every runner inside a grid */
    uint32_t n_running;
    bool stopping;
    _Atomic uint64_t grid_ids;
    struct soft_gate gates[SOFT_TURN_DEVICES];
    pthread_t teller;
    bool teller_runs;
    pthread_cond_t tell; /* the teller waits here */
    soft_turn_said *turn_said;
    void *turn_arg;
};

struct grid {
    struct soft_engine *engine;
    struct soft_gate *gate;
    const struct runner *caller; /* the thread that called soft_engine_run */
    const struct soft_launch *launch;
    struct soft_warp model;  /* what all warps of the grid have in common */
    uint32_t threads, warps; /* of a block */
    bool fibers;             /* warps wait for each other: one fiber each */
    uint32_t shared_bytes, local_stride;
    uint32_t cluster;      /* blocks of a cluster, mostly 1: blocks alone are counted as clusters of one in what follows */
    uint64_t total, quota; /* clusters; clusters that a runner takes at first (cooperative) */
    uint64_t longest_run;  /* clusters that a runner may take at once */
    _Atomic uint64_t next;
    _Atomic bool stop;
    _Atomic uint32_t fallbacks; /* warps whose lanes have left the code for 32 of them */
    _Atomic uint32_t apart;     /* those of them that still run so */
    uint64_t began_ns;          /* with a tier */
    uint64_t began_cycles;      /* where others could help */
    bool alone;                 /* predicted to be too short to wake other threads; only the caller's thread reads it */
    /* Under the engine's lock. */
    struct grid *later;
    uint32_t helpers, helped; /* inside it; that ever were */
    bool listed;
    pthread_cond_t left; /* the last helper has left */
    /* The first error wins; under error_lock. */
    pthread_mutex_t error_lock;
    int error;
    char message[512];
    char *text; /* device printf, SOFT_TEXT bytes at first use */
    size_t text_used;
};

struct barrier {
    uint32_t arrived; /* warps, the waiting ones included */
    uint32_t waiting; /* which warps wait */
    uint32_t all;     /* counts whoever has not exited; else a number of warps was given */
    uint32_t value;   /* of the reduction so far */
    bool reduces;     /* somebody who has arrived wants the value, or gave a number of warps */
};

/* Of a whole cluster (barrier.cluster). */
struct cluster_barrier {
    uint32_t live, arrived; /* warps that have not exited; those of them that have arrived in this phase */
    uint64_t phase;
};

/* The last errors that a warp's threads were told by the device runtime. */
struct last_errors {
    uint64_t grid_id;
    uint32_t ctaid[3], warp; /* whose they are: fibers serve many warps */
    uint32_t of[SOFT_LANES];
};

struct fiber {
    struct soft_warp warp; /* 64-byte aligned, and first: a warp's address is its fiber's */
    void *sp;
    struct fiber *beside; /* the block's next warp; after the last its first */
    uint32_t bit;         /* 1 << warp.warp */
    void *stack;          /* lowest usable byte; below it lies the guard page */
    struct block *block;
    struct fiber *next_free;
    uint32_t value; /* result of the reduction that it waited for */
    bool yielded;
    bool arrived;                          /* at the cluster's barrier, and has not waited since: */
    uint64_t arrived_phase;                /* in this phase of it */
    bool lanes_run;                        /* its lanes run by themselves (lanes.c) */
    struct lanes *lanes;                   /* of the fallback under way, or of one whose grid has failed */
    uint64_t waits_since, waits_since_cpu; /* in the loop that it asked about last */
    struct last_errors errors;
};

struct block {
    struct runner *runner;
    uint32_t index[3];
    uint32_t warps, live; /* live: not exited */
    uint32_t runnable;    /* warps that can go on */
    uint32_t alive;       /* warps that have not exited */
    struct fiber *fibers[SOFT_MAX_WARPS];
    struct barrier barriers[SOFT_BARRIERS + SOFT_WARPGROUPS];
    struct block *lead, *next;      /* of its cluster: the first block, which may be this one, and the next one, or NULL */
    uint32_t rank;                  /* in its cluster */
    struct cluster_barrier cluster; /* a lead's */
    uint32_t cluster_waiting;       /* warps that wait at it */
    char *window;                   /* address space of its own; its cluster's shared memory if it is the lead */
    size_t window_reserve;          /* bytes reserved from `window` on */
    size_t window_ready;            /* bytes usable */
    char *shared;                   /* `window`, or its part of the lead's */
    size_t shared_lent;             /* bytes usable of the latter */
    char *local;
    size_t local_size;
    struct tensor_memory *tensor; /* matrix/tensor_memory.h; NULL until a kernel takes some */
    uint16_t tensor_allocated;    /* a bit for each 32 of its columns */
    bool tensor_relinquished;     /* nobody may take any more */
    struct block *next_free;
};

struct runner {
    sigjmp_buf jump;                 /* out of a grid, from wherever a warp is, with one of SOFT_LEFT... */
    sigjmp_buf *guard;               /* out of soft_guarded, or NULL */
    volatile sig_atomic_t in_kernel; /* compiled code is running */
    volatile sig_atomic_t in_helper; /* ... inside a helper that holds a lock */
    void *scheduler_sp;
    struct fiber *running;        /* the fiber that runs, or came back to the scheduler last */
    bool progress;                /* a warp did more than wait for memory to change since the scheduler last cleared this */
    struct grid *_Atomic grid;    /* also read by soft_engine_stop */
    _Atomic bool told_to_stop;    /* SOFT_STOP_SIGNAL is under way: signals of its kind queue, and a thread may be deaf to them for long */
    const struct soft_warp *warp; /* that runs, for messages */
    struct soft_draws draws;      /* of the grid that it is in */
    uint64_t run_next, run_end;   /* clusters that this runner has taken and not begun */
    struct block **resident;      /* the leads of clusters */
    uint32_t n_resident, resident_size;
    struct block *free_blocks;
    struct fiber *free_fibers;
    struct lanes *free_lanes;
    uint32_t n_free_fibers, n_free_blocks, n_free_lanes;
    void *signal_stack;
    pthread_t thread;
    uint32_t core;
    struct runner *next_running;
    /* What the fault handler noted. */
    int fault_signal, fault_code;
    uint64_t fault_address, fault_pc;
    struct fiber direct; /* stands for the warp when there are no fibers */
};

/* turns.c. Under the engine's lock: a runner begins to run blocks of the device, does not any more, waits until it may (or the grid, or the engine, stops). */
void soft_gate_enter(struct soft_engine *e, struct soft_gate *gate);
void soft_gate_leave(struct soft_engine *e, struct soft_gate *gate);
void soft_gate_await(struct soft_engine *e, struct soft_gate *gate, const _Atomic bool *stop);
/* Without the lock, between two blocks: waits until the device may run. The grid may have to stop afterwards. */
void soft_gate_pause(struct grid *g);
static inline bool soft_gate_closed(struct soft_gate *gate) { return atomic_load_explicit(&gate->closed, memory_order_relaxed); }
void soft_gates_open(struct soft_engine *e);
void soft_gates_stop(struct soft_engine *e);
void soft_gates_close(struct soft_engine *e);

/* fault.c: this thread's runner. The pointer is a plain load also in a signal handler. */
struct runner *soft_runner(void);
struct runner *soft_runner_or_null(void);
void soft_fault_install(void);
/* Turns what the handler noted into the grid's error. */
void soft_fault_report(struct runner *r);
#define SOFT_STOP_SIGNAL (SIGRTMIN + 9)
/* How a grid was left: by code that found that it has to end, by a fault, by SOFT_STOP_SIGNAL, which is then still blocked. */
enum { SOFT_LEFT = 1, SOFT_LEFT_FAULT, SOFT_LEFT_TOLD };
void soft_stop_unblock(void);

/* block.c */
void soft_run_grid(struct runner *r, struct grid *g);
void soft_runner_release(struct runner *r);
/* Leaves the grid at once; its warps are abandoned. */
_Noreturn void soft_leave(struct runner *r);
/* Switches to the scheduler until this fiber runs again. */
void soft_suspend(struct runner *r, struct fiber *f);
/* The same, but switches to the next runnable warp of the block without the scheduler. */
void soft_pass_on(struct runner *r, struct fiber *f);
/* In a seeded schedule: perhaps lets another warp run. The fiber is not that of a lane. */
void soft_perhaps_preempt(struct fiber *f);
void soft_warp_exited(struct block *b, uint32_t warp);

/* resident.c: makes a cluster resident on this thread, all of its blocks: its lead, or NULL: no memory. */
struct block *soft_resident_add(struct runner *r, const struct grid *g);
/* The cluster may be used again, its blocks in any order. */
void soft_cluster_retire(struct runner *r, struct block *lead);

/* helpers_cluster.c: after the warp has exited its block. */
void soft_cluster_warp_exited(struct block *b, const struct fiber *f);

/* helpers_barrier.c: lets other warps, then other threads, run. */
void soft_warp_yield(struct fiber *f);

/* lanes.c */
void soft_lanes_free(struct lanes *s);
void soft_lanes_release(struct runner *r);
/* Lets the other lanes of a warp run whose lanes run by themselves. */
void soft_lane_yield(struct fiber *f);

/* exec.c: offers a grid that was predicted to be short, and is not, to the pool. */
void soft_grid_maybe_long(struct grid *g);
/* Notes the grid's error unless there is one, and stops it. */
void soft_grid_fail(struct grid *g, int error, const struct soft_warp *where, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* With a tier: asks for better code once the grid, and those before it, have taken long enough. Now and then, by anybody. */
void soft_grid_tier(struct grid *g);
void soft_grid_print(struct grid *g, const char *text, size_t size);

/* fiber.c */
void soft_switch(void **save, void *to);
/* The same, but goes on by a jump: a processor expects a return to go where the last call came from, and another warp mostly waits at another barrier. */
void soft_switch_jump(void **save, void *to);
struct fiber *soft_fiber_new(void);
void soft_fiber_free(struct fiber *f);
/* The next switch to f->sp calls entry(f) on its stack; entry does not return. */
void soft_fiber_prepare(struct fiber *f, void (*entry)(struct fiber *));

typedef void soft_entry(struct soft_warp *);
/* The code for the next block. */
static inline soft_entry *soft_grid_entry(const struct grid *g) {
    const struct soft_code *code = g->launch->code;
    return code->tier ? (soft_entry *)(uintptr_t)atomic_load_explicit(&code->tier->entry, memory_order_acquire) : code->entry;
}

/* Any warp of the cluster can go on. */
static inline bool soft_cluster_runnable(const struct block *lead) {
    for (const struct block *b = lead; b; b = b->next)
        if (b->runnable) return true;
    return false;
}

/* What lies in the cluster's block of that rank where p lies in its own. */
static inline void *soft_in_block(const struct soft_warp *w, const void *p, uint32_t rank) {
    uint64_t offset = (uint64_t)((const char *)p - (const char *)w->window) & (SOFT_RANK_BYTES - 1);
    return (char *)w->window + rank * SOFT_RANK_BYTES + offset;
}

/* The mbarrier that a multicast tells of what the block of that rank got: the one in that block, or, where pairs work together, in the block of its pair that has
 * the place in it that the named one's block has in its own. */
static inline void *soft_multicast_mbarrier(const struct soft_warp *w, const void *mbarrier, uint32_t rank, uint32_t ranks) {
    uint64_t own = (uint64_t)((const char *)mbarrier - (const char *)w->window) >> SOFT_RANK_SHIFT;
    return soft_in_block(w, mbarrier, ranks & SOFT_RANKS_PAIRS ? (rank & ~1u) | (own & 1) : rank);
}

static inline struct fiber *soft_fiber_of(const struct soft_warp *w) { return w->engine; }

/* One element of a reduction in memory (helpers_async.c). */
void soft_reduce_element(void *to, const void *from, uint32_t op, uint32_t type);

float soft_from_half(uint16_t h);
uint16_t soft_to_half(float value);

#endif
