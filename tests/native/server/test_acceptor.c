/* Strangers and clients at one socket: who is read, who is let go, and what the daemon takes. */
#define _GNU_SOURCE
#include "../../../native/server/acceptor.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <time.h>

#include "../../../native/wire/record.h"
#include "../check.h"

#define GREETING 100u
#define NONCE_AT 40u

static uint8_t greeting[GREETING];

struct port {
    struct acceptor *acceptor;
    struct sockaddr_in address;
};

static struct acceptor_config defaults(void) {
    for (unsigned i = 0; i < GREETING; i++) greeting[i] = (uint8_t)i;
    return (struct acceptor_config){
        .struct_size = sizeof(struct acceptor_config),
        .pending = {64, 128, 0, 0},
        .head_ms = 100000,
        .rest_ms = 100000,
        .greeting = greeting,
        .greeting_size = GREETING,
        .nonce_at = NONCE_AT,
    };
}

static struct port open_port(struct acceptor_config config) {
    struct port p = {.address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof p.address;
    config.listening = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(!bind(config.listening, (struct sockaddr *)&p.address, size) && !listen(config.listening, 128));
    CHECK(!getsockname(config.listening, (struct sockaddr *)&p.address, &size));
    p.acceptor = acceptor_open(&config);
    CHECK(p.acceptor);
    return p;
}

/* A connection from 127.0.0.`from`. */
static int dial(const struct port *p, int from) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000u + (unsigned)from)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&own, sizeof own));
    CHECK(!connect(fd, (const struct sockaddr *)&p->address, sizeof p->address));
    return fd;
}

static void receive(int fd, void *into, size_t size) { CHECK(recv(fd, into, size, MSG_WAITALL) == (ssize_t)size); }

static int greeted(const struct port *p, int from, uint8_t *nonce) {
    uint8_t raw[GREETING];
    int fd = dial(p, from);
    receive(fd, raw, sizeof raw);
    CHECK(!memcmp(raw, greeting, NONCE_AT) && !memcmp(raw + NONCE_AT + 32, greeting + NONCE_AT + 32, GREETING - NONCE_AT - 32));
    if (nonce) memcpy(nonce, raw + NONCE_AT, 32);
    return fd;
}

/* A message of `size` bytes that looks like a hello from outside. */
static void make_hello(uint8_t *raw, uint32_t size) {
    uint16_t version = GV_WIRE_VERSION, kind = GV_MESSAGE_HELLO;
    memcpy(raw, GV_MAGIC, 8);
    memcpy(raw + 8, &version, 2);
    memcpy(raw + 10, &kind, 2);
    memcpy(raw + 12, &size, 4);
    for (uint32_t i = 16; i < size; i++) raw[i] = (uint8_t)(i * 7);
}

static void say_hello(int fd) {
    uint8_t raw[200];
    make_hello(raw, sizeof raw);
    CHECK(send(fd, raw, sizeof raw, MSG_NOSIGNAL) == (ssize_t)sizeof raw);
}

/* The next thing that has happened; waits for it. */
static void take(const struct port *p, struct acceptor_event *event) {
    while (!acceptor_take(p->acceptor, event)) {
        struct pollfd wait = {.fd = acceptor_descriptor(p->acceptor), .events = POLLIN};
        poll(&wait, 1, -1);
    }
}

static bool closed(int fd) {
    uint8_t byte;
    ssize_t n;
    do n = recv(fd, &byte, 1, 0);
    while (n > 0);
    return n == 0 || errno == ECONNRESET;
}

static bool still_open(int fd) {
    uint8_t byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static int open_files(void) {
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(folder)) n++;
    closedir(folder);
    return n;
}

