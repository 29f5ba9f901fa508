#define _GNU_SOURCE
#include "fake_worker.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gv_commands.h"
#include "transport/shm/shm_layout.h"
#include "transport/link.h"
#include "transport/seal/exchange.h"
#include "transport/seal/seal.h"
#include "wire/device_info.h"
#include "wire/transcript.h"

const uint8_t fake_token[80] = "0123456789abcdef"
                               "the secret of the fake worker..."
                               "a public key that nobody uses...";

#define RINGS {GV_SHM_RING_MIN, GV_SHM_RING_MIN, GV_SHM_RING_MIN, GV_SHM_RING_MIN}

static struct fake *fake;
static struct gv_link *link_;
static int listener, local;
static struct sockaddr_un local_at;

static void must(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "fake worker: %s: %s\n", what, strerror(errno));
    _exit(70);
}

/* ---- handshake ----------------------------------------------------------------------------------------------------- */

static bool read_all(int fd, void *into, size_t size) { return recv(fd, into, size, MSG_WAITALL) == (ssize_t)size; }

static void send_with(int fd, const void *data, size_t size, int passed) {
    char room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {(void *)data, size};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (passed >= 0) {
        m.msg_control = room;
        m.msg_controllen = sizeof room;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &passed, sizeof(int));
    }
    must(sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)size, "welcome");
}

/* Adopts what the handshake agreed on. */
static void adopt(const char *transport, int fd, int memfd, const uint64_t rings[4], const struct gv_link_secret *seal) {
    char why[GV_DEATH_TEXT];
    struct gv_endpoint end = {
        .fd = fd, .passed = {{memfd}, memfd >= 0}, .blob = (const uint8_t *)rings, .blob_size = memfd >= 0 ? GV_SHM_BLOB : 0, .seal = seal};
    must((link_ = gv_link_adopt(transport, &end, why)) != NULL, why);
}

/* One connection's handshake. True when it became the session (link_ is set) or one of its channels. */
static bool shake(int fd, bool over_unix) {
    static uint8_t key[GV_SECRET_SIZE], raw[GV_MESSAGE_MAX];
    const uint8_t *secret = fake_token + 16;
    struct gv_greeting g = {.version_min = GV_WIRE_VERSION, .version_max = GV_WIRE_VERSION, .server_name = "fake"};
    struct gv_hello h;
    struct gv_welcome w = {.session = 42};
    struct gv_transcript t;
    struct gv_head head;
    memset(g.nonce, 7, sizeof g.nonce);
    int boot = open("/proc/sys/kernel/random/boot_id", O_RDONLY);
    if (boot >= 0) {
        if (read(boot, g.boot_id, 36) != 36) g.boot_id[0] = 0;
        close(boot);
    }
    memcpy(g.unix_path, local_at.sun_path, sizeof local_at.sun_path);
    size_t size = gv_greeting_encode(&g, raw);
    gv_transcript_begin(&t, raw, size);
    if (send(fd, raw, size, MSG_NOSIGNAL) != (ssize_t)size || !read_all(fd, raw, GV_HEAD_SIZE)) return false;
    must(gv_message_head(raw, &head) == GV_HEAD_GOOD, "a hello");
    if (!read_all(fd, raw + GV_HEAD_SIZE, head.size - GV_HEAD_SIZE)) return false;
    must(gv_hello_decode(&h, raw, head.size), "a hello");
    bool channel = h.purpose == GV_HELLO_CHANNEL;
    if (!gv_hello_proved(&t, raw, head.size, channel ? key : secret) || (!channel && memcmp(h.token_id, fake_token, 16) != 0)) {
        w.status = GV_WELCOME_DENIED;
        snprintf(w.text, sizeof w.text, "the token was not accepted");
        send_with(fd, raw, gv_welcome_encode(&w, raw), -1);
        return false;
    }
    uint64_t rings[4] = RINGS;
    int memfd = -1;
    if (!channel && over_unix) {
        memfd = memfd_create("rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        must(memfd >= 0 && !ftruncate(memfd, (off_t)gv_shm_size(rings)) && !fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), "rings");
        w.blob.size = sizeof rings;
        memcpy(w.blob.data, rings, sizeof rings);
        w.descriptors = 1;
    } else if (!channel) {
        w.connections = 1;
    }
    if (!channel) w.transport = h.transports.at[0];
    struct gv_link_secret seal;
    uint8_t shared[GV_CRYPTO_KEY];
    char why[GV_DEATH_TEXT];
    bool sealed = !channel && memfd < 0;
    if (sealed) {
        must(h.key_exchange.size == GV_EXCHANGE_SIZE, "an offer");
        must(gv_exchange_answer(h.key_exchange.data, w.key_exchange.data, shared, why), why);
        w.key_exchange.size = GV_EXCHANGE_SIZE;
        seal.cipher = w.key_exchange.data[0];
    }
    size = gv_welcome_encode(&w, raw);
    gv_welcome_prove(&t, raw, size, channel ? key : secret);
    if (sealed) {
        gv_sealed_session_keys(&t, secret, shared, key, seal.key);
    } else if (!channel) {
        gv_session_key(&t, secret, key);
    }
    send_with(fd, raw, size, memfd);
    if (channel) {
        must(link_ != NULL, "channel");
        return !gv_link_add_channel(link_, h.channel, fd); /* refused when the client has gone meanwhile */
    } else {
        adopt(w.transport.name, fd, memfd, rings, sealed ? &seal : NULL);
    }
    return true;
}

static void *accept_channels(void *arg) {
    (void)arg;
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && !shake(fd, false)) close(fd);
    }
    return NULL;
}

