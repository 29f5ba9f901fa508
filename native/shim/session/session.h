/* The client's session with its worker: attaching, sending commands, waiting for completions, and data. One per process. The CUDA objects
 * (objects/) use it and never see a link.
 *
 * Threads. Any thread may post. The thread that holds the progress role handles incoming records: a caller that waits takes the role and polls the
 * link itself, which saves a thread wake-up; a background thread holds it while nobody waits. A reader thread receives bulk payloads. */
#ifndef SHIM_SESSION_H
#define SHIM_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"
#include "wire/device_info.h"
#include "wire/module_known.h"

/* ---- attaching ----------------------------------------------------------------------------------------------------- */

struct shim_server {
    int driver_version;
    uint32_t addresses;                /* GV_ADDRESSES_* */
    uint64_t window_base, window_size; /* fixed addresses: kept PROT_NONE in this process */
    uint64_t initial;                  /* bytes already backed at the start of each device's part */
    uint32_t n_devices;                /* as the worker has them, before CUDA_VISIBLE_DEVICES */
    struct gv_device_info devices[GV_MAX_DEVICES];
    char backend[16], name[64];
    int64_t rtt_ns;     /* how far it is, as connecting took */
    uint32_t n_modules; /* images that it keeps, as it said at attach */
    struct gv_module_known modules[GV_MODULES_KNOWN_MAX];
};

/* Attaches if that has not happened. 0, or a CUresult: CUDA_ERROR_NO_DEVICE (100) when no server can be had (the reason is logged once),
 * CUDA_ERROR_NOT_INITIALIZED (3) in a child forked after the parent attached, CUDA_ERROR_DEVICE_UNAVAILABLE (46) once the server is lost. Fast
 * when attached. */
int session_attach(void);
/* Valid after session_attach returned 0. */
const struct shim_server *session_server(void);
/* 0 while the session stands; else the CUresult every further call gets. One load. */
int session_broken(void);

/* ---- posting ------------------------------------------------------------------------------------------------------- */

/* Used by the generated post_X / call_X functions (gv_client.h). begin returns the body of a record of `body` bytes, to be filled at once; end
 * hands it over and returns its seq. begin returns NULL when the session is lost. flags: GV_RECORD_*. */
void *session_begin(uint16_t op, uint16_t flags, uint32_t ctx, uint32_t body);
uint64_t session_end(void);
void session_flush(void);

/* The answer to a waiting call; body stays valid until session_reply_done. */
struct session_reply {
    uint64_t seq;
    int status;
    char text[256];
    void *body;
    uint32_t body_size;
    /* The session's own. A reply stays where it is from begin_call to reply_done: body may point into it. */
    uint16_t op;
    bool names_payload; /* or may do so */
    _Atomic uint64_t answered;
    struct session_reply *next;
    uint64_t small[8];
};
/* A sync record is registered before it is sent: begin_call .. fill .. end_call (which flushes, waits and returns the status). Counts one wait. */
void *session_begin_call(uint16_t op, uint32_t ctx, uint32_t body, struct session_reply *reply);
int session_end_call(struct session_reply *reply);
void session_reply_done(struct session_reply *reply);
/* The two halves of session_end_call, for a call whose payload follows on the bulk channel (module images): send hands the record over and
 * returns its seq (0 when lost); wait flushes, waits for the answer and returns its status. Each begin_call needs its wait, also after a failed
 * send. begin_call holds the link's send lock until send: so it comes after session_bulk_reserve, and send before session_bulk_commit. */
uint64_t session_send_call(struct session_reply *reply);
int session_wait_call(struct session_reply *reply);

/* ---- streams' completion ------------------------------------------------------------------------------------------- */

/* How a stream is ordered with the legacy stream of its context. */
enum session_stream_order { SESSION_UNORDERED, SESSION_BLOCKING, SESSION_LEGACY };