/* In pieces, with what is the worker's behind it: that stays in the socket. */
static void a_hello_comes_whole(void) {
    struct port p = open_port(defaults());
    for (uint32_t size = GV_HEAD_SIZE; size <= GV_MESSAGE_MAX; size = size * 2 + 1) {
        static uint8_t raw[GV_MESSAGE_MAX + 5];
        static struct acceptor_event event;
        uint8_t nonce[32], more[6] = {0};
        int fd = greeted(&p, 1, nonce);
        make_hello(raw, size);
        memcpy(raw + size, "later", 5);
        CHECK(send(fd, raw, 7, 0) == 7);
        usleep(2000);
        CHECK(send(fd, raw + 7, size + 5 - 7, 0) == (ssize_t)(size + 5 - 7));
        take(&p, &event);
        CHECK(event.kind == ACCEPTOR_HELLO && event.size == size && !memcmp(event.hello, raw, size));
        CHECK(!memcmp(event.nonce, nonce, 32));
        CHECK_TEXT(event.peer, "127.0.0.1:");
        struct pollfd wait = {.fd = event.fd, .events = POLLIN};
        CHECK(poll(&wait, 1, 10000) == 1 && recv(event.fd, more, 5, MSG_WAITALL) == 5 && !strcmp((char *)more, "later"));
        CHECK(fcntl(event.fd, F_GETFD) & FD_CLOEXEC);
        close(event.fd);
        CHECK(closed(fd));
        close(fd);
    }
    acceptor_close(p.acceptor);
}

static void nonces_differ(void) {
    struct port p = open_port(defaults());
    uint8_t nonce[2][32];
    int fds[2] = {greeted(&p, 1, nonce[0]), greeted(&p, 1, nonce[1])};
    CHECK(memcmp(nonce[0], nonce[1], 32) != 0);
    close(fds[0]);
    close(fds[1]);
    acceptor_close(p.acceptor);
}

/* The daemon refuses it and says so in its log: it gets the head. */
static void what_is_no_hello(void) {
    static const char *const texts[] = {"GET / HTTP/1.1\r\n\r\n", "GPUVIRT\0\1\0\1\0\xff\xff\xff\xff", "GPUVIRT\0\2\0\1\0\3\0\0\0"};
    struct port p = open_port(defaults());
    for (int i = 0; i < 3; i++) {
        static struct acceptor_event event;
        int fd = greeted(&p, 1, NULL);
        CHECK(send(fd, texts[i], 16, 0) == 16);
        take(&p, &event);
        CHECK(event.kind == ACCEPTOR_HELLO && event.size == GV_HEAD_SIZE && !memcmp(event.hello, texts[i], 16));
        close(event.fd);
        close(fd);
    }
    acceptor_close(p.acceptor);
}

static void the_silent_are_let_go(void) {
    struct acceptor_config config = defaults();
    config.head_ms = 50;
    config.rest_ms = 150;
    struct port p = open_port(config);
    static struct acceptor_event event;
    uint8_t raw[200];
    uint32_t late = 0;
    int fds[5];
    make_hello(raw, sizeof raw);
    for (int i = 0; i < 5; i++) fds[i] = greeted(&p, 7, NULL);
    CHECK(send(fds[4], raw, 100, MSG_NOSIGNAL) >= 0); /* a head, and not the rest */
    while (late < 5) {
        take(&p, &event);
        CHECK(event.kind == ACCEPTOR_LATE);
        CHECK_TEXT(event.peer, "127.0.0.7:");
        late += event.count;
    }
    CHECK(late == 5);
    for (int i = 0; i < 5; i++) {
        CHECK(closed(fds[i]));
        close(fds[i]);
    }
    acceptor_close(p.acceptor);
}

static void shares(void) {
    struct acceptor_config config = defaults();
    config.pending = (struct admission_limits){4, 8, 0, 0};
    struct port p = open_port(config);
    int honest = greeted(&p, 9, NULL), fds[10];
    for (int i = 0; i < 10; i++) fds[i] = greeted(&p, 2, NULL);
    for (int i = 0; i < 6; i++) CHECK(closed(fds[i]));
    for (int i = 6; i < 10; i++) CHECK(still_open(fds[i]));
    CHECK(still_open(honest));
    for (int i = 0; i < 10; i++) close(fds[i]);
    close(honest);
    acceptor_close(p.acceptor);
}

