/* More than the worker takes at a time, and commands that wait for the device while it waits for the client. */
#include "scripted_client.h"

/* Memory stays bounded and nothing is lost when the device is slower than the client. */
static void floods(void) {
    begin();
    attach();
    enum { COUNT = 30000 };
    uint64_t first = 0, last = 0;
    for (int i = 0; i < COUNT; i++) {
        last = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
        if (!first) first = last;
        const struct gv_record *r;
        while (i % 64 == 0 && (r = gv_recv_peek(client))) gv_recv_consume(client);
    }
    for (uint64_t seen = 0; seen < last;) {
        const struct gv_record *r = next();
        CHECK(r && r->op == GV_OP_COMPLETED);
        struct gv_evt_completed e;
        CHECK(gv_evt_completed_decode(&e, r + 1, r->size - (uint32_t)sizeof *r) == 0);
        CHECK(e.upto > seen);
        seen = e.upto;
        gv_recv_consume(client);
    }
    bye();
}

/* The answer to a host function is behind more commands than the worker takes at a time. All of them wait for it. */
static void flood_behind_a_host_function(void) {
    begin();
    attach();
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    host_function_comes(9, 0);
    enum { COUNT = 40000 };
    for (int i = 0; i < COUNT; i++) POST(fill, 0, 1, .stream = 100, .dst = (uint64_t)i, .elem = 1, .value = 7, .width = 1, .height = 1);
    while (atomic_load(&fake.most_queued) < WORKER_MAX_PENDING) usleep(1000); /* the reader is ahead of the executor, and would see the answer */
    POST(host_done, 0, 1, .tag = 9);
    uint64_t seq = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().upto == seq);
    for (int i = 0; i < COUNT; i++) CHECK(fake.memory[i] == 7);
    CHECK(atomic_load(&fake.most_queued) < WORKER_MAX_PENDING + 1000);
    struct worker_figures figures;
    worker_get_figures(worker, &figures);
    CHECK(figures.commands >= COUNT && figures.bytes_in > COUNT * 24);
    bye();
}

enum { LUMP = 1 << 20, LUMPS = 24 };

static void send_some_lumps(void *data, int count) {
    for (int i = 0; i < count; i++) {
        memset(data, i + 1, LUMP);
        uint64_t number = ++bulk_sent;
        POST(copy_in, 0, 1, .stream = 100, .dst = (uint64_t)(i % 8) * LUMP, .width = LUMP, .height = 1, .depth = 1, .pitch = LUMP, .slice = LUMP,
             .bulk = number);
        CHECK(gv_bulk_send(client, 0, data, LUMP) == number);
    }
}

static void *send_lumps(void *data) {
    send_some_lumps(data, LUMPS);
    return NULL;
}

/* The same with more bytes than the worker keeps. */
static void copies_behind_a_host_function(void) {
    begin();
    attach();
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    host_function_comes(9, 0);
    pthread_t sender;
    void *data = malloc(LUMP);
    CHECK(pthread_create(&sender, NULL, send_lumps, data) == 0);
    usleep(100000);
    POST(host_done, 0, 1, .tag = 9);
    pthread_join(sender, NULL);
    free(data);
    uint64_t seq = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().upto == seq);
    for (int i = 0; i < 8; i++) CHECK(fake.memory[i * LUMP] == LUMPS - 8 + i + 1 && fake.memory[i * LUMP + LUMP - 1] == LUMPS - 8 + i + 1);
    bye();
}

/* As many bytes as the worker keeps, so that the answer itself is what the executor takes up when there is no room. */
static void answer_when_there_is_no_room(void) {
    begin();
    attach();
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    host_function_comes(9, 0);
    void *data = malloc(LUMP);
    struct worker_figures figures;
    send_some_lumps(data, WORKER_MAX_STAGING / LUMP);
    free(data);
    do { /* until the worker has taken them all, behind three commands of attach()'s and the host function */
        usleep(1000);
        worker_get_figures(worker, &figures);
    } while (figures.commands < 4 + WORKER_MAX_STAGING / LUMP);
    POST(host_done, 0, 1, .tag = 9);
    uint64_t seq = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().upto == seq);
    bye();
}

