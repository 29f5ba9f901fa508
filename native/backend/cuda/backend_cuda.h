/* What the files of the cuda backend share. */
#ifndef BACKEND_CUDA_H
#define BACKEND_CUDA_H

#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../../worker/backend.h"

struct mark {
    struct mark *next;
    CUevent event; /* NULL: the driver took none, and `status` says why */
    int status;
    struct gate *gate; /* the mark behind a gate, which has no fn */
    void (*fn)(void *arg, int status);
    void *arg;
};

struct gv_backend {
    struct driver driver;
    uint32_t n_devices;
    CUdevice devices[GV_MAX_DEVICES];
    struct gv_context *first; /* pinned memory is made in it, for all */
    uint64_t memory;          /* bytes a device this session may use, 0: no limit of its own */

    /* What kernels print (console.c). */
    void (*console)(void *arg, const char *text, size_t size);
    void *console_arg;
    int console_file, console_saved; /* descriptors, -1: none */
    int64_t console_read;            /* bytes handed on */

    /* Marks that wait for the device: a list of streams that have some, watched by one thread (marks.c). */
    pthread_mutex_t lock;
    pthread_cond_t work, progress; /* a stream got marks; a mark was called, a gate has returned, or the end has come */
    struct gv_stream *watched;
    uint32_t gates_running;
    pthread_t watcher;
    bool has_watcher, stopping;
};

struct gv_context {
    struct gv_backend *b;
    CUcontext context;
    CUdevice device;
    bool primary;
    struct gv_stream *legacy;
    _Atomic uint64_t *used; /* bytes allocated on this device by the session */
    _Atomic int error;      /* first asynchronous error */
    char error_text[GV_ERR_SIZE];
};

struct gv_stream {
    struct gv_context *context;
    CUstream stream;
    bool dying;
    /* under the backend's lock: */
    struct mark *first, *last;
    uint64_t marked, told; /* marks so far, and how many of them have been called */
    struct gv_stream *next_watched;
    bool is_watched;
};

struct gv_event {
    struct gv_context *context;
    CUevent event;
};

struct gv_module {
    struct gv_context *context;
    CUmodule module;
    uint32_t n_functions;
    CUfunction *functions; /* in metadata order */
};

/* Makes the context the calling thread's current one. */
int cuda_enter(struct gv_context *c);
/* Remembers an asynchronous error's text. */
void cuda_note_error(struct gv_context *c, int status);

int cuda_console_open(struct gv_backend *b);
/* Hands on what has been printed. The watcher, or when there is none. */
void cuda_console_drain(struct gv_backend *b);
void cuda_console_close(struct gv_backend *b);

int cuda_mark(struct gv_stream *s, void (*fn)(void *arg, int status), void *arg);
int cuda_gate(struct gv_stream *s, void (*fn)(void *arg), void *arg);
int cuda_marks_start(struct gv_backend *b);
/* True when nothing of the driver's can come back to us any more. */
bool cuda_marks_stop(struct gv_backend *b);
/* Until all marks and gates of the context have been called. */
void cuda_marks_await(struct gv_context *c);

/* What memory is created in multiples of; 0: the device has no virtual memory management. */
uint64_t cuda_granularity(struct gv_backend *b, CUdevice device);
int cuda_address_reserve(struct gv_backend *b, uint64_t size, uint64_t alignment, uint64_t *address);
int cuda_address_free(struct gv_backend *b, uint64_t address, uint64_t size);
int cuda_physical_create(struct gv_context *c, uint64_t size, struct gv_physical **out);
int cuda_physical_destroy(struct gv_physical *p);
int cuda_memory_map(struct gv_physical *p, uint64_t address, uint64_t size);
int cuda_memory_unmap(struct gv_backend *b, uint64_t address, uint64_t size);
int cuda_memory_access(struct gv_backend *b, uint64_t address, uint64_t size, uint32_t device, uint32_t rights);

int cuda_link(struct gv_context *c, const struct gv_link_job *job, struct gv_link_result *out);
int cuda_module_load(struct gv_context *c, const void *image, size_t size, struct gv_module **out, void **meta, size_t *meta_size, char *err);
void cuda_module_unload(struct gv_module *m);
int cuda_texture_create(struct gv_context *c, const struct gv_texture *texture, uint64_t *object);
int cuda_texture_destroy(struct gv_context *c, uint64_t object);
int cuda_tensor_map(struct gv_context *c, const struct gv_tensor_map *wanted, void *map);
int cuda_module_global(struct gv_module *m, const char *name, uint64_t *address, uint64_t *size);
int cuda_kernel_set_attribute(struct gv_module *m, uint32_t kernel, int32_t attribute, int32_t value);
int cuda_launch(struct gv_stream *s, const struct gv_launch *launch);

int cuda_copy_to_device(struct gv_stream *s, uint64_t dst, const void *src, const struct gv_shape *shape);
int cuda_copy_to_host(struct gv_stream *s, void *dst, uint64_t src, const struct gv_shape *shape);
int cuda_copy_device(struct gv_stream *s, uint64_t dst, struct gv_context *dst_ctx, uint64_t src, struct gv_context *src_ctx,
                     const struct gv_shape *shape);
int cuda_fill(struct gv_stream *s, uint64_t dst, uint64_t pitch, uint32_t elem, uint32_t value, uint64_t width, uint64_t height);

#endif
