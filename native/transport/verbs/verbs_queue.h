/* One reliable connection between the two ends of a link: RDMA writes into the peer's rings, each batch of them ended by one with immediate data, which tells
 * the peer what has come; and RDMA reads of memory that the peer has lent (verbs_pull.c).
 *
 * A write with immediate data uses up one of the receives that the peer has posted. So each end counts them: it sends no more than the peer is known to have
 * room for, and the peer's notes say how many it has taken. A note is a plain write in front of whatever is sent next, or of an empty one. */
#ifndef GV_VERBS_QUEUE_H
#define GV_VERBS_QUEUE_H

#include <stdatomic.h>

#include "verbs_rail.h"

#define VERBS_SENDS 256u    /* work requests that may be under way */
#define VERBS_RECEIVES 512u /* receives that are posted */
#define VERBS_SPARE 64u     /* of the peer's receives that only notes use: they are what makes room */
#define VERBS_TELL 128u     /* after so many taken the peer is told */
#define VERBS_BATCH 8u      /* work requests in one batch */
#define VERBS_READS 12u     /* RDMA reads that may be under way: enough for a slice on the wire while the next ones are asked for */

/* The immediate data: what it is of, in the two highest bits, and a position. */
enum verbs_news { VERBS_NOTE, VERBS_ARRIVED, VERBS_HELLO };
#define VERBS_POSITION_BITS 30
#define VERBS_POSITION_MASK ((1u << VERBS_POSITION_BITS) - 1)

/* What an end says in between, written by the peer's device into our memory. */
struct verbs_note {
    _Atomic uint64_t read;   /* bytes of the ring that this queue fills which may be overwritten */
    _Atomic uint64_t taken;  /* writes with immediate data */
    _Atomic uint64_t pulled; /* loans that the peer needs no more; of the queues of payloads */
    uint64_t unused[5];      /* a line of its own */
};

struct verbs_queue {
    const struct verbs_library *library;
    struct verbs_rail *rail;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel; /* where receives wake whoever sleeps; its rail's, for longer than the queue */
    struct ibv_cq *send_cq, *receive_cq;
    struct ibv_qp *qp; /* NULL: there is none now */
    uint32_t inline_most;
    _Atomic uint32_t broken; /* 0: works, 1: the text is being written, 2: broken */
    char why[GV_DEATH_TEXT]; /* of broken */

    /* Under `posting`. */
    _Alignas(128) _Atomic uint32_t posting;
    uint32_t posted;                                     /* work requests */
    uint32_t done;                                       /* of these, known to have been carried out */
    uint64_t news;                                       /* writes with immediate data */
    _Atomic uint64_t told_taken, told_read, told_pulled; /* by the last note */
    const _Atomic uint64_t *pulled;                      /* what notes are to say of it */
    uint32_t reads_most;                                 /* that may be under way */
    uint32_t reads[VERBS_READS];                         /* numbers of their requests, by the number of the read */
    uint64_t reads_posted, reads_done, reads_ended;      /* ended: done, or failed */
    _Atomic uint32_t under_way;                          /* posted and not known to be done, as of the last look */
    uint64_t note_address;
    uint64_t *note_out; /* where a note lies that a device without inline data fetches */
    uint32_t remote_key, out_key;
    uint8_t peer_rail; /* the peer's number of its rail */
    _Atomic uint64_t doorbells;

    /* Under `polling`. */
    _Alignas(128) _Atomic uint32_t polling;
    uint64_t received;       /* receives that were posted */
    _Atomic uint64_t taken;  /* writes with immediate data that came */
    struct verbs_note *note; /* where the peer's device writes */
    _Atomic bool hello;      /* the peer's first word has come */
};

struct verbs_write {
    const void *from;
    uint64_t to; /* an address of the peer's */
    uint32_t size;
    bool tells;    /* with immediate data */
    uint32_t news; /* these */
};

/* What the two ends tell each other of a queue. */
struct verbs_peer_queue {
    uint32_t number, sequence;
};
struct verbs_peer_rail {
    uint8_t gids[GV_VERBS_GIDS][16]; /* the client's: all of them, the best first; the worker's: the one that meets one of these, and zeros */
    uint16_t lid;
    uint8_t mtu;
    uint8_t index;      /* its number among its end's rails */
    uint32_t key;       /* of the memory that is written to */
    uint8_t reads;      /* RDMA reads under way on a queue pair that it answers */
    uint8_t link_layer; /* IBV_LINK_LAYER_* */
    uint8_t number;     /* of the rail: its place among the client's */
    uint8_t zero;
};

static inline uint32_t verbs_news(enum verbs_news kind, uint64_t position) {
    return (uint32_t)kind << VERBS_POSITION_BITS | ((uint32_t)position & VERBS_POSITION_MASK);
}
/* The position that `news` speaks of, which is not before `known`. */
static inline uint64_t verbs_position(uint32_t news, uint64_t known) { return known + ((news - (uint32_t)known) & VERBS_POSITION_MASK); }

/* Makes its queue pair, not connected yet; library, rail, pd, channel and note are set. False with `why`. */
bool gv_verbs_queue_open(struct verbs_queue *q, char why[GV_DEATH_TEXT]);
struct verbs_peer_queue gv_verbs_queue_self(const struct verbs_queue *q);
/* Connects it, or it is broken; what the peer's memory is like is set already. */
void gv_verbs_queue_connect(struct verbs_queue *q, const struct verbs_peer_rail *rail, const struct verbs_peer_queue *peer);
/* Nothing comes in any more from here on; what has come is still to be polled. */
void gv_verbs_queue_stop(struct verbs_queue *q);
void gv_verbs_queue_close(struct verbs_queue *q);

/* Whether so many work requests, with so much immediate data among them, can be posted now; notes have room of their own. posting held. */
bool gv_verbs_queue_room(struct verbs_queue *q, uint32_t requests, uint32_t news, bool notes);
/* Posts a batch, with a note of `read` in front of it if the peer should hear one (or is to, `note`). posting held. False: the queue is broken. */
bool gv_verbs_queue_post(struct verbs_queue *q, const struct verbs_write *writes, uint32_t n, bool note, uint64_t read);
/* Posts a read of the peer's memory; there is room for one. Its number, from 1; 0: the queue is broken. posting held. */
uint64_t gv_verbs_queue_read(struct verbs_queue *q, void *to, uint32_t local_key, uint64_t from, uint32_t remote_key, uint32_t size);
/* Whether another one can be posted now, with `most` under way; takes completions. posting held. */
bool gv_verbs_queue_may_read(struct verbs_queue *q, uint32_t most);
static inline bool gv_verbs_queue_broken(const struct verbs_queue *q) { return atomic_load_explicit(&q->broken, memory_order_acquire) == 2; }
/* Whether the peer has not heard for long what was taken of its writes. */
bool gv_verbs_queue_owes(const struct verbs_queue *q);

/* Takes completions of receives: calls came(arg, news, size) for each, in order. polling held. Returns how many. */
uint32_t gv_verbs_queue_poll(struct verbs_queue *q, void (*came)(void *arg, uint32_t news, uint32_t size), void *arg);
/* The next receive makes the channel readable. polling held. */
void gv_verbs_queue_arm(struct verbs_queue *q);
/* The next completion of what was posted makes the channel readable. posting held. */
void gv_verbs_queue_arm_sends(struct verbs_queue *q);
/* Takes what made it readable. */
void gv_verbs_channel_drain(const struct verbs_library *library, struct ibv_comp_channel *channel);
/* All that was posted has been carried out, the peer has it. posting held. */
bool gv_verbs_queue_idle(struct verbs_queue *q);

#endif
