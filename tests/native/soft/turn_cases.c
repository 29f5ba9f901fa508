/* Turns: grids of a device whose gate is closed wait, those that run stop between two blocks, and what is said of it. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "engine_fixture.h"

#define WORDS 64

static struct {
    pthread_mutex_t lock;
    uint32_t n, what[WORDS], number[WORDS], device[WORDS];
} words = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void said(void *arg, uint32_t device, uint32_t what, uint32_t number) {
    CHECK(arg == &words);
    pthread_mutex_lock(&words.lock);
    CHECK(words.n < WORDS);
    words.device[words.n] = device;
    words.what[words.n] = what;
    words.number[words.n++] = number;
    pthread_mutex_unlock(&words.lock);
}

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); }

/* The next word; the test's time limit is its deadline. */
static uint32_t hear(uint32_t *number) {
    static uint32_t heard;
    for (;; nap()) {
        pthread_mutex_lock(&words.lock);
        bool more = heard < words.n;
        uint32_t what = more ? words.what[heard] : 0, device = more ? words.device[heard] : 0;
        if (more && number) *number = words.number[heard];
        heard += more;
        if (more && heard == words.n) heard = words.n = 0;
        pthread_mutex_unlock(&words.lock);
        if (!more) continue;
        CHECK_INT(device, 1);
        return what;
    }
}

static void turn(struct soft_engine *e, uint32_t may, uint32_t number) { CHECK_INT(soft_engine_turn(e, 1, may, number, said, &words), 0); }

/* ---- kernels that take a while ---- */

static _Atomic uint64_t blocks_done;

static void naps(struct soft_warp *w) {
    if (w->warp) return;
    nap();
    atomic_fetch_add(&blocks_done, 1);
}

/* As long as a machine that is busy with other things needs to stop them three times. */
enum { BLOCKS = 4000, ROUNDS = 2000 };

/* All blocks wait for each other again and again: they are resident at once. */
static void in_step(struct soft_warp *w) {
    uint32_t *counter = *(uint32_t *const *)w->params;
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        if (!w->warp) {
            __atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL);
            while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < round * w->nctaid[0]) soft_yield(w);
        }
        soft_barrier_sync(w, 0, 0, w->lanes);
        atomic_fetch_add(&blocks_done, 1);
        if (round % 8 == 0) nap();
    }
}

struct job {
    struct soft_engine *engine;
    void (*entry)(struct soft_warp *);
    uint32_t device, blocks, cooperative;
    uint32_t counter, *params[1];
    int result;
    pthread_t thread;
};

static void *run_job(void *arg) {
    struct job *j = arg;
    j->params[0] = &j->counter;
    struct soft_code code = {.entry = j->entry, .static_shared = 64, .dynamic_offset = 64, .uses_barrier = j->cooperative, .param_bytes = 8};
    struct soft_launch l = {.code = &code, .device = j->device, .grid = {j->blocks, 1, 1}, .block = {64, 1, 1}};
    l.cooperative = j->cooperative;
    l.params = j->params;
    l.params_size = 8;
    j->result = soft_engine_run(j->engine, &l, NULL, 0);
    return NULL;
}

static void begin(struct job *j) { CHECK(!pthread_create(&j->thread, NULL, run_job, j)); }

static void end(struct job *j, int result) {
    pthread_join(j->thread, NULL);
    CHECK_INT(j->result, result);
}

static void await_blocks(uint64_t n) {
    while (atomic_load(&blocks_done) < n) nap();
}

/* Nothing runs: the counter stands still. */
static uint64_t stands_still(void) {
    uint64_t before = atomic_load(&blocks_done);
    for (int i = 0; i < 20; i++) nap();
    CHECK_INT(atomic_load(&blocks_done), before);
    return before;
}

/* ---- cases ---- */

