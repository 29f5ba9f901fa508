#define _GNU_SOURCE
#include "delay.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "delay_rings.h"
#include "../link.h"
#include "../silence.h"

/* At the end, so long for what was delivered to be acknowledged by the peer's host. */
#define LINGER_NS 300000000LL
/* Closing waits at most so much longer than it should take, and so long in all. */
#define DRAIN_EXTRA_NS 1500000000LL
#define DRAIN_MOST_NS 10000000000LL
/* The end of a unix socket waits so long for the bytes that its rings sent before it. */
#define RINGS_NS 1000000000LL
/* The real socket's peer is looked after so often at least. */
#define LOOK_NS 1000000000LL

enum way { OUT, IN }; /* from the near end to the real socket, and back */

struct path {
    struct gv_line line;
    int from, to;
    bool blocked;  /* the last send found no room */
    bool gone;     /* `from` hung up: polling it would only say so again */
    bool ended;    /* `from` gave its end of file, which is to be passed on at ends_at */
    bool finished; /* and was */
    int64_t ends_at;
    int64_t again; /* reading goes on at this time; INT64_MAX: when something has left */
    bool shut;     /* reading waits */
};

struct pump {
    struct pump *next, **link; /* in the list of pumps; under its lock, as are the descriptors' lives */
    int near, inner, real;     /* `near` is only a number here: the user of the pair owns it */
    struct path paths[2];
    int64_t delay_ns;
    struct gv_silence silence;              /* of the real socket's peer */
    int64_t lost_at;                        /* the real socket was cut, and the near end is to know at that time; 0: it was not */
    _Atomic(struct gv_delay_rings *) rings; /* of a shared-memory link */
};

/* All of a process's pumps, for closing and forking. The lock is held for moments only. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pump *pumps;
static _Atomic uint32_t ended_pumps; /* counts, for whoever waits */
static struct gv_wire wires[2];

/* ---- forks */

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

/* The child has none of the threads: it must not hold what would keep a connection alive. The pumps' memory stays where it is, for a thread may have
 * been at work in it. */
static void in_child(void) {
    for (struct pump *p = pumps; p; p = p->next) {
        close(p->inner);
        close(p->real);
    }
    pumps = NULL;
    pthread_mutex_unlock(&lock);
}

static void handle_forks(void) { pthread_atfork(before_fork, after_fork, in_child); }

/* ---- one direction */

static ssize_t send_piece(int to, const void *at, uint64_t n, int fd) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {(void *)(uintptr_t)at, n};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        memset(&control, 0, sizeof control);
        m.msg_control = control.room;
        m.msg_controllen = sizeof control.room;
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    }
    return sendmsg(to, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static bool passing(int error) { return error == EAGAIN || error == EINTR || error == ENOBUFS; }

/* Hands over what is due. False when the receiver is gone. */
static bool deliver(struct path *p, int64_t now) {
    int fd;
    uint64_t due;
    p->blocked = false;
    while ((due = gv_line_due(&p->line, now, false, &fd)) > 0) {
        const uint8_t *at;
        uint64_t n = gv_line_piece(&p->line, due, &at);
        ssize_t sent = send_piece(p->to, at, n, fd);
        if (sent > 0) {
            if (fd >= 0) close(fd);
            gv_line_take(&p->line, (uint64_t)sent);
            if (p->again == INT64_MAX) p->again = now; /* there is room again */
        } else if (!passing(errno)) {
            return false;
        } else if (errno != EINTR) {
            p->blocked = true;
            return true;
        }
    }
    return true;
}

/* Takes the first descriptor that came along, closes others. */
static int passed_descriptor(struct msghdr *m) {
    int passed = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (passed < 0) {
                passed = fd;
            } else {
                close(fd);
            }
        }
    }
    return passed;
}

