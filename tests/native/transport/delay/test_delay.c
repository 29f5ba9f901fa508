/* Delayed sockets: never early, paced, in order, bounded, and ends that arrive as late as bytes do. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "delay_fixture.h"

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

/* Few bytes, so that a line that does not pace is soon done on a busy machine, too. */
static void a_rate_paces(void) {
    CHECK(transfer("delay(rate=8mbit,tcp)", 1, 200000, false) >= 200 * MS);
    CHECK(transfer("delay(rtt=20ms,rate=8mbit,tcp)", 1, 100000, false) >= 110 * MS);
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
        CHECK(n < 0 && errno == EAGAIN); /* a line that was cut takes nothing, and poll says so at once */
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

/* A peer that says something and closes, while we still send to it, is heard. False: this thread was kept from its core for so long that what we sent came
 * before the end. */
static bool last_words(void) {
    struct wrapped w = wrap("delay(rtt=600ms,tcp)");
    char text[6] = "";
    put(w.near, "x", 1);
    get(w.far, text, 1);
    int64_t begin = gv_now_ns();
    put(w.near, "on its way", 10);
    put(w.far, "words", 5);
    close(w.far);
    bool in_time = gv_now_ns() - begin < 300 * MS;
    if (in_time) get(w.near, text, 5);
    CHECK(!in_time || (strcmp(text, "words") == 0 && at_end(w.near)));
    close(w.near);
    gv_delay_drain();
    return in_time;
}

static void last_words_arrive(void) {
    int tries = 0;
    while (!last_words()) CHECK(++tries < 20);
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
    struct wrapped w = wrap("delay(rtt=2ms,rate=400mbit,tcp)");
    uint64_t line = 4 << 20; /* a rate keeps it small: each socket buffer's worth takes two turns of a busy machine's processors */
    CHECK(fill(w.near, line, UINT64_MAX) >= line);
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
    };
    signal(SIGPIPE, SIG_IGN);
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
