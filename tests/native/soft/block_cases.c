/* Blocks and warps of a grid: their indices, who runs which, barriers, what memory each has. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "engine_fixture.h"

static void iota(struct soft_warp *w) {
    uint32_t *out = *(uint32_t *const *)w->params;
    uint64_t block = w->ctaid[0] + (uint64_t)w->nctaid[0] * (w->ctaid[1] + (uint64_t)w->nctaid[1] * w->ctaid[2]);
    for (uint32_t lane = 0; lane < 32; lane++)
        if (w->lanes >> lane & 1) {
            uint32_t i = (uint32_t)block * w->ntid[0] * w->ntid[1] * w->ntid[2] + w->first_thread + lane;
            out[i] += i + 1;
        }
}

void test_indices(void) {
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
void test_runs(void) {
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
void test_loops(void) {
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
void test_short_grids(void) {
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
void sum_rounds(struct soft_warp *w) {
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

void test_barrier(void) {
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

void test_exited_warps_count(void) {
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

void test_reductions(void) {
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

void test_arrive(void) {
    uint32_t bad = 0, *params[1] = {&bad};
    CHECK_INT(run(producer, 5, 128, 1, 0, 0, 0, params, 8), 0);
    CHECK_INT(bad, 0);
}

/* Four warps meet, round after round, beside the block's own barriers; the other four are not awaited. */
static void groups(struct soft_warp *w) {
    uint32_t *bad = *(uint32_t *const *)w->params;
    volatile uint32_t *cell = w->shared;
    uint32_t first = w->warp / 4 * 4;
    for (uint32_t i = 1; i <= (w->warp < 4 ? 20u : 10u); i++) {
        cell[w->warp] = i;
        soft_warpgroup_sync(w);
        for (uint32_t other = first; other < first + 4; other++)
            if (cell[other] != i) __atomic_fetch_add(bad, 1, __ATOMIC_RELAXED);
        soft_warpgroup_sync(w);
        if (i == 5) soft_barrier_sync(w, 0, 0, w->lanes);
    }
}

void test_warpgroups(void) {
    uint32_t bad = 0, *params[1] = {&bad};
    CHECK_INT(run(groups, 5, 256, 1, 0, 64, 0, params, 8), 0);
    CHECK_INT(bad, 0);
    CHECK_INT(run(groups, 5, 96, 1, 0, 64, 0, params, 8), 719);
    CHECK_TEXT(err, "barriers that nobody else will reach");
}

static void stuck(struct soft_warp *w) {
    if (w->warp == 0) soft_barrier_sync(w, 3, 96, w->lanes);
}

void test_barrier_nobody_reaches(void) {
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

void test_memories(void) {
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

void test_beyond_shared(void) {
    static const uint32_t offsets[] = {8192, 1u << 20, 0x7fffffff, 0xfffffff0};
    for (int i = 0; i < 4; i++) {
        CHECK_INT(run(beyond_shared, 1, 32, 0, 0, 200, 0, &offsets[i], 4), 700);
        CHECK_TEXT(err, "illegal address");
    }
    uint32_t inside = 263;
    CHECK_INT(run(beyond_shared, 1, 32, 0, 0, 200, 0, &inside, 4), 0);
}
