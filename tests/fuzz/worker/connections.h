/* The connections of one session, between a client's end of the link and a real worker: made, added to, cut and resumed, also by somebody who lies. */
#ifndef CONNECTIONS_H
#define CONNECTIONS_H

#include "client.h"

struct gv_link;
struct worker;

#define STRANGERS 4u

enum session_transport { OVER_SHM, OVER_TCP, OVER_SEALED };

struct connections {
    enum session_transport transport;
    struct gv_link *link; /* the client's end */
    struct worker *worker;
    int main_fd, memfd;       /* of shm the memory */
    int strangers[STRANGERS]; /* kept open, so that the client's end of a connection does not notice what happens to the worker's */
    unsigned n_strangers;
};

/* As the first step says. */
void connections_open(struct connections *c, const struct step *session, const struct surroundings *where);
/* The main connection ends without a goodbye. */
void connections_cut(struct connections *c);
/* Somebody claims to be the session's client, on a new connection. */
void connections_resume(struct connections *c, const struct step *s);
/* Somebody brings a bulk channel, and says this on it. */
void connections_channel(struct connections *c, int channel, const void *said, size_t size);
void connections_leave(struct connections *c); /* all but the link's own */
void connections_close(struct connections *c); /* once the worker is closed */

#endif