/* ---- payloads ------------------------------------------------------------------------------------------------------ */

struct payload {
    uint64_t tag, src, size, number;
    enum fake_copies how;
    uint64_t stream, seq;
    struct payload *next;
};
static pthread_mutex_t out_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t out_due = PTHREAD_COND_INITIALIZER;
static struct payload *out, **out_end = &out;
static uint64_t numbers;

/* Those for a copy come in several, as a worker sends them that has only a part ready; cut wherever. */
static uint64_t parts_of(uint64_t tag, uint64_t size) { return tag >> 63 || size < 5000 ? 1 : 3; }

static uint64_t queue_payload(struct payload payload) {
    struct payload *p = malloc(sizeof *p);
    *p = payload;
    pthread_mutex_lock(&out_lock);
    *out_end = p;
    out_end = &p->next;
    uint64_t number = p->number = numbers += p->how == FAKE_DURING ? 1 : p->how && p->size <= 4096 ? 0 : p->how ? 3 : parts_of(p->tag, p->size);
    pthread_cond_signal(&out_due);
    pthread_mutex_unlock(&out_lock);
    return number;
}

static uint64_t send_payload(uint64_t tag, uint64_t src, uint64_t size) {
    return queue_payload((struct payload){.tag = tag, .src = src, .size = size});
}

static void await_release(void) {
    while (!fake->release) usleep(1000);
}

static void completed(uint64_t stream, uint64_t upto, uint64_t bulk, int status);
static void send_inline(uint64_t tag, const void *data, uint32_t size);

/* Completes p's copy before all of its bytes are sent; FAKE_LATE has done so. FAKE_HELD: names the last of them. */
static void send_at_release(const struct payload *p, const uint8_t *data) {
    uint64_t part = p->size / 3;
    if (p->how == FAKE_DURING) {
        gv_bulk_open(link_, p->tag, p->size);
        gv_bulk_part(link_, data, part, NULL, NULL);
        usleep(50000); /* the client is in the middle of it then */
        completed(p->stream, p->seq, p->number - 1, fake->failure);
        await_release();
        gv_bulk_part(link_, data + part, p->size - part, NULL, NULL);
        while (gv_bulk_acked(link_) < gv_bulk_position(link_) && !gv_link_dead(link_)) usleep(1000);
        return;
    }
    if (p->how == FAKE_HALF) {
        gv_bulk_send(link_, p->tag, data, part);
        completed(p->stream, p->seq, p->number - 2, fake->failure);
    }
    await_release();
    if (p->size <= 4096) {
        send_inline(p->tag, data, (uint32_t)p->size);
        if (p->how == FAKE_HELD) completed(p->stream, p->seq, 0, 0);
        return;
    }
    if (p->how == FAKE_HELD) completed(p->stream, p->seq, p->number, 0);
    if (p->how != FAKE_HALF) gv_bulk_send(link_, p->tag, data, part);
    gv_bulk_send(link_, p->tag, data + part, part);
    gv_bulk_send(link_, p->tag, data + 2 * part, p->size - 2 * part);
}

