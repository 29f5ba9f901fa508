#define _GNU_SOURCE
#include "hostile_relay.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include "../../../native/transport/tcp/framing.h"
#include "../../../native/transport/tcp/tcp_bulk.h"
#include "../../../native/wire/handshake.h"
#include "../check.h"

struct frame {
    struct gv_sealed_head head;
    uint8_t bytes[]; /* all of it, as it came */
};

struct connection {
    struct hostile_relay *relay;
    int fds[2]; /* the client's and the server's */
    _Atomic bool frames, spoilt;
    _Atomic int ends;
    _Atomic int left;      /* frames to leave alone */
    struct frame *last[2]; /* each way; under the relay's lock */
};

struct way {
    struct connection *connection;
    int from; /* 0: the client's words */
};

static uint64_t any(struct hostile_relay *r) {
    uint64_t x = atomic_fetch_add(&r->random, 0x9e3779b97f4a7c15u);
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    return x ^ x >> 33;
}

static bool get(int fd, void *to, size_t size) { return recv(fd, to, size, MSG_WAITALL) == (ssize_t)size; }

static bool put(int fd, const void *from, size_t size) {
    for (const uint8_t *p = from; size;) {
        ssize_t n = send(fd, p, size, MSG_NOSIGNAL);
        if (n <= 0) return false;
        p += n;
        size -= (size_t)n;
    }
    return true;
}

static bool hand_on(int from, int to, uint8_t *bytes, struct gv_head *head, bool first) {
    if (!get(from, bytes, GV_HEAD_SIZE)) return false;
    CHECK((first ? gv_greeting_head(bytes, head) : gv_message_head(bytes, head)) == GV_HEAD_GOOD);
    return get(from, bytes + GV_HEAD_SIZE, head->size - GV_HEAD_SIZE) && put(to, bytes, head->size);
}

/* The handshake; false: it broke off, or what follows are no frames. */
static bool shake(struct connection *c, int from) {
    uint8_t bytes[GV_MESSAGE_MAX];
    struct gv_head head;
    struct gv_hello hello;
    if (from == 0) {
        if (!get(c->fds[0], bytes, GV_HEAD_SIZE)) return false;
        CHECK(gv_message_head(bytes, &head) == GV_HEAD_GOOD);
        if (!get(c->fds[0], bytes + GV_HEAD_SIZE, head.size - GV_HEAD_SIZE)) return false;
        CHECK(gv_hello_decode(&hello, bytes, head.size));
        atomic_store(&c->frames, (hello.purpose == GV_HELLO_CHANNEL) == c->relay->channels);
        return put(c->fds[1], bytes, head.size);
    }
    if (!hand_on(c->fds[1], c->fds[0], bytes, &head, true)) return false;
    do {
        if (!hand_on(c->fds[1], c->fds[0], bytes, &head, false)) return false;
    } while (head.second != GV_MESSAGE_WELCOME);
    return true;
}

/* The head of a bulk channel's frame, as one of the main connection's that means the same. */
static struct gv_sealed_head as_record(const void *bytes) {
    struct tcp_frame f;
    memcpy(&f, bytes, sizeof f);
    CHECK(f.magic == TCP_CHANNEL_MAGIC || (f.magic == TCP_FRAME_MAGIC && f.size <= TCP_SEALED_MOST));
    if (f.magic == TCP_CHANNEL_MAGIC) return (struct gv_sealed_head){FRAME_ROOM, GV_SEAL_NOTES, 0};
    return (struct gv_sealed_head){(uint32_t)FRAME_ROOM + f.size, GV_SEAL_RECORDS, f.position};
}

/* A frame, in memory of its own; NULL: the connection has ended. */
static struct frame *take(const struct hostile_relay *r, int fd) {
    struct gv_sealed_head head, raw;
    if (!get(fd, &raw, sizeof raw)) return NULL;
    head = r->channels ? as_record(&raw) : raw;
    CHECK(r->channels || (head.size <= FRAME_MOST && head.size > sizeof head)); /* the ends themselves are honest */
    struct frame *f = malloc(sizeof *f + head.size);
    f->head = head;
    memcpy(f->bytes, &raw, sizeof raw);
    if (get(fd, f->bytes + sizeof raw, head.size - sizeof raw)) return f;
    free(f);
    return NULL;
}

