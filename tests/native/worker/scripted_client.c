#include "scripted_client.h"

const char *transport;
struct gv_link *client;
struct worker *worker;
pthread_t thread;
static int result;
static char reason[512];
static const uint64_t rings[4] = {1 << 20, 1 << 20, 1 << 21, 1 << 21};

static void *run(void *arg) {
    (void)arg;
    result = worker_run(worker, reason);
    return NULL;
}

uint64_t bulk_sent;
void (*on_turn)(void *arg, uint32_t device, uint32_t what, uint32_t number);

static void *add_bulk(void *arg) {
    CHECK(gv_link_add_channel(client, 0, *(int *)arg) == 0);
    return NULL;
}

bool verbs(void) { return !strcmp(transport, "verbs"); }

void begin(void) {
    bulk_sent = 0;
    memset(&fake, 0, sizeof fake);
    int fds[2], bulk[2], memfd = -1;
    uint32_t device = 0;
    tcp_sockets(fds);
    bool shm = !strcmp(transport, "shm");
    if (shm) {
        char why[GV_DEATH_TEXT];
        memfd = make_memfd(rings);
        client = gv_shm_new(fds[0], dup(memfd), rings, true, why);
    } else if (!verbs()) {
        tcp_sockets(bulk);
        client = tcp_client(fds[0]);
    }
    struct worker_config config = {.struct_size = sizeof config,
                                   .n_devices = 1,
                                   .backend = "soft",
                                   .devices = &device,
                                   .memory_usage_fd = -1,
                                   .fd = fds[1],
                                   .transport = transport,
                                   .descriptors = &memfd,
                                   .n_descriptors = shm,
                                   .blob = (const uint8_t *)rings,
                                   .blob_size = sizeof rings,
                                   .session = 7,
                                   .server_name = "test"};
    worker = worker_open(&config, reason);
    CHECK(worker);
    if (verbs()) client = gv_transport_named("verbs")->connect(&(struct gv_endpoint){.fd = fds[0]}, reason);
    CHECK(client);
    pthread_t adding;
    if (!shm && !verbs()) { /* the two ends of a channel greet each other */
        CHECK(pthread_create(&adding, NULL, add_bulk, &bulk[0]) == 0);
        CHECK(worker_add_channel(worker, 0, bulk[1]) == 0);
        pthread_join(adding, NULL);
    }
    if (on_turn) worker_watch_turns(worker, on_turn, NULL);
    CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
}

const char *end_reason(void) { return reason; }

void end(int expected) {
    pthread_join(thread, NULL);
    if (result != expected) fprintf(stderr, "ended with %d: %s\n", result, reason);
    CHECK(result == expected);
    worker_close(worker);
    gv_link_close(client);
}

const struct gv_record *next(void) {
    for (;;) {
        const struct gv_record *r = gv_recv_peek(client);
        if (r) return r;
        if (gv_link_dead(client)) {
            fprintf(stderr, "the link died: %s\n", gv_link_death(client));
            return NULL;
        }
        gv_recv_wait(client, 20000000, 1000);
    }
}

uint8_t body[512 << 10];

int answer(uint64_t seq) {
    const struct gv_record *r = next();
    CHECK(r && r->op == GV_OP_REPLY);
    struct gv_evt_reply reply;
    CHECK(gv_evt_reply_decode(&reply, r + 1, r->size - (uint32_t)sizeof *r) == 0);
    CHECK(reply.answers == seq);
    if (reply.body_size) memcpy(body, reply.body, reply.body_size);
    int status = reply.status;
    if (status && reply.text) snprintf((char *)body, sizeof body, "%s", reply.text);
    *(uint32_t *)(body + sizeof body - 4) = reply.body_size;
    gv_recv_consume(client);
    return status;
}
uint32_t answer_size(void) { return *(uint32_t *)(body + sizeof body - 4); }

struct gv_evt_completed completed(void) {
    const struct gv_record *r = next();
    (void)atomic_load(&fake.queued); /* the thread sanitizer does not see that shared memory orders anything */
    CHECK(r && r->op == GV_OP_COMPLETED);
    struct gv_evt_completed e;
    CHECK(gv_evt_completed_decode(&e, r + 1, r->size - (uint32_t)sizeof *r) == 0);
    gv_recv_consume(client);
    return e;
}

