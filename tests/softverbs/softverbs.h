/* What is behind libibverbs' objects. Each begins with the public structure.
 *
 * Files, each calling only those before it: names.c, fabric.c, memory.c, completion.c, outcome.c (how requests end), request.c (the requester's side
 * of a queue pair), respond.c (the responder's), progress.c (the thread), queue_pair.c, device.c.
 *
 * Locks, in the order in which they are taken: the context's `list`, a queue pair's, `memory`, a completion queue's, a channel's. */
#ifndef SOFTVERBS_H
#define SOFTVERBS_H

#include "../../native/transport/verbs/verbs_abi.h"
#include "fabric.h"

#define SV_MAX_SGE 16
#define SV_MAX_WR 16384
#define SV_MAX_INLINE 512
#define SV_MAX_READS 16
#define SV_FRAGMENT 16384u /* bytes of payload in a packet */

struct sv_mr {
    struct ibv_mr ibv;
    uint64_t iova;
    uint8_t *host;
    unsigned access;
    void *mapped; /* of a dmabuf, with the rest of its first page */
    size_t mapped_bytes;
};

struct sv_context {
    struct ibv_context ibv;
    bool started;   /* it has a station and the progress thread */
    unsigned index; /* of the device */
    struct sv_fabric *fabric;
    struct sv_rail *rail;
    struct sv_station *station;
    pthread_t thread;
    _Atomic uint32_t stop;
    _Atomic uint32_t list_wanted;
    pthread_mutex_t list;
    struct sv_qp *qps;
    struct sv_cq *cqs;
    _Atomic uint32_t looked_at; /* the bell before the last look of who polls */
    _Atomic uint64_t next_look; /* the time of the next one without a bell */
    _Atomic uint64_t polled_at; /* the time of the last look of who polls */
    pthread_rwlock_t memory;
    struct sv_mr **regions; /* by key / 256 */
    uint32_t region_room;
    uint32_t keys_made;
    int probe;                /* whose write() tells whether memory is there */
    _Atomic uint32_t objects; /* that must be gone before the device is closed */
};

struct sv_pd {
    struct ibv_pd ibv;
    _Atomic uint32_t users;
};

/* Its descriptor counts events; some are void: their queue was destroyed. */
struct sv_channel {
    struct ibv_comp_channel ibv;
    pthread_mutex_t lock;
    struct sv_cq *cqs;
    uint64_t told; /* how often, in all */
};

struct sv_completion {
    struct ibv_wc wc;
    uint64_t ripe_at; /* 0: at once */
    struct sv_qp *qp;
    uint64_t frees; /* entries of the send queue are free up to this one once this has been polled; 0: one of the receive queue is */
};

struct sv_cq {
    struct ibv_cq ibv;
    pthread_mutex_t lock;
    struct sv_completion *ring;
    uint32_t room, first, count;
    bool armed, failed;
    _Atomic uint32_t users;
    struct sv_cq *next;
    struct sv_cq *next_of_channel;
    uint32_t untaken, taken; /* events */
    uint64_t told_at;        /* of the channel's, the last */
};

struct sv_receive {
    uint64_t wr_id;
    int count;
    struct ibv_sge sges[SV_MAX_SGE];
};

struct sv_send {
    uint64_t wr_id, remote, posted_at;
    uint32_t rkey, imm, length;
    enum ibv_wr_opcode opcode;
    unsigned flags;
    int count;
    struct ibv_sge *sges;
    uint8_t *inlined; /* NULL: sges */
};

struct sv_qp {
    struct ibv_qp ibv;
    pthread_mutex_t lock;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    struct sv_slot *slot;
    uint8_t *requests, *responses; /* the rings to it */
    uint64_t last_ripe;
    struct sv_qp *next;

    /* Requester. Of the send queue: freed <= head (not acknowledged) <= next (not sent) <= tail (posted); entry i is the message first_sequence + i. */
    struct sv_send *sends;
    struct ibv_sge *send_sges;
    uint8_t *send_inlined;
    uint64_t first_sequence, sq_head, sq_next, sq_tail;
    _Atomic uint64_t sq_freed;
    uint32_t send_offset, read_offset, reads;
    unsigned retries, rnr_retries;
    uint64_t rnr_until;  /* nothing is sent before */
    uint64_t send_from;  /* the next request is not */
    uint64_t timer_from; /* 0: nothing is unanswered */

    /* Responder. */
    uint64_t expected;
    uint32_t expected_offset;
    bool acknowledge;
    struct sv_receive *receives; /* taken <= posted */
    uint64_t rq_taken, rq_posted;
    _Atomic uint64_t rq_freed;
    struct sv_receive receive; /* the one that a message under way fills */
    bool receiving;
    struct sv_packet read; /* the request being answered from its `offset` on */
    bool read_active;
};

