/* Streams, events, completions, host functions, and what a context and its handles end with. */
#include "scripted_client.h"

/* Of what comes to pass at one go the client hears the last. */
static void completions_are_one_number(void) {
    begin();
    attach();
    fake.tells_marks = true;
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    const struct gv_record *r = next();
    CHECK(r && r->op == GV_OP_CALL_HOST);
    gv_recv_consume(client);
    uint64_t last = 0;
    for (int i = 0; i < 1000; i++) last = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0); /* all of them are queued */
    POST(host_done, 0, 1, .tag = 9);
    int told = 1;
    while (completed().upto != last) told++;
    CHECK(told == 1);
    bye();
}

static void streams_and_events(void) {
    begin();
    attach();
    POST(event_create, 0, 1, .event = 5);
    POST(event_create, 0, 1, .event = 6);
    CHECK(answer(POST(event_elapsed, GV_RECORD_SYNC, 1, .start = 5, .end = 6)) == 400);
    POST(event_record, 0, 1, .event = 5, .stream = 100);
    uint64_t seq = POST(event_record, GV_RECORD_MARK, 1, .event = 6, .stream = 0);
    struct gv_evt_completed e = completed();
    CHECK(e.upto == seq && e.stream == 0xffff000000000001ull);
    CHECK(answer(POST(event_elapsed, GV_RECORD_SYNC, 1, .start = 5, .end = 6)) == 0);
    POST(event_destroy, 0, 1, .event = 5);
    CHECK(failed_status(POST(event_destroy, 0, 1, .event = 5)) == 400);
    CHECK(failed_status(POST(fence, GV_RECORD_MARK, 1, .stream = 12345)) == 400);
    CHECK(completed().status == 400); /* whoever waits for it does not wait for ever */
    CHECK(failed_status(POST(stream_create, 0, 77, .stream = 101)) == 201);
    CHECK(failed_status(POST(stream_create, 0, 1, .stream = 100)) == 1);
    /* A stream may go while its work is under way; the mark that came with the end still comes. */
    fake.delay_us = 20000;
    POST(fill, 0, 1, .stream = 100, .dst = 0, .elem = 1, .value = 3, .width = 16, .height = 1);
    seq = POST(stream_destroy, GV_RECORD_MARK, 1, .stream = 100);
    e = completed();
    CHECK(e.upto == seq && e.stream == 100);
    bye();
}

static void sticky_errors_are_told(void) {
    begin();
    attach();
    atomic_store(&fake.sticky, 700);
    POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    const struct gv_record *told = next(); /* in words, once */
    struct gv_evt_failed words;
    CHECK(told && told->op == GV_OP_FAILED && gv_evt_failed_decode(&words, told + 1, told->size - (uint32_t)sizeof *told) == 0);
    CHECK(words.status == 700 && words.sticky);
    CHECK_TEXT(words.text, "as the test wishes");
    gv_recv_consume(client);
    CHECK(completed().status == 700);
    POST(copy_out, GV_RECORD_MARK, 1, .stream = 100, .src = 0, .width = 100000, .height = 1, .depth = 1, .pitch = 1, .slice = 1, .tag = 3);
    const struct gv_record *r = next();
    struct gv_evt_data_inline e;
    CHECK(r && r->op == GV_OP_DATA_INLINE && gv_evt_data_inline_decode(&e, r + 1, r->size - (uint32_t)sizeof *r) == 0 && e.status == 700 &&
          e.data_size == 0);
    gv_recv_consume(client);
    CHECK(completed().status == 700);
    bye();
}

static void host_functions(void) {
    begin();
    attach();
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    const struct gv_record *r = next();
    CHECK(r && r->op == GV_OP_CALL_HOST); /* and not the fence: the stream waits */
    gv_recv_consume(client);
    gv_recv_wait(client, 50000000, 0);
    CHECK(gv_recv_peek(client) == NULL);
    POST(host_done, 0, 1, .tag = 9);
    CHECK(completed().status == 0);
    /* One that is never answered does not keep the session from ending. */
    POST(host_func, 0, 1, .stream = 100, .tag = 10);
    r = next();
    CHECK(r && r->op == GV_OP_CALL_HOST);
    gv_recv_consume(client);
    bye();
}

static void host_functions_hear_of_errors(void) {
    begin();
    attach();
    atomic_store(&fake.sticky, 719);
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    CHECK(failed_status(4) == 719);
    host_function_comes(9, 719);
    POST(host_done, 0, 1, .tag = 9);
    POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().status == 719);
    bye();
}

