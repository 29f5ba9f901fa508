/* What the cases of test_backend have in common: kernels, a backend that is open, waiting. */
#ifndef BACKEND_FIXTURE_H
#define BACKEND_FIXTURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "backend.h"
#include "driver_constants.h"
#include "fake_compiler.h"
#include "window.h"

#define MIB (1ull << 20)
#define CHUNK (2 * MIB)
#ifdef __SANITIZE_THREAD__ /* which has little room for programs */
#define WINDOW 0x002000000000ull
#else
#define WINDOW 0x310000000000ull
#endif
#define WINDOW_SIZE (64ull << 30)

extern const struct gv_backend_ops *const ops;
extern char err[GV_ERR_SIZE];

/* ---- kernels */

struct scale_params {
    uint32_t *data;
    uint32_t factor, n;
};
enum { SCALE, WILD, ENDLESS, SHARES, MEETS };
extern _Atomic int endless_runs, met;
extern struct fake_compiler compiler;
extern struct soft_compiler table; /* made anew by config() */

/* ---- set up */

extern struct gv_backend *backend;
extern struct gv_context *ctx;
extern uint64_t mem; /* one chunk, backed */

struct gv_backend_config config(uint32_t n);
struct gv_context *context(uint32_t device);
void open_with(const struct gv_backend_config *c);
void open_plain(void);
void close_all(void);
struct gv_stream *stream(uint32_t flags);
struct gv_module *module(void);

/* ---- waiting */

extern pthread_mutex_t lock;
extern pthread_cond_t changed;

struct waiter {
    int done, status;
};
/* For marks: arg is a struct waiter. */
void told(void *arg, int status);
bool wait_until(const int *flag, int milliseconds);
/* The stream's status once it is idle. */
int sync_stream(struct gv_stream *s);

/* A gate that stands until it is opened. */
struct door {
    int reached, open;
};
void stand(void *door);
void open_door(struct door *d);

/* ---- short forms */

struct gv_shape line(uint64_t width);
int to_device(struct gv_stream *s, uint64_t dst, const void *src, uint64_t size);
int to_host(struct gv_stream *s, void *dst, uint64_t src, uint64_t size);
int launch(struct gv_stream *s, struct gv_module *m, uint32_t kernel, uint32_t blocks, uint32_t threads, const void *params, uint32_t size);

/* ---- the cases of other files */

void test_memory_limits(void);
void test_copies(void);
void test_illegal_copies(void);
void test_memory_usage(void);
void test_virtual_memory(void);
void test_mapping_while_busy(void);
void test_legacy_stream(void);
void test_events(void);
void test_concurrency(void);
void test_many_threads(void);
void test_memory_operations(void);
void test_strict(void);
void test_close_while_busy(void);
void test_destroyed_context(void);

#endif
