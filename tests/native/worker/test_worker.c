/* The worker in this process, a scripted client at the other end of a real link: test_worker TRANSPORT [case...]. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "../../../native/wire/module_meta.h"
#include "../../../native/worker/state.h"
#include "../check.h"
#include "../transport/pair.h"
#include "fake_backend.h"
#include "gv_commands.h"

static const char *transport;
static struct gv_link *client;
static struct worker *worker;
static pthread_t thread;
static int result;
static char reason[512];
static const uint64_t rings[4] = {1 << 20, 1 << 20, 1 << 21, 1 << 21};

static void *run(void *arg) {
    (void)arg;
    result = worker_run(worker, reason);
    return NULL;
}

static uint64_t bulk_sent;

static void *add_bulk(void *arg) {
    CHECK(gv_link_add_channel(client, 0, *(int *)arg) == 0);
    return NULL;
}

static void begin(void) {
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
    } else {
        tcp_sockets(bulk);
        client = tcp_client(fds[0]);
    }
    CHECK(client);
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
    pthread_t adding;
    if (!shm) { /* the two ends of a channel greet each other */
        CHECK(pthread_create(&adding, NULL, add_bulk, &bulk[0]) == 0);
        CHECK(worker_add_channel(worker, 0, bulk[1]) == 0);
        pthread_join(adding, NULL);
    }
    CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
}

static void end(int expected) {
    pthread_join(thread, NULL);
    if (result != expected) fprintf(stderr, "ended with %d: %s\n", result, reason);
    CHECK(result == expected);
    worker_close(worker);
    gv_link_close(client);
}

/* ---- the client's side ------------------------------------------------------------------------------------------------- */

