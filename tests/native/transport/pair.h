/* Two ends of a link in this process, without a handshake. */
#ifndef PAIR_H
#define PAIR_H

#include "../../../native/transport/link.h"

struct pair {
    struct gv_link *client, *worker;
};

/* "tcp" (loopback sockets) or "shm". */
struct pair make_pair(const char *transport);
void close_pair(struct pair *pair);

/* A memfd as the daemon makes it. */
int make_memfd(const uint64_t rings[4]);
/* Two connected sockets over loopback TCP. */
void tcp_sockets(int fds[2]);

/* Sends a record of `body` bytes that can be told from others by `n`; false when the link is dead. */
int send_numbered(struct gv_link *link, uint32_t body, uint64_t n);
/* Waits for the next record, at most two seconds; checks that it was made by send_numbered and returns its body's size; -1 when the link died. */
int64_t receive_numbered(struct gv_link *link, uint64_t n);

#endif
