/* Delayed sockets: never early, paced, in order, bounded, and ends that arrive as late as bytes do. */
#define _GNU_SOURCE
#include "../../../native/transport/delay/delay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../../../native/transport/futex.h"
#include "../../../native/transport/delay/delay_rings.h"
#include "../../../native/transport/shm/shm_layout.h"
#include "../check.h"
#include "mini_server.h"
#include "pair.h"

#define MS 1000000LL

static void sleep_ns(int64_t ns) {
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    nanosleep(&t, NULL);
}

static struct gv_link_spec spec_of(const char *text) {
    struct gv_link_spec spec;
    char error[GV_LINK_ERROR_TEXT];
    CHECK(gv_link_spec_parse(text, &spec, error));
    return spec;
}

struct wrapped {
    int near, far;
};

static int make_blocking(int fd) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return fd;
}

static struct wrapped wrap(const char *text) {
    struct gv_link_spec spec = spec_of(text);
    int fds[2];
    tcp_sockets(fds);
    int near = gv_delay_wrap(fds[0], &spec);
    CHECK(near >= 0 && near != fds[0]);
    CHECK(fcntl(near, F_GETFL) & O_NONBLOCK && fcntl(near, F_GETFD) & FD_CLOEXEC && fcntl(fds[0], F_GETFD) & FD_CLOEXEC);
    return (struct wrapped){make_blocking(near), fds[1]};
}

static void unwrap(struct wrapped w) {
    close(w.near);
    close(w.far);
    gv_delay_drain();
}

static void put(int fd, const void *from, size_t size) {
    for (const char *p = from; size;) {
        ssize_t n = send(fd, p, size, MSG_NOSIGNAL);
        CHECK(n > 0);
        p += n;
        size -= (size_t)n;
    }
}

static void get(int fd, void *to, size_t size) { CHECK(recv(fd, to, size, MSG_WAITALL) == (ssize_t)size); }

static int at_end(int fd) {
    char byte;
    return recv(fd, &byte, 1, 0) == 0;
}

/* ---- time */

static void *echo(void *arg) {
    int fd = *(int *)arg;
    char byte;
    while (recv(fd, &byte, 1, 0) == 1) put(fd, &byte, 1);
    return NULL;
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void round_trips(const char *text) {
    enum { TRIPS = 31 };
    struct gv_link_spec spec = spec_of(text);
    int64_t begin = gv_now_ns(), took[TRIPS];
    struct wrapped w = wrap(text);
    pthread_t thread;
    CHECK(gv_now_ns() - begin >= spec.rtt_ns);
    CHECK(pthread_create(&thread, NULL, echo, &w.far) == 0);
    for (int i = 0; i < TRIPS; i++) {
        char byte = (char)i, back = 0;
        begin = gv_now_ns();
        put(w.near, &byte, 1);
        get(w.near, &back, 1);
        took[i] = gv_now_ns() - begin;
        CHECK(back == byte && took[i] >= spec.rtt_ns);
    }
    qsort(took, TRIPS, sizeof *took, by_size);
    fprintf(stderr, "    %s: median %lld ns more than asked for\n", text, (long long)(took[TRIPS / 2] - spec.rtt_ns));
    shutdown(w.near, SHUT_WR);
    pthread_join(thread, NULL);
    close(w.far);
    CHECK(at_end(w.near));
    close(w.near);
    gv_delay_drain();
}

static void a_round_trip_is_never_early(void) {
    round_trips("delay(rtt=0ms,tcp)");
    round_trips("delay(rtt=100us,tcp)");
    round_trips("delay(rtt=1ms,tcp)");
    round_trips("delay(rtt=30ms,rate=10gbit,tcp)");
}

/* The peer speaks first, but it has to hear of the connection before. */
static void a_greeting_takes_two_round_trips(void) {
    int fds[2];
    struct gv_link_spec spec = spec_of("delay(rtt=40ms,tcp)");
    tcp_sockets(fds);
    put(fds[1], "hello", 5);
    int64_t begin = gv_now_ns();
    int near = make_blocking(gv_delay_wrap(fds[0], &spec));
    CHECK(gv_now_ns() - begin >= 40 * MS);
    char text[6] = "";
    get(near, text, 5);
    CHECK(gv_now_ns() - begin >= 80 * MS && strcmp(text, "hello") == 0);
    unwrap((struct wrapped){near, fds[1]});
}

struct transfer {
    int fd;
    uint64_t size, seed;
    bool pauses;
    int64_t done_at;
};

static uint64_t next(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 27);
}

