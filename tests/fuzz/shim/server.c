/* The hostile server: carries out the client's commands as the protocol has it, but for its lies. */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "gv_commands.h"
#include "wire/device_info.h"
#include "wire/module_known.h"

/* A client that says nothing for so long, all of its threads in calls, waits for what it will never be told, once a lie was told; else it is only slow. */
#define IDLE_AFTER_LIES_NS 100000000ll
#define IDLE_NS 10000000000ll
#define LIFE_S 8

struct server server;
static struct dice dice;
static uint64_t last_seq; /* of the client */

void server_must(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "server: %s: %s\n", what, strerror(errno));
    _exit(70);
}

_Noreturn void server_gone(void) { _exit(0); }

/* ---- events --------------------------------------------------------------------------------------------------------- */

static void say(uint16_t op, uint32_t ctx, const void *body, uint64_t size) {
    struct gv_link *link = atomic_load(&server.link);
    uint64_t padded = (size + 7) & ~7ull;
    bool spoiled = lie(&dice, LIE_EVENT_BODY), other_size = spoiled && roll(&dice, 3) == 0;
    if (other_size) padded = roll(&dice, 2) ? roll(&dice, padded + 1) & ~7ull : padded + 8 * (1 + roll(&dice, 40));
    if (padded > GV_RECORD_MAX - sizeof(struct gv_record)) padded = GV_RECORD_MAX - sizeof(struct gv_record);
    struct gv_record *r = gv_send_begin(link, (uint32_t)(sizeof *r + padded), NULL);
    if (!r) return;
    r->op = op, r->flags = 0, r->ctx = ctx;
    memset(r + 1, 0, padded);
    memcpy(r + 1, body, size < padded ? size : padded);
    if (spoiled && (!other_size || roll(&dice, 2))) spoil(&dice, r + 1, roll(&dice, 2) && padded > 64 ? 64 : padded);
    if (lie(&dice, LIE_UNKNOWN)) r->op = (uint16_t)(roll(&dice, 2) ? 90 + roll(&dice, 30) : odd_number(&dice, 0));
    if (lie(&dice, LIE_RECORD)) {
        switch (roll(&dice, 6)) {
        case 0:
        case 4: link->filling_size = (uint32_t)odd_number(&dice, link->filling_size); break;
        case 1: link->seq_out += roll(&dice, 2) ? 1 + roll(&dice, 100) : -(1 + roll(&dice, 5)); break;
        case 2: atomic_store(&link->epoch, (uint32_t)odd_number(&dice, 0)); break;
        case 3: r->flags = (uint16_t)odd_number(&dice, 1); break;
        default: link->seq_out = odd_number(&dice, link->seq_out); break;
        }
    }
    gv_send_commit(link);
    gv_send_flush(link);
}

#define SAY(kind, number, ctx, event)                    \
    do {                                                 \
        uint64_t size_ = gv_evt_##kind##_size(&(event)); \
        void *body_ = calloc(1, size_ + 8);              \
        gv_evt_##kind##_encode(&(event), body_);         \
        say(number, ctx, body_, size_);                  \
        free(body_);                                     \
    } while (0)

/* An answer; `body` is freed. */
static void reply(const struct gv_record *to, int status, const char *text, void *body, uint64_t size) {
    struct gv_evt_reply e = {.answers = to->seq, .status = status, .text = text, .body = body, .body_size = (uint32_t)size};
    static const int statuses[] = {1, 2, 46, 100, 201, 700, 999, -1, GV_MODULE_NOT_HERE, INT32_MIN, INT32_MAX};
    if (lie(&dice, LIE_STATUS)) e.status = statuses[roll(&dice, sizeof statuses / sizeof *statuses)], e.text = "\x1b[2Jbecause\n";
    if (body && lie(&dice, LIE_REPLY_BODY)) {
        if (roll(&dice, 3))
            spoil(&dice, body, size);
        else
            e.body_size = (uint32_t)(roll(&dice, 2) ? roll(&dice, size + 1) : size);
        if (roll(&dice, 8) == 0) e.body_size = 0;
    }
    if (lie(&dice, LIE_REPLY_TO_ANOTHER)) {
        struct gv_evt_reply other = e;
        other.answers = odd_number(&dice, to->seq);
        SAY(reply, GV_OP_REPLY, to->ctx, other);
    }
    if (!lie(&dice, LIE_NO_REPLY)) SAY(reply, GV_OP_REPLY, to->ctx, e);
    if (lie(&dice, LIE_REPLY_TWICE)) SAY(reply, GV_OP_REPLY, to->ctx, e);
    free(body);
}

