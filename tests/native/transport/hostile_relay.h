/* Somebody between a client and a server who knows no key: passes on handshakes as they are, and does one thing to the frames of each main connection, or
 * of each bulk channel's. */
#ifndef HOSTILE_RELAY_H
#define HOSTILE_RELAY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "mini_server.h"
#include "pair.h"

enum mischief {
    LEAVES_ALONE,
    ALTERS,   /* a bit of a frame, but for its size */
    DROPS,    /* a frame, when another one of its kind follows */
    REPEATS,  /* a frame, at once */
    SWAPS,    /* two of a kind that follow each other */
    REPLAYS,  /* a frame of an earlier connection, in front of another one */
    REFLECTS, /* a frame that goes the other way */
    DIVERTS,  /* a frame of another connection */
    ALTERS_EVERY_RECORD,
    ALTERS_EVERY_RESUME
};

struct hostile_relay {
    char url[64]; /* for the client */
    int server_port, listening;
    bool channels;        /* bulk channels: what is said of records means payloads, what is said of a RESUME means a greeting */
    _Atomic int mischief; /* enum */
    _Atomic int after;    /* of a connection's frames less than this many are left alone first; 0: none */
    _Atomic int done;     /* how often */
    _Atomic int connections;
    _Atomic int passed; /* frames */
    _Atomic bool stop;
    _Atomic int running; /* threads */
    _Atomic uint64_t random;
    pthread_t thread;
    pthread_mutex_t lock;
    struct frame *kept[2];   /* the last one of an earlier connection, each way */
    struct frame *recent[2]; /* the last one of any, each way */
    const void *recent_of[2];
    /* What passes, one frame at a time; NULL: nobody wants to see it. */
    void (*look)(void *arg, const uint8_t *bytes, size_t size);
    void *look_arg;
};

void hostile_start(struct hostile_relay *relay, const char *server_url, enum mischief mischief, bool channels);
/* When both ends of all connections are closed. */
void hostile_stop(struct hostile_relay *relay);

/* A server, a client, and it between them. */
struct relayed {
    struct mini_server server;
    struct hostile_relay relay;
    struct pair p;
};

void relayed_open(struct relayed *r, const char *link, enum mischief mischief, int after, bool channels);
void relayed_close(struct relayed *r);
/* How many frames both ends have found altered. */
uint64_t relayed_noticed(struct relayed *r);
/* Whether all that was done has been noticed; but for what was done to connections that the client had given up before they were the session's, which
 * on a busy machine it does: the server may have said something there already, and nobody reads that. */
bool relayed_noticed_all(struct relayed *r);

#endif
