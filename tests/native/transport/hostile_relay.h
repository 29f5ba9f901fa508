/* Somebody between a client and a server who knows no key: passes on handshakes and payloads as they are, and does one thing to the frames of each main
 * connection. */
#ifndef HOSTILE_RELAY_H
#define HOSTILE_RELAY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum mischief {
    LEAVES_ALONE,
    ALTERS,   /* a bit of a frame, but for its size */
    DROPS,    /* a frame, when another one of its kind follows */
    REPEATS,  /* a frame, at once */
    SWAPS,    /* two of a kind that follow each other */
    REPLAYS,  /* a frame of an earlier connection, in front of another one */
    REFLECTS, /* a frame that goes the other way */
    ALTERS_EVERY_RECORD,
    ALTERS_EVERY_RESUME
};

struct hostile_relay {
    char url[64]; /* for the client */
    int server_port, listening;
    _Atomic int mischief; /* enum */
    _Atomic int after;    /* of a connection's frames less than this many are left alone first; 0: none */
    _Atomic int done;     /* how often */
    _Atomic int passed;   /* frames */
    _Atomic bool stop;
    _Atomic int running; /* threads */
    _Atomic uint64_t random;
    pthread_t thread;
    pthread_mutex_t lock;
    struct frame *kept[2]; /* the last one of an earlier connection, each way */
};

void hostile_start(struct hostile_relay *relay, const char *server_url, enum mischief mischief);
/* When both ends of all connections are closed. */
void hostile_stop(struct hostile_relay *relay);

#endif
