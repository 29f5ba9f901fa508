/* What the files of the tcp transport share: tcp_send.c and tcp_receive.c (records), tcp_resume.c (what follows a cut), tcp_link.c (the end as a whole, and
 * the row of the table). Payloads are tcp_bulk.h. */
#ifndef GV_TCP_H
#define GV_TCP_H

#include <pthread.h>

#include "../../wire/ring.h"
#include "framing.h"
#include "unacked.h"
#include "../link.h"
#include "../resume.h"
#include "tcp_bulk.h"

#define TCP_BUFFER_SIZE GV_REPLY_RING

struct tcp { /* NOLINT(clang-analyzer-optin.performance.Padding): sender's and receiver's lines apart */
    struct gv_link link;
    int fd; /* the main socket's descriptor: another socket takes its place when the connection was cut */
    int wake_fd;
    bool makes_way; /* the worker's end: its reader leaves the core of the client's thread that it answers */

    /* Sending: the ring's writer is under the link's send lock; its reader and what follows are under `pushing`. */
    struct gv_ring_control *control;
    void *ring;
    struct gv_ring_writer tx;
    uint64_t offered; /* where the ring's tail was when a sender was last asked to flush */
    _Alignas(128) _Atomic uint32_t pushing;
    struct gv_ring_reader unsent;
    struct gv_unacked unacked;
    struct gv_framing_out framing_out;
    uint8_t note[NOTE_ROOM]; /* an acknowledgement on its way out: the last note_left of note_size bytes */
    size_t note_size, note_left;
    _Atomic uint64_t n_unacked; /* bytes in unacked */
    _Atomic bool tell;          /* an acknowledgement is due now */
    _Atomic bool clogged;       /* the socket took no more of what is unacknowledged */
    bool cut_seen;              /* by the last look at a connection that nobody may be reading; under `receiving` */
    _Atomic uint64_t peer_seq;  /* the peer has all records up to this one; unacked may not know it yet */
    _Atomic uint32_t held_back; /* senders wait for room in unacked: a futex, raised when the peer has more */
    pthread_t thread;

    /* Receiving: bytes [at, end) of the buffer are read and not yet handed out. Under `receiving`, which nobody holds for long. */
    _Alignas(128) _Atomic uint32_t receiving;
    uint8_t *buffer;
    size_t at, end, current; /* current: size of the record that is handed out */
    struct gv_framing_in framing_in;
    _Atomic uint64_t received;             /* seq of the last record handed out */
    _Atomic uint64_t reader;               /* the thread that last looked for records: never held back */
    uint64_t records_untold, bytes_untold; /* received since the last acknowledgement */
    int64_t moved_at;
    _Atomic bool woken;

    struct tcp_bulk bulk;

    struct gv_resume resume;
    _Atomic uint64_t records_resent, unacked_peak, altered;

    bool client, sealed; /* sealed: with the secret */
    struct gv_link_secret secret;
    struct gv_seal *renewed_out, *renewed_in; /* for the notes of a connection that is to take the place of the last; of whoever brings it */
};

/* ---- tcp_send.c */
enum tcp_pushed { TCP_NOTHING_LEFT, TCP_PUSHED_ALL, TCP_SOCKET_FULL, TCP_BUSY };
/* Sends what is committed, as far as the socket takes it without waiting. TCP_NOTHING_LEFT: others had sent it all; TCP_BUSY: another thread is at it and
 * will see to ours too. */
enum tcp_pushed gv_tcp_push(struct tcp *t);
/* The peer is to hear soon what we have: a payload has come whole. */
void gv_tcp_ack_now(struct tcp *t);
void *gv_tcp_reserve(struct gv_link *link, uint32_t size);
bool gv_tcp_publish(struct gv_link *link);
void gv_tcp_flush(struct gv_link *link);

/* ---- tcp_receive.c */
/* Counts a frame that was altered on its way. True: it was one too many, and the link is dead. receiving held. */
bool gv_tcp_altered(struct tcp *t);
/* Reads what the socket has without waiting. True when something came, or the connection ended. receiving held. */
bool gv_tcp_fill(struct tcp *t);
int64_t gv_tcp_admit(struct gv_link *link);
struct gv_record *gv_tcp_next(struct gv_link *link);
void gv_tcp_release(struct gv_link *link);
void gv_tcp_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns);
void gv_tcp_wake(struct gv_link *link);

/* ---- tcp_resume.c */
extern const struct gv_resume_ops gv_tcp_resume_ops;

/* ---- tcp_move.c, for the row */
void gv_tcp_pause(struct gv_link *link);
void gv_tcp_cut(struct gv_link *link, const char *why);
void gv_tcp_save(struct gv_link *link, struct gv_image_out *out);
void gv_tcp_restore(struct gv_link *link, struct gv_image_in *in);

/* ---- tcp_link.c */
/* One end, the client's or the worker's, over the endpoint's connected socket. NULL with a reason in `why`: the socket is the caller's still. */
struct gv_link *gv_tcp_new(const struct gv_endpoint *endpoint, bool client, char why[GV_DEATH_TEXT]);

#endif
