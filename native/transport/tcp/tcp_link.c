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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "../cpu_affinity.h"
#include "tcp.h"

/* A sender itself writes to the socket whenever so much has gathered: for large bursts nobody else needs to come by. */
#define PUSH_BYTES 16384u
/* The writer thread naps between two looks at the ring: this short after it found something unsent, twice as long after every look in vain, for it
 * takes a core away from whoever spins. While it naps a sender need not wake it, and what gathers meanwhile goes out in one write. */
#define NAP_MIN_NS 20000
#define NAP_MAX_NS 320000
/* After so many looks at a ring that nobody wrote to it sleeps until it is woken. */
#define NAPS_BEFORE_SLEEP 20
#ifndef TCP_SLEEP_NS /* and looks again after so long at the latest; tests make it long, so that a wake-up that is lost is seen */
#define TCP_SLEEP_NS 1000000000
#endif
/* A sender waits when so much was sent that the peer has not acknowledged. */
#ifndef UNACKED_LIMIT /* tests make it small */
#define UNACKED_LIMIT (64u << 20)
#endif
/* After so many records, or bytes of them, the peer is told that they came. */
#define ACK_RECORDS 256
#define ACK_BYTES (64u << 10)
/* At the end, this long for what was sent to arrive. */
#define CLOSE_MS 300

#define BUFFER_SIZE GV_REPLY_RING

