/* The program behind `gpuvirt bench`: what driver calls cost, through whatever libcuda.so.1 the process finds, beside a bare transport between this
 * process and another that it forks.
 *
 * It reads commands, one a line, from its input and answers each with one line of JSON; the end of its input ends it. main.c lists the commands.
 * Times are microseconds and rates GB/s (1e9 bytes) unless a name says otherwise. */
#ifndef GPUVIRT_BENCH_H
#define GPUVIRT_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- time, statistics, output (answer.c) */

static inline double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* The p-th part (0...1) of n values; sorts them. */
double quantile(double *values, int n, double p);
static inline double median(double *values, int n) { return quantile(values, n, 0.5); }

/* malloc; ends the program when there is no memory. */
void *room(size_t size);

/* One "name": value of the answer's object; text: the value in quotes. */
void put(const char *name, double value);
void put_text(const char *name, const char *text);
/* Ends the answer's object and its line. */
void end_answer(void);

/* Ends the program with one line on stderr, in which `what` is named. */
_Noreturn void fail(const char *what, const char *why);

/* ---- the driver (driver.c) */

typedef struct stream_handle *stream_t;
typedef struct event_handle *event_t;
typedef struct function_handle *function_t;

/* The driver's calls that are measured, each with the signature of its newest version. All return 0 or CUDA's error. */
extern struct driver {
    int (*launch)(function_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, stream_t, void **, void **);
    int (*record)(event_t, stream_t);
    int (*sync_stream)(stream_t);
    int (*sync_context)(void);
    int (*elapsed)(float *, event_t, event_t);
    int (*copy_in)(uint64_t, const void *, size_t);
    int (*copy_out)(void *, uint64_t, size_t);
    int (*fill_words)(uint64_t, unsigned, size_t);
    int (*allocate)(uint64_t *, size_t);
    int (*release)(uint64_t);
    int (*allocate_host)(void **, size_t);
    int (*release_host)(void *);
    int (*stream_create)(stream_t *, unsigned);
    int (*stream_destroy)(stream_t);
    int (*event_create)(event_t *, unsigned);
    int (*set_context)(void *);
    int (*get_function)(function_t *, void *, const char *);
} cu;

/* What every measurement uses. */
extern void *context, *module;
extern stream_t stream;
extern event_t first, second;

/* Loads the driver, attaches, makes what is above. Puts "attach_ms" (from the first call to the device's properties), "device". */
void driver_start(void);
/* Ends the program when `result` is an error. */
void must(int result, const char *call);
function_t kernel(const char *name);
/* How often a caller has waited so far, as the driver counts it; -1 when it does not (a machine's own driver). */
double waits_so_far(void);
extern const char kernels[]; /* kernels.c: the PTX */

/* ---- the bare transport beside it (bare.c) */

enum bare { BARE_NONE, BARE_SHM, BARE_TCP };

/* Forks the other process; before anything of CUDA's is used. */
void bare_start(enum bare kind);
bool bare_present(void);
/* n round trips of one word (shared memory) or 64 bytes (sockets), both sides spinning. Each one's microseconds go to times[0...n-1]. */
void bare_round_trips(double *times, int n);
/* The same `size` bytes from this process's buffer to one of the other's (in == false), or the other way. Returns microseconds. */
double bare_pump(void *buffer, size_t size, bool in);

/* ---- the measurements */

void calls_one_way(int rounds, int sustained); /* calls.c */
void calls_isolated(int rounds);
void calls_waiting(int rounds);
void copies(size_t size, int pairs);                                /* copies.c */
void rate(int threads, int launches, int worker, bool own_streams); /* rate.c; worker: its process id, 0 when it is not of this host */
void training(int steps, int read_every);                           /* training.c */

#endif