static bool pass(int fd, const struct frame *f) { return put(fd, f->bytes, f->head.size); }

/* Keeps a copy in the place of the last one. */
static void keep(struct frame **kept, const struct frame *f) {
    free(*kept);
    *kept = f ? memcpy(malloc(sizeof *f + f->head.size), f, sizeof *f + f->head.size) : NULL;
}

/* Flips a bit of the frame, but for its size. */
static void flip(struct hostile_relay *r, struct frame *f) {
    uint64_t bit = 32 + any(r) % (8 * (uint64_t)f->head.size - 32);
    if (r->channels && bit < 64) bit -= 32;
    f->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

/* Whether now is the time, with this frame. */
static bool chosen(struct connection *c, int from, const struct frame *f, int mischief) {
    bool resume = f->head.kind == GV_SEAL_NOTES && !f->head.counter;
    if (mischief == ALTERS_EVERY_RECORD) return from == 1 && f->head.kind == GV_SEAL_RECORDS;
    if (mischief == ALTERS_EVERY_RESUME) return from == 1 && resume;
    return mischief && !resume && atomic_fetch_sub(&c->left, 1) <= 0 && !atomic_exchange(&c->spoilt, true);
}

/* Counted before anything goes on: the end that notices it may be looked at at once. */
static void count(struct connection *c, bool did) {
    if (did)
        atomic_fetch_add(&c->relay->done, 1);
    else
        atomic_store(&c->spoilt, false);
}

static bool pass_with_another(struct connection *c, int to, const struct frame *first, const struct frame *second) {
    count(c, first && second);
    return (!first || pass(to, first)) && (!second || pass(to, second));
}

/* The frame and the one behind it, if that is here. */
static bool pass_two(struct connection *c, int from, const struct frame *f, int mischief) {
    struct pollfd p = {c->fds[from], POLLIN, 0};
    int to = c->fds[!from];
    struct frame *next = NULL;
    if (poll(&p, 1, 0) > 0 && !(next = take(c->relay, c->fds[from]))) return false;
    bool did = next && next->head.kind == f->head.kind;
    count(c, did);
    bool good = !did ? pass(to, f) && (!next || pass(to, next)) : pass(to, next) && (mischief == DROPS || pass(to, f));
    free(next);
    return good;
}

static bool pass_altered(struct connection *c, int to, struct frame *f) {
    count(c, true);
    flip(c->relay, f);
    return pass(to, f);
}

/* Passes the frame on, and does what it does. False: the connection has ended. */
static bool pass_on(struct connection *c, int from, struct frame *f) {
    struct hostile_relay *r = c->relay;
    int to = c->fds[!from], mischief = atomic_load(&r->mischief);
    atomic_fetch_add(&r->passed, 1);
    struct frame *old = NULL, *other = NULL;
    bool good;
    pthread_mutex_lock(&r->lock);
    if (mischief == REPLAYS) keep(&old, r->kept[from]);
    if (mischief == REFLECTS) keep(&other, c->last[!from]);
    if (mischief == DIVERTS && r->recent_of[from] != c) keep(&other, r->recent[from]);
    keep(&c->last[from], f);
    keep(&r->recent[from], f);
    r->recent_of[from] = c;
    if (r->look) r->look(r->look_arg, f->bytes, f->head.size);
    pthread_mutex_unlock(&r->lock);
    if (!chosen(c, from, f, mischief)) {
        free(old);
        free(other);
        return pass(to, f);
    }
    switch (mischief) {
    case DROPS:
    case SWAPS: good = pass_two(c, from, f, mischief); break;
    case REPEATS: good = pass_with_another(c, to, f, f); break;
    case REPLAYS: good = pass_with_another(c, to, old, f); break;
    case DIVERTS:
    case REFLECTS: good = pass_with_another(c, to, other, f); break;
    default: good = pass_altered(c, to, f);
    }
    free(old);
    free(other);
    return good;
}

static void *pump(void *arg) {
    struct way w = *(struct way *)arg;
    struct connection *c = w.connection;
    bool good = shake(c, w.from), frames = atomic_load(&c->frames);
    free(arg);
    while (good && frames) {
        struct frame *f = take(c->relay, c->fds[w.from]);
        good = f && pass_on(c, w.from, f);
        free(f);
    }
    uint8_t bytes[65536];
    for (ssize_t n; good && (n = recv(c->fds[w.from], bytes, sizeof bytes, 0)) > 0;) good = put(c->fds[!w.from], bytes, (size_t)n);
    shutdown(c->fds[0], SHUT_RDWR);
    shutdown(c->fds[1], SHUT_RDWR);
    struct hostile_relay *r = c->relay;
    if (atomic_fetch_add(&c->ends, 1) == 1) {
        pthread_mutex_lock(&r->lock);
        for (int i = 0; i < 2; i++) {
            if (c->last[i]) keep(&r->kept[i], c->last[i]);
            keep(&c->last[i], NULL);
            close(c->fds[i]);
        }
        pthread_mutex_unlock(&r->lock);
        free(c);
    }
    atomic_fetch_sub(&r->running, 1);
    return NULL;
}

static int dial(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

static void *run(void *arg) {
    struct hostile_relay *r = arg;
    while (!atomic_load(&r->stop)) {
        struct pollfd p = {r->listening, POLLIN, 0};
        if (poll(&p, 1, 20) <= 0) continue;
        int fd = accept4(r->listening, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) continue;
        struct connection *c = calloc(1, sizeof *c);
        c->relay = r;
        atomic_fetch_add(&r->connections, 1);
        c->fds[0] = fd;
        c->fds[1] = dial(r->server_port);
        int after = atomic_load(&r->after);
        atomic_store(&c->left, after ? (int)(any(r) % (uint64_t)after) : 0);
        for (int i = 0; i < 2; i++) {
            pthread_t thread;
            struct way *w = malloc(sizeof *w);
            *w = (struct way){c, i};
            atomic_fetch_add(&r->running, 1);
            CHECK(pthread_create(&thread, NULL, pump, w) == 0 && pthread_detach(thread) == 0);
        }
    }
    return NULL;
}

void hostile_start(struct hostile_relay *r, const char *server_url, enum mischief mischief, bool channels) {
    memset(r, 0, sizeof *r);
    r->channels = channels;
    r->server_port = atoi(strrchr(server_url, ':') + 1);
    atomic_store(&r->mischief, mischief);
    pthread_mutex_init(&r->lock, NULL);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    r->listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(r->listening, (struct sockaddr *)&at, sizeof at) == 0 && listen(r->listening, 16) == 0);
    CHECK(getsockname(r->listening, (struct sockaddr *)&at, &size) == 0);
    snprintf(r->url, sizeof r->url, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    CHECK(pthread_create(&r->thread, NULL, run, r) == 0);
}

void hostile_stop(struct hostile_relay *r) {
    atomic_store(&r->stop, true);
    pthread_join(r->thread, NULL);
    while (atomic_load(&r->running)) usleep(1000);
    close(r->listening);
    for (int i = 0; i < 2; i++) free(r->kept[i]), free(r->recent[i]);
    pthread_mutex_destroy(&r->lock);
}

/* ---- a session */

void relayed_open(struct relayed *r, const char *link, enum mischief mischief, int after, bool channels) {
    memset(r, 0, sizeof *r);
    mini_start(&r->server, NO_FAULT);
    r->server.grace_s = 100;
    hostile_start(&r->relay, r->server.url, mischief, channels);
    atomic_store(&r->relay.after, after);
    struct gv_link_options options = mini_options(&r->server, link);
    options.pool = r->relay.url;
    r->p = mini_connect(&r->server, &options);
}

void relayed_close(struct relayed *r) {
    gv_link_last(r->p.client);
    gv_link_last(r->p.worker);
    mini_close(&r->server, &r->p);
    mini_stop(&r->server);
    hostile_stop(&r->relay);
}

bool relayed_noticed_all(struct relayed *r) {
    uint64_t noticed = relayed_noticed(r), done = (uint64_t)atomic_load(&r->relay.done);
    uint64_t given_up = (uint64_t)atomic_load(&r->relay.connections) - 1 - link_counts(r->p.client).resumes;
    return noticed <= done && noticed + given_up >= done;
}

uint64_t relayed_noticed(struct relayed *r) { return link_counts(r->p.client).altered + link_counts(r->p.worker).altered; }
