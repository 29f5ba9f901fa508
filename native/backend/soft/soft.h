/* The software GPU's objects behind backend.h.
 *
 * Locks: backend.lock guards queues, completions, events and contexts' errors; memory.lock guards who owns which address. A module's lock guards
 * its compiled kernels. They are never nested, except that nothing but plain bookkeeping happens under any of them: no copy, kernel, callback or
 * compilation. */
#ifndef SOFT_SOFT_H
#define SOFT_SOFT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../wire/window.h"
#include "../../worker/backend.h"
#include "compiler.h"
#include "cuda_values.h"
#include "engine/exec.h"
#include "ledger.h"
#include "limits.h"
#include "ranges.h"

#define SOFT_CHUNK GV_WINDOW_ALIGN
#define SOFT_PAGE 4096ull
#define SOFT_HEAP (8ull << 20) /* device malloc, bytes a context */
#define SOFT_HARDWARE_QUEUES 8 /* --strict: that many streams work at a time */

struct soft_device {
    uint32_t ordinal; /* in the pool */
    uint64_t total;   /* bytes of the device, of all sessions together */
    uint64_t limit;   /* bytes this session may use */
    uint64_t used;    /* bytes this session uses; under memory.lock */
    struct gv_window_part part;
};

/* A piece of memory that the worker placed by itself. */
struct soft_placed {
    struct soft_placed *next; /* by address within a device's part */
    struct soft_device *device;
    uint64_t address, size; /* bytes, whole pages */
    bool own_mapping;       /* outside the window */
    bool user;              /* from memory_alloc */
};

/* Memory of the window that somebody reaches into from outside of a stream. */
struct soft_hold {
    struct soft_hold *next;
    uint64_t address, size;
};

struct soft_memory {
    pthread_mutex_t lock;
    uint64_t base, size;       /* the window; size 0: none */
    struct soft_ranges backed; /* all addresses that device work may touch */
    struct soft_placed *placed;
    struct soft_hold *holds;
    struct gv_ledger *ledger;
    uint32_t slot;

    /* Virtual memory management (virtual.c). */
    struct soft_mapping *mappings; /* by address */
    size_t n_mappings, mappings_size;
    struct gv_physical *physicals;         /* all */
    struct soft_reservation *reservations; /* addresses set aside where there is no window */
    bool has_file;                         /* for what is mapped more than once */
    int file;
    struct soft_ranges file_used;
};

struct gv_backend {
    struct soft_engine *engine;
    const struct soft_compiler *compiler;
    void (*console)(void *arg, const char *text, size_t size);
    void *console_arg;
    uint32_t n_devices, capability;
    bool strict, drop_launches;
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
};

struct soft_textures {
    struct soft_texture *live;
    struct soft_texture *old, *newest; /* destroyed ones, oldest first */
    uint32_t n_old;
};

