/* What the bare transport costs, through this project's link and through nothing: a plain shared word and plain sockets are the floor that
 * everything above is compared with. Prints one JSON object, times in microseconds.
 *
 *   one_way    begin + commit of one record in the sender, bursts below the ring's size, the ring drained between bursts
 *   round_trip 64-byte record there and back, both sides spinning: median and 90th percentile
 *   bulk       1 MiB payloads, GB/s
 *
 * Two processes. Build: cc -O2 -pthread tests/bench/pingpong.c $(ls native/wire/*.c native/transport/*.c) -o pingpong */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../../native/transport/link.h"
#include "../../native/transport/tcp.h"
#include "../../native/transport/shm_layout.h"

#ifndef TINY
#define ROUNDS 20000
#define BURSTS 300
#define PAYLOADS 400
#else
#define ROUNDS 400
#define BURSTS 10
#define PAYLOADS 4
#endif
#define WARM_UP (ROUNDS / 10)
#define BURST 256
#define PAYLOAD (1u << 20)
#define SPIN_NS 1000000000

static const uint64_t rings[4] = {GV_COMMAND_RING, GV_REPLY_RING, GV_BULK_RING, GV_BULK_RING};

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Prints median and 90th percentile of nanoseconds as "name": {...}. */
static void print_times(const char *name, int64_t *ns, int n, double per) {
    qsort(ns, (size_t)n, sizeof *ns, compare);
    printf("\"%s\": {\"p50\": %.4f, \"p90\": %.4f}", name, (double)ns[n / 2] / per / 1e3, (double)ns[n * 9 / 10] / per / 1e3);
}

