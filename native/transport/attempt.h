/* The client's side of one handshake (wire/handshake.h): one connection, from dialling to the server's welcome. */
#ifndef GV_ATTEMPT_H
#define GV_ATTEMPT_H

#include <stdbool.h>
#include <stdint.h>

#include "../wire/transcript.h"
#include "dial.h"
#include "link_spec.h"
#include "transport.h"

/* Until a server must have connected and greeted, and then to have started a worker. The daemon gives up on the worker a second before that. */
#ifndef OPEN_NS
#define OPEN_NS 10000000000LL
#endif

/* That a server has to be started anew: its sessions' workers live meanwhile, and who waited for a GPU asks again. */
#ifndef RESTART_NS
#define RESTART_NS 10000000000ll
#endif

struct gv_transport;

struct gv_attempt {
    struct gv_open_error *err;
    struct gv_address address;
    struct gv_link_spec spec;
    int64_t until;
    void (*notice)(void *arg, const char *text);
    void *notice_arg;

    const struct gv_transport *failed; /* a row that both ends have and that no link came about over; NULL: none */

    int fd;            /* -1: none */
    uint32_t provides; /* GV_NEEDS_* that this connection meets */
    int64_t rtt_ns;    /* a round trip to the server */
    bool broke_off;    /* the last failure was a connection that ended within the handshake */
    bool waits;        /* the server has let us wait, for a GPU or for memory */
    bool told;         /* the user knows that we wait */
    struct gv_greeting greeting;
    struct gv_transcript transcript;
    struct gv_welcome welcome;
    struct gv_passed passed;
};

/* Each returns false with `err` filled in. */
__attribute__((format(printf, 3, 4))) bool gv_attempt_fail(struct gv_attempt *a, int status, const char *format, ...);
/* Connects and reads the greeting. errno says what the network said when there is no connection (ECONNREFUSED, EMFILE, ...). */
bool gv_attempt_dial(struct gv_attempt *a);
/* What a connection to the server that greeted could provide: the network, and this host's unix socket where it is the same host. */
uint32_t gv_attempt_provides(const struct gv_attempt *a);
/* Changes the connection for one to the same server's unix socket. `transport` is what needs that, for the user. False also leaves the connection as it was
 * when there is no such socket. */
bool gv_attempt_change_to_unix(struct gv_attempt *a, const char *transport);
/* Fills in who we are and a nonce, sends the hello and reads the welcome, past states. True: it is OK or MOVED, and proved with the same key. */
bool gv_attempt_shake(struct gv_attempt *a, struct gv_hello *hello, const char *program, const uint8_t *key);
/* After a welcome that says MOVED: the new address takes the old one's place, the connection is closed. False: nonsense, or too many `moves`. */
bool gv_attempt_follow(struct gv_attempt *a, int *moves);
/* Closes the connection and what came over it. */
void gv_attempt_close(struct gv_attempt *a);

#endif