/* Six of one address, of whom two are greeted at once and one each 200 ms: so is the last. True: another address was greeted before it. */
static bool greeted_before_the_last(void) {
    struct acceptor_config config = defaults();
    config.pending = (struct admission_limits){64, 128, 5, 1};
    struct port p = open_port(config);
    struct timespec began, ended;
    int fds[6];
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int i = 0; i < 6; i++) fds[i] = dial(&p, 2);
    close(greeted(&p, 3, NULL));
    uint8_t raw[GREETING];
    receive(fds[0], raw, sizeof raw);
    bool before = still_open(fds[5]);
    receive(fds[5], raw, sizeof raw);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    CHECK((ended.tv_sec - began.tv_sec) * 1000 + (ended.tv_nsec - began.tv_nsec) / 1000000 >= 790);
    for (int i = 0; i < 6; i++) close(fds[i]);
    acceptor_close(p.acceptor);
    return before;
}

/* Who is over his rate is greeted later; another address is not. On a busy machine this thread may come too late to see it: then once more. */
static void rates(void) {
    int tries = 0;
    while (!greeted_before_the_last()) CHECK(++tries < 10);
}

/* How many of sixty hellos of one address come before one of another, which was sent when they had lain there for a while. */
static int before_another(useconds_t lying) {
    struct port p = open_port(defaults());
    static struct acceptor_event event;
    int fds[60];
    for (int i = 0; i < 60; i++) {
        fds[i] = greeted(&p, 2, NULL);
        say_hello(fds[i]);
    }
    usleep(lying);
    int honest = greeted(&p, 3, NULL);
    say_hello(honest);
    usleep(lying);
    int before = 0, others = 0;
    for (int i = 0; i < 61; i++) {
        take(&p, &event);
        CHECK(event.kind == ACCEPTOR_HELLO && event.size == 200);
        if (strstr(event.peer, "127.0.0.3:")) before = i;
        others += strstr(event.peer, "127.0.0.2:") != NULL;
        close(event.fd);
    }
    CHECK(others == 60);
    for (int i = 0; i < 60; i++) close(fds[i]);
    close(honest);
    acceptor_close(p.acceptor);
    return before;
}

/* That of another address is among the next few. On a busy machine the acceptor may not have read it yet when the others are taken: then with more time. */
static void hellos_are_taken_in_turn(void) {
    int before = 60;
    for (useconds_t lying = 100000; before >= 10 && lying < 10000000; lying *= 4) before = before_another(lying);
    CHECK(before > 0 && before < 10);
}

/* Without a descriptor for a connection: the oldest silent one goes, the daemon hears of it, and it goes on. */
static void without_descriptors(void) {
    struct port p = open_port(defaults());
    static struct acceptor_event event;
    struct rlimit limit, before;
    int fds[8];
    for (int i = 0; i < 7; i++) fds[i] = greeted(&p, 2, NULL);
    fds[7] = socket(AF_INET, SOCK_STREAM, 0);
    getrlimit(RLIMIT_NOFILE, &before);
    limit = before;
    limit.rlim_cur = (rlim_t)fds[7] + 1;
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    CHECK(!connect(fds[7], (struct sockaddr *)&p.address, sizeof p.address));
    take(&p, &event);
    CHECK(event.kind == ACCEPTOR_EXHAUSTED && event.count >= 1 && event.error == EMFILE);
    CHECK(closed(fds[0]));
    uint8_t raw[GREETING];
    receive(fds[7], raw, sizeof raw);
    CHECK(!setrlimit(RLIMIT_NOFILE, &before));
    for (int i = 0; i < 8; i++) close(fds[i]);
    acceptor_close(p.acceptor);
}

