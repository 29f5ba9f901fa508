/* Copies by way of device memory that only the link's devices reach, over verbs: in place, and by staging memory where something is missing for that. */
#include <stdlib.h>
#include <unistd.h>

#include "scripted_client.h"

#define SIZE (3u << 20)
#define AT 8192u /* on the device */

static uint8_t *data, *back;

static void open_session(void) {
    begin();
    attach();
    data = malloc(SIZE);
    back = calloc(1, SIZE);
    for (uint32_t i = 0; i < SIZE; i++) data[i] = (uint8_t)(i * 7 + (i >> 16));
    gv_link_offer_memory(client, data, SIZE);
    fake.device_views = true;
}

static void close_session(void) {
    CHECK(atomic_load(&fake.viewed) == 0);
    bye();
    free(data);
    free(back);
}

static uint64_t post_in(uint64_t size, uint32_t flags) {
    return POST(copy_in, flags, 1, .stream = 100, .dst = AT, .width = size, .height = 1, .depth = 1, .pitch = size, .slice = size,
                .bulk = ++bulk_sent);
}

static uint64_t post_out(uint64_t size) {
    return POST(copy_out, GV_RECORD_MARK, 1, .stream = 100, .src = AT, .width = size, .height = 1, .depth = 1, .pitch = size, .slice = size,
                .tag = 5);
}

static void there_and_back(uint64_t size) {
    memset(fake.memory, 0, sizeof fake.memory);
    uint64_t seq = post_in(size, GV_RECORD_MARK);
    CHECK(gv_bulk_send(client, 0, data, size) == bulk_sent);
    CHECK(completed().upto == seq && memcmp(fake.memory + AT, data, size) == 0 && fake.memory[AT + size] == 0 && fake.memory[AT - 1] == 0);
    seq = post_out(size);
    receive(5, back, size);
    CHECK(completed().upto == seq && memcmp(back, data, size) == 0);
}

static void in_place(void) {
    open_session();
    for (int i = 0; i < 3; i++) there_and_back(SIZE - (uint64_t)i * 4097);
    CHECK(fake.views_given == 6 && fake.written == 3);
    struct gv_link_counts counts;
    gv_link_get_counts(client, &counts);
    CHECK(counts.bulk_pulled >= 3ull * SIZE - 3 * 4097); /* what the device has sent */
    close_session();
}

/* Until the worker has all bytes of a payload of SIZE, whatever it does with them. */
static void await_bytes(void) {
    struct gv_link_counts counts = {0};
    for (; counts.bulk_pulled < SIZE; usleep(1000)) gv_link_get_counts(worker->link, &counts);
}

/* Bytes that come before the stream has reached their copy are carried there. */
static void before_its_turn(void) {
    open_session();
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    host_function_comes(9, 0);
    uint64_t seq = post_in(SIZE, GV_RECORD_MARK);
    CHECK(gv_bulk_send(client, 0, data, SIZE) == bulk_sent);
    await_bytes();
    CHECK(fake.memory[AT + 1] == 0 && atomic_load(&fake.moved) == 0);
    POST(host_done, 0, 1, .tag = 9);
    CHECK(completed().upto == seq && memcmp(fake.memory + AT, data, SIZE) == 0);
    CHECK(atomic_load(&fake.moved) > 0 && fake.views_given == 1);
    close_session();
}

static void by_staging_memory(void) {
    open_session();
    there_and_back(128 << 10); /* too little to be registered */
    CHECK(fake.views_given == 0);
    fake.refuse_views = true;
    there_and_back(SIZE);
    CHECK(fake.views_given == 0);
    fake.refuse_views = false;
    unsetenv("SOFTVERBS_DMABUF"); /* the link's devices do not take it */
    there_and_back(SIZE);
    setenv("SOFTVERBS_DMABUF", "1", 1);
    CHECK(fake.views_given == 2 && fake.written == 0 && atomic_load(&fake.moved) == 0);
    close_session();
}

/* A device to which nothing can be carried: the session ends, and says why. */
static void not_carried(void) {
    open_session();
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    host_function_comes(9, 0);
    post_in(SIZE, 0);
    CHECK(gv_bulk_send(client, 0, data, SIZE) == bulk_sent);
    await_bytes();
    fake.refuse_moves = true;
    POST(host_done, 0, 1, .tag = 9);
    gv_send_flush(client);
    end(1);
    CHECK_TEXT(end_reason(), "a payload could not be carried to the device");
    free(data);
    free(back);
}

const struct test_case device_view_cases[] = {
    {"device_view_in_place", in_place},
    {"device_view_before_its_turn", before_its_turn},
    {"device_view_by_staging_memory", by_staging_memory},
    {"device_view_not_carried", not_carried},
    {0},
};
