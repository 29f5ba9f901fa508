/* What the files of session/ share; nothing else includes it.
 *
 * * Layers: a file calls only files of the lines above its own; incoming.c is called by progress.c as the handler that attach.c gives it.
 *     settings, quiet_write, window_offer
 *     log, token, threads, session_state
 *     host_writes, progress_role
 *     loss                    the session's end
 *     progress                reading the link and waiting
 *     throttle, expected, reply_payloads
 *     posting, stream_order   commands and calls; what streams are ordered after
 *     streams                 the streams' completion
 *     completions             those that are held back
 *     bulk_in, bulk_out, host_functions
 *     incoming                handlers of the worker's events
 *     attach, stats
 *     lifecycle               fork() and exit
 *
 * Locks, in the order in which they may be taken: bulk order (bulk_out.c), the link's send lock, then either `replies` (posting.c) or held
 * completions (completions.c), the stream table (streams.c) and expected copies (expected.c). All others are leaves. The thread that handles incoming
 * records never sends, so that a full command ring cannot stop the reply ring. */
#ifndef SHIM_SESSION_STATE_H
#define SHIM_SESSION_STATE_H

#include "gv_results.h"
#include "session/session.h"

#define SESSION_SPIN_NS 50000 /* how long a waiting caller polls the link before it sleeps */
/* Shorter than this, a caller did not wait for the worker but for another thread that was filling its record. */
#define SESSION_CONTENTION_NS 10000u
/* Bytes of commands that may be posted behind a host function that has not run: its answer goes the same way as they, and the worker keeps them till it
 * comes. As a driver's, the queue is full then and callers wait. */
#ifndef SESSION_BEHIND_HOST
#define SESSION_BEHIND_HOST (64ull << 20)
#endif
/* Bytes of payloads that may be sent behind a late function that has not run (session_late_func): what it sends comes after them on the bulk channel, and
 * the streams that they are for may stand behind it, so that the worker has to keep them all meanwhile. It keeps so many, whatever else it does. */
#ifndef SESSION_BEHIND_LATE
#define SESSION_BEHIND_LATE (64ull << 20)
#endif
#define SESSION_GOODBYE_NS 2000000000ll
#define SESSION_ATTACH_NS 60000000000ll

struct session_state {
    struct gv_link *link; /* set once, before `attached`; never freed: other threads may still be in it at exit */
    _Atomic int attached, attaching;
    _Atomic int broken;                /* what new calls get, 0 */
    _Atomic int over;                  /* no record will arrive any more: every waiter returns */
    _Atomic int leaving;               /* the goodbye has begun: a loss is no news */
    _Atomic(const char *) waiting_for; /* what a waiter is waiting for now, or NULL */
    _Atomic uint64_t received;         /* payloads 1..received are in place */
    _Atomic uint64_t copies_ended;     /* copies to the host that are over */
    _Atomic uint64_t bulk_acked;       /* only its address counts: what progress_wait takes for gv_bulk_acked */
    _Atomic uint64_t launched;         /* kernel launches posted so far; written under the link's send lock */
    _Atomic uint64_t posted;           /* bytes of records posted so far; written under the link's send lock */
    _Atomic uint64_t held_at;          /* the same when the oldest host function that has not run was posted; UINT64_MAX: there is none */
    _Atomic uint64_t sent;             /* bytes of payloads sent so far, but for late ones; written under the bulk order lock */
    _Atomic uint64_t late_at;          /* the same when the oldest late function that has not run was posted; UINT64_MAX: there is none */
    int owner;                         /* pid that attached */
    bool forked;                       /* this is a child forked after the parent attached */
    struct shim_server server;
    char pool[256]; /* the server as the user named it */
};
extern struct session_state session;

/* ---- session_state.c ---- */
int64_t session_now(void);
/* A caller was held up for so long: counted as a wait. */
void session_count_wait(uint64_t ns);
/* A caller was held up from `start` until now: counted as a wait, unless it was only for another thread of the program's. */
void session_waited(int64_t start);

/* ---- host_writes.c ---- */
/* A thread of the session is about to write into the program's memory, and has. begin is false once the session is over: nothing is to be written. */
bool host_write_begin(void);
void host_write_end(void);
/* After `over`: waits until no thread of the session writes into the program's memory, at most SESSION_GOODBYE_NS. */
void host_writes_quiesce(void);

/* ---- progress_role.c ---- */
/* A counter has changed on a thread that does not hold the progress role, or the session is over: wakes the waiters to look again. */
void progress_changed(void);

