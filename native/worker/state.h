/* The state of one session, shared by the worker's files. Only the executor thread uses the tables; what other threads use is atomic or guarded by
 * the lock named beside it. */
#ifndef WORKER_STATE_H
#define WORKER_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../transport/transport.h"
#include "backend.h"
#include "gv_commands.h"
#include "gv_dispatch.h"
#include "../backend/turn_words.h"
#include "gv_objects.h"
#include "gv_results.h"
#include "handles.h"
#include "module_cache.h"
#include "session_limits.h"
#include "staging.h"
#include "worker.h"

#define WORKER_COUNT_EVERY 64 /* commands on a stream without a mark before the worker records one itself */
/* ns of round-trip time below which data to the client are sent from device memory in place, while the stream waits */
#define WORKER_NEAR_NS 1000000

/* Where a stream, or an event, stands among the copies to the host (memory_order.c): the index of the newest one that comes before it, and whether what
 * comes before it may have looked at memory. Written by the executor. */
struct worker_order {
    uint64_t after;
    _Atomic bool looks;
};

/* Freed when it is destroyed and has no streams. */
struct worker_context {
    struct worker *w;
    struct gv_context *context;
    uint32_t id, device, flags, primary;
    struct worker_stream *legacy;
    _Atomic uint32_t refs;
    struct worker_order blocking; /* of its streams that are ordered with the legacy one */
    _Atomic bool failure_told;    /* the client was told the text of its asynchronous error */
};

/* A stream of the client. Freed when the client has destroyed it and no work queued on it is left. */
struct worker_stream {
    struct gv_stream *stream;
    struct worker_context *context;
    uint64_t id; /* as in completed events */
    _Atomic uint32_t refs;
    uint32_t uncounted;  /* commands queued since the last mark; executor only */
    uint64_t last_bulk;  /* number of the last payload that a copy on this stream sent; used by its callbacks only, which are called in order */
    uint64_t unreported; /* completed sequence number that the client has not heard of; superseded by the next mark. Theirs as well; 0: none */
    struct worker_order order;
    uint32_t flags; /* as it was made with; executor only, as all that follows */
    int32_t priority;
    bool blocking;              /* ordered with the legacy stream */
    struct host_call *function; /* the host function that was queued last, while no gate is behind it; NULL: none */
};

/* A piece of a payload in staging memory. It is listed before its bytes have arrived; the progress of the payload tells whether they have. */
struct worker_piece {
    struct worker_piece *next;
    uint64_t at, size; /* in the payload */
    void *data;
    bool heap; /* not pinned, though the backend's staging memory is */
};

struct worker_early;

/* The destination of a payload that is not received into one block of memory; bulk.c calls it with the lock held. */
struct worker_destination {
    uint64_t size;
    /* The address for the bytes from `at` on, and in *n how many fit there; the lock is released while there is no room. NULL: the session ends. */
    void *(*place)(struct worker_destination *d, uint64_t at, uint64_t *n);
    /* All bytes before `end` have arrived. */
    void (*received)(struct worker_destination *d, uint64_t end);
    /* Takes over the bytes that arrived before the command. */
    void (*claim)(struct worker_destination *d, struct worker_early *early);
};

/* A payload that a command has announced, and its destination. In the order of the commands, except late payloads. */
struct worker_expected {
    struct worker_expected *next;
    uint64_t number, size; /* of a late payload: its tag instead of its number */
    void *data;
    struct worker_destination *to; /* instead of data */
    bool discard;                  /* it is not needed: the reader frees this */
    bool arrived, failed;
};

/* A payload that arrived before its command, because records and payloads use different sockets. */
struct worker_early {
    struct worker_early *next;
    uint64_t number, size, received;
    struct worker_piece *first, *last;
    uint64_t staged;                 /* bytes of its pieces */
    struct worker_expected *claimed; /* its command has arrived while it was being received */
    bool whole;
};

/* A payload to the client, sent by reference. */
struct worker_outgoing {
    struct worker_outgoing *next;
    struct worker *w;
    uint64_t tag, size;
    void *data;
    bool staged;             /* data is staging memory; else malloc'ed, or what `done` says */
    void (*done)(void *arg); /* called when the bytes are not needed any more; any thread, must not block. NULL: data is freed */
    void *arg;
};