static uint8_t byte_at(uint64_t seed, uint64_t at) {
    uint64_t state = seed + at / 64 * 77;
    return (uint8_t)(next(&state) >> (at % 57));
}

static void *send_all(void *arg) {
    struct transfer *t = arg;
    static const uint64_t most[] = {1, 10, 3000, 70000};
    static _Thread_local uint8_t piece[70000];
    uint64_t state = t->seed;
    for (uint64_t at = 0; at < t->size;) {
        uint64_t n = 1 + next(&state) % most[next(&state) % 4];
        if (n > t->size - at) n = t->size - at;
        for (uint64_t i = 0; i < n; i++) piece[i] = byte_at(t->seed, at + i);
        put(t->fd, piece, n);
        at += n;
        if (t->pauses && next(&state) % 50 == 0) sleep_ns((int64_t)(next(&state) % 2000000));
    }
    t->done_at = gv_now_ns();
    return NULL;
}

static void *receive_all(void *arg) {
    struct transfer *t = arg;
    static _Thread_local uint8_t piece[40000];
    uint64_t state = t->seed + 1;
    for (uint64_t at = 0; at < t->size;) {
        uint64_t n = 1 + next(&state) % sizeof piece;
        ssize_t got = recv(t->fd, piece, n < t->size - at ? n : t->size - at, 0);
        CHECK(got > 0);
        for (ssize_t i = 0; i < got; i++) CHECK(piece[i] == byte_at(t->seed, at + (uint64_t)i));
        at += (uint64_t)got;
        if (t->pauses && next(&state) % 50 == 0) sleep_ns((int64_t)(next(&state) % 2000000));
    }
    t->done_at = gv_now_ns();
    return NULL;
}

/* Transfers of `size` bytes over all the sockets at once, both ways; returns how long they took. */
static int64_t transfer(const char *text, int sockets, uint64_t size, bool pauses) {
    struct wrapped w[4];
    pthread_t threads[16];
    struct transfer t[16];
    int n = 0;
    for (int i = 0; i < sockets; i++) w[i] = wrap(text);
    int64_t begin = gv_now_ns(), end = 0;
    for (int i = 0; i < sockets; i++) {
        t[n++] = (struct transfer){w[i].near, size, (uint64_t)i, pauses, 0};
        t[n++] = (struct transfer){w[i].far, size, (uint64_t)i, pauses, 0};
        t[n++] = (struct transfer){w[i].far, size, (uint64_t)i + 100, pauses, 0};
        t[n++] = (struct transfer){w[i].near, size, (uint64_t)i + 100, pauses, 0};
    }
    for (int i = 0; i < n; i++) CHECK(pthread_create(&threads[i], NULL, i % 2 ? receive_all : send_all, &t[i]) == 0);
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        if (t[i].done_at > end) end = t[i].done_at;
    }
    for (int i = 0; i < sockets; i++) unwrap(w[i]);
    return end - begin;
}

static void random_traffic_arrives_in_order(void) {
    transfer("delay(rtt=0ms,tcp)", 1, 3000000, true);
    transfer("delay(rtt=3ms,tcp)", 2, 3000000, true);
    transfer("delay(rtt=1ms,rate=1gbit,tcp)", 2, 3000000, true);
}

static void a_rate_paces(void) {
    CHECK(transfer("delay(rate=80mbit,tcp)", 1, 2000000, false) >= 200 * MS);
    CHECK(transfer("delay(rtt=20ms,rate=80mbit,tcp)", 1, 1000000, false) >= 110 * MS);
}

/* As many sockets as one likes share one network. */
static void sockets_share_the_rate(void) { CHECK(transfer("delay(rate=80mbit,tcp)", 4, 500000, false) >= 200 * MS); }

/* ---- bounds */

/* Until no more goes in for a second; not before `least` went in, which it does, nor on when more than `most` went in. */
static uint64_t fill(int fd, uint64_t least, uint64_t most) {
    static const uint8_t zeros[65536];
    uint64_t all = 0;
    while (all <= most) {
        ssize_t n = send(fd, zeros, sizeof zeros, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            all += (uint64_t)n;
            continue;
        }
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, all < least ? 100000 : 1000) == 0) break;
    }
    return all;
}

