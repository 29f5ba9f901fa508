/* Copies and their payloads: sizes, views, payloads that come before or long after their commands, copies that end late. */
#include "scripted_client.h"

static void copies(void) {
    begin();
    attach();
    const uint64_t sizes[] = {1, 4096, GV_INLINE_MAX, GV_INLINE_MAX + 1, 1000003, 1 << 20, 7000001};
    for (int views = 0; views < 2; views++) {
        fake.views = views;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            round_trip(sizes[i], 100, 100);
            round_trip(sizes[i], 0, 0xffff000000000001ull);
        }
        CHECK(fake.views_given == 16 * views); /* the larger half, both ways, on both streams */
    }
    fake.delay_us = 3000; /* no stream is where its payload is */
    round_trip(7000001, 100, 100);
    CHECK(atomic_load(&fake.viewed) == 0);
    bye();
}

/* Bytes leave the device's memory while its stream stands still for them: what follows on the stream comes after. A client that is far away is not
 * waited for. */
static void sent_in_place(void) {
    for (int far = 0; far < 2; far++) {
        enum { MOST = 8 << 20 };
        const uint64_t SIZE = far ? MOST / 2 : MOST; /* more than the sockets hold, less than the worker keeps */
        begin();
        attach_from(far ? 50000 : 0);
        fake.views = true;
        memset(fake.memory, 3, SIZE);
        atomic_store(&fake.sticky, 0); /* for the thread sanitizer, which sees no order in what comes by shared memory */
        POST(copy_out, 0, 1, .stream = 100, .src = 0, .width = SIZE, .height = 1, .depth = 1, .pitch = SIZE, .slice = SIZE, .tag = 77);
        uint64_t seq = POST(fill, GV_RECORD_MARK, 1, .stream = 100, .dst = 0, .elem = 1, .value = 9, .width = SIZE, .height = 1);
        uint8_t *back = malloc(SIZE);
        if (far) {
            CHECK(completed().upto == seq); /* nothing has been read yet */
            CHECK(fake.filled == 1 && fake.views_given == 0);
        } else {
            usleep(50000);
            CHECK(fake.filled == 0);
        }
        receive(77, back, SIZE);
        for (uint64_t i = 0; i < SIZE; i += 4097) CHECK(back[i] == 3);
        CHECK(back[SIZE - 1] == 3);
        free(back);
        if (!far) CHECK(completed().upto == seq && fake.filled == 1);
        bye();
    }
}

static void *send_first(void *data) {
    for (int i = 0; i < 3; i++) CHECK(gv_bulk_send(client, 0, (uint8_t *)data + (i << 21), 2 << 20));
    CHECK(gv_bulk_send(client, 0, data, 1536 * 3900));
    return NULL;
}

/* Records and payloads travel on different sockets: payloads may come first, more of them than the worker keeps. */
static void payloads_before_their_commands(void) {
    for (int views = 0; views < 2; views++) {
        begin();
        attach();
        fake.views = views;
        pthread_t sender;
        uint8_t *data = malloc(6 << 20);
        for (int i = 0; i < 6 << 20; i++) data[i] = (uint8_t)(i * 7 + (i >> 16));
        memcpy(data + (4 << 20), "good", 4);
        CHECK(pthread_create(&sender, NULL, send_first, data) == 0);
        usleep(100000);
        /* The second goes to a stream that is none, the third is an image. */
        POST(copy_in, 0, 1, .stream = 100, .dst = 64, .width = 2 << 20, .height = 1, .depth = 1, .pitch = 2 << 20, .slice = 2 << 20, .bulk = 1);
        CHECK(failed_status(POST(copy_in, 0, 1, .stream = 4711, .width = 2 << 20, .height = 1, .depth = 1, .bulk = 2)) == 400);
        uint64_t seq = POST(module_load, GV_RECORD_SYNC, 1, .module = 31, .bulk = 3);
        CHECK(answer(seq) == 0);
        usleep(20000);
        POST(copy_in, 0, 1, .stream = 100, .dst = 2 << 20, .width = 1536, .height = 3900, .depth = 1, .pitch = 1537, .slice = 1537 * 3900,
             .bulk = 4); /* not in a row */
        seq = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
        CHECK(completed().upto == seq);
        pthread_join(sender, NULL);
        for (int i = 0; i < 2 << 20; i++) CHECK(fake.memory[64 + i] == (uint8_t)(i * 7 + (i >> 16)) || i >= (2 << 20) - 64);
        for (int y = 0; y < 3000; y++) CHECK(fake.memory[(2 << 20) + 1537 * y + 5] == data[1536 * y + 5]);
        free(data);
        bye();
    }
}

/* A stream that stands still keeps no other from its copies, and its own land when it goes on. */
static void past_a_stream_that_stands(void) {
    for (int views = 0; views < 2; views++) {
        begin();
        attach();
        fake.views = views;
        POST(stream_create, 0, 1, .stream = 200, .flags = 1);
        POST(host_func, 0, 1, .stream = 100, .tag = 9);
        const struct gv_record *r = next();
        CHECK(r && r->op == GV_OP_CALL_HOST);
        gv_recv_consume(client);
        uint8_t *data = malloc(3 << 20);
        memset(data, 5, 3 << 20);
        POST(copy_in, 0, 1, .stream = 100, .dst = 0, .width = 3 << 20, .height = 1, .depth = 1, .pitch = 3 << 20, .slice = 3 << 20, .bulk = 1);
        CHECK(gv_bulk_send(client, 0, data, 3 << 20) == 1);
        memset(data, 6, 3 << 20);
        uint64_t seq = POST(copy_in, GV_RECORD_MARK, 1, .stream = 200, .dst = 4 << 20, .width = 3 << 20, .height = 1, .depth = 1, .pitch = 3 << 20,
                            .slice = 3 << 20, .bulk = 2);
        CHECK(gv_bulk_send(client, 0, data, 3 << 20) == 2);
        struct gv_evt_completed e = completed();
        CHECK(e.upto == seq && e.stream == 200);
        atomic_store(&fake.sticky, 0);
        CHECK(fake.memory[4 << 20] == 6 && fake.memory[(7 << 20) - 1] == 6 && fake.memory[1] == 0);
        atomic_store(&fake.sticky, 0);
        POST(host_done, 0, 1, .tag = 9);
        seq = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
        CHECK(completed().upto == seq && fake.memory[0] == 5 && fake.memory[(3 << 20) - 1] == 5);
        CHECK(atomic_load(&fake.viewed) == 0);
        free(data);
        bye();
    }
}