/* ---- loss.c ---- */
/* The link is dead, or this end says so (why != NULL): every waiter returns, every later call fails. Logs one line, the first time. `during`
 * names what was going on. */
void session_lost(const char *why, const char *during);
/* `call` is told once that the session is over, from whichever thread noticed. */
void session_on_over(void (*call)(void));
/* What session_error_text says about an attach that failed. */
void session_attach_text(const char *text);

/* ---- progress.c ---- */
/* Handles one incoming record, on the thread that holds the progress role. -1: it is malformed, and *why says how. */
typedef int progress_handler(const struct gv_record *record, const char **why);
/* Starts the background thread. -1: it could not be. */
int progress_start(progress_handler *handler);
/* Waits until *counter >= target (&session.bulk_acked: until gv_bulk_acked is): 0; session_broken() when the session is over before; -1 at the deadline. */
int progress_wait(const _Atomic uint64_t *counter, uint64_t target, int64_t deadline, const char *what);

/* ---- throttle.c ---- */
/* Waits while more than SESSION_BEHIND_HOST bytes of commands are posted behind a host function that has not run. An exempt thread never waits: a
 * host function's own, and one that holds a lock which such a thread may need. */
void throttle_commands_wait(void);
static inline void throttle_commands(void) {
    uint64_t held_at = atomic_load_explicit(&session.held_at, memory_order_relaxed);
    if (held_at != UINT64_MAX && atomic_load_explicit(&session.posted, memory_order_relaxed) - held_at > SESSION_BEHIND_HOST)
        throttle_commands_wait();
}
/* The same for payloads behind a late function (SESSION_BEHIND_LATE): waiting, and whether a payload of `size` bytes would have to. */
void throttle_payload(uint64_t size);
bool throttle_payload_would_wait(uint64_t size);
/* A host function has run. */
void throttle_function_ran(void);

/* ---- posting.c ---- */
/* A REPLY arrived. -1: nobody waits for it. */
int session_replied(uint64_t answers, int status, const char *text, const void *body, uint32_t size);
/* As session_begin and session_wait_call, also while leaving; wait_until gives up at `deadline` (monotonic ns, 0: never) with -1. */
void *session_begin_any(uint16_t op, uint16_t flags, uint32_t ctx, uint32_t body);
int session_wait_until(struct session_reply *reply, int64_t deadline);

/* ---- streams.c ---- */
/* Publishes that a stream has completed everything up to `upto`. Unless the outcome is EXPECT_ENDED nothing is published, and the caller acts on it.
 * *behind, for EXPECT_BEHIND: the stream's command for which it is so; UINT64_MAX: `upto` is not known to be posted. */
enum expect_outcome stream_publish(uint64_t stream, uint64_t upto, int status, uint64_t *receiving, uint64_t *behind);
/* The stream has reached its command `seq`: ends the copies that this comes after. Unless the outcome is EXPECT_ENDED nothing is published. */
enum expect_outcome stream_reached(uint64_t stream, uint64_t seq, int status, uint64_t *receiving);
bool stream_is_known(uint64_t id);
void stream_note_posted(struct session_stream *s, uint64_t seq, bool marked, bool fence);
void stream_forget(struct session_stream *s);
void stream_context_failed(uint32_t ctx, int status);

/* ---- incoming.c ---- */
/* Handles one record. -1: it is malformed, and *why says how. */
int incoming_handle(const struct gv_record *record, const char **why);

