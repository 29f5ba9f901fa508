/* Behind transport.h: what every link has (link.c), and what a transport brings (shm/shm_link.c, tcp/tcp_link.c). */
#ifndef GV_LINK_H
#define GV_LINK_H

#include <pthread.h>
#include <stdatomic.h>

#include "payload_copies.h"
#include "dial.h"
#include "futex.h"
#include "thread.h"
#include "transport.h"

struct gv_image_in;
struct gv_image_out;
struct gv_link_secret;
struct gv_link_spec;
struct gv_redial_target;
struct gv_resume;

/* One end of a link that is to be: what the handshake agreed on. */
struct gv_endpoint {
    int fd;                  /* the connection of the handshake */
    struct gv_passed passed; /* the transport's descriptors */
    const uint8_t *blob;     /* what its server end tells its client end */
    uint32_t blob_size;
    uint32_t connections;              /* further connections that the server takes */
    const struct gv_link_spec *spec;   /* client */
    struct gv_redial_target *redial;   /* client; NULL: a cut is the end */
    const struct gv_link_secret *seal; /* both ends, where the link is to be sealed (seal/seal.h); NULL: plain. The transport keeps a copy */
};

/* A row of the table in transports.c: what a transport needs, and how it does what a link does. */
struct gv_transport {
    const char *name;                       /* as users write it for --link, less than GV_TRANSPORT_NAME bytes */
    uint32_t needs;                         /* GV_NEEDS_* of the connection that its handshake runs over */
    uint32_t descriptors;                   /* that pass from the server end to the client end beside the welcome */
    uint64_t lends_from;                    /* bytes from which a payload in offered memory is sent from where it lies; 0: none is */
    uint32_t connections;                   /* the most further connections it can use (bulk channels), 0: none */
    bool undelayed;                         /* its bytes pass nothing that delay(...) could hold up */
    bool seals;                             /* whether what passes is sealed, unless both ends say plain (seal/seal.h) */
    bool (*probe)(char why[GV_DEATH_TEXT]); /* whether this process can speak it; NULL: always */
    void (*prepare)(void);                  /* opens what the server's end cannot open once its process is in its box; NULL: there is nothing such */
    /* The two ends. They own what `endpoint` holds when they return a link; NULL with a reason: it is the caller's still, as `endpoint` says then. */
    struct gv_link *(*connect)(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]);
    struct gv_link *(*adopt)(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]);
    /* How the client's end makes a connection again, or a further one; NULL: it cannot, and a cut is the end. */
    int (*redial)(struct gv_redial_target *target, int channel, uint32_t epoch, int64_t until, char *why, size_t why_size);
    /* Back-pressure, before the send lock is taken: blocks every thread but the reader while unacknowledged data exceeds the limit. Returns when
     * the wait began (ns, gv_now_ns), 0 if there was none. NULL: no limit of its own. */
    int64_t (*admit)(struct gv_link *link);
    /* Room for one record, the send lock held: waits while there is none. NULL when the link died. */
    void *(*reserve)(struct gv_link *link, uint32_t size);
    /* Hands the reserved record over, the send lock held. True when so much waits that the caller had better flush, the lock released. */
    bool (*publish)(struct gv_link *link);
    void (*flush)(struct gv_link *link);
    /* The next whole record of a sound size in memory that the peer cannot change, or NULL. */
    struct gv_record *(*next)(struct gv_link *link);
    void (*release)(struct gv_link *link); /* done with what `next` gave */
    void (*wait)(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns);
    void (*wake)(struct gv_link *link);
    /* Payloads' bytes. bulk_part: by reference, as gv_bulk_part, but with done NULL and up to 64 bytes, of which a copy is kept. bulk_read: all of it, or
     * false when the link died. bulk_write, where the transport has it: all of it now, in the caller's thread. bulk_whole, likewise: a payload has come
     * whole. */
    int (*bulk_part)(struct gv_link *link, const void *data, uint64_t size, void (*done)(void *arg), void *arg);
    uint64_t (*bulk_acked)(const struct gv_link *link);
    /* Takes what the peer has said of payloads, for a sender that waits for it; NULL: a thread of the link's does. */
    void (*bulk_poll)(struct gv_link *link);
    bool (*bulk_read)(struct gv_link *link, void *data, uint64_t size);
    bool (*bulk_write)(struct gv_link *link, const void *data, uint64_t size);
    void (*bulk_whole)(struct gv_link *link);
    /* Memory that its devices may use directly (gv_link_offer_memory); NULL: it has no use for it. */
    void (*offer_memory)(struct gv_link *link, const void *at, uint64_t size);
    bool (*offer_device_memory)(struct gv_link *link, const void *at, uint64_t size, const struct gv_device_memory *memory);
    void (*take_back_memory)(struct gv_link *link, const void *at);
    int (*add_channel)(struct gv_link *link, int channel, int fd); /* owns fd when it returns 0 */
    /* What links do that come back after a cut (resume.h); NULL: this one does not. */
    int (*resume)(struct gv_link *link, int channel, int fd, uint32_t epoch); /* owns fd */
    void (*set_grace)(struct gv_link *link, int64_t grace_ns);
    void (*last)(struct gv_link *link);
    void (*client_gone)(struct gv_link *link);
    bool (*down)(const struct gv_link *link);
    void (*counts)(const struct gv_link *link, struct gv_link_counts *counts);
    /* The worker's end goes on in another process; for links that resume. pause: wakes who waits for a payload to begin. cut: ends the connections; nothing
     * but shared memory passes then. save: what the transport adds to gv_link_save; restore takes it back, on an end that has no connection yet. */
    void (*pause)(struct gv_link *link);
    void (*cut)(struct gv_link *link, const char *why);
    void (*save)(struct gv_link *link, struct gv_image_out *out);
    void (*restore)(struct gv_link *link, struct gv_image_in *in);
    void (*died)(struct gv_link *link); /* wakes whoever waits, tells the peer; once */
    void (*abandon)(struct gv_link *link);
    void (*close)(struct gv_link *link); /* ends the threads and frees everything, `link` too */
};

