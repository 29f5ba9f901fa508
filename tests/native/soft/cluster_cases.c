/* Clusters: which blocks make one, their memory, their barrier. */
#include "engine_fixture.h"

static int run_clusters(void (*entry)(struct soft_warp *), const uint32_t grid[3], const uint32_t cluster[3], uint32_t threads, uint32_t shared,
                        void *params) {
    struct soft_code code = {.entry = entry, .uses_barrier = 1, .static_shared = shared, .dynamic_offset = shared, .param_bytes = 8};
    struct soft_launch l = {.code = &code, .kernel = "testing", .block = {threads, 1, 1}, .params = &params, .params_size = 8};
    memcpy(l.grid, grid, sizeof l.grid);
    memcpy(l.cluster, cluster, sizeof l.cluster);
    return soft_engine_run(engine, &l, err, sizeof err);
}

struct seen {
    uint32_t times[24], bad;
};

static void wrong(struct seen *s) { __atomic_fetch_add(&s->bad, 1, __ATOMIC_RELAXED); }

static void places(struct soft_warp *w) {
    struct seen *s = *(struct seen *const *)w->params;
    const uint32_t *c = w->cluster;
    uint32_t rank = w->ctaid[0] % c[0] + c[0] * (w->ctaid[1] % c[1] + c[1] * (w->ctaid[2] % c[2]));
    if (rank != w->rank || (char *)w->shared != (char *)w->window + rank * SOFT_RANK_BYTES || !w->explicit_cluster) wrong(s);
    __atomic_fetch_add(&s->times[w->ctaid[0] + w->nctaid[0] * (w->ctaid[1] + w->nctaid[1] * w->ctaid[2])], 1, __ATOMIC_RELAXED);
}