void gv_tcp_tune(int fd) {
    int on = 1, idle = 2, interval = 1, count = 3;
    unsigned timeout_ms = 5000;
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

void gv_tcp_spin_lock(_Atomic uint32_t *lock) {
    for (int i = 0; atomic_exchange(lock, 1); i++) {
        if (i % 64 == 63)
            sched_yield();
        else
            gv_pause();
    }
}

void gv_tcp_spin_unlock(_Atomic uint32_t *lock) { atomic_store(lock, 0); }

enum pushed { NOTHING_LEFT, PUSHED_ALL, SOCKET_FULL, BUSY };

/* Whether the peer should hear what we have. */
static bool owes(const struct tcp *t) { return atomic_load_explicit(&t->tell, memory_order_relaxed); }

/* pushing held. */
static void write_note(struct tcp *t) {
    atomic_store(&t->tell, false); /* before the figures are read: what comes later asks again */
    uint64_t received = atomic_load(&t->received);
    t->note = (struct tcp_note){.record = {.size = sizeof t->note, .op = GV_RECORD_ACK, .epoch = t->link.epoch, .seq = received},
                                .received = {gv_tcp_bulk_received(t)}};
    t->note_left = sizeof t->note;
}

/* Moves committed records to the unacknowledged ones. pushing held. */
static bool take_committed(struct tcp *t) {
    const void *at;
    for (uint64_t n; (n = gv_ring_span(&t->unsent, &t->tx, &at)) != 0;) {
        if (!gv_unacked_put(&t->unacked, at, n)) {
            gv_link_kill(&t->link, "out of memory");
            return false;
        }
        /* Told before there is room again: a sender that is as fast as this loop must be held back all the same. */
        atomic_store(&t->n_unacked, gv_unacked_bytes(&t->unacked));
        t->unsent.head += n;
        gv_ring_release(&t->unsent);
    }
    return true;
}

/* Lets go of what the peer has. pushing held. */
static bool drop_acknowledged(struct tcp *t) {
    if (gv_unacked_drop(&t->unacked, atomic_load(&t->peer_seq))) return true;
    gv_link_kill(&t->link, "malformed record: the peer acknowledges what was never sent");
    return false;
}

/* Sends as much as the socket takes. pushing held. True: all of it. */
static bool send_unacked(struct tcp *t, enum pushed *result) {
    for (;;) {
        if (!t->note_left && owes(t) && gv_unacked_between(&t->unacked)) write_note(t);
        const void *at;
        uint64_t n = gv_unacked_next(&t->unacked, &at);
        if (!n && !t->note_left) return true;
        struct iovec parts[2] = {{(char *)(&t->note + 1) - t->note_left, t->note_left}, {(void *)(uintptr_t)at, n}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t sent = sendmsg(t->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            size_t of_note = (size_t)sent < t->note_left ? (size_t)sent : t->note_left;
            t->note_left -= of_note;
            gv_unacked_sent(&t->unacked, (uint64_t)sent - of_note);
            *result = PUSHED_ALL;
        } else if (errno == EAGAIN || errno == ENOBUFS) {
            return false;
        } else if (errno != EINTR) {
            gv_tcp_cut(t, "", errno);
            return true;
        }
    }
}

/* Sends what is committed, as far as the socket takes it without waiting. NOTHING_LEFT: others had sent it all; BUSY: another thread is at it and
 * will see to ours too. */
static enum pushed push(struct tcp *t) {
    enum pushed result = NOTHING_LEFT;
    for (;;) {
        if (atomic_exchange(&t->pushing, 1)) return BUSY;
        bool all = true;
        if (!gv_link_dead(&t->link) && drop_acknowledged(t) && take_committed(t)) {
            if (atomic_load(&t->state) == TCP_UP) all = send_unacked(t, &result);
            atomic_store(&t->clogged, !all);
            atomic_store_explicit(&t->n_unacked, gv_unacked_bytes(&t->unacked), memory_order_relaxed);
            atomic_store_explicit(&t->unacked_peak, t->unacked.peak, memory_order_relaxed);
        }
        uint64_t head = t->unsent.head;
        bool between = gv_unacked_between(&t->unacked);
        atomic_store(&t->pushing, 0);
        if (!all) return SOCKET_FULL;
        /* Somebody may have committed, or asked to tell, after we looked and found us still at it. */
        bool up = atomic_load(&t->state) == TCP_UP;
        if ((atomic_load(&t->control->tail) == head && !(up && between && owes(t))) || gv_link_dead(&t->link)) return result;
    }
}

void gv_tcp_push(struct tcp *t) { push(t); }

static void wake_writer(struct tcp *t) {
    if (atomic_load(&t->control->reader_sleeps)) gv_wake_sleeper(&t->control->reader_sleeps);
}

void gv_tcp_ack_now(struct tcp *t) {
    atomic_store(&t->tell, true);
    if (push(t) == SOCKET_FULL) wake_writer(t);
}

/* Back-pressure: whether this thread must wait for acknowledgements. The last thread to look for records is the reader and is exempt, or nobody
 * would read the acknowledgements that the others wait for. */
static bool held_back(struct tcp *t) {
    return atomic_load_explicit(&t->n_unacked, memory_order_relaxed) >= UNACKED_LIMIT &&
           atomic_load_explicit(&t->reader, memory_order_relaxed) != (uint64_t)pthread_self();
}

static struct gv_record *next(struct tcp *t);

static void await_acknowledgement(struct tcp *t) {
    uint32_t seen = atomic_load(&t->held_back) | 1;
    atomic_store(&t->held_back, seen);
    /* Nobody may be reading just now. Acknowledgements that come before the next record are taken here as well as there. */
    gv_tcp_spin_lock(&t->receiving);
    next(t);
    gv_tcp_spin_unlock(&t->receiving);
    push(t); /* what was acknowledged is let go of here */
    if (held_back(t) && !gv_link_dead(&t->link)) gv_futex_wait(&t->held_back, seen, 2000000);
}

static int64_t tcp_admit(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    if (!held_back(t)) return 0;
    int64_t since = gv_now_ns();
    while (held_back(t) && !gv_link_dead(link)) await_acknowledgement(t);
    return since;
}

static void *tcp_reserve(struct gv_link *link, uint32_t size) {
    struct tcp *t = (struct tcp *)link;
    for (;;) {
        void *room = gv_ring_reserve(&t->tx, size);
        if (room) return room;
        if (gv_link_dead(link)) return NULL;
        if (!link->blocked_since) link->blocked_since = gv_now_ns();
        if (push(t) == BUSY) sched_yield();
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

/* Whether the connection was cut, for the case that nobody reads it. */
static void look_after(struct tcp *t) {
    gv_tcp_spin_lock(&t->receiving);
    struct pollfd p = {.fd = t->fd, .events = POLLRDHUP};
    bool up = atomic_load(&t->state) == TCP_UP && atomic_load(&t->grace_ns) > 0 && !atomic_load(&t->last);
    if (up && poll(&p, 1, 0) > 0 && p.revents) gv_tcp_cut(t, "the peer closed the connection", 0);
    gv_tcp_spin_unlock(&t->receiving);
}

/* Sends what nobody flushes, and makes a connection that was cut again. */
static void *run_writer(void *arg) {
    struct tcp *t = arg;
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    uint64_t seen = 0;
    int64_t nap = NAP_MIN_NS;
    int in_vain = 0;
    while (!atomic_load(&t->stop) && !gv_link_dead(&t->link)) {
        if (atomic_load(&t->state) == TCP_DOWN) {
            gv_tcp_while_down(t);
            continue;
        }
        uint64_t tail = atomic_load(&t->control->tail);
        enum pushed pushed = atomic_load(&t->clogged) || atomic_load(&t->control->head) != tail ? push(t) : NOTHING_LEFT;
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
        if (atomic_load(&t->control->tail) == seen && !atomic_load(&t->clogged) && !atomic_load(&t->stop) && atomic_load(&t->state) == TCP_UP &&
            !gv_link_dead(&t->link)) {
            gv_futex_wait(&t->control->reader_sleeps, 1, TCP_SLEEP_NS);
            look_after(t);
        }
        atomic_store(&t->control->reader_sleeps, 0);
        in_vain = 0;
        nap = NAP_MIN_NS;
    }
    return NULL;
}

/* ---- receiving */

/* Whether a whole record lies in the buffer; kills the link when what lies there is none. receiving held. */
static int whole(struct tcp *t) {
    if (t->end - t->at < sizeof(uint64_t)) return GV_RECORD_PART;
    uint32_t size;
    memcpy(&size, t->buffer + t->at, sizeof size);
    int verdict = gv_record_check(size, t->end - t->at, GV_RECORD_MAX);
    if (verdict == GV_RECORD_BAD) gv_link_kill(&t->link, "malformed record: an impossible size");
    return verdict;
}

/* Reads what the socket has without waiting. True when something came, or the connection ended. receiving held. */
static bool fill(struct tcp *t) {
    if (atomic_load(&t->state) != TCP_UP) return false;
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
        if (n == 0)
            gv_tcp_cut(t, t->at == t->end ? "the peer closed the connection" : "the peer closed the connection within a record", 0);
        else
            gv_tcp_cut(t, "", errno);
        return true;
    }
}

/* The peer says what it has. False: that is nonsense. */
static bool acknowledged(struct tcp *t, const struct gv_record *record) {
    struct gv_received received;
    if (record->size != sizeof(struct tcp_note) || record->op != GV_RECORD_ACK) return false;
    memcpy(&received, record + 1, sizeof received);
    if (record->seq > atomic_load_explicit(&t->peer_seq, memory_order_relaxed)) atomic_store(&t->peer_seq, record->seq);
    if (atomic_load_explicit(&t->held_back, memory_order_relaxed) & 1) {
        atomic_store(&t->held_back, (atomic_load(&t->held_back) & ~1u) + 2);
        gv_futex_wake(&t->held_back, INT_MAX);
    }
    return gv_tcp_bulk_peer_has(t, received.bulk);
}

/* The next record of the session; receiving held. */
static struct gv_record *next(struct tcp *t) {
    for (;;) {
        int verdict = whole(t);
        if (verdict == GV_RECORD_PART) {
            if (!fill(t)) return NULL;
        } else if (verdict == GV_RECORD_BAD) {
            return NULL;
        } else {
            struct gv_record *record = (struct gv_record *)(void *)(t->buffer + t->at);
            if (record->op != GV_RECORD_ACK && record->op != GV_RECORD_RESUME) return record;
            size_t size = record->size;
            if (!acknowledged(t, record)) {
                gv_link_kill(&t->link, "malformed record: an acknowledgement that makes no sense");
                return NULL;
            }
            t->at += size;
        }
        if (gv_link_dead(&t->link)) return NULL;
    }
}

static void now_reading(struct tcp *t) {
    uint64_t self = (uint64_t)pthread_self();
    if (atomic_load_explicit(&t->reader, memory_order_relaxed) != self) atomic_store_explicit(&t->reader, self, memory_order_relaxed);
}

static struct gv_record *tcp_next(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    now_reading(t);
    gv_tcp_spin_lock(&t->receiving);
    struct gv_record *record = next(t);
    if (record) {
        t->current = record->size;
        t->records_untold++;
        t->bytes_untold += record->size;
        atomic_store_explicit(&t->received, record->seq, memory_order_relaxed);
    }
    gv_tcp_spin_unlock(&t->receiving);
    return record;
}

static void tcp_release(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    gv_tcp_spin_lock(&t->receiving);
    t->at += t->current;
    t->current = 0;
    if (t->at == t->end) t->at = t->end = 0;
    gv_tcp_spin_unlock(&t->receiving);
    if (t->records_untold < ACK_RECORDS && t->bytes_untold < ACK_BYTES) return;
    t->records_untold = 0;
    t->bytes_untold = 0;
    gv_tcp_ack_now(t);
}

/* Whether something is there to be read, or has happened. */
static bool receivable(struct tcp *t) {
    if (atomic_exchange(&t->woken, false) || gv_link_dead(&t->link)) return true;
    gv_tcp_spin_lock(&t->receiving);
    bool some = whole(t) != GV_RECORD_PART || fill(t);
    gv_tcp_spin_unlock(&t->receiving);
    return some;
}

/* Whether the packets from the peer come in on this very core: over the loopback device it sent them from here. */
static void make_way(struct tcp *t) {
    int cpu = -1, here = sched_getcpu();
    socklen_t size = sizeof cpu;
    if (getsockopt(t->fd, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &size) == 0 && cpu == here) gv_leave_core(here, &t->moved_at);
}

static void tcp_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns) {
    struct tcp *t = (struct tcp *)link;
    now_reading(t);
    int64_t now = gv_now_ns(), until = now + timeout_ns, spin_end = now + (spin_ns < timeout_ns ? spin_ns : timeout_ns);
    for (;;) {
        if (receivable(t)) return;
        now = gv_now_ns();
        if (now >= spin_end) break;
        /* Who spins keeps others from this core: the peer, or a stream's thread. */
        if (t->makes_way) make_way(t);
        sched_yield();
    }
    while (now < until) {
        int64_t left = until - now;
        struct timespec limit = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        struct pollfd fds[2] = {{.fd = t->wake_fd, .events = POLLIN}, {.fd = t->fd, .events = POLLIN}};
        int n = ppoll(fds, atomic_load(&t->state) == TCP_UP ? 2 : 1, &limit, NULL);
        if (n > 0 && fds[0].revents) {
            uint64_t count;
            if (read(t->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN) gv_link_kill_errno(link, "", errno);
        }
        if (receivable(t)) return;
        now = gv_now_ns();
    }
}

static void tcp_wake(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    uint64_t one = 1;
    atomic_store(&t->woken, true);
    if (write(t->wake_fd, &one, sizeof one) < 0) return; /* its count is full: it wakes all the same */
}

/* ---- life and death */

static void tcp_died(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    shutdown(t->fd, SHUT_RDWR); /* ends every poll, send and recv on it */
    gv_tcp_bulk_died(t);
    gv_wake_sleeper(&t->control->reader_sleeps);
    atomic_store(&t->held_back, atomic_load(&t->held_back) + 2);
    gv_futex_wake(&t->held_back, INT_MAX);
    pthread_mutex_lock(&t->state_lock);
    pthread_cond_broadcast(&t->state_changed);
    pthread_mutex_unlock(&t->state_lock);
    tcp_wake(link);
}

static void close_all(struct tcp *t) {
    close(t->fd);
    close(t->wake_fd);
    gv_tcp_bulk_close_sockets(t);
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
        gv_tcp_spin_lock(&t->receiving);
        t->at = t->end = 0;
        if (poll(&p, 1, 1) > 0) fill(t);
        gv_tcp_spin_unlock(&t->receiving);
    }
}

static void free_tcp(struct tcp *t) {
    gv_unacked_free(&t->unacked);
    gv_tcp_bulk_free(t);
    gv_link_fini(&t->link);
    pthread_mutex_destroy(&t->state_lock);
    pthread_mutex_destroy(&t->resume_lock);
    pthread_cond_destroy(&t->state_changed);
    free(t->buffer);
    free(t->ring);
    free(t->control);
    free(t);
}

static void tcp_close(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    pthread_mutex_lock(&t->state_lock);
    atomic_store(&t->stop, true);
    pthread_cond_broadcast(&t->state_changed);
    pthread_mutex_unlock(&t->state_lock);
    gv_wake_sleeper(&t->control->reader_sleeps);
    pthread_join(t->thread, NULL);
    if (!gv_link_dead(link) && atomic_load(&t->state) == TCP_UP) linger(t);
    gv_link_kill(link, "closed");
    gv_tcp_bulk_end(t);
    close_all(t);
    free_tcp(t);
}

static void tcp_bulk_whole(struct gv_link *link) { gv_tcp_ack_now((struct tcp *)link); }

static int tcp_add_channel(struct gv_link *link, int channel, int fd) {
    struct tcp *t = (struct tcp *)link;
    if (channel < 0 || fd < 0) return -1;
    return gv_tcp_bulk_attach(t, (uint32_t)channel, fd, 0);
}

static struct gv_link *tcp_connect(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]);
static struct gv_link *tcp_adopt(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]);

