/* What the files of the verbs transport share: verbs_records.c, verbs_bulk.c (the rings of records and of payloads), verbs_payloads.c (what is in the
 * second), verbs_loans.c and verbs_pull.c (payloads in memory that is lent), verbs_resume.c (how the two ends connect, and connect again), verbs_link.c (the end as a whole, and the row of the table).
 *
 * Each way there is a ring of records and one of payloads, as over shared memory, but each end has memory of its own: a sender fills its copy of the ring, and
 * its device writes what is new into the receiver's, at the same place. What the receiver has read comes back in notes (verbs_queue.h). So the sender's copy
 * still has whatever the receiver may lack, which goes out again when the connection was cut.
 *
 * Records have a queue of their own, on the leading rail; payloads are cut in slices that go over all rails and come in any order. The TCP connection of the
 * handshake carries nothing but what connects the queues; its end of file says that the peer is gone, or that it was cut.
 *
 * A payload that lies in registered memory (verbs_memory.h) is *lent*: the ring says where, the receiver's devices read it from there to where it belongs, or
 * into a bounce buffer where that is not registered, and a note gives it back. The peer's devices write nowhere but into the rings. */
#ifndef GV_VERBS_H
#define GV_VERBS_H

#include "../../wire/ring.h"
#include "../link.h"
#include "../part_queue.h"
#include "../resume.h"
#include "verbs_memory.h"
#include "verbs_queue.h"

#define VERBS_RECORD_RING GV_COMMAND_RING
#define VERBS_BULK_RING (4u << 20)
#define VERBS_SLICE (128u << 10) /* bytes; no slice crosses a multiple of it */
#define VERBS_QUEUES (GV_VERBS_RAILS_MAX + 1)
#define VERBS_OUT_OF_ORDER 512u /* slices that have come before others */
#define VERBS_BOUNCE (1u << 20)
#define VERBS_LENT_LEAST (64u << 10) /* bytes; what is less is copied sooner than asked for */
#define VERBS_LOANS 1024u            /* that the peer has not given back */

/* The memory of an end, in two registered pieces: what the peer's devices write to, and what ours read. */
struct verbs_inbox {
    struct verbs_note notes[VERBS_QUEUES]; /* of the records' queue, then of each rail's payloads */
    _Alignas(4096) uint8_t records[VERBS_RECORD_RING];
    uint8_t payloads[VERBS_BULK_RING];
};
struct verbs_outbox {
    uint64_t notes[VERBS_QUEUES][8];
    _Alignas(4096) uint8_t records[VERBS_RECORD_RING];
    uint8_t payloads[VERBS_BULK_RING];
    uint8_t bounce[VERBS_BOUNCE]; /* for reads of ours */
};

/* The ring of payloads is a row of parts, each with this in front. */
struct verbs_part {
    uint32_t size; /* bytes that follow */
    uint32_t lent; /* 0: the payload's; 1: a struct verbs_lent that says where they are */
};
struct verbs_lent {
    uint64_t at, size;
    uint32_t keys[GV_VERBS_RAILS_MAX]; /* by the lender's rail */
};

/* What an end says first on a connection: where it stands, and how it is reached. */
struct verbs_hello {
    struct gv_record record; /* op RESUME */
    uint64_t inbox;          /* the address of its struct verbs_inbox */
    uint64_t arrived, read;  /* bytes of the ring of records that came, and that may be overwritten */
    uint64_t bulk_arrived, bulk_read, pulled;
    uint32_t n; /* rails; 0: none, all goes over the TCP connection */
    struct verbs_peer_queue records;
    struct verbs_peer_queue payloads[GV_VERBS_RAILS_MAX];
    struct verbs_peer_rail rails[GV_VERBS_RAILS_MAX];
    uint32_t zero;
};
_Static_assert(sizeof(struct verbs_hello) == 24 + 48 + 4 + 8 + 64 + 8 * 60 + 4 && sizeof(struct verbs_peer_rail) == 60, "it has no gaps");

#define VERBS_LEFT_OUT_NS 10000000000ll /* a rail that did not work is tried again after so long */