/* Nobody reads: the line takes what it may and then no more. All of it arrives in the end. */
static void stalled(bool inward) {
    struct gv_link_spec spec = spec_of("delay(rtt=20ms,rate=400mbit,tcp)");
    int fds[2], small = 65536;
    tcp_sockets(fds);
    for (int i = 0; i < 2; i++) {
        setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    }
    int near = make_blocking(gv_delay_wrap(fds[0], &spec));
    uint64_t line = 400000000 / 8 / 50 + (4 << 20), most = line + (2 << 20), sent = fill(inward ? fds[1] : near, line, most);
    fprintf(stderr, "    %llu bytes, of which %llu may be in the line\n", (unsigned long long)sent, (unsigned long long)line);
    CHECK(sent <= most);
    CHECK(sent >= line);
    shutdown(inward ? fds[1] : near, SHUT_WR);
    uint64_t got = 0;
    uint8_t piece[65536];
    for (ssize_t n; (n = recv(inward ? near : fds[1], piece, sizeof piece, 0)) != 0; got += (uint64_t)n) CHECK(n > 0);
    CHECK(got == sent);
    unwrap((struct wrapped){near, fds[1]});
}

static void a_stalled_reader_stops_the_sender(void) {
    stalled(false);
    stalled(true);
}

/* ---- ends */

static void a_half_close_leaves_the_other_half(void) {
    struct wrapped w = wrap("delay(rtt=40ms,tcp)");
    char text[8] = "";
    int64_t begin = gv_now_ns();
    put(w.near, "question", 8);
    shutdown(w.near, SHUT_WR);
    get(w.far, text, 8);
    CHECK(at_end(w.far) && gv_now_ns() - begin >= 20 * MS && memcmp(text, "question", 8) == 0);
    struct transfer out = {w.far, 1000000, 5, false, 0}, in = {w.near, 1000000, 5, false, 0};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, send_all, &out) == 0);
    receive_all(&in);
    pthread_join(thread, NULL);
    begin = gv_now_ns();
    shutdown(w.far, SHUT_WR);
    CHECK(at_end(w.near) && gv_now_ns() - begin >= 20 * MS);
    unwrap(w);
}

/* The real socket breaks: what is in the line is gone, and the near end hears of it later. False: this thread was kept from its core for so long that it
 * had arrived. */
static bool lost_in_the_line(void) {
    struct wrapped w = wrap("delay(rtt=100ms,tcp)");
    struct linger none = {1, 0};
    char piece[100];
    put(w.near, "ping", 4); /* so that the time in which nothing can arrive is over */
    get(w.far, piece, 4);
    put(w.far, "pong", 4);
    get(w.near, piece, 4);
    put(w.far, "lost", 4);
    put(w.near, "lost", 4);
    sleep_ns(10 * MS);
    setsockopt(w.far, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    int64_t begin = gv_now_ns();
    close(w.far);
    ssize_t n = recv(w.near, piece, sizeof piece, 0);
    if (n > 0) {
        close(w.near);
        gv_delay_drain();
        return false;
    }
    CHECK(n == 0 || (n < 0 && errno == ECONNRESET));
    CHECK(gv_now_ns() - begin >= 50 * MS);
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; send(w.near, "x", 1, MSG_NOSIGNAL) >= 0; sleep_ns(MS)) CHECK(gv_now_ns() < until);
    close(w.near);
    gv_delay_drain();
    return true;
}

static void a_reset_loses_what_is_in_the_line(void) {
    int tries = 0;
    while (!lost_in_the_line()) CHECK(++tries < 20);
}

/* A peer that says something and closes, while we still send to it, is heard. */
static void last_words_arrive(void) {
    struct wrapped w = wrap("delay(rtt=60ms,tcp)");
    char text[6] = "";
    put(w.near, "x", 1);
    get(w.far, text, 1);
    put(w.near, "on its way", 10);
    put(w.far, "words", 5);
    close(w.far);
    get(w.near, text, 5);
    CHECK(strcmp(text, "words") == 0 && at_end(w.near));
    close(w.near);
    gv_delay_drain();
}