/* Functions of a stream that follow each other are called without an answer to the first, and nothing stands still for them; what else comes behind one
 * does, unless it has been answered by then. On a stream that is ordered with the legacy one the gate is there at once. */
static void gates_behind_host_functions(void) {
    begin();
    attach();
    POST(stream_create, 0, 1, .stream = 300, .flags = 0);
    POST(event_create, 0, 1, .event = 5);
    POST(event_record, 0, 1, .event = 5, .stream = 300);
    for (uint64_t i = 0; i < 3; i++) {
        POST(event_wait, 0, 1, .stream = 100, .event = 5);
        POST(host_func, 0, 1, .stream = 100, .tag = 9 + i);
        host_function_comes(9 + i, 0);
    }
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0 && fake.gates == 0);
    POST(host_done, 0, 1, .tag = 9);
    POST(host_done, 0, 1, .tag = 10);
    POST(fill, 0, 1, .stream = 100, .dst = 0, .elem = 1, .value = 7, .width = 4, .height = 1);
    uint64_t all = POST(event_wait, GV_RECORD_MARK, 1, .stream = 100, .event = 5);
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0 && fake.gates == 1);
    gv_recv_wait(client, 50000000, 0);
    CHECK(gv_recv_peek(client) == NULL);
    POST(host_done, 0, 1, .tag = 11);
    CHECK(completed().upto == all);
    POST(host_func, 0, 1, .stream = 100, .tag = 12);
    host_function_comes(12, 0);
    POST(host_done, 0, 1, .tag = 12);
    fake.refuse_gates = true; /* none is needed */
    all = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().upto == all);
    fake.refuse_gates = false;
    POST(host_func, 0, 1, .stream = 300, .tag = 13);
    host_function_comes(13, 0);
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0 && fake.gates == 1);
    POST(host_done, 0, 1, .tag = 13);
    all = POST(fence, GV_RECORD_MARK, 1, .stream = 300);
    CHECK(completed().upto == all);
    bye();
}

/* A host function that no stream can wait for, on one that needs a gate at once and on one that needs it when something follows: once it has been answered
 * nothing of it is left, and its stream can go. */
static void host_functions_without_a_gate(void) {
    begin();
    attach();
    uint64_t all = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().upto == all); /* what attach posts has been carried out */
    fake.refuse_gates = true;
    uint32_t alive = atomic_load(&worker->streams_alive);
    for (uint64_t i = 0; i < 2; i++) {
        POST(stream_create, 0, 1, .stream = 300 + i, .flags = (uint32_t)i);
        fake.delay_us = 100000;
        POST(fill, 0, 1, .stream = 300 + i, .dst = 0, .elem = 1, .value = 7, .width = 4, .height = 1);
        uint64_t waits = POST(host_func, 0, 1, .stream = 300 + i, .tag = 9 + i);
        if (i) waits = POST(fill, 0, 1, .stream = 300 + i, .dst = 0, .elem = 1, .value = 7, .width = 4, .height = 1);
        CHECK(failed_status(waits) == 2);
        host_function_comes(9 + i, 0);
        POST(host_done, 0, 1, .tag = 9 + i);
        uint64_t seq = POST(stream_destroy, GV_RECORD_MARK, 1, .stream = 300 + i);
        CHECK(completed().upto == seq);
    }
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; atomic_load(&worker->streams_alive) != alive && gv_now_ns() < until; usleep(1000)) continue;
    CHECK(atomic_load(&worker->streams_alive) == alive);
    fake.delay_us = 0;
    bye();
}

static void a_context_takes_its_things_along(void) {
    begin();
    attach();
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0); /* what attach() posted is done */
    int before = atomic_load(&fake.alive);
    POST(context_create, 0, 2, .device = 0);
    POST(stream_create, 0, 2, .stream = 200);
    POST(event_create, 0, 2, .event = 7);
    CHECK(answer(POST(module_load, GV_RECORD_SYNC, 2, .module = 40, .image = "good", .image_size = 4)) == 0);
    CHECK(atomic_load(&fake.alive) == before + 4); /* its legacy stream is one */
    POST(context_destroy, 0, 2);
    CHECK(failed_status(POST(stream_destroy, 0, 2, .stream = 200)) == 400);
    CHECK(failed_status(POST(event_destroy, 0, 2, .event = 7)) == 400);
    CHECK(failed_status(POST(module_unload, 0, 2, .module = 40)) == 400);
    CHECK(failed_status(POST(context_destroy, 0, 2)) == 201);
    CHECK(atomic_load(&fake.alive) == before + 1); /* the fake never ends a legacy stream */
    POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().status == 0);
    bye();
}

