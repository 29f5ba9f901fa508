/* A proxy between a client and a server that cuts connections: closes both ends at once, in the middle of whatever is under way. */
#ifndef CUTTER_H
#define CUTTER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct cutter {
    char url[64]; /* for the client */
    int server_port;
    /* The next cut: after so many more bytes, both ways together, over any connection; 0: none. */
    _Atomic int64_t cut_in;
    _Atomic bool reset;  /* cuts as a reset, not as an end of file */
    _Atomic bool refuse; /* new connections are closed at once */
    _Atomic bool hole;   /* new connections are taken, and nothing goes through */
    _Atomic int cuts, connections;
    int listening, stop[2];
    int unix_listening;  /* -1: none */
    char unix_path[128]; /* where the server's own socket is meanwhile */
    pthread_t thread;
};

/* unix_path: steps between the server and its unix socket, too; descriptors that are passed come through. NULL: does not. */
void cutter_start(struct cutter *c, const char *server_url, const char *unix_path);
void cutter_stop(struct cutter *c);
/* Cuts all that there is now. */
void cutter_cut_all(struct cutter *c);
/* The same, and nobody listens there any more. */
void cutter_close(struct cutter *c);

#endif
