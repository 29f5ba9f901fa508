/* The peer is another process and dies, in every situation in which we could be waiting for it; and our own process forks. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../../../native/transport/shm/shm_layout.h"
#include "../../../native/transport/tcp/tcp.h"
#include "../check.h"
#include "pair.h"

static const char *transports[] = {"tcp", "sealed", "shm"};
#define EACH(name)                             \
    for (size_t each_ = 0; each_ < 3; each_++) \
        for (const char *name = transports[each_], *once_ = name; once_; once_ = NULL)

static const uint64_t rings[4] = {1 << 20, 1 << 20, 1 << 20, 1 << 20};

/* A test that fails must leave no process behind. */
static void die_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }

/* Forks a worker process that runs `work` on its end of a new link; we get the client's end. */
static pid_t start_worker(const char *transport, void (*work)(struct gv_link *), struct gv_link **client) {
    int fds[2], bulk[2] = {-1, -1}, memfd = -1;
    char why[GV_DEATH_TEXT];
    bool sealed = strcmp(transport, "sealed") == 0, tcp = sealed || strcmp(transport, "tcp") == 0;
    if (tcp) {
        tcp_sockets(fds);
        tcp_sockets(bulk);
    } else {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
        memfd = make_memfd(rings);
    }
    pid_t pid = fork(); /* before this process has threads for this link */
    CHECK(pid >= 0);
    if (pid == 0) {
        die_with_parent();
        close(fds[0]);
        if (tcp) close(bulk[0]);
        struct gv_link *link = sealed ? adopt_sealed(fds[1]) : tcp ? adopt_tcp(fds[1]) : adopt_shm(fds[1], memfd, rings);
        CHECK(link && (!tcp || gv_link_add_channel(link, 0, bulk[1]) == 0));
        work(link);
        _exit(0);
    }
    close(fds[1]);
    if (tcp) close(bulk[1]);
    *client = sealed ? sealed_client(fds[0]) : tcp ? tcp_client(fds[0]) : gv_shm_new(fds[0], memfd, rings, true, why);
    CHECK(*client && (!tcp || gv_link_add_channel(*client, 0, bulk[0]) == 0));
    return pid;
}

static void echo(struct gv_link *link) {
    for (uint64_t i = 1;; i++) {
        if (receive_numbered(link, i) < 0) _exit(0);
        send_numbered(link, 8, i);
        gv_send_flush(link);
    }
}

static void do_nothing(struct gv_link *link) {
    (void)link;
    for (;;) pause();
}

static void stop(pid_t pid) {
    kill(pid, SIGKILL);
    CHECK(waitpid(pid, NULL, 0) == pid);
}

static void *kill_soon(void *arg) {
    usleep(100000);
    kill((pid_t)(intptr_t)arg, SIGKILL);
    return NULL;
}

static pthread_t kill_later(pid_t pid) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, kill_soon, (void *)(intptr_t)pid) == 0);
    return thread;
}

static void finish(struct gv_link *link, pid_t pid, pthread_t killer, int64_t since) {
    CHECK(gv_now_ns() - since < TEST_PATIENCE_NS / 2);
    CHECK(gv_link_dead(link) && gv_link_death(link)[0]);
    pthread_join(killer, NULL);
    CHECK(waitpid(pid, NULL, 0) == pid);
    gv_link_close(link);
}

/* ---- the worker dies */

static void while_waiting(void) {
    EACH(transport) {
        for (int spinning = 0; spinning < 2; spinning++) {
            struct gv_link *link;
            pid_t pid = start_worker(transport, echo, &link);
            for (uint64_t i = 1; i < 20; i++) {
                CHECK(send_numbered(link, 8, i));
                gv_send_flush(link);
                CHECK(receive_numbered(link, i) == 8);
            }
            int64_t start = gv_now_ns();
            pthread_t killer = kill_later(pid);
            while (!gv_link_dead(link)) {
                gv_recv_wait(link, TEST_PATIENCE_NS, spinning ? TEST_PATIENCE_NS : 0);
                CHECK(gv_recv_peek(link) == NULL);
            }
            finish(link, pid, killer, start);
        }
    }
}

