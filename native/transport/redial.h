/* What the client needs to connect to its session again: bulk channels, and connections that replace one that was cut. */
#ifndef GV_REDIAL_H
#define GV_REDIAL_H

#include <stddef.h>
#include <stdint.h>

#include "../wire/handshake.h"
#include "dial.h"
#include "link_spec.h"

struct gv_redial_target {
    struct gv_address address;
    uint8_t key[GV_SECRET_SIZE]; /* the session's */
    uint64_t session;
    int64_t grace_ns, rtt_ns;
    uint32_t channels;
    struct gv_link_spec spec;
    void (*notice)(void *arg, const char *text);
    void *notice_arg;
    char program[64];
};

#define GV_REDIAL_AGAIN -1 /* it did not work this time */
#define GV_REDIAL_FINAL -2 /* it will not work any more */

/* A further connection of the session, the handshake done: the main one in place of the last (channel -1, `epoch` higher than ever), or a bulk
 * channel's. A descriptor that waits, or GV_REDIAL_*; `why` is one line then. `until` is a time of gv_now_ns. */
int gv_redial(const struct gv_redial_target *redial, int channel, uint32_t epoch, int64_t until, char *why, size_t why_size);

#endif
