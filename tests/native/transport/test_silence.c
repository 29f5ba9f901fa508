/* A peer that is stopped while everything on its way to it is full, and a peer whose host is gone: the first stays, the second is noticed.
 *
 * The gone one needs two network namespaces, and with them root: the case says so where it cannot be run. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../check.h"
#include "pair.h"

#ifndef STOPPED_S
#define STOPPED_S 12 /* longer than it takes to notice a silent host */
#endif
#define NOTICED_S 20
#define RECORDS 400u
#define RECORD_SIZE 30000u
#define PAYLOAD (24u << 20)

/* ---- the worker, a process of its own */

static uint8_t byte_at(uint64_t i) { return (uint8_t)(i * 2654435761u >> 13); }

static void *take_payload(void *arg) {
    struct gv_link *link = arg;
    struct gv_bulk_header h;
    uint8_t *data = malloc(PAYLOAD);
    CHECK(gv_bulk_recv_header(link, &h) == 0 && h.size == PAYLOAD && gv_bulk_recv(link, data, PAYLOAD) == 0);
    for (uint64_t i = 0; i < PAYLOAD; i += 997) CHECK(data[i] == byte_at(i));
    free(data);
    return NULL;
}

/* Stops at once; when it goes on, takes everything and says so with a record. */
static void work(struct gv_link *link) {
    pthread_t thread;
    raise(SIGSTOP);
    CHECK(pthread_create(&thread, NULL, take_payload, link) == 0);
    for (uint64_t i = 1; i <= RECORDS; i++) CHECK(receive_numbered(link, i) == RECORD_SIZE);
    pthread_join(thread, NULL);
    CHECK(send_numbered(link, 8, 1));
    gv_send_flush(link);
    while (!gv_link_dead(link)) usleep(10000);
}

static pid_t start_worker(bool sealed, struct gv_link **client) {
    int fds[2], bulk[2];
    tcp_sockets(fds);
    tcp_sockets(bulk);
    pid_t pid = fork(); /* before this process has threads for this link */
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]), close(bulk[0]);
        struct gv_link *link = sealed ? adopt_sealed(fds[1]) : adopt_tcp(fds[1]);
        CHECK(link && gv_link_add_channel(link, 0, bulk[1]) == 0);
        work(link);
        _exit(0);
    }
    close(fds[1]), close(bulk[1]);
    *client = sealed ? sealed_client(fds[0]) : tcp_client(fds[0]);
    CHECK(*client && gv_link_add_channel(*client, 0, bulk[0]) == 0);
    return pid;
}

/* ---- what fills everything on the way */

struct sending {
    struct gv_link *link;
    uint8_t *data;
    pthread_t records, payload;
    _Atomic uint64_t sent, ended;
};

static void *send_records(void *arg) {
    struct sending *s = arg;
    for (uint64_t i = 1; i <= RECORDS && send_numbered(s->link, RECORD_SIZE, i); i++) s->sent = i;
    gv_send_flush(s->link);
    s->ended++;
    return NULL;
}

static void *send_payload(void *arg) {
    struct sending *s = arg;
    gv_bulk_send(s->link, 3, s->data, PAYLOAD);
    s->ended++;
    return NULL;
}

static void send_start(struct sending *s, struct gv_link *link) {
    *s = (struct sending){.link = link, .data = malloc(PAYLOAD)};
    for (uint64_t i = 0; i < PAYLOAD; i++) s->data[i] = byte_at(i);
    CHECK(pthread_create(&s->records, NULL, send_records, s) == 0 && pthread_create(&s->payload, NULL, send_payload, s) == 0);
}

static void send_end(struct sending *s) {
    pthread_join(s->records, NULL);
    pthread_join(s->payload, NULL);
    gv_link_close(s->link);
    free(s->data);
}

/* ---- cases */

