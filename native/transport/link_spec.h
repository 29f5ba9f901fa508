/* What a user may write for a link:
 *
 *     link    auto | shm | tcp | tcp(SETTINGS) | verbs | verbs(rails=N) | delay(rtt=TIME, rate=RATE, LINK)
 *     SETTINGS  channels=N, plain, or both in any order
 *     rails   how many pairs of ports carry it at most, 1 to 8
 *     TIME    a number and us, ms or s; at most 2s. Until an answer to what is sent now can be here
 *     RATE    a number and bit, kbit, mbit or gbit (decimal, a second, each way); from 10kbit to 1000gbit
 *
 * Numbers may have up to three decimals. A delay has an rtt or a rate or both, in any order, before the link that it goes around, which is no delay
 * itself, and not verbs. Spaces are allowed between the parts. gpuvirt/client/links.py reads the same texts in the same way. */
#ifndef GV_LINK_SPEC_H
#define GV_LINK_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "../wire/handshake.h"

struct gv_link_spec {
    char transport[GV_TRANSPORT_NAME]; /* "": auto */
    uint32_t channels;                 /* bulk connections; 0: not said */
    uint32_t rails;                    /* of verbs: pairs of ports; 0: not said */
    bool plain;                        /* the user wrote plain: not sealed */
    bool delayed;                      /* the user wrote delay(...) */
    int64_t rtt_ns;                    /* of the delay */
    uint64_t rate_bps;                 /* bits a second each way, 0: as fast as it goes */
};

#define GV_LINK_CHANNELS_MAX 16u
#define GV_LINK_RAILS_MAX 8u
#define GV_LINK_RTT_MAX_NS 2000000000LL
#define GV_LINK_RATE_MIN 10000ull
#define GV_LINK_RATE_MAX 1000000000000ull
#define GV_LINK_TEXT_MAX 200u
#define GV_LINK_ERROR_TEXT 240u

/* Reads `text` (NULL and "" are auto). False with one line in `error` that names the wrong part and shows a right one. */
bool gv_link_spec_parse(const char *text, struct gv_link_spec *spec, char error[GV_LINK_ERROR_TEXT]);

#endif