static void while_ring_is_full(void) {
    EACH(transport) {
        struct gv_link *link;
        pid_t pid = start_worker(transport, do_nothing, &link);
        int64_t start = gv_now_ns();
        pthread_t killer = kill_later(pid);
        for (uint64_t i = 1; send_numbered(link, 30000, i); i++) {
        }
        CHECK(gv_now_ns() - start > 90000000);
        finish(link, pid, killer, start);
    }
}

static void while_sending_bulk(void) {
    EACH(transport) {
        struct gv_link *link;
        pid_t pid = start_worker(transport, do_nothing, &link);
        int64_t start = gv_now_ns();
        pthread_t killer = kill_later(pid);
        uint8_t *data = calloc(64, 1 << 20);
        CHECK(gv_bulk_send(link, 0, data, 64 << 20) == 0);
        free(data);
        finish(link, pid, killer, start);
    }
}

static void half_a_payload(struct gv_link *link) {
    struct gv_record *r = gv_send_begin(link, sizeof *r, NULL);
    r->op = 1;
    gv_send_commit(link);
    gv_send_flush(link);
    static uint8_t data[32 << 20]; /* more than ring and sockets hold: it never ends */
    gv_bulk_send(link, 9, data, sizeof data);
}

static void while_receiving_bulk(void) {
    EACH(transport) {
        struct gv_link *link;
        pid_t pid = start_worker(transport, half_a_payload, &link);
        struct gv_bulk_header h;
        static uint8_t data[1000];
        CHECK(gv_bulk_recv_header(link, &h) == 0 && h.size == 32 << 20 && gv_bulk_recv(link, data, sizeof data) == 0);
        int64_t start = gv_now_ns();
        kill(pid, SIGSTOP);
        pthread_t killer = kill_later(pid);
        CHECK(gv_bulk_recv(link, NULL, h.size - sizeof data) == -1);
        finish(link, pid, killer, start);
    }
}

static void *wait_header(void *arg) {
    struct gv_bulk_header h;
    CHECK(gv_bulk_recv_header(arg, &h) == -1);
    return NULL;
}

/* Nobody waits, nobody asks: shared memory notices all the same, and on TCP the one who asks the socket. */
static void while_nobody_looks(void) {
    struct gv_link *link;
    pid_t pid = start_worker("shm", do_nothing, &link);
    pthread_t reader;
    CHECK(pthread_create(&reader, NULL, wait_header, link) == 0);
    int64_t start = gv_now_ns();
    pthread_t killer = kill_later(pid);
    while (!gv_link_dead(link) && gv_now_ns() - start < TEST_PATIENCE_NS) usleep(1000);
    pthread_join(reader, NULL);
    finish(link, pid, killer, start);
}

static void leave_records(struct gv_link *link) {
    for (uint64_t i = 1; i <= 50; i++) CHECK(send_numbered(link, 24, i));
    gv_send_flush(link);
    /* Our writer may be at it still, and would die with us. Shared memory has them. */
    while (strcmp(gv_link_transport(link), "shm") != 0 && gv_tcp_push((struct tcp *)link) != TCP_NOTHING_LEFT) usleep(1000);
    kill(getpid(), SIGKILL);
}

/* What it sent before it died is still read. */
static void last_words(void) {
    EACH(transport) {
        struct gv_link *link;
        pid_t pid = start_worker(transport, leave_records, &link);
        CHECK(waitpid(pid, NULL, 0) == pid);
        usleep(50000);
        for (uint64_t i = 1; i <= 50; i++) CHECK(receive_numbered(link, i) == 24);
        CHECK(receive_numbered(link, 51) == -1);
        gv_link_close(link);
    }
}

/* ---- two processes and the whole ring */

static uint32_t body_of(uint64_t n) { return (uint32_t)(n * 2654435761u) % (n % 50 == 0 ? 200000 : 600) / 8 * 8; }

static void receive_many(struct gv_link *link) {
    for (uint64_t i = 1; i <= 5000; i++) CHECK(receive_numbered(link, i) == body_of(i));
    send_numbered(link, 0, 1);
    gv_link_close(link);
}