/* A copy to the host on its way, from its command until all of it is sent (do_copy.c has the rest). Under the copies' lock. */
struct worker_copy_out {
    struct worker_copy_out *next, *previous;
    uint64_t index, number; /* of the last payload of it that was sent, 0: none */
    /* Sends what the device has finished of the copy, though its stream's callbacks have not come to it. */
    void (*send_finished)(struct worker_copy_out *o);
};
struct worker_sent_copy {
    uint64_t index, number;
};
#define WORKER_COPIES_KEPT 64u
struct worker_copies {
    pthread_mutex_t lock; /* taken before the worker's and the backend's */
    struct worker_copy_out *first, *last;
    struct worker_sent_copy sent[WORKER_COPIES_KEPT]; /* sent, and nothing follows them yet */
    uint64_t n_sent;
    uint64_t number;           /* of the newest payload of those that something follows */
    uint64_t n;                /* executor only */
    _Atomic uint64_t followed; /* index of the newest copy behind which work is queued that may write memory; by the executor */
};

/* Somebody wants the session's image (image/). Under the worker's lock. */
struct worker_saving {
    int fd;
    int64_t until; /* gv_now_ns */
    void (*at_rest)(void *arg);
    void *arg;
    bool taken;         /* the executor has it, and will say how it went */
    bool needs_command; /* it had it, and gave it back for as long as a command takes */
    bool done, good;    /* it is written, or is not to be had: `why` */
    char why[GV_ERR_SIZE];
};

/* Somebody wants the session parked (park.c). Under the worker's lock. */
#define WORKER_PARK_NS 2000000000ll /* ns that the executor has to take note of it */
struct worker_parking {
    int fd;
    int64_t until;     /* gv_now_ns: until then its GPU may finish what it does, although the program has more; 0: only if it is idle */
    bool taken;        /* the executor has it, and will say how it went */
    bool done, parked; /* not parked: `why` */
    char why[GV_ERR_SIZE];
};

/* A record queued by the read-ahead thread, with its body. */
struct worker_aside {
    struct worker_aside *next;
    struct gv_record record[];
};

/* Turns on one device, of a backend that has none of its own (sharing/turns.c). */
struct worker_gate {
    struct turn_words words;
    bool unmarked;    /* launches from before there were turns may run, which the executor has not marked yet */
    uint32_t inside;  /* launches that were handed on and have not ended */
    uint32_t waiting; /* the executor, with a launch */
    uint32_t passed;  /* launches that were handed on out of turn, as nothing ended, since the queue was short last */
    uint64_t entered;
    int64_t last_end; /* ns, when a launch ended last, or the first of a queue began */
    int64_t each_ns;  /* what one takes, 0: not known */
};

struct worker_turns {
    pthread_mutex_t lock;
    pthread_cond_t changed, tell; /* the executor waits here for its turn; the teller for something to say */
    pthread_t teller;
    bool has_teller, ending;
    _Atomic bool on;             /* there are turns on a device */
    _Atomic bool mark_wanted;    /* the executor is to mark what is queued */
    struct worker_gate *entered; /* of the launch that is being carried out; the executor's */
    struct worker_gate gates[GV_MAX_DEVICES];
};

struct worker {
    struct gv_link *link;
    const struct gv_backend_ops *ops;
    struct gv_backend *backend;
    uint32_t n_devices;
    uint32_t ordinals[GV_MAX_DEVICES]; /* in the pool */
    struct gv_device_info infos[GV_MAX_DEVICES];
    struct gv_context *device_contexts[GV_MAX_DEVICES]; /* the worker's own, one a device, for memory without a context of the client */
    uint32_t addresses;
    uint64_t window_base, window_size;
    bool attached, said_bye;
    char name[64];
    struct module_cache *cache; /* images of modules, as worker_use_cache gave it; NULL: none. Executor only, as all of the cache */
    char *cache_build;          /* likewise */

