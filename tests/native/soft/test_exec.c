/* The engine alone: hand-written C functions stand in for compiled kernels. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "engine/exec.h"
#include "engine/exec_private.h"
#include "engine/kernel_abi.h"
#include "limits.h"

static struct soft_engine *engine;
static struct soft_heap *heap;
static char err[512], printed[1 << 20];
static size_t printed_used;

static void console(void *arg, const char *text, size_t size) {
    (void)arg;
    CHECK(printed_used + size < sizeof printed);
    memcpy(printed + printed_used, text, size);
    printed_used += size;
    printed[printed_used] = 0;
}

static int run(void (*entry)(struct soft_warp *), uint32_t blocks, uint32_t threads, uint32_t barrier, uint32_t cooperative, uint32_t shared,
               uint32_t local, const void *params, uint32_t size) {
    struct soft_code code = {
        .entry = entry, .static_shared = 64, .dynamic_offset = 64, .local_bytes = local, .uses_barrier = barrier, .param_bytes = size};
    struct soft_launch l = {.code = &code,
                            .kernel = "testing",
                            .grid = {blocks, 1, 1},
                            .block = {threads, 1, 1},
                            .dynamic_shared = shared,
                            .cooperative = cooperative,
                            .params = params,
                            .params_size = size,
                            .heap = heap,
                            .console = console};
    err[0] = 0;
    return soft_engine_run(engine, &l, err, sizeof err);
}

/* ---- every thread writes its own index ---- */

static void iota(struct soft_warp *w) {
    uint32_t *out = *(uint32_t *const *)w->params;
    uint64_t block = w->ctaid[0] + (uint64_t)w->nctaid[0] * (w->ctaid[1] + (uint64_t)w->nctaid[1] * w->ctaid[2]);
    for (uint32_t lane = 0; lane < 32; lane++)
        if (w->lanes >> lane & 1) {
            uint32_t i = (uint32_t)block * w->ntid[0] * w->ntid[1] * w->ntid[2] + w->first_thread + lane;
            out[i] += i + 1;
        }
}

static void test_indices(void) {
    static uint32_t out[7 * 5 * 3 * 150 + 1];
    uint32_t *params[1] = {out};
    struct soft_code code = {.entry = iota, .param_bytes = 8};
    struct soft_launch l = {.code = &code, .kernel = "iota", .grid = {7, 5, 3}, .block = {15, 5, 2}, .params = params, .params_size = 8};
    for (uint32_t barrier = 0; barrier < 2; barrier++) {
        memset(out, 0, sizeof out);
        code.uses_barrier = barrier;
        CHECK_INT(soft_engine_run(engine, &l, err, sizeof err), 0);
        for (uint32_t i = 0; i < 7 * 5 * 3 * 150; i++) CHECK_INT(out[i], i + 1);
        CHECK_INT(out[7 * 5 * 3 * 150], 0);
    }
}

/* ---- who runs which blocks ---- */

enum { MANY_BLOCKS = 4096 };
struct taken {
    pthread_t by[MANY_BLOCKS];
    uint32_t times[MANY_BLOCKS];
    uint32_t backwards; /* blocks that a thread began after a later one */
};

static void takes(struct soft_warp *w) {
    static __thread uint64_t last_grid, last;
    struct taken *t = *(struct taken *const *)w->params;
    uint32_t block = w->ctaid[0] + w->nctaid[0] * (w->ctaid[1] + w->nctaid[1] * w->ctaid[2]);
    if (w->grid_id == last_grid && block < last) __atomic_fetch_add(&t->backwards, 1, __ATOMIC_RELAXED);
    last_grid = w->grid_id;
    last = block;
    if (!__atomic_fetch_add(&t->times[block], 1, __ATOMIC_RELAXED)) t->by[block] = pthread_self();
    if (block % 64 == 0) usleep(100); /* the others get their share */
}

