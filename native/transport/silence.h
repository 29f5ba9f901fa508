/* Whether a TCP peer's host has fallen silent while something of ours is on its way to it.
 *
 * A program that is stopped lets its buffers fill up, and its host goes on answering: the connection stays, however long. A host that is gone answers
 * nothing. TCP_USER_TIMEOUT does not tell the two apart, for it ends a connection whose window was closed for so long although every probe of it was
 * answered; and keepalive, which watches a connection at rest (gv_tcp_tune), is not at work while data is queued. So whoever owns the socket looks, about
 * once a second, whether any segment came from the peer. It counts looks and not time: whoever was itself stopped, or suspended, has not looked. */
#ifndef GV_SILENCE_H
#define GV_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

/* All zero for a new connection. */
struct gv_silence {
    int64_t next;      /* the next look, ns */
    uint32_t segments; /* that had come at the last look */
    unsigned looks;    /* in a row that found no more */
};

/* Call it once a second or more often. True: at SILENCE_LOOKS looks in a row something of ours was unanswered and nothing had come. What is no TCP socket
 * is never silent. */
bool gv_host_silent(struct gv_silence *s, int fd);

/* Bounds how long the kernel waits before it asks a closed window again. */
void gv_silence_tune(int fd);

#endif
