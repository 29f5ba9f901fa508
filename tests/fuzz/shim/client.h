/* The client's process: client.c starts it and ends it, calls.c calls the driver, blocks.c watches the memory that copies go to. */
#ifndef SHIM_FUZZ_CLIENT_H
#define SHIM_FUZZ_CLIENT_H

#include <cuda.h>

#include "fuzz.h"

/* ---- blocks.c: memory that copies to the host go to, each with a thread that owns it ---- */

#define BLOCKS 8
#define BLOCK_STREAMS 5 /* of a thread: the default one and four of its own */
#define BLOCK_EVENTS 4

struct block {
    uint8_t *memory; /* `size` bytes, all of them `filled` but for the destination of a copy that is under way */
    size_t size;
    uint8_t filled;
    bool pinned;
    _Atomic uint64_t copy; /* number of the copy that is under way, 0: none, and nobody may write here */
    /* Its destination: depth x height rows of `width` bytes. */
    size_t at, width, height, depth, pitch, slice;
    uint64_t source, source_pitch, source_slice;
    /* What a host function behind the copy found: it must stay so. */
    _Atomic uint64_t seen, sum;
};

struct blocks {
    struct block of[BLOCKS];
    uint64_t copies; /* so far */
    /* Which copy into each block a stream's or an event's completion covers. */
    uint64_t stream_covers[BLOCK_STREAMS][BLOCKS], event_covers[BLOCK_EVENTS][BLOCKS];
    bool honest;
    struct dice *dice;
};

void blocks_begin(struct blocks *b, struct dice *d, bool honest);
/* A block without a copy under way, NULL: there is none. */
struct block *block_take(struct blocks *b, bool pinned);
/* A copy into the block begins, on a stream (-1: the call waits for it). */
void block_expect(struct blocks *b, struct block *k, int stream);
/* The copy is over. `good`: with success, so its bytes are there. */
void block_over(struct blocks *b, struct block *k, bool good);
/* A wait for a stream or an event has returned. */
void blocks_over(struct blocks *b, const uint64_t covers[BLOCKS], bool good);
void blocks_all_over(struct blocks *b);
/* Looks at one block, or at all: what nobody may write has not been written. Ends the process with FUZZ_VIOLATION. */
void block_look(const struct block *k);
void blocks_look(struct blocks *b);
/* In a host function: what the destination holds now. */
void block_seen(struct block *k, uint64_t copy);
_Noreturn void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- calls.c ---- */

struct caller {
    unsigned number; /* of the thread */
    struct dice dice;
    struct blocks blocks;
    bool honest, lost;
    uint64_t calls; /* to make */
};
/* Makes the calls. */
void calls_make(struct caller *c);

/* Remembers which call this thread is in, for the report of one that never returns. */
extern _Thread_local unsigned call_thread;
#define CALL(f, ...) (atomic_store(&shared->at[call_thread], #f), call_returned(f(__VA_ARGS__)))
CUresult call_returned(CUresult rc);

#endif
