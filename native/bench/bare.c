/* The bare transport: the best that two processes of one host can do with a shared word, a ring in shared memory, or plain sockets. Between measurements
 * the other process sleeps in a read of a pipe. */
#define _GNU_SOURCE
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* The pump's ring: small enough to stay in the caches between the two, filled in pieces so that both sides copy at the same time. */
#define RING (1u << 20)
#define PIECE (128u * 1024u)
#define MESSAGE 64
#define SPINS 2000 /* reads of a word before the core is yielded */

struct shared {
    _Alignas(128) _Atomic uint64_t there;
    _Alignas(128) _Atomic uint64_t back;
    _Alignas(128) _Atomic uint64_t head; /* bytes that were read */
    _Alignas(128) _Atomic uint64_t tail; /* bytes that were written */
    _Alignas(4096) char ring[RING];
};

enum order { ROUND_TRIPS, SWALLOW, SUPPLY };
struct command {
    uint64_t order, amount;
    int64_t cpu; /* the CPU of the other side, which this side avoids */
};

static enum bare kind;
static struct shared *shared;
static int control, sock;
static uint64_t turn; /* number of round trips, counted alike on both sides */

static void wait_for(_Atomic uint64_t *word, uint64_t value) {
    for (int spins = 0; atomic_load_explicit(word, memory_order_acquire) < value; spins++) {
        if (spins < SPINS)
            __builtin_ia32_pause();
        else
            sched_yield();
    }
}

static void write_all(const char *from, size_t size) {
    while (size) {
        ssize_t n = send(sock, from, size, MSG_NOSIGNAL);
        if (n <= 0) fail("the bare transport", "its socket broke");
        from += n;
        size -= (size_t)n;
    }
}

static void read_all(char *to, size_t size, int flags) {
    while (size) {
        ssize_t n = recv(sock, to, size, flags);
        if (n == 0) fail("the bare transport", "its socket broke");
        if (n < 0) continue; /* it spins */
        to += n;
        size -= (size_t)n;
    }
}

/* Both ends of the pump through the ring; the ring is empty before and after. */
static void put_through(const char *from, size_t size) {
    uint64_t tail = atomic_load(&shared->tail);
    for (size_t done = 0; done < size;) {
        size_t n = size - done < PIECE ? size - done : PIECE;
        if (tail + n > RING) wait_for(&shared->head, tail + n - RING);
        memcpy(shared->ring + tail % RING, from + done, n);
        done += n;
        atomic_store_explicit(&shared->tail, tail += n, memory_order_release);
    }
    wait_for(&shared->head, tail);
}

static void take_through(char *to, size_t size) {
    uint64_t head = atomic_load(&shared->head);
    for (size_t done = 0; done < size;) {
        size_t n = size - done < PIECE ? size - done : PIECE;
        wait_for(&shared->tail, head + n);
        memcpy(to + done, shared->ring + head % RING, n);
        done += n;
        atomic_store_explicit(&shared->head, head += n, memory_order_release);
    }
}

/* ---- the other process */

static void echo(uint64_t n) {
    char message[MESSAGE];
    for (uint64_t i = 0; i < n; i++) {
        if (kind == BARE_SHM) {
            wait_for(&shared->there, ++turn);
            atomic_store_explicit(&shared->back, turn, memory_order_release);
        } else {
            read_all(message, sizeof message, MSG_DONTWAIT);
            write_all(message, sizeof message);
        }
    }
}

/* Moves this process to another core: two sides that spin on one core would measure the scheduler. The affinity is restored afterwards. */
static void leave(int64_t cpu) {
    static cpu_set_t all;
    if (!CPU_COUNT(&all) && sched_getaffinity(0, sizeof all, &all)) return;
    cpu_set_t others = all;
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_CLR(cpu, &others);
    if (CPU_COUNT(&others)) sched_setaffinity(0, sizeof others, &others);
    sched_setaffinity(0, sizeof all, &all);
}

static _Noreturn void serve(int orders) {
    struct command c;
    char *buffer = NULL, done = 1;
    size_t size = 0;
    while (read(orders, &c, sizeof c) == (ssize_t)sizeof c) {
        if (c.order != ROUND_TRIPS && c.amount > size) {
            free(buffer);
            buffer = room(size = c.amount);
            memset(buffer, 1, size);
        }
        leave(c.cpu);
        /* The other process is awake and ready: the measured time begins here. */
        if (write(orders, &done, 1) != 1) break;
        if (c.order == SUPPLY) {
            if (kind == BARE_SHM)
                wait_for(&shared->there, ++turn);
            else
                read_all(&done, 1, MSG_DONTWAIT);
        }
        if (c.order == ROUND_TRIPS) {
            echo(c.amount);
        } else if (kind == BARE_SHM) {
            if (c.order == SWALLOW)
                take_through(buffer, c.amount);
            else
                put_through(buffer, c.amount);
        } else if (c.order == SWALLOW) {
            read_all(buffer, c.amount, 0);
            write_all(&done, 1);
        } else {
            write_all(buffer, c.amount);
        }
    }
    _exit(0);
}

static int socket_pair(int fds[2]) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int on = 1, listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listening < 0 || bind(listening, (struct sockaddr *)&at, sizeof at) || listen(listening, 1)) return -1;
    if (getsockname(listening, (struct sockaddr *)&at, &size)) return -1;
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fds[0] < 0 || connect(fds[0], (struct sockaddr *)&at, sizeof at)) return -1;
    fds[1] = accept(listening, NULL, NULL);
    close(listening);
    for (int i = 0; i < 2; i++)
        if (setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) return -1;
    return 0;
}

void bare_start(enum bare which) {
    kind = which;
    if (kind == BARE_NONE) return;
    int orders[2], data[2] = {-1, -1};
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, orders) || socket_pair(data))
        fail("the bare transport", "no memory or no sockets for it");
    memset(shared->ring, 0, RING);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) fail("the bare transport", "no second process for it");
    sock = data[pid == 0];
    close(data[pid != 0]);
    close(orders[pid != 0]);
    control = orders[pid == 0];
    if (pid) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    serve(control);
}

bool bare_present(void) { return kind != BARE_NONE; }

/* ---- this process */

static void order(enum order what, uint64_t amount) {
    struct command c = {what, amount, sched_getcpu()};
    char ready;
    if (write(control, &c, sizeof c) != (ssize_t)sizeof c || read(control, &ready, 1) != 1) fail("the bare transport", "its other process ended");
}

void bare_round_trips(double *times, int n) {
    char message[MESSAGE] = "";
    order(ROUND_TRIPS, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        double t = now_us();
        if (kind == BARE_SHM) {
            atomic_store_explicit(&shared->there, ++turn, memory_order_release);
            wait_for(&shared->back, turn);
        } else {
            write_all(message, sizeof message);
            read_all(message, sizeof message, MSG_DONTWAIT);
        }
        times[i] = now_us() - t;
    }
}

double bare_pump(void *buffer, size_t size, bool in) {
    char done;
    order(in ? SUPPLY : SWALLOW, size);
    double t = now_us();
    if (in && kind == BARE_SHM) atomic_store_explicit(&shared->there, ++turn, memory_order_release);
    if (in && kind == BARE_TCP) write_all("", 1);
    if (kind == BARE_SHM) {
        if (in)
            take_through(buffer, size);
        else
            put_through(buffer, size);
    } else if (in) {
        read_all(buffer, size, 0);
    } else {
        write_all(buffer, size);
        read_all(&done, 1, 0);
    }
    return now_us() - t;
}
