/* Carries the bytes of one connection to a unix socket and back. */
#ifndef SERVER_CARRIER_H
#define SERVER_CARRIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct carrier_way {
    uint8_t *held; /* malloced: what the target did not take; nothing is read until it has */
    size_t at, size;
    uint64_t carried; /* bytes that were read */
};

struct carrier {
    int inner; /* -1: not connected yet */
    struct carrier_way in, out;
};

/* A carrier without a connection behind it: it is made when the client has said something. */
void carrier_init(struct carrier *c);
/* Connects to the unix socket at `path`. False: it cannot be reached now. */
bool carrier_connect(struct carrier *c, const char *path);
/* Carries what there is, a bounded piece each way. False: one end has closed. */
bool carrier_move(struct carrier *c, int client);
/* Which epoll events each end waits for. */
uint32_t carrier_client_events(const struct carrier *c);
uint32_t carrier_inner_events(const struct carrier *c);
void carrier_close(struct carrier *c);

#endif