    struct handles contexts, streams;
    struct worker_objects objects; /* all other kinds */
    struct handles allocations;    /* addresses=reply: address to size */
    int map_failed;                /* status of the last mapping that failed and has not been reported, 0: none */
    struct worker_stream *current; /* the stream of the command being carried out; its mark goes there */

    uint64_t image_bytes;           /* of modules that are loaded; executor only */
    _Atomic uint32_t streams_alive; /* of the client, destroyed ones that still work included */

    _Atomic uint64_t commands, answers, launches, memory_used, bulk_received;
    _Atomic bool stopping;
    _Atomic bool busy;      /* the executor is executing records and flushes what other threads have committed before it sleeps */
    _Atomic int64_t rtt_ns; /* to the client, 0: unknown */

    pthread_mutex_t lock;
    pthread_cond_t changed;   /* signalled: payload announced or arrived, host function done, stopping */
    pthread_cond_t sendable;  /* signalled: outgoing payload queued, stopping */
    pthread_cond_t room;      /* signalled: less is in flight, stopping; the executor waits for it */
    bool held_up;             /* the executor waits for room */
    bool reader_waits;        /* the reader waits for staging memory, or for a stream to reach its copy */
    _Atomic uint64_t pending; /* commands in flight on the device; changed under lock */
    struct staging staging;
    struct worker_expected *expected_first, *expected_last;
    struct worker_expected *late;          /* named by tag, in no order */
    const struct worker_expected *awaited; /* by the executor, which takes no further commands until it has arrived */
    struct worker_early *early_first, *early_last;
    _Atomic uint64_t early_bytes; /* their staging memory; not counted as the executor's */
    uint32_t n_early;
    uint32_t n_discards; /* expectations of payloads that nobody wants */
    struct worker_outgoing *outgoing_first, *outgoing_last;
    bool outgoing_ended;             /* nothing is sent any more */
    _Atomic uint64_t outgoing_bytes; /* bytes queued or sent, and still needed */
    uint64_t n_outgoing;             /* number of these payloads */
    uint64_t outgoing_number;        /* payloads queued so far: their numbers on the wire */
    uint64_t worker_tags;
    struct handles host_calls; /* tag to struct host_call: host functions that the client has not run; under lock */
    uint64_t n_host_calls;
    struct worker_copies copies;
    uint64_t n_in_place; /* copies in place that are queued or being sent */

    /* The read-ahead thread (read_ahead.c). Under ahead_lock. */
    pthread_mutex_t ahead_lock;
    pthread_cond_t ahead_changed;
    bool ahead;              /* the executor is blocked and the read-ahead thread reads the link */
    _Atomic bool ahead_ends; /* not under the lock: the executor waits for it */
    _Atomic uint64_t
        ahead_offer; /* nor these: odd while the executor is in a call that may wait; with the highest bit when read-ahead has taken the link for it */
    _Atomic bool ahead_watches; /* read-ahead looks for offers at short intervals */
    struct worker_aside *aside_first, *aside_last;
    uint64_t aside_bytes;

    /* A session that moves. */
    _Atomic bool image_wanted;    /* the executor is to come to rest and write the session's image */
    _Atomic bool paused;          /* it has come to rest; changed under lock */
    _Atomic bool receiving;       /* the reader is at a payload */
    bool reader_parked;           /* it begins none while the link is paused; under lock, as is what follows */
    struct worker_saving *saving; /* whoever asked for the image */
    bool go_on;                   /* and does not need it: the session stays */

    /* A session that is parked. */
    _Atomic bool park_wanted;       /* the executor is to park it */
    struct worker_parking *parking; /* whoever wants that; under lock, as is what follows */
    bool parked;                    /* its memory is in a file */
    void (*park_said)(void *arg, int32_t what);
    void *park_arg;
    enum { ROOM_NO_ANSWER, ROOM_GRANTED, ROOM_REFUSED } room_answer; /* what it asked for, parked or with an allocation that does not fit */
    void (*room_asked)(void *arg, uint32_t device, uint64_t bytes);
    void *room_arg;
    /* What it shares with other sessions. Under exports_lock, but what is the executor's. */
    uint64_t session;
    pthread_mutex_t exports_lock;
    pthread_cond_t exports_changed;
    struct worker_export *exports;
    uint32_t n_exports;
    void (*export_asked)(void *arg, uint32_t what, uint64_t number, const uint8_t *name); /* the executor's */
    void *export_arg;
    bool export_awaited, export_answered;
    struct gv_shared export_answer; /* what was told of one, and its descriptors; n_pieces of them */
    uint32_t export_answer_size;
    void (*turns_said)(void *arg, uint32_t device, uint32_t what, uint32_t number);
    void *turns_arg;
    struct worker_turns turns;