int failed_status(uint64_t seq) {
    const struct gv_record *r = next();
    CHECK(r && r->op == GV_OP_FAILED);
    struct gv_evt_failed e;
    CHECK(gv_evt_failed_decode(&e, r + 1, r->size - (uint32_t)sizeof *r) == 0);
    CHECK(e.failed_seq == seq);
    int status = e.status;
    gv_recv_consume(client);
    return status;
}

void attach_from(uint32_t rtt_us) {
    uint64_t windows[2] = {1ull << 44, 1ull << 40};
    CHECK(answer(POST(attach, GV_RECORD_SYNC, 0, .windows = windows, .windows_size = sizeof windows, .client_version = 1, .rtt_us = rtt_us)) == 0);
    struct gv_reply_attach reply;
    CHECK(gv_reply_attach_decode(&reply, body, answer_size()) == 0);
    CHECK(reply.driver_version == 13000 && reply.addresses == GV_ADDRESSES_REPLY && reply.devices_size == sizeof(struct gv_device_info));
    POST(context_create, 0, 1, .device = 0, .primary = 1);
    POST(stream_create, 0, 1, .stream = 100, .flags = 1);
}

void attach(void) { attach_from(0); }

void bye(void) {
    CHECK(answer(POST(bye, GV_RECORD_SYNC, 0)) == 0);
    end(0);
}

void ends_badly(void (*what)(void), int expected) {
    begin();
    attach();
    what();
    end(expected);
}

void host_function_comes(uint64_t tag, int status) {
    const struct gv_record *r = next();
    struct gv_evt_call_host e;
    CHECK(r && r->op == GV_OP_CALL_HOST && gv_evt_call_host_decode(&e, r + 1, r->size - (uint32_t)sizeof *r) == 0);
    CHECK(e.tag == tag && e.status == status);
    gv_recv_consume(client);
}

void receive(uint64_t tag, uint8_t *back, uint64_t size) {
    for (uint64_t at = 0; at < size;) {
        struct gv_bulk_header header;
        CHECK(gv_bulk_recv_header(client, &header) == 0 && header.tag == tag && header.size && header.size <= size - at);
        CHECK(gv_bulk_recv(client, back + at, header.size) == 0);
        at += header.size;
    }
}

void round_trip(uint64_t size, uint64_t stream, uint64_t id) {
    uint8_t *data = malloc(size), *back = calloc(1, size);
    static uint64_t tag = 10;
    for (uint64_t i = 0; i < size; i++) data[i] = (uint8_t)(i * 7 + size);
    if (size <= GV_INLINE_MAX) {
        POST(copy_in, 0, 1, .stream = stream, .dst = 64, .width = size, .height = 1, .depth = 1, .pitch = size, .slice = size, .data = data,
             .data_size = (uint32_t)size);
    } else {
        POST(copy_in, 0, 1, .stream = stream, .dst = 64, .width = size, .height = 1, .depth = 1, .pitch = size, .slice = size, .bulk = ++bulk_sent);
        CHECK(gv_bulk_send(client, 0, data, size));
    }
    tag++;
    uint64_t seq = POST(copy_out, GV_RECORD_MARK, 1, .stream = stream, .src = 64, .width = size, .height = 1, .depth = 1, .pitch = size,
                        .slice = size, .tag = tag);
    if (size <= GV_INLINE_MAX) {
        const struct gv_record *r = next();
        CHECK(r && r->op == GV_OP_DATA_INLINE);
        struct gv_evt_data_inline e;
        CHECK(gv_evt_data_inline_decode(&e, r + 1, r->size - (uint32_t)sizeof *r) == 0);
        CHECK(e.tag == tag && e.status == 0 && e.data_size == size);
        memcpy(back, e.data, size);
        gv_recv_consume(client);
    } else {
        receive(tag, back, size);
    }
    struct gv_evt_completed e = completed();
    CHECK(e.upto == seq && e.stream == id && e.status == 0);
    if (size > GV_INLINE_MAX) CHECK(e.bulk >= 1);
    CHECK(!memcmp(data, back, size));
    free(data);
    free(back);
}