/* As compiled code with `loops` does it. */
static void loop(struct soft_warp *w, void (*warp)(struct soft_warp *)) {
    uint32_t first = w->warp, end = w->blocks ? w->warps : first + 1, threads = w->ntid[0] * w->ntid[1] * w->ntid[2];
    for (uint32_t left = w->blocks;;) {
        for (uint32_t i = first; i < end; i++) {
            w->warp = i;
            w->first_thread = i * 32;
            w->lanes = threads - w->first_thread >= 32 ? ~0u : (1u << (threads - w->first_thread)) - 1;
            warp(w);
        }
        if (left <= 1 || __atomic_load_n((const char *)w->stop, __ATOMIC_RELAXED)) return;
        left--;
        if (++w->ctaid[0] < w->nctaid[0]) continue;
        w->ctaid[0] = 0;
        if (++w->ctaid[1] < w->nctaid[1]) continue;
        w->ctaid[1] = 0;
        w->ctaid[2]++;
    }
}

static void takes_many(struct soft_warp *w) { loop(w, takes); }
static void iota_many(struct soft_warp *w) { loop(w, iota); }

/* A thread takes neighbouring blocks together, in their order; those of kernels whose blocks wait for each other one by one. */
static void test_runs(void) {
    static struct taken t;
    struct taken *params[1] = {&t};
    struct soft_code code = {.entry = takes, .param_bytes = 8};
    struct soft_launch l = {.code = &code, .kernel = "takes", .grid = {128, 8, 4}, .block = {32, 1, 1}, .params = params, .params_size = 8};
    for (uint32_t barrier = 0; barrier < 3; barrier++) {
        memset(&t, 0, sizeof t);
        code.uses_barrier = barrier == 1;
        code.loops = barrier == 2;
        code.entry = code.loops ? takes_many : takes;
        CHECK_INT(soft_engine_run(engine, &l, err, sizeof err), 0);
        uint32_t borders = 0;
        for (uint32_t i = 0; i < MANY_BLOCKS; i++) {
            CHECK_INT(t.times[i], 1);
            borders += i && !pthread_equal(t.by[i], t.by[i - 1]);
        }
        CHECK_INT(t.backwards, 0);
        CHECK(borders < MANY_BLOCKS / 8); /* four hands: some 64 * ln(4096 / 64) + 64 claims */
    }
}

/* Code that loops gets many blocks a call, and one warp where warps are fibers. */
static void test_loops(void) {
    static uint32_t out[40 * 7 * 3 * 150];
    uint32_t *params[1] = {out};
    struct soft_code code = {.entry = iota_many, .param_bytes = 8, .loops = 1};
    struct soft_launch l = {.code = &code, .kernel = "iota", .grid = {7, 3, 40}, .block = {15, 5, 2}, .params = params, .params_size = 8};
    for (uint32_t way = 0; way < 3; way++) {
        memset(out, 0, sizeof out);
        code.uses_barrier = way;
        CHECK_INT(soft_engine_run(engine, &l, err, sizeof err), 0);
        for (uint32_t i = 0; i < sizeof out / sizeof *out; i++) CHECK_INT(out[i], i + 1);
    }
}

/* ---- who helps ---- */

struct shared_out {
    pthread_t by[64];
    uint32_t microseconds;
};

static void notes_thread(struct soft_warp *w) {
    struct shared_out *o = *(struct shared_out *const *)w->params;
    o->by[w->ctaid[0]] = pthread_self();
    if (o->microseconds) usleep(o->microseconds);
}

static bool ran_alone(const struct shared_out *o, uint32_t blocks) {
    bool alone = true;
    for (uint32_t j = 0; j < blocks; j++) alone = alone && pthread_equal(o->by[j], pthread_self());
    return alone;
}

/* Grids that are over before another thread would be awake stay with the caller; once their blocks take long the others help again. Whether a grid is
 * thought to be short is known from its code's pace, whether it was from the clock: so it does not matter what else the machine does. For a program of
 * its own, in which SHORT_CYCLES are some milliseconds and blocks of 100 us are short: the others are awake long before such a grid ends. */