static void *payloads_out(void *arg) {
    (void)arg;
    for (;;) {
        pthread_mutex_lock(&out_lock);
        while (!out) pthread_cond_wait(&out_due, &out_lock);
        struct payload *p = out;
        if (!(out = p->next)) out_end = &out;
        pthread_mutex_unlock(&out_lock);
        struct timespec t = {fake->delay_ms / 1000, fake->delay_ms % 1000 * 1000000l};
        nanosleep(&t, NULL);
        uint8_t *data = malloc(p->size);
        for (uint64_t i = 0; i < p->size; i++) data[i] = fake_byte(p->src, i);
        uint64_t n = parts_of(p->tag, p->size), step = n > 1 ? p->size * 2 / 5 + 1 : p->size, at = 0;
        if (p->how) send_at_release(p, data);
        for (uint64_t i = 0; !p->how && i < n; i++, at += step) gv_bulk_send(link_, p->tag, data + at, i + 1 < n ? step : p->size - at);
        free(data);
        free(p);
    }
    return NULL;
}

/* What payload `number` must be; told by its COPY_IN, which may come before or after. */
#define ANNOUNCED 4096
static struct {
    _Atomic uint64_t dst, size;
    _Atomic int known;
} announced[ANNOUNCED];

static void *payloads_in(void *arg) {
    (void)arg;
    struct gv_bulk_header h;
    while (!gv_bulk_recv_header(link_, &h)) {
        uint8_t *data = malloc(h.size ? h.size : 1);
        if (gv_bulk_recv(link_, data, h.size)) break;
        if (h.tag & GV_BULK_LATE) { /* its command is told by the tag, not by the number */
            free(data);
            continue;
        }
        while (!announced[h.number % ANNOUNCED].known) usleep(100);
        bool good = h.size == announced[h.number % ANNOUNCED].size;
        for (uint64_t i = 0; good && i < h.size; i += i + 64 < h.size ? 61 : 1) good = data[i] == fake_byte(announced[h.number % ANNOUNCED].dst, i);
        free(data);
        if (!good) fake->bad_payloads++;
        fake->payloads_in++;
    }
    return NULL;
}

/* ---- records ------------------------------------------------------------------------------------------------------- */

#define SEND(kind, number, body)                                                           \
    do {                                                                                   \
        uint64_t size_ = gv_evt_##kind##_size(&(body));                                    \
        struct gv_record *r_ = gv_send_begin(link_, (uint32_t)(sizeof *r_ + size_), NULL); \
        if (!r_) break;                                                                    \
        r_->op = number, r_->flags = 0, r_->ctx = event_ctx;                               \
        gv_evt_##kind##_encode(&(body), r_ + 1);                                           \
        gv_send_commit(link_);                                                             \
        gv_send_flush(link_);                                                              \
        fake->sent++;                                                                      \
    } while (0)

static _Atomic uint32_t event_ctx; /* the payloads' thread completes copies, too */

static void reply(uint64_t answers, int status, const char *text, const void *body, uint32_t size) {
    struct gv_evt_reply e = {.answers = answers, .status = status, .text = text, .body = body, .body_size = size};
    SEND(reply, GV_OP_REPLY, e);
}

static void completed(uint64_t stream, uint64_t upto, uint64_t bulk, int status) {
    struct gv_evt_completed e = {.stream = stream, .upto = upto, .bulk = bulk, .status = status};
    SEND(completed, GV_OP_COMPLETED, e);
}

