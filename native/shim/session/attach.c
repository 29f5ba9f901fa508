/* Getting a session: settings, a server that answers, the window of addresses, the devices. Once per process; a failure is remembered and
 * logged once. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "wire/handshake.h"
#include "gv_client.h"
#include "session/session_state.h"
#include "session/window_offer.h"

#define CLIENT_VERSION 1
#define CHUNK_MIN 4096u

/* ---- settings ------------------------------------------------------------------------------------------------------ */

/* "512m", "4g", "1.5GiB" or a plain number of bytes. */
static bool parse_size(const char *text, uint64_t *out) {
    char *end;
    if (strchr(text, '-')) return false;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || errno) return false;
    while (*end == ' ') end++;
    const char *units = "kmgt", *unit = *end ? strchr(units, tolower((unsigned char)*end)) : NULL;
    if (unit) {
        for (const char *u = units; u <= unit; u++) value *= 1024;
        end++;
        if (*end == 'i' || *end == 'I') end++;
    }
    if (*end == 'b' || *end == 'B') end++;
    if (*end || !(value >= 1 && value < 9e18)) return false;
    *out = (uint64_t)value;
    return true;
}

/* "500ms", "10s", "2m", "12h" or "30d", in milliseconds. */
static bool parse_time(const char *text, uint32_t *out) {
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3}, {"d", 86400e3}};
    char *end;
    double value = strtod(text, &end);
    if (end == text || *text < '0' || *text > '9') return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) != 0) continue;
        value *= units[i].ms;
        if (!(value > 0 && value <= UINT32_MAX)) return false;
        *out = value < 1 ? 1 : (uint32_t)value;
        return true;
    }
    return false;
}

static bool parse_bool(const char *text, bool *out) {
    static const char *const words[] = {"1", "true", "yes", "on", "0", "false", "no", "off"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        *out = i < 4;
        return true;
    }
    return false;
}

/* A part of each device's compute, in thousandths, from a text such as 0.25, in whatever locale. False: it is none. */
static bool parse_compute(const char *text, uint32_t *out) {
    uint32_t found = 0, digits = 0;
    const char *point = strchr(text, '.');
    for (const char *c = text; *c; c++) {
        if (c == point) continue;
        if (*c < '0' || *c > '9' || (point && c - point > 3) || found > 1000) return false;
        found = 10 * found + (uint32_t)(*c - '0');
        digits += point && c > point;
    }
    for (; digits < 3; digits++) found *= 10;
    *out = found;
    return found && found <= 1000;
}

/* How to wait for devices that others have. False: err says what is wrong. */
static bool read_waiting(struct gv_link_options *o, char *err, size_t room) {
    const char *priority = shim_setting("PRIORITY", "0"), *wait = shim_setting("WAIT", NULL), *no_wait = shim_setting("NO_WAIT", "0");
    char *end;
    long n = strtol(priority, &end, 10);
    if (end == priority || *end || n < -100 || n > 100) {
        snprintf(err, room, "GPUVIRT_PRIORITY=%s is no number from -100 to 100", priority);
        return false;
    }
    if (wait && !parse_time(wait, &o->wait_ms)) {
        snprintf(err, room, "GPUVIRT_WAIT=%s is no time; write it like 10s, 2m or 12h", wait);
        return false;
    }
    if (!parse_bool(no_wait, &o->no_wait)) {
        snprintf(err, room, "GPUVIRT_NO_WAIT=%s is neither yes nor no", no_wait);
        return false;
    }
    o->priority = (int32_t)n;
    return true;
}

#define NAME_SIZE 16
_Static_assert(GV_LAUNCH_SIZE == NAME_SIZE && GV_LEASE_SIZE == NAME_SIZE, "launches and leases have names of one size");