#define REPLY(kind, to, answer)                             \
    do {                                                    \
        uint64_t size_ = gv_reply_##kind##_size(&(answer)); \
        void *body_ = calloc(1, size_ + 8);                 \
        gv_reply_##kind##_encode(&(answer), body_);         \
        reply(to, 0, "", body_, size_);                     \
    } while (0)

/* ---- completions; a stream that has come to a host function stands still ------------------------------------------------ */

static struct held {
    uint64_t stream, seq, bulk, tag; /* tag: of the host function that this is, 0: a completion behind one */
    uint32_t ctx;
} held[512];
static unsigned n_held;
static struct gv_evt_completed newest;

static void complete(uint32_t ctx, uint64_t stream, uint64_t seq, uint64_t bulk) {
    struct gv_evt_completed e = {.stream = stream, .upto = seq, .bulk = bulk};
    if (stream < 2) e.stream = GV_LEGACY_STREAM(ctx);
    if (lie(&dice, LIE_NO_COMPLETION)) return;
    if (lie(&dice, LIE_TOO_EARLY)) e.upto = roll(&dice, 2) ? seq + roll(&dice, 20) : odd_number(&dice, seq), e.bulk = 0;
    if (lie(&dice, LIE_PROMISE)) e.bulk = odd_number(&dice, atomic_load(&server.bulk_number));
    if (lie(&dice, LIE_OTHER_STREAM)) e.stream = roll(&dice, 2) ? newest.stream : odd_number(&dice, e.stream);
    if (lie(&dice, LIE_STATUS)) e.status = (int32_t)(roll(&dice, 2) ? 700 : odd_number(&dice, 0));
    SAY(completed, GV_OP_COMPLETED, ctx, e);
    if (lie(&dice, LIE_BACK)) SAY(completed, GV_OP_COMPLETED, ctx, newest);
    newest = e;
}

static void complete_in_order(uint32_t ctx, uint64_t stream, uint64_t seq, uint64_t bulk) {
    for (unsigned i = 0; i < n_held; i++) {
        if (held[i].stream != stream || held[i].ctx != ctx || n_held == 512) continue;
        held[n_held++] = (struct held){stream, seq, bulk, 0, ctx};
        return;
    }
    complete(ctx, stream, seq, bulk);
}

static void host_done(uint64_t tag) {
    unsigned at = 0, kept = 0;
    while (at < n_held && held[at].tag != tag) at++;
    if (at == n_held) return;
    struct held done = held[at];
    memmove(held + at, held + at + 1, (--n_held - at) * sizeof *held);
    complete(done.ctx, done.stream, done.seq, done.bulk);
    /* What stood behind it, up to the next one. */
    bool stopped = false;
    for (unsigned i = 0; i < n_held; i++) {
        struct held h = held[i];
        stopped |= h.stream == done.stream && h.ctx == done.ctx && h.tag;
        if (h.stream == done.stream && h.ctx == done.ctx && !stopped && i >= at)
            complete(h.ctx, h.stream, h.seq, h.bulk);
        else
            held[kept++] = h;
    }
    n_held = kept;
}

/* ---- attaching ------------------------------------------------------------------------------------------------------ */