/* What the backend made and the client cannot have, because the handle is taken, is destroyed again; the object of that handle stays. */
static void what_cannot_be_kept_goes(void) {
    begin();
    attach();
    POST(event_create, 0, 1, .event = 5);
    CHECK(answer(POST(memory_create, GV_RECORD_SYNC, 0, .handle = 50, .device = 0, .size = 64)) == 0);
    int alive = atomic_load(&fake.alive);
    uint64_t used = fake.used;
    struct worker_figures before, after;
    worker_get_figures(worker, &before);
    CHECK(failed_status(POST(event_create, 0, 1, .event = 5)) == 1);
    CHECK(failed_status(POST(event_create, 0, 1, .event = 0)) == 1);
    CHECK(failed_status(POST(stream_create, 0, 1, .stream = 100)) == 1);
    CHECK(failed_status(POST(stream_create, 0, 1, .stream = 1)) == 1); /* the default stream's */
    CHECK(answer(POST(module_load, GV_RECORD_SYNC, 1, .module = 40, .image = "good", .image_size = 4)) == 0);
    CHECK(answer(POST(module_load, GV_RECORD_SYNC, 1, .module = 40, .image = "good", .image_size = 4)) == 999);
    CHECK(answer(POST(memory_create, GV_RECORD_SYNC, 0, .handle = 50, .device = 0, .size = 64)) == 1);
    CHECK(atomic_load(&fake.alive) == alive + 1 && fake.used == used); /* the module */
    worker_get_figures(worker, &after);
    CHECK(after.memory_used == before.memory_used);
    POST(event_destroy, 0, 1, .event = 5);
    POST(memory_destroy, 0, 0, .handle = 50);
    POST(module_unload, 0, 1, .module = 40);
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0);
    CHECK(atomic_load(&fake.alive) == alive - 1 && fake.used == used - 64);
    bye();
}

static void nobody_waits_for_what_cannot_be(void) {
    begin();
    attach();
    uint64_t seq = POST(copy_out, GV_RECORD_MARK, 1, .stream = 4711, .src = 0, .width = 8, .height = 1, .depth = 1, .tag = 3);
    CHECK(failed_status(seq) == 400);
    CHECK(completed().status == 400);
    const struct gv_record *r = next();
    struct gv_evt_data_inline e;
    CHECK(r && r->op == GV_OP_DATA_INLINE && gv_evt_data_inline_decode(&e, r + 1, r->size - (uint32_t)sizeof *r) == 0);
    CHECK(e.tag == 3 && e.status == 400 && e.data_size == 0);
    gv_recv_consume(client);
    seq = POST(copy_out, GV_RECORD_MARK, 1, .stream = 100, .src = 1 << 30, .width = 8, .height = 1, .depth = 1, .tag = 4);
    CHECK(failed_status(seq) == 1);
    r = next();
    CHECK(r && r->op == GV_OP_DATA_INLINE && gv_evt_data_inline_decode(&e, r + 1, r->size - (uint32_t)sizeof *r) == 0 && e.tag == 4 && e.status == 1);
    gv_recv_consume(client);
    CHECK(completed().status == 0);
    /* The payload of a copy to nowhere is taken all the same: the next one comes through. */
    uint8_t *data = calloc(1, 100000);
    seq = POST(copy_in, 0, 1, .stream = 4711, .dst = 0, .width = 100000, .height = 1, .depth = 1, .bulk = ++bulk_sent);
    CHECK(gv_bulk_send(client, 0, data, 100000));
    CHECK(failed_status(seq) == 400);
    free(data);
    round_trip(100000, 100, 100);
    bye();
}

const struct test_case stream_cases[] = {
    {"completions_are_one_number", completions_are_one_number},
    {"streams_and_events", streams_and_events},
    {"sticky_errors_are_told", sticky_errors_are_told},
    {"host_functions", host_functions},
    {"host_functions_hear_of_errors", host_functions_hear_of_errors},
    {"gates_behind_host_functions", gates_behind_host_functions},
    {"host_functions_without_a_gate", host_functions_without_a_gate},
    {"a_context_takes_its_things_along", a_context_takes_its_things_along},
    {"what_cannot_be_kept_goes", what_cannot_be_kept_goes},
    {"nobody_waits_for_what_cannot_be", nobody_waits_for_what_cannot_be},
    {0},
};