/* Takes in what has arrived. False when the sender was cut off. */
static bool take_in(struct path *p) {
    p->shut = false;
    if (p->ended) return true;
    for (uint64_t left = gv_line_portion(&p->line); left > 0;) {
        if (!gv_line_open(&p->line, left, gv_now_ns(), &p->again)) {
            p->shut = true;
            return true;
        }
        union {
            struct cmsghdr header;
            char room[CMSG_SPACE(4 * sizeof(int))];
        } control;
        uint64_t room;
        uint8_t *at = gv_line_at(&p->line, &room);
        struct iovec part = {at, room < left ? room : left};
        struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
        ssize_t n = recvmsg(p->from, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        int error = n < 0 ? errno : 0;
        int64_t now = gv_now_ns(); /* asked after the bytes were there: nothing leaves too early */
        if (n > 0) {
            gv_line_put(&p->line, (uint64_t)n);
            gv_line_stamp(&p->line, now, passed_descriptor(&m), false);
            if ((uint64_t)n < part.iov_len) return true;
            left -= (uint64_t)n;
        } else if (n == 0) {
            p->ended = true;
            p->ends_at = gv_line_arrival(&p->line, now);
            return true;
        } else if (error == EAGAIN) {
            return true;
        } else if (error != EINTR) {
            return false;
        }
    }
    return true;
}

/* Passes the end of file on when its time has come. */
static void pass_end(struct path *p, int64_t now) {
    if (!p->ended || p->finished || !gv_line_empty(&p->line) || now < p->ends_at) return;
    shutdown(p->to, SHUT_WR);
    p->finished = true;
}

/* ---- the pump of one socket */

/* The real socket was cut. What the peer had sent before it ended in order still arrives; else the line loses what is in it. */
static void cut(struct pump *p, int64_t now) {
    struct path *out = &p->paths[OUT], *in = &p->paths[IN];
    gv_line_drop(&out->line);
    in->gone = true;
    if (in->ended) {
        out->ended = out->finished = true;
    } else if (!p->lost_at) {
        gv_line_drop(&in->line);
        p->lost_at = now + p->delay_ns;
    }
}

static void move(struct pump *p, int64_t now) {
    struct path *out = &p->paths[OUT], *in = &p->paths[IN];
    struct gv_delay_rings *rings = atomic_load(&p->rings);
    bool sends = out->finished || deliver(out, now), hears = take_in(in);
    if (!sends || !hears) cut(p, now);
    if (p->lost_at) return;
    /* Who closed the near end reads no more; what he had sent is still delivered. */
    if (!out->gone && !deliver(in, now)) out->gone = true;
    if (out->gone) gv_line_drop(&in->line);
    if (!take_in(out)) {
        out->ended = true;
        out->ends_at = gv_line_arrival(&out->line, gv_now_ns());
    }
    if (rings && out->gone && out->ended && !out->finished) gv_delay_rings_finish(rings, now + p->delay_ns + RINGS_NS);
    pass_end(out, now);
    if (!rings || now > in->ends_at + RINGS_NS || gv_delay_rings_arrived(rings)) pass_end(in, now);
}

static int64_t sooner(int64_t a, int64_t b) { return a < b ? a : b; }

/* When there is something to do though nothing happens. */
static int64_t next_time(const struct pump *p, int64_t now) {
    if (p->lost_at) return p->lost_at;
    int64_t next = INT64_MAX;
    for (int way = OUT; way <= IN; way++) {
        const struct path *path = &p->paths[way];
        if (!path->blocked) next = sooner(next, gv_line_next(&path->line));
        if (path->shut) next = sooner(next, path->again);
        if (path->gone && !path->ended && !path->shut) next = now; /* what it left behind is to be read */
        if (path->ended && !path->finished && gv_line_empty(&path->line)) {
            next = sooner(next, path->ends_at > now || !atomic_load(&p->rings) ? path->ends_at : now + 1000000);
        }
    }
    return next;
}

static struct pollfd events_of(const struct path *reads, const struct path *writes, bool gone) {
    short events = 0;
    if (!reads->ended && !reads->shut) events |= POLLIN;
    if (writes->blocked) events |= POLLOUT;
    return (struct pollfd){.fd = gone ? -1 : reads->from, .events = events};
}

/* Sleeps until something is to be done. */
static void wait_for_work(struct pump *p) {
    int64_t now = gv_now_ns(), left = next_time(p, now) - now;
    struct path *out = &p->paths[OUT], *in = &p->paths[IN];
    struct pollfd fds[2] = {events_of(out, in, out->gone), events_of(in, out, in->gone)};
    if (p->lost_at) fds[0].events = 0, fds[1].fd = -1;
    if (left < 0) left = 0;
    if (left > LOOK_NS) left = LOOK_NS;
    struct timespec limit = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    if (ppoll(fds, 2, &limit, NULL) <= 0) return;
    if (fds[0].revents & (POLLHUP | POLLERR)) out->gone = true;
    if (fds[1].revents & POLLHUP) in->gone = true;
    if (fds[1].revents & POLLERR) cut(p, gv_now_ns());
    if (in->gone) out->blocked = false;
}

static bool over(const struct pump *p, int64_t now) {
    const struct path *out = &p->paths[OUT], *in = &p->paths[IN];
    if (p->lost_at) return now >= p->lost_at || out->gone;
    return out->finished && (in->finished || out->gone);
}

/* Lets the peer have what was sent: closing a socket with unread bytes in it would throw that away. */
static void linger(const struct pump *p) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    char nowhere[4096];
    int unsent;
    for (int64_t until = gv_now_ns() + LINGER_NS; gv_now_ns() < until;) {
        ssize_t n;
        while ((n = recv(p->real, nowhere, sizeof nowhere, MSG_DONTWAIT)) > 0) continue;
        if (n == 0 || errno != EAGAIN) return;
        if (ioctl(p->real, SIOCOUTQ, &unsent) != 0 || unsent == 0) return;
        nanosleep(&pause, NULL);
    }
}

