/* Accepts the connections of one listening socket, each in its turn (admission.h), in a thread of its own: what strangers do costs the daemon's
 * interpreter nothing before a whole hello has come.
 *
 * Two kinds. One greets its clients and reads their hellos, which the daemon takes, each with its connection. The other carries the bytes of its
 * clients to a unix socket and back (`behind`). */
#ifndef SERVER_ACCEPTOR_H
#define SERVER_ACCEPTOR_H

#include <stdint.h>

#include "admission.h"
#include "handshake.h"

#define ACCEPTOR_API __attribute__((visibility("default")))

struct acceptor_config {
    uint32_t struct_size;
    int32_t listening; /* does not block; owned from now on unless acceptor_open fails */
    struct admission_limits pending;
    uint32_t head_ms; /* from the greeting to a hello's head; with `behind`: from the beginning to the proof */
    uint32_t rest_ms; /* from there to the hello's last byte */
    const uint8_t *greeting;
    uint32_t greeting_size, nonce_at; /* where in the greeting each connection's own nonce is, GV_NONCE_SIZE bytes */
    const char *behind;               /* path of a unix socket, or NULL */
    struct admission_limits proved;   /* `behind`: of connections that have proved a token */
    uint64_t unproved_bytes;          /* `behind`: so many, and no more, does a client get that has not */
};

#define ACCEPTOR_HELLO 1u     /* a hello has come, or something else in its place: fd, nonce, hello */
#define ACCEPTOR_LATE 2u      /* `count` connections were too slow, the last one that of `peer` */
#define ACCEPTOR_EXHAUSTED 3u /* `count` times a connection could not be accepted: `error` */

struct acceptor_event {
    uint32_t kind, count;
    int32_t fd, error;
    uint32_t size;  /* of the hello */
    char peer[108]; /* "this host" for a unix socket's */
    uint8_t nonce[GV_NONCE_SIZE];
    uint8_t hello[GV_MESSAGE_MAX];
};

struct acceptor;

/* Accepts from now on. NULL: errno says why. */
ACCEPTOR_API struct acceptor *acceptor_open(const struct acceptor_config *config);
/* Readable while there may be something to take. */
ACCEPTOR_API int acceptor_descriptor(const struct acceptor *a);
/* Takes what has happened; the connection is the caller's then. 0: nothing has. */
ACCEPTOR_API int acceptor_take(struct acceptor *a, struct acceptor_event *event);
/* Closes the listening socket and all connections that have not been taken. */
ACCEPTOR_API void acceptor_close(struct acceptor *a);

#endif