const struct gv_transport gv_tcp_transport = {
    .name = "tcp",
    .needs = GV_NEEDS_NETWORK,
    .connections = TCP_CHANNELS_MAX,
    .connect = tcp_connect,
    .adopt = tcp_adopt,
    .redial = gv_redial,
    .admit = tcp_admit,
    .reserve = tcp_reserve,
    .publish = tcp_publish,
    .flush = tcp_flush,
    .next = tcp_next,
    .release = tcp_release,
    .wait = tcp_wait,
    .wake = tcp_wake,
    .bulk_part = gv_tcp_bulk_part,
    .bulk_acked = gv_tcp_bulk_acked,
    .bulk_read = gv_tcp_bulk_read,
    .bulk_whole = tcp_bulk_whole,
    .add_channel = tcp_add_channel,
    .resume = gv_tcp_resume,
    .set_grace = gv_tcp_set_grace,
    .last = gv_tcp_last,
    .client_gone = gv_tcp_client_gone,
    .down = gv_tcp_down,
    .counts = gv_tcp_counts,
    .died = tcp_died,
    .abandon = tcp_abandon,
    .close = tcp_close,
};

struct gv_link *gv_tcp_new(int fd, struct gv_redial_target *redial) {
    struct tcp *t = NULL;
    if (posix_memalign((void **)&t, 128, sizeof *t) != 0) {
        errno = ENOMEM;
        return NULL;
    }
    memset(t, 0, sizeof *t);
    gv_link_init(&t->link, &gv_tcp_transport);
    t->fd = fd;
    t->makes_way = !redial;
    gv_unacked_init(&t->unacked);
    pthread_mutex_init(&t->state_lock, NULL);
    pthread_mutex_init(&t->resume_lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->state_changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    t->link.redial = redial;
    if (redial) {
        atomic_store(&t->grace_ns, redial->grace_ns);
        atomic_store(&t->link.rtt_ns, redial->rtt_ns);
        t->link.session = redial->session;
        snprintf(t->link.server, sizeof t->link.server, "%s", redial->address.url);
    }
    t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int error = t->wake_fd < 0 ? errno : 0;
    if (!error) error = posix_memalign((void **)&t->control, GV_RING_LINE, sizeof *t->control);
    if (!error) error = posix_memalign(&t->ring, 4096, GV_COMMAND_RING);
    if (!error) error = posix_memalign((void **)&t->buffer, 4096, BUFFER_SIZE);
    bool opened = false;
    if (!error) {
        memset(t->control, 0, sizeof *t->control);
        gv_ring_writer_init(&t->tx, t->control, t->ring, GV_COMMAND_RING);
        gv_ring_reader_init(&t->unsent, t->control, t->ring, GV_COMMAND_RING);
        gv_tcp_tune(fd);
        opened = true;
        error = gv_tcp_bulk_open(t, redial ? redial->channels : 0);
        if (!error) error = gv_thread_start(&t->thread, run_writer, t, "gpuvirt-link");
    }
    if (!error) return &t->link;
    if (opened) {
        atomic_store(&t->link.dead, 2);
        gv_tcp_bulk_died(t);
        gv_tcp_bulk_end(t);
        gv_tcp_bulk_free(t);
        if (t->bulk.wake_fd >= 0) close(t->bulk.wake_fd);
    }
    if (t->wake_fd >= 0) close(t->wake_fd);
    t->link.redial = NULL; /* the caller's still */
    gv_link_fini(&t->link);
    free(t->buffer);
    free(t->ring);
    free(t->control);
    free(t);
    errno = error;
    return NULL;
}

static struct gv_link *tcp_connect(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]) {
    if (!endpoint->connections) {
        snprintf(why, GV_DEATH_TEXT, "it offers no bulk channel");
        return NULL;
    }
    struct gv_link *link = gv_tcp_new(endpoint->fd, endpoint->redial);
    if (!link) snprintf(why, GV_DEATH_TEXT, "it could not be set up: %s", strerror(errno));
    return link;
}

static struct gv_link *tcp_adopt(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]) {
    struct gv_link *link = gv_tcp_new(endpoint->fd, NULL);
    if (!link) snprintf(why, GV_DEATH_TEXT, "the link could not be set up: %s", strerror(errno));
    return link;
}