#define POST(name, flags_, ctx_, ...)                                                                           \
    ({                                                                                                          \
        struct gv_cmd_##name c_ = {__VA_ARGS__};                                                                \
        struct gv_record *r_ = gv_send_begin(client, (uint32_t)(sizeof *r_ + gv_cmd_##name##_size(&c_)), NULL); \
        CHECK(r_);                                                                                              \
        r_->op = OP_##name;                                                                                     \
        r_->flags = (flags_);                                                                                   \
        r_->ctx = (ctx_);                                                                                       \
        gv_cmd_##name##_encode(&c_, r_ + 1);                                                                    \
        uint64_t seq_ = gv_send_commit(client);                                                                 \
        gv_send_flush(client);                                                                                  \
        seq_;                                                                                                   \
    })

enum {
    OP_attach = GV_OP_ATTACH,
    OP_bye = GV_OP_BYE,
    OP_context_create = GV_OP_CONTEXT_CREATE,
    OP_context_destroy = GV_OP_CONTEXT_DESTROY,
    OP_context_limit = GV_OP_CONTEXT_LIMIT,
    OP_memory_grow = GV_OP_MEMORY_GROW,
    OP_memory_shrink = GV_OP_MEMORY_SHRINK,
    OP_memory_alloc = GV_OP_MEMORY_ALLOC,
    OP_memory_info = GV_OP_MEMORY_INFO,
    OP_memory_free = GV_OP_MEMORY_FREE,
    OP_memory_create = GV_OP_MEMORY_CREATE,
    OP_memory_destroy = GV_OP_MEMORY_DESTROY,
    OP_memory_map = GV_OP_MEMORY_MAP,
    OP_memory_unmap = GV_OP_MEMORY_UNMAP,
    OP_memory_access = GV_OP_MEMORY_ACCESS,
    OP_address_reserve = GV_OP_ADDRESS_RESERVE,
    OP_address_free = GV_OP_ADDRESS_FREE,
    OP_stream_create = GV_OP_STREAM_CREATE,
    OP_stream_destroy = GV_OP_STREAM_DESTROY,
    OP_fence = GV_OP_FENCE,
    OP_event_create = GV_OP_EVENT_CREATE,
    OP_event_record = GV_OP_EVENT_RECORD,
    OP_event_elapsed = GV_OP_EVENT_ELAPSED,
    OP_event_destroy = GV_OP_EVENT_DESTROY,
    OP_host_func = GV_OP_HOST_FUNC,
    OP_host_done = GV_OP_HOST_DONE,
    OP_copy_in = GV_OP_COPY_IN,
    OP_copy_out = GV_OP_COPY_OUT,
    OP_fill = GV_OP_FILL,
    OP_module_load = GV_OP_MODULE_LOAD,
    OP_link = GV_OP_LINK,
    OP_module_unload = GV_OP_MODULE_UNLOAD,
    OP_module_global = GV_OP_MODULE_GLOBAL,
    OP_launch = GV_OP_LAUNCH,
};

/* The next record, however long it takes: a case that hangs is ended by its alarm. */
static const struct gv_record *next(void) {
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

static uint8_t body[512 << 10];

/* The answer to `seq`, its body in `body`. */
static int answer(uint64_t seq) {
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
static uint32_t answer_size(void) { return *(uint32_t *)(body + sizeof body - 4); }

static struct gv_evt_completed completed(void) {
    const struct gv_record *r = next();
    (void)atomic_load(&fake.queued); /* the thread sanitizer does not see that shared memory orders anything */
    CHECK(r && r->op == GV_OP_COMPLETED);
    struct gv_evt_completed e;
    CHECK(gv_evt_completed_decode(&e, r + 1, r->size - (uint32_t)sizeof *r) == 0);
    gv_recv_consume(client);
    return e;
}

static int failed_status(uint64_t seq) {
    const struct gv_record *r = next();
    CHECK(r && r->op == GV_OP_FAILED);
    struct gv_evt_failed e;
    CHECK(gv_evt_failed_decode(&e, r + 1, r->size - (uint32_t)sizeof *r) == 0);
    CHECK(e.failed_seq == seq);
    int status = e.status;
    gv_recv_consume(client);
    return status;
}

static void attach_from(uint32_t rtt_us) {
    uint64_t windows[2] = {1ull << 44, 1ull << 40};
    CHECK(answer(POST(attach, GV_RECORD_SYNC, 0, .windows = windows, .windows_size = sizeof windows, .client_version = 1, .rtt_us = rtt_us)) == 0);
    struct gv_reply_attach reply;
    CHECK(gv_reply_attach_decode(&reply, body, answer_size()) == 0);
    CHECK(reply.driver_version == 13000 && reply.addresses == GV_ADDRESSES_REPLY && reply.devices_size == sizeof(struct gv_device_info));
    POST(context_create, 0, 1, .device = 0, .primary = 1);
    POST(stream_create, 0, 1, .stream = 100, .flags = 1);
}

static void attach(void) { attach_from(0); }

static void bye(void) {
    CHECK(answer(POST(bye, GV_RECORD_SYNC, 0)) == 0);
    end(0);
}

/* ---- cases --------------------------------------------------------------------------------------------------------------- */

static void goodbye(void) {
    begin();
    attach();
    bye();
}

static void memory(void) {
    begin();
    attach();
    CHECK(answer(POST(memory_alloc, GV_RECORD_SYNC, 1, .size = 4096)) == 0);
    CHECK(answer(POST(memory_alloc, GV_RECORD_SYNC, 1, .size = 1 << 30)) == 2);
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0);
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 99)) == 201);
    CHECK(answer(POST(context_limit, GV_RECORD_SYNC, 1, .limit = 2, .value = 100)) == 0);
    CHECK(answer(POST(context_limit, GV_RECORD_SYNC, 1, .limit = 3, .value = 100)) == 215);
    CHECK(answer(POST(context_limit, GV_RECORD_SYNC, 99, .limit = 2, .value = 100)) == 201);
    CHECK(failed_status(POST(memory_free, 0, 1, .address = 1 << 29)) == 1);
    bye();
}