    pthread_t reader, sender, read_ahead;
    bool has_reader, has_sender, has_read_ahead;
};

/* ---- answers and events (answers.c), any thread ----------------------------------------------------------------------- */

/* The executor waits: from here on the threads that send events flush them. */
void worker_rest(struct worker *w);
/* Reserves an event with a body of so many bytes; the caller fills it in and commits. NULL: the client is lost. */
struct gv_record *worker_event(struct worker *w, uint16_t op, uint32_t ctx, uint64_t body);
int worker_reply(struct worker *w, const struct gv_record *record, int status, const char *text, const void *body, uint32_t size);
/* Reports the failure of a one-way command to the client. When work was lost (a launch, a copy) the context is lost with it, because later results
 * would be wrong. */
void worker_failed(struct worker *w, const struct gv_record *record, int status, const char *text);
/* A stream reported `status` when it reached the command `seq`: the first error of its context is reported to the client. */
void worker_note(struct worker *w, struct worker_stream *s, uint64_t seq, uint16_t op, int status);
/* Commits an event that a client may wait for: flushed now, or by the executor if it is busy. */
void worker_event_done(struct worker *w);
void worker_send_completed(struct worker *w, uint64_t stream, uint32_t ctx, uint64_t upto, uint64_t bulk, int status);
void worker_send_data(struct worker *w, uint64_t tag, int status, const void *data, uint32_t size);

/* ---- finding things (lookup.c) ---------------------------------------------------------------------------------------- */

struct worker_context *worker_context(struct worker *w, uint32_t ctx);
/* The stream of a command, in the record's context when it is a default stream; it becomes the command's current stream. NULL: unknown; the client
 * was told, and its wait was answered. */
struct worker_stream *worker_stream(struct worker *w, const struct gv_record *record, uint64_t id);
struct worker_stream *worker_stream_new(struct worker_context *c, struct gv_stream *stream, uint64_t id);
/* As worker_keep_K in gv_objects.h. */
int worker_keep_stream(struct worker *w, struct worker_context *context, uint64_t id, struct gv_stream *made);
void worker_stream_hold(struct worker_stream *s);
void worker_stream_drop(struct worker_stream *s);   /* any thread */
void worker_context_drop(struct worker_context *c); /* any thread */

/* ---- completion (completion.c) ---------------------------------------------------------------------------------------- */

/* `count` more commands are in flight / have completed. */
void worker_pending_add(struct worker *w, uint64_t count);
void worker_pending_done(struct worker *w, uint64_t count);
/* Called when staging memory was freed. */
void worker_room_again(struct worker *w);
/* Whether the executor may take a further command. */
bool worker_has_room(struct worker *w);
/* Waits until it may, or the session ends. */
void worker_await_room(struct worker *w);
/* Ends all waits of the session: in gates, for room, for payloads. Any thread. */
void worker_stop(struct worker *w);
/* Sends the stream's completion to the client once everything queued so far has completed. */
int worker_mark(struct worker *w, struct worker_stream *s, const struct gv_record *record);
/* Counts a command that was queued on the stream without a mark. */
int worker_count(struct worker *w, struct worker_stream *s, const struct gv_record *record);
/* At the end of every callback of a mark: tells the client the stream's completed number, unless another mark follows at once. */
void worker_tell(struct worker *w, struct worker_stream *s, int status);
/* The same whatever follows. */
void worker_tell_now(struct worker *w, struct worker_stream *s, int status);

/* ---- turns of a backend that has none of its own (sharing/turns.c) ------------------------------------------------------- */