static void two_processes(void) {
    EACH(transport) {
        struct gv_link *link;
        pid_t pid = start_worker(transport, receive_many, &link);
        for (uint64_t i = 1; i <= 5000; i++) CHECK(send_numbered(link, body_of(i), i));
        gv_send_flush(link);
        CHECK(receive_numbered(link, 1) == 0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
        gv_link_close(link);
    }
}

/* ---- we fork */

/* The child gives the link up; the parent does not notice, and when the parent goes, no descriptor in the child keeps the session alive. */
static void abandon(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        int hold[2];
        CHECK(pipe2(hold, O_CLOEXEC) == 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            die_with_parent();
            gv_link_abandon(p.client);
            gv_link_abandon(p.worker);
            CHECK(gv_link_dead(p.client) && !gv_send_begin(p.client, 24, NULL) && !gv_recv_peek(p.client));
            gv_send_flush(p.client);
            gv_recv_wait(p.client, 1000000000, 0);
            CHECK(gv_bulk_send(p.client, 0, "x", 1) == 0);
            CHECK_TEXT(gv_link_death(p.client), "forked");
            gv_link_abandon(p.client);
            int reused = memfd_create("reused", 0); /* takes the number of a descriptor that the link had */
            gv_recv_wake(p.client);
            gv_link_kill(p.client, "again");
            gv_link_close(p.client);
            CHECK(fcntl(reused, F_GETFD) >= 0 && lseek(reused, 0, SEEK_END) == 0);
            CHECK(write(hold[1], "x", 1) == 1);
            for (;;) pause();
        }
        char byte;
        struct pollfd ready = {hold[0], POLLIN, 0};
        CHECK(poll(&ready, 1, 100000) == 1 && read(hold[0], &byte, 1) == 1);
        for (uint64_t i = 1; i < 50; i++) {
            CHECK(send_numbered(p.client, 104, i));
            gv_send_flush(p.client);
            CHECK(receive_numbered(p.worker, i) == 104);
        }
        gv_link_close(p.client);
        int64_t start = gv_now_ns();
        CHECK(receive_numbered(p.worker, 50) == -1); /* although the child lives */
        CHECK(gv_now_ns() - start < TEST_PATIENCE_NS / 2);
        gv_link_close(p.worker);
        stop(child);
        close(hold[0]);
        close(hold[1]);
    }
}

/* Not one descriptor of a link reaches a program that is executed. */
static void close_on_exec(void) {
    EACH(transport) {
        bool ours[64];
        int found = 0;
        for (int fd = 3; fd < 64; fd++) ours[fd] = fcntl(fd, F_GETFD) < 0;
        struct pair p = make_pair(transport);
        for (int fd = 3; fd < 64; fd++) {
            int flags = fcntl(fd, F_GETFD);
            if (!ours[fd] || flags < 0) continue;
            CHECK(flags & FD_CLOEXEC);
            found++;
        }
        CHECK(found >= 6); /* two ends of three each, at least */
        close_pair(&p);
    }
}

static void *handle_signals(void *arg) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    int got;
    CHECK(sigwait(&set, &got) == 0 && got == SIGUSR1);
    return arg;
}

static void wrong_thread(int number) {
    (void)number;
    static const char text[] = "a thread of the link took a signal\n";
    (void)!write(2, text, sizeof text - 1);
    _exit(1);
}

/* Signals of the program never run on a thread of ours. */
static void signals_blocked(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        signal(SIGUSR1, wrong_thread);
        sigset_t set, before;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        CHECK(pthread_sigmask(SIG_BLOCK, &set, &before) == 0); /* in this thread and the next; the link's threads are older */
        pthread_t taker;
        CHECK(pthread_create(&taker, NULL, handle_signals, NULL) == 0);
        kill(getpid(), SIGUSR1);
        pthread_join(taker, NULL);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        close_pair(&p);
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"while_waiting", while_waiting},           {"while_ring_is_full", while_ring_is_full},
        {"while_sending_bulk", while_sending_bulk}, {"while_receiving_bulk", while_receiving_bulk},
        {"while_nobody_looks", while_nobody_looks}, {"last_words", last_words},
        {"two_processes", two_processes},           {"abandon", abandon},
        {"close_on_exec", close_on_exec},           {"signals_blocked", signals_blocked},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