static void virtual_memory(void) {
    begin();
    attach();
    struct worker_figures figures;
    CHECK(answer(POST(memory_create, GV_RECORD_SYNC, 0, .handle = 7, .size = 4096)) == 0);
    CHECK(answer(POST(memory_create, GV_RECORD_SYNC, 0, .handle = 7, .size = 4096)) == 1); /* a number is used once */
    CHECK(answer(POST(memory_create, GV_RECORD_SYNC, 0, .handle = 8, .size = 1 << 30)) == 2);
    CHECK(strstr((char *)body, "used up"));
    worker_get_figures(worker, &figures);
    CHECK(figures.memory_used == 4096);
    CHECK(answer(POST(address_reserve, GV_RECORD_SYNC, 0, .size = 4096, .alignment = 512)) == 0);
    struct gv_reply_address_reserve reply;
    CHECK(gv_reply_address_reserve_decode(&reply, body, answer_size()) == 0 && reply.address == (1ull << 40 | 512));
    CHECK(answer(POST(address_reserve, GV_RECORD_SYNC, 0)) == 1);
    CHECK(answer(POST(memory_access, GV_RECORD_SYNC, 0, .address = 5, .size = 4096, .rights = 3)) == 1);
    /* A mapping that fails is told of with the access, once. */
    POST(memory_map, 0, 0, .handle = 7, .address = 5, .size = 8192);
    CHECK(answer(POST(memory_access, GV_RECORD_SYNC, 0, .address = 5, .size = 8192, .rights = 3)) == 2);
    CHECK(strstr((char *)body, "no room"));
    CHECK(answer(POST(memory_access, GV_RECORD_SYNC, 0, .address = 5, .size = 8192, .rights = 3)) == 1);
    POST(memory_map, 0, 0, .handle = 99, .address = 5, .size = 4096);
    CHECK(answer(POST(memory_access, GV_RECORD_SYNC, 0, .address = 5, .size = 4096, .rights = 3)) == 400);
    CHECK(failed_status(POST(memory_unmap, 0, 0, .address = 5, .size = 4096)) == 1);
    POST(memory_map, 0, 0, .handle = 7, .address = 5, .size = 4096);
    CHECK(answer(POST(memory_access, GV_RECORD_SYNC, 0, .address = 5, .size = 4096, .rights = 3)) == 0);
    CHECK(failed_status(POST(memory_destroy, 0, 0, .handle = 7)) == 1); /* and it is still there */
    POST(memory_unmap, 0, 0, .address = 5, .size = 4096);
    POST(memory_destroy, 0, 0, .handle = 7);
    CHECK(failed_status(POST(memory_destroy, 0, 0, .handle = 7)) == 400);
    POST(address_free, 0, 0, .address = reply.address, .size = 4096);
    CHECK(failed_status(POST(address_free, 0, 0, .address = 5, .size = 4096)) == 1);
    CHECK(answer(POST(memory_create, GV_RECORD_SYNC, 0, .handle = 9, .size = 4096)) == 0); /* ends with the session */
    worker_get_figures(worker, &figures);
    CHECK(figures.memory_used == 4096 && !fake.mapped);
    bye();
}

/* A copy's payload, which may come in parts. */
static void receive(uint64_t tag, uint8_t *back, uint64_t size) {
    for (uint64_t at = 0; at < size;) {
        struct gv_bulk_header header;
        CHECK(gv_bulk_recv_header(client, &header) == 0 && header.tag == tag && header.size && header.size <= size - at);
        CHECK(gv_bulk_recv(client, back + at, header.size) == 0);
        at += header.size;
    }
}