static void free_pump(struct pump *p) {
    gv_line_free(&p->paths[OUT].line);
    gv_line_free(&p->paths[IN].line);
    free(p);
}

static void end(struct pump *p) {
    if (!p->lost_at) linger(p);
    /* gv_delay_shm finds no pump that has ended. */
    pthread_mutex_lock(&lock);
    struct gv_delay_rings *rings = atomic_load(&p->rings);
    p->near = -1;
    pthread_mutex_unlock(&lock);
    if (rings) gv_delay_rings_leave(rings, p->inner);
    pthread_mutex_lock(&lock);
    *p->link = p->next;
    if (p->next) p->next->link = p->link;
    close(p->inner);
    close(p->real);
    pthread_mutex_unlock(&lock);
    free_pump(p);
    atomic_fetch_add(&ended_pumps, 1);
    gv_futex_wake(&ended_pumps, 1 << 30);
}

static void *run(void *arg) {
    struct pump *p = arg;
    prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
    for (;;) {
        int64_t now = gv_now_ns();
        if (!p->lost_at && gv_host_silent(&p->silence, p->real)) cut(p, now);
        if (!p->lost_at) move(p, now);
        if (over(p, now)) break;
        wait_for_work(p);
    }
    end(p);
    return NULL;
}

/* ---- for those who dial */

static void sleep_until(int64_t until) {
    struct timespec t = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) continue;
}

static struct pump *make_pump(int fd, const struct gv_link_spec *spec) {
    struct pump *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->real = fd;
    p->delay_ns = (spec->rtt_ns + 1) / 2;
    for (int way = OUT; way <= IN; way++) {
        if (!gv_line_init(&p->paths[way].line, spec, &wires[way], 0)) {
            free_pump(p);
            errno = ENOMEM;
            return NULL;
        }
    }
    p->paths[IN].line.not_before = gv_now_ns() + spec->rtt_ns;
    return p;
}