static void closing_delivers_what_was_sent(void) {
    int before = open_descriptors();
    struct wrapped w = wrap("delay(rtt=60ms,rate=400mbit,tcp)");
    enum { SIZE = 1000000 };
    static uint8_t piece[SIZE];
    int big = 4 * SIZE;
    setsockopt(w.far, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
    put(w.far, "never read", 10);
    int64_t begin = gv_now_ns();
    struct transfer t = {w.near, SIZE, 9, false, 0};
    send_all(&t);
    close(w.near);
    gv_delay_drain();
    CHECK(gv_now_ns() - begin >= 30 * MS + SIZE * 8LL * 5 / 2);
    CHECK(open_descriptors() == before + 1); /* far */
    get(w.far, piece, SIZE);
    for (int i = 0; i < SIZE; i++) CHECK(piece[i] == byte_at(9, (uint64_t)i));
    close(w.far);
}

/* A pump whose peer does not take anything does not hold up the end for ever. */
static void closing_does_not_wait_for_a_stuck_peer(void) {
    struct wrapped w = wrap("delay(rtt=2ms,tcp)");
    uint64_t sent = fill(w.near, (60 << 20) + 1, UINT64_MAX);
    CHECK(sent > (60 << 20));
    int64_t begin = gv_now_ns();
    close(w.near);
    gv_delay_drain();
    CHECK(gv_now_ns() - begin < TEST_PATIENCE_NS);
    close(w.far);
    gv_delay_drain();
}

static void open_ends_are_not_waited_for(void) {
    struct wrapped w = wrap("delay(rtt=20ms,tcp)");
    gv_delay_drain();
    char text[3] = "";
    put(w.near, "go", 2);
    get(w.far, text, 2);
    CHECK(strcmp(text, "go") == 0);
    unwrap(w);
}

/* ---- forks, descriptors, what is not delayed */

static void a_child_holds_nothing(void) {
    int before = open_descriptors(), go[2];
    char byte;
    struct wrapped w = wrap("delay(rtt=2ms,tcp)");
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(go[1]);
        close(w.near);
        close(w.far);
        if (open_descriptors() != before + 1) _exit(1);
        _exit(read(go[0], &byte, 1) == 0 ? 0 : 2);
    }
    close(w.near);
    CHECK(at_end(w.far)); /* although the child lives */
    close(w.far);
    close(go[0]);
    close(go[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    gv_delay_drain();
    CHECK(open_descriptors() == before);
}

/* The same with a parent that is killed, and a child that never looked. */
static void a_child_does_not_keep_the_connection(void) {
    int fds[2], go[2];
    struct gv_link_spec spec = spec_of("delay(rtt=2ms,tcp)");
    tcp_sockets(fds);
    CHECK(pipe(go) == 0);
    pid_t parent = fork();
    if (parent == 0) {
        close(fds[1]);
        close(go[1]);
        int near = gv_delay_wrap(fds[0], &spec);
        pid_t child = fork();
        char byte;
        if (child == 0) {
            close(near);
            _exit(read(go[0], &byte, 1) == 0 ? 0 : 2);
        }
        send(near, "x", 1, 0);
        pause();
    }
    close(fds[0]);
    close(go[0]);
    char byte;
    get(fds[1], &byte, 1);
    kill(parent, SIGKILL);
    CHECK(at_end(fds[1]));
    close(go[1]);
    CHECK(waitpid(parent, NULL, 0) == parent);
    close(fds[1]);
}

static void descriptors_come_through(void) {
    struct gv_link_spec spec = spec_of("delay(rtt=20ms,shm)");
    int fds[2], before = open_descriptors();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    int near = make_blocking(gv_delay_wrap(fds[0], &spec)), sent[2] = {open("/dev/null", O_RDONLY), open("/dev/zero", O_RDONLY)};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof sent)];
    } control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof sent)}};
    memcpy(CMSG_DATA(&control.header), sent, sizeof sent);
    char text[9] = "";
    struct iovec part = {(char[]){'w', 'i', 't', 'h'}, 4};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    put(fds[1], "none", 4);
    CHECK(sendmsg(fds[1], &m, 0) == 4);
    CHECK(recv(near, text, 4, MSG_WAITALL) == 4 && strcmp(text, "none") == 0);
    part = (struct iovec){text, 4};
    m = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    CHECK(recvmsg(near, &m, MSG_CMSG_CLOEXEC | MSG_WAITALL) == 4 && strcmp(text, "with") == 0);
    CHECK(control.header.cmsg_len == CMSG_LEN(sizeof(int))); /* the first one; a link has no use for more */
    int got;
    struct stat a, b;
    memcpy(&got, CMSG_DATA(&control.header), sizeof got);
    CHECK(fstat(got, &a) == 0 && fstat(sent[0], &b) == 0 && a.st_rdev == b.st_rdev);
    close(got);
    close(sent[0]);
    close(sent[1]);
    unwrap((struct wrapped){near, fds[1]});
    CHECK(open_descriptors() == before);
}