static void describe(struct gv_device_info *d, int i) {
    static const int32_t values[][2] = {{1, 1024},  {2, 1024}, {3, 1024},   {4, 64},     {5, 32767}, {6, 32767}, {7, 32767},
                                        {8, 49152}, {10, 32},  {11, 32767}, {12, 32767}, {16, 8},    {39, 2048}, {41, 1},
                                        {75, 9},    {76, 0},   {95, 1},     {106, 32},   {111, 1024}};
    snprintf(d->name, sizeof d->name, "hostile %d", i);
    d->total_memory = 1ull << 33;
    d->chunk = 2u << 20;
    d->flags = GV_DEVICE_WANTS_PTX | GV_DEVICE_SOFTWARE;
    memset(d->has_attribute, 1, sizeof d->has_attribute);
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) d->attributes[values[v][0]] = values[v][1];
    d->attributes[81] = d->attributes[82] = 65536; /* shared memory and registers of a multiprocessor */
    d->attributes[97] = 65536;
    if (!lie(&dice, LIE_DEVICES)) return;
    /* The few that are computed with, up to what is believed, or beyond; and any. */
    static const uint8_t used[] = {1, 8, 12, 14, 16, 39, 81, 82, 97, 106, 111};
    for (uint64_t n = roll(&dice, 8); n; n--)
        d->attributes[used[roll(&dice, sizeof used)]] = (int32_t)(roll(&dice, 8) ? roll(&dice, 1 << 14) : odd_number(&dice, 1 << 14));
    for (uint64_t n = roll(&dice, 2) ? roll(&dice, 60) : 0; n; n--) d->attributes[roll(&dice, GV_MAX_ATTRIBUTES)] = (int32_t)odd_number(&dice, 0);
    if (roll(&dice, 4) == 0)
        for (int a = 0; a < GV_MAX_ATTRIBUTES; a++) d->attributes[a] = 0;
    if (roll(&dice, 2)) d->total_memory = odd_number(&dice, d->total_memory);
    if (roll(&dice, 2)) d->chunk = roll(&dice, 2) ? 1ull << roll(&dice, 64) : odd_number(&dice, d->chunk);
    if (roll(&dice, 2)) d->flags = (uint32_t)roll(&dice, 8);
    if (roll(&dice, 3) == 0) memset(d->name, 0x1b, sizeof d->name);
    if (roll(&dice, 3) == 0) memset(d->has_attribute, (int)roll(&dice, 256), sizeof d->has_attribute);
}

static void attach(const struct gv_record *r, const struct gv_cmd_attach *c) {
    struct gv_device_info devices[GV_MAX_DEVICES + 8] = {0};
    struct gv_module_known known[16];
    uint64_t window[2] = {0, 0};
    server_must(c->windows_size >= sizeof window, "no window was offered");
    memcpy(window, c->windows, sizeof window);
    uint32_t n = 1 + (uint32_t)roll(&dice, 3), n_known = 0;
    if (lie_chosen(LIE_DEVICES) && roll(&dice, 2)) n = (uint32_t)(roll(&dice, 2) ? roll(&dice, GV_MAX_DEVICES) : GV_MAX_DEVICES + roll(&dice, 8));
    for (uint32_t i = 0; i < n; i++) describe(&devices[i], (int)i);
    struct gv_reply_attach a = {.driver_version = 13000,
                                .addresses = roll(&dice, 3) ? GV_ADDRESSES_FIXED : GV_ADDRESSES_REPLY,
                                .window_base = window[0],
                                .window_size = window[1],
                                .initial = 4 << 20,
                                .devices = devices,
                                .devices_size = (uint32_t)(n * sizeof *devices),
                                .modules = known,
                                .backend = "soft",
                                .server = "hostile"};
    if (a.addresses == GV_ADDRESSES_REPLY) a.window_base = a.window_size = 0;
    if (lie(&dice, LIE_KNOWN))
        for (n_known = (uint32_t)roll(&dice, 16); n_known && a.modules_size < n_known * sizeof *known; a.modules_size += sizeof *known)
            for (size_t i = 0; i < sizeof *known; i++) ((uint8_t *)&known[a.modules_size / sizeof *known])[i] = (uint8_t)roll(&dice, 4);
    if (lie(&dice, LIE_WINDOW)) {
        switch (roll(&dice, 6)) {
        case 0: a.window_base = odd_number(&dice, a.window_base); break;
        case 1: a.window_size = odd_number(&dice, a.window_size); break;
        case 2: a.initial = odd_number(&dice, a.initial); break;
        case 3: a.addresses = (uint32_t)roll(&dice, 4); break;
        case 4: a.initial = a.window_size - roll(&dice, 1 << 24); break;
        default: a.driver_version = (uint32_t)odd_number(&dice, 13000); break;
        }
    }
    REPLY(attach, r, a);
}

