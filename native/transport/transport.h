/* A link: one ordered stream of records each way, and bulk payloads each way beside it. Transports implement it; nothing above
 * knows which one it has.
 *
 * Life: the client calls gv_link_connect (handshake included) or the worker gv_link_adopt (descriptors that the daemon already shook hands on);
 * both end with gv_link_close. A link that lost its peer is `dead`: every call then fails at once, waits return, nothing blocks.
 *
 * Between the two a tcp link may be `down`: its connection was cut and is being made again. Nothing is lost and nothing comes twice; calls only take
 * longer. It dies when the connection does not come back within the session's grace period, or cannot. */
#ifndef GV_TRANSPORT_H
#define GV_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../wire/record.h"

struct gv_link;

/* How many bytes each ring has when nothing else is said (powers of two). Bulk rings are small on purpose: what passes through them should stay in
 * the caches between the two sides. 2 MiB moved payloads two to three times as fast as 16 MiB. */
#define GV_COMMAND_RING (1u << 20)
#define GV_REPLY_RING (1u << 20)
#define GV_BULK_RING (1u << 21)

/* ---- opening ------------------------------------------------------------------------------------------------------- */

struct gv_link_options {
    const char *pool;        /* "tcp://HOST:PORT" */
    const char *link;        /* what a user may write for it: link_spec.h; NULL and "" are auto */
    const uint8_t *token_id; /* GV_TOKEN_ID_SIZE */
    const uint8_t *secret;   /* GV_SECRET_SIZE */
    uint32_t gpus;           /* 0: as many as the lease has */
    uint64_t memory;
    uint32_t compute; /* thousandths of each device that are reserved, 0: none */
    int32_t priority;
    uint32_t wait_ms; /* for devices; 0: without a limit */
    bool no_wait;     /* refused instead of waiting for devices */
    bool notices;     /* the worker may send notices */
    const char *program;
    uint8_t launch[16]; /* GPUVIRT_LAUNCH; zeros: none */
    uint8_t lease[16];  /* GPUVIRT_LEASE; zeros: none */
    /* One line for the user about each cut: that it lasts, or that it is over. From a thread of the link's; may be NULL. */
    void (*notice)(void *arg, const char *text);
    void *notice_arg;
};

/* Why a connection could not be had: `status` is GV_WELCOME_* for a refusal, GV_OPEN_* otherwise; `text` is one line for the user that names the
 * server and what to do. */
struct gv_open_error {
    int status;
    char text[512];
};
#define GV_OPEN_UNREACHABLE 100 /* nothing listens there, or no route */
#define GV_OPEN_PROTOCOL 101    /* something listens, but it is not a gpuvirt server, or it broke off */
#define GV_OPEN_LOCAL 102       /* our own side failed (memory, descriptors) */
#define GV_OPEN_USAGE 103       /* bad pool or link text */

/* Client end: resolves the pool, shakes hands, opens bulk channels, starts what threads the transport needs (all close-on-exec descriptors,
 * signals blocked in its threads). Returns NULL and fills err. Waits at most 10 s for an unanswering host. */
struct gv_link *gv_link_connect(const struct gv_link_options *options, struct gv_open_error *err);

/* Worker end: takes over a connection that the daemon shook hands on, with what belongs to the transport (struct gv_endpoint in link.h). NULL with a
 * reason in `why` (GV_DEATH_TEXT bytes); the descriptors are the caller's still. Further connections are added by gv_link_add_channel. */
struct gv_endpoint;
#define GV_DEATH_TEXT 200
/* Before gv_link_adopt, in a process that will not be able to open files then. */
void gv_link_prepare(const char *transport);
struct gv_link *gv_link_adopt(const char *transport, struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]);
/* A bulk channel's first connection. Waits until both ends have told each other where they are, 5 s at most. 0: taken, with its descriptor; -1: refused,
 * and the descriptor is the caller's still. */
int gv_link_add_channel(struct gv_link *link, int channel, int fd);

/* Worker end: how long a cut may last before it is the end; 0, as at the beginning: no time at all. */
void gv_link_set_grace(struct gv_link *link, int64_t grace_ns);
/* Worker end: a connection in the place of one that was cut, or seems to be (channel -1: the main one). 0: taken, with its descriptor; -1: refused (an
 * epoch that is not higher than the last, a dead link), the descriptor is closed. Any thread. */
