/* Turns of a backend that has none of its own: what the executor hands on, and what is said of it. */
#include "scripted_client.h"

static const uint64_t right = 42; /* a parameter that the fake backend takes */

/* ---- what is said ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t words[256], numbers[256];
static size_t n_words, n_taken;
static int ran_when_stopped;

static void said(void *arg, uint32_t device, uint32_t what, uint32_t number) {
    (void)arg;
    CHECK(device == 0);
    pthread_mutex_lock(&lock);
    CHECK(n_words < 256);
    if (what >= GV_TURN_STOPPED) ran_when_stopped = atomic_load(&fake.ran);
    words[n_words] = what;
    numbers[n_words++] = number;
    pthread_mutex_unlock(&lock);
}

/* The next word, whenever it comes. */
static uint32_t word(uint32_t *number) {
    for (;;) {
        pthread_mutex_lock(&lock);
        bool there = n_taken < n_words;
        uint32_t what = there ? words[n_taken] : 0;
        if (there) *number = numbers[n_taken++];
        pthread_mutex_unlock(&lock);
        if (there) return what;
        usleep(1000);
    }
}

/* The worker says that it works, or that it does not; the other may come before. */
static void says(uint32_t what) {
    uint32_t got, number;
    while ((got = word(&number)) != what) CHECK(got == GV_TURN_WANTS || got == GV_TURN_IDLE);
}

/* It says that all stands still, in answer to `number`. What waits for a turn may not have come as far as that yet. */
static uint32_t stops(uint32_t number) {
    uint32_t got, found;
    while ((got = word(&found)) < GV_TURN_STOPPED) continue;
    CHECK(found == number);
    return got;
}

static void turn(uint32_t may, uint32_t number) { CHECK(worker_turn(worker, 0, may, number) == 0); }

/* ---- a session with a module ---- */

static void begin_with_kernels(int delay_us) {
    n_words = n_taken = 0;
    on_turn = said;
    begin();
    attach();
    CHECK(answer(POST(module_load, GV_RECORD_SYNC, 1, .module = 30, .image = "good", .image_size = 4)) == 0);
    atomic_store(&fake.delay_us, delay_us);
}

static uint64_t launch(uint64_t stream) {
    return POST(launch, 0, 1, .stream = stream, .module = 30, .grid = {1, 1, 1}, .block = {1, 1, 1}, .params = &right, .params_size = 8);
}

static void await_runs(int n) {
    while (atomic_load(&fake.ran) < n) usleep(1000);
}

static void over(void) {
    turn(GV_MAY_ALWAYS, 99);
    bye();
    on_turn = NULL;
}

/* ---- cases ---- */

static void only_during_a_turn(void) {
    begin_with_kernels(1000);
    turn(GV_MUST_WAIT, 1);
    stops(1);
    for (int i = 0; i < 5; i++) launch(100);
    says(GV_TURN_WANTS);
    usleep(50000);
    CHECK(atomic_load(&fake.ran) == 0);
    turn(GV_MAY_NOW, 2);
    await_runs(5);
    says(GV_TURN_IDLE);
    turn(GV_MUST_WAIT, 3);
    stops(3);
    launch(100);
    says(GV_TURN_WANTS);
    turn(GV_MUST_WAIT, 4);
    CHECK(stops(4) == GV_TURN_STOPPED_WANTS);
    turn(GV_MAY_ALWAYS, 5);
    await_runs(6);
    CHECK(worker_turn(worker, 7, GV_MAY_NOW, 6) == -1 && worker_turn(worker, 0, GV_MUST_WAIT + 1, 6) == -1);
    over();
}

/* Copies and fills are not counted, and do not wait. */
static void other_commands_go_on(void) {
    begin_with_kernels(0);
    turn(GV_MUST_WAIT, 1);
    stops(1);
    round_trip(100000, 100, 100);
    pthread_mutex_lock(&lock);
    CHECK(n_taken == n_words);
    pthread_mutex_unlock(&lock);
    over();
}