static void closing_leaves_nothing(void) {
    int before = open_files();
    struct acceptor_config config = defaults();
    config.pending = (struct admission_limits){64, 128, 10, 4};
    struct port p = open_port(config);
    int fds[40];
    for (int i = 0; i < 40; i++) {
        fds[i] = dial(&p, 2 + i % 4);
        if (i % 3 == 0) say_hello(fds[i]);
    }
    usleep(50000);
    acceptor_close(p.acceptor);
    for (int i = 0; i < 40; i++) {
        CHECK(closed(fds[i]));
        close(fds[i]);
    }
    CHECK(open_files() == before);
}

static void unsound_configurations(void) {
    struct acceptor_config config = defaults();
    config.struct_size--;
    CHECK(!acceptor_open(&config) && errno == EINVAL);
    config = defaults();
    config.nonce_at = GREETING - 31;
    CHECK(!acceptor_open(&config) && errno == EINVAL);
    config = defaults();
    config.listening = -1;
    CHECK(!acceptor_open(&config) && errno == EBADF);
}

/* ---- carrying ------------------------------------------------------------------------------------------------------------------- */

#define UNPROVED 100u /* bytes */

struct behind {
    struct sockaddr_un address;
    int listening;
};

static struct behind listen_behind(void) {
    struct behind b = {.address = {.sun_family = AF_UNIX}};
    snprintf(b.address.sun_path, sizeof b.address.sun_path, "/tmp/gpuvirt-test-%d", (int)getpid());
    unlink(b.address.sun_path);
    b.listening = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(!bind(b.listening, (struct sockaddr *)&b.address, sizeof b.address) && !listen(b.listening, 16));
    return b;
}

static struct port carry_to(const struct behind *b, uint32_t limit_ms) {
    struct acceptor_config config = defaults();
    config.behind = b->address.sun_path;
    config.head_ms = limit_ms;
    config.proved = (struct admission_limits){2, 4, 0, 0};
    config.unproved_bytes = UNPROVED;
    return open_port(config);
}

static int accept_behind(const struct behind *b) {
    int fd = accept(b->listening, NULL, NULL);
    CHECK(fd >= 0);
    return fd;
}

static void leave_behind(struct behind *b) {
    close(b->listening);
    unlink(b->address.sun_path);
}

static void send_all(int fd, const uint8_t *bytes, size_t size) {
    for (size_t at = 0; at < size;) {
        ssize_t n = send(fd, bytes + at, size - at, MSG_NOSIGNAL);
        CHECK(n > 0);
        at += (size_t)n;
    }
}

struct stream {
    int fd;
    size_t size;
    unsigned seed;
};

static void *send_stream(void *arg) {
    const struct stream *s = arg;
    uint8_t *bytes = malloc(s->size);
    CHECK(bytes);
    for (size_t i = 0; i < s->size; i++) bytes[i] = (uint8_t)(i * s->seed >> 3);
    send_all(s->fd, bytes, s->size);
    free(bytes);
    return NULL;
}

static void check_stream(int fd, size_t size, unsigned seed) {
    uint8_t *bytes = malloc(size);
    CHECK(bytes);
    receive(fd, bytes, size);
    for (size_t i = 0; i < size; i++) CHECK(bytes[i] == (uint8_t)(i * seed >> 3));
    free(bytes);
}

/* More than sockets hold, both ways, with a reader that begins late. */
static void bytes_are_carried(void) {
    struct behind b = listen_behind();
    struct port p = carry_to(&b, 100000);
    int client = dial(&p, 2);
    send_all(client, (const uint8_t *)"x", 1);
    int inner = accept_behind(&b);
    uint8_t first;
    receive(inner, &first, 1);
    CHECK(first == 'x');
    struct stream up = {client, 16 << 20, 11}, down = {inner, 16 << 20, 13};
    pthread_t threads[2];
    CHECK(!pthread_create(&threads[0], NULL, send_stream, &up) && !pthread_create(&threads[1], NULL, send_stream, &down));
    usleep(100000);
    check_stream(inner, up.size, up.seed);
    check_stream(client, down.size, down.seed);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    close(inner);
    CHECK(closed(client));
    close(client);
    client = dial(&p, 2);
    send_all(client, (const uint8_t *)"y", 1);
    inner = accept_behind(&b);
    close(client);
    CHECK(closed(inner));
    close(inner);
    acceptor_close(p.acceptor);
    leave_behind(&b);
}