static void send_inline(uint64_t tag, const void *data, uint32_t size) {
    struct gv_evt_data_inline e = {.tag = tag, .data = data, .data_size = size};
    SEND(data_inline, GV_OP_DATA_INLINE, e);
}

static void on_attach(const struct gv_record *r, const void *body, uint32_t size) {
    struct gv_cmd_attach c;
    must(!gv_cmd_attach_decode(&c, body, size), "attach");
    struct gv_device_info *devices = calloc(2, sizeof *devices);
    for (int i = 0; i < 2; i++) {
        snprintf(devices[i].name, sizeof devices[i].name, "fake %d", i);
        devices[i].total_memory = 1ull << 33;
        devices[i].chunk = 2u << 20;
        devices[i].attributes[75] = 13;
        devices[i].has_attribute[75] = 1;
    }
    uint64_t first[2];
    must(c.windows_size >= 16, "no window was offered");
    memcpy(first, c.windows, 16);
    struct gv_reply_attach a = {.driver_version = 13000,
                                .addresses = 1,
                                .window_base = first[0],
                                .window_size = first[1],
                                .initial = 1 << 20,
                                .devices = devices,
                                .devices_size = (uint32_t)(2 * sizeof *devices),
                                .backend = "fake",
                                .server = "here"};
    switch (fake->attach) {
    case FAKE_REFUSE:
        reply(r->seq, 999, "the fake worker wants no clients", NULL, 0);
        free(devices);
        return;
    case FAKE_FOREIGN_WINDOW: a.window_base += 4096; break;
    case FAKE_NO_DEVICES: a.devices_size = 0; break;
    case FAKE_IMPOSSIBLE_DEVICE: devices[1].attributes[39] = INT32_MAX; break;
    case FAKE_GARBAGE:
        reply(r->seq, 0, "", "garbage!", 8);
        free(devices);
        return;
    case FAKE_DIE: _exit(0);
    case FAKE_REPLY_ADDRESSES: a.addresses = 2, a.window_base = a.window_size = 0; break;
    default: break;
    }
    char *encoded = malloc(gv_reply_attach_size(&a));
    gv_reply_attach_encode(&a, encoded);
    reply(r->seq, 0, "", encoded, (uint32_t)gv_reply_attach_size(&a));
    free(encoded);
    free(devices);
}

static void on_launch(const struct gv_record *r, const struct gv_cmd_launch *c) {
    fake->launches++;
    struct gv_evt_failed failed = {
        .failed_seq = r->seq, .op = r->op, .status = 700, .sticky = c->kernel == FAKE_FAIL, .text = "illegal address 0x10"};
    struct gv_evt_console console = {.text = c->params, .text_size = c->params_size};
    struct gv_evt_notice notice = {.text = c->params};
    struct gv_evt_data_inline data = {.tag = c->module, .data = "1234567", .data_size = 7};
    switch (c->kernel) {
    case FAKE_EXIT: _exit(0);
    case FAKE_STOP: raise(SIGSTOP); break;
    case FAKE_MALFORMED: {
        struct gv_record *m = gv_send_begin(link_, sizeof *m + 8, NULL);
        m->op = GV_OP_COMPLETED, m->flags = 0, m->ctx = 0;
        memset(m + 1, 0, 8);
        gv_send_commit(link_);
        break;
    }
    case FAKE_UNKNOWN: {
        struct gv_record *m = gv_send_begin(link_, sizeof *m, NULL);
        m->op = 999, m->flags = 0, m->ctx = 0;
        gv_send_commit(link_);
        break;
    }
    case FAKE_STRAY_REPLY: reply(r->seq + 1000000, 0, "", NULL, 0); break;
    case FAKE_STRAY_DATA: send_payload(c->module, 0, 100); break;
    case FAKE_WRONG_INLINE: SEND(data_inline, GV_OP_DATA_INLINE, data); break;
    case FAKE_FAIL:
    case FAKE_SOFT_FAIL: SEND(failed, GV_OP_FAILED, failed); break;
    case FAKE_PRINT: SEND(console, GV_OP_CONSOLE, console); break;
    case FAKE_NOTICE: SEND(notice, GV_OP_NOTICE, notice); break;
    case FAKE_FLOOD:
        for (uint64_t i = 0; i < c->module; i++) completed(77, i, 0, 0);
        break;
    case FAKE_FLOOD_HELD:
        for (uint64_t i = 1; i <= c->module; i++) completed(6 + i % 2, 1, i, 0);
        break;
    case FAKE_HOLD_TWO:
        completed(6, c->module, 1, 0);
        completed(7, c->module + 1, 1, 0);
        break;
    default: break;
    }
    gv_send_flush(link_);
}