/* What the session knows of one stream; embedded in the shim's stream object. The legacy stream of every context has one of its own. */
struct session_stream {
    uint64_t id; /* as it travels; for a legacy stream: GV_LEGACY_STREAM(ctx) */
    uint32_t ctx;
    _Atomic uint64_t posted;     /* seq of the last command posted to it */
    _Atomic uint64_t marked;     /* seq of the last such command that carried GV_RECORD_MARK */
    _Atomic uint64_t completed;  /* everything up to this seq is done, and its data has been received */
    _Atomic int status;          /* sticky asynchronous error, 0 */
    struct session_stream *next; /* hash chain */
    /* Copies to the host whose bytes are missing, by seq, and the seq up to which none may be (expected.c). */
    struct expected *first_copy, *last_copy;
    uint64_t copies_ended;
    /* What it is ordered after (stream_order.c). */
    enum session_stream_order order; /* set before it is added */
    struct session_stream *order_next, *order_previous;
    struct order_edge *edges;
    size_t n_edges, edges_capacity;
};

void session_stream_add(struct session_stream *s);
void session_stream_remove(struct session_stream *s); /* late events for it are then dropped */
/* The command `seq` was posted to the stream, with GV_RECORD_MARK or not; to be said for each one with a mark, as its completion is published only then, and
 * after session_expect_posted. `fence`: it is only a mark, which is not ordered with the legacy stream unless it is posted there. */
void session_stream_posted(struct session_stream *s, uint64_t seq, bool marked, bool fence);
/* The command `seq` of the stream waits for everything up to `upto` of the stream `source`; to be said before session_stream_posted. */
void session_stream_waits(struct session_stream *s, uint64_t seq, uint64_t source, uint64_t upto);
/* Waits until s->completed >= seq. Returns the stream's status, or session_broken(). Counts one wait unless it was done already. */
int session_wait_stream(struct session_stream *s, uint64_t seq);
/* Whether the stream has passed it, or does within so many ns. */
bool session_stream_passes(const struct session_stream *s, uint64_t seq, int64_t ns);
/* `call` is told of every failure after which nothing can be done in a context: from any thread, and it takes no lock that is held while posting. To be
 * set before attaching. */
void session_on_context_failure(void (*call)(uint32_t ctx, int status));
/* `call` says what is known of an address that a kernel could not reach, for the message about it; NULL: nothing. It takes no lock that is held while
 * posting. To be set before attaching. */
void session_on_illegal_address(const char *(*call)(uint64_t address));
/* Handles what has already arrived, without waiting (for queries). */
void session_poll(void);

/* ---- data ---------------------------------------------------------------------------------------------------------- */

/* A payload for the bulk channel: it is reserved, which gives it its number, then the record that names the number is posted, then it is committed, which
 * sends the bytes. Whoever has reserved one holds the bulk order lock, and only posts that record before the commit, which is due in any case. */
struct session_bulk {
    uint64_t number;
    const void *data;
    uint64_t size;
    bool lend; /* sent later from where it lies, where it stays until the copy's stream has passed it: the commit does not wait for it to be sent */
};
/* Waits until there is room. False: the session is lost, and nothing is to be committed. A payload that is not lent, or for which no loan is left, may be
 * reused after the commit. */
bool session_bulk_reserve(struct session_bulk *b, const void *data, uint64_t size, bool lend);
/* `seq`: what posting the record returned; with 0 the payload is not sent. Returns seq, or 0 when the session is lost. */
uint64_t session_bulk_commit(const struct session_bulk *b, uint64_t seq);
/* Late payloads are sent after their command, by a host function that precedes the command on its stream. Reserves `n` successive tags for them and
 * returns the first. */
