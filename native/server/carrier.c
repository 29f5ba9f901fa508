/* Carries the bytes of one connection to a unix socket and back. */
#include "carrier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PIECE 16384 /* bytes, each way, before other connections have their turn */

void carrier_init(struct carrier *c) { *c = (struct carrier){.inner = -1}; }

bool carrier_connect(struct carrier *c, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t size = strlen(path) + 1;
    if (size > sizeof address.sun_path) return false;
    memcpy(address.sun_path, path, size);
    c->inner = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return c->inner >= 0 && !connect(c->inner, (struct sockaddr *)&address, sizeof address);
}

static bool would_block(ssize_t n) { return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR); }

/* Hands on what is held. False: the target has closed. */
static bool flush(struct carrier_way *way, int target) {
    if (!way->held) return true;
    ssize_t n = send(target, way->held + way->at, way->size - way->at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return would_block(n);
    way->at += (size_t)n;
    if (way->at == way->size) {
        free(way->held);
        way->held = NULL;
    }
    return true;
}

static bool carry(struct carrier_way *way, int source, int target) {
    if (!flush(way, target)) return false;
    if (way->held) return true;
    uint8_t piece[PIECE];
    ssize_t n = recv(source, piece, sizeof piece, MSG_DONTWAIT);
    if (n <= 0) return would_block(n);
    way->carried += (uint64_t)n;
    ssize_t sent = send(target, piece, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && !would_block(sent)) return false;
    if (sent < 0) sent = 0;
    if (sent == n) return true;
    way->size = (size_t)(n - sent);
    way->at = 0;
    way->held = malloc(way->size);
    if (!way->held) return false;
    memcpy(way->held, piece + sent, way->size);
    return true;
}

bool carrier_move(struct carrier *c, int client) { return carry(&c->out, c->inner, client) && carry(&c->in, client, c->inner); }

uint32_t carrier_client_events(const struct carrier *c) { return (c->in.held ? 0 : EPOLLIN) | (c->out.held ? EPOLLOUT : 0); }

uint32_t carrier_inner_events(const struct carrier *c) { return (c->out.held ? 0 : EPOLLIN) | (c->in.held ? EPOLLOUT : 0); }

void carrier_close(struct carrier *c) {
    if (c->inner >= 0) close(c->inner);
    free(c->in.held);
    free(c->out.held);
    carrier_init(c);
}