static void round_trip(uint64_t size, uint64_t stream, uint64_t id) {
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

static void host_function_comes(uint64_t tag, int status) {
    const struct gv_record *r = next();
    struct gv_evt_call_host e;
    CHECK(r && r->op == GV_OP_CALL_HOST && gv_evt_call_host_decode(&e, r + 1, r->size - (uint32_t)sizeof *r) == 0);
    CHECK(e.tag == tag && e.status == status);
    gv_recv_consume(client);
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

static void links(void) {
    begin();
    attach();
    static uint64_t payload[80000];
    struct gv_link_option option = {.option = 7, .value = 2};
    struct gv_link_part parts[] = {{.type = 1, .n_options = 1, .name = "first", .options = &option, .data = "abc", .size = 3},
                                   {.type = 2, .name = "second", .data = "defghijkl", .size = 9}};
    uint64_t first = gv_link_part_size(&parts[0]), size = first + gv_link_part_size(&parts[1]);
    gv_link_part_put(payload, &parts[0]);
    gv_link_part_put((char *)payload + first, &parts[1]);
    struct gv_reply_link reply;
    CHECK(answer(POST(link, GV_RECORD_SYNC, 1, .n_inputs = 2, .options = &option, .options_size = sizeof option, .inputs = payload,
                      .inputs_size = (uint32_t)size)) == 0);
    CHECK(gv_reply_link_decode(&reply, body, answer_size()) == 0);
    CHECK(reply.result == 0 && reply.image_size == 12 && !memcmp(reply.image, "abcdefghijkl", 12));
    CHECK_TEXT(reply.info, "2 inputs, 1 options, the first with 1");
    /* What is wrong comes with its log, and nothing else is disturbed. */
    parts[1] = (struct gv_link_part){.type = 4, .name = "bad", .data = "x", .size = 1};
    size = first + gv_link_part_size(&parts[1]);
    gv_link_part_put((char *)payload + first, &parts[1]);
    CHECK(answer(POST(link, GV_RECORD_SYNC, 1, .n_inputs = 2, .inputs = payload, .inputs_size = (uint32_t)size)) == 0);
    CHECK(gv_reply_link_decode(&reply, body, answer_size()) == 0 && reply.result == 200 && reply.image_size == 0);
    CHECK_TEXT(reply.error, "'bad' of type 4 is bad");
    CHECK(answer(POST(link, GV_RECORD_SYNC, 9, .n_inputs = 2, .inputs = payload, .inputs_size = (uint32_t)size)) == 201);
    /* Large inputs and a large image go the bulk way. */
    parts[0] = (struct gv_link_part){.type = 1, .name = "large", .data = calloc(1, 300000), .size = 300000};
    uint64_t seq = POST(link, GV_RECORD_SYNC, 1, .n_inputs = 1, .bulk = ++bulk_sent);
    CHECK(sizeof payload >= gv_link_part_size(&parts[0]));
    gv_link_part_put(payload, &parts[0]);
    CHECK(gv_bulk_send(client, 0, payload, gv_link_part_size(&parts[0])));
    CHECK(answer(seq) == 0);
    CHECK(gv_reply_link_decode(&reply, body, answer_size()) == 0);
    CHECK(reply.image_tag >> 63 && reply.image_size == 0 && reply.image_bulk_size == 300000);
    struct gv_bulk_header header;
    CHECK(gv_bulk_recv_header(client, &header) == 0 && header.tag == reply.image_tag && header.size == 300000);
    CHECK(gv_bulk_recv(client, NULL, header.size) == 0);
    free((void *)parts[0].data);
    bye();
}

static void modules(void) {
    begin();
    attach();
    CHECK(answer(POST(module_load, GV_RECORD_SYNC, 1, .module = 30, .image = "evil", .image_size = 4)) == 200);
    CHECK_TEXT((char *)body, "no image");
    CHECK(answer(POST(module_load, GV_RECORD_SYNC, 1, .module = 30, .image = "good", .image_size = 4)) == 0);
    struct gv_reply_module_load reply;
    CHECK(gv_reply_module_load_decode(&reply, body, answer_size()) == 0);
    CHECK(reply.meta_tag == 0 && gv_meta_check(reply.meta, reply.meta_size) == 0);
    /* A large image and large metadata both go the bulk way. */
    fake.meta_padding = 1 << 20;
    static uint8_t image[300000];
    memset(image, 5, sizeof image);
    memcpy(image, "good", 4);
    uint64_t seq = POST(module_load, GV_RECORD_SYNC, 1, .module = 31, .bulk = ++bulk_sent);
    CHECK(gv_bulk_send(client, 0, image, sizeof image));
    CHECK(answer(seq) == 0);
    CHECK(gv_reply_module_load_decode(&reply, body, answer_size()) == 0);
    CHECK(reply.meta_tag >> 63 && reply.meta_size == 0);
    CHECK(fake.image_sum == 5 * (sizeof image - 4) + 'g' + 'o' + 'o' + 'd');
    struct gv_bulk_header header;
    CHECK(gv_bulk_recv_header(client, &header) == 0 && header.tag == reply.meta_tag && header.size == reply.meta_bulk_size);
    CHECK(gv_bulk_recv(client, NULL, header.size) == 0);
    CHECK(answer(POST(module_global, GV_RECORD_SYNC, 1, .module = 30, .name = "known")) == 0);
    CHECK(answer(POST(module_global, GV_RECORD_SYNC, 1, .module = 30, .name = "unknown")) == 500);
    uint64_t right = 42, wrong = 43;
    for (int i = 0; i < 5; i++)
        POST(launch, 0, 1, .stream = 100, .module = 30, .grid = {1, 1, 1}, .block = {1, 1, 1}, .params = &right, .params_size = 8);
    CHECK(failed_status(POST(launch, 0, 1, .stream = 100, .module = 30, .params = &wrong, .params_size = 8)) == 1);
    CHECK(failed_status(POST(launch, 0, 1, .stream = 100, .module = 30, .kernel = 1, .params = &right, .params_size = 8)) == 400);
    CHECK(failed_status(POST(launch, 0, 1, .stream = 100, .module = 99, .params = &right, .params_size = 8)) == 400);
    POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().status == 0);
    CHECK(atomic_load(&fake.ran) == 5);
    POST(module_unload, 0, 1, .module = 30);
    CHECK(failed_status(POST(module_unload, 0, 1, .module = 30)) == 400);
    CHECK(answer(POST(bye, GV_RECORD_SYNC, 0)) == 0);
    struct gv_reply_bye goodbye_;
    CHECK(gv_reply_bye_decode(&goodbye_, body, answer_size()) == 0 && goodbye_.launches == 5);
    end(0);
}

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

/* ---- when the executor is held up -------------------------------------------------------------------------------------- */

/* The answer to a host function is behind more commands than the worker takes at a time. All of them wait for it. */
static void flood_behind_a_host_function(void) {
    begin();
    attach();
    POST(host_func, 0, 1, .stream = 100, .tag = 9);
    host_function_comes(9, 0);
    enum { COUNT = 40000 };
    for (int i = 0; i < COUNT; i++) POST(fill, 0, 1, .stream = 100, .dst = (uint64_t)i, .elem = 1, .value = 7, .width = 1, .height = 1);
    POST(host_done, 0, 1, .tag = 9);
    uint64_t seq = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().upto == seq);
    for (int i = 0; i < COUNT; i++) CHECK(fake.memory[i] == 7);
    CHECK(atomic_load(&fake.most_queued) > 10000 && atomic_load(&fake.most_queued) < 17500);
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

/* A host function that no stream can wait for, behind work that is done and behind work that is not: once it has been answered nothing of it is left, and
 * its stream can go. */
static void host_functions_without_a_gate(void) {
    begin();
    attach();
    uint64_t all = POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().upto == all); /* what attach posts has been carried out */
    fake.refuse_gates = true;
    uint32_t alive = atomic_load(&worker->streams_alive);
    for (uint64_t i = 0; i < 2; i++) {
        POST(stream_create, 0, 1, .stream = 300 + i, .flags = 1);
        fake.delay_us = i ? 100000 : 0;
        POST(fill, 0, 1, .stream = 300 + i, .dst = 0, .elem = 1, .value = 7, .width = 4, .height = 1);
        CHECK(failed_status(POST(host_func, 0, 1, .stream = 300 + i, .tag = 9 + i)) == 2);
        host_function_comes(9 + i, 2);
        POST(host_done, 0, 1, .tag = 9 + i);
        uint64_t seq = POST(stream_destroy, GV_RECORD_MARK, 1, .stream = 300 + i);
        CHECK(completed().upto == seq);
    }
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; atomic_load(&worker->streams_alive) != alive && gv_now_ns() < until; usleep(1000)) continue;
    CHECK(atomic_load(&worker->streams_alive) == alive);
    fake.delay_us = 0;
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