/* ---- modules -------------------------------------------------------------------------------------------------------- */

/* A tag of the worker's for a payload that an answer names, and the payload. */
static uint64_t name_payload(void *data, uint64_t size, uint64_t *told) {
    static uint64_t next, again;
    uint64_t tag = GV_BULK_WORKER_TAG | ++next;
    *told = size;
    if (again) { /* two answers name the same payload */
        tag = again;
        again = 0;
        free(data);
        return tag;
    }
    if (lie(&dice, LIE_META_PAYLOAD)) {
        switch (roll(&dice, 6)) {
        case 0: *told = odd_number(&dice, size); break;
        case 4:
            again = tag;
            payload_queue(&dice, tag, data, size, 15);
            return tag;
        case 1: payload_queue(&dice, tag, memcpy(malloc(size), data, size), size, 0); break;
        case 2: free(data); return tag;
        case 3: tag = next > 1 ? GV_BULK_WORKER_TAG | (next - 1) : tag; break;
        default: tag = roll(&dice, 2) ? 1 + roll(&dice, 20) : odd_number(&dice, tag); break;
        }
    }
    payload_queue(&dice, tag, data, size, 0);
    return tag;
}

static void module_load(const struct gv_record *r) {
    uint64_t size;
    void *meta = metadata_make(&dice, atomic_load(&server.bulk_number) + last_seq, &size);
    struct gv_reply_module_load a = {.kept = (uint32_t)roll(&dice, 3), .meta = meta, .meta_size = (uint32_t)size, .log = ""};
    if (roll(&dice, 2)) {
        a.meta_tag = name_payload(memcpy(malloc(size + 1), meta, size), size, &a.meta_bulk_size);
        a.meta_size = 0;
    }
    REPLY(module_load, r, a);
    free(meta);
}

static void answer_link(const struct gv_record *r) {
    static char image[] = ".version 8.0\n.target sm_50\n.address_size 64\n// linked";
    struct gv_reply_link a = {.image = image, .image_size = sizeof image, .info = "linked", .error = ""};
    if (roll(&dice, 2)) {
        char *large = calloc(1, 100000);
        memcpy(large, image, sizeof image);
        memset(large + sizeof image - 1, ' ', 90000);
        a.image_tag = name_payload(large, 100000, &a.image_bulk_size);
        a.image_size = 0;
    }
    if (lie(&dice, LIE_STATUS)) a.result = (int32_t)odd_number(&dice, 0);
    REPLY(link, r, a);
}

/* ---- copies to the host --------------------------------------------------------------------------------------------- */

static struct {
    uint64_t tag, size;
} copies[64];
static uint64_t n_copies;

static uint8_t *device_bytes(const struct gv_cmd_copy_out *c, uint64_t size) {
    uint8_t *data = malloc(size ? size : 1);
    for (uint64_t z = 0, i = 0; z < c->depth; z++)
        for (uint64_t y = 0; y < c->height; y++)
            for (uint64_t x = 0; x < c->width; x++, i++) data[i] = device_byte(c->src + z * c->slice + y * c->pitch, x);
    return data;
}

