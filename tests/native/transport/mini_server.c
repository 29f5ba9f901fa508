#define _GNU_SOURCE
#include "mini_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "../../../native/transport/seal/exchange.h"
#include "../check.h"
#include "pair.h"

#define SESSION 0x1122334455667788u

_Atomic int64_t test_open_ns = TEST_PATIENCE_NS;

long long test_open_limit(void) { return atomic_load(&test_open_ns); }

static const uint64_t rings[4] = {1 << 20, 1 << 20, 1 << 21, 1 << 21};

static void read_boot_id(char *to, size_t size) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, to, size - 1);
    CHECK(n > 0);
    to[strcspn(to, "\n")] = 0;
    close(fd);
}

static int get_all(int fd, void *to, size_t size) { return recv(fd, to, size, MSG_WAITALL) == (ssize_t)size; }

static void put_all(int fd, const void *from, size_t size) { (void)!send(fd, from, size, MSG_NOSIGNAL); }

/* Sends a message with descriptors. */
static void put_with(int fd, const void *from, size_t size, const int *fds, size_t count) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(3 * sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec part = {(void *)(uintptr_t)from, size};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(c), fds, count * sizeof(int));
    CHECK(sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)size || errno == EPIPE); /* who does not want to wait has hung up */
}

/* A connection with its handshake so far. */
struct guest {
    int fd;
    struct gv_transcript transcript;
    struct gv_hello hello;
    uint8_t raw[GV_MESSAGE_MAX]; /* the hello's */
    size_t size;
};

/* The bytes of the key exchange within a message, which may be encoded with its proof already. */
static uint8_t *exchange_in(uint8_t *raw, size_t size) {
    for (size_t at = GV_HEAD_SIZE; at + 4 <= size; at += 4u + raw[at + 2] + 256u * raw[at + 3])
        if (raw[at] == GV_TAG_KEY_EXCHANGE && raw[at + 1] == 0) return raw + at;
    CHECK(!"the message has a key exchange");
    return NULL;
}

/* What somebody on the way does to a message: takes the key exchange out (its tag becomes one that nobody knows), or puts another key there. */
static void meddle(uint8_t *raw, size_t size, bool strip) {
    uint8_t *field = exchange_in(raw, size), secret[GV_CRYPTO_KEY];
    char why[GV_DEATH_TEXT];
    if (strip)
        field[1] = 0x70;
    else
        CHECK(gv_exchange_offer(secret, field + 4, why));
}

/* Sends a welcome proved with `key`. */
static void answer(struct mini_server *s, struct guest *g, const struct gv_welcome *w, const uint8_t *key) {
    uint8_t raw[GV_MESSAGE_MAX];
    size_t size = gv_welcome_encode(w, raw);
    gv_welcome_prove(&g->transcript, raw, size, key);
    if (s->fault == STRIPPED_WELCOME || s->fault == REPLACED_WELCOME) meddle(raw, size, s->fault == STRIPPED_WELCOME);
    put_all(g->fd, raw, size);
}

