#define _GNU_SOURCE
#include "mini_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "../check.h"
#include "pair.h"

#define SESSION 0x1122334455667788u

_Atomic int64_t test_open_ns = TEST_PATIENCE_NS;

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
    CHECK(sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)size);
}

static void welcome_shm(struct mini_server *s, int fd, struct gv_welcome *w, const struct gv_hello *hello, const uint8_t *nonce) {
    uint64_t sizes[4];
    memcpy(sizes, rings, sizeof sizes);
    if (s->fault == ODD_RINGS) sizes[1] += 4096;
    w->command_ring = sizes[0], w->reply_ring = sizes[1], w->bulk_out_ring = sizes[2], w->bulk_in_ring = sizes[3];
    gv_welcome_prove(w, s->secret, hello->nonce, nonce);
    int memfd;
    if (s->fault == UNSEALED_MEMORY || s->fault == SHORT_MEMORY) {
        memfd = memfd_create("rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK(ftruncate(memfd, s->fault == SHORT_MEMORY ? 8192 : 4096 + (6 << 20)) == 0);
    } else {
        memfd = make_memfd(rings);
    }
    int three[3] = {memfd, memfd, memfd};
    if (s->fault == NO_MEMORY) {
        put_all(fd, w, sizeof *w);
    } else if (s->fault == MEMORY_AND_EOF) {
        put_with(fd, w, sizeof *w / 2, three, 1);
    } else {
        put_with(fd, w, sizeof *w, three, s->fault == TWO_MEMORIES ? 3 : 1);
    }
    if (s->fault == NO_FAULT || s->fault == TWO_MEMORIES) {
        struct gv_link *worker = gv_link_adopt_shm(fd, memfd, rings[0], rings[1], rings[2], rings[3]);
        CHECK(worker);
        atomic_store(&s->worker, worker);
    } else {
        close(memfd);
        close(fd);
    }
}

static void welcome_session(struct mini_server *s, int fd, const struct gv_hello *hello, const uint8_t *nonce) {
    struct gv_welcome w = {.session = SESSION, .channels = s->fault == NO_CHANNELS ? 0 : 16, .grace_s = s->grace_s};
    s->hello = *hello;
    atomic_fetch_add(&s->sessions, 1);
    gv_session_key(s->key, s->secret, nonce, hello->nonce, SESSION);
    if (!gv_hello_proved(hello, s->secret, nonce) || memcmp(hello->token_id, s->token_id, sizeof s->token_id) != 0 || s->fault == WRONG_TOKEN) {
        memcpy(w.magic, GV_MAGIC, 8);
        w.version = GV_WIRE_VERSION;
        w.status = GV_WELCOME_DENIED;
        strcpy(w.text, "the token is not known here");
        put_all(fd, &w, sizeof w);
        close(fd);
        return;
    }
    switch (s->fault) {
    case NO_ANSWER: s->held[s->n_held++] = fd; return;
    case BREAKS_OFF: close(fd); return;
    case BUSY_SERVER:
        w.status = GV_WELCOME_BUSY;
        memset(w.text, 'x', sizeof w.text);
        memcpy(w.text, "all taken\x1b[2J\n", 14);
        gv_welcome_prove(&w, s->secret, hello->nonce, nonce);
        break;
    case REFUSES_MUTELY:
        w.status = 4711;
        gv_welcome_prove(&w, s->secret, hello->nonce, nonce);
        break;
    case STRANGE_WELCOME: memset(&w, 'H', sizeof w); break;
    case NEWER_WELCOME: {
        gv_welcome_prove(&w, s->secret, hello->nonce, nonce);
        w.version = 9;
        break;
    }
    case UNPROVED: {
        uint8_t other[GV_SECRET_SIZE] = {1};
        gv_welcome_prove(&w, other, hello->nonce, nonce);
        break;
    }
    default:
        if (hello->link == GV_LINK_SHM) {
            welcome_shm(s, fd, &w, hello, nonce);
            return;
        }
        if (s->fault == CHANNEL_NO_LISTENER) close(s->listening);
        gv_welcome_prove(&w, s->secret, hello->nonce, nonce);
        put_all(fd, &w, sizeof w);
        s->tcp_worker = gv_link_adopt_tcp(fd);
        CHECK(s->tcp_worker);
        gv_link_set_grace(s->tcp_worker, (int64_t)s->grace_s * 1000000000);
        atomic_store(&s->worker, s->tcp_worker);
        return;
    }
    put_all(fd, &w, sizeof w);
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
    struct gv_link *link = a->server->tcp_worker;
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

static void welcome_resume(struct mini_server *s, int fd, const struct gv_hello *hello, const uint8_t *nonce) {
    struct gv_welcome w = {.session = hello->session};
    CHECK(hello->session == SESSION && gv_hello_proved(hello, s->key, nonce));
    atomic_fetch_add(&s->resumes, 1);
    if (s->fault == RESUME_REFUSED) {
        w.status = GV_WELCOME_UNKNOWN;
        strcpy(w.text, "this server has no such session (any more)");
    } else if (s->fault == RESUME_DENIED) {
        w.status = GV_WELCOME_DENIED;
        strcpy(w.text, "the key of this session is another one");
    }
    gv_welcome_prove(&w, s->key, hello->nonce, nonce);
    put_all(fd, &w, sizeof w);
    if (w.status != GV_WELCOME_OK)
        close(fd);
    else
        add_later(s, -1, fd, hello->epoch);
}

static void welcome_channel(struct mini_server *s, int fd, const struct gv_hello *hello, const uint8_t *nonce) {
    struct gv_welcome w = {.session = hello->session};
    CHECK(hello->session == SESSION && gv_hello_proved(hello, s->key, nonce));
    if (s->fault == CHANNEL_REFUSED) {
        w.status = GV_WELCOME_UNKNOWN;
        strcpy(w.text, "no such session");
    }
    gv_welcome_prove(&w, s->fault == CHANNEL_UNPROVED ? s->secret : s->key, hello->nonce, nonce);
    put_all(fd, &w, sizeof w);
    if (s->fault == NO_FAULT || s->fault == RESUME_REFUSED || s->fault == RESUME_DENIED) {
        add_later(s, hello->channel, fd, hello->epoch);
    } else {
        close(fd);
    }
    atomic_fetch_add(&s->channels, 1);
}

static void serve_one(struct mini_server *s, int fd) {
    struct gv_greeting g = {.version_min = 1, .version_max = 1, .server_name = "mini"};
    struct gv_hello hello;
    memcpy(g.magic, GV_MAGIC, 8);
    CHECK(getrandom(g.nonce, sizeof g.nonce, 0) == sizeof g.nonce);
    read_boot_id(g.boot_id, sizeof g.boot_id);
    memcpy(g.unix_path, s->unix_path, sizeof g.unix_path);
    if (s->fault == NEWER) g.version_min = 2, g.version_max = 3;
    if (s->fault == OTHER_HOST) g.boot_id[0] ^= 1;
    if (s->fault == NO_UNIX) g.unix_path[0] = 0;
    if (s->fault == LOST_UNIX) strcat(g.unix_path, "\x1b");
    if (s->fault == SILENT) {
        s->held[s->n_held++] = fd;
        return;
    }
    if (s->fault == GARBAGE || (s->fault == CHANNEL_GARBAGE && atomic_load(&s->sessions))) {
        memset(&g, 0, sizeof g);
        strcpy((char *)&g, "HTTP/1.1 400 Bad Request\r\n");
    }
    if (s->fault == RESETS) {
        struct linger none = {1, 0};
        put_all(fd, &g, 100);
        usleep(20000);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        close(fd);
        return;
    }
    if (s->fault != HANGS_UP) put_all(fd, &g, sizeof g);
    if (s->fault == HANGS_UP || !get_all(fd, &hello, sizeof hello)) {
        close(fd);
        return;
    }
    CHECK(memcmp(hello.magic, GV_MAGIC, 8) == 0 && hello.version == GV_WIRE_VERSION);
    if (hello.kind == GV_HELLO_RESUME) {
        welcome_resume(s, fd, &hello, g.nonce);
    } else if (hello.kind == GV_HELLO_CHANNEL) {
        welcome_channel(s, fd, &hello, g.nonce);
    } else {
        welcome_session(s, fd, &hello, g.nonce);
    }
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