int gv_delay_wrap(int fd, const struct gv_link_spec *spec) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!spec->delayed) return fd;
    sleep_until(gv_now_ns() + spec->rtt_ns);
    pthread_once(&once, handle_forks);
    struct pump *p = make_pump(fd, spec);
    if (!p) return -1;
    gv_tcp_tune(fd);
    int pair[2], error = 0, near = -1;
    pthread_t thread;
    pthread_mutex_lock(&lock); /* against a fork, too, which must find the pair in the list */
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        error = errno;
    } else {
        int flags = fcntl(fd, F_GETFL);
        fcntl(fd, F_SETFL, flags | O_NONBLOCK);
        near = p->near = pair[0];
        p->inner = pair[1];
        p->paths[OUT].from = p->paths[IN].to = p->inner;
        p->paths[OUT].to = p->paths[IN].from = fd;
        error = gv_thread_start(&thread, run, p, "gpuvirt-delay");
        if (error) {
            close(pair[0]);
            close(pair[1]);
        } else {
            pthread_detach(thread);
            p->link = &pumps;
            p->next = pumps;
            if (pumps) pumps->link = &p->next;
            pumps = p;
        }
    }
    pthread_mutex_unlock(&lock);
    if (!error) return near;
    free_pump(p);
    errno = error;
    return -1;
}

/* lock held: the newest pump with this number, an older one was closed. NULL: none, or it has rings. */
static struct pump *pump_of(int near) {
    for (struct pump *p = pumps; p; p = p->next)
        if (p->near == near && !atomic_load(&p->rings)) return p;
    return NULL;
}

int gv_delay_shm(int near, int memfd, const uint64_t rings[4], const struct gv_link_spec *spec, struct gv_delay_rings **carried) {
    *carried = NULL;
    if (!spec->delayed) return memfd;
    int near_memfd = -1, error = ENOTCONN;
    pthread_mutex_lock(&lock);
    struct pump *p = pump_of(near);
    if (p) {
        *carried = gv_delay_rings_start(memfd, rings, spec, wires, &near_memfd);
        error = *carried ? 0 : errno;
        if (*carried) gv_delay_rings_join(*carried, p->inner);
        atomic_store(&p->rings, *carried);
    }
    pthread_mutex_unlock(&lock);
    if (error) {
        errno = error;
        return -1;
    }
    close(memfd);
    return near_memfd;
}

void gv_delay_shm_again(int near, struct gv_delay_rings *carried) {
    pthread_mutex_lock(&lock);
    struct pump *p = pump_of(near);
    if (p) {
        gv_delay_rings_join(carried, p->inner);
        atomic_store(&p->rings, carried);
    }
    pthread_mutex_unlock(&lock);
}

/* When the pumps whose near ends were closed before `begin` should be through, 0 when there are none. */
static int64_t drained_at(int64_t begin) {
    int64_t latest = 0;
    pthread_mutex_lock(&lock);
    for (struct pump *p = pumps; p; p = p->next) {
        struct pollfd inner = {.fd = p->inner};
        if (poll(&inner, 1, 0) <= 0) continue;
        int64_t due = atomic_load(&p->paths[OUT].line.last_due), least = begin + p->delay_ns;
        if (due < least) due = least;
        if (due > latest) latest = due;
    }
    pthread_mutex_unlock(&lock);
    return latest;
}

void gv_delay_drain(void) {
    int64_t begin = gv_now_ns();
    for (;;) {
        uint32_t ended = atomic_load(&ended_pumps);
        int64_t at = drained_at(begin), now = gv_now_ns();
        if (at == 0) return;
        if (now > at + DRAIN_EXTRA_NS || now > begin + DRAIN_MOST_NS) return;
        gv_futex_wait(&ended_pumps, ended, 5000000);
    }
}
