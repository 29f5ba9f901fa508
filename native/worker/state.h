/* What the worker's files share: one session's state. Only the executor thread touches the tables; what other threads touch is atomic or under `lock`. */
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
#include "handles.h"
#include "worker.h"

/* How much may be on its way through the device before the executor waits: bounded memory, whatever the client does. */
#define WORKER_MAX_PENDING 16384          /* commands queued and not finished */
#define WORKER_MAX_STAGING (256ull << 20) /* bytes of copies on their way */

#define WORKER_MAX_IMAGE (1ull << 32) /* bytes of a module's image */

/* A stream as the client knows it. Freed when the client destroyed it and nothing that was queued on it is left. */
struct worker_stream {
    struct gv_stream *stream;
    uint64_t id; /* in completed events; GV_LEGACY_STREAM(ctx) for a context's legacy stream */
    uint32_t ctx;
    _Atomic uint32_t refs;
    bool legacy;
    uint64_t last_bulk; /* number of the last payload that a copy on this stream sent; touched by its callbacks only, which come in order */
};

struct worker_context {
    struct gv_context *context;
    uint32_t device;
    struct worker_stream *legacy;
};

struct worker_event {
    struct gv_event *event;
};

struct worker_module {
    struct gv_module *module;
    uint32_t n_kernels;
};

/* A payload that a command said will come on the bulk channel, and where it goes. In the order of the commands. */
struct worker_expected {
    struct worker_expected *next;
    uint64_t number, size;
    void *data;
    bool arrived, failed;
};

/* A device-to-host payload on its way out. */
struct worker_outgoing {
    struct worker_outgoing *next;
    uint64_t tag, size;
    void *data;
    bool staged; /* data counts against the staging budget */
};

struct worker {
    struct gv_link *link;
    const struct gv_backend_ops *ops;
    struct gv_backend *backend;
    uint32_t n_devices;
    struct gv_device_info infos[GV_MAX_DEVICES];
    struct gv_context *device_contexts[GV_MAX_DEVICES]; /* ours, one a device: memory can be had before the client made a context */
    uint32_t addresses;
    uint64_t window_base, window_size;
    bool attached, said_bye;
    char name[64];

    struct handles contexts, streams, events, modules;
    struct worker_stream *current; /* the stream of the command being carried out; completion marks go there */

    _Atomic uint64_t commands, launches;
    _Atomic bool stopping;

    pthread_mutex_t lock;
    pthread_cond_t changed;    /* payload arrived, outgoing queued, staging or pending shrank, host function done, stopping */
    uint64_t staging, pending; /* under lock */
    struct worker_expected *expected_first, *expected_last;
    struct worker_outgoing *outgoing_first, *outgoing_last;
    uint64_t outgoing_number; /* payloads queued so far: their numbers on the wire */
    uint64_t worker_tags;
    struct handles host_calls; /* tag to nothing: host functions under way */

    pthread_t reader, sender;
    bool has_reader, has_sender;
};

/* ---- answers and events (answers.c) ---------------------------------------------------------------------------------- */

/* Room for an event with a body of so many bytes; the caller fills it in and commits. NULL when the client is lost. */
struct gv_record *worker_event(struct worker *w, uint16_t op, uint32_t ctx, uint64_t body);
int worker_reply(struct worker *w, const struct gv_record *record, int status, const char *text, const void *body, uint32_t size);
/* A one-way command failed: the client hears of it. */
void worker_failed(struct worker *w, const struct gv_record *record, int status, const char *text);
bool worker_is_sticky(int status);

/* ---- finding things (lookup.c) ---------------------------------------------------------------------------------------- */

struct worker_context *worker_context(struct worker *w, uint32_t ctx);
/* The stream of a command, in the record's context when it is a default stream; it becomes the command's current one. NULL: unknown, and the client was told. */
struct worker_stream *worker_stream(struct worker *w, const struct gv_record *record, uint64_t id);
void worker_stream_hold(struct worker_stream *s);
void worker_stream_drop(struct worker *w, struct worker_stream *s);

/* ---- bounded things (budget.c) ---------------------------------------------------------------------------------------- */

/* Staging memory for a copy; waits while too much is on its way. NULL when the session ends or memory is out. */
void *worker_staging(struct worker *w, uint64_t size);
void worker_staging_free(struct worker *w, void *data, uint64_t size);
void worker_pending_add(struct worker *w);
void worker_pending_done(struct worker *w);

/* ---- completion (completion.c) ---------------------------------------------------------------------------------------- */

/* Pushes the stream's completion to the client once everything queued so far is done. */
int worker_mark(struct worker *w, struct worker_stream *s, uint64_t seq);

/* ---- bulk (bulk.c) ---------------------------------------------------------------------------------------------------- */

int worker_bulk_start(struct worker *w);
void worker_bulk_stop(struct worker *w);
/* Payload `number` goes to `data`; with NULL, to memory that the reader makes for it and the caller frees. The struct stays the caller's until worker_wait_payload returned. */
void worker_expect(struct worker *w, struct worker_expected *e, uint64_t number, void *data, uint64_t size);
bool worker_wait_payload(struct worker *w, struct worker_expected *e);
/* Queues a payload; takes data over. Returns its number. */
uint64_t worker_send_payload(struct worker *w, uint64_t tag, void *data, uint64_t size, bool staged);

#endif