uint64_t session_late_tags(uint64_t n);
/* Sends a late payload of `size` bytes. Returns when the source may be reused: 0, or -1 when the session is lost. */
int session_bulk_late(uint64_t tag, const void *data, uint64_t size);
/* Waits until no byte of [low, high) is still to be sent, so that the memory may be unmapped. */
void session_loans_wait(uint64_t low, uint64_t high);
/* Page-locked memory of the program's: the link's devices may use it until it is taken back, by its first byte; that waits until none does. */
void session_memory_offer(const void *at, uint64_t size);
void session_memory_take_back(const void *at);

/* Registers the destination of a device-to-host copy: width x height x depth bytes, rows `pitch` bytes apart, slices `slice` bytes. Returns the tag for
 * copy_out, 0 when the session is lost. A thread of the session writes the bytes before the copy's stream position is published as completed. */
uint64_t session_expect(void *dst, uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice);
/* The copy_out was posted to the stream as `seq`. Once the stream has completed `seq`, nothing is written for this copy. */
void session_expect_posted(uint64_t tag, struct session_stream *s, uint64_t seq);
void session_expect_cancel(uint64_t tag); /* the record could not be posted */
/* Takes a payload whose tag (GV_BULK_WORKER_TAG) a reply has named, such as module metadata larger than a record: waits until it has arrived and copies
 * its `size` bytes to dst. 0, or a CUresult. Counts no wait of its own. */
int session_take_payload(uint64_t tag, void *dst, uint64_t size);

/* Registers a host function and returns its tag for the host_func record, 0 when there is no memory. The session's callback thread calls it when the worker
 * asks for it, and answers with host_done. A stream callback is given the stream's status; a plain function is not called when that is an error. */
uint64_t session_host_func(void (*fn)(void *data), void *data);
uint64_t session_stream_callback(void (*fn)(void *stream, int status, void *data), void *stream, void *data);
/* The host_func was posted to the stream as `seq`. The function is not called before this is known, because the copies posted before it must be over. */
void session_host_func_posted(uint64_t tag, struct session_stream *s, uint64_t seq);
/* Whether a host function was posted that has not run to its end. */
bool session_host_function_pending(void);
/* Registers a function that sends late payloads. It runs on a thread of its own, whatever the stream's status is, and host_done is sent before it runs. */
uint64_t session_late_func(void (*fn)(void *stream, int status, void *data), void *data);
/* Whether sending a payload of `size` bytes now would wait for late functions. */
bool session_late_crowded(uint64_t size);

/* ---- threads ------------------------------------------------------------------------------------------------------- */

/* Starts a detached thread that takes no signals but those of its own faults. stack 0: the default. */
int session_thread(const char *name, void *(*fn)(void *), void *arg, size_t stack);
/* Between these the thread may post without waiting for host functions that have not run: because one of them may wait for what it does. */
void throttle_exempt_begin(void);
void throttle_exempt_end(void);

/* ---- figures and messages ------------------------------------------------------------------------------------------ */

struct session_stats {
    _Atomic uint64_t calls, waits, wait_ns;
};
extern struct session_stats session_stats;

/* One line on stderr, "gpuvirt: ...". Never on stdout. */
void shim_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, once per place. */
#define shim_log_once(...)                                                 \
    do {                                                                   \
        static atomic_flag shim_once_ = ATOMIC_FLAG_INIT;                  \
        if (!atomic_flag_test_and_set(&shim_once_)) shim_log(__VA_ARGS__); \
    } while (0)
/* Text for cuGetErrorString(code) when this session has something better to say ("lost the GPU server tcp://..: ..."), else NULL. */
const char *session_error_text(int code);
/* Whether this process has a session, or is about to have one. */
bool session_begun(void);

/* A setting: GPUVIRT_<name> from the environment, as the process started (read once). */
const char *shim_setting(const char *name, const char *fallback);
/* The folder that a variable of the system names (HOME, XDG_...), by an absolute path; NULL: none, or the program runs with others' rights. */
const char *shim_folder_setting(const char *variable);

/* True in a child forked after the parent attached. */
bool session_in_forked_child(void);

#endif