static void what_was_queued_before(void) {
    begin_with_kernels(20000);
    for (int i = 0; i < 10; i++) launch(i % 2 ? 100 : 0); /* the default stream, too */
    while (atomic_load(&fake.queued) + atomic_load(&fake.ran) < 10) usleep(1000);
    turn(GV_MUST_WAIT, 1);
    stops(1);
    CHECK(ran_when_stopped == 10);
    over();
}

static atomic_bool enough;

static void *launch_on(void *arg) {
    (void)arg;
    while (!atomic_load(&enough)) launch(100);
    return NULL;
}

/* Turns begin at any moment of a launch. */
static void while_it_launches(void) {
    pthread_t launches;
    begin_with_kernels(0);
    atomic_store(&enough, false);
    CHECK(pthread_create(&launches, NULL, launch_on, NULL) == 0);
    for (uint32_t i = 0; i < 300; i++) {
        turn(GV_MUST_WAIT, i);
        stops(i);
        turn(GV_MAY_ALWAYS, i);
        pthread_mutex_lock(&lock);
        n_words = n_taken = 0;
        pthread_mutex_unlock(&lock);
        usleep(500);
    }
    atomic_store(&enough, true);
    CHECK(pthread_join(launches, NULL) == 0);
    over();
}

/* When the turn ends little is left to run. */
static void a_short_queue(void) {
    begin_with_kernels(30000);
    turn(GV_MAY_NOW, 1);
    for (int i = 0; i < 30; i++) launch(100);
    await_runs(8);
    int before = atomic_load(&fake.ran);
    turn(GV_MUST_WAIT, 2);
    stops(2);
    CHECK(ran_when_stopped <= before + 3);
    usleep(100000);
    CHECK(atomic_load(&fake.ran) == ran_when_stopped);
    atomic_store(&fake.delay_us, 0);
    turn(GV_MAY_NOW, 3);
    await_runs(30);
    CHECK(failed_status(POST(launch, 0, 1, .stream = 100, .module = 30, .kernel = 1, .params = &right, .params_size = 8)) == 400);
    turn(GV_MUST_WAIT, 4);
    stops(4); /* one that was refused has ended */
    over();
}

/* One that waits for another that is behind it, during a turn and after it: that one is handed on all the same. */
static void one_that_waits_for_another(void) {
    begin_with_kernels(30000);
    turn(GV_MAY_NOW, 1);
    for (int i = 0; i < 8; i++) launch(100);
    await_runs(8);
    POST(stream_create, 0, 1, .stream = 101);
    for (int after = 0; after < 2; after++) {
        uint64_t tag = 500 + (uint64_t)after;
        while (atomic_load(&fake.queued)) usleep(1000);
        POST(host_func, 0, 1, .stream = 100, .tag = tag);
        launch(100);                                        /* behind the host function, which waits for the next */
        while (atomic_load(&fake.queued) < 3) usleep(1000); /* with its mark */
        int before = atomic_load(&fake.ran);
        if (after) turn(GV_MUST_WAIT, 2);
        launch(101);
        await_runs(before + 1);
        CHECK(atomic_load(&fake.ran) == before + 1);
        host_function_comes(tag, 0);
        POST(host_done, 0, 1, .tag = tag);
        await_runs(before + 2);
    }
    stops(2);
    /* A session that waits for its turn ends at once. */
    launch(100);
    says(GV_TURN_WANTS);
    gv_link_kill(client, "the test ends it");
    end(1);
    on_turn = NULL;
}

const struct test_case turn_cases[] = {{"only_during_a_turn", only_during_a_turn},
                                       {"other_commands_go_on", other_commands_go_on},
                                       {"what_was_queued_before", what_was_queued_before},
                                       {"while_it_launches", while_it_launches},
                                       {"a_short_queue", a_short_queue},
                                       {"one_that_waits_for_another", one_that_waits_for_another},
                                       {0}};
