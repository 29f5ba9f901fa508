/* What the files of the tcp transport share: tcp.c (records), tcp_resume.c (a cut and its end). Payloads are tcp_bulk.h. */
#ifndef GV_TCP_H
#define GV_TCP_H

#include <pthread.h>

#include "../../wire/ring.h"
#include "unacked.h"
#include "../link.h"
#include "tcp_bulk.h"

enum tcp_state { TCP_UP, TCP_DOWN };

/* A record of the transport's own. */
struct tcp_note {
    struct gv_record record;
    struct gv_received received;
};

struct tcp { /* NOLINT(clang-analyzer-optin.performance.Padding): sender's and receiver's lines apart */
    struct gv_link link;
    int fd; /* the main socket's descriptor: another socket takes its place when the connection was cut */
    int wake_fd;
    bool makes_way; /* the worker's end: its reader leaves the core of the client's thread that it answers */

    /* Sending: the ring's writer is under the link's send lock; its reader, `unacked` and `note` are under `pushing`. */
    struct gv_ring_control *control;
    void *ring;
    struct gv_ring_writer tx;
    uint64_t offered; /* where the ring's tail was when a sender was last asked to flush */
    _Alignas(128) _Atomic uint32_t pushing;
    struct gv_ring_reader unsent;
    struct gv_unacked unacked;
    struct tcp_note note; /* an acknowledgement on its way out: the last note_left bytes of it */
    size_t note_left;
    _Atomic uint64_t n_unacked; /* bytes in unacked */
    _Atomic bool tell;          /* an acknowledgement is due now */
    _Atomic bool clogged;       /* the socket took no more of what is unacknowledged */
    _Atomic uint64_t peer_seq;  /* the peer has all records up to this one; unacked may not know it yet */
    _Atomic uint32_t held_back; /* senders wait for room in unacked: a futex, raised when the peer has more */
    pthread_t thread;
    _Atomic bool stop;

    /* Receiving: bytes [at, end) of the buffer are read and not yet handed out. Under `receiving`, which nobody holds for long. */
    _Alignas(128) _Atomic uint32_t receiving;
    uint8_t *buffer;
    size_t at, end, current;               /* current: size of the record that is handed out */
    _Atomic uint64_t received;             /* seq of the last record handed out */
    _Atomic uint64_t reader;               /* the thread that last looked for records: never held back */
    uint64_t records_untold, bytes_untold; /* received since the last acknowledgement */
    int64_t moved_at;
    _Atomic bool woken;

    struct tcp_bulk bulk;

    /* Cuts. Under state_lock, but state is read without. */
    pthread_mutex_t state_lock;
    pthread_cond_t state_changed;
    pthread_mutex_t resume_lock; /* one at a time brings the connection back */
    _Atomic int state;
    _Atomic bool last, client_gone;
    int64_t cut_at;
    char cut_why[GV_DEATH_TEXT];
    _Atomic int64_t grace_ns;
    _Atomic uint64_t cuts, resumes, records_resent, bulk_resent, unacked_peak;
};

/* ---- tcp.c */
/* One end, over a connected socket; `redial` is NULL on the worker's end. NULL with errno set: both are the caller's still. */
struct gv_link *gv_tcp_new(int fd, struct gv_redial_target *redial);
/* The spin locks `pushing` and `receiving`. */
void gv_tcp_spin_lock(_Atomic uint32_t *lock);
void gv_tcp_spin_unlock(_Atomic uint32_t *lock);
/* Sends what there is, as far as the socket takes it. Never waits. */
void gv_tcp_push(struct tcp *t);
/* The peer is to hear soon what we have: a payload has come whole. */
void gv_tcp_ack_now(struct tcp *t);

/* ---- tcp_resume.c */
/* The main connection broke: the link is down, or dead where a cut is the end. The caller holds `pushing` or `receiving`, or has seen for himself that
 * the connection which broke is the present one. */
void gv_tcp_cut(struct tcp *t, const char *what, int error);
/* The link's own thread, while the link is down: makes the connection again (client), or sees to it that this does not take for ever (worker). */
void gv_tcp_while_down(struct tcp *t);
int gv_tcp_resume(struct gv_link *link, int channel, int fd, uint32_t epoch);
void gv_tcp_set_grace(struct gv_link *link, int64_t grace_ns);
void gv_tcp_last(struct gv_link *link);
void gv_tcp_client_gone(struct gv_link *link);
bool gv_tcp_down(const struct gv_link *link);
void gv_tcp_counts(const struct gv_link *link, struct gv_link_counts *counts);

#endif
