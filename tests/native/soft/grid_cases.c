/* Grids: blocks that wait for each other, printf and malloc, several at once, the end; and how long things take. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "engine_fixture.h"

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

void test_cooperative(void) {
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
void test_company(void) {
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

void test_look_back(void) {
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

void test_printf(void) {
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

/* Pieces of many sizes, freed in another order than they were had: what is in one is its own until then. */
static void mallocs_often(struct soft_warp *w) {
    enum { KEPT = 24 };
    struct {
        unsigned char *at;
        uint32_t size;
        unsigned char value;
    } kept[KEPT] = {0};
    uint32_t chance = 2654435761u * (w->ctaid[0] + 1);
    for (int i = 0; i < 3000; i++) {
        chance = chance * 1664525u + 1013904223u;
        uint32_t k = (chance >> 8) % KEPT;
        if (kept[k].at) {
            for (uint32_t n = 0; n < kept[k].size; n++)
                if (kept[k].at[n] != kept[k].value) soft_trap(w, 1, SOFT_TRAP);
            soft_free(w, 0, kept[k].at);
            kept[k].at = NULL;
            continue;
        }
        kept[k].size = (chance >> 16) % 16 ? (chance >> 4) % 300 : (chance >> 4) % 20000;
        kept[k].value = (unsigned char)(chance >> 24);
        kept[k].at = soft_malloc(w, 0, kept[k].size + 1);
        if (kept[k].at) memset(kept[k].at, kept[k].value, kept[k].size);
    }
    for (int k = 0; k < KEPT; k++)
        if (kept[k].at) soft_free(w, 0, kept[k].at);
}

/* Nearly the whole heap in one piece, after which it can be had again. */
static void mallocs_all(struct soft_warp *w) {
    char *p = soft_malloc(w, 0, (1u << 20) - 4096), *more = soft_malloc(w, 0, 8192);
    if (!p || more) soft_trap(w, 1, SOFT_TRAP);
    memset(p, 1, (1u << 20) - 4096);
    soft_free(w, 0, p);
}

static void frees_again(struct soft_warp *w) {
    char *p = soft_malloc(w, 0, 100), *next = soft_malloc(w, 0, 100);
    soft_free(w, 0, next);
    soft_free(w, 0, p);
    soft_free(w, 0, next); /* it is part of a larger piece by now */
}

void test_malloc(void) {
    CHECK_INT(run(mallocs_often, 60, 32, 0, 0, 0, 0, NULL, 0), 0);
    CHECK_INT(run(mallocs_all, 1, 32, 0, 0, 0, 0, NULL, 0), 0);
    CHECK_INT(run(mallocs_all, 1, 32, 0, 0, 0, 0, NULL, 0), 0);
    CHECK_INT(run(frees_again, 1, 32, 0, 0, 0, 0, NULL, 0), 700);
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

void test_several_grids(void) {
    pthread_t threads[6];
    for (int i = 0; i < 6; i++) CHECK(!pthread_create(&threads[i], NULL, runs_many, NULL));
    for (int i = 0; i < 6; i++) pthread_join(threads[i], NULL);
}

static _Atomic int started;
/* Deaf to the engine for a while, like a thread that gets no processor on a busy machine, and told to stop more often than its signal stack could hold. */
static void endless(struct soft_warp *w) {
    (void)w;
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SOFT_STOP_SIGNAL);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);
    for (int i = 0; i < 200; i++) raise(SOFT_STOP_SIGNAL);
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

void test_stop(void) {
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

void measure(void) {
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
