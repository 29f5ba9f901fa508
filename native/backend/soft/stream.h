/* A stream's queue, and the operations that copy.c, event.c and launch.c put on it. */
#ifndef SOFT_STREAM_H
#define SOFT_STREAM_H

#include "engine/schedule.h"
#include "soft.h"

struct op;

/* What an operation waits for before it runs: that a stream has completed its operation number `seq`. */
struct dependency {
    struct gv_stream *stream;
    uint64_t seq;
};

enum op_kind {
    OP_WORK,   /* uses the device; skipped after an asynchronous error */
    OP_MARK,   /* runs always, does not count as work of the legacy stream's rules */
    OP_ALWAYS, /* runs always */
    OP_EVENT_WAIT,
};

/* The head of every queued operation; the rest follows it in memory. */
struct op {
    struct op *next;
    enum op_kind kind;
    uint64_t seq;
    struct dependency *dependencies;
    uint32_t n_dependencies;
    /* Carries it out, on the stream's thread, without a lock. A CUresult other than 0 becomes the context's error, with err. Not called for skipped
     * work. */
    int (*run)(struct gv_stream *s, struct op *op, char *err);
    /* Releases what the operation holds, but not the op; also after a skip. May be NULL. */
    void (*drop)(struct gv_stream *s, struct op *op);
    struct stamp *wait_for; /* OP_EVENT_WAIT */
    bool quick;             /* completes at once when it may run */
};

struct gv_stream {
    struct gv_context *context;
    uint32_t flags;
    struct soft_draws draws; /* of its thread: how late it is in a seeded schedule */
    bool legacy, internal;   /* internal: takes no part in the legacy stream's rules */
    _Atomic uint32_t refs;   /* the handle, the thread, dependencies on it */
    /* Under backend.lock from here on. */
    struct gv_stream *next, *previous; /* context.streams */
    struct op *first, *last;
    _Atomic uint64_t queued; /* numbers of operations; this one is also read without the lock */
    uint64_t completed;
    uint64_t work;             /* number of the last one that was not a mark */
    uint64_t seen;             /* what the legacy stream already waits for of this one (unused in the legacy stream itself) */
    uint64_t legacy_seen;      /* what this one already waits for of the legacy stream */
    bool running, sleeping;    /* the thread exists, waits for work */
    bool executing;            /* an operation that depends on nothing any more */
    _Atomic bool awaits_value; /* and that one polls a word of memory; without the lock */
    bool destroyed;
    pthread_cond_t wake;
};

/* A zeroed operation of `size` bytes, at least sizeof(struct op). */
void *soft_op_new(size_t size, enum op_kind kind, int (*run)(struct gv_stream *, struct op *, char *), void (*drop)(struct gv_stream *, struct op *));
/* Queues it; on an error the op is dropped and freed. */
int soft_stream_push(struct gv_stream *s, struct op *op);
/* Calls run(op) when everything now queued on any stream of the context is done. */
int soft_stream_after_all(struct gv_context *c, struct op *op);

/* One record of an event, shared by the event, the operation that makes it and those that wait for it; under backend.lock. */
struct stamp {
    uint32_t refs;
    bool done;
    uint64_t time;             /* ns */
    struct event_words *words; /* of an event that sessions share, to be told of the record; NULL: of none */
    struct event_file *file;
    uint64_t number;
};
void soft_stamp_drop_locked(struct stamp *t);

#endif
