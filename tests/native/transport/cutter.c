#define _GNU_SOURCE
#include "cutter.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../check.h"

#define MOST 32
#define ROOM 65536

struct way {
    int fds[2];
    uint8_t *held[2]; /* read from fds[i], not yet written to the other */
    size_t at[2], end[2];
    bool ended[2];
    int passed[2]; /* a descriptor that goes with the next byte, -1: none */
};

static void drop(struct cutter *c, struct way *w) {
    struct linger none = {1, 0};
    for (int i = 0; i < 2; i++) {
        if (w->fds[i] < 0) continue;
        if (atomic_load(&c->reset)) setsockopt(w->fds[i], SOL_SOCKET, SO_LINGER, &none, sizeof none);
        close(w->fds[i]);
        free(w->held[i]);
        if (w->passed[i] >= 0) close(w->passed[i]);
        w->fds[i] = -1;
    }
}

static int dial_server(const struct cutter *c, bool over_unix) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)c->server_port)};
    struct sockaddr_un here = {.sun_family = AF_UNIX};
    snprintf(here.sun_path, sizeof here.sun_path, "%.100s", c->unix_path);
    int fd = socket(over_unix ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    if (connect(fd, over_unix ? (struct sockaddr *)&here : (struct sockaddr *)&at, over_unix ? sizeof here : sizeof at) == 0) return fd;
    close(fd);
    return -1;
}

static void take(struct cutter *c, struct way *ways, bool over_unix) {
    int fd = accept4(over_unix ? c->unix_listening : c->listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    if (!over_unix) atomic_fetch_add(&c->connections, 1);
    struct way *w = ways;
    while (w < ways + MOST && w->fds[0] >= 0) w++;
    CHECK(w < ways + MOST);
    if (atomic_load(&c->refuse)) {
        close(fd);
        return;
    }
    int other = dial_server(c, over_unix);
    if (other < 0) {
        close(fd);
        return;
    }
    fcntl(other, F_SETFL, O_NONBLOCK);
    *w = (struct way){.fds = {fd, other}, .held = {malloc(ROOM), malloc(ROOM)}, .passed = {-1, -1}};
}

union control {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
};

static ssize_t receive(struct way *w, int from) {
    union control control;
    struct iovec part = {w->held[from], ROOM};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    ssize_t n = recvmsg(w->fds[from], &m, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_type == SCM_RIGHTS) memcpy(&w->passed[from], CMSG_DATA(c), sizeof(int));
    return n;
}

static ssize_t pass_on(struct way *w, int from, size_t size) {
    union control control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};
    struct iovec part = {w->held[from] + w->at[from], size};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (w->passed[from] >= 0) {
        memcpy(CMSG_DATA(&control.header), &w->passed[from], sizeof(int));
        m.msg_control = control.room;
        m.msg_controllen = sizeof control.room;
    }
    ssize_t n = sendmsg(w->fds[!from], &m, MSG_NOSIGNAL);
    if (n > 0 && w->passed[from] >= 0) {
        close(w->passed[from]);
        w->passed[from] = -1;
    }
    return n;
}

/* Moves what one end has to the other. False: that was a cut, or the end. */
static bool move(struct cutter *c, struct way *w, int from) {
    if (w->at[from] == w->end[from] && !w->ended[from]) {
        ssize_t n = receive(w, from);
        w->at[from] = 0;
        w->end[from] = n > 0 ? (size_t)n : 0;
        if (n == 0) {
            w->ended[from] = true;
            shutdown(w->fds[!from], SHUT_WR);
        } else if (n < 0) {
            return false;
        }
    }
    size_t size = w->end[from] - w->at[from];
    int64_t left = atomic_load(&c->cut_in);
    bool cut = left > 0 && (int64_t)size >= left;
    if (cut) size = (size_t)left;
    ssize_t n = size ? pass_on(w, from, size) : 0;
    if (n > 0) {
        w->at[from] += (size_t)n;
        if (left > 0) atomic_store(&c->cut_in, cut && (size_t)n == size ? 0 : left - n);
    }
    if (cut && n == (ssize_t)size) {
        atomic_fetch_add(&c->cuts, 1);
        return false;
    }
    return !(w->ended[0] && w->ended[1]);
}

