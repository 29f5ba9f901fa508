/* Two ends of a link in this process, without a handshake. */
#ifndef PAIR_H
#define PAIR_H

#include "../../../native/transport/link.h"
#include "../../../native/transport/shm/shm.h"
#include "../../../native/transport/tcp/tcp.h"

/* Deadlines are for what hangs: a machine that is busy with other things is given time. What is broken on purpose is not. */
#ifndef TEST_PATIENCE_NS
#define TEST_PATIENCE_NS 100000000000LL
#endif

struct pair {
    struct gv_link *client, *worker;
};

/* What sealed ends are sealed with. */
extern const struct gv_link_secret test_secret;

/* Over a transport of the table, by its name, or "sealed": tcp with test_secret. */
struct pair make_pair(const char *transport);
/* The names of all that make_pair makes, by number; NULL behind the last. */
const char *pair_transport(size_t i);
/* The same for a transport that a test brings itself. */
__attribute__((weak)) struct pair make_other_pair(const char *transport);
/* The worker's ends as the daemon's descriptors make them; NULL: refused, and the descriptors are closed. */
struct gv_link *adopt_tcp(int fd);
struct gv_link *adopt_sealed(int fd);
struct gv_link *adopt_verbs(int fd);
struct gv_link *adopt_shm(int fd, int memfd, const uint64_t rings[4]);
/* The client's end over a socket, with one bulk channel to come. */
struct gv_link *tcp_client(int fd);
struct gv_link *sealed_client(int fd);
/* As one that was dialled knows how many there are. */
void expect_channels(struct gv_link *link, uint32_t n);
/* What the other end of a bulk channel waits for before anything else. */
void greet_channel(int fd);
/* Both ends of a bulk channel, which greet each other. */
void add_channels(struct pair *pair, int channel, const int fds[2]);
void close_pair(struct pair *pair);

/* Somebody who reads a link on which no records come, as both ends always have: acknowledgements are taken in that way. */
struct listening {
    struct gv_link *link;
    _Atomic bool stop;
    pthread_t thread;
};
void listen_start(struct listening *l, struct gv_link *link);
void listen_stop(struct listening *l);

struct gv_link_counts link_counts(struct gv_link *link);
/* How many this process has, one for counting them included. */
int open_descriptors(void);

/* A memfd as the daemon makes it. */
int make_memfd(const uint64_t rings[4]);
/* Two connected sockets over loopback TCP. */
void tcp_sockets(int fds[2]);

/* Sends a record of `body` bytes that can be told from others by `n`; false when the link is dead. */
int send_numbered(struct gv_link *link, uint32_t body, uint64_t n);
/* Waits for the next record, at most two seconds; checks that it was made by send_numbered and returns its body's size; -1 when the link died. */
int64_t receive_numbered(struct gv_link *link, uint64_t n);

#endif