void test_places_in_clusters(void) {
    static const uint32_t grid[3] = {4, 3, 2}, shapes[][3] = {{2, 1, 2}, {4, 3, 1}, {1, 3, 2}, {1, 1, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct seen s = {0};
        CHECK_INT(run_clusters(places, grid, shapes[i], 96, 64, &s), 0);
        CHECK_INT(s.bad, 0);
        for (uint32_t b = 0; b < 24; b++) CHECK_INT(s.times[b], 3);
    }
}

void test_wrong_clusters(void) {
    static const uint32_t grid[3] = {32, 3, 1}, shapes[][3] = {{3, 1, 1}, {2, 2, 1}, {2, 0, 1}, {32, 1, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct seen s = {0};
        CHECK_INT(run_clusters(places, grid, shapes[i], 32, 64, &s), 912);
    }
}

/* Each warp leaves a word in the next block's memory, round after round; the barrier is in two parts now and then. */
static void exchange(struct soft_warp *w) {
    struct seen *s = *(struct seen *const *)w->params;
    uint32_t blocks = w->cluster[0], next = (w->rank + 1) % blocks, before = (w->rank + blocks - 1) % blocks;
    for (uint32_t round = 1; round <= 50; round++) {
        volatile uint32_t *there = (volatile uint32_t *)((char *)w->window + next * SOFT_RANK_BYTES);
        there[w->warp] = round * 1000 + w->rank * 32 + w->warp;
        soft_cluster_arrive(w);
        if (round % 3 == w->rank % 3) soft_barrier_sync(w, 1, 0, w->lanes);
        if (round % 3 != w->rank % 3) soft_cluster_arrive(w); /* the other lanes of a divided warp */
        soft_cluster_wait(w);
        const volatile uint32_t *here = w->shared;
        if (here[w->warp] != round * 1000 + before * 32 + w->warp) wrong(s);
        soft_cluster_arrive(w);
        soft_cluster_wait(w);
    }
}

void test_cluster_barrier(void) {
    static const uint32_t sizes[] = {1, 2, 5, 16};
    for (int i = 0; i < 4; i++) {
        struct seen s = {0};
        const uint32_t grid[3] = {8 * sizes[i], 1, 1}, cluster[3] = {sizes[i], 1, 1};
        CHECK_INT(run_clusters(exchange, grid, cluster, 128, 256, &s), 0);
        CHECK_INT(s.bad, 0);
    }
}

/* Some end before they arrive, some after, one block as a whole; the others are not kept. */
static void some_end(struct soft_warp *w) {
    struct seen *s = *(struct seen *const *)w->params;
    if (w->rank == 1 || (w->rank == 2 && w->warp == 0)) return;
    soft_cluster_arrive(w);
    if (w->rank == 3 && w->warp == 1) return;
    soft_cluster_wait(w);
    soft_cluster_arrive(w);
    soft_cluster_wait(w);
    __atomic_fetch_add(&s->times[w->rank], 1, __ATOMIC_RELAXED);
}

void test_cluster_barrier_after_exits(void) {
    struct seen s = {0};
    static const uint32_t grid[3] = {12, 1, 1}, cluster[3] = {4, 1, 1};
    CHECK_INT(run_clusters(some_end, grid, cluster, 64, 64, &s), 0);
    CHECK_INT(s.times[0], 6);
    CHECK_INT(s.times[1], 0);
    CHECK_INT(s.times[2], 3);
    CHECK_INT(s.times[3], 3);
}

static void waits_alone(struct soft_warp *w) {
    if (w->rank) return;
    if (w->warp) {
        soft_barrier_sync(w, 2, 96, w->lanes);
    } else {
        soft_cluster_arrive(w);
        soft_cluster_wait(w);
    }
}

static void waits_unasked(struct soft_warp *w) { soft_cluster_wait(w); }

void test_cluster_barrier_nobody_reaches(void) {
    static const uint32_t grid[3] = {4, 1, 1}, cluster[3] = {2, 1, 1};
    CHECK_INT(run_clusters(waits_alone, grid, cluster, 64, 64, NULL), 719);
    CHECK_TEXT(err, "barriers that nobody else will reach");
    CHECK_INT(run_clusters(waits_unasked, grid, cluster, 64, 64, NULL), 719);
    CHECK_TEXT(err, "without an arrival");
}

/* What lies behind a block's memory, and where a block is not, is out of bounds; also for the blocks alone that use the memory afterwards. */
static void beyond(struct soft_warp *w) {
    uint64_t offset = **(uint64_t *const *)w->params;
    if (w->rank == 0) *((volatile char *)w->window + offset) = 1;
    soft_cluster_arrive(w);
    soft_cluster_wait(w);
}

void test_beyond_a_clusters_memory(void) {
    static const uint32_t grid[3] = {8, 1, 1}, pair[3] = {2, 1, 1}, alone[3] = {0};
    uint64_t inside[] = {0, 4095, SOFT_RANK_BYTES, SOFT_RANK_BYTES + 4095},
             outside[] = {4096, SOFT_RANK_BYTES - 1, SOFT_RANK_BYTES + 4096, 2 * SOFT_RANK_BYTES};
    for (int i = 0; i < 4; i++) {
        CHECK_INT(run_clusters(beyond, grid, pair, 32, 4096, &inside[i]), 0);
        CHECK_INT(run_clusters(beyond, grid, pair, 32, 4096, &outside[i]), 700);
        CHECK_INT(run_clusters(beyond, grid, alone, 32, 4096, &inside[i]), inside[i] < SOFT_RANK_BYTES ? 0 : 700);
    }
}

static void answers(struct soft_warp *w) {
    struct seen *s = *(struct seen *const *)w->params;
    uint64_t *words = w->shared;
    soft_mbarrier(w, 0, SOFT_MBARRIER_INIT, words + 2, 1, 0);
    words[0] = words[1] = ~0ull;
    soft_mbarrier(w, 0, SOFT_MBARRIER_ARRIVE, words + 2, 1, 16);
    soft_cluster_arrive(w);
    soft_cluster_wait(w);
    if (w->rank == 1) soft_cancel_answer(w, 0, words, words + 2, 1);
    while (!soft_mbarrier_test(w, 0, words + 2, 0, 1, 1)) {
    }
    if (words[0] || words[1]) wrong(s);
    soft_cluster_arrive(w);
    soft_cluster_wait(w);
}

/* The answer to a request for another block's work reaches every block of the cluster. */
void test_answers_to_a_cluster(void) {
    struct seen s = {0};
    static const uint32_t grid[3] = {12, 1, 1}, cluster[3] = {4, 1, 1};
    CHECK_INT(run_clusters(answers, grid, cluster, 32, 64, &s), 0);
    CHECK_INT(s.bad, 0);
}