/* ---- expected.c ---- */
/* Host memory that a copy writes: `height` rows of `width` bytes, `pitch` bytes apart, `depth` times, `slice` bytes apart. dst NULL: nowhere. */
struct host_area {
    char *dst;
    uint64_t width, height, depth, pitch, slice;
};
enum expect_outcome {
    EXPECT_ENDED,     /* nothing is written any more for the copies up to there */
    EXPECT_MISSING,   /* bytes of one are missing: call expect_missing, with no lock held */
    EXPECT_RECEIVING, /* a payload of one is being received: try again when it has arrived */
    EXPECT_BEHIND     /* those of another stream that come before them are not over: try again when session.copies_ended has changed */
};
/* The stream has reached `upto`: its copies up to there end. `failed` ones are dropped. *receiving: the number of the payload, for EXPECT_RECEIVING. */
enum expect_outcome expect_end(struct session_stream *s, uint64_t upto, bool failed, uint64_t *receiving);
/* The session is lost, because the server said that a copy was complete which is not. */
void expect_missing(void);
/* Drops the stream's copies up to `upto`. EXPECT_ENDED or EXPECT_RECEIVING. */
enum expect_outcome expect_drop(struct session_stream *s, uint64_t upto, uint64_t *receiving);
/* Whether any stream has a copy whose bytes are missing; the newest of a stream's that is not after `upto`, 0: none. */
bool expect_any_open(void);
uint64_t expect_newest_open(const struct session_stream *s, uint64_t upto);
void expect_stream_gone(struct session_stream *s);
/* Payload `number` brings the next `size` bytes for a copy: fills in where they go, from its byte *at on. NULL, or what is wrong. expect_received ends it. */
const char *expect_receive(uint64_t tag, uint64_t number, uint64_t size, struct host_area *area, uint64_t *at);
void expect_received(uint64_t tag, uint64_t size);
/* All bytes of a small copy, or the status with which it has none. -1: no such copy, or not its size. */
int expect_inline(uint64_t tag, int status, const void *data, uint32_t size);

/* ---- stream_order.c, under the stream table's lock ---- */
void order_stream_added(struct session_stream *s);
void order_stream_gone(struct session_stream *s);
/* The commands of `s` from `from` on come after those of `source` up to `upto`. False: no memory. */
bool order_after(struct session_stream *s, uint64_t from, struct session_stream *source, uint64_t upto);
/* Command `seq` was posted to the stream: the legacy stream's rule. False: no memory. */
bool order_posted(struct session_stream *s, uint64_t seq);
/* Whether bytes are missing of a copy of another stream that the stream's commands up to `upto` come after. *last: the newest command that is the first
 * to come after such a copy. */
bool order_open(struct session_stream *s, uint64_t upto, uint64_t *last);
/* The stream's commands up to `upto` have failed: drops the copies that they come after, of the same context and of failed ones. EXPECT_ENDED or
 * EXPECT_RECEIVING. */
enum expect_outcome order_drop(struct session_stream *s, uint64_t upto, uint64_t *receiving);

/* ---- completions.c ---- */
/* Publishes a completion, once payload `bulk` has been received (0: at once) and the copies that it comes after have their bytes. */
void completion_publish(uint64_t stream, uint64_t upto, uint64_t bulk, int status);
/* Payload `number` has been received: publishes what was held for it. */
void completions_received(uint64_t number);
/* Data of a small copy that came inside a record. -1: no such copy, or not its size. */
int completions_inline(uint64_t tag, int status, const void *data, uint32_t size);
void completions_context_failed(uint32_t ctx, int status);
/* Publishes what is not to be held any more. */
void completions_retry(void);
/* None is: a forked child has no session. */
void completions_in_child(void);

/* ---- bulk_in.c, bulk_out.c, reply_payloads.c ---- */
int bulk_start(void);
/* Waits until so much of the payloads' stream has been acknowledged; -1 when the link is dead. What gv_bulk_set_waiter is given. */
int bulk_acked(void *arg, uint64_t position);
/* Receives a payload that belongs to a reply and keeps it until it is taken. NULL: done. "": the link is dead. Else what is wrong. */
const char *reply_payload_receive(const struct gv_bulk_header *header);
/* A call whose answer may name a payload begins (1), or is over, what it named taken (-1). */
void reply_payload_call(int more);

/* ---- host_functions.c ---- */
/* The worker wants host function `tag` called. -1: no such tag. */
int host_func_due(uint64_t tag, uint64_t bulk, int status);

/* ---- attach.c ---- */
/* In a forked child: nobody is attaching here, whatever the parent's other threads were doing. */
void attach_in_child(void);

/* ---- stats.c ---- */
/* Writes GPUVIRT_STATS, if set. launches < 0: not known. */
void stats_write(int64_t launches);
void gpuvirt_figures(uint64_t figures[3]);

/* ---- log/launch_record.c ---- */
void launch_record_attached(void);
void launch_record_left(uint64_t launches);

/* ---- token.c ---- */
struct token {
    uint8_t id[16], secret[32], server_key[32];
};
/* "gpuvirt1.<base64url>". False when the text is no token. */
bool token_parse(const char *text, struct token *out);
/* The token for `pool`: GPUVIRT_TOKEN, else the same user's token file of a server on this host. False: none, and err (512 bytes) says what to
 * do about it. */
bool token_find(const char *pool, struct token *out, char *err);

#endif