static void tcp_pair(int fds[2]) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int on = 1, listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listening < 0 || bind(listening, (struct sockaddr *)&at, sizeof at) || listen(listening, 1)) die("listen");
    if (getsockname(listening, (struct sockaddr *)&at, &size)) die("getsockname");
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fds[0] < 0 || connect(fds[0], (struct sockaddr *)&at, sizeof at)) die("connect");
    fds[1] = accept(listening, NULL, NULL);
    if (fds[1] < 0) die("accept");
    close(listening);
    for (int i = 0; i < 2; i++) setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static pid_t child(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static void reap(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* ---- the floor */

struct words {
    _Alignas(128) _Atomic uint64_t there;
    _Alignas(128) _Atomic uint64_t back;
};

static void bare_word(void) {
    static int64_t times[ROUNDS];
    struct words *w = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (w == MAP_FAILED) die("mmap");
    pid_t pid = child();
    if (pid == 0) {
        for (uint64_t i = 1;; i++) {
            while (atomic_load_explicit(&w->there, memory_order_acquire) < i) gv_pause();
            atomic_store_explicit(&w->back, i, memory_order_release);
        }
    }
    for (int i = -WARM_UP; i < ROUNDS; i++) {
        int64_t start = gv_now_ns();
        uint64_t n = (uint64_t)(i + WARM_UP + 1);
        atomic_store_explicit(&w->there, n, memory_order_release);
        while (atomic_load_explicit(&w->back, memory_order_acquire) < n) gv_pause();
        if (i >= 0) times[i] = gv_now_ns() - start;
    }
    reap(pid);
    munmap(w, 4096);
    print_times("round_trip", times, ROUNDS, 1);
}

/* Reads `size` bytes without sleeping. */
static void spin_read(int fd, void *to, size_t size) {
    for (char *p = to; size;) {
        ssize_t n = recv(fd, p, size, MSG_DONTWAIT);
        if (n == 0) exit(0);
        if (n > 0) {
            p += n;
            size -= (size_t)n;
        }
    }
}

static void bare_tcp(void) {
    static int64_t times[ROUNDS];
    static char payload[PAYLOAD];
    int fds[2];
    char message[64] = "";
    tcp_pair(fds);
    pid_t pid = child();
    if (pid == 0) {
        for (int i = 0; i < ROUNDS / 4 + WARM_UP; i++) {
            spin_read(fds[1], message, sizeof message);
            if (send(fds[1], message, sizeof message, 0) < 0) die("send");
        }
        for (;;) {
            for (int i = 0; i < PAYLOADS; i++) {
                if (recv(fds[1], payload, PAYLOAD, MSG_WAITALL) != PAYLOAD) exit(0);
            }
            if (send(fds[1], message, 1, 0) != 1) die("send");
        }
    }
    for (int i = -WARM_UP; i < ROUNDS / 4; i++) {
        int64_t start = gv_now_ns();
        if (send(fds[0], message, sizeof message, 0) < 0) die("send");
        spin_read(fds[0], message, sizeof message);
        if (i >= 0) times[i] = gv_now_ns() - start;
    }
    print_times("round_trip", times, ROUNDS / 4, 1);
    int64_t start = gv_now_ns();
    for (int i = 0; i < PAYLOADS; i++) {
        if (send(fds[0], payload, PAYLOAD, 0) != PAYLOAD) die("send");
    }
    if (recv(fds[0], message, 1, 0) != 1) die("recv");
    printf(", \"bulk_GB_s\": %.3f", (double)PAYLOADS * PAYLOAD / (double)(gv_now_ns() - start));
    reap(pid);
    close(fds[0]);
    close(fds[1]);
}

static void bare_copy(void) {
    char *a = malloc(PAYLOAD), *b = malloc(PAYLOAD);
    memset(a, 1, PAYLOAD);
    memset(b, 2, PAYLOAD);
    int64_t start = gv_now_ns();
    for (int i = 0; i < PAYLOADS; i++) {
        memcpy(b, a, PAYLOAD);
        __asm__ volatile("" ::"r"(b) : "memory");
    }
    printf("\"memcpy_GB_s\": %.3f", (double)PAYLOADS * PAYLOAD / (double)(gv_now_ns() - start));
    free(a);
    free(b);
}

/* ---- the link */

static void receive(struct gv_link *link) {
    while (!gv_recv_peek(link)) {
        if (gv_link_dead(link)) exit(0);
        gv_recv_wait(link, SPIN_NS, SPIN_NS);
    }
    gv_recv_consume(link);
}

static void send_one(struct gv_link *link, uint32_t size) {
    struct gv_record *r = gv_send_begin(link, size, NULL);
    if (!r) exit(1);
    r->op = 1;
    r->flags = 0;
    r->ctx = 0;
    memset(r + 1, 0, size - sizeof *r);
    gv_send_commit(link);
}

/* Echoes pings, then swallows bursts and answers each, then swallows payloads. */
static void serve(struct gv_link *link) {
    for (int i = 0; i < ROUNDS + WARM_UP; i++) {
        receive(link);
        send_one(link, 64);
        gv_send_flush(link);
    }
    for (int i = 0; i < BURSTS; i++) {
        for (int k = 0; k < BURST; k++) receive(link);
        send_one(link, 64);
        gv_send_flush(link);
    }
    static char payload[PAYLOAD];
    for (int i = 0; i < PAYLOADS; i++) {
        struct gv_bulk_header h;
        if (gv_bulk_recv_header(link, &h) || gv_bulk_recv(link, payload, h.size)) exit(1);
    }
    send_one(link, 64);
    gv_send_flush(link);
    for (;;) receive(link);
}

static void bench_link(const char *transport) {
    static int64_t times[ROUNDS];
    int fds[2], bulk[2], memfd = -1;
    bool tcp = strcmp(transport, "tcp") == 0;
    char why[GV_DEATH_TEXT] = "";
    if (tcp) {
        tcp_pair(fds);
        tcp_pair(bulk);
    } else {
        memfd = memfd_create("rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (memfd < 0 || ftruncate(memfd, (off_t)gv_shm_size(rings)) || fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) die("memfd");
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds)) die("socketpair");
    }
    pid_t pid = child();
    int side = pid == 0;
    struct gv_link *link = tcp ? gv_tcp_new(fds[side], NULL) : gv_shm_new(fds[side], memfd, rings, !side, why);
    if (link && tcp) ((struct tcp *)link)->bulk.n = 1;
    if (!link || (tcp && gv_link_add_channel(link, 0, bulk[side]))) {
        fprintf(stderr, "no link: %s\n", why);
        exit(1);
    }
    close(fds[!side]);
    if (tcp) close(bulk[!side]);
    if (side) serve(link);
    for (int i = -WARM_UP; i < ROUNDS; i++) {
        int64_t start = gv_now_ns();
        send_one(link, 64);
        gv_send_flush(link);
        receive(link);
        if (i >= 0) times[i] = gv_now_ns() - start;
    }
    print_times("round_trip", times, ROUNDS, 1);
    for (int i = 0; i < BURSTS; i++) {
        int64_t start = gv_now_ns();
        for (int k = 0; k < BURST; k++) send_one(link, 128);
        times[i] = gv_now_ns() - start;
        gv_send_flush(link);
        receive(link);
    }
    printf(", ");
    print_times("one_way", times, BURSTS, BURST);
    static char payload[PAYLOAD];
    int64_t start = gv_now_ns();
    for (int i = 0; i < PAYLOADS; i++) {
        if (!gv_bulk_send(link, 0, payload, PAYLOAD)) die("bulk");
    }
    receive(link);
    printf(", \"bulk_GB_s\": %.3f", (double)PAYLOADS * PAYLOAD / (double)(gv_now_ns() - start));
    reap(pid);
    gv_link_close(link);
}

int main(void) {
    printf("{\"bare_shm\": {");
    bare_word();
    printf(", ");
    bare_copy();
    printf("}, \"shm\": {");
    bench_link("shm");
    printf("}, \"bare_tcp\": {");
    bare_tcp();
    printf("}, \"tcp\": {");
    bench_link("tcp");
    printf("}}\n");
    return 0;
}
