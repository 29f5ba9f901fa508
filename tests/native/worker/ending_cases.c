/* How sessions end: as agreed, by what no client may say, by a client that is gone; and a worker that does not open. */
#include "scripted_client.h"

static void goodbye(void) {
    begin();
    attach();
    bye();
}

static void send_unknown(void) {
    struct gv_record *r = gv_send_begin(client, 64, NULL);
    r->op = 999;
    r->flags = 0;
    gv_send_commit(client);
    gv_send_flush(client);
}
static void send_short(void) {
    struct gv_record *r = gv_send_begin(client, sizeof *r + 8, NULL);
    r->op = GV_OP_LAUNCH;
    r->flags = 0;
    memset(r + 1, 0xff, 8);
    gv_send_commit(client);
    gv_send_flush(client);
}
static void send_wrong_size(void) {
    POST(copy_in, 0, 1, .stream = 100, .dst = 0, .width = 100, .height = 1, .depth = 1, .data = "abc", .data_size = 3);
}
static void send_overflow(void) { POST(copy_out, 0, 1, .stream = 100, .width = 1ull << 40, .height = 1ull << 40, .depth = 8, .tag = 1); }
static void attach_twice(void) { POST(attach, GV_RECORD_SYNC, 0); }
/* Inputs that are not what they say. */
static uint64_t lying[16] = {(1ull << 32) | 1, 8, 1ull << 60, 0};
static void send_lying_link(void) { POST(link, GV_RECORD_SYNC, 1, .n_inputs = 1, .inputs = lying, .inputs_size = sizeof lying); }
static void send_many_links(void) { POST(link, GV_RECORD_SYNC, 1, .n_inputs = 0xffffffffu, .inputs = lying, .inputs_size = sizeof lying); }
static void send_stray_done(void) { POST(host_done, 0, 1, .tag = 4711); }
static void send_late_image(void) { POST(module_load, GV_RECORD_SYNC, 1, .module = 3, .bulk = GV_BULK_LATE | 7); }
static void malformed(void) {
    ends_badly(send_unknown, 2);
    ends_badly(send_short, 2);
    ends_badly(send_wrong_size, 2);
    ends_badly(send_overflow, 2);
    ends_badly(attach_twice, 2);
    ends_badly(send_stray_done, 2);
    ends_badly(send_lying_link, 2);
    ends_badly(send_many_links, 2);
    ends_badly(send_late_image, 2);
    begin();
    POST(fence, 0, 1, .stream = 100); /* before attach */
    end(2);
}

static void gone(void) { gv_link_kill(client, "the test ends it"); }
static void gone_in_a_payload(void) {
    POST(copy_in, 0, 1, .stream = 100, .dst = 0, .width = 1 << 20, .height = 1, .depth = 1, .pitch = 1 << 20, .slice = 1 << 20, .bulk = 1);
    usleep(30000);
    gone();
}
static void gone_in_an_image(void) {
    POST(module_load, GV_RECORD_SYNC, 1, .module = 3, .bulk = 1);
    usleep(30000);
    gone();
}
static void gone_in_a_host_function(void) {
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    usleep(30000);
    gone();
}
static void gone_while_busy(void) {
    fake.delay_us = 300;
    for (int i = 0; i < 3000; i++) POST(fill, 0, 1, .stream = 100, .dst = 0, .elem = 1, .width = 1, .height = 1);
    gone();
}
static void wrong_payload(void) {
    POST(copy_in, 0, 1, .stream = 100, .dst = 0, .width = 1 << 20, .height = 1, .depth = 1, .pitch = 1 << 20, .slice = 1 << 20, .bulk = 1);
    gv_bulk_send(client, 0, "short", 5);
}
/* The reader has no room for a payload whose command can only come behind the image that the executor waits for, which comes behind the payload. */
static void *send_too_early(void *data) {
    gv_bulk_send(client, GV_BULK_LATE | 7, data, 6 << 20);
    return NULL;
}
static void payloads_that_would_deadlock(void) {
    for (int image_first = 0; image_first < 2; image_first++) {
        begin();
        attach();
        pthread_t sender;
        void *data = calloc(6, 1 << 20);
        if (image_first) POST(module_load, GV_RECORD_SYNC, 1, .module = 3, .bulk = 1);
        CHECK(pthread_create(&sender, NULL, send_too_early, data) == 0);
        usleep(50000); /* until the reader waits, or the test proves less */
        if (!image_first) POST(module_load, GV_RECORD_SYNC, 1, .module = 3, .bulk = 1);
        pthread_join(sender, NULL);
        end(1);
        free(data);
    }
}
/* The client goes in the middle of a payload that came before its command, which is carried out when nobody receives any more. */
static void gone_in_an_early_payload(void) {
    begin();
    attach();
    fake.views = true;
    atomic_store(&fake.hold_views, true);
    enum { SIZE = 2 << 20 };
    uint8_t *data = calloc(1, SIZE);
    CHECK(gv_bulk_open(client, 0, SIZE) == 1 && gv_bulk_part(client, data, SIZE / 2, NULL, NULL) == 0);
    usleep(50000); /* until the worker has it, or the test proves less */
    POST(copy_in, 0, 1, .stream = 100, .dst = 0, .width = SIZE, .height = 1, .depth = 1, .pitch = SIZE, .slice = SIZE, .bulk = 1);
    while (!atomic_load(&fake.held_views)) usleep(1000);
    gone();
    usleep(100000); /* as above: until the worker's reader has ended */
    atomic_store(&fake.hold_views, false);
    end(1);
    free(data);
}
static void client_gone(void) {
    gone_in_an_early_payload();
    payloads_that_would_deadlock();
    ends_badly(gone, 1);
    ends_badly(gone_in_a_payload, 1);
    ends_badly(gone_in_a_host_function, 1);
    ends_badly(gone_while_busy, 1);
    ends_badly(wrong_payload, 1);
    ends_badly(gone_in_an_image, 1);
}

static void refuses_to_open(void) {
    int fds[2];
    tcp_sockets(fds);
    memset(&fake, 0, sizeof fake);
    fake.refuse_open = true;
    uint32_t device = 0;
    char err[512];
    struct worker_config config = {
        .struct_size = sizeof config, .n_devices = 1, .backend = "soft", .devices = &device, .memory_usage_fd = -1, .fd = fds[1], .transport = "tcp"};
    CHECK(worker_open(&config, err) == NULL);
    CHECK_TEXT(err, "does not want to");
    config.struct_size--;
    CHECK(worker_open(&config, err) == NULL);
    CHECK_TEXT(err, "another version");
    config.struct_size++;
    config.backend = "vulkan";
    config.fd = dup(fds[0]);
    CHECK(worker_open(&config, err) == NULL);
    CHECK_TEXT(err, "no backend");
    close(fds[0]);
}

const struct test_case ending_cases[] = {
    {"goodbye", goodbye}, {"malformed", malformed}, {"client_gone", client_gone}, {"refuses_to_open", refuses_to_open}, {0},
};