int gv_link_resume(struct gv_link *link, int channel, int fd, uint32_t epoch);
/* From now on a cut is the end: the goodbye was said. */
void gv_link_last(struct gv_link *link);
/* Worker end: the client's program has ended. The link dies as soon as it is down, now if it is. */
void gv_link_client_gone(struct gv_link *link);
bool gv_link_down(const struct gv_link *link);
/* A round trip, ns: on the client what connecting took; on the worker what it was told. 0: not known. */
int64_t gv_link_rtt_ns(const struct gv_link *link);
void gv_link_set_rtt(struct gv_link *link, int64_t rtt_ns);

struct gv_link_counts {
    uint64_t cuts, resumes;               /* of the main connection */
    uint64_t down_ns;                     /* for which that was cut */
    uint64_t records_resent;              /* records that went out again */
    uint64_t unacked_bytes, unacked_peak; /* sent and not acknowledged */
    uint64_t bulk_resent;                 /* bytes of payloads that went out again */
    uint64_t bulk_lent;                   /* bytes of payloads that the peer's devices read where they lie */
    uint64_t bulk_pulled, bulk_in_place;  /* bytes of payloads that our devices have read from the peer's memory; of these, to where they belong */
    uint64_t altered;                     /* frames that were altered on their way; each cut its connection */
};
void gv_link_get_counts(const struct gv_link *link, struct gv_link_counts *counts);

/* ---- records ------------------------------------------------------------------------------------------------------- */

/* Room for one record of `size` bytes (header included, multiple of 8, <= GV_RECORD_MAX), 8-aligned and contiguous. Takes the link's send lock, which
 * gv_send_commit releases: between the two do nothing but fill the record. The link fills in size, seq and epoch. Blocks while the ring is full
 * (*blocked_ns, if given, gets how long). NULL when the link is dead, lock not held then. */
struct gv_record *gv_send_begin(struct gv_link *link, uint32_t size, uint64_t *blocked_ns);
/* Hands the record over and returns its seq. It is on its way soon, without a flush, but a flush makes that now. */
uint64_t gv_send_commit(struct gv_link *link);
/* Pushes out whatever is committed: for a caller that is about to wait. */
void gv_send_flush(struct gv_link *link);

/* The next whole record or NULL when there is none yet. Valid until gv_recv_consume. One thread at a time (the caller arranges that). A malformed
 * record, a seq gap or an over-long size kills the link. */
const struct gv_record *gv_recv_peek(struct gv_link *link);
void gv_recv_consume(struct gv_link *link);
/* Waits until a record may be there, the link died or the time is over. Spins for spin_ns first, then sleeps. */
void gv_recv_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns);
/* Makes one gv_recv_wait (the sleeping or the next) return early; any thread. */
void gv_recv_wake(struct gv_link *link);

/* ---- bulk ---------------------------------------------------------------------------------------------------------- */

/* One payload after the other: whoever sends serialises, from the opening to the last byte.
 *
 * Begins a payload of `size` bytes; they follow in parts. Its number, 0 when the link is dead. Does not block. */
uint64_t gv_bulk_open(struct gv_link *link, uint64_t tag, uint64_t size);
/* The payload's next bytes, by reference: they are read later. done(arg) is called once, from any thread and also when the link dies, when they are not
 * needed any more: the peer has them (tcp), or they have been copied (shm). It must be quick and must not call the link. Does not block. 0, or -1 when
 * the link is dead (done has been called). */
int gv_bulk_part(struct gv_link *link, const void *data, uint64_t size, void (*done)(void *arg), void *arg);
/* Bytes of the payloads' stream that were queued so far, and that are not needed any more: a part is done when the second reaches what the first was
 * after it. */
uint64_t gv_bulk_position(const struct gv_link *link);
uint64_t gv_bulk_acked(const struct gv_link *link);
/* How gv_bulk_send waits for an acknowledgement, for a caller who may himself have to read the link: wait(arg, position) returns 0 once gv_bulk_acked has
 * reached it, -1 when the link is dead. Without one gv_bulk_send copies what it cannot
 * hand over at once. */