static inline struct sv_context *sv_of(struct ibv_context *context) { return (struct sv_context *)context; }
/* For who adds or removes queues: the progress thread, which takes it again and again, lets him. */
static inline void sv_list_lock(struct sv_context *context) {
    atomic_fetch_add(&context->list_wanted, 1);
    pthread_mutex_lock(&context->list);
    atomic_fetch_sub(&context->list_wanted, 1);
}
static inline void sv_list_unlock(struct sv_context *context) { pthread_mutex_unlock(&context->list); }
/* The GIDs of its port: one of IPv6, of which a device's GUID is the end, and one of an IPv4 address if it has one; nothing else. */
static inline union ibv_gid sv_gid(struct sv_fabric *fabric, unsigned device, unsigned index) {
    uint8_t network = fabric ? (uint8_t)atomic_load(&sv_rail(fabric, device)->network) : 0;
    union ibv_gid gid = {.raw = {0xfe, 0x80, [8] = 's', 'o', 'f', 't', [15] = (uint8_t)device}};
    if (network) gid.raw[0] = 0xfd, gid.raw[7] = network;
    if (index) gid = (union ibv_gid){.raw = {[10] = 0xff, 0xff, 10, 0, network, (uint8_t)(device + 1)}};
    if (index && !atomic_load(&sv_rail(fabric, device)->ipv4)) gid = (union ibv_gid){0};
    return gid;
}
static inline uint64_t sv_min(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* --- memory.c --- */

/* Copies between a packet and the memory that `length` bytes of the list from `offset` on name; packet NULL: only checks. False: not allowed. */
bool sv_copy_sges(struct sv_context *context, struct ibv_pd *pd, const struct ibv_sge *sges, int count, uint64_t offset, uint8_t *packet,
                  uint32_t length, bool into_memory);
/* The same for what a peer names by an rkey. */
bool sv_copy_remote(struct sv_context *context, struct ibv_pd *pd, uint32_t rkey, uint64_t address, uint8_t *packet, uint32_t length,
                    bool into_memory);
/* What small copies are made of: words and bytes that are never torn. */
void sv_copy(uint8_t *to, const uint8_t *from, size_t length);

/* --- completion.c --- */

/* False when the queue is full and so in error. */
bool sv_complete(struct sv_cq *cq, struct sv_completion completion);
/* Tells of delayed completions that are ripe; the time of the next, UINT64_MAX for none. */
uint64_t sv_cq_ripen(struct sv_cq *cq, uint64_t now);
void sv_cq_forget(struct sv_cq *cq, const struct sv_qp *qp);
int sv_cq_poll(struct sv_cq *cq, int room, struct ibv_wc *wc);
int sv_req_notify_cq(struct ibv_cq *cq, int solicited_only);

/* --- outcome.c: the queue pair is locked --- */

void sv_end_send(struct sv_qp *qp, enum ibv_wc_status status); /* the oldest one */
/* `packet` is NULL when the message's receive is flushed. */
void sv_end_receive(struct sv_qp *qp, enum ibv_wc_status status, const struct sv_packet *packet);
void sv_set_state(struct sv_qp *qp, enum ibv_qp_state state);
/* Everything that is posted ends flushed. */
void sv_fail(struct sv_qp *qp);
void sv_flush(struct sv_qp *qp);
/* The next of those that were posted, as the queue pair's `receive`; false: none. */
bool sv_take_receive(struct sv_qp *qp);
/* The slot of the queue pair's peer; NULL when nothing reaches it now. */
struct sv_slot *sv_peer(struct sv_qp *qp);
/* The packet is complete: gives it its time and sends it. */
void sv_send_packet(struct sv_qp *qp, struct sv_slot *peer, struct sv_ring *ring, struct sv_packet *packet);
/* What the peer has sent, or an answer to it, is dropped: so its timer does not wait in vain. */
void sv_lose(struct sv_qp *qp);
void sv_wake_peer(struct sv_qp *qp);
/* Whether the head packet of a ring may be seen; else *wake is not later than when it may. */
bool sv_arrived(struct sv_packet *packet, uint64_t now, uint64_t *wake);

/* --- request.c and respond.c: the queue pair is locked --- */

void sv_transmit(struct sv_qp *qp, uint64_t now, uint32_t longest);
/* One look at what has arrived; true when something had. *wake: when to look again. */
bool sv_requester(struct sv_qp *qp, uint64_t now, uint64_t *wake);
bool sv_responder(struct sv_qp *qp, uint64_t now, uint64_t *wake);

/* --- progress.c --- */

bool sv_progress_start(struct sv_context *context);
void sv_progress_stop(struct sv_context *context);
int sv_poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *wc);

/* --- queue_pair.c --- */

int sv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int sv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

#endif
