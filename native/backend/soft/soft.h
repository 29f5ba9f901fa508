/* The software GPU's objects behind backend.h.
 *
 * Locks: backend.lock guards queues, completions, events and errors of contexts; memory.lock guards the ownership of addresses. A module's lock
 * guards its compiled kernels. They are never nested, and no copy, kernel, callback or compilation runs under any of them. */
#ifndef SOFT_SOFT_H
#define SOFT_SOFT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../wire/session_limits.h"
#include "../../wire/window.h"
#include "../../worker/backend.h"
#include "compiler.h"
#include "driver_constants.h"
#include "engine/exec.h"
#include "limits.h"
#include "../address_ranges.h"
#include "../event_words.h"
#include "../mappings.h"
#include "../memory_room.h"

#define SOFT_CHUNK GV_WINDOW_ALIGN
#define SOFT_PAGE 4096ull
#define SOFT_HEAP (8ull << 20) /* device malloc, bytes a context */
#define SOFT_HARDWARE_QUEUES 8 /* --strict: that many streams work at a time */

struct soft_device {
    struct memory_share share; /* under memory.lock */
    uint64_t freed;            /* bytes of what waits for the device to be freed; the same */
    struct gv_window_part part;
};

/* An allocation that the worker placed. */
struct soft_placed {
    struct soft_placed *next; /* by address within a device's part */
    struct soft_device *device;
    uint64_t address, size; /* bytes, whole pages */
    bool own_mapping;       /* outside the window */
    bool user;              /* from memory_alloc */
    bool freed;             /* once the device is done; under memory.lock */
};

/* A range of the window that a thread other than a stream's accesses. */
struct soft_hold {
    struct soft_hold *next;
    uint64_t address, size;
};

struct soft_memory {
    pthread_mutex_t lock;
    uint64_t base, size;          /* the window; size 0: none */
    struct address_ranges backed; /* all addresses that device work may touch */
    struct soft_placed *placed;
    struct soft_hold *holds;
    struct memory_room room;

    /* Virtual memory management (virtual.c). */
    struct mappings mappings;
    struct gv_physical *physicals;         /* all */
    struct soft_reservation *reservations; /* addresses set aside where there is no window */
    uint32_t n_reservations;
    bool has_file; /* for what is mapped more than once */
    int file;
    uint64_t file_size;
    struct address_ranges file_used;

    /* What sessions share (shared/). */
    struct soft_file *files;
    struct soft_segment *segments;
    struct file_source source;
};

struct gv_backend {
    struct soft_engine *engine;
    const struct soft_compiler *compiler;
    void (*console)(void *arg, const char *text, size_t size);
    void *console_arg;
    void (*turn_said)(void *arg, uint32_t device, uint32_t what, uint32_t number);
    void *turn_arg;
    uint32_t n_devices, capability;
    bool strict;
    struct soft_device devices[GV_MAX_DEVICES];
    struct soft_memory memory;
    _Atomic uint64_t module_ids;

    pthread_mutex_t lock;
    pthread_cond_t done;         /* something was completed */
    uint32_t waiters;            /* on done */
    uint32_t n_threads;          /* of streams */
    uint32_t hardware_busy;      /* --strict */
    uint32_t frees;              /* memory_free calls that wait for the device */
    struct gv_context *contexts; /* all that something still holds */
    bool closing;
    uint64_t day_offset;              /* ns from the monotonic clock to the time of day, as they were when it was opened */
    struct soft_restoring *restoring; /* image.c; NULL: none */
    struct event_files event_files;   /* of events that sessions share; under lock */
};

struct soft_texture_slot;
struct soft_texture_page;

struct soft_textures {
    struct soft_texture_slot *live, *unused;
    struct soft_texture_slot *old, *newest; /* destroyed ones, oldest first */
    uint32_t n_old, n_live;
    struct soft_texture_page *pages;   /* where they lie */
    void (*end)(struct gv_context *c); /* called when no work of the context runs any more; NULL: there are none */
};

struct gv_context {
    struct soft_textures textures;      /* the executor's only */
    struct gv_array *arrays;            /* the same */
    struct gv_context *next, *previous; /* backend.contexts */
    struct gv_backend *backend;
    struct soft_device *device;
    _Atomic uint32_t refs;
    _Atomic int error; /* sticky */
    char error_text[GV_ERR_SIZE];
    struct soft_heap *heap;
    struct gv_stream *streams; /* all that exist or still have work */
    struct gv_stream *legacy;  /* NULL once the context is destroyed */
    struct gv_stream *reaper;  /* runs delayed frees; at first use */
};

GV_BACKEND_DECLARE(soft);

/* ---- context_refs.c ---- */
void soft_context_hold(struct gv_context *c);
void soft_context_drop(struct gv_context *c);
/* The first error of a context stays. */
void soft_context_fail(struct gv_context *c, int error, const char *text);

/* ---- memory.c ---- */
int soft_memory_open(struct gv_backend *b, const struct gv_backend_config *config, char *err);
void soft_memory_close(struct gv_backend *b);
/* Where a context's malloc heap has its memory from (struct soft_heap_source); the argument is the context. */
void *soft_memory_heap_take(void *context, uint64_t size, uint64_t *address);
void soft_memory_heap_give(void *context, void *placed);
/* Frees that wait for the device keep memory that a real driver, whose free waits in its caller, would have released: waits for them, at most 10 s.
 * No lock held. */
void soft_memory_await_frees(struct gv_backend *b);
/* Whether it is worth trying once more to charge so much, as other sessions may have given way; waits for that. [executor, no lock held] */
#define SOFT_ROOM_TRIES 4
bool soft_memory_make_room(struct gv_backend *b, const struct soft_device *d, uint64_t size);
/* Zeroed memory placed by the worker; counts against the limits. Waits for frees, and for room, when there is not enough. */
int soft_memory_place(struct gv_backend *b, struct soft_device *d, uint64_t size, bool user, struct soft_placed **out);
/* The same at an address of the device's own part of the window; CUDA_ERROR_OUT_OF_MEMORY when it is not free. */
int soft_memory_place_at(struct gv_backend *b, struct soft_device *d, uint64_t size, uint64_t address, struct soft_placed **out);
void soft_memory_unplace(struct gv_backend *b, struct soft_placed *p);
/* The same once everything that is queued in the context now is done. */
int soft_memory_unplace_later(struct gv_context *c, struct soft_placed *p);
/* Whether a thread other than a stream's accesses [address, address + size); memory.lock held. */
bool soft_memory_held(const struct soft_memory *m, uint64_t address, uint64_t size);
/* Whether device work may touch [address, address + size). */
bool soft_memory_valid(struct gv_backend *b, uint64_t address, uint64_t size);

/* ---- image.c ---- */
/* What a restore that failed has left. */
void soft_restoring_free(struct gv_backend *b);

/* ---- virtual.c ---- */
/* Gives back what is mapped, created and reserved; nothing runs any more. */
void soft_virtual_close(struct gv_backend *b);

/* ---- stream.c ---- */
struct gv_stream *soft_stream_new(struct gv_context *c, uint32_t flags);
/* The backend closes: threads that wait for work end. backend.lock held. */
void soft_stream_wake_all(struct gv_backend *b);
/* Ends the context's internal streams after their queued work. */
void soft_stream_end_context(struct gv_context *c);

/* ---- texture.c ---- */
/* Where they lie, and which ones live; what they are lies in memory. */
void soft_textures_save(struct gv_context *c, struct gv_image_out *out);
void soft_textures_restore(struct gv_context *c, struct gv_image_in *in);

#endif