/* All rows, the preferred first; ends in NULL. */
extern const struct gv_transport *const gv_transports[];
const struct gv_transport *gv_transport_named(const char *name); /* NULL: there is none */
/* Those that a connection which provides so much (GV_NEEDS_*) allows, the preferred first; `wanted`: only this one, "": any. How many. */
uint32_t gv_transports_usable(const char *wanted, uint32_t provides, const struct gv_transport *rows[GV_TRANSPORTS_MAX]);

struct gv_link { /* NOLINT(clang-analyzer-optin.performance.Padding): sender's and receiver's lines apart */
    const struct gv_transport *transport;
    struct gv_lock send_lock;
    _Atomic uint32_t dead; /* 0: lives, 1: the text is being written, 2: dead */
    int64_t blocked_since; /* when the reserve under way began to wait, 0 if it did not; under the send lock */

    /* The sender's, under the send lock. */
    _Alignas(64) struct gv_record *filling;
    uint32_t filling_size;
    uint64_t seq_out;
    _Atomic uint64_t bytes_out;

    /* The receiver's. */
    _Alignas(64) struct gv_record *peeked;
    uint64_t seq_in;
    _Atomic uint64_t bytes_in;

    _Alignas(64) uint64_t bulk_out, bulk_in; /* payloads so far */
    uint64_t bulk_position;                  /* bytes of our stream of payloads; the sender's */
    uint64_t bulk_left;                      /* of the payload that is being received */
    struct gv_copies copies;
    _Atomic uint32_t borrowed;    /* parts that are sent from the memory of gv_bulk_send's caller */
    _Atomic uint32_t epoch;       /* of what is sent */
    _Atomic uint32_t epoch_limit; /* of what may come: the peer may be up again before us */
    _Atomic bool paused;          /* gv_link_pause */
    _Atomic bool held;            /* gv_link_hold */
    bool between;                 /* the reader of payloads waits for one to begin; its own */
    bool abandoned;               /* this process is a forked child: threads and descriptors are not here */
    uint64_t session;
    struct gv_redial_target *redial; /* what the client needs to connect again, its connector's; NULL on the worker's end */
    struct gv_resume *resume;        /* the transport's, where it resumes */
    void (*closed)(void *arg);       /* called once the link is closed and freed; NULL: nothing more to do */
    void *closed_arg;
    _Atomic int64_t rtt_ns;
    int (*bulk_waiter)(void *arg, uint64_t position);
    void *bulk_waiter_arg;
    char server[300];
    char reason[GV_DEATH_TEXT]; /* why it is this transport, for people; the client's end's */
    char death[GV_DEATH_TEXT];
};

/* Whether the reader of payloads, who has none of the next one yet, is to begin none. */
static inline bool gv_paused_between(const struct gv_link *link) { return link->between && atomic_load(&link->paused); }

void gv_link_init(struct gv_link *link, const struct gv_transport *transport);
/* Frees what gv_link_init took. */
void gv_link_fini(struct gv_link *link);
/* gv_link_kill with the text of an errno behind `what`. */
void gv_link_kill_errno(struct gv_link *link, const char *what, int error);

#endif
