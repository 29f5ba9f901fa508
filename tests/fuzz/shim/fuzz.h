/* What the files of the shim's fuzzer share. main.c forks two processes for each session: the client (client.c), a program with the real shim inside, and
 * the server (server.c), which keeps to the protocol but for the lies (lies.h) that the session's seed chooses. */
#ifndef SHIM_FUZZ_H
#define SHIM_FUZZ_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/un.h>

/* ---- a sequence of numbers from a seed; one for each thread ---- */
struct dice {
    uint64_t state;
};
static inline struct dice dice_of(uint64_t seed, uint64_t whose) {
    struct dice d = {(seed + 1) * 0x9e3779b97f4a7c15u ^ (whose + 1) * 0xbf58476d1ce4e5b9u};
    if (!d.state) d.state = 1;
    return d;
}
/* Below `below`; 0 when that is 0. */
static inline uint64_t roll(struct dice *d, uint64_t below) {
    d->state ^= d->state << 13;
    d->state ^= d->state >> 7;
    d->state ^= d->state << 17;
    return below ? (d->state * 0x2545f4914f6cdd1du >> 11) % below : 0;
}

/* ---- what the processes of all sessions share ---- */
#define FUZZ_THREADS 3
#define FUZZ_LIES 48
struct shared {
    /* Of the session that runs. */
    _Atomic(const char *) at[FUZZ_THREADS + 1]; /* the driver's call that each thread of the client is in; last: its first thread */
    _Atomic uint32_t told;                      /* lies */
    _Atomic uint32_t told_of[FUZZ_LIES];
    /* Of all. */
    _Atomic uint64_t calls, failed_calls, copies, stolen_looks, host_functions, lost, finished, never_attached;
    _Atomic uint64_t lies[FUZZ_LIES];
    _Atomic uint64_t sessions_with[FUZZ_LIES], lost_with[FUZZ_LIES]; /* sessions in which that lie was told; of which ended by it or by another */
};
extern struct shared *shared;

struct session_plan {
    uint64_t seed;
    const char *link; /* "shm" or "tcp", "tcp(channels=3)" */
    bool honest;
    const char *only;          /* the lies to tell, by their names with commas between; NULL: the seed chooses */
    int port, listener, local; /* the server's sockets */
    struct sockaddr_un local_at;
};

/* The bytes that a copy to the host from `address` brings. */
static inline uint8_t device_byte(uint64_t address, uint64_t i) { return (uint8_t)((address + i) * 167 + ((address + i) >> 8) * 13 + 5); }

/* The token of both ends: its name, its secret, a key that nobody uses. */
extern const uint8_t fuzz_token[80];

/* Exit statuses of a client. */
#define FUZZ_VIOLATION 77 /* it found its memory changed, or a call returned what it must not */
#define FUZZ_SANITIZER 99

/* The processes' work; they do not return. */
_Noreturn void client_run(const struct session_plan *plan);
_Noreturn void server_run(const struct session_plan *plan);

#endif
