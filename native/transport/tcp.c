/* TCP: records go into a ring of our own first, which whoever flushes writes to the socket in large pieces, or else a thread that comes by a little
 * later. What arrives is read by whoever waits, straight into the buffer that records are handed out from. Payloads have a socket of their own. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "../wire/ring.h"
#include "link.h"

/* A sender itself writes to the socket whenever so much has gathered: for large bursts nobody else needs to come by. */
#define PUSH_BYTES 16384u
/* The writer thread naps between two looks at the ring: this short after it found something unsent, twice as long after every look in vain, for it
 * takes a core away from whoever spins. While it naps a sender need not wake it, and what gathers meanwhile goes out in one write. */
#define NAP_MIN_NS 20000
#define NAP_MAX_NS 320000
/* After so many looks at a ring that nobody wrote to it sleeps until it is woken. */
#define NAPS_BEFORE_SLEEP 20
/* At the end, this long for what was sent to arrive. */
#define CLOSE_MS 300

struct tcp { /* NOLINT(clang-analyzer-optin.performance.Padding): sender's and receiver's lines apart */
    struct gv_link link;
    int fd, wake_fd;
    _Atomic uint32_t channel; /* the bulk socket + 1; 0: not there yet, and then a futex */

    /* Sending: the ring's writer is under the link's send lock, its reader under `pushing`. */
    struct gv_ring_control *control;
    void *ring;
    struct gv_ring_writer tx;
    uint64_t offered; /* where the ring's tail was when a sender was last asked to flush */
    _Alignas(128) _Atomic uint32_t pushing;
    struct gv_ring_reader unsent;
    pthread_t thread;
    _Atomic bool stop;

    /* Receiving: bytes [at, end) of the buffer are read and not yet handed out. */
    _Alignas(128) uint8_t *buffer;
    size_t at, end, current; /* current: size of the record that is handed out */
    _Atomic bool woken;
};

#define BUFFER_SIZE GV_REPLY_RING