void gv_bulk_set_waiter(struct gv_link *link, int (*wait)(void *arg, uint64_t position), void *arg);
/* Sends one payload; returns its number once the source may be reused, 0 when the link is dead. */
uint64_t gv_bulk_send(struct gv_link *link, uint64_t tag, const void *data, uint64_t size);
/* Waits for the next payload's header. 0, or -1 when the link is dead. One thread. */
int gv_bulk_recv_header(struct gv_link *link, struct gv_bulk_header *header);
/* Receives the payload's next `size` bytes into `data` (NULL: throw them away). 0, or -1 when the link is dead. */
int gv_bulk_recv(struct gv_link *link, void *data, uint64_t size);

/* Memory that stays where it is until it is taken back, page-locked memory above all. A link whose devices can reads payloads from it and writes them to it without
 * a copy: it is registered when a payload of sufficient size first lies in it. The peer's devices may read all of it then, and write nothing. Any thread.
 * Taking back, by its first byte, waits until no payload uses it, on a link that has died, too; a payload's `done` may do so, and is called when its payload
 * uses it no more. What was never offered is none to take back. */
void gv_link_offer_memory(struct gv_link *link, const void *at, uint64_t size);
/* Memory that only devices reach, such as a GPU's, whose addresses are none of this process's. */
struct gv_device_memory {
    int fd;          /* of a dma-buf, the caller's; -1: its devices find it by the address, with the help of the kernel */
    uint64_t offset; /* of the first byte in that */
    /* Carries bytes between there and memory of this process; false: it cannot. Any thread. */
    bool (*move)(void *arg, uint64_t at, void *host, uint64_t size, bool to_device);
    void *arg;
};
/* Whether it can be of use to offer such memory at all. */
bool gv_link_takes_device_memory(const struct gv_link *link);
/* As gv_link_offer_memory, for such memory, which is registered at once. True: until it is taken back payloads may be received there and sent from there, also
 * while no device of the link works (`move` carries the bytes then). False: not. */
bool gv_link_offer_device_memory(struct gv_link *link, const void *at, uint64_t size, const struct gv_device_memory *memory);
void gv_link_take_back_memory(struct gv_link *link, const void *at);

/* ---- the worker's end goes on in another process --------------------------------------------------------------------- */

struct gv_image_in;
struct gv_image_out;

/* Whether the link can: it comes back after a cut, and one is not the end. */
bool gv_link_movable(const struct gv_link *link);
/* From now on no payload is begun: gv_bulk_recv_header returns -1 instead, with the link alive. One that has begun goes on, also over connections that are made
 * again. */
void gv_link_pause(struct gv_link *link);
/* Payloads begin again, and a link that was held takes connections. */
void gv_link_unpause(struct gv_link *link);
/* Cuts the link's connections, as a network does. */
void gv_link_cut(struct gv_link *link, const char *why);
/* Cuts them and refuses new ones, until gv_link_release. */
void gv_link_hold(struct gv_link *link, const char *why);
void gv_link_release(struct gv_link *link);
/* Writes where a link stands that was cut, that nobody reads or sends on, and whose payloads the peer has. */
void gv_link_save(struct gv_link *link, struct gv_image_out *out);
/* On a new end, of the same transport and keys, that nobody has used: it goes on where the saved one stood, once the client has connected again. */
void gv_link_restore(struct gv_link *link, struct gv_image_in *in);

/* ---- the rest ------------------------------------------------------------------------------------------------------ */

bool gv_link_dead(const struct gv_link *link);
/* Why it died, one line ("connection reset by peer", "malformed record: ..."), "" while it lives. */
const char *gv_link_death(const struct gv_link *link);
void gv_link_kill(struct gv_link *link, const char *why);  /* declare it dead, from any thread; wakes everybody */
const char *gv_link_transport(const struct gv_link *link); /* its name in the table of transports */
const char *gv_link_server(const struct gv_link *link);    /* "tcp://host:port" */
const char *gv_link_reason(const struct gv_link *link);    /* why it is this transport, one line; "" on the worker's end */
uint64_t gv_link_session(const struct gv_link *link);
uint64_t gv_link_bytes_out(const struct gv_link *link);
uint64_t gv_link_bytes_in(const struct gv_link *link);
/* In the child after fork(), before any other call on the link there (a pthread_atfork handler): closes the descriptors without touching the peer or
 * any lock; the rings are not inherited in the first place. The link is dead in the child and stays allocated; gv_link_close
 * does nothing there. */
void gv_link_abandon(struct gv_link *link);
/* Flushes, closes, joins the transport's threads, frees. */
void gv_link_close(struct gv_link *link);

#endif