/* A call of the driver that waits for the device, which waits for the client. */
static void free_behind_a_host_function(void) {
    begin();
    attach();
    fake.free_waits = true;
    CHECK(answer(POST(memory_alloc, GV_RECORD_SYNC, 1, .size = 4096)) == 0);
    CHECK(answer(POST(memory_alloc, GV_RECORD_SYNC, 1, .size = 4096)) == 0);
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    host_function_comes(9, 0);
    POST(memory_free, 0, 1, .address = 4096);
    POST(fill, 0, 1, .stream = 100, .dst = 5, .elem = 1, .value = 9, .width = 1, .height = 1); /* order is kept */
    POST(fill, 0, 1, .stream = 100, .dst = 5, .elem = 1, .value = 8, .width = 1, .height = 1);
    usleep(30000);
    POST(host_done, 0, 1, .tag = 9);
    uint64_t seq = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().upto == seq);
    CHECK(fake.memory[5] == 8);
    struct worker_figures figures;
    worker_get_figures(worker, &figures);
    CHECK(figures.memory_used == 0); /* the one at address 0 has no name of its own in the figures */
    bye();
}

/* The executor's lock of the link, taken as by a thread that wakes up late: it looks every 200 us whether it is free. Linked in place of the C library's. */
static _Atomic unsigned late_looks;
static _Atomic bool wakes_late;
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
    if (!atomic_load(&wakes_late) || mutex != &worker->ahead_lock || !pthread_equal(pthread_self(), thread)) return __real_pthread_mutex_lock(mutex);
    while (pthread_mutex_trylock(mutex)) {
        atomic_fetch_add(&late_looks, 1);
        usleep(200);
    }
    return 0;
}

/* Calls of the driver that might wait, while read-ahead has the link: it gives the link back behind each, however late the executor wakes up. Read-ahead that is
 * kept from its core while it has the lock looks as if it did not: then once more. */
static void calls_behind_a_host_function(void) {
    enum { COUNT = 100, ROUNDS = 10 };
    begin();
    attach();
    for (int i = 0; i < ROUNDS * COUNT; i++) CHECK(answer(POST(memory_alloc, GV_RECORD_SYNC, 1, .size = 4096)) == 0);
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    host_function_comes(9, 0);
    fake.free_us = 300; /* until read-ahead waits for the next command */
    unsigned looks = UINT32_MAX;
    for (uint64_t i = 0; i < ROUNDS * COUNT && looks >= 5 * COUNT; looks = atomic_load(&late_looks)) {
        atomic_store(&late_looks, 0);
        atomic_store(&wakes_late, true);
        for (int n = 0; n < COUNT; n++, i++) {
            POST(memory_free, 0, 1, .address = i * 4096);
            CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0);
        }
        atomic_store(&wakes_late, false);
    }
    CHECK(looks < 5 * COUNT);
    POST(host_done, 0, 1, .tag = 9);
    uint64_t seq = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().upto == seq);
    bye();
}

/* A call that waits although it hardly ever does: the answer that lets it go on is behind it. Then many that do not, and one that does again. */
static void full_queue_behind_a_host_function(void) {
    begin();
    attach();
    for (uint64_t round = 1; round <= 3; round++) {
        POST(host_func, 0, 1, .stream = 100, .tag = round);
        host_function_comes(round, 0);
        for (int i = 0; i < 500; i++) POST(fill, 0, 1, .stream = 100, .dst = 5, .elem = 1, .value = 9, .width = 1, .height = 1);
        POST(event_create, 0, 1, .event = 500 + round);
        POST(event_destroy, 0, 1, .event = 500 + round);
        CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0);
        fake.fill_waits = true;
        POST(fill, 0, 1, .stream = 100, .dst = 5, .elem = 1, .value = 7, .width = 1, .height = 1);
        for (int i = 0; i < 50; i++)
            POST(fill, 0, 1, .stream = 100, .dst = 6, .elem = 1, .value = (uint64_t)i, .width = 1, .height = 1); /* order is kept */
        POST(host_done, 0, 1, .tag = round);
        uint64_t seq = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
        CHECK(completed().upto == seq);
        CHECK(fake.memory[5] == 7 && fake.memory[6] == 49);
        fake.fill_waits = false;
    }
    bye();
}

struct sending {
    void *data;
    const void *last;
    uint64_t last_size;
};

static void *send_lumps_and_another(void *arg) {
    struct sending *s = arg;
    for (int i = 1; i <= LUMPS; i++) CHECK(gv_bulk_send(client, 0, s->data, LUMP) == (uint64_t)i);
    CHECK(gv_bulk_send(client, 0, s->last, s->last_size) == LUMPS + 1);
    return NULL;
}