/* What goes over the TCP connection where no rail works (verbs_fallback.c), and what was read of both rings. */
enum verbs_frame_kind {
    VERBS_OF_RECORDS,  /* bytes of a ring; start: their position */
    VERBS_OF_PAYLOADS, /* the same */
    VERBS_ASKS,        /* for `length` bytes that are lent; start: their address */
    VERBS_OF_A_LOAN    /* these; start: their address */
};
struct verbs_frame {
    uint32_t kind;
    uint32_t size; /* bytes that follow */
    uint64_t start;
    uint64_t read, bulk_read, pulled;
    uint64_t length;
};

struct verbs_carrier {
    _Atomic uint32_t sending; /* a spin lock */
    struct verbs_frame out;   /* on its way: the last out_head_left bytes of it, and out_left bytes at out_body */
    uint32_t out_head_left, out_left;
    const uint8_t *out_body;
    uint64_t ask_at, ask_length; /* what to ask for next; length 0: nothing */
    const uint8_t *lent_at;      /* what the peer has asked for */
    uint64_t lent_left;
    uint8_t *lent_piece; /* of a device's, what is on its way; NULL: nothing of that kind yet */
    bool lent_lost;      /* some could not be had */
    _Atomic uint64_t told_read, told_bulk_read, told_pulled;
    /* Under queue.polling and bulk_polling. */
    uint8_t *pull_to;              /* where the next bytes of what we asked for belong */
    uint64_t pull_from, pull_left; /* their address at the peer's; how many */
    uint64_t pull_came;            /* of the last question */
    struct verbs_frame in;         /* in_head bytes of it are there; in_left of what follows it are not, and go to in_at */
    uint32_t in_head, in_left;
    uint8_t *in_at;
};

/* What the peer may read (verbs_loans.c). */
struct verbs_loan {
    const uint8_t *at;
    uint64_t size;
    uint64_t before; /* bytes of payloads before it */
    struct verbs_region *region;
    void (*done)(void *arg);
    void *arg;
};
struct verbs_loans {
    pthread_mutex_t lock;
    struct verbs_loan *list; /* VERBS_LOANS; number i has place i % VERBS_LOANS */
    uint64_t given;
    _Atomic uint64_t returned; /* written under the lock, as the rest */
    bool ended;
    _Atomic uint64_t pulled; /* so many the peer needs no more, as it says */
    _Atomic uint64_t oldest; /* `before` of the oldest that is out; UINT64_MAX: none is */
};

struct verbs_span {
    uint64_t start, end;
};

struct verbs { /* NOLINT(clang-analyzer-optin.performance.Padding): sender's and receiver's lines apart */
    struct gv_link link;
    const struct verbs_library *library;
    int fd, wake_fd, bulk_wake_fd, kick_fd; /* the TCP connection; wake a reader of records, of payloads, and the link's own thread */
    bool client;
    _Atomic bool connected; /* the queues have been connected once */
    int64_t connect_until;  /* the worker's end waits so long for that */
    bool broke_off;         /* the client had begun to; of the link's own thread, as connect_until */
    _Atomic bool peer_gone, woken;
    _Atomic bool over_tcp; /* no rail works */
    struct verbs_carrier carrier;
    int64_t rails_again_at; /* over_tcp: when the client tries its rails again; of the link's own thread */
    pthread_t thread;
    struct gv_resume resume;
    uint32_t rails_wanted;

    struct verbs_inbox *in;
    struct verbs_outbox *out;
    uint32_t n_rails;
    _Atomic uint32_t lead; /* which rail carries the records */
    struct verbs_rail rails[GV_VERBS_RAILS_MAX];
    struct ibv_pd *pd[GV_VERBS_RAILS_MAX];
    struct ibv_mr *in_mr[GV_VERBS_RAILS_MAX], *out_mr[GV_VERBS_RAILS_MAX];
    struct ibv_comp_channel *channel[GV_VERBS_RAILS_MAX], *bulk_channel[GV_VERBS_RAILS_MAX];

    /* Records. */
    struct gv_ring_control *out_control, *in_control; /* of our copies: memory of this process alone */
    struct verbs_queue queue;
    _Alignas(128) struct gv_ring_writer tx;
    uint64_t offered;             /* where the ring's tail was when a sender was last asked to flush */
    _Atomic uint64_t handed_over; /* bytes of the ring that were posted; written under queue.posting */
    uint64_t peer_records;        /* address of the peer's ring */
    _Alignas(128) struct gv_ring_reader rx;
    uint64_t arrived;          /* bytes of the ring that came; under queue.polling */
    _Atomic uint64_t received; /* seq of the last record handed out */
    struct gv_record *record;  /* the received record, out of the peer's reach */
    _Atomic uint64_t records_resent;