/* Returns the payload that its completion is to name. */
static uint64_t copy_out(const struct gv_record *r, const struct gv_cmd_copy_out *c) {
    uint64_t size = c->width * c->height * c->depth;
    server_must(size <= 1 << 26, "a copy of an impossible size");
    uint8_t *data = device_bytes(c, size);
    copies[n_copies++ % 64].tag = c->tag, copies[(n_copies - 1) % 64].size = size;
    if (size <= 4096 && roll(&dice, 8)) {
        struct gv_evt_data_inline e = {.tag = c->tag, .data = data, .data_size = (uint32_t)size};
        bool lies = lie(&dice, LIE_INLINE);
        if (lies && roll(&dice, 3) == 0) e.tag = roll(&dice, 2) ? 1 + roll(&dice, c->tag) : odd_number(&dice, c->tag);
        if (lies && roll(&dice, 3) == 0) e.data_size = (uint32_t)roll(&dice, size);
        if (lies && roll(&dice, 3) == 0) e.status = (int32_t)odd_number(&dice, 0);
        SAY(data_inline, GV_OP_DATA_INLINE, r->ctx, e);
        if (lies && roll(&dice, 3) == 0) SAY(data_inline, GV_OP_DATA_INLINE, r->ctx, e);
        if (lies && roll(&dice, 3) == 0) payload_queue(&dice, c->tag, memcpy(malloc(size + 1), data, size), size, 0);
        free(data);
        return 0;
    }
    if (lie(&dice, LIE_PAYLOAD_LATE)) {
        uint64_t number = payload_queue(&dice, c->tag, data, size, (int)roll(&dice, 30));
        return roll(&dice, 2) ? number : 0; /* other streams are told of as complete meanwhile */
    }
    return payload_queue(&dice, c->tag, data, size, 0);
}

/* ---- out of the blue ---------------------------------------------------------------------------------------------------- */

static uint64_t host_tag;

static void blurt(uint32_t ctx) {
    static char text[300];
    uint64_t stream = newest.stream;
    if (lie(&dice, LIE_TOO_EARLY)) {
        struct gv_evt_completed e = {.stream = stream, .upto = last_seq + roll(&dice, 50)};
        SAY(completed, GV_OP_COMPLETED, ctx, e);
    }
    if (lie(&dice, LIE_REPLY_TO_ANOTHER)) {
        struct gv_evt_reply e = {.answers = last_seq + roll(&dice, 4), .text = "", .body = text, .body_size = (uint32_t)(8 * roll(&dice, 8))};
        SAY(reply, GV_OP_REPLY, ctx, e);
    }
    if (n_copies && lie(&dice, LIE_PAYLOAD_AGAIN)) {
        uint64_t which = roll(&dice, n_copies < 64 ? n_copies : 64), size = roll(&dice, 2) ? copies[which].size : roll(&dice, 70000);
        payload_queue(&dice, copies[which].tag + (roll(&dice, 4) == 0), memset(malloc(size + 1), 0xee, size), size, 0);
    }
    if (lie(&dice, LIE_PAYLOAD_FLOOD)) {
        bool large = roll(&dice, 3) == 0; /* together more than a client may use */
        for (uint64_t n = large ? 45 : 1 + roll(&dice, 60), size = large ? PAYLOAD_ZEROS : 1ull << roll(&dice, 20); n; n--)
            payload_queue(&dice, GV_BULK_WORKER_TAG | (1000 + n), NULL, size, 0);
    }
    if (lie(&dice, LIE_HOST_FUNCTION)) {
        struct gv_evt_call_host e = {.tag = roll(&dice, 3) ? host_tag + roll(&dice, 3) : odd_number(&dice, host_tag), .stream = stream};
        if (roll(&dice, 4) == 0) e.bulk = odd_number(&dice, atomic_load(&server.bulk_number));
        if (roll(&dice, 4) == 0) e.status = (int32_t)odd_number(&dice, 0);
        SAY(call_host, GV_OP_CALL_HOST, ctx, e);
    }
    if (lie(&dice, LIE_FAILED)) {
        for (size_t i = 0; i + 1 < sizeof text; i++) text[i] = (char)(1 + roll(&dice, 255));
        struct gv_evt_failed e = {.failed_seq = odd_number(&dice, last_seq),
                                  .op = (uint32_t)odd_number(&dice, 64),
                                  .text = text + roll(&dice, 290),
                                  .status = (int32_t)(roll(&dice, 2) ? 700 : odd_number(&dice, 0)),
                                  .sticky = (uint32_t)roll(&dice, 2)};
        SAY(failed, GV_OP_FAILED, roll(&dice, 4) ? ctx : (uint32_t)odd_number(&dice, ctx), e);
    }
    if (lie(&dice, LIE_CONSOLE)) {
        uint64_t size = roll(&dice, 200000);
        struct gv_evt_console e = {.text = memset(malloc(size + 1), (int)roll(&dice, 256), size + 1), .text_size = (uint32_t)size};
        SAY(console, GV_OP_CONSOLE, ctx, e);
        free((void *)e.text);
    }
    if (lie(&dice, LIE_NOTICE)) {
        for (size_t i = 0; i + 1 < sizeof text; i++) text[i] = (char)(1 + roll(&dice, 255));
        struct gv_evt_notice e = {.text = text + roll(&dice, 290)};
        SAY(notice, GV_OP_NOTICE, ctx, e);
    }
    if (lie(&dice, LIE_GONE)) server_gone();
}