static void no_delay_no_wrapping(void) {
    struct gv_link_spec spec = spec_of("tcp(channels=2)");
    struct gv_delay_rings *carried;
    CHECK(gv_delay_wrap(4711, &spec) == 4711 && gv_delay_shm(4711, 4712, NULL, &spec, &carried) == 4712);
    spec = spec_of("delay(rtt=0ms,shm)");
    CHECK(gv_delay_shm(4711, 4712, NULL, &spec, &carried) == -1 && errno == ENOTCONN);
}

/* ---- links */

struct session {
    struct mini_server server;
    struct pair pair;
};

static void open_session(struct session *s, const char *text, const char *transport) {
    struct gv_open_error err;
    mini_start(&s->server, NO_FAULT);
    struct gv_link_options options = mini_options(&s->server, text);
    s->pair.client = gv_link_connect(&options, &err);
    if (!s->pair.client) fprintf(stderr, "%s\n", err.text);
    CHECK(s->pair.client && strcmp(gv_link_transport(s->pair.client), transport) == 0);
    s->pair.worker = mini_worker(&s->server);
    /* The server's threads must be through with the worker's link before it goes. */
    while (strcmp(transport, "tcp") == 0 && (!atomic_load(&s->server.channels) || atomic_load(&s->server.adding))) sleep_ns(MS);
}

static void send_flushed(struct gv_link *link, uint32_t body, uint64_t n) {
    CHECK(send_numbered(link, body, n));
    gv_send_flush(link);
}

struct traffic {
    struct gv_link *link;
    uint64_t records, payloads;
    _Atomic int *under_way; /* threads of both ends that still send or receive payloads */
};

static uint32_t body_of(uint64_t n) { return (uint32_t)(n * 2654435761u % (n % 100 ? 800 : 200000) / 8 * 8); }

static void *send_records(void *arg) {
    struct traffic *t = arg;
    for (uint64_t n = 1; n <= t->records; n++) {
        CHECK(send_numbered(t->link, body_of(n), n));
        if (n % 64 == 0 || n == t->records) gv_send_flush(t->link);
    }
    atomic_fetch_sub(t->under_way, 1);
    return NULL;
}

static void *receive_records(void *arg) {
    struct traffic *t = arg;
    for (uint64_t n = 1; n <= t->records; n++) CHECK(receive_numbered(t->link, n) == (int64_t)body_of(n));
    /* A link's acknowledgements come to its reader: he reads on as long as somebody may wait for them. */
    while (atomic_load(t->under_way)) {
        CHECK(!gv_recv_peek(t->link) && !gv_link_dead(t->link));
        gv_recv_wait(t->link, 5 * MS, 0);
    }
    return NULL;
}

static uint64_t size_of(uint64_t n) { return n % 3 ? n * 1000003 % 100000 : 3000001; }

static void *send_payloads(void *arg) {
    struct traffic *t = arg;
    uint8_t *payload = malloc(3000001);
    for (uint64_t n = 1; n <= t->payloads; n++) {
        for (uint64_t i = 0; i < size_of(n); i++) payload[i] = byte_at(n, i);
        CHECK(gv_bulk_send(t->link, n, payload, size_of(n)) == n);
    }
    free(payload);
    atomic_fetch_sub(t->under_way, 1);
    return NULL;
}