static void test_short_grids(void) {
    struct shared_out o = {.microseconds = 100}, *params[1] = {&o};
    struct soft_code code = {.entry = notes_thread, .param_bytes = 8};
    struct soft_launch l = {.code = &code, .kernel = "notes", .grid = {4, 1, 1}, .block = {32, 1, 1}, .params = params, .params_size = 8};
    CHECK(SHORT_CYCLES >= 10000000);
    time_t until = time(NULL) + 120;
    for (int alone = 0; alone < 100;) {
        uint64_t pace = code.pace, before = __builtin_ia32_rdtsc();
        CHECK_INT(soft_engine_run(engine, &l, err, sizeof err), 0);
        if (pace && l.grid[0] < SHORT_CYCLES / pace && __builtin_ia32_rdtsc() - before < SHORT_CYCLES) {
            CHECK(ran_alone(&o, l.grid[0]));
            alone++;
        }
        CHECK(time(NULL) < until);
    }
    o.microseconds = 20000; /* thought to be short, and then it is not */
    l.grid[0] = 16;
    until = time(NULL) + 120;
    do {
        code.pace = 1;
        CHECK_INT(soft_engine_run(engine, &l, err, sizeof err), 0);
        CHECK(time(NULL) < until);
    } while (ran_alone(&o, l.grid[0]));
}

/* ---- barriers ---- */

/* Each warp adds a number to shared memory, everybody must see the sum; several rounds. */
static void sum_rounds(struct soft_warp *w) {
    uint32_t *bad = *(uint32_t *const *)w->params, *cell = w->shared;
    for (uint32_t round = 0; round < 50; round++) {
        if (!w->warp) cell[0] = 0;
        soft_barrier_sync(w, 0, 0, w->lanes);
        cell[0] += w->warp + round;
        soft_barrier_sync(w, 0, w->warps * 32, w->lanes);
        if (cell[0] != w->warps * (w->warps - 1) / 2 + w->warps * round) __atomic_fetch_add(bad, 1, __ATOMIC_RELAXED);
        soft_barrier_sync(w, 15, 0, w->lanes);
    }
}

static void test_barrier(void) {
    uint32_t bad = 0, *params[1] = {&bad};
    static const uint32_t sizes[] = {32, 64, 96, 1000, 1024};
    for (int i = 0; i < 5; i++) {
        CHECK_INT(run(sum_rounds, 20, sizes[i], 1, 0, 0, 0, params, 8), 0);
        CHECK_INT(bad, 0);
    }
}

/* Odd warps leave early; the others go on meeting. */
static void early_exit(struct soft_warp *w) {
    uint32_t *count = *(uint32_t *const *)w->params;
    for (uint32_t i = 0; i < w->warp * 3 + 1; i++) {
        if (w->warp % 2 && i == 2) return;
        soft_barrier_sync(w, 0, 0, w->lanes);
    }
    __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
}

static void test_exited_warps_count(void) {
    uint32_t count = 0, *params[1] = {&count};
    CHECK_INT(run(early_exit, 9, 512, 1, 0, 0, 0, params, 8), 0);
    CHECK_INT(count, 9 * 8);
}

static void reductions(struct soft_warp *w) {
    uint32_t *bad = *(uint32_t *const *)w->params;
    uint32_t some = w->warp == 3 ? 0x10 : 0, all_but = w->warp == 2 ? w->lanes & ~1u : w->lanes;
    for (int i = 0; i < 20; i++) {
        if (soft_barrier_red(w, 1, 0, w->lanes, SOFT_RED_AND, w->lanes) != 1) __atomic_fetch_add(bad, 1, __ATOMIC_RELAXED);
        if (soft_barrier_red(w, 1, 0, w->lanes, SOFT_RED_AND, all_but) != 0) __atomic_fetch_add(bad, 1, __ATOMIC_RELAXED);
        if (soft_barrier_red(w, 1, 0, w->lanes, SOFT_RED_OR, some) != 1) __atomic_fetch_add(bad, 1, __ATOMIC_RELAXED);
        if (soft_barrier_red(w, 1, 0, w->lanes, SOFT_RED_OR, 0) != 0) __atomic_fetch_add(bad, 1, __ATOMIC_RELAXED);
        uint32_t threads = w->ntid[0];
        if (soft_barrier_red(w, 1, 0, w->lanes, SOFT_RED_POPC, w->lanes) != threads) __atomic_fetch_add(bad, 1, __ATOMIC_RELAXED);
    }
}