static void test_a_grid_waits_for_its_turn(void) {
    uint32_t number = 0;
    blocks_done = 0;
    turn(engine, GV_MUST_WAIT, 7);
    CHECK_INT(hear(&number), GV_TURN_STOPPED);
    CHECK_INT(number, 7);
    struct job j = {.engine = engine, .entry = naps, .device = 1, .blocks = 4}, other = {.engine = engine, .entry = naps, .blocks = 4};
    begin(&j);
    CHECK_INT(hear(NULL), GV_TURN_WANTS);
    CHECK_INT(stands_still(), 0);
    begin(&other); /* on a device that nobody shares */
    end(&other, 0);
    CHECK_INT(stands_still(), 4);
    turn(engine, GV_MAY_NOW, 8);
    end(&j, 0);
    CHECK_INT(atomic_load(&blocks_done), 8);
    CHECK_INT(hear(NULL), GV_TURN_IDLE);
    begin(&j); /* it still may: it runs, and that is said */
    CHECK_INT(hear(NULL), GV_TURN_WANTS);
    end(&j, 0);
    CHECK_INT(hear(NULL), GV_TURN_IDLE);
}

static void stop_and_go(struct job *j, uint64_t all) {
    uint32_t number = 0;
    blocks_done = 0;
    begin(j);
    CHECK_INT(hear(NULL), GV_TURN_WANTS);
    for (uint32_t i = 1; i <= 3; i++) {
        await_blocks(i * 20);
        turn(engine, GV_MUST_WAIT, 10 + i);
        CHECK_INT(hear(&number), GV_TURN_STOPPED_WANTS);
        CHECK_INT(number, 10 + i);
        CHECK(stands_still() < all);
        turn(engine, GV_MAY_NOW, 20 + i);
    }
    end(j, 0);
    CHECK_INT(atomic_load(&blocks_done), all);
    CHECK_INT(hear(NULL), GV_TURN_IDLE);
}

static void test_a_grid_stops_between_its_blocks(void) {
    struct job j = {.engine = engine, .entry = naps, .device = 1, .blocks = BLOCKS};
    stop_and_go(&j, BLOCKS);
    struct job step = {.engine = engine, .entry = in_step, .device = 1, .blocks = 8, .cooperative = 1};
    stop_and_go(&step, 8ull * 2 * ROUNDS);
}

static void test_nothing_is_said_where_nobody_shares(void) {
    turn(engine, GV_MUST_WAIT, 30);
    CHECK_INT(hear(NULL), GV_TURN_STOPPED);
    struct job j = {.engine = engine, .entry = naps, .device = 1, .blocks = 4};
    begin(&j);
    CHECK_INT(hear(NULL), GV_TURN_WANTS);
    turn(engine, GV_MAY_ALWAYS, 31);
    end(&j, 0);
    begin(&j);
    end(&j, 0);
    for (int i = 0; i < 20; i++) nap();
    pthread_mutex_lock(&words.lock);
    CHECK_INT(words.n, 0);
    pthread_mutex_unlock(&words.lock);
    CHECK_INT(soft_engine_turn(engine, SOFT_TURN_DEVICES, GV_MAY_NOW, 0, said, &words), 1);
    CHECK_INT(soft_engine_turn(engine, 1, GV_MUST_WAIT + 1, 0, said, &words), 1);
}

/* One grid that has begun and one that has not wait for a turn that does not come. */
static void test_the_end_does_not_wait_for_a_turn(void) {
    struct soft_engine *e = soft_engine_create(2);
    CHECK(e);
    blocks_done = 0;
    struct job begun = {.engine = e, .entry = naps, .device = 1, .blocks = 4000}, late = {.engine = e, .entry = naps, .device = 1, .blocks = 4};
    begin(&begun);
    await_blocks(10);
    turn(e, GV_MUST_WAIT, 40);
    CHECK_INT(hear(NULL), GV_TURN_STOPPED_WANTS);
    begin(&late);
    stands_still();
    CHECK(soft_engine_stop(e));
    end(&begun, 719);
    end(&late, 719);
    CHECK_INT(soft_engine_turn(e, 1, GV_MAY_NOW, 41, said, &words), 2);
    soft_engine_destroy(e);
}

void test_turns(void) {
    test_a_grid_waits_for_its_turn();
    test_a_grid_stops_between_its_blocks();
    test_nothing_is_said_where_nobody_shares();
    test_the_end_does_not_wait_for_a_turn();
}