    /* Payloads. */
    struct gv_ring_control *bulk_out_control, *bulk_in_control;
    _Atomic uint32_t n_queues; /* of payloads; written under all the locks */
    struct verbs_queue bulk[GV_VERBS_RAILS_MAX];
    uint8_t numbers[GV_VERBS_RAILS_MAX]; /* of their rails: places among the client's */
    _Alignas(128) struct gv_ring_writer bulk_tx;
    _Atomic uint32_t bulk_posting;     /* a spin lock: one at a time cuts slices */
    _Atomic uint64_t bulk_handed_over; /* written under bulk_posting */
    uint64_t peer_payloads;
    uint32_t next_queue;
    _Alignas(128) struct gv_ring_reader bulk_rx;
    _Atomic uint32_t bulk_polling; /* a spin lock, before any queue's */
    uint64_t bulk_arrived;         /* bytes that came without a gap; under bulk_polling, as is what follows */
    struct verbs_span early[VERBS_OUT_OF_ORDER];
    uint32_t n_early;
    struct gv_part_queue parts;
    _Atomic uint64_t bulk_resent;

    /* Lent memory. */
    struct verbs_memory memory;
    struct verbs_loans loans;
    _Atomic uint64_t pulled; /* of the peer's loans, needed no more */
    _Atomic uint64_t bytes_lent, bytes_pulled, bytes_in_place;
    _Atomic uint32_t queue_generation; /* changes when the queues are closed */
    struct verbs_part part;            /* what is left of the one that is being read; of the reader of payloads, as is what follows */
    struct verbs_lent lent;            /* likewise */
    uint64_t seen_received;            /* the last record that had come when reads were last asked for */
    int64_t beside_until;              /* records come: reads make room for them until then */

    int64_t left_out_until[GV_VERBS_RAILS_MAX]; /* rails over which nothing passed; of whoever brings a connection, as is what follows */
    struct verbs_hello theirs; /* what the peer has said on a connection that is to take the place of the last; of whoever brings it */
};

/* ---- verbs_wake.c */
/* Everybody who waits looks again. */
void gv_verbs_wake_all(struct verbs *v);
/* Wakes the link's own thread, if it sleeps: something is to be posted that could not be now, or that nobody flushes. */
void gv_verbs_kick(struct verbs *v);
/* The peer has read so much of the ring: raises its head, and wakes who waits for room. */
void gv_verbs_peer_has_read(struct gv_ring_control *c, uint64_t read);
/* Wakes a reader by his descriptor, if his ring says that he sleeps. */
void gv_verbs_wake_reader(const _Atomic uint32_t *sleeps, int fd);
/* A queue broke: the link is down, or dead. */
void gv_verbs_broke(struct verbs *v, const struct verbs_queue *q);

/* ---- verbs_records.c */
void *gv_verbs_reserve(struct gv_link *link, uint32_t size);
bool gv_verbs_publish(struct gv_link *link);
void gv_verbs_flush(struct gv_link *link);
struct gv_record *gv_verbs_next(struct gv_link *link);
void gv_verbs_release(struct gv_link *link);
void gv_verbs_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns);
void gv_verbs_wake(struct gv_link *link);
enum verbs_pushed { VERBS_NOTHING_LEFT, VERBS_PUSHED, VERBS_NO_ROOM, VERBS_BUSY };
/* Posts what is committed, as far as the queue takes it. */
enum verbs_pushed gv_verbs_push(struct verbs *v);
/* Takes what has come. */
void gv_verbs_poll_records(struct verbs *v);
/* queue.polling held. */
void gv_verbs_take_in(struct verbs *v);

/* ---- verbs_bulk.c: the ring of payloads */
/* Copies bytes into it. False: the link died. */
bool gv_verbs_bulk_put(struct verbs *v, const void *data, uint64_t size, bool push);
/* Posts what of it is in our copy and was not posted. */
void gv_verbs_push_bulk(struct verbs *v);
void gv_verbs_poll_bulk(struct verbs *v);
/* bulk_polling held. */
void gv_verbs_poll_bulk_locked(struct verbs *v);
/* Tells the peer what was read, taken and pulled, where it should know by now. */
void gv_verbs_tell(struct verbs *v);
/* Whether it does not know of everything that was pulled. */
bool gv_verbs_owes_loans(const struct verbs *v);
/* Sleeps until something came, was carried out, or woke the reader of payloads; not at all when `ready` says so once what comes next would wake. */
void gv_verbs_bulk_sleep(struct verbs *v, bool (*ready)(struct verbs *v, void *arg), void *arg);