static void test_reductions(void) {
    uint32_t bad = 0, *params[1] = {&bad};
    CHECK_INT(run(reductions, 4, 250, 1, 0, 0, 0, params, 8), 0);
    CHECK_INT(bad, 0);
}

/* Warp 0 produces for warp 1 and signals it without waiting; others have nothing to do with it. */
static void producer(struct soft_warp *w) {
    uint32_t *bad = *(uint32_t *const *)w->params;
    volatile uint32_t *cell = w->shared;
    for (uint32_t i = 1; i <= 10; i++) {
        if (w->warp == 0) {
            if (i > 1) soft_barrier_sync(w, 2, 64, w->lanes);
            cell[0] = i;
            soft_barrier_arrive(w, 1, 64, w->lanes);
        } else if (w->warp == 1) {
            soft_barrier_sync(w, 1, 64, w->lanes);
            if (cell[0] != i) __atomic_fetch_add(bad, 1, __ATOMIC_RELAXED);
            if (i < 10) soft_barrier_arrive(w, 2, 64, w->lanes);
        }
    }
}

static void test_arrive(void) {
    uint32_t bad = 0, *params[1] = {&bad};
    CHECK_INT(run(producer, 5, 128, 1, 0, 0, 0, params, 8), 0);
    CHECK_INT(bad, 0);
}

static void stuck(struct soft_warp *w) {
    if (w->warp == 0) soft_barrier_sync(w, 3, 96, w->lanes);
}

static void test_barrier_nobody_reaches(void) {
    CHECK_INT(run(stuck, 4, 64, 1, 0, 0, 0, NULL, 0), 719);
    CHECK_TEXT(err, "barriers that nobody else will reach");
    CHECK_TEXT(err, "testing");
}

/* ---- memory of blocks and lanes ---- */

static void memories(struct soft_warp *w) {
    uint32_t *bad = *(uint32_t *const *)w->params;
    if ((uintptr_t)w->shared % 256 || (uintptr_t)w->local % 16 || w->local_stride < 40 || w->local_stride % 16)
        __atomic_fetch_add(bad, 1, __ATOMIC_RELAXED);
    for (uint32_t lane = 0; lane < 32; lane++) memset((char *)w->local + lane * w->local_stride, (int)(w->warp * 32 + lane), 40);
    uint8_t *shared = w->shared;
    for (uint32_t i = w->warp; i < w->shared_bytes; i += w->warps) shared[i] = (uint8_t)w->warp;
    soft_barrier_sync(w, 0, 0, w->lanes);
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 40; i++)
            if (((uint8_t *)w->local)[lane * w->local_stride + i] != (uint8_t)(w->warp * 32 + lane)) __atomic_fetch_add(bad, 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < w->shared_bytes; i++)
        if (shared[i] != i % w->warps) __atomic_fetch_add(bad, 1, __ATOMIC_RELAXED);
}

static void test_memories(void) {
    uint32_t bad = 0, *params[1] = {&bad};
    CHECK_INT(run(memories, 6, 256, 1, 0, SOFT_SHARED_OPTIN - 64, 40, params, 8), 0);
    CHECK_INT(bad, 0);
    CHECK_INT(run(memories, 6, 256, 1, 0, 100, 40, params, 8), 0);
    CHECK_INT(bad, 0);
    CHECK_INT(run(memories, 1, 256, 1, 0, SOFT_SHARED_OPTIN - 63, 40, params, 8), 1);
}

