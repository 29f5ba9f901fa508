/* The engine that runs compiled kernels: a pool of threads takes the blocks of a grid in index order, one fiber a warp where warps wait for each
 * other. It knows nothing of contexts, streams and memory limits; whoever calls it is a stream's thread or a test. */
#ifndef SOFT_EXEC_H
#define SOFT_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../../wire/turns.h"
#include "../compiler.h"

struct soft_engine;
struct soft_heap; /* what soft_malloc hands out */
struct soft_children;
struct soft_schedule;

/* One grid. */
struct soft_launch {
    const struct soft_code *code;
    const char *kernel;         /* name for messages */
    uint32_t grid[3], block[3]; /* blocks, threads */
    uint32_t cluster[3];        /* blocks of a cluster, of which the grid is made; 0: none was named */
    uint32_t dynamic_shared;    /* bytes */
    uint32_t cooperative;       /* all blocks resident at once */
    const void *params;         /* packed, any alignment; read during the call */
    uint32_t params_size;
    uint32_t device;                                           /* whose turn it needs, less than SOFT_TURN_DEVICES */
    struct soft_heap *heap;                                    /* NULL: soft_malloc returns NULL */
    void (*console)(void *arg, const char *text, size_t size); /* device printf; NULL: standard error */
    void *console_arg;
    struct soft_children *children; /* what it may launch (children.h), or NULL */
};

/* helpers: threads that help callers with their grids; < 0: one fewer than the process has cores, as the caller of soft_engine_run works too. NULL:
 * out of memory. */
struct soft_engine *soft_engine_create(int helpers);
/* False when GPUVIRT_SOFT_LANES or GPUVIRT_SOFT_SCHEDULE is set to something that it does not know; err says what it knows. */
bool soft_engine_settings_known(char *err, size_t size);
/* Its seeded schedule, which is off if GPUVIRT_SOFT_SCHEDULE is unset (schedule.h). */
struct soft_schedule *soft_engine_schedule(struct soft_engine *e);
/* Every grid under way ends with CUDA_ERROR_LAUNCH_FAILED, every later one fails at once. Waits up to a second for the running ones; true when none
 * is left. */
int soft_engine_stop(struct soft_engine *e);
/* Only after soft_engine_stop said that nothing is left. */
void soft_engine_destroy(struct soft_engine *e);

/* Runs a grid to its end, also on the calling thread. 0, or the CUresult that a GPU would report, and then one line in err. Any thread, several at
 * once. */
int soft_engine_run(struct soft_engine *e, const struct soft_launch *launch, char *err, size_t err_size);

#define SOFT_TURN_DEVICES 16
/* Says what becomes of a turn (gv_turn_said); number: of the word that STOPPED answers. On a thread of the engine's, no lock held. */
typedef void soft_turn_said(void *arg, uint32_t device, uint32_t what, uint32_t number);
/* Whether grids may run on a device (gv_may), as long as nothing else is said; GV_MAY_ALWAYS at first. 0, or a CUresult: then nothing has changed. Any
 * thread. */
int soft_engine_turn(struct soft_engine *e, uint32_t device, uint32_t may, uint32_t number, soft_turn_said *said, void *arg);

/* Where a heap has its memory from: `size` bytes, whole pages, at *address (NULL: there are none, and malloc returns NULL), which it gives back by
 * what it was returned. Any thread; takes at once or not at all, for kernels wait. */
struct soft_heap_source {
    void *(*take)(void *arg, uint64_t size, uint64_t *address);
    void (*give)(void *arg, void *taken);
    void *arg;
};
/* source: NULL: the process. */
struct soft_heap *soft_heap_create(uint64_t limit, const struct soft_heap_source *source);
/* From now on; what has been handed out stays. */
void soft_heap_limit(struct soft_heap *h, uint64_t limit);
uint64_t soft_heap_get_limit(struct soft_heap *h);
/* In an image: its limit, its number, how many arenas it has, and the address and size of each; their pages are the image's other memory. */
void soft_heap_save(struct soft_heap *h, void (*put)(void *out, uint64_t value), void *out);
/* A heap that has handed out nothing is one that was saved: its number; then each of its arenas, taken where it was. False: out of memory. */
void soft_heap_number(struct soft_heap *h, uint64_t number);
bool soft_heap_adopt(struct soft_heap *h, void *taken, uint64_t address, uint64_t size);
void soft_heap_destroy(struct soft_heap *h);

/* Calls fn(arg) so that a memory fault in it ends it instead of the process. False when that happened; *fault then holds the address. fn must own
 * nothing. */
int soft_guarded(void (*fn)(void *arg), void *arg, uint64_t *fault);

/* Blocks the signals that belong to the program's main thread in a thread of ours. First thing in each. */
void soft_thread_signals(void);

/* For the compiler's tests: runs a grid on an engine of its own kind, made at first use and kept. heap: 8 MiB, console: standard output. */
int soft_exec_launch(const struct soft_code *code, const uint32_t grid[3], const uint32_t block[3], const uint32_t cluster[3],
                     uint32_t dynamic_shared, uint32_t cooperative, const void *params, uint32_t params_size, char *err, uint32_t err_size);

#endif