/* ---- verbs_loans.c */
bool gv_verbs_loans_init(struct verbs_loans *l);
/* Lends what the loan names (its region is looked for here), and says what the ring is to tell of it. From then on it is out, also when the ring's bytes come to
 * nothing because the link dies. False: it must be copied. */
bool gv_verbs_loan(struct verbs *v, const struct verbs_loan *loan, struct verbs_lent *lent);
/* The peer needs so many loans no more; settles none yet. */
void gv_verbs_loans_said(struct verbs *v, uint64_t pulled);
/* Lets go of what the peer needs no more. No spin lock held. */
void gv_verbs_loans_settle(struct verbs *v);
/* Lets go of all: the link is dead, and its queues have stopped. */
void gv_verbs_loans_end(struct verbs *v);
bool gv_verbs_loans_out(struct verbs *v);
/* Whether a loan that is out has these bytes. */
bool gv_verbs_is_lent(struct verbs *v, const uint8_t *at, uint64_t size);

/* ---- verbs_pull.c */
/* The next `size` bytes of what v->lent names, into `to`; NULL: throws them away. False: the link died, and no device writes there any more. */
bool gv_verbs_pull(struct verbs *v, uint8_t *to, uint64_t size);

/* ---- verbs_payloads.c: what is in that ring */
bool gv_verbs_payload_write(struct gv_link *link, const void *data, uint64_t size);
bool gv_verbs_payload_read(struct gv_link *link, void *data, uint64_t size);
int gv_verbs_payload_part(struct gv_link *link, const void *data, uint64_t size, void (*done)(void *arg), void *arg);
uint64_t gv_verbs_payload_acked(const struct gv_link *link);
/* For the queue of parts. */
bool gv_verbs_payload_put(struct gv_link *link, const void *data, uint64_t size);
bool gv_verbs_payload_lend(struct gv_link *link, const void *data, uint64_t size, void (*done)(void *arg), void *arg);
/* Bytes of the part that is being read. */
static inline uint64_t gv_verbs_part_left(const struct verbs *v) { return v->part.lent ? v->lent.size : v->part.size; }

/* ---- verbs_fallback.c */
enum verbs_carried { VERBS_CAME_NOTHING, VERBS_CAME_SOME, VERBS_CAME_TO_AN_END };
/* Asks the peer for bytes that it has lent, one question at a time, while the queues are of this generation: the next connection knows nothing of it. pull_came
 * tells how many have come. */
void gv_verbs_carrier_ask(struct verbs *v, uint32_t generation, uint64_t from, uint8_t *to, uint64_t size);
/* Sends what is committed, as far as the socket takes it; reads what has come, without waiting. */
enum verbs_pushed gv_verbs_carry_out(struct verbs *v);
enum verbs_carried gv_verbs_carry_in(struct verbs *v);
/* Whether the peer should hear what was read. */
bool gv_verbs_carrier_owes(const struct verbs *v);
/* Nothing is halfway out. */
bool gv_verbs_carrier_idle(struct verbs *v);
/* What was halfway over the last connection is nothing on the next. All locks held. */
void gv_verbs_carrier_reset(struct verbs *v);

/* ---- verbs_resume.c */
extern const struct gv_resume_ops gv_verbs_resume_ops;
/* Connects the queues for the first time, over the link's own connection. False with `why`. */
bool gv_verbs_begin(struct verbs *v, char why[GV_DEATH_TEXT]);
/* Takes what has come, and lets go of them. */
void gv_verbs_close_queues(struct verbs *v);

/* ---- verbs_move.c, for the row */
void gv_verbs_pause(struct gv_link *link);
void gv_verbs_cut(struct gv_link *link, const char *why);
void gv_verbs_save(struct gv_link *link, struct gv_image_out *out);
void gv_verbs_restore(struct gv_link *link, struct gv_image_in *in);

#endif
