#define _GNU_SOURCE
#include "dial.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "futex.h"
#include "silence.h"

bool gv_address_parse(const char *pool, struct gv_address *address) {
    static const char scheme[] = "tcp://";
    memset(address, 0, sizeof *address);
    if (!pool || strncmp(pool, scheme, sizeof scheme - 1) != 0) return false;
    const char *host = pool + sizeof scheme - 1, *port;
    size_t host_size;
    bool v6 = *host == '[';
    if (v6) {
        host++;
        const char *end = strchr(host, ']');
        if (!end || end[1] != ':') return false;
        host_size = (size_t)(end - host);
        port = end + 2;
    } else {
        host_size = strcspn(host, ":/[],");
        if (host[host_size] != ':') return false;
        port = host + host_size + 1;
    }
    size_t digits = strspn(port, "0123456789");
    if (host_size == 0 || host_size >= sizeof address->host || digits == 0 || digits > 5) return false;
    if (port[digits] != 0 && strcmp(port + digits, "/") != 0) return false;
    long number = strtol(port, NULL, 10);
    if (number < 1 || number > 65535) return false;
    memcpy(address->host, host, host_size);
    snprintf(address->port, sizeof address->port, "%ld", number);
    snprintf(address->url, sizeof address->url, v6 ? "tcp://[%s]:%s" : "tcp://%s:%s", address->host, address->port);
    return true;
}

/* 0 when `events` came, ETIMEDOUT, or what else went wrong. */
static int wait_for(int fd, short events, int64_t until) {
    for (;;) {
        int64_t left = until - gv_now_ns();
        if (left <= 0) return ETIMEDOUT;
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, (int)(left / 1000000) + 1);
        if (n > 0) return 0;
        if (n < 0 && errno != EINTR) return errno;
    }
}

static int connect_until(int fd, const struct sockaddr *to, socklen_t size, int64_t until) {
    if (connect(fd, to, size) == 0) return 0;
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    int error = wait_for(fd, POLLOUT, until);
    if (error) return error;
    socklen_t length = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

int gv_dial_tcp(const struct gv_address *address, int64_t until, char *why, size_t why_size) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found = NULL;
    int failed = getaddrinfo(address->host, address->port, &hints, &found);
    if (failed) {
        snprintf(why, why_size, "the host %s is not known (%s); check the pool's name", address->host,
                 failed == EAI_SYSTEM ? strerror(errno) : gai_strerror(failed));
        return -1;
    }
    int error = EHOSTUNREACH, fd = -1;
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (fd < 0) {
            error = errno;
            continue;
        }
        /* Half of what is left for each address but the last, so that an unanswering first one (v6 without a route, say) does not use up the time of
         * the next. */
        int64_t now = gv_now_ns();
        error = connect_until(fd, a->ai_addr, a->ai_addrlen, a->ai_next ? now + (until - now) / 2 : until);
        if (error) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    if (fd >= 0) return fd;
    if (error == ETIMEDOUT) {
        snprintf(why, why_size, "no answer from %s in time; is the address right and the port open?", address->url);
    } else if (error == ECONNREFUSED) {
        snprintf(why, why_size, "no gpuvirt server answers at %s; start one there with: gpuvirt serve --listen HOST:%s", address->url, address->port);
    } else if (error == EMFILE || error == ENFILE) {
        snprintf(why, why_size, "cannot connect to %s: %s; raise the limit with: ulimit -n", address->url, strerror(error));
    } else {
        snprintf(why, why_size, "cannot reach %s: %s; check the pool's address and the network", address->url, strerror(error));
    }
    errno = error;
    return -1;
}

int gv_dial_unix(const char *path, int64_t until) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    if (length >= sizeof to.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(to.sun_path, path, length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    int error = connect_until(fd, (const struct sockaddr *)&to, sizeof to, until);
    if (!error) return fd;
    close(fd);
    errno = error;
    return -1;
}

int gv_put(int fd, const void *message, size_t size, int64_t until) {
    const char *p = message;
    while (size) {
        ssize_t n = send(fd, p, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            p += n;
            size -= (size_t)n;
        } else if (errno == EAGAIN) {
            int error = wait_for(fd, POLLOUT, until);
            if (error) return error;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

void gv_passed_close(struct gv_passed *passed) {
    while (passed->n) close(passed->fd[--passed->n]);
}

/* Keeps the descriptors that there is room for, closes what else a strange peer sends. */
static void take_descriptors(struct msghdr *message, struct gv_passed *passed) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (passed && passed->n < GV_DESCRIPTORS_MAX) {
                passed->fd[passed->n++] = fd;
            } else {
                close(fd);
            }
        }
    }
}

int gv_get(int fd, void *message, size_t size, int64_t until, struct gv_passed *passed) {
    char *p = message;
    int error = 0;
    while (size && !error) {
        union {
            struct cmsghdr header;
            char room[CMSG_SPACE(GV_DESCRIPTORS_MAX * sizeof(int))];
        } control;
        struct iovec part = {p, size};
        struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
        ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n >= 0) take_descriptors(&m, passed);
        if (n > 0) {
            p += n;
            size -= (size_t)n;
        } else if (n == 0) {
            error = ECONNRESET;
        } else if (errno == EAGAIN) {
            error = wait_for(fd, POLLIN, until);
        } else if (errno != EINTR) {
            error = errno;
        }
    }
    return error;
}

void gv_set_blocking(int fd) {
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0) fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

void gv_tcp_tune(int fd) {
    int on = 1, idle = 2, interval = 1, count = 3;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    /* A unix socket, or what else a test hands us, has none of these: that is no error. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    gv_silence_tune(fd); /* while data is under way keepalive is not, and whoever has the socket looks */
}