/* A command that waits for its own payload, which lies behind more of others than the worker keeps; theirs wait for a host function. */
static void link_behind_copies_that_wait(void) {
    begin();
    attach();
    fake.views = true;
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    host_function_comes(9, 0);
    for (int i = 0; i < LUMPS; i++)
        POST(copy_in, 0, 1, .stream = 100, .dst = 0, .width = LUMP, .height = 1, .depth = 1, .pitch = LUMP, .slice = LUMP, .bulk = (uint64_t)i + 1);
    static uint64_t inputs[1000];
    struct gv_link_part part = {.type = 1, .name = "only", .data = "abc", .size = 3};
    gv_link_part_put(inputs, &part);
    uint64_t seq = POST(link, GV_RECORD_SYNC, 1, .n_inputs = 1, .bulk = LUMPS + 1);
    POST(host_done, 0, 1, .tag = 9);
    struct sending sending = {calloc(1, LUMP), inputs, gv_link_part_size(&part)};
    pthread_t sender;
    CHECK(pthread_create(&sender, NULL, send_lumps_and_another, &sending) == 0);
    CHECK(answer(seq) == 0);
    struct gv_reply_link reply;
    CHECK(gv_reply_link_decode(&reply, body, answer_size()) == 0 && reply.result == 0 && reply.image_size == 3);
    pthread_join(sender, NULL);
    free(sending.data);
    bye();
}

/* A call of the driver that waits for the device, which waits until the client has said that it has what is sent in place. */
static void free_behind_a_copy_in_place(void) {
    begin();
    attach();
    fake.views = fake.free_waits = true;
    enum { SIZE = 8 << 20 }; /* more than the sockets hold */
    CHECK(answer(POST(memory_alloc, GV_RECORD_SYNC, 1, .size = 4096)) == 0);
    POST(copy_out, 0, 1, .stream = 100, .src = 0, .width = SIZE, .height = 1, .depth = 1, .pitch = SIZE, .slice = SIZE, .tag = 77);
    POST(memory_free, 0, 1, .address = 0);
    uint8_t *back = malloc(SIZE);
    receive(77, back, SIZE);
    free(back);
    uint64_t seq = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().upto == seq && fake.views_given == 1);
    bye();
}

/* Freeing pinned memory waits for the gates, which wait for the threads that give it back: more of it than is kept, beside a host function that stands
 * and without one. */
static void pinned_memory_is_freed_by_nobody_who_is_waited_for(void) {
    enum { SIZE = 4 * WORKER_PIECE };
    static uint8_t data[SIZE];
    begin();
    attach();
    fake.frees_wait = true;
    POST(stream_create, 0, 1, .stream = 200, .flags = 1);
    for (int stands = 1; stands >= 0; stands--) {
        if (stands) {
            POST(host_func, 0, 1, .stream = 100, .tag = 9);
            host_function_comes(9, 0);
        }
        uint64_t seq = POST(copy_in, GV_RECORD_MARK, 1, .stream = 200, .dst = 0, .width = SIZE, .height = 1, .depth = 1, .pitch = SIZE, .slice = SIZE,
                            .bulk = ++bulk_sent);
        CHECK(gv_bulk_send(client, 0, data, SIZE));
        CHECK(completed().upto == seq);
        if (stands) POST(host_done, 0, 1, .tag = 9);
        POST(fence, GV_RECORD_MARK, 1, .stream = 100);
        CHECK(completed().status == 0);
    }
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0);
    CHECK(atomic_load(&fake.pinned) <= (int)(STAGING_KEPT_PINNED / WORKER_PIECE));
    bye();
}

/* The same at the end of a session, of which a copy still waits for its bytes. */
static void pinned_memory_at_the_end(void) {
    static uint8_t data[2 * WORKER_PIECE];
    begin();
    attach();
    round_trip(100000, 100, 100); /* leaves pieces that are kept, of another size */
    fake.frees_wait = true;
    fake.delay_us = 100000; /* the worker is closed before the stream has come to the end */
    POST(copy_in, 0, 1, .stream = 100, .dst = 0, .width = sizeof data, .height = 1, .depth = 1, .pitch = sizeof data, .slice = sizeof data,
         .bulk = ++bulk_sent);
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0);
    gv_link_kill(client, "the client is gone");
    end(1);
}

const struct test_case held_up_cases[] = {
    {"floods", floods},
    {"flood_behind_a_host_function", flood_behind_a_host_function},
    {"copies_behind_a_host_function", copies_behind_a_host_function},
    {"answer_when_there_is_no_room", answer_when_there_is_no_room},
    {"free_behind_a_host_function", free_behind_a_host_function},
    {"full_queue_behind_a_host_function", full_queue_behind_a_host_function},
    {"calls_behind_a_host_function", calls_behind_a_host_function},
    {"link_behind_copies_that_wait", link_behind_copies_that_wait},
    {"free_behind_a_copy_in_place", free_behind_a_copy_in_place},
    {"pinned_memory_is_freed_by_nobody_who_is_waited_for", pinned_memory_is_freed_by_nobody_who_is_waited_for},
    {"pinned_memory_at_the_end", pinned_memory_at_the_end},
    {0},
};
