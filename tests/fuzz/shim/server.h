/* The server's process: greets.c takes connections and shakes hands, server.c carries out commands, payloads.c sends what copies and modules want,
 * metadata.c makes up modules. All of them lie. */
#ifndef SHIM_FUZZ_SERVER_H
#define SHIM_FUZZ_SERVER_H

#include "fuzz.h"
#include "lies.h"
#include "transport/link.h"
#include "transport/shm/shm_layout.h"

struct server {
    const struct session_plan *plan;
    _Atomic(struct gv_link *) link;
    uint64_t rings[GV_SHM_RINGS];
    void *rings_map; /* our own view of the shared memory; NULL over tcp */
    int main_fd;     /* the descriptor of the main connection: the link's */
    int channel_fds[16];
    _Atomic uint64_t bulk_number; /* of the payload that was queued last */
};
extern struct server server;

/* Takes connections for ever; a thread. Sets server.link. */
void *greets(void *arg);

/* payloads.c */
/* Queues a payload; `data` is freed, NULL: up to PAYLOAD_ZEROS bytes of zeros. Returns the number of the last one that it is sent as. */
#define PAYLOAD_ZEROS (16u << 20)
uint64_t payload_queue(struct dice *d, uint64_t tag, void *data, uint64_t size, int delay_ms);
void *payloads_out(void *arg);
void *payloads_in(void *arg);

/* metadata.c */
/* Of a module, to be freed; `number` makes its addresses its own. At least as many bytes are there as *size says, whatever the rest says. */
void *metadata_make(struct dice *d, uint64_t number, uint64_t *size);

/* server.c */
void server_must(bool good, const char *what);
/* Ends the process: nobody's business any more. */
_Noreturn void server_gone(void);

#endif