static void *receive_payloads(void *arg) {
    struct traffic *t = arg;
    uint8_t *payload = malloc(3000001);
    for (uint64_t n = 1; n <= t->payloads; n++) {
        struct gv_bulk_header h;
        CHECK(gv_bulk_recv_header(t->link, &h) == 0 && h.tag == n && h.size == size_of(n));
        CHECK(gv_bulk_recv(t->link, payload, h.size) == 0);
        for (uint64_t i = 0; i < h.size; i++) CHECK(payload[i] == byte_at(n, i));
    }
    free(payload);
    atomic_fetch_sub(t->under_way, 1);
    return NULL;
}

/* Records and payloads both ways at once, then a question and its answer. */
static void a_link(const char *text, const char *transport) {
    struct session s;
    open_session(&s, text, transport);
    struct gv_link_spec spec = spec_of(text);
    _Atomic int under_way = 6;
    struct traffic client = {s.pair.client, 3000, 7, &under_way}, worker = {s.pair.worker, 3000, 7, &under_way};
    void *(*const roles[8])(void *) = {send_records,     receive_records, send_payloads,   receive_payloads,
                                       receive_payloads, send_payloads,   receive_records, send_records};
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) CHECK(pthread_create(&threads[i], NULL, roles[i], i % 2 ? &worker : &client) == 0);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    int64_t begin = gv_now_ns();
    send_flushed(s.pair.client, 8, 3001);
    CHECK(receive_numbered(s.pair.worker, 3001) == 8);
    send_flushed(s.pair.worker, 16, 3001);
    CHECK(receive_numbered(s.pair.client, 3001) == 16);
    CHECK(gv_now_ns() - begin >= spec.rtt_ns);
    close_pair(&s.pair);
    mini_stop(&s.server);
}

static void links_work(void) {
    int before = open_descriptors();
    a_link("delay(rtt=10ms,tcp)", "tcp");
    a_link("delay(rtt=10ms,tcp(plain))", "tcp");
    a_link("delay(rtt=10ms,shm)", "shm");
    a_link("delay(rtt=0ms,shm)", "shm");
    a_link("delay(rtt=5ms,rate=1gbit,auto)", "shm");
    a_link("delay(rtt=5ms,rate=1gbit,tcp)", "tcp");
    CHECK(open_descriptors() == before);
}

/* What is said last is heard, and the end comes behind it. */
static void a_goodbye_arrives(const char *text, const char *transport) {
    int before = open_descriptors();
    struct session s;
    open_session(&s, text, transport);
    send_flushed(s.pair.client, 200000, 1);
    send_flushed(s.pair.client, 8, 2);
    int64_t begin = gv_now_ns();
    gv_link_close(s.pair.client);
    CHECK(gv_now_ns() - begin >= 30 * MS);
    CHECK(receive_numbered(s.pair.worker, 1) == 200000 && receive_numbered(s.pair.worker, 2) == 8);
    CHECK(receive_numbered(s.pair.worker, 3) == -1);
    gv_link_close(s.pair.worker);
    mini_stop(&s.server);
    CHECK(open_descriptors() == before);
}

static void goodbyes_arrive(void) {
    a_goodbye_arrives("delay(rtt=60ms,tcp)", "tcp");
    a_goodbye_arrives("delay(rtt=60ms,tcp(plain))", "tcp");
    a_goodbye_arrives("delay(rtt=60ms,shm)", "shm");
}

/* The worker's last words come before its end, both late. */
static void a_worker_ends(const char *text, const char *transport) {
    struct session s;
    open_session(&s, text, transport);
    send_flushed(s.pair.worker, 8, 1);
    int64_t begin = gv_now_ns();
    gv_link_close(s.pair.worker);
    CHECK(receive_numbered(s.pair.client, 1) == 8);
    CHECK(receive_numbered(s.pair.client, 2) == -1 && gv_now_ns() - begin >= 30 * MS);
    gv_link_close(s.pair.client);
    mini_stop(&s.server);
}

static void workers_end(void) { a_worker_ends("delay(rtt=60ms,shm)", "shm"); }

struct memories {
    void *near, *far;
    struct gv_delay_rings *rings;
    int sockets[2];
};

static const uint64_t sizes[4] = {1 << 20, 1 << 20, 1 << 21, 1 << 21};