/* Host functions' places in their streams, by tag: what follows on the stream completes after them. */
static struct {
    uint64_t tag, stream, seq;
} gates[8];

static uint64_t last_bulk;

static void handle(const struct gv_record *r) {
    const void *body = r + 1;
    uint32_t size = r->size - (uint32_t)sizeof *r;
    uint64_t stream = 0, bulk = 0;
    bool mark = r->flags & GV_RECORD_MARK;
    event_ctx = r->ctx;
    switch (r->op) {
    case GV_OP_ATTACH: on_attach(r, body, size); break;
    case GV_OP_BYE: {
        struct gv_reply_bye b = {.launches = (uint64_t)fake->launches, .commands = r->seq};
        char encoded[64];
        gv_reply_bye_encode(&b, encoded);
        fake->byes++;
        reply(r->seq, 0, "", encoded, (uint32_t)gv_reply_bye_size(&b));
        break;
    }
    case GV_OP_MEMORY_INFO: {
        /* Context 13 has bad luck. */
        struct gv_reply_memory_info b = {.free = r->ctx, .total = r->ctx * 2ull};
        char encoded[64];
        gv_reply_memory_info_encode(&b, encoded);
        if (r->ctx == 13)
            reply(r->seq, 2, "no memory at all", NULL, 0);
        else
            reply(r->seq, 0, "", encoded, (uint32_t)gv_reply_memory_info_size(&b));
        break;
    }
    case GV_OP_FENCE: {
        struct gv_cmd_fence c;
        must(!gv_cmd_fence_decode(&c, body, size), "fence");
        stream = c.stream;
        break;
    }
    case GV_OP_LAUNCH: {
        struct gv_cmd_launch c;
        must(!gv_cmd_launch_decode(&c, body, size), "launch");
        stream = c.stream;
        on_launch(r, &c);
        break;
    }
    case GV_OP_COPY_OUT: {
        struct gv_cmd_copy_out c;
        must(!gv_cmd_copy_out_decode(&c, body, size), "copy_out");
        stream = c.stream;
        uint64_t n = c.width * c.height * c.depth;
        if (fake->copies && stream == 5) {
            enum fake_copies how = (enum fake_copies)fake->copies;
            queue_payload((struct payload){.tag = c.tag, .src = c.src, .size = n, .how = how, .stream = stream, .seq = r->seq});
            if (how == FAKE_LATE && mark) completed(stream, r->seq, 0, fake->failure);
            mark = false;
        } else if (n > 4096) {
            bulk = last_bulk = send_payload(c.tag, c.src, n);
        } else {
            uint8_t data[4096];
            for (uint64_t i = 0; i < n; i++) data[i] = fake_byte(c.src, i);
            send_inline(c.tag, data, (uint32_t)n);
        }
        break;
    }
    case GV_OP_COPY_IN: {
        struct gv_cmd_copy_in c;
        must(!gv_cmd_copy_in_decode(&c, body, size), "copy_in");
        stream = c.stream;
        if (c.bulk) {
            announced[c.bulk % ANNOUNCED].dst = c.dst;
            announced[c.bulk % ANNOUNCED].size = c.width * c.height * c.depth;
            announced[c.bulk % ANNOUNCED].known = 1;
        }
        break;
    }
    case GV_OP_HOST_FUNC: {
        struct gv_cmd_host_func c;
        must(!gv_cmd_host_func_decode(&c, body, size), "host_func");
        gates[c.tag % 8].tag = c.tag;
        struct gv_evt_call_host e = {.tag = c.tag, .stream = c.stream, .bulk = last_bulk, .status = c.stream == 66 ? 700 : 0};
        SEND(call_host, GV_OP_CALL_HOST, e);
        mark = false;
        break;
    }
    case GV_OP_HOST_DONE: {
        struct gv_cmd_host_done c;
        must(!gv_cmd_host_done_decode(&c, body, size) && c.tag == gates[c.tag % 8].tag, "host_done");
        fake->host_done++; /* nobody tells the client that the stream has passed its own function */
        break;
    }
    case GV_OP_MODULE_LOAD: {
        struct gv_cmd_module_load c;
        must(!gv_cmd_module_load_decode(&c, body, size), "module_load");
        struct gv_reply_module_load b = {.meta_tag = (1ull << 63) | c.module, .meta_bulk_size = 300000, .log = ""};
        char encoded[256];
        gv_reply_module_load_encode(&b, encoded);
        send_payload(b.meta_tag, c.module, 300000);
        reply(r->seq, 0, "", encoded, (uint32_t)gv_reply_module_load_size(&b));
        break;
    }
    default: break;
    }
    if (mark) completed(stream, r->seq, bulk, stream == 66 ? 700 : 0);
}