/* Whether this record may be carried out now: no launch that has to wait for its turn. Executor, as all but the end. */
bool worker_has_turn(struct worker *w, const struct gv_record *record);
/* Waits until it may, or the session ends. */
void worker_await_turn(struct worker *w, const struct gv_record *record);
/* The mark behind the launch takes over what ends with worker_turn_end; NULL: it was no launch, or there are no turns. */
struct worker_gate *worker_turn_taken(struct worker *w);
/* The record has been carried out: it has had no mark if it was refused. */
void worker_turn_unused(struct worker *w);
/* Any thread. */
void worker_turn_end(struct worker *w, struct worker_gate *g);
/* Between two records: what `mark_wanted` asks for. */
void worker_turns_here(struct worker *w);
/* ordinal: of the device in the pool. 0, or -1: no such device, or no thread. Any thread. */
int worker_turns_hear(struct worker *w, uint32_t ordinal, uint32_t may, uint32_t number);
void worker_turns_stop(struct worker *w);

/* ---- order by device memory (memory_order.c) ---------------------------------------------------------------------------------- */

/* A command that names the stream is about to be carried out; a stream has been made. Executor. */
void worker_order_command(struct worker *w, const struct gv_record *record, struct worker_stream *s);
void worker_order_stream_created(struct worker *w, const struct gv_record *record);
void worker_order_stream_made(struct worker_stream *s, uint32_t flags, int32_t priority);
/* From a mark's callback, before the client is told of it: what it is told names the payloads of the copies that the stream may have come to know of. */
void worker_order_cover(struct worker *w, struct worker_stream *s);
/* The copy of the command that is being carried out; all of it has been sent, or is not going to be. */
void worker_copies_add(struct worker *w, struct worker_copy_out *o);
void worker_copies_remove(struct worker *w, struct worker_copy_out *o);

/* ---- the executor (executor.c) and its read-ahead thread (read_ahead.c) ------------------------------------------------------------- */

int worker_read_ahead_start(struct worker *w);
void worker_read_ahead_stop(struct worker *w);
/* The executor is about to block, and holds no record of the link: the read-ahead thread reads the link meanwhile, so that a stream that waits for
 * the client gets its answer. */
void worker_ahead_begin(struct worker *w);
void worker_ahead_end(struct worker *w);
/* The same for what hardly ever blocks: read-ahead takes the link only when the executor has not come back within some milliseconds. */
void worker_ahead_offer(struct worker *w);
void worker_ahead_retract(struct worker *w);
/* The oldest record that read-ahead queued, NULL: none; the caller frees it. Executor, not while ahead. */
struct worker_aside *worker_aside_take(struct worker *w);
bool worker_aside_put(struct worker *w, const struct gv_record *record, bool front);

/* ---- host functions (host/do_host_func.c) -------------------------------------------------------------------------------------- */

/* host/host_gate.c: something comes behind the stream's last host function that may not begin before the function has returned. Executor. */
void worker_host_gate(struct worker *w, const struct gv_record *record, struct worker_stream *s);
/* host/host_gate.c: the stream needs no gate any more. */
void worker_host_forget(struct worker_stream *s);
/* The session is over: nobody answers any more. */
void worker_host_end(struct worker *w);
bool worker_waits_for_host(struct worker *w);
/* Whether a stream waits, or will wait, for something that comes with the client's records: a host function's answer, an acknowledgement. */
bool worker_waits_for_client(struct worker *w);
/* The client has run the function; false when there is none of that tag. Any thread. */
bool worker_host_done(struct worker *w, uint64_t tag);

/* ---- modules (do_module.c) ---------------------------------------------------------------------------------------------- */

/* Selects the entries of these devices in the module cache, if there is one. */
void worker_choose_cache(struct worker *w, int driver_version);

/* ---- contexts (do_context.c) ---------------------------------------------------------------------------------------------- */

/* The context was destroyed: removes what was created in it and not destroyed. */
void worker_context_sweep(struct worker *w, uint32_t ctx);
/* What the backend made becomes the client's context `id`; with an error it stays the caller's. */
int worker_keep_context(struct worker *w, uint32_t id, const struct gv_cmd_context_create *c, struct gv_context *made);

