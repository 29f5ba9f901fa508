/* A worker that does what it is told and computes nothing: the other end of the session's tests, in a process of its own, over the real
 * transports. */
#ifndef FAKE_WORKER_H
#define FAKE_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* How it answers ATTACH. */
enum fake_attach {
    FAKE_ATTACH,
    FAKE_REFUSE,
    FAKE_FOREIGN_WINDOW,
    FAKE_NO_DEVICES,
    FAKE_IMPOSSIBLE_DEVICE,
    FAKE_GARBAGE,
    FAKE_DIE,
    FAKE_REPLY_ADDRESSES
};

/* `kernel` of a LAUNCH is an order. */
enum fake_order {
    FAKE_NOTHING,
    FAKE_EXIT,         /* dies */
    FAKE_STOP,         /* stops, as a debugger would stop it: nothing is read or sent any more */
    FAKE_MALFORMED,    /* sends a COMPLETED event with half a body */
    FAKE_UNKNOWN,      /* sends an event of an unknown kind */
    FAKE_STRAY_REPLY,  /* answers a call that nobody made */
    FAKE_STRAY_DATA,   /* sends a payload that nobody asked for */
    FAKE_WRONG_INLINE, /* sends inline data of the wrong size for tag `module` */
    FAKE_FAIL,         /* says that this launch failed and took its context along */
    FAKE_SOFT_FAIL,    /* says that this launch failed */
    FAKE_PRINT,        /* prints what is in params */
    FAKE_NOTICE,       /* has what is in params, which ends with a NUL, said to the user */
    FAKE_FLOOD,        /* sends `module` completions of the stream 77 that nobody has */
    FAKE_FLOOD_HELD,   /* sends `module` completions of the streams 6 and 7 in turn, each for a payload that never comes */
    FAKE_HOLD_TWO,     /* completes command `module` of the stream 6 and then the one behind it, of the stream 7, both after the first payload */
};

/* What comes of a copy to the host on stream 5. All but the first two complete too early, and the rest of the bytes follows once `release` is set. */
enum fake_copies {
    FAKE_SOUND,
    FAKE_HELD,   /* nothing comes before `release` */
    FAKE_LATE,   /* completes, then sends the bytes */
    FAKE_HALF,   /* completes after the first of three payloads, and names it */
    FAKE_DURING, /* completes in the middle of a payload */
};

/* What the test can see of it; shared memory. */
struct fake {
    pid_t pid;
    int port;
    int attach;           /* enum fake_attach */
    _Atomic int delay_ms; /* before each payload to the client goes out */
    _Atomic int copies;   /* enum fake_copies */
    _Atomic int failure;  /* with which those that complete too early do so, 0: none */
    _Atomic int release;
    _Atomic int sessions, byes, gone, launches, payloads_in, bad_payloads, host_done;
    _Atomic uint64_t sent;
};

extern const uint8_t fake_token[80]; /* id, secret, key */

/* Starts it. Call before the test has threads. */
struct fake *fake_start(enum fake_attach attach);
void fake_kill(struct fake *f);

/* The byte at `i` of what COPY_OUT from address `src` brings, and of what COPY_IN to it must bring. */
static inline uint8_t fake_byte(uint64_t src, uint64_t i) { return (uint8_t)((src + i) * 2654435761u >> 13); }

#endif