/* ---- more ---------------------------------------------------------------------------------------------------------------- */

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

static void fixed_addresses(void) {
    begin();
    fake.fixed = 5 << 20;
    uint64_t windows[4] = {1ull << 44, 1ull << 40, 1ull << 45, 1ull << 40};
    CHECK(answer(POST(attach, GV_RECORD_SYNC, 0, .windows = windows, .windows_size = sizeof windows, .client_version = 1)) == 0);
    struct gv_reply_attach reply;
    CHECK(gv_reply_attach_decode(&reply, body, answer_size()) == 0);
    CHECK(reply.addresses == GV_ADDRESSES_FIXED && reply.window_base == 1ull << 45 && reply.window_size == 1ull << 40);
    CHECK(reply.initial == 4 << 20); /* as much of the usual advance as the device has */
    POST(context_create, 0, 1, .device = 0, .primary = 1);
    CHECK(answer(POST(memory_grow, GV_RECORD_SYNC, 1, .address = (1ull << 45) + (4 << 20), .size = 2 << 20)) == 2);
    CHECK_TEXT((char *)body, "used up");
    CHECK(answer(POST(memory_grow, GV_RECORD_SYNC, 1, .address = (1ull << 45) + (4 << 20), .size = 1 << 20)) == 0);
    struct worker_figures figures;
    worker_get_figures(worker, &figures);
    CHECK(figures.memory_used == 5 << 20);
    POST(memory_shrink, 0, 1, .address = 1ull << 45, .size = 2 << 20);
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0);
    worker_get_figures(worker, &figures);
    CHECK(figures.memory_used == 3 << 20 && fake.backed == 3 << 20);
    bye();
}