static void welcome_shm(struct mini_server *s, struct guest *g, struct gv_welcome *w) {
    uint64_t sizes[4];
    uint8_t raw[GV_MESSAGE_MAX];
    memcpy(sizes, rings, sizeof sizes);
    if (s->fault == ODD_RINGS) sizes[1] += 4096;
    w->blob.size = sizeof sizes;
    memcpy(w->blob.data, sizes, sizeof sizes);
    w->descriptors = 1;
    size_t size = gv_welcome_encode(w, raw);
    gv_welcome_prove(&g->transcript, raw, size, s->secret);
    gv_session_key(&g->transcript, s->secret, s->key);
    int memfd;
    if (s->fault == UNSEALED_MEMORY || s->fault == SHORT_MEMORY) {
        memfd = memfd_create("rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK(ftruncate(memfd, s->fault == SHORT_MEMORY ? 8192 : 4096 + (6 << 20)) == 0);
    } else {
        memfd = make_memfd(rings);
    }
    int three[3] = {memfd, memfd, memfd};
    if (s->fault == NO_MEMORY) {
        put_all(g->fd, raw, size);
    } else if (s->fault == MEMORY_AND_EOF) {
        put_with(g->fd, raw, size / 2, three, 1);
    } else {
        put_with(g->fd, raw, size, three, s->fault == TWO_MEMORIES ? 3 : 1);
    }
    if (s->fault == NO_FAULT || s->fault == TWO_MEMORIES || s->fault == RESUME_REFUSED || s->fault == RESUME_DENIED) {
        s->resumable = adopt_shm(g->fd, memfd, rings);
        CHECK(s->resumable);
        gv_link_set_grace(s->resumable, (int64_t)s->grace_s * 1000000000);
        atomic_store(&s->worker, s->resumable);
    } else {
        close(memfd);
        close(g->fd);
    }
}

static bool offers(const struct gv_hello *hello, const char *name) {
    for (uint32_t i = 0; i < hello->transports.n; i++)
        if (strcmp(hello->transports.at[i].name, name) == 0) return true;
    return false;
}

static void say_states(struct mini_server *s, struct guest *g) {
    for (int i = 0; i < s->waits; i++) {
        struct gv_state state = {.state = s->state, .place = (uint32_t)(s->waits - i), .queued = 7};
        uint8_t raw[GV_MESSAGE_MAX];
        size_t size = gv_state_encode(&state, raw);
        gv_transcript_add(&g->transcript, raw, size);
        put_all(g->fd, raw, size);
        usleep(50000);
    }
}

/* Answers the client's offer, where there is one. */
static bool exchange(struct mini_server *s, struct guest *g, struct gv_welcome *w, uint8_t shared[GV_CRYPTO_KEY]) {
    char why[GV_DEATH_TEXT] = "";
    if (!g->hello.key_exchange.size || s->fault == NO_EXCHANGE) return false;
    CHECK(g->hello.key_exchange.size == GV_EXCHANGE_SIZE);
    if (!gv_exchange_answer(g->hello.key_exchange.data, w->key_exchange.data, shared, why)) fprintf(stderr, "%s\n", why);
    CHECK(!*why);
    s->seal.cipher = w->key_exchange.data[0];
    w->key_exchange.size = s->fault == ODD_EXCHANGE ? GV_EXCHANGE_SIZE - 1 : GV_EXCHANGE_SIZE;
    if (s->fault == EMPTY_EXCHANGE) memset(w->key_exchange.data + 1, 0, GV_CRYPTO_KEY);
    if (s->fault == OTHER_CIPHER) w->key_exchange.data[0] = 9;
    return true;
}

static struct gv_link *adopt_sealed_tcp(int fd, const struct gv_link_secret *seal) {
    char why[GV_DEATH_TEXT] = "";
    struct gv_link *link = gv_link_adopt("tcp", &(struct gv_endpoint){.fd = fd, .seal = seal}, why);
    if (!link) fprintf(stderr, "%s\n", why);
    return link;
}

static void welcome_session(struct mini_server *s, struct guest *g) {
    struct gv_welcome w = {.session = SESSION, .grace_s = s->grace_s};
    int fd = g->fd;
    s->hello = g->hello;
    uint8_t shared[GV_CRYPTO_KEY];
    atomic_fetch_add(&s->sessions, 1);
    if (s->fault == STRIPPED_HELLO || s->fault == REPLACED_HELLO) {
        meddle(g->raw, g->size, s->fault == STRIPPED_HELLO);
        CHECK(gv_hello_decode(&g->hello, g->raw, g->size));
        CHECK((s->fault == STRIPPED_HELLO) == !g->hello.key_exchange.size);
    }
    if (!gv_hello_proved(&g->transcript, g->raw, g->size, s->secret) || memcmp(g->hello.token_id, s->token_id, sizeof s->token_id) != 0 ||
        s->fault == WRONG_TOKEN) {
        w.status = GV_WELCOME_DENIED;
        strcpy(w.text, "the token is not known here");
        answer(s, g, &w, (const uint8_t[GV_SECRET_SIZE]){0});
        close(fd);
        return;
    }
    say_states(s, g);
    if (s->moves_to) {
        w.status = GV_WELCOME_MOVED;
        snprintf(w.address, sizeof w.address, "%s", s->moves_to);
        answer(s, g, &w, s->secret);
        close(fd);
        return;
    }
    bool shm = offers(&g->hello, "shm");
    bool sealed = !shm && offers(&g->hello, "sealed");                                       /* sealed_row.c */
    bool verbs = !shm && !sealed && offers(&g->hello, "verbs") && !offers(&g->hello, "tcp"); /* who wants that alone */
    const char *chosen = shm ? "shm" : sealed ? "sealed" : verbs ? "verbs" : "tcp";
    snprintf(w.transport.name, sizeof w.transport.name, "%s", s->fault == OTHER_TRANSPORT ? "pigeon" : chosen);
    if (!shm && !verbs && s->fault != NO_CHANNELS) w.connections = 16;
    s->sealed = !shm && exchange(s, g, &w, shared);
    switch (s->fault) {
    case NO_ANSWER: s->held[s->n_held++] = fd; return;
    case BREAKS_OFF: close(fd); return;
    case BUSY_SERVER:
        w.status = GV_WELCOME_BUSY;
        memset(w.text, 'x', sizeof w.text - 1);
        memcpy(w.text, "all taken\x1b[2J\n", 14);
        answer(s, g, &w, s->secret);
        break;
    case REFUSES_MUTELY:
        w.status = 4711;
        answer(s, g, &w, s->secret);
        break;
    case STRANGE_WELCOME: {
        uint8_t strange[512];
        memset(strange, 'H', sizeof strange);
        put_all(fd, strange, sizeof strange);
        break;
    }
    case NEWER_WELCOME: {
        uint8_t raw[GV_MESSAGE_MAX];
        size_t size = gv_welcome_encode(&w, raw);
        raw[8] = 9;
        gv_welcome_prove(&g->transcript, raw, size, s->secret);
        put_all(fd, raw, size);
        break;
    }
    case UNPROVED: answer(s, g, &w, (const uint8_t[GV_SECRET_SIZE]){1}); break;
    case SEALED:
        w.key_exchange.size = 32;
        answer(s, g, &w, s->secret);
        break;
    case OTHER_TRANSPORT: answer(s, g, &w, s->secret); break;
    default:
        if (shm) {
            welcome_shm(s, g, &w);
            return;
        }
        if (s->fault == CHANNEL_NO_LISTENER) close(s->listening);
        answer(s, g, &w, s->secret);
        if (s->sealed) {
            gv_sealed_session_keys(&g->transcript, s->secret, shared, s->key, s->seal.key);
        } else {
            gv_session_key(&g->transcript, s->secret, s->key);
        }
        s->resumable = sealed ? adopt_sealed(fd) : verbs ? adopt_verbs(fd) : s->sealed ? adopt_sealed_tcp(fd, &s->seal) : adopt_tcp(fd);
        CHECK(s->resumable);
        gv_link_set_grace(s->resumable, (int64_t)s->grace_s * 1000000000);
        atomic_store(&s->worker, s->resumable);
        return;
    }
    close(fd);
}

struct adding {
    struct mini_server *server;
    int channel, fd;
    uint32_t epoch;
};

/* A thread of its own: the ends of a session's connections greet each other, and wait for that. */
static void *add_connection(void *arg) {
    struct adding *a = arg;
    struct gv_link *link = a->server->resumable;
    if (a->channel >= 0 && !a->epoch) {
        if (gv_link_add_channel(link, a->channel, a->fd)) close(a->fd);
    } else {
        gv_link_resume(link, a->channel, a->fd, a->epoch);
    }
    atomic_fetch_sub(&a->server->adding, 1);
    free(a);
    return NULL;
}

static void add_later(struct mini_server *s, int channel, int fd, uint32_t epoch) {
    pthread_t thread;
    struct adding *a = malloc(sizeof *a);
    *a = (struct adding){s, channel, fd, epoch};
    atomic_fetch_add(&s->adding, 1);
    CHECK(pthread_create(&thread, NULL, add_connection, a) == 0 && pthread_detach(thread) == 0);
}

static void welcome_resume(struct mini_server *s, struct guest *g) {
    struct gv_welcome w = {.session = g->hello.session};
    CHECK(g->hello.session == SESSION && gv_hello_proved(&g->transcript, g->raw, g->size, s->key));
    atomic_fetch_add(&s->resumes, 1);
    say_states(s, g);
    if (s->moves_to && atomic_fetch_sub(&s->resume_moves, 1) > 0) {
        w.status = GV_WELCOME_MOVED;
        snprintf(w.address, sizeof w.address, "%s", s->moves_to);
    } else if (s->fault == RESUME_REFUSED) {
        w.status = GV_WELCOME_UNKNOWN;
        strcpy(w.text, "this server has no such session (any more)");
    } else if (s->fault == RESUME_DENIED) {
        w.status = GV_WELCOME_DENIED;
        strcpy(w.text, "the key of this session is another one");
    }
    answer(s, g, &w, s->key);
    if (w.status != GV_WELCOME_OK)
        close(g->fd);
    else
        add_later(s, -1, g->fd, g->hello.epoch);
}

static void welcome_channel(struct mini_server *s, struct guest *g) {
    struct gv_welcome w = {.session = g->hello.session};
    CHECK(g->hello.session == SESSION && gv_hello_proved(&g->transcript, g->raw, g->size, s->key));
    if (s->fault == CHANNEL_REFUSED) {
        w.status = GV_WELCOME_UNKNOWN;
        strcpy(w.text, "no such session");
    }
    answer(s, g, &w, s->fault == CHANNEL_UNPROVED ? s->secret : s->key);
    if (s->fault == NO_FAULT || s->fault == RESUME_REFUSED || s->fault == RESUME_DENIED) {
        add_later(s, g->hello.channel, g->fd, g->hello.epoch);
    } else {
        close(g->fd);
    }
    atomic_fetch_add(&s->channels, 1);
}

/* A greeting as wire version 1 had it. */
static void greet_as_before(int fd) {
    struct {
        char magic[8];
        uint16_t low, high, control_port, flags;
        uint8_t rest[304];
    } old = {.magic = GV_MAGIC, .low = 1, .high = 1, .control_port = 4711, .flags = 1};
    put_all(fd, &old, sizeof old);
}

static bool read_hello(struct guest *g) {
    struct gv_head head;
    if (!get_all(g->fd, g->raw, GV_HEAD_SIZE)) return false;
    CHECK(gv_message_head(g->raw, &head) == GV_HEAD_GOOD);
    g->size = head.size;
    if (!get_all(g->fd, g->raw + GV_HEAD_SIZE, head.size - GV_HEAD_SIZE)) return false;
    CHECK(gv_hello_decode(&g->hello, g->raw, g->size));
    return true;
}

static void serve_one(struct mini_server *s, int fd) {
    struct gv_greeting greeting = {.version_min = GV_WIRE_VERSION, .version_max = GV_WIRE_VERSION, .server_name = "mini"};
    struct guest *g = calloc(1, sizeof *g);
    uint8_t raw[GV_MESSAGE_MAX];
    g->fd = fd;
    CHECK(getrandom(greeting.nonce, sizeof greeting.nonce, 0) == sizeof greeting.nonce);
    read_boot_id(greeting.boot_id, sizeof greeting.boot_id);
    memcpy(greeting.unix_path, s->unix_path, sizeof greeting.unix_path);
    if (s->fault == NEWER) greeting.version_min = 3, greeting.version_max = 4;
    if (s->fault == OTHER_HOST) greeting.boot_id[0] ^= 1;
    if (s->fault == NO_UNIX) greeting.unix_path[0] = 0;
    if (s->fault == LOST_UNIX) strcat(greeting.unix_path, "\x1b");
    size_t size = gv_greeting_encode(&greeting, raw);
    gv_transcript_begin(&g->transcript, raw, size);
    if (s->fault == SILENT) {
        s->held[s->n_held++] = fd;
        free(g);
        return;
    }
    if (s->fault == GARBAGE || (s->fault == CHANNEL_GARBAGE && atomic_load(&s->sessions))) {
        memset(raw, 0, size);
        strcpy((char *)raw, "HTTP/1.1 400 Bad Request\r\n");
    }
    if (s->fault == RESETS) {
        struct linger none = {1, 0};
        put_all(fd, raw, 100);
        usleep(20000);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        close(fd);
        free(g);
        return;
    }
    if (s->fault == OLDER)
        greet_as_before(fd);
    else if (s->fault != HANGS_UP)
        put_all(fd, raw, size);
    if (s->fault == HANGS_UP || !read_hello(g)) {
        close(fd);
    } else if (g->hello.purpose == GV_HELLO_RESUME) {
        welcome_resume(s, g);
    } else if (g->hello.purpose == GV_HELLO_CHANNEL) {
        welcome_channel(s, g);
    } else {
        welcome_session(s, g);
    }
    free(g);
}

static void *serve(void *arg) {
    struct mini_server *s = arg;
    for (;;) {
        struct pollfd fds[3] = {{s->stop[0], POLLIN, 0}, {s->listening, POLLIN, 0}, {s->unix_listening, POLLIN, 0}};
        if (poll(fds, 3, -1) < 0 || fds[0].revents) return NULL;
        for (int i = 1; i < 3; i++) {
            if (!(fds[i].revents & POLLIN)) continue;
            int fd = accept4(fds[i].fd, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0) serve_one(s, fd);
        }
        if (s->fault == CHANNEL_NO_LISTENER && atomic_load(&s->sessions)) s->listening = -1;
    }
}

void mini_start(struct mini_server *s, enum fault fault) {
    memset(s, 0, sizeof *s);
    s->fault = fault;
    /* Where there is an answer it may take its time, where there is none the time is to be over. */
    atomic_store(&test_open_ns, fault == SILENT ? 700000000 : fault == NO_ANSWER ? 3000000000 : TEST_PATIENCE_NS);
    memset(s->token_id, 7, sizeof s->token_id);
    memset(s->secret, 9, sizeof s->secret);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    s->listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(s->listening, (struct sockaddr *)&at, sizeof at) == 0 && listen(s->listening, 8) == 0);
    CHECK(getsockname(s->listening, (struct sockaddr *)&at, &size) == 0);
    snprintf(s->url, sizeof s->url, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    struct sockaddr_un here = {.sun_family = AF_UNIX};
    snprintf(s->unix_path, sizeof s->unix_path, "/tmp/gpuvirt-test-%d-%d.sock", (int)getpid(), ntohs(at.sin_port));
    strcpy(here.sun_path, s->unix_path);
    unlink(s->unix_path);
    s->unix_listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(s->unix_listening, (struct sockaddr *)&here, sizeof here) == 0 && listen(s->unix_listening, 8) == 0);
    CHECK(pipe2(s->stop, O_CLOEXEC) == 0);
    CHECK(pthread_create(&s->thread, NULL, serve, s) == 0);
}