static void serve(void) {
    pthread_t t;
    for (;;) {
        /* Whichever comes: the session over TCP, or over the unix socket. */
        fd_set set;
        FD_ZERO(&set);
        FD_SET(listener, &set);
        FD_SET(local, &set);
        must(select(listener > local ? listener + 1 : local + 1, &set, NULL, NULL, NULL) > 0, "select");
        bool over_unix = FD_ISSET(local, &set);
        int fd = accept4(over_unix ? local : listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) continue;
        if (shake(fd, over_unix)) break;
        close(fd);
    }
    fake->sessions++;
    must(!pthread_create(&t, NULL, accept_channels, NULL) && !pthread_create(&t, NULL, payloads_out, NULL) &&
             !pthread_create(&t, NULL, payloads_in, NULL),
         "threads");
    while (!gv_link_dead(link_)) {
        const struct gv_record *r = gv_recv_peek(link_);
        if (!r) {
            gv_recv_wait(link_, 1000000000, 0);
            continue;
        }
        handle(r);
        gv_recv_consume(link_);
    }
    fake->gone++;
    if (!fake->byes) fprintf(stderr, "fake worker: the client is gone: %s\n", gv_link_death(link_));
}

/* Listens on a port of 127.0.0.1 for which no server that was killed has left a token: clients of this user would find it. */
static int listen_somewhere(void) {
    for (;;) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof at;
        char token[64];
        int before = listener;
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        must(!bind(listener, (struct sockaddr *)&at, sizeof at) && !listen(listener, 64) && !getsockname(listener, (struct sockaddr *)&at, &length),
             "listen");
        if (before > 0) close(before); /* only now, or it would be given again */
        snprintf(token, sizeof token, "/tmp/gpuvirt-%u/%d.token", (unsigned)geteuid(), ntohs(at.sin_port));
        if (access(token, F_OK)) return ntohs(at.sin_port);
    }
}

struct fake *fake_start(enum fake_attach attach) {
    struct fake *f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    f->port = listen_somewhere();
    f->attach = attach;
    local = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    local_at.sun_family = AF_UNIX;
    snprintf(local_at.sun_path, sizeof local_at.sun_path, "/tmp/gv-fake-%d-%d.sock", (int)getpid(), f->port);
    must(!bind(local, (struct sockaddr *)&local_at, sizeof local_at) && !listen(local, 64), "listen on a unix socket");
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* of the test; a stopped worker dies too */
        signal(SIGPIPE, SIG_IGN);
        alarm(300);
        fake = f;
        serve();
        _exit(0);
    }
    f->pid = pid;
    close(listener);
    close(local);
    return f;
}

void fake_kill(struct fake *f) {
    if (f->pid <= 0) return;
    kill(f->pid, SIGKILL);
    waitpid(f->pid, NULL, 0);
    unlink(local_at.sun_path);
    f->pid = 0;
}