static void stopped_with_full_buffers(void) {
    struct gv_link *links[2];
    struct sending sending[2];
    pid_t pids[2];
    for (int i = 0; i < 2; i++) pids[i] = start_worker(i, &links[i]);
    for (int i = 0; i < 2; i++) send_start(&sending[i], links[i]);
    sleep(STOPPED_S);
    for (int i = 0; i < 2; i++) {
        if (gv_link_dead(links[i])) fprintf(stderr, "%s: %s\n", i ? "sealed" : "plain", gv_link_death(links[i]));
        CHECK(!gv_link_dead(links[i]));
        CHECK(!sending[i].ended); /* both were held up: everything on the way is full */
        kill(pids[i], SIGCONT);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(receive_numbered(links[i], 1) == 8);
        CHECK(sending[i].sent == RECORDS);
        send_end(&sending[i]);
        CHECK(waitpid(pids[i], NULL, 0) == pids[i]);
    }
}

static int connected(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = inet_addr("10.198.7.2")};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; connect(fd, (struct sockaddr *)&at, sizeof at) != 0; usleep(10000))
        CHECK(gv_now_ns() < until);
    return fd;
}

static int accepted(int listening) {
    int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

/* The other host: a link that is stopped at once, and one that is at rest. */
static void other_host(int ready, int port) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CHECK(unshare(CLONE_NEWNET) == 0);
    CHECK(write(ready, "n", 1) == 1);
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = INADDR_ANY};
    CHECK(bind(listening, (struct sockaddr *)&at, sizeof at) == 0 && listen(listening, 4) == 0);
    struct gv_link *links[2];
    for (int i = 0; i < 2; i++) {
        links[i] = adopt_tcp(accepted(listening));
        CHECK(links[i] && gv_link_add_channel(links[i], 0, accepted(listening)) == 0);
    }
    work(links[0]);
    _exit(0);
}

static bool ip(const char *line, pid_t other) {
    char command[400];
    snprintf(command, sizeof command, "set -e; ip() { command ip \"$@\" >&2; }; other=%d; %s", (int)other, line);
    return system(command) == 0;
}

static int64_t noticed_after(struct gv_link *link, int64_t since) {
    while (!gv_link_dead(link) && gv_now_ns() - since < TEST_PATIENCE_NS / 2) usleep(10000);
    CHECK(gv_link_dead(link));
    return (gv_now_ns() - since) / 1000000;
}

static void gone_with_full_buffers(void) {
    int ready[2], port = 7123;
    char byte;
    CHECK(pipe(ready) == 0);
    if (unshare(CLONE_NEWNET) != 0) {
        printf("skipped: no network namespaces (%s)\n", strerror(errno));
        return;
    }
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) other_host(ready[1], port);
    CHECK(read(ready[0], &byte, 1) == 1);
    if (!ip("ip link add v0 type veth peer name v1; ip link set v1 netns $other; ip addr add 10.198.7.1/24 dev v0; ip link set v0 up;"
            "nsenter -t $other -n ip addr add 10.198.7.2/24 dev v1; nsenter -t $other -n ip link set v1 up",
            pid)) {
        printf("skipped: no veth pair can be made here\n");
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return;
    }
    struct gv_link *links[2];
    for (int i = 0; i < 2; i++) {
        links[i] = tcp_client(connected(port));
        CHECK(links[i] && gv_link_add_channel(links[i], 0, connected(port)) == 0);
    }
    struct sending sending;
    send_start(&sending, links[0]);
    sleep(STOPPED_S);
    CHECK(!gv_link_dead(links[0]) && !gv_link_dead(links[1]) && !sending.ended);
    CHECK(ip("nsenter -t $other -n ip link set v1 down", pid));
    int64_t since = gv_now_ns();
    for (int i = 0; i < 2; i++) {
        int64_t ms = noticed_after(links[i], since);
        fprintf(stderr, "%s: noticed after %lld ms: %s\n", i ? "at rest" : "full", (long long)ms, gv_link_death(links[i]));
        CHECK(ms < NOTICED_S * 1000);
    }
    send_end(&sending);
    gv_link_close(links[1]);
    kill(pid, SIGKILL);
    CHECK(waitpid(pid, NULL, 0) == pid);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"stopped_with_full_buffers", stopped_with_full_buffers},
        {"gone_with_full_buffers", gone_with_full_buffers},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