static void ends_badly(void (*what)(void), int expected) {
    begin();
    attach();
    what();
    end(expected);
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

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"goodbye", goodbye},
                                             {"memory", memory},
                                             {"virtual_memory", virtual_memory},
                                             {"copies", copies},
                                             {"sent_in_place", sent_in_place},
                                             {"payloads_before_their_commands", payloads_before_their_commands},
                                             {"past_a_stream_that_stands", past_a_stream_that_stands},
                                             {"late_payloads", late_payloads},
                                             {"completions_are_one_number", completions_are_one_number},
                                             {"streams_and_events", streams_and_events},
                                             {"sticky_errors_are_told", sticky_errors_are_told},
                                             {"host_functions", host_functions},
                                             {"modules", modules},
                                             {"links", links},
                                             {"floods", floods},
                                             {"flood_behind_a_host_function", flood_behind_a_host_function},
                                             {"copies_behind_a_host_function", copies_behind_a_host_function},
                                             {"answer_when_there_is_no_room", answer_when_there_is_no_room},
                                             {"free_behind_a_host_function", free_behind_a_host_function},
                                             {"link_behind_copies_that_wait", link_behind_copies_that_wait},
                                             {"free_behind_a_copy_in_place", free_behind_a_copy_in_place},
                                             {"host_functions_hear_of_errors", host_functions_hear_of_errors},
                                             {"host_functions_without_a_gate", host_functions_without_a_gate},
                                             {"a_context_takes_its_things_along", a_context_takes_its_things_along},
                                             {"what_cannot_be_kept_goes", what_cannot_be_kept_goes},
                                             {"nobody_waits_for_what_cannot_be", nobody_waits_for_what_cannot_be},
                                             {"fixed_addresses", fixed_addresses},
                                             {"malformed", malformed},
                                             {"client_gone", client_gone},
                                             {"copies_end_after_the_sender", copies_end_after_the_sender},
                                             {"a_refused_copy_ends_early", a_refused_copy_ends_early},
                                             {"refuses_to_open", refuses_to_open}};
    if (argc < 2) return 2;
    transport = argv[1];
    return run_cases(cases, sizeof cases / sizeof *cases, argc - 1, argv + 1, 240);
}