static void post_late(uint64_t at, uint64_t tag) {
    POST(copy_in, 0, 1, .stream = 100, .dst = at, .width = 1 << 20, .height = 1, .depth = 1, .pitch = 1 << 20, .slice = 1 << 20, .bulk = tag);
}

/* Payloads that are sent when a host function has written them: those of other copies overtake them, and they may overtake their commands. */
static void late_payloads(void) {
    for (int views = 0; views < 2; views++) {
        begin();
        attach();
        fake.views = views;
        POST(stream_create, 0, 1, .stream = 200, .flags = 1);
        POST(host_func, 0, 1, .stream = 100, .tag = 9);
        host_function_comes(9, 0);
        uint8_t *data = malloc(1 << 20);
        post_late(0, GV_BULK_LATE | 1);
        post_late(1 << 20, GV_BULK_LATE | 2);
        memset(data, 7, 1 << 20);
        uint64_t seq = POST(copy_in, GV_RECORD_MARK, 1, .stream = 200, .dst = 4 << 20, .width = 1 << 20, .height = 1, .depth = 1, .pitch = 1 << 20,
                            .slice = 1 << 20, .bulk = 1);
        CHECK(gv_bulk_send(client, 0, data, 1 << 20) == 1);
        CHECK(completed().upto == seq && fake.memory[4 << 20] == 7);
        memset(data, 9, 1 << 20);
        CHECK(gv_bulk_send(client, GV_BULK_LATE | 3, data, 1 << 20) == 2); /* before its command */
        usleep(20000);
        memset(data, 6, 1 << 20);
        seq = POST(copy_in, GV_RECORD_MARK, 1, .stream = 200, .dst = 5 << 20, .width = 1 << 20, .height = 1, .depth = 1, .pitch = 1 << 20,
                   .slice = 1 << 20, .bulk = 3);
        CHECK(gv_bulk_send(client, 0, data, 1 << 20) == 3);
        CHECK(completed().upto == seq && fake.memory[5 << 20] == 6);
        for (uint64_t i = 2; i; i--) { /* in another order than their commands' */
            memset(data, (int)i, 1 << 20);
            CHECK(gv_bulk_send(client, GV_BULK_LATE | i, data, 1 << 20));
        }
        POST(host_done, 0, 1, .tag = 9);
        post_late(2 << 20, GV_BULK_LATE | 3);
        seq = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
        CHECK(completed().upto == seq);
        CHECK(fake.memory[0] == 1 && fake.memory[1 << 20] == 2 && fake.memory[2 << 20] == 9 && fake.memory[(3 << 20) - 1] == 9);
        free(data);
        bye();
    }
}

/* The backend is closed after the session's sender has ended: copies that it finishes between the two are sent to nobody. */
static void copies_end_after_the_sender(void) {
    enum { COPIES = 60, SIZE = GV_INLINE_MAX + 1 };
    begin();
    attach_from(50000);
    fake.delay_us = 3000;
    for (uint64_t i = 1; i <= COPIES; i++)
        POST(copy_out, 0, 1, .stream = 100, .src = 0, .width = SIZE, .height = 1, .depth = 1, .pitch = SIZE, .slice = SIZE, .tag = i);
    uint64_t seq = POST(memory_info, GV_RECORD_SYNC, 1);
    CHECK(answer(seq) == 0); /* all are queued */
    gv_link_kill(client, "the client is gone");
    pthread_join(thread, NULL);
    usleep(30000); /* some end now, and are listed */
    worker_close(worker);
    CHECK(atomic_load(&fake.queued) == 0); /* and all others while the backend was closed */
    gv_link_close(client);
}

/* The last mark of a copy frees it, and may be called before it has come back from being queued. */
static void a_refused_copy_ends_early(void) {
    static uint8_t data[2 * WORKER_PIECE];
    begin();
    attach();
    fake.marks_wait = true;
    uint64_t seq = POST(copy_in, GV_RECORD_MARK, 1, .stream = 100, .dst = sizeof fake.memory, .width = sizeof data, .height = 1, .depth = 1,
                        .pitch = sizeof data, .slice = sizeof data, .bulk = ++bulk_sent);
    CHECK(gv_bulk_send(client, 0, data, sizeof data));
    CHECK(failed_status(seq) == 1);
    struct gv_evt_completed e = completed();
    CHECK(e.upto == seq && e.status == 0);
    bye();
}

const struct test_case copy_cases[] = {
    {"copies", copies},
    {"sent_in_place", sent_in_place},
    {"payloads_before_their_commands", payloads_before_their_commands},
    {"past_a_stream_that_stands", past_a_stream_that_stands},
    {"late_payloads", late_payloads},
    {"copies_end_after_the_sender", copies_end_after_the_sender},
    {"a_refused_copy_ends_early", a_refused_copy_ends_early},
    {0},
};