/* ---- a session's image (image/) ------------------------------------------------------------------------------------------- */

/* The executor, between two records: comes to rest, writes the image that is wanted, and waits until the session is to go on here. */
void worker_write_image(struct worker *w);
/* What the session is not at rest for, "" when it is. */
const char *worker_unrest(struct worker *w);
/* Waits until the session is at rest, at most until then; returns what worker_unrest does. needs_command: its device waits for a value in memory that only another
 * command can write. */
const char *worker_settle(struct worker *w, int64_t until, bool *needs_command);
/* Everything that the session has, at rest, to and from an image. worker_restore: before the session's threads run. */
void worker_save_all(struct worker *w, struct gv_image_out *out);
void worker_restore_all(struct worker *w, struct gv_image_in *in);

/* ---- parking (park.c) ----------------------------------------------------------------------------------------------------- */

/* The executor, between two records: parks the session, and returns when it has its memory again or is over. */
void worker_park_here(struct worker *w);
/* The executor, in an operation: asks the daemon for room that other sessions have, and waits for it (gv_backend_config.make_room; arg: the worker). While it
 * waits the session can itself be parked. */
bool worker_make_room(void *arg, uint32_t device, uint64_t bytes);

/* ---- what sessions share (sharing/exports.c) -------------------------------------------------------------------------------- */

/* A file for exports (gv_backend_config.new_memory_file; arg: the worker). */
int worker_export_file(void *arg, uint64_t size, uint64_t *number);
void worker_export_file_over(void *arg, uint64_t number);
void worker_exports_close(struct worker *w);

/* ---- bulk (bulk.c) ----------------------------------------------------------------------------------------------------- */

int worker_bulk_start(struct worker *w);
void worker_bulk_stop(struct worker *w);
/* Payload `number` goes to `data`; with NULL, to memory that the reader allocates and the caller frees. The struct must stay valid until
 * worker_wait_payload has returned. Not for the executor: worker_await_payload. */
void worker_expect(struct worker *w, struct worker_expected *e, uint64_t number, void *data, uint64_t size);
bool worker_wait_payload(struct worker *w, struct worker_expected *e);
/* The same in the executor. The link is killed when the reader has no room for what comes before the payload: only a further command would make some. */
bool worker_await_payload(struct worker *w, struct worker_expected *e);
/* The same for an expectation that is already filled in. */
void worker_expect_it(struct worker *w, struct worker_expected *e);
/* The payload of a command that cannot be executed: it is received and discarded, because later payloads follow it. -1: too many are outstanding. */
int worker_discard_payload(struct worker *w, uint64_t number);
/* Queues a payload and takes ownership of data. Returns its number. */
uint64_t worker_send_payload(struct worker *w, uint64_t tag, void *data, uint64_t size, bool staged);
/* The same for memory that the caller owns until done(arg), which is called once, from any thread. */
uint64_t worker_send_in_place(struct worker *w, uint64_t tag, void *data, uint64_t size, void (*done)(void *arg), void *arg);
/* The data of a command: inside the record, or a payload. */
struct worker_bytes {
    const void *data;
    uint64_t size;
    void *own; /* memory to free, NULL when the data are in the record */
};
/* Payload `number`, or with 0 the bytes in the record. -1, and nothing to free: it will not arrive. */
int worker_bytes_take(struct worker *w, uint64_t number, const void *inline_data, uint64_t inline_size, struct worker_bytes *out);
/* Removes an expectation that the reader has not started to receive; lock held. */
bool worker_withdraw(struct worker *w, struct worker_expected *e);
void worker_piece_drop(struct worker *w, struct worker_piece *p);
/* Payloads that came before their commands, to and from a session's image. */
void worker_save_early(struct worker *w, struct gv_image_out *out);
void worker_restore_early(struct worker *w, struct gv_image_in *in);

/* ---- copies to the device whose bytes come on the bulk channel (bulk_copy_in.c) ----------------------------------------- */

/* A contiguous copy. 0; the client was told of an error. */
int worker_bulk_copy_in(struct worker *w, const struct gv_record *record, struct worker_stream *s, uint64_t number, uint64_t dst, uint64_t size);

#endif