static void beyond_shared(struct soft_warp *w) {
    uint32_t offset = *(const uint32_t *)w->params;
    *((volatile char *)w->shared + offset) = 1;
}

static void test_beyond_shared(void) {
    static const uint32_t offsets[] = {8192, 1u << 20, 0x7fffffff, 0xfffffff0};
    for (int i = 0; i < 4; i++) {
        CHECK_INT(run(beyond_shared, 1, 32, 0, 0, 200, 0, &offsets[i], 4), 700);
        CHECK_TEXT(err, "illegal address");
    }
    uint32_t inside = 263;
    CHECK_INT(run(beyond_shared, 1, 32, 0, 0, 200, 0, &inside, 4), 0);
}

/* ---- faults ---- */

static void null_write(struct soft_warp *w) {
    if (w->ctaid[0] == 3 && w->warp == w->warps - 1) *(volatile int *)(uintptr_t)0x1234 = 1;
    if (w->warps > 1) soft_barrier_sync(w, 0, 0, w->lanes);
}

static void non_canonical(struct soft_warp *w) { *(volatile int *)((uintptr_t)w ^ 0x5000000000000000ull) = 1; }

static void illegal(struct soft_warp *w) {
    (void)w;
    __asm__ volatile("ud2");
}

static void divides(struct soft_warp *w) {
    volatile int zero = 0;
    volatile int x = (int)w->ctaid[0] + 1;
    __asm__ volatile("cltd; idivl %1" : "+a"(x) : "r"(zero) : "edx");
}

static void jumps(struct soft_warp *w) { ((void (*)(struct soft_warp *))(uintptr_t)0x4000)(w); }
static void traps(struct soft_warp *w) { soft_trap(w, w->lanes, SOFT_TRAP); }
static void trap_stack(struct soft_warp *w) { soft_trap(w, w->lanes, SOFT_TRAP_STACK); }
static void asserts(struct soft_warp *w) { soft_assert_fail(w, 5, "x > 0", "file.cu", 17, "kernel"); }
static void unsupported(struct soft_warp *w) { soft_unsupported(w, "frob.b32"); }

static uint32_t deep(volatile uint32_t *from, uint32_t n) {
    volatile uint32_t here[256];
    here[n % 256] = n + *from;
    return n ? deep(here, n - 1) + here[n % 256] : 0;
}

static void recurses(struct soft_warp *w) {
    volatile uint32_t start = w->warp;
    deep(&start, 1u << 20);
}