void gv_tcp_tune(int fd) {
    int on = 1, idle = 10, interval = 3, count = 3;
    unsigned timeout_ms = 20000;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    /* A unix socket, or what else a test hands us, has none of these: that is no error. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

/* ---- sending */

enum pushed { NOTHING_LEFT, PUSHED_ALL, SOCKET_FULL, BUSY };

/* Sends what is committed, as far as the socket takes it without waiting. NOTHING_LEFT: others had sent it all; BUSY: another thread is at it and
 * will see to ours too. */
static enum pushed push(struct tcp *t) {
    enum pushed result = NOTHING_LEFT;
    for (;;) {
        if (atomic_exchange(&t->pushing, 1)) return BUSY;
        bool full = false;
        while (!full && !gv_link_dead(&t->link)) {
            const void *at;
            uint64_t n = gv_ring_span(&t->unsent, &t->tx, &at);
            if (n == 0) break;
            ssize_t sent = send(t->fd, at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent > 0) {
                t->unsent.head += (uint64_t)sent;
                result = PUSHED_ALL;
                gv_ring_release(&t->unsent);
            } else if (errno == EAGAIN || errno == ENOBUFS) {
                full = true;
            } else if (errno != EINTR) {
                gv_link_kill_errno(&t->link, "", errno);
            }
        }
        uint64_t head = t->unsent.head;
        atomic_store(&t->pushing, 0);
        if (full) return SOCKET_FULL;
        /* Somebody may have committed after we looked and found us still at it. */
        if (atomic_load(&t->control->tail) == head || gv_link_dead(&t->link)) return result;
    }
}

static void wake_writer(struct tcp *t) {
    if (atomic_load(&t->control->reader_sleeps)) gv_wake_sleeper(&t->control->reader_sleeps);
}

static void *tcp_reserve(struct gv_link *link, uint32_t size) {
    struct tcp *t = (struct tcp *)link;
    for (;;) {
        void *room = gv_ring_reserve(&t->tx, size);
        if (room) return room;
        if (gv_link_dead(link)) return NULL;
        if (!link->blocked_since) link->blocked_since = gv_now_ns();
        switch (push(t)) {
        case NOTHING_LEFT:
        case PUSHED_ALL: break;
        case BUSY: sched_yield(); break;
        case SOCKET_FULL: {
            struct pollfd p = {.fd = t->fd, .events = POLLOUT};
            poll(&p, 1, 200);
        }
        }
    }
}

static bool tcp_publish(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    if (gv_ring_publish(&t->tx)) gv_wake_sleeper(&t->control->reader_sleeps);
    if (t->tx.tail - t->offered < PUSH_BYTES) return false;
    t->offered = t->tx.tail;
    return atomic_load_explicit(&t->control->head, memory_order_relaxed) + PUSH_BYTES / 2 < t->tx.tail;
}

static void tcp_flush(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    if (push(t) == SOCKET_FULL) wake_writer(t); /* it waits for the socket, we need not */
}

/* Sends what nobody flushes. */
static void *run_writer(void *arg) {
    struct tcp *t = arg;
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    uint64_t seen = 0;
    int64_t nap = NAP_MIN_NS;
    int in_vain = 0;
    while (!atomic_load(&t->stop) && !gv_link_dead(&t->link)) {
        uint64_t tail = atomic_load(&t->control->tail);
        enum pushed pushed = atomic_load(&t->control->head) != tail ? push(t) : NOTHING_LEFT;
        if (pushed == SOCKET_FULL) {
            struct pollfd p = {.fd = t->fd, .events = POLLOUT};
            poll(&p, 1, 200);
            continue;
        }
        nap = pushed == PUSHED_ALL ? NAP_MIN_NS : nap * 2 < NAP_MAX_NS ? nap * 2 : NAP_MAX_NS;
        in_vain = tail == seen ? in_vain + 1 : 0;
        seen = tail;
        if (in_vain < NAPS_BEFORE_SLEEP) {
            struct timespec pause = {.tv_nsec = nap};
            nanosleep(&pause, NULL);
            continue;
        }
        atomic_store(&t->control->reader_sleeps, 1);
        if (atomic_load(&t->control->tail) == seen && !atomic_load(&t->stop) && !gv_link_dead(&t->link)) {
            gv_futex_wait(&t->control->reader_sleeps, 1, 10000000000);
        }
        atomic_store(&t->control->reader_sleeps, 0);
        in_vain = 0;
        nap = NAP_MIN_NS;
    }
    return NULL;
}

/* ---- receiving */

/* Whether a whole record lies in the buffer; kills the link when what lies there is none. */
static int whole(struct tcp *t) {
    if (t->end - t->at < sizeof(uint64_t)) return GV_RECORD_PART;
    uint32_t size;
    memcpy(&size, t->buffer + t->at, sizeof size);
    int verdict = gv_record_check(size, t->end - t->at, GV_RECORD_MAX);
    if (verdict == GV_RECORD_BAD) gv_link_kill(&t->link, "malformed record: an impossible size");
    return verdict;
}

/* Reads what the socket has without waiting. True when something came or the link died. */
static bool fill(struct tcp *t) {
    if (t->at && (t->at == t->end || BUFFER_SIZE - t->at < GV_RECORD_MAX)) {
        memmove(t->buffer, t->buffer + t->at, t->end - t->at);
        t->end -= t->at;
        t->at = 0;
    }
    for (;;) {
        ssize_t n = recv(t->fd, t->buffer + t->end, BUFFER_SIZE - t->end, MSG_DONTWAIT);
        if (n > 0) {
            t->end += (size_t)n;
            return true;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return false;
        if (n == 0) {
            gv_link_kill(&t->link, t->at == t->end ? "the peer closed the connection" : "the peer closed the connection within a record");
        } else {
            gv_link_kill_errno(&t->link, "", errno);
        }
        return true;
    }
}

static struct gv_record *tcp_next(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    while (whole(t) == GV_RECORD_PART) {
        if (!fill(t) || gv_link_dead(link)) return NULL;
    }
    if (gv_link_dead(link)) return NULL;
    struct gv_record *record = (struct gv_record *)(void *)(t->buffer + t->at);
    t->current = record->size;
    return record;
}

static void tcp_release(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    t->at += t->current;
    t->current = 0;
    if (t->at == t->end) t->at = t->end = 0;
}

static void tcp_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns) {
    struct tcp *t = (struct tcp *)link;
    if (whole(t) != GV_RECORD_PART) return;
    int64_t now = gv_now_ns(), until = now + timeout_ns, spin_end = now + (spin_ns < timeout_ns ? spin_ns : timeout_ns);
    for (;;) {
        if (atomic_exchange(&t->woken, false) || gv_link_dead(link) || fill(t)) return;
        now = gv_now_ns();
        if (now >= spin_end) break;
    }
    while (now < until) {
        int64_t left = until - now;
        struct timespec limit = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        struct pollfd fds[2] = {{.fd = t->fd, .events = POLLIN}, {.fd = t->wake_fd, .events = POLLIN}};
        int n = ppoll(fds, 2, &limit, NULL);
        if (n > 0 && fds[1].revents) {
            uint64_t count;
            if (read(t->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN) gv_link_kill_errno(link, "", errno);
        }
        if (atomic_exchange(&t->woken, false) || gv_link_dead(link) || (n > 0 && fds[0].revents && fill(t))) return;
        now = gv_now_ns();
    }
}

static void tcp_wake(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    uint64_t one = 1;
    atomic_store(&t->woken, true);
    if (write(t->wake_fd, &one, sizeof one) < 0) return; /* its count is full: it wakes all the same */
}

/* ---- bulk */

/* The bulk socket, waited for where it is still to come; -1 when the link died. */
static int channel(struct tcp *t) {
    for (;;) {
        uint32_t found = atomic_load(&t->channel);
        if (found) return (int)found - 1;
        if (gv_link_dead(&t->link)) return -1;
        gv_futex_wait(&t->channel, 0, 200000000);
    }
}

static bool tcp_bulk_write(struct gv_link *link, const struct gv_bulk_header *header, const void *data, uint64_t size) {
    struct tcp *t = (struct tcp *)link;
    int fd = channel(t);
    struct iovec parts[2] = {{(void *)(uintptr_t)header, sizeof *header}, {(void *)(uintptr_t)data, size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    uint64_t left = sizeof *header + size;
    while (left && fd >= 0 && !gv_link_dead(link)) {
        ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            gv_link_kill_errno(link, "bulk channel: ", errno);
            break;
        }
        left -= (uint64_t)n;
        for (int i = 0; i < 2; i++) {
            size_t done = (size_t)n < parts[i].iov_len ? (size_t)n : parts[i].iov_len;
            parts[i].iov_base = (char *)parts[i].iov_base + done;
            parts[i].iov_len -= done;
            n -= (ssize_t)done;
        }
    }
    return left == 0 && !gv_link_dead(link);
}

static bool tcp_bulk_read(struct gv_link *link, void *data, uint64_t size) {
    struct tcp *t = (struct tcp *)link;
    int fd = channel(t);
    uint8_t *p = data;
    while (size && fd >= 0 && !gv_link_dead(link)) {
        size_t want = size < SSIZE_MAX ? size : SSIZE_MAX;
        uint8_t nowhere[16384];
        if (!p && want > sizeof nowhere) want = sizeof nowhere;
        ssize_t n = recv(fd, p ? p : nowhere, want, MSG_WAITALL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            gv_link_kill_errno(link, "bulk channel: ", errno);
        } else if (n == 0) {
            gv_link_kill(link, "the peer closed the bulk channel");
        } else {
            size -= (uint64_t)n;
            if (p) p += n;
        }
    }
    return size == 0 && !gv_link_dead(link);
}

static int tcp_add_channel(struct gv_link *link, int number, int fd) {
    struct tcp *t = (struct tcp *)link;
    uint32_t none = 0;
    if (number != 0 || fd < 0) return -1;
    gv_tcp_tune(fd);
    if (!atomic_compare_exchange_strong(&t->channel, &none, (uint32_t)fd + 1)) return -1;
    gv_futex_wake(&t->channel, INT_MAX);
    /* The link may have died before it could shut this socket down. */
    if (gv_link_dead(link)) shutdown(fd, SHUT_RDWR);
    return 0;
}

/* ---- life and death */

static void tcp_died(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    uint32_t bulk = atomic_load(&t->channel);
    shutdown(t->fd, SHUT_RDWR); /* ends every poll, send and recv on it */
    if (bulk) shutdown((int)bulk - 1, SHUT_RDWR);
    gv_wake_sleeper(&t->control->reader_sleeps);
    gv_futex_wake(&t->channel, INT_MAX);
    tcp_wake(link);
}

static void close_all(struct tcp *t) {
    uint32_t bulk = atomic_load(&t->channel);
    close(t->fd);
    close(t->wake_fd);
    if (bulk) close((int)bulk - 1);
}

static void tcp_abandon(struct gv_link *link) { close_all((struct tcp *)link); }

/* Lets the peer have what we sent: closing a socket with unread bytes in it would throw that away. */
static void linger(struct tcp *t) {
    int64_t until = gv_now_ns() + CLOSE_MS * 1000000LL;
    while (push(t) > PUSHED_ALL && !gv_link_dead(&t->link) && gv_now_ns() < until) {
        struct pollfd p = {.fd = t->fd, .events = POLLOUT};
        poll(&p, 1, 10);
    }
    shutdown(t->fd, SHUT_WR);
    int unsent = 0;
    while (!gv_link_dead(&t->link) && gv_now_ns() < until && ioctl(t->fd, SIOCOUTQ, &unsent) == 0 && unsent > 0) {
        struct pollfd p = {.fd = t->fd, .events = POLLIN};
        t->at = t->end = 0;
        if (poll(&p, 1, 1) > 0) fill(t);
    }
}

static void free_tcp(struct tcp *t) {
    free(t->buffer);
    free(t->ring);
    free(t->control);
    free(t);
}

static void tcp_close(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    atomic_store(&t->stop, true);
    gv_wake_sleeper(&t->control->reader_sleeps);
    pthread_join(t->thread, NULL);
    if (!gv_link_dead(link)) linger(t);
    gv_link_kill(link, "closed");
    close_all(t);
    free_tcp(t);
}

static const struct gv_transport tcp_transport = {
    .name = "tcp",
    .reserve = tcp_reserve,
    .publish = tcp_publish,
    .flush = tcp_flush,
    .next = tcp_next,
    .release = tcp_release,
    .wait = tcp_wait,
    .wake = tcp_wake,
    .bulk_write = tcp_bulk_write,
    .bulk_read = tcp_bulk_read,
    .add_channel = tcp_add_channel,
    .died = tcp_died,
    .abandon = tcp_abandon,
    .close = tcp_close,
};

struct gv_link *gv_tcp_new(int fd) {
    struct tcp *t = NULL;
    if (posix_memalign((void **)&t, 128, sizeof *t) != 0) {
        errno = ENOMEM;
        return NULL;
    }
    memset(t, 0, sizeof *t);
    gv_link_init(&t->link, &tcp_transport);
    t->fd = fd;
    t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int error = t->wake_fd < 0 ? errno : 0;
    if (!error) error = posix_memalign((void **)&t->control, GV_RING_LINE, sizeof *t->control);
    if (!error) error = posix_memalign(&t->ring, 4096, GV_COMMAND_RING);
    if (!error) error = posix_memalign((void **)&t->buffer, 4096, BUFFER_SIZE);
    if (!error) {
        memset(t->control, 0, sizeof *t->control);
        gv_ring_writer_init(&t->tx, t->control, t->ring, GV_COMMAND_RING);
        gv_ring_reader_init(&t->unsent, t->control, t->ring, GV_COMMAND_RING);
        gv_tcp_tune(fd);
        error = gv_thread_start(&t->thread, run_writer, t, "gpuvirt-link");
    }
    if (error) {
        if (t->wake_fd >= 0) close(t->wake_fd);
        free_tcp(t);
        errno = error;
        return NULL;
    }
    return &t->link;
}

struct gv_link *gv_link_adopt_tcp(int fd) {
    struct gv_link *link = gv_tcp_new(fd);
    if (!link) close(fd);
    return link;
}
