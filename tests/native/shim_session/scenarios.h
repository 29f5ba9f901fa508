/* One scenario: what the client does against a fake worker, in a process of its own, and what must be true afterwards. */
#ifndef SCENARIOS_H
#define SCENARIOS_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fake_worker.h"
#include "gv_client.h"
#include "session/session.h"

#define CHECK(...) CHECK_AT(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK_AT(file, line, ...)                                        \
    do {                                                                 \
        if (__VA_ARGS__) break;                                          \
        fprintf(stderr, "FAILED %s:%d: %s\n", file, line, #__VA_ARGS__); \
        _exit(71);                                                       \
    } while (0)

struct scenario {
    const char *name;
    enum fake_attach attach;
    int (*client)(struct fake *f); /* its exit code */
    void (*after)(struct fake *f); /* or NULL */
    int code;
};

extern const struct scenario attach_scenarios[], work_scenarios[], early_scenarios[], order_scenarios[], loss_scenarios[], process_scenarios[];

/* The context that context_failed was told of last, and its status. */
extern _Atomic uint32_t failed_ctx;
extern _Atomic int failed_status;

double seconds(void);
/* Attaches, and registers stream `id` of context 1. The session knows it until it is removed: it outlives the function that makes it. */
void set_up(struct session_stream *s, uint64_t id);
uint64_t post_marked_fence(struct session_stream *s);
uint64_t post_order(enum fake_order order, uint64_t argument, const void *params, uint32_t size);
/* A copy to the host of `width` x `height`, rows `pitch` apart; returns its seq. */
uint64_t post_out(struct session_stream *s, void *dst, uint64_t src, uint64_t width, uint64_t height, uint64_t pitch);
/* The host function of that tag on a stream; returns its seq. */
uint64_t post_function(struct session_stream *s, uint64_t tag);
/* A payload to the device; what arrives is checked by the worker. */
uint64_t send_in(struct session_stream *s, uint64_t dst, uint64_t size);
/* The same, sent from where it lies: returns the memory, which must stay until the session has let go of it. NULL: lost. */
uint8_t *lend_in(struct session_stream *s, uint64_t dst, uint64_t size);
/* Checks that the session is over and says so; the client's exit code. */
int lost(void);
void no_bye(struct fake *f);
/* Checks what a copy from `src` has put into rows `pitch` apart that were full of 0xaa. */
void check_rows(const uint8_t *dst, uint64_t src, uint64_t width, uint64_t height, uint64_t pitch);
/* A child's exit code, or 128 and its signal. */
int exit_of(pid_t pid);
/* Waits until the predicate holds, or time enough has passed for every hang. */
#define SOON(predicate)                                          \
    ({                                                           \
        double until_ = seconds() + 200;                         \
        while (!(predicate) && seconds() < until_) usleep(1000); \
        (predicate);                                             \
    })

#endif