struct gv_context {
    struct soft_textures textures;      /* the executor's only */
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

void soft_context_hold(struct gv_context *c);
void soft_context_drop(struct gv_context *c);
/* The first error of a context stays. */
void soft_context_fail(struct gv_context *c, int error, const char *text);

/* ---- device.c ---- */
void soft_device_info(const struct gv_backend *b, uint32_t device, struct gv_device_info *out);

/* ---- memory.c ---- */
int soft_memory_open(struct gv_backend *b, const struct gv_backend_config *config, char *err);
void soft_memory_close(struct gv_backend *b);
int soft_reserve_window(struct gv_backend *b, uint64_t base, uint64_t size);
int soft_memory_info(struct gv_context *c, uint64_t *free_bytes, uint64_t *total_bytes);
int soft_memory_back(struct gv_context *c, uint64_t address, uint64_t size);
int soft_memory_unback(struct gv_context *c, uint64_t address, uint64_t size);
int soft_memory_alloc(struct gv_context *c, uint64_t size, uint64_t *address);
int soft_memory_free(struct gv_context *c, uint64_t address);
/* Books `size` bytes on a device, or nothing (CUDA_ERROR_OUT_OF_MEMORY), and takes them off again; memory.lock held. */
int soft_memory_charge(struct gv_backend *b, struct soft_device *d, uint64_t size);
void soft_memory_discharge(struct gv_backend *b, struct soft_device *d, uint64_t size);
/* Zeroed memory placed by the worker; counts against the limits. */
int soft_memory_place(struct gv_backend *b, struct soft_device *d, uint64_t size, bool user, struct soft_placed **out);
void soft_memory_unplace(struct gv_backend *b, struct soft_placed *p);
void *soft_host_view(struct gv_backend *b, uint64_t address, uint64_t size);
void soft_host_view_end(struct gv_backend *b, uint64_t address, uint64_t size);
/* Whether somebody outside of a stream reaches into [address, address + size); memory.lock held. */
bool soft_memory_held(const struct soft_memory *m, uint64_t address, uint64_t size);
/* Whether device work may touch [address, address + size). */
bool soft_memory_valid(struct gv_backend *b, uint64_t address, uint64_t size);

/* ---- stream.c ---- */
struct gv_stream *soft_stream_new(struct gv_context *c, uint32_t flags);
int soft_stream_create(struct gv_context *c, uint32_t flags, int32_t priority, struct gv_stream **out);
void soft_stream_destroy(struct gv_stream *s);
struct gv_stream *soft_stream_legacy(struct gv_context *c);
/* The backend closes: threads that wait for work go. backend.lock held. */
void soft_stream_wake_all(struct gv_backend *b);
/* The streams that belong to the context itself end after what is queued on them. */
void soft_stream_end_context(struct gv_context *c);
int soft_mark(struct gv_stream *s, void (*fn)(void *arg, int status), void *arg);
int soft_mark_follows(struct gv_stream *s);
int soft_gate(struct gv_stream *s, void (*fn)(void *arg), void *arg);

/* ---- texture.c ---- */
int soft_texture_create(struct gv_context *c, const struct gv_texture *texture, uint64_t *object);
int soft_texture_destroy(struct gv_context *c, uint64_t object);
/* When nothing of the context runs any more. */
void soft_textures_free(struct gv_context *c);
int soft_tensor_map(struct gv_context *c, const struct gv_tensor_map *wanted, void *map);

/* ---- event.c ---- */
int soft_event_create(struct gv_context *c, uint32_t flags, struct gv_event **out);
void soft_event_destroy(struct gv_event *e);
int soft_event_record(struct gv_event *e, struct gv_stream *s);
int soft_event_elapsed(struct gv_event *start, struct gv_event *end, float *ms);
int soft_stream_wait_event(struct gv_stream *s, struct gv_event *e);

/* ---- copy.c ---- */
int soft_copy_to_device(struct gv_stream *s, uint64_t dst, const void *src, const struct gv_shape *shape);
int soft_copy_to_host(struct gv_stream *s, void *dst, uint64_t src, const struct gv_shape *shape);
int soft_copy_device(struct gv_stream *s, uint64_t dst, struct gv_context *dst_ctx, uint64_t src, struct gv_context *src_ctx,
                     const struct gv_shape *shape);
int soft_fill(struct gv_stream *s, uint64_t dst, uint64_t pitch, uint32_t elem, uint32_t value, uint64_t width, uint64_t height);

/* ---- module.c, launch.c ---- */
int soft_link(struct gv_context *c, const struct gv_link_job *job, struct gv_link_result *out);
int soft_module_load(struct gv_context *c, const void *image, size_t size, struct gv_module **out, void **meta, size_t *meta_size, char *err);
void soft_module_unload(struct gv_module *m);
int soft_module_global(struct gv_module *m, const char *name, uint64_t *address, uint64_t *size);
int soft_kernel_set_attribute(struct gv_module *m, uint32_t kernel, int32_t attribute, int32_t value);
int soft_launch_kernel(struct gv_stream *s, const struct gv_launch *launch);

#endif