/* ---- commands --------------------------------------------------------------------------------------------------------- */

#define READ(kind)          \
    struct gv_cmd_##kind c; \
    server_must(!gv_cmd_##kind##_decode(&c, body, size), #kind)

static void handle(const struct gv_record *r) {
    const void *body = r + 1;
    uint32_t size = r->size - (uint32_t)sizeof *r;
    uint64_t stream = 0, bulk = 0;
    bool mark = r->flags & GV_RECORD_MARK;
    last_seq = r->seq;
    blurt(r->ctx);
    switch (r->op) {
    case GV_OP_ATTACH: {
        READ(attach);
        attach(r, &c);
        return;
    }
    case GV_OP_BYE: {
        struct gv_reply_bye a = {.launches = 1, .commands = r->seq};
        REPLY(bye, r, a);
        return;
    }
    case GV_OP_CONTEXT_LIMIT: {
        READ(context_limit);
        struct gv_reply_context_limit a = {.value = c.value};
        REPLY(context_limit, r, a);
        return;
    }
    case GV_OP_MEMORY_ALLOC: {
        static uint64_t next = 0x510000000000;
        READ(memory_alloc);
        struct gv_reply_memory_alloc a = {.address = next};
        next += (c.size + 0xffff) & ~0xffffull;
        REPLY(memory_alloc, r, a);
        return;
    }
    case GV_OP_MEMORY_INFO: {
        struct gv_reply_memory_info a = {.free = 1ull << 32, .total = 1ull << 33};
        REPLY(memory_info, r, a);
        return;
    }
    case GV_OP_ADDRESS_RESERVE: {
        static uint64_t next = 0x520000000000;
        READ(address_reserve);
        struct gv_reply_address_reserve a = {.address = next};
        next += (c.size + (1 << 24)) & ~((1ull << 24) - 1);
        REPLY(address_reserve, r, a);
        return;
    }
    case GV_OP_EVENT_ELAPSED: {
        struct gv_reply_event_elapsed a = {.milliseconds = 1};
        REPLY(event_elapsed, r, a);
        return;
    }
    case GV_OP_MODULE_LOAD: module_load(r); return;
    case GV_OP_LINK: answer_link(r); return;
    case GV_OP_MODULE_GLOBAL: {
        static uint64_t next = 0x530000000000;
        struct gv_reply_module_global a = {.address = next += 4096, .size = 256};
        REPLY(module_global, r, a);
        return;
    }
    case GV_OP_ARRAY_TEXTURE: {
        struct gv_reply_array_texture a = {.object = 78};
        REPLY(array_texture, r, a);
        return;
    }
    case GV_OP_PROCESSOR_GROUPS: {
        struct gv_reply_processor_groups a = {.order = "\1", .order_size = 2, .groups = "\1", .groups_size = 2};
        REPLY(processor_groups, r, a);
        return;
    }
    case GV_OP_CLUSTER_COUNT: {
        struct gv_reply_cluster_count a = {.count = 2};
        REPLY(cluster_count, r, a);
        return;
    }
    case GV_OP_SURFACE_CREATE: {
        struct gv_reply_surface_create a = {.object = 79};
        REPLY(surface_create, r, a);
        return;
    }
    case GV_OP_TEXTURE_CREATE: {
        struct gv_reply_texture_create a = {.object = 77};
        REPLY(texture_create, r, a);
        return;
    }
    case GV_OP_TENSOR_MAP_IM2COL: /* is answered alike */
    case GV_OP_TENSOR_MAP: {
        static const uint8_t map[128] = {7};
        struct gv_reply_tensor_map a = {.map = map, .map_size = sizeof map};
        REPLY(tensor_map, r, a);
        return;
    }
    case GV_OP_COPY_OUT: {
        READ(copy_out);
        stream = c.stream;
        bulk = copy_out(r, &c);
        break;
    }
    case GV_OP_HOST_FUNC: {
        READ(host_func);
        struct gv_evt_call_host e = {.tag = host_tag = c.tag, .stream = c.stream, .bulk = atomic_load(&server.bulk_number)};
        if (n_held < 512) held[n_held++] = (struct held){c.stream, r->seq, 0, c.tag, r->ctx};
        bool lies = lie(&dice, LIE_HOST_FUNCTION);
        if (lies && roll(&dice, 3) == 0) e.status = 700;
        if (lies && roll(&dice, 3) == 0) complete(r->ctx, c.stream, r->seq, 0);
        if (!lies || roll(&dice, 4)) SAY(call_host, GV_OP_CALL_HOST, r->ctx, e);
        if (lies && roll(&dice, 3) == 0) SAY(call_host, GV_OP_CALL_HOST, r->ctx, e);
        return;
    }
    case GV_OP_HOST_DONE: {
        READ(host_done);
        host_done(c.tag);
        return;
    }
    /* All others that may be marked begin with their stream, but for event_record. */
    case GV_OP_EVENT_RECORD: {
        READ(event_record);
        stream = c.stream;
        break;
    }
    default:
        if (r->flags & GV_RECORD_SYNC) {
            reply(r, 0, "", NULL, 0);
            return;
        }
        if (mark) memcpy(&stream, body, sizeof stream);
    }
    if (mark) complete_in_order(r->ctx, stream, r->seq, bulk);
}

/* ---- beside the records ------------------------------------------------------------------------------------------------- */

/* Words that both ends share, and bytes of the rings, at any time. */
static void touch_memory(struct dice *d) {
    enum gv_shm_ring which = (enum gv_shm_ring)roll(d, GV_SHM_RINGS);
    struct gv_ring_control *c = gv_shm_control(server.rings_map, which);
    uint8_t *data = gv_shm_data(server.rings_map, server.rings, which);
    uint64_t near = (roll(d, 2) ? atomic_load(&c->tail) : atomic_load(&c->head)) - 64 + roll(d, 128), at = near % server.rings[which] & ~7ull, word;
    switch (roll(d, 8)) {
    case 0: atomic_store(&c->tail, roll(d, 3) ? atomic_load(&c->tail) + 8 * roll(d, 100) : odd_number(d, atomic_load(&c->tail))); break;
    case 1: atomic_store(&c->head, roll(d, 3) ? atomic_load(&c->head) + 8 * roll(d, 100) : odd_number(d, atomic_load(&c->head))); break;
    case 2: atomic_store(&c->reader_sleeps, (uint32_t)roll(d, 4)); break;
    case 3: atomic_store(&c->writer_sleeps, (uint32_t)roll(d, 4)); break;
    case 4: atomic_store(&c->reader_cpu, (uint32_t)odd_number(d, 1)); break;
    case 5: data[at + roll(d, 8)] ^= (uint8_t)(1u << roll(d, 8)); break;
    default:
        memcpy(&word, data + at, 8);
        word = odd_number(d, word);
        memcpy(data + at, &word, 8);
    }
}

static void *meddle(void *arg) {
    struct dice d = dice_of(server.plan->seed, 4);
    (void)arg;
    for (;;) {
        usleep((useconds_t)roll(&d, 3000));
        if (server.rings_map && lie(&d, LIE_MEMORY)) touch_memory(&d);
        int channel = server.rings_map ? 0 : server.channel_fds[roll(&d, 2)], fd = roll(&d, 2) && channel ? channel : server.main_fd;
        if (lie(&d, LIE_SOCKET)) {
            uint8_t raw[64];
            for (size_t i = 0; i < sizeof raw; i++) raw[i] = (uint8_t)roll(&d, 256);
            if (send(fd, raw, 1 + roll(&d, sizeof raw), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) continue;
        }
        if (lie(&d, LIE_CUT)) shutdown(fd, SHUT_RDWR);
    }
    return NULL;
}

_Noreturn void server_run(const struct session_plan *plan) {
    pthread_t t;
    static const uint64_t sizes[] = {GV_SHM_RING_MIN, GV_SHM_RING_MIN, 2 * GV_SHM_RING_MIN};
    server.plan = plan;
    lies_choose(plan);
    dice = dice_of(plan->seed, 5);
    for (int i = 0; i < GV_SHM_RINGS; i++) server.rings[i] = sizes[roll(&dice, 3)];
    if (lie(&dice, LIE_DESCRIPTORS)) server.rings[roll(&dice, GV_SHM_RINGS)] = roll(&dice, 2) ? 12345 : 4096;
    alarm(plan->honest ? 60 : LIFE_S);
    server_must(!pthread_create(&t, NULL, greets, NULL), "a thread");
    struct timespec wait = {.tv_nsec = 2000000};
    for (int64_t since = gv_now_ns(); !atomic_load(&server.link);) {
        nanosleep(&wait, NULL);
        if (gv_now_ns() - since > (atomic_load(&shared->told) ? 2000000000ll : IDLE_NS)) server_gone();
    }
    server_must(!pthread_create(&t, NULL, payloads_out, NULL) && !pthread_create(&t, NULL, payloads_in, NULL) &&
                    !pthread_create(&t, NULL, meddle, NULL),
                "threads");
    struct gv_link *link = atomic_load(&server.link);
    int64_t heard = gv_now_ns();
    uint64_t before = 0;
    while (!gv_link_dead(link)) {
        const struct gv_record *r = gv_recv_peek(link);
        if (!r) {
            uint64_t moved = atomic_load(&shared->calls) + gv_bulk_acked(link);
            if (moved != before) heard = gv_now_ns();
            before = moved;
            if (gv_now_ns() - heard > (atomic_load(&shared->told) ? IDLE_AFTER_LIES_NS : IDLE_NS)) server_gone();
            gv_recv_wait(link, 20000000, 0);
            continue;
        }
        handle(r);
        gv_recv_consume(link);
        heard = gv_now_ns();
    }
    if (plan->honest && !last_seq) _exit(71);
    server_gone();
}
