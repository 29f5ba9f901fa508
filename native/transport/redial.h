/* What the client needs to connect to its session again: bulk channels, and connections that replace one that was cut. */
#ifndef GV_REDIAL_H
#define GV_REDIAL_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "../wire/handshake.h"
#include "dial.h"
#include "link_spec.h"

struct gv_redial_target {
    pthread_mutex_t lock;        /* guards address and refused_since */
    struct gv_address address;   /* of the session's server, which may move */
    int64_t refused_since;       /* gv_now_ns of the first of the connections in a row that nobody accepted, 0: the last one was accepted */
    uint8_t key[GV_SECRET_SIZE]; /* the session's */
    uint64_t session;
    int64_t grace_ns, rtt_ns;
    uint32_t channels;
    uint32_t needs; /* GV_NEEDS_* of the link's transport */
    struct gv_link_spec spec;
    void (*notice)(void *arg, const char *text);
    void *notice_arg;
    char program[64];
};

#define GV_REDIAL_AGAIN -1 /* it did not work this time */
#define GV_REDIAL_FINAL -2 /* it will not work any more */

/* A further connection of the session, the handshake done: the main one in place of the last (channel -1, `epoch` higher than ever), or a bulk
 * channel's. A blocking descriptor, or GV_REDIAL_*; `why` is one line then. `until` is a time of gv_now_ns; it is put off for as long as the server
 * says that the session is parked. A server that says where the session moved to is followed. */
int gv_redial(struct gv_redial_target *target, int channel, uint32_t epoch, int64_t until, char *why, size_t why_size);
void gv_redial_target_free(struct gv_redial_target *target);

#endif