static void *run(void *arg) {
    struct cutter *c = arg;
    struct way ways[MOST];
    for (int i = 0; i < MOST; i++) ways[i].fds[0] = ways[i].fds[1] = -1;
    for (;;) {
        struct pollfd fds[3 + 2 * MOST] = {{c->stop[0], POLLIN, 0}, {c->listening, POLLIN, 0}, {c->unix_listening, POLLIN, 0}};
        for (int i = 0; i < MOST; i++) {
            for (int e = 0; e < 2; e++) {
                struct way *w = &ways[i];
                short events = 0;
                if (w->fds[e] >= 0 && !atomic_load(&c->hole)) {
                    if (w->at[e] == w->end[e] && !w->ended[e]) events |= POLLIN;
                    if (w->at[!e] < w->end[!e]) events |= POLLOUT;
                }
                fds[3 + 2 * i + e] = (struct pollfd){events ? w->fds[e] : -1, events, 0};
            }
        }
        if (poll(fds, 3 + 2 * MOST, 20) < 0) continue;
        if (fds[0].revents) {
            char what;
            CHECK(read(c->stop[0], &what, 1) == 1);
            for (int i = 0; i < MOST; i++) {
                if (ways[i].fds[0] >= 0) atomic_fetch_add(&c->cuts, 1);
                drop(c, &ways[i]);
            }
            if (what == 'x') return NULL;
            if (what == 'd') {
                close(c->listening);
                if (c->unix_listening >= 0) close(c->unix_listening);
                c->listening = c->unix_listening = -1;
            }
            continue;
        }
        if (fds[1].revents) take(c, ways, false);
        if (fds[2].revents) take(c, ways, true);
        for (int i = 0; i < MOST; i++) {
            struct way *w = &ways[i];
            for (int e = 0; e < 2 && w->fds[0] >= 0; e++) {
                bool readable = fds[3 + 2 * i + e].revents, writable = fds[3 + 2 * i + !e].revents & POLLOUT;
                if ((readable || writable) && !move(c, w, e)) drop(c, w);
            }
        }
    }
}

static void take_unix(struct cutter *c, const char *path) {
    struct sockaddr_un here = {.sun_family = AF_UNIX};
    snprintf(here.sun_path, sizeof here.sun_path, "%.100s", path);
    snprintf(c->unix_path, sizeof c->unix_path, "%.100s.own", path);
    CHECK(rename(path, c->unix_path) == 0);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(bind(fd, (struct sockaddr *)&here, sizeof here) == 0 && listen(fd, 16) == 0);
    c->unix_listening = fd;
}

void cutter_start(struct cutter *c, const char *server_url, const char *unix_path) {
    memset(c, 0, sizeof *c);
    c->unix_listening = -1;
    c->server_port = atoi(strrchr(server_url, ':') + 1);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    c->listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(bind(c->listening, (struct sockaddr *)&at, sizeof at) == 0 && listen(c->listening, 16) == 0);
    CHECK(getsockname(c->listening, (struct sockaddr *)&at, &size) == 0 && pipe2(c->stop, O_CLOEXEC) == 0);
    snprintf(c->url, sizeof c->url, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    if (unix_path) take_unix(c, unix_path);
    CHECK(pthread_create(&c->thread, NULL, run, c) == 0);
}

void cutter_cut_all(struct cutter *c) { CHECK(write(c->stop[1], "c", 1) == 1); }

void cutter_close(struct cutter *c) { CHECK(write(c->stop[1], "d", 1) == 1); }

void cutter_stop(struct cutter *c) {
    CHECK(write(c->stop[1], "x", 1) == 1);
    pthread_join(c->thread, NULL);
    if (c->listening >= 0) close(c->listening);
    if (c->unix_listening >= 0) close(c->unix_listening);
    if (*c->unix_path) unlink(c->unix_path);
    close(c->stop[0]);
    close(c->stop[1]);
}
