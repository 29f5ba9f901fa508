/* A client with a token that takes what it can: hostile_client tcp://HOST:PORT LINK TOKEN_ID SECRET MEMORY ATTACK. Speaks to the real worker without the
 * client library. Says "attached", waits for a line, attacks for at most SECONDS, and says what came of it: "over: N" (the session was ended) or
 * "stands: N", N the attack's own count. Then waits for the end of its input, so that the worker can be looked at. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gv_commands.h"
#include "native/transport/transport.h"
#include "native/wire/clock.h"
#include "native/wire/handshake.h"
#include "native/wire/module_meta.h"

#define SECONDS 60
#define MIB (1ull << 20)

static struct gv_link *server_link;
static atomic_bool reading = true; /* what the worker sends */
static _Atomic uint64_t replies, failures, out_of_memory;
static _Atomic uint32_t last_value; /* the first word of the last inline copy */
static _Atomic uint64_t copies_in;
static int64_t until;

#define POST(name, op_, flags_, ctx_, ...)                                                                           \
    ({                                                                                                               \
        struct gv_cmd_##name c_ = {__VA_ARGS__};                                                                     \
        struct gv_record *r_ = gv_send_begin(server_link, (uint32_t)(sizeof *r_ + gv_cmd_##name##_size(&c_)), NULL); \
        if (r_) {                                                                                                    \
            r_->op = (op_);                                                                                          \
            r_->flags = (flags_);                                                                                    \
            r_->ctx = (ctx_);                                                                                        \
            gv_cmd_##name##_encode(&c_, r_ + 1);                                                                     \
            gv_send_commit(server_link);                                                                             \
        }                                                                                                            \
    })

static bool on(void) { return !gv_link_dead(server_link) && gv_now_ns() < until; }

static void *read_events(void *arg) {
    (void)arg;
    while (!gv_link_dead(server_link)) {
        const struct gv_record *r = atomic_load(&reading) ? gv_recv_peek(server_link) : NULL;
        if (!r) {
            if (atomic_load(&reading))
                gv_recv_wait(server_link, 20000000, 1000);
            else
                usleep(1000);
            continue;
        }
        uint32_t size = r->size - (uint32_t)sizeof *r;
        struct gv_evt_reply reply;
        struct gv_evt_failed failed;
        struct gv_evt_data_inline data;
        if (r->op == GV_OP_REPLY && !gv_evt_reply_decode(&reply, r + 1, size)) {
            if (reply.status == 2) atomic_fetch_add(&out_of_memory, 1);
            atomic_fetch_add(&replies, 1);
        } else if (r->op == GV_OP_FAILED && !gv_evt_failed_decode(&failed, r + 1, size)) {
            if (failed.status == 2) atomic_fetch_add(&out_of_memory, 1);
            atomic_fetch_add(&failures, 1);
        } else if (r->op == GV_OP_DATA_INLINE && !gv_evt_data_inline_decode(&data, r + 1, size)) {
            if (data.data_size >= 4) memcpy(&last_value, data.data, 4);
            atomic_fetch_add(&copies_in, 1);
        }
        gv_recv_consume(server_link);
    }
    return NULL;
}

static void *read_payloads(void *arg) {
    struct gv_bulk_header header;
    (void)arg;
    while (gv_bulk_recv_header(server_link, &header) == 0 && gv_bulk_recv(server_link, NULL, header.size) == 0) continue;
    return NULL;
}

static void await(_Atomic uint64_t *count, uint64_t n) {
    gv_send_flush(server_link);
    while (atomic_load(count) < n && !gv_link_dead(server_link)) usleep(500);
}

/* The worker has come to here. */
static void settle(void) {
    uint64_t n = atomic_load(&replies);
    POST(memory_info, GV_OP_MEMORY_INFO, GV_RECORD_SYNC, 1);
    gv_send_flush(server_link);
    /* On a machine that is busy with other things that takes long; who does not read waits in vain. */
    const int most = atomic_load(&reading) ? 100000 : 6000;
    for (int i = 0; i < most && atomic_load(&replies) == n && !gv_link_dead(server_link); i++) usleep(1000);
}

/* ---- attacks ------------------------------------------------------------------------------------------------------------ */

/* One plane, read as often as the copy is deep. */
static uint64_t overlap(void) {
    uint64_t n = 0;
    for (; n < 16 && on(); n++)
        POST(copy_out, GV_OP_COPY_OUT, 0, 1, .stream = 100, .src = 0, .width = 65536, .height = 1, .depth = 4096, .pitch = 65536, .slice = 0,
             .tag = 7);
    settle();
    return n;
}

static uint64_t huge_copy(void) {
    POST(copy_out, GV_OP_COPY_OUT, 0, 1, .stream = 100, .src = 0, .width = 1, .height = 1ull << 32, .depth = 1, .pitch = 1, .slice = 1, .tag = 7);
    settle();
    return 1;
}

static uint64_t contexts(void) {
    uint64_t n = 0;
    for (; n < 5000 && on(); n++) POST(context_create, GV_OP_CONTEXT_CREATE, 0, (uint32_t)n + 2, .device = 0);
    settle();
    return n - atomic_load(&out_of_memory);
}

static uint64_t events(void) {
    uint64_t n = 0;
    for (; n < 600000 && on(); n++) POST(event_create, GV_OP_EVENT_CREATE, 0, 1, .event = n + 5);
    settle();
    return n - atomic_load(&out_of_memory);
}

/* A host function that nobody answers on each of many streams. */
static uint64_t streams(bool destroy) {
    uint64_t n = 0;
    for (; n < 5000 && on(); n++) {
        POST(stream_create, GV_OP_STREAM_CREATE, 0, 1, .stream = n + 1000, .flags = 1);
        POST(host_func, GV_OP_HOST_FUNC, 0, 1, .stream = n + 1000, .tag = n + 1);
        if (destroy) POST(stream_destroy, GV_OP_STREAM_DESTROY, 0, 1, .stream = n + 1000);
        if (n % 64 == 63) usleep(2000);
    }
    gv_send_flush(server_link);
    return n;
}
static uint64_t streams_kept(void) { return streams(false); }
static uint64_t streams_destroyed(void) { return streams(true); }

static const char noop[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry noop(.param .u64 p) { ret; }\n";

/* Launches behind a host function, with as many parameters as a record holds. */
static uint64_t parameters(void) {
    static char params[200000];
    POST(module_load, GV_OP_MODULE_LOAD, GV_RECORD_SYNC, 1, .module = 50, .image = noop, .image_size = sizeof noop);
    await(&replies, 2);
    POST(host_func, GV_OP_HOST_FUNC, 0, 1, .stream = 100, .tag = 1);
    uint64_t n = 0;
    for (; n < 4000 && on(); n++)
        POST(launch, GV_OP_LAUNCH, 0, 1, .stream = 100, .module = 50, .grid = {1, 1, 1}, .block = {1, 1, 1}, .params = params,
             .params_size = sizeof params);
    gv_send_flush(server_link);
    return n;
}

static const char taker[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".extern .func (.param .b64 r) malloc(.param .b64 n);\n"
    ".visible .entry take(.param .u64 to) {\n"
    " .reg .b64 %a, %n, %p, %i;\n .reg .b32 %got;\n .reg .pred %q;\n"
    " ld.param.u64 %a, [to];\n mov.b32 %got, 0;\n"
    "again:\n mov.b64 %n, 1048576;\n"
    " { .param .b64 n0;\n .param .b64 r0;\n st.param.b64 [n0], %n;\n call.uni (r0), malloc, (n0);\n ld.param.b64 %p, [r0]; }\n"
    " setp.eq.u64 %q, %p, 0;\n @%q bra done;\n add.u32 %got, %got, 1;\n mov.b64 %i, 0;\n"
    "touch:\n add.u64 %n, %p, %i;\n st.u8 [%n], 1;\n add.u64 %i, %i, 4096;\n"
    " setp.lt.u64 %q, %i, 1048576;\n @%q bra touch;\n"
    " setp.lt.u32 %q, %got, 200;\n @%q bra again;\n"
    "done:\n st.global.u32 [%a], %got;\n ret;\n}\n";

/* Kernels' malloc, in many contexts, of heaps as large as the client likes. How many MiB they got. */
static uint64_t heaps(void) {
    uint64_t got = 0, address = 1ull << 44;
    for (uint32_t ctx = 2; ctx < 22 && !gv_link_dead(server_link); ctx++) {
        uint64_t n = atomic_load(&replies);
        POST(context_create, GV_OP_CONTEXT_CREATE, 0, ctx, .device = 0);
        POST(context_limit, GV_OP_CONTEXT_LIMIT, GV_RECORD_SYNC, ctx, .limit = 2, .value = 1ull << 40);
        POST(module_load, GV_OP_MODULE_LOAD, GV_RECORD_SYNC, ctx, .module = 100 + ctx, .image = taker, .image_size = sizeof taker);
        await(&replies, n + 2);
        n = atomic_load(&copies_in);
        POST(launch, GV_OP_LAUNCH, 0, ctx, .stream = 0, .module = 100 + ctx, .grid = {1, 1, 1}, .block = {1, 1, 1}, .params = &address,
             .params_size = sizeof address);
        POST(copy_out, GV_OP_COPY_OUT, 0, ctx, .stream = 0, .src = address, .width = 4, .height = 1, .depth = 1, .pitch = 4, .slice = 4, .tag = 9);
        await(&copies_in, n + 1);
        got += atomic_load(&last_value);
    }
    return got;
}

/* Copies to streams that there are not, whose payloads never come. */
static uint64_t discards(void) {
    uint64_t n = 0;
    for (; n < 3000000 && on(); n++)
        POST(copy_in, GV_OP_COPY_IN, 0, 1, .stream = 4711, .dst = 0, .width = 4, .height = 1, .depth = 1, .pitch = 4, .slice = 4, .bulk = n + 1);
    settle();
    return n;
}

/* Empty payloads that no command names. */
static void *send_empty(void *arg) {
    _Atomic uint64_t *n = arg;
    while (*n < 3000000 && on() && gv_bulk_send(server_link, 0, "", 0)) ++*n;
    return NULL;
}
static uint64_t empty_payloads(void) {
    static _Atomic uint64_t n;
    pthread_t thread;
    pthread_create(&thread, NULL, send_empty, &n);
    pthread_detach(thread);
    for (uint64_t before = 0, still = 0; still < 20 && n < 3000000 && on(); before = n, usleep(100000)) still = n == before ? still + 1 : 0;
    return n;
}

static uint64_t textures(void) {
    uint64_t n = 0, before = atomic_load(&replies);
    for (; n < 40000 && on(); n++)
        POST(texture_create, GV_OP_TEXTURE_CREATE, GV_RECORD_SYNC, 1, .kind = 2, .format = 32, .channels = 1, .address = 0, .width = 64);
    await(&replies, before + n);
    return n - atomic_load(&out_of_memory);
}

/* Modules whose globals are larger than what the session may have. How many were loaded. */
static uint64_t globals(void) {
    char text[512];
    snprintf(text, sizeof text, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 much[%llu];\n", 16 * MIB);
    uint64_t n = 0, before = atomic_load(&replies);
    for (; n < 12; n++)
        POST(module_load, GV_OP_MODULE_LOAD, GV_RECORD_SYNC, 1, .module = 1000 + n, .image = text, .image_size = (uint32_t)strlen(text) + 1);
    await(&replies, before + n);
    return n - atomic_load(&out_of_memory);
}

static const struct {
    const char *name;
    uint64_t (*run)(void);
} attacks[] = {{"overlap", overlap},           {"huge_copy", huge_copy},
               {"contexts", contexts},         {"events", events},
               {"streams_kept", streams_kept}, {"streams_destroyed", streams_destroyed},
               {"parameters", parameters},     {"heaps", heaps},
               {"discards", discards},         {"empty_payloads", empty_payloads},
               {"textures", textures},         {"globals", globals}};

int main(int argc, char **argv) {
    uint8_t id[GV_TOKEN_ID_SIZE], secret[GV_SECRET_SIZE];
    if (argc != 7) return 2;
    for (int i = 0; i < GV_TOKEN_ID_SIZE; i++) sscanf(argv[3] + 2 * i, "%2hhx", &id[i]);
    for (int i = 0; i < GV_SECRET_SIZE; i++) sscanf(argv[4] + 2 * i, "%2hhx", &secret[i]);
    struct gv_link_options options = {
        .pool = argv[1], .link = argv[2], .token_id = id, .secret = secret, .gpus = 1, .memory = strtoull(argv[5], NULL, 0)};
    struct gv_open_error error;
    server_link = gv_link_connect(&options, &error);
    if (!server_link) {
        printf("refused: %s\n", error.text);
        return 1;
    }
    pthread_t reader, payloads;
    pthread_create(&reader, NULL, read_events, NULL);
    pthread_create(&payloads, NULL, read_payloads, NULL);
    uint64_t windows[2] = {1ull << 44, 1ull << 40};
    POST(attach, GV_OP_ATTACH, GV_RECORD_SYNC, 0, .windows = windows, .windows_size = sizeof windows, .client_version = 1);
    await(&replies, 1);
    POST(context_create, GV_OP_CONTEXT_CREATE, 0, 1, .device = 0, .primary = 1);
    POST(stream_create, GV_OP_STREAM_CREATE, 0, 1, .stream = 100, .flags = 1);
    gv_send_flush(server_link);
    printf("attached\n");
    fflush(stdout);
    char line[16];
    if (!fgets(line, sizeof line, stdin)) return 1;
    until = gv_now_ns() + SECONDS * 1000000000ll;
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
        if (strcmp(attacks[i].name, argv[6])) continue;
        uint64_t n = attacks[i].run();
        printf("%s: %llu\n", gv_link_dead(server_link) ? "over" : "stands", (unsigned long long)n);
        fflush(stdout);
        while (fgets(line, sizeof line, stdin)) continue;
        _exit(0);
    }
    return 2;
}