static struct memories make_memories(const char *text) {
    static struct gv_wire wires[2];
    struct gv_link_spec spec = spec_of(text);
    struct memories m;
    int memfd = make_memfd(sizes), near;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, m.sockets) == 0);
    m.rings = gv_delay_rings_start(memfd, sizes, &spec, wires, &near);
    CHECK(m.rings);
    gv_delay_rings_join(m.rings, m.sockets[0]);
    m.near = mmap(NULL, gv_shm_size(sizes), PROT_READ | PROT_WRITE, MAP_SHARED, near, 0);
    m.far = mmap(NULL, gv_shm_size(sizes), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    CHECK(m.near != MAP_FAILED && m.far != MAP_FAILED);
    close(memfd);
    close(near);
    return m;
}

static void end_memories(struct memories *m) {
    gv_delay_rings_leave(m->rings, m->sockets[0]);
    gv_delay_rings_leave(m->rings, -1);
    munmap(m->near, gv_shm_size(sizes));
    munmap(m->far, gv_shm_size(sizes));
    close(m->sockets[0]);
    close(m->sockets[1]);
}

/* A worker whose positions are impossible: the session ends, nothing else happens. */
static void lying_peers_end_the_session(void) {
    struct memories m = make_memories("delay(rtt=1ms,shm)");
    atomic_store(&gv_shm_control(m.far, GV_SHM_REPLY)->tail, 3u << 20);
    CHECK(at_end(m.sockets[1]));
    CHECK(atomic_load(&gv_shm_control(m.near, GV_SHM_REPLY)->tail) == 3u << 20); /* whoever reads it will say so */
    end_memories(&m);
    m = make_memories("delay(rtt=1ms,shm)");
    atomic_store(&gv_shm_control(m.far, GV_SHM_BULK_OUT)->head, 8);
    atomic_store(&gv_shm_control(m.near, GV_SHM_BULK_OUT)->tail, 4);
    gv_wake_sleeper(&gv_shm_control(m.near, GV_SHM_BULK_OUT)->reader_sleeps);
    CHECK(at_end(m.sockets[1]));
    end_memories(&m);
}

static void unsound_memory_is_refused(void) {
    struct gv_wire wires[2];
    struct gv_link_spec spec = spec_of("delay(rtt=1ms,shm)");
    uint64_t smaller[4] = {1 << 20, 1 << 20, 1 << 20, 1 << 20};
    int near, memfd = make_memfd(smaller), before = open_descriptors();
    CHECK(gv_delay_rings_start(memfd, sizes, &spec, wires, &near) == NULL && errno == EINVAL);
    close(memfd);
    memfd = memfd_create("rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(ftruncate(memfd, (off_t)gv_shm_size(sizes)) == 0);
    CHECK(gv_delay_rings_start(memfd, sizes, &spec, wires, &near) == NULL && errno == EINVAL);
    CHECK(open_descriptors() == before);
    close(memfd);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"a_round_trip_is_never_early", a_round_trip_is_never_early},
        {"a_greeting_takes_two_round_trips", a_greeting_takes_two_round_trips},
        {"random_traffic_arrives_in_order", random_traffic_arrives_in_order},
        {"a_rate_paces", a_rate_paces},
        {"sockets_share_the_rate", sockets_share_the_rate},
        {"a_stalled_reader_stops_the_sender", a_stalled_reader_stops_the_sender},
        {"a_half_close_leaves_the_other_half", a_half_close_leaves_the_other_half},
        {"a_reset_loses_what_is_in_the_line", a_reset_loses_what_is_in_the_line},
        {"last_words_arrive", last_words_arrive},
        {"closing_delivers_what_was_sent", closing_delivers_what_was_sent},
        {"closing_does_not_wait_for_a_stuck_peer", closing_does_not_wait_for_a_stuck_peer},
        {"open_ends_are_not_waited_for", open_ends_are_not_waited_for},
        {"a_child_holds_nothing", a_child_holds_nothing},
        {"a_child_does_not_keep_the_connection", a_child_does_not_keep_the_connection},
        {"descriptors_come_through", descriptors_come_through},
        {"no_delay_no_wrapping", no_delay_no_wrapping},
        {"links_work", links_work},
        {"goodbyes_arrive", goodbyes_arrive},
        {"workers_end", workers_end},
        {"lying_peers_end_the_session", lying_peers_end_the_session},
        {"unsound_memory_is_refused", unsound_memory_is_refused},
    };
    signal(SIGPIPE, SIG_IGN);
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