/* The name of a launch or of a lease, 32 hexadecimal digits. False: it is none. */
static bool read_name(const char *text, uint8_t out[NAME_SIZE]) {
    if (strlen(text) != 2 * NAME_SIZE || strspn(text, "0123456789abcdefABCDEF") != 2 * NAME_SIZE) return false;
    for (size_t i = 0; i < NAME_SIZE; i++) {
        char two[3] = {text[2 * i], text[2 * i + 1], 0};
        out[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    return true;
}

static void notice(void *arg, const char *text) {
    (void)arg;
    shim_log("%s", text);
}

/* False: err says what is wrong. */
static bool read_options(struct gv_link_options *o, char *err, size_t room) {
    const char *lease = shim_setting("LEASE", NULL), *gpus = shim_setting("GPUS", lease ? NULL : "1"), *memory = shim_setting("MEMORY", NULL);
    const char *compute = shim_setting("COMPUTE", NULL);
    char *end = NULL;
    if (lease && !read_name(lease, o->lease)) {
        snprintf(err, room, "GPUVIRT_LEASE=%s is no lease: 32 hexadecimal digits, as `gpuvirt attach` sets them", lease);
        return false;
    }
    long n = gpus ? strtol(gpus, &end, 10) : 0; /* none: as many as the lease has */
    if (gpus && (end == gpus || *end || n < 1 || n > GV_MAX_DEVICES)) {
        snprintf(err, room, "GPUVIRT_GPUS=%s is no number from 1 to %d", gpus, GV_MAX_DEVICES);
        return false;
    }
    if (compute && !parse_compute(compute, &o->compute)) {
        snprintf(err, room, "GPUVIRT_COMPUTE=%s is no part of a GPU; write it like 0.5: more than 0, 1 at most, three decimals", compute);
        return false;
    }
    if (memory && !parse_size(memory, &o->memory)) {
        snprintf(err, room, "GPUVIRT_MEMORY=%s is no size; write it like 512m or 4g", memory);
        return false;
    }
    if (!read_waiting(o, err, room)) return false;
    bool quiet;
    if (!parse_bool(shim_setting("QUIET", "0"), &quiet)) {
        snprintf(err, room, "GPUVIRT_QUIET=%s is neither yes nor no", shim_setting("QUIET", "0"));
        return false;
    }
    o->notices = !quiet;
    read_name(shim_setting("LAUNCH", ""), o->launch); /* anything else names none */
    o->notice = notice;
    o->gpus = (uint32_t)n;
    o->link = shim_setting("LINK", "auto");
    o->program = program_invocation_short_name;
    return true;
}

/* ---- the worker's answer ------------------------------------------------------------------------------------------- */

static bool power_of_two(uint64_t n) { return n && !(n & (n - 1)); }

#define CAPABILITY_MAJOR 75 /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR */
#define CAPABILITY_MINOR 76 /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR */

/* A program may want another compute capability of a software GPU, which runs any PTX: GPUVIRT_CAPABILITY=8.0. A real GPU has its own. */
static void choose_capability(struct shim_server *s) {
    const char *text = shim_setting("CAPABILITY", NULL);
    if (!text) return;
    char *end;
    long major = strtol(text, &end, 10), minor = *end == '.' && end[1] >= '0' && end[1] <= '9' && !end[2] ? end[1] - '0' : -1;
    if (end == text || major < 1 || major > 99 || minor < 0) {
        shim_log("GPUVIRT_CAPABILITY=%s is no compute capability such as 8.0, and is not heeded", text);
        return;
    }
    bool heeded = false;
    for (uint32_t i = 0; i < s->n_devices; i++) {
        if (!(s->devices[i].flags & GV_DEVICE_WANTS_PTX)) continue;
        s->devices[i].attributes[CAPABILITY_MAJOR] = (int32_t)major;
        s->devices[i].attributes[CAPABILITY_MINOR] = (int32_t)minor;
        heeded = true;
    }
    if (!heeded) shim_log("GPUVIRT_CAPABILITY is for software GPUs; this server's have their own");
}

/* Attributes that this library computes with, by their CUdevice_attribute, and more than any device has of each: what is computed from them stays in range. */
static const struct {
    uint8_t attribute;
    int32_t most;
} bounded[] = {
    {1, 1 << 14},   /* threads of a block */
    {8, 1 << 30},   /* shared memory of a block, bytes */
    {12, 1 << 30},  /* registers of a block */
    {14, 1 << 20},  /* alignment of textures, bytes */
    {16, 1 << 14},  /* multiprocessors */
    {39, 1 << 16},  /* threads of a multiprocessor */
    {81, 1 << 30},  /* shared memory of a multiprocessor, bytes */
    {82, 1 << 30},  /* registers of a multiprocessor */
    {97, 1 << 30},  /* shared memory that a block may ask for, bytes */
    {106, 1 << 16}, /* blocks of a multiprocessor */
    {111, 1 << 30}, /* shared memory of a block that is the driver's, bytes */
    {CAPABILITY_MAJOR, 99}, {CAPABILITY_MINOR, 9},
};

static bool impossible(const struct gv_device_info *d) {
    for (size_t i = 0; i < sizeof bounded / sizeof *bounded; i++) {
        int32_t value = d->attributes[bounded[i].attribute];
        if (value < 0 || value > bounded[i].most) return true;
    }
    return false;
}

/* NULL, or what is wrong with it. Nothing of it is believed before. */
static const char *read_server(const struct gv_reply_attach *r, struct shim_server *s) {
    if (!r->devices_size || r->devices_size % sizeof *s->devices || r->devices_size / sizeof *s->devices > GV_MAX_DEVICES)
        return "a wrong number of devices";
    if (r->addresses != GV_ADDRESSES_FIXED && r->addresses != GV_ADDRESSES_REPLY) return "an unknown way of placing memory";
    if (r->modules_size % sizeof *s->modules || r->modules_size > sizeof s->modules) return "a wrong list of modules";
    s->rtt_ns = gv_link_rtt_ns(session.link);
    s->n_modules = r->modules_size / (uint32_t)sizeof *s->modules;
    memcpy(s->modules, r->modules, r->modules_size);
    s->driver_version = (int)r->driver_version;
    s->addresses = r->addresses;
    s->window_base = r->window_base;
    s->window_size = r->window_size;
    s->initial = r->initial;
    s->n_devices = r->devices_size / (uint32_t)sizeof *s->devices;
    memcpy(s->devices, r->devices, r->devices_size);
    snprintf(s->backend, sizeof s->backend, "%s", r->backend ? r->backend : "");
    snprintf(s->name, sizeof s->name, "%s", r->server ? r->server : "");
    for (uint32_t i = 0; i < s->n_devices; i++) {
        s->devices[i].name[sizeof s->devices[i].name - 1] = 0;
        if (s->addresses == GV_ADDRESSES_FIXED && (!power_of_two(s->devices[i].chunk) || s->devices[i].chunk < CHUNK_MIN))
            return "a wrong memory granularity";
        if (impossible(&s->devices[i])) return "a device that there cannot be";
    }
    choose_capability(s);
    return NULL;
}

/* ATTACH on a link that stands. 0, or -1: err says why, "" when the loss was logged already. */
static int introduce(char *err, size_t room) {
    struct window offered[WINDOWS_MAX];
    int n = window_offer(offered);
    struct gv_cmd_attach ask = {.windows = offered,
                                .windows_size = (uint32_t)(sizeof *offered * (size_t)n),
                                .client_version = CLIENT_VERSION,
                                .rtt_us = (uint32_t)(gv_link_rtt_ns(session.link) / 1000)};
    static struct session_reply reply; /* under the attach lock; static, for a late answer must not find the stack of somebody else */
    struct gv_reply_attach answer;
    const char *wrong = NULL;
    int64_t start = session_now();
    *err = 0;
    void *body = session_begin_call(GV_OP_ATTACH, 0, (uint32_t)gv_cmd_attach_size(&ask), &reply);
    int status = CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (body) {
        gv_cmd_attach_encode(&ask, body);
        session_send_call(&reply);
        status = session_wait_until(&reply, session_now() + SESSION_ATTACH_NS);
    }
    session_count_wait((uint64_t)(session_now() - start));
    if (status == -1) {
        wrong = "it did not answer within a minute";
    } else if (!status) {
        wrong = gv_reply_attach_decode(&answer, reply.body, reply.body_size) ? "its answer makes no sense" : read_server(&answer, &session.server);
        bool fixed = !wrong && session.server.addresses == GV_ADDRESSES_FIXED;
        if (!window_keep(offered, n, fixed ? session.server.window_base : 0, fixed ? session.server.window_size : 0) && fixed)
            wrong = "it chose a window that was not offered";
        n = 0;
    } else if (!atomic_load(&session.over)) {
        snprintf(err, room, "%s refused to attach (CUDA error %d): %s", session.pool, status, reply.text[0] ? reply.text : "no reason given");
    }
    window_keep(offered, n, 0, 0);
    if (wrong) snprintf(err, room, "%s is no server for this client: %s", session.pool, wrong);
    session_reply_done(&reply);
    return status || wrong ? -1 : 0;
}

/* ---- attaching ----------------------------------------------------------------------------------------------------- */

/* The link to the first server of the comma list that answers; NULL: err says what each of them said. */
static struct gv_link *connect_any(const char *pools, const struct gv_link_options *wanted, char *err, size_t room) {
    size_t said = 0;
    *err = 0;
    while (*pools) {
        size_t length = strcspn(pools, ",");
        char pool[sizeof session.pool];
        snprintf(pool, sizeof pool, "%.*s", (int)length, pools);
        pools += length + (pools[length] == ',');
        if (!*pool) continue;
        struct token token = {0};
        char no_token[512] = "";
        struct gv_open_error e = {0};
        bool have = token_find(pool, &token, no_token);
        struct gv_link_options options = *wanted;
        options.pool = pool;
        options.token_id = token.id;
        options.secret = token.secret;
        struct gv_link *link = gv_link_connect(&options, &e);
        if (link) {
            snprintf(session.pool, sizeof session.pool, "%s", pool);
            return link;
        }
        /* A server that refuses a token we do not have: say that, it is what the user can change. */
        if (e.status == (int)GV_WELCOME_DENIED && !have)
            said += (size_t)snprintf(err + said, room - said, "%s%s: %s", said ? "; " : "", pool, no_token);
        else
            said += (size_t)snprintf(err + said, room - said, "%s%s", said ? "; " : "", e.text);
        if (said >= room) said = room - 1;
    }
    return NULL;
}

/* 0, or -1: err says why in one line, "" when that was logged. */
static int attach(char *err, size_t room) {
    struct gv_link_options options = {0};
    const char *pools = shim_setting("POOL", NULL);
    if (!pools) {
        snprintf(err, room, "no GPU server is named: start this program with `gpuvirt run -- ...`, or set GPUVIRT_POOL=tcp://HOST:PORT");
        return -1;
    }
    if (!read_options(&options, err, room)) return -1;
    struct gv_link *link = connect_any(pools, &options, err, room);
    if (!link) return -1;
    session.link = link;
    session.owner = getpid();
    gv_bulk_set_waiter(link, bulk_acked, NULL);
    if (progress_start(incoming_handle) || bulk_start()) {
        atomic_store(&session.leaving, 1); /* no loss to tell of: this line does */
        session_lost("no thread could be started", NULL);
        snprintf(err, room, "no thread could be started: raise the limit of processes (ulimit -u) or of memory");
        return -1;
    }
    return introduce(err, room);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void attach_in_child(void) { pthread_mutex_init(&lock, NULL); }

bool session_begun(void) { return atomic_load(&session.attached) || atomic_load(&session.attaching); }

int session_attach(void) {
    static _Atomic int failed;
    if (atomic_load_explicit(&session.attached, memory_order_acquire)) return session_broken();
    if (session_in_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;
    if (atomic_load(&failed)) return CUDA_ERROR_NO_DEVICE;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&session.attached) && !atomic_load(&failed)) {
        static char err[1024];
        atomic_store(&session.attaching, 1);
        if (!attach(err, sizeof err)) {
            atomic_store_explicit(&session.attached, 1, memory_order_release);
            launch_record_attached();
        } else {
            const char *lost = session_error_text(CUDA_ERROR_DEVICE_UNAVAILABLE); /* logged already */
            session_attach_text(*err || !lost ? err : lost);
            if (*err) shim_log("%s", err);
            if (session.link && !atomic_load(&session.over)) {
                atomic_store(&session.leaving, 1);
                session_lost("attaching failed", NULL);
            }
            atomic_store(&failed, 1);
        }
        atomic_store(&session.attaching, 0);
    }
    pthread_mutex_unlock(&lock);
    if (atomic_load(&failed)) return CUDA_ERROR_NO_DEVICE;
    return session_broken();
}
