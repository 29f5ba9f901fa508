/* What the files of the shm transport share: shm_link.c (the rings, an end's life, the row of the table), shm_resume.c (the socket: its end, and the one
 * that takes its place). */
#ifndef GV_SHM_H
#define GV_SHM_H

#include "../link.h"
#include "../part_queue.h"
#include "../resume.h"
#include "shm_layout.h"

struct gv_delay_rings;

struct shm { /* NOLINT(clang-analyzer-optin.performance.Padding): sender's and receiver's lines apart */
    struct gv_link link;
    int fd, memfd, wake_fd;
    void *map;
    uint64_t map_size;
    bool inherited; /* the kernel would not keep the memory out of forked children */
    _Atomic bool peer_gone, woken;

    /* The socket: another one takes its place, under the same number, when the connection was cut. */
    pthread_mutex_t socket_lock; /* held by who looks at it, and by who puts another one there */
    pthread_t watcher;
    struct gv_resume resume;
    struct gv_memory_id memory;      /* the peer's view of the rings: not `memfd` where they are delayed */
    struct gv_delay_rings *delayed;  /* NULL: not delayed */
    uint64_t peer_seq;               /* what the peer said last that it has; under socket_lock */
    int peer_process;                /* a pidfd of the worker's client, -1: not to be had; the watcher's, and under socket_lock */
    _Atomic uint64_t sent, received; /* seq of the last record published, and handed out */

    _Alignas(128) struct gv_ring_writer tx;
    _Atomic bool woke; /* publishing woke the peer, and nobody has made way for it yet */
    _Alignas(128) struct gv_ring_reader rx;
    bool naps, heard;         /* the worker's end; whether a record came since the last wait */
    int64_t nap_until;        /* the sleep for good begins here */
    int64_t moved_at;         /* when the worker's reader last left the core of its client */
    struct gv_record *record; /* the received record, out of the peer's reach */
    _Alignas(128) struct gv_ring_writer bulk_tx;
    _Alignas(128) struct gv_ring_reader bulk_rx;
    struct gv_part_queue parts;
};

/* ---- shm_resume.c */
extern const struct gv_resume_ops gv_shm_resume_ops;
/* The link's own thread: watches the socket, and sees to a link that is down. */
void *gv_shm_watch(void *shm);
/* Which process the connected unix socket's peer is: a pidfd, -1 where it is this process's parent, or the kernel does not say (another pid namespace). */
int gv_shm_peer_process(int fd);
/* Interrupts the link's own thread. */
void gv_shm_wake_watcher(struct shm *s);
/* Which memory this is. */
struct gv_memory_id gv_shm_memory_id(int memfd);
/* Whoever sleeps at a ring looks again. */
void gv_shm_wake_everybody(struct shm *s);

/* ---- shm_move.c, for the row */
void gv_shm_pause(struct gv_link *link);
void gv_shm_cut(struct gv_link *link, const char *why);
void gv_shm_save(struct gv_link *link, struct gv_image_out *out);
void gv_shm_restore(struct gv_link *link, struct gv_image_in *in);

/* ---- shm_link.c */
/* One end over `fd`, the unix socket, and the rings in `memfd`. NULL with a reason in `why`: both are the caller's still. */
struct gv_link *gv_shm_new(int fd, int memfd, const uint64_t rings[GV_SHM_RINGS], bool client, char why[GV_DEATH_TEXT]);

#endif
