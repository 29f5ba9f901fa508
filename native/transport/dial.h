/* Sockets up to the handshake: pool URLs, connecting and moving whole messages before a deadline. Nothing here knows of tokens or sessions. */
#ifndef GV_DIAL_H
#define GV_DIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../wire/handshake.h"

struct gv_address {
    char host[256];
    char port[8];
    char url[300]; /* as users know it, "tcp://host:port" */
};

/* Reads "tcp://HOST:PORT" or "tcp://[V6]:PORT". */
bool gv_address_parse(const char *pool, struct gv_address *address);

/* A connected non-blocking close-on-exec socket, or -1 with one line in `why`. `until` is a time of gv_now_ns. */
int gv_dial_tcp(const struct gv_address *address, int64_t until, char *why, size_t why_size);
/* -1 with errno set. */
int gv_dial_unix(const char *path, int64_t until);

/* Descriptors that came with a message. */
struct gv_passed {
    int fd[GV_DESCRIPTORS_MAX];
    uint32_t n;
};
void gv_passed_close(struct gv_passed *passed);

/* Whole messages or nothing. 0, or an errno: ETIMEDOUT, ECONNRESET at the end of file, ... gv_get adds the descriptors that come along to `passed`, as far
 * as it has room, and closes the others; NULL: all of them. */
int gv_put(int fd, const void *message, size_t size, int64_t until);
int gv_get(int fd, void *message, size_t size, int64_t until, struct gv_passed *passed);

/* Back to a socket that waits. */
void gv_set_blocking(int fd);
/* For a socket that carries a link: close-on-exec; over TCP no delay, and a dead host is noticed within some 20 s. */
void gv_tcp_tune(int fd);

#endif