/* Who says nothing is not even connected; who has not been sent more than anybody is sent is closed in time; who has stays. */
static void only_the_proved_stay(void) {
    struct behind b = listen_behind();
    struct port p = carry_to(&b, 10000); /* what a busy machine takes for the rest */
    static struct acceptor_event event;
    static const uint8_t bytes[UNPROVED + 1];
    int silent = dial(&p, 2), unproved = dial(&p, 2), good = dial(&p, 2);
    uint8_t got[UNPROVED + 1];
    send_all(unproved, bytes, 1);
    int inner[2] = {accept_behind(&b), -1};
    send_all(inner[0], bytes, UNPROVED);
    send_all(good, bytes, 1);
    inner[1] = accept_behind(&b);
    send_all(inner[1], bytes, UNPROVED + 1);
    receive(unproved, got, UNPROVED);
    receive(good, got, UNPROVED + 1);
    for (uint32_t late = 0; late < 2; late += event.count) {
        take(&p, &event);
        CHECK(event.kind == ACCEPTOR_LATE);
    }
    CHECK(closed(silent) && closed(unproved) && closed(inner[0]));
    usleep(100000);
    CHECK(still_open(good));
    struct pollfd nobody = {.fd = b.listening, .events = POLLIN};
    CHECK(poll(&nobody, 1, 0) == 0);
    close(silent);
    close(unproved);
    close(good);
    CHECK(closed(inner[1]));
    close(inner[0]);
    close(inner[1]);
    acceptor_close(p.acceptor);
    leave_behind(&b);
}

static void the_proved_have_a_share_too(void) {
    struct behind b = listen_behind();
    struct port p = carry_to(&b, 100000);
    static const uint8_t bytes[UNPROVED + 1];
    uint8_t got[UNPROVED + 1];
    int client[3], inner[3];
    for (int i = 0; i < 3; i++) {
        client[i] = dial(&p, 2);
        send_all(client[i], bytes, 1);
        inner[i] = accept_behind(&b);
        send_all(inner[i], bytes, sizeof bytes);
        receive(client[i], got, sizeof got);
    }
    CHECK(closed(client[0]) && still_open(client[1]) && still_open(client[2]));
    acceptor_close(p.acceptor);
    for (int i = 0; i < 3; i++) {
        CHECK(closed(inner[i]));
        close(client[i]);
        close(inner[i]);
    }
    leave_behind(&b);
}

static void nobody_behind(void) {
    struct behind b = listen_behind();
    struct port p = carry_to(&b, 100000);
    leave_behind(&b);
    int client = dial(&p, 2);
    send_all(client, (const uint8_t *)"x", 1);
    CHECK(closed(client));
    close(client);
    acceptor_close(p.acceptor);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"a_hello_comes_whole", a_hello_comes_whole},
        {"nonces_differ", nonces_differ},
        {"what_is_no_hello", what_is_no_hello},
        {"the_silent_are_let_go", the_silent_are_let_go},
        {"shares", shares},
        {"rates", rates},
        {"hellos_are_taken_in_turn", hellos_are_taken_in_turn},
        {"without_descriptors", without_descriptors},
        {"closing_leaves_nothing", closing_leaves_nothing},
        {"unsound_configurations", unsound_configurations},
        {"bytes_are_carried", bytes_are_carried},
        {"only_the_proved_stay", only_the_proved_stay},
        {"the_proved_have_a_share_too", the_proved_have_a_share_too},
        {"nobody_behind", nobody_behind},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
