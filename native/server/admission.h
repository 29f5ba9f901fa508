/* Shares out the connections of a port among the addresses that they come from. No I/O; the clock is the caller's.
 *
 * A connection that has proved nothing costs the server a descriptor, and its hello costs it processor time. Both are shared by address: an address
 * over its share loses the oldest of its own, one that connects faster than its rate begins its handshakes later, and the hellos that have come are
 * taken from the addresses in turn. */
#ifndef SERVER_ADMISSION_H
#define SERVER_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "list.h"

/* What counts as one address: an IPv4 address, or the 64 bits of an IPv6 address that name its network (a host may have all of the others). */
struct admission_address {
    uint64_t high, low;
};
/* That of a peer; all peers of a unix socket have the same. */
struct admission_address admission_address_of(const struct sockaddr_storage *peer);

struct admission_limits {
    uint32_t share; /* places for one address */
    uint32_t total; /* places for all together */
    uint32_t rate;  /* handshakes that one address may begin in a second; 0: any number */
    uint32_t burst; /* how many it may begin at once after a rest */
};

struct admission_group;

/* One connection's place; zeroed before it enters. */
struct admission_place {
    struct admission_group *group; /* NULL: it has none (any more) */
    int64_t start_at;              /* ns: when its handshake may begin */
    struct node of_group, of_all;  /* oldest first */
    struct node waiting;           /* among those of its address that wait to be taken */
};

struct admission;

/* NULL: no memory. */
struct admission *admission_new(struct admission_limits limits);
/* All places have been left. */
void admission_free(struct admission *a);
uint32_t admission_count(const struct admission *a);

/* A connection has come. Where there is no room another one goes: returns its place, which has been left, else NULL. Without memory the place that
 * would enter is the one that goes. */
struct admission_place *admission_enter(struct admission *a, struct admission_place *place, struct admission_address address, int64_t now);
/* The connection has proved itself, or has ended. It may have left before. */
void admission_leave(struct admission *a, struct admission_place *place);
/* Takes its place from one connection: the oldest one of the address that has most; the only one of an address goes only when no address has two.
 * NULL: there is none. */
struct admission_place *admission_shed(struct admission *a, int64_t now);

/* The connection waits to be taken; once for a place. */
void admission_wait(struct admission *a, struct admission_place *place);
/* The oldest waiting one of the address whose turn it is, which has left then; NULL: none waits. */
struct admission_place *admission_take(struct admission *a);

#endif