void mini_stop(struct mini_server *s) {
    CHECK(write(s->stop[1], "x", 1) == 1);
    pthread_join(s->thread, NULL);
    while (atomic_load(&s->adding)) usleep(1000);
    gv_link_close(atomic_load(&s->worker)); /* one that no test took */
    for (int i = 0; i < s->n_held; i++) close(s->held[i]);
    if (s->listening >= 0) close(s->listening);
    close(s->unix_listening);
    close(s->stop[0]);
    close(s->stop[1]);
    unlink(s->unix_path);
}

struct gv_link *mini_worker(struct mini_server *s) {
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; gv_now_ns() < until;) {
        struct gv_link *worker = atomic_exchange(&s->worker, NULL);
        if (worker) return worker;
        usleep(1000);
    }
    CHECK(!"a session was opened");
    return NULL;
}

void mini_close(struct mini_server *s, struct pair *pair) {
    gv_link_close(pair->client);
    while (atomic_load(&s->adding)) usleep(1000);
    gv_link_close(pair->worker);
}

struct gv_link_options mini_options(struct mini_server *s, const char *link) {
    return (struct gv_link_options){.pool = s->url, .link = link, .token_id = s->token_id, .secret = s->secret, .gpus = 2, .program = "test"};
}

struct pair mini_connect(struct mini_server *s, const struct gv_link_options *options) {
    struct gv_open_error err;
    struct pair pair = {.client = gv_link_connect(options, &err)};
    if (!pair.client) fprintf(stderr, "%s\n", err.text);
    CHECK(pair.client);
    pair.worker = mini_worker(s);
    return pair;
}

void take_notice(void *arg, const char *text) {
    struct notices *notices = arg;
    snprintf(notices->last, sizeof notices->last, "%s", text);
    atomic_fetch_add(&notices->n, 1);
}