static void test_faults(void) {
    for (int barrier = 0; barrier < 2; barrier++) {
        CHECK_INT(run(null_write, 9, barrier ? 128 : 32, (uint32_t)barrier, 0, 0, 0, NULL, 0), 700);
        CHECK_TEXT(err, "0x1234");
        CHECK_TEXT(err, "kernel testing, block (3,0,0)");
        CHECK_INT(run(non_canonical, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 700);
        CHECK_INT(run(illegal, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 715);
        CHECK_INT(run(divides, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 719);
        CHECK_INT(run(jumps, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 718);
        CHECK_INT(run(traps, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 719);
        CHECK_INT(run(trap_stack, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 714);
        CHECK_INT(run(unsupported, 2, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 715);
        CHECK_TEXT(err, "frob.b32");
        printed_used = 0;
        CHECK_INT(run(asserts, 1, 64, (uint32_t)barrier, 0, 0, 0, NULL, 0), 710);
        CHECK_TEXT(err, "file.cu:17: kernel: block: [0,0,0], thread: [5,0,0] Assertion `x > 0` failed");
    }
    CHECK_INT(run(recurses, 2, 64, 1, 0, 0, 0, NULL, 0), 714);
    test_barrier(); /* and the engine goes on */
}

/* A fault elsewhere reaches the handler that was there before. */
static sigjmp_buf elsewhere;
static void program_handler(int signo) { siglongjmp(elsewhere, signo); }

static void test_fault_elsewhere(void) {
    volatile int reached = 0;
    if (sigsetjmp(elsewhere, 1) == 0) {
        volatile uintptr_t nowhere = 0x10;
        *(volatile int *)nowhere = 1;
    } else {
        reached = 1;
    }
    CHECK_INT(reached, 1);
}

static void touch(void *arg) { *(volatile char *)arg = 1; }

static void test_guarded(void) {
    uint64_t at = 0;
    char fine = 0;
    CHECK_INT(soft_guarded(touch, &fine, &at), 1);
    CHECK_INT(soft_guarded(touch, (void *)(uintptr_t)0x7770, &at), 0);
    CHECK_INT(at, 0x7770);
    CHECK_INT(soft_guarded(touch, &fine, &at), 1);
}

/* ---- grids whose blocks wait for each other ---- */

struct grid_sync {
    uint32_t *counter, *bad;
};

static void wait_for(struct soft_warp *w, uint32_t *cell, uint32_t value) {
    while (__atomic_load_n(cell, __ATOMIC_ACQUIRE) < value) soft_yield(w);
}

static void grid_barrier(struct soft_warp *w) {
    const struct grid_sync *p = w->params;
    for (uint32_t round = 1; round <= 5; round++) {
        soft_barrier_sync(w, 0, 0, w->lanes);
        if (!w->warp) {
            __atomic_fetch_add(p->counter, 1, __ATOMIC_ACQ_REL);
            wait_for(w, p->counter, round * w->nctaid[0]);
        }
        soft_barrier_sync(w, 0, 0, w->lanes);
        if (__atomic_load_n(p->counter, __ATOMIC_ACQUIRE) < round * w->nctaid[0]) __atomic_fetch_add(p->bad, 1, __ATOMIC_RELAXED);
    }
    if (w->grid_workspace == 0 && w->nctaid[0] == 256) __atomic_fetch_add(p->bad, 1, __ATOMIC_RELAXED);
}

static void test_cooperative(void) {
    uint32_t counter = 0, bad = 0;
    struct grid_sync p = {&counter, &bad};
    CHECK_INT(run(grid_barrier, 256, 128, 1, 1, 0, 0, &p, sizeof p), 0);
    CHECK_INT(counter, 5 * 256);
    CHECK_INT(bad, 0);
    /* 64 warps a multiprocessor: 2 blocks of 32 warps on each. */
    CHECK_INT(run(grid_barrier, 2 * SOFT_MULTIPROCESSORS + 1, 1024, 1, 1, 0, 0, &p, sizeof p), 720);
    CHECK_INT(run(grid_barrier, SOFT_MULTIPROCESSORS + 1, 64, 1, 1, 200u << 10, 0, &p, sizeof p), 720);
}

/* Without asking for it, but trusting that a few blocks are resident together. */
static void test_company(void) {
    uint32_t counter = 0, bad = 0;
    struct grid_sync p = {&counter, &bad};
    CHECK_INT(run(grid_barrier, 6, 64, 1, 0, 0, 0, &p, sizeof p), 0);
    CHECK_INT(counter, 5 * 6);
    CHECK_INT(bad, 0);
}

/* Each block waits for the one before it (decoupled look-back). */
static void look_back(struct soft_warp *w) {
    uint32_t *flags = *(uint32_t *const *)w->params;
    if (w->ctaid[0]) wait_for(w, &flags[w->ctaid[0] - 1], 1);
    __atomic_store_n(&flags[w->ctaid[0]], 1, __ATOMIC_RELEASE);
}

static void test_look_back(void) {
    static uint32_t flags[2000];
    uint32_t *params[1] = {flags};
    CHECK_INT(run(look_back, 2000, 32, 1, 0, 0, 0, params, 8), 0);
    CHECK_INT(flags[1999], 1);
}

/* ---- printf, malloc, time ---- */

static void prints(struct soft_warp *w) {
    struct {
        int i;
        uint32_t pad;
        double d;
        const char *s;
        long long l;
        int c;
    } args = {-7, 0, 2.5, "text", 1ll << 40, 'x'};
    int32_t n = soft_vprintf(w, 0, "i=%d d=%.3f s=%s l=%lld c=%c %%\n", &args);
    if (n != 5) soft_trap(w, 1, SOFT_TRAP);
    struct {
        int width, value;
        void *p;
        unsigned x;
    } more = {6, 42, (void *)(uintptr_t)0xabc, 255};
    soft_vprintf(w, 0, "[%*d] %p %#x\n", &more);
    if (soft_vprintf(w, 0, "bad %y\n", &more) != -1) soft_trap(w, 1, SOFT_TRAP);
}

static void prints_much(struct soft_warp *w) {
    for (int i = 0; i < 100; i++) soft_vprintf(w, 0, "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789\n", NULL);
}

static void prints_wild(struct soft_warp *w) {
    uintptr_t args[1] = {0x40};
    soft_vprintf(w, 0, "%s", args);
}

static void test_printf(void) {
    printed_used = 0;
    CHECK_INT(run(prints, 1, 32, 0, 0, 0, 0, NULL, 0), 0);
    CHECK(!strcmp(printed, "i=-7 d=2.500 s=text l=1099511627776 c=x %\n[    42] 0xabc 0xff\nbad "));
    printed_used = 0;
    CHECK_INT(run(prints_much, 50, 32, 0, 0, 0, 0, NULL, 0), 0);
    CHECK_INT(printed_used, 50 * 100 * 77);
    CHECK_INT(run(prints_wild, 1, 32, 0, 0, 0, 0, NULL, 0), 700);
}

static void mallocs(struct soft_warp *w) {
    char *p = soft_malloc(w, 0, 1000), *big = soft_malloc(w, 0, 2u << 20);
    if (!p || (uintptr_t)p % 16 || big) soft_trap(w, 1, SOFT_TRAP);
    memset(p, 1, 1000);
    soft_free(w, 0, p);
    soft_free(w, 0, NULL);
}

static void frees_twice(struct soft_warp *w) {
    static char not_ours[256] __attribute__((aligned(16)));
    soft_free(w, 0, not_ours + 128);
}

static void test_malloc(void) {
    CHECK_INT(run(mallocs, 100, 32, 0, 0, 0, 0, NULL, 0), 0);
    CHECK_INT(run(frees_twice, 1, 32, 0, 0, 0, 0, NULL, 0), 700);
}

/* ---- several grids at once, and the end ---- */

static void *runs_many(void *arg) {
    (void)arg;
    uint32_t bad = 0, *params[1] = {&bad};
    struct soft_code code = {.entry = sum_rounds, .static_shared = 64, .dynamic_offset = 64, .uses_barrier = 1, .param_bytes = 8};
    for (int i = 0; i < 30; i++) {
        struct soft_launch l = {.code = &code, .grid = {(uint32_t)i + 1, 1, 1}, .block = {128, 1, 1}, .params = params, .params_size = 8};
        CHECK_INT(soft_engine_run(engine, &l, NULL, 0), 0);
    }
    CHECK_INT(bad, 0);
    return NULL;
}

static void test_several_grids(void) {
    pthread_t threads[6];
    for (int i = 0; i < 6; i++) CHECK(!pthread_create(&threads[i], NULL, runs_many, NULL));
    for (int i = 0; i < 6; i++) pthread_join(threads[i], NULL);
}

static _Atomic int started;
/* Deaf to the engine for a while, like a thread that gets no processor on a busy machine: it is told to stop again and again. */
static void endless(struct soft_warp *w) {
    (void)w;
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SOFT_STOP_SIGNAL);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);
    atomic_store(&started, 1);
    usleep(400000);
    pthread_sigmask(SIG_UNBLOCK, &stop, NULL);
    for (volatile int i = 0;; i = 1) (void)i;
}

static void *runs_endless(void *arg) {
    char text[512];
    struct soft_code code = {.entry = endless, .uses_barrier = arg != NULL, .loops = 1};
    struct soft_launch l = {.code = &code, .kernel = "endless", .grid = {8, 1, 1}, .block = {64, 1, 1}};
    CHECK_INT(soft_engine_run(engine, &l, text, sizeof text), 719);
    CHECK_TEXT(text, "stopped");
    return NULL;
}

static void test_stop(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, runs_endless, i ? engine : NULL));
    while (!atomic_load(&started)) usleep(1000);
    CHECK_INT(soft_engine_stop(engine), 1);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    CHECK_INT(run(illegal, 1, 1, 0, 0, 0, 0, NULL, 0), 719);
    soft_engine_destroy(engine);
}

/* ---- how long things take; not judged ---- */

static void nothing(struct soft_warp *w) { (void)w; }
static void hundred_barriers(struct soft_warp *w) {
    for (int i = 0; i < 100; i++) soft_barrier_sync(w, 0, 0, w->lanes);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void measure(void) {
    struct soft_engine *pool = engine;
    engine = soft_engine_create(0);
    run(nothing, 1000, 32, 0, 0, 0, 0, NULL, 0);
    double t0 = seconds();
    run(nothing, 1000000, 32, 0, 0, 0, 0, NULL, 0);
    double t1 = seconds();
    run(nothing, 50000, 1024, 0, 0, 0, 0, NULL, 0);
    double t2 = seconds();
    run(nothing, 20000, 1024, 1, 0, 0, 0, NULL, 0);
    double t3 = seconds();
    run(hundred_barriers, 400, 1024, 1, 0, 0, 0, NULL, 0);
    double t4 = seconds();
    for (int i = 0; i < 20000; i++) run(nothing, 1, 32, 0, 0, 0, 0, NULL, 0);
    double t5 = seconds();
    soft_engine_stop(engine);
    soft_engine_destroy(engine);
    engine = pool;
    struct soft_code code = {.entry = nothing};
    struct soft_launch two = {.code = &code, .kernel = "two", .grid = {2, 1, 1}, .block = {32, 1, 1}};
    for (int i = 0; i < 2000; i++) CHECK_INT(soft_engine_run(engine, &two, err, sizeof err), 0);
    double t6 = seconds();
    printf("one core: block of one warp %.1f ns, warp of a block of 32 without barriers %.1f ns, with fibers %.1f ns, warp at a barrier %.1f ns, "
           "launch of one block %.0f ns; pool: launch of two blocks %.0f ns\n",
           (t1 - t0) * 1e3, (t2 - t1) / 1.6e6 * 1e9, (t3 - t2) / 640000 * 1e9, (t4 - t3) / (400 * 32 * 100.) * 1e9, (t5 - t4) / 20000 * 1e9,
           (t6 - t5) / 2000 * 1e9);
}

int main(int argc, char **argv) {
    sigaction(SIGSEGV, &(struct sigaction){.sa_handler = program_handler, .sa_flags = SA_NODEFER}, NULL);
    engine = soft_engine_create(3);
    heap = soft_heap_create(1u << 20, NULL);
    CHECK(engine && heap);
    if (argc == 2 && strcmp(argv[1], "short_grids") == 0) {
        test_short_grids();
        test_stop();
        soft_heap_destroy(heap);
        puts("ok");
        return 0;
    }
    test_indices();
    test_runs();
    test_loops();
    test_barrier();
    test_exited_warps_count();
    test_reductions();
    test_arrive();
    test_barrier_nobody_reaches();
    test_memories();
    test_beyond_shared();
    test_faults();
    test_fault_elsewhere();
    test_guarded();
    test_cooperative();
    test_company();
    test_look_back();
    test_printf();
    test_malloc();
    test_several_grids();
    measure();
    test_stop();
    soft_heap_destroy(heap);
    puts("ok");
    return 0;
}
