/* Structures shared by the files of the cuda backend. */
#ifndef BACKEND_CUDA_H
#define BACKEND_CUDA_H

#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../../wire/session_limits.h"
#include "../../worker/backend.h"
#include "../address_ranges.h"
#include "../event_words.h"
#include "../mappings.h"
#include "../memory_room.h"

struct mark {
    struct mark *next;
    uint64_t number;   /* of the stream's marks */
    CUevent event;     /* NULL: there is none */
    int status;        /* why the driver did not take it */
    struct gate *gate; /* the mark behind a gate, which has no fn */
    void (*fn)(void *arg, int status);
    void *arg;
};

struct gv_backend {
    struct driver driver;
    uint32_t n_devices;
    CUdevice devices[GV_MAX_DEVICES];
    struct gv_context *first;    /* context in which pinned memory is allocated, for all devices */
    struct gv_context *contexts; /* all */

    /* What the session has of it (account.c, memory.c, virtual.c); the executor's. */
    struct memory_room room;
    struct cuda_device {
        struct gv_context *own;      /* the first context of the device, which the worker made for itself */
        struct memory_share share;   /* bytes */
        uint64_t limits[3];          /* of what is used, what the primary context's limits take */
        uint64_t chunk;              /* bytes in multiples of which memory is created, 0: the device has no virtual memory management */
        struct address_ranges holes; /* what is free of the slabs that small allocations share, */
        struct address_ranges tails; /* and of those that were made for one large allocation */
    } accounts[GV_MAX_DEVICES];
    struct address_ranges owned; /* allocated or mapped by the session */
    struct address_ranges space; /* addresses reserved for slabs, where none lies */
    bool has_window;             /* the client places memory */
    bool rdma;                   /* RDMA devices are to reach memory themselves */
    struct cuda_view *views;     /* that they do (device_views.c); under the lock */
    uint32_t n_allocations, n_reservations;
    uint32_t n_placed; /* allocations that the driver has placed by itself */
    struct gv_physical *physicals;
    struct mappings mappings;
    struct file_source source;      /* of files that sessions share */
    struct event_files event_files; /* under the lock */
    pthread_mutex_t gone_lock;      /* exports.c: guards the next two */
    uint64_t *gone;                 /* sessions that have ended, and whose memory this one may have opened; the executor looks */
    _Atomic uint32_t n_gone;

    /* What kernels print (console.c). */
    void (*console)(void *arg, const char *text, size_t size);
    void *console_arg;
    int console_file, console_saved; /* descriptors, -1: none */
    int64_t console_read;            /* bytes passed to the client */

    /* Streams with marks that have not been called; one thread watches them (marks.c). */
    pthread_mutex_t lock;
    pthread_cond_t work, progress; /* work: a stream got marks; progress: a mark was called, a gate has returned, or the backend closes */
    struct gv_stream *watched;
    uint64_t told; /* marks of all streams */
    pthread_t watcher;
    bool has_watcher, stopping;

    /* Gates that are due, and the threads that call them (gates.c). */
    struct gate *due, *last_due;
    pthread_cond_t gate_due;
    uint32_t gates_running, runners, runners_idle;

    /* Words of page-locked memory which the device writes and waits for (words.c). */
    bool has_words;
    struct words_page *pages;
    struct device_words *free_words;
    pthread_t prober; /* looks for lost contexts, whose devices write no words */
    bool has_prober;
    const struct gv_context *probed; /* at this moment; under the lock */
    struct gv_stream *ended;         /* that the prober destroys, as the watcher must not; by next_watched */
    pthread_mutex_t commands;        /* held while the executor carries out a command, in which it may wait within the driver */
    bool prints;                     /* modules may have kernels that print */
};

struct gv_context {
    struct gv_context *next;
    struct gv_stream *streams; /* the executor's: those that are not destroyed, without the legacy stream */
    struct gv_backend *b;
    CUcontext context;
    CUdevice device;
    bool primary;
    struct gv_stream *legacy;
    struct cuda_device *account;
    uint64_t counted;     /* bytes that the context itself takes */
    uint64_t limits[3];   /* bytes that its limits take beyond their defaults; a primary context's stand in the account */
    uint64_t defaults[3]; /* as the driver has set them: stack, printf buffer, malloc heap */
    uint32_t n_textures;
    struct mark *spent; /* marks whose events may be recorded again; under the backend's lock */
    _Atomic int error;  /* first asynchronous error */
    char error_text[GV_ERR_SIZE];
};

struct gv_stream {
    struct gv_stream *next, *previous; /* context.streams */
    struct gv_context *context;
    CUstream stream;
    CUevent value_there;        /* behind the last wait for a value in memory; NULL: there was none */
    struct device_words *words; /* NULL: the backend uses none */
    bool dying;
    /* under the backend's lock: */
    struct mark *first, *last;
    uint64_t marked, told; /* marks so far, and how many of them have been called */
    uint64_t gates;        /* so far */
    struct gv_stream *next_watched;
    bool is_watched;
    bool is_probed; /* by the prober, at this moment */
};

struct gv_module {
    struct gv_context *context;
    CUmodule module;
    uint64_t counted; /* bytes of device memory */
    uint32_t n_functions;
    CUfunction *functions; /* in metadata order */
    struct cuda_params {
        uint32_t n, bytes;
    } *params; /* the same */
};

GV_BACKEND_DECLARE(cuda);

/* enter.c: makes the context the calling thread's current one. */
int cuda_enter(struct gv_context *c);
/* Of a stream that nobody has a handle to any more. */
void cuda_stream_free(struct gv_stream *s);
/* Remembers an asynchronous error's text. */
void cuda_note_error(struct gv_context *c, int status);

int cuda_console_open(struct gv_backend *b);
/* Passes printed text to the client. Called by the watcher, or by close when there is none. */
void cuda_console_drain(struct gv_backend *b);
void cuda_console_close(struct gv_backend *b);

/* ---- marks.c ---- */
int cuda_marks_start(struct gv_backend *b);
/* True when no callback of the driver can still run. */
bool cuda_marks_stop(struct gv_backend *b);
/* Waits until all marks and gates of the context have been called. */
void cuda_marks_await(struct gv_context *c);

/* ---- gates.c ---- */
/* NULL: out of memory. */
struct gate *cuda_gate_new(struct gv_stream *s, void (*fn)(void *arg), void *arg);
/* The host function that is a gate, where there are no words. */
void cuda_gate_run(void *gate);
/* The gate's own mark is due. Returns whether the gate has returned; has it called where the driver does not. Lock held. */
bool cuda_gate_done(struct gv_backend *b, struct gate *g, int status);
/* Ends the threads that wait for gates, and waits a second for those that call some; false: some go on. Lock held. */
bool cuda_gates_stop(struct gv_backend *b);

/* ---- words.c ---- */
struct device_words {
    _Atomic uint32_t reached; /* the device's: number of the last mark that it has come to */
    _Atomic uint32_t open;    /* ours: number of the last gate that it may pass */
    CUdeviceptr address;      /* of `reached` for the device; that of `open` follows */
    struct device_words *next;
};
/* Whether devices can write page-locked memory that this process reads at the same time, and wait for it. */
bool cuda_words_supported(struct gv_backend *b);
/* Words for a stream, both 0; NULL: none are left. */
struct device_words *cuda_words_take(struct gv_backend *b);
void cuda_words_give(struct gv_backend *b, struct device_words *w);
/* The device writes `mark` when it comes to it, and then, if `gate` is not 0, waits until that gate is open. */
int cuda_words_queue(struct gv_stream *s, uint32_t mark, uint32_t gate);

/* ---- prober.c ---- */
int cuda_prober_start(struct gv_backend *b);

/* ---- account.c ---- */
/* Bytes free on the device, as the driver says; 0: it does not. Only where it matters what the session has. */
uint64_t cuda_free_memory(struct gv_context *c);
/* Counts what the driver has taken since `before` (cuda_free_memory); false: the session has not so much left. */
bool cuda_take_since(struct gv_context *c, uint64_t before, uint64_t *counted);
/* Counts `size` bytes that the driver takes by itself; false: the session has not so much left. */
bool cuda_take(struct gv_context *c, uint64_t size);
void cuda_give(struct gv_context *c, uint64_t size);
/* Whether it is worth trying once more to create so much, as other sessions may have given way; waits for that. */
#define CUDA_ROOM_TRIES 4
bool cuda_make_room(struct gv_context *c, uint64_t size);

/* ---- arrays.c ---- */
/* The driver's array, or its mipmapped array and NULL. */
CUarray cuda_array_of(const struct gv_array *a, CUmipmappedArray *levels);

/* ---- memory.c ---- */
/* Whether all of [address, address + size) is the session's device memory: what the client says is an address may be one of this process. */
bool cuda_memory_owned(struct gv_context *c, uint64_t address, uint64_t size);
/* Frees what was allocated in a context that is destroyed. */
void cuda_memory_forget(struct gv_context *c);

/* ---- copies.c ---- */
/* Whether a side of a copy in device memory is the session's. */
bool cuda_dst_owned(struct gv_stream *s, uint64_t address, const struct gv_shape *box);
bool cuda_src_owned(struct gv_stream *s, uint64_t address, const struct gv_shape *box);

/* ---- textures.c ---- */
int cuda_texture_of(struct gv_context *c, const CUDA_RESOURCE_DESC *resource, const struct gv_texture *texture, uint64_t *object);

/* ---- virtual.c ---- */
/* Memory of another session: the driver's handles, one behind the other. */
struct imported {
    uint64_t session; /* whose it was */
    bool inherited;   /* that one has ended, and this one counts it */
    uint32_t n;
    struct {
        CUmemGenericAllocationHandle handle;
        uint64_t size;
    } pieces[GV_SHARED_PIECES];
};

/* Memory that the driver has made: a slab's, or of a handle of the program's. */
struct gv_physical {
    struct gv_physical *next, *previous; /* backend.physicals */
    struct gv_context *context;          /* the worker's own of the device */
    CUmemGenericAllocationHandle handle;
    uint64_t size;
    uint64_t slab; /* address, 0: a handle of the program's */
    bool shared;   /* a slab of small allocations */
    bool exportable;
    struct imported *imported; /* NULL: it is this session's; else it has no handle */
    uint32_t n_allocations;
    uint64_t at; /* park.c: where all of it can be read and written, 0: nowhere */
    bool gone;   /* park.c: the driver has it no more */
};

/* An attribute of a device, 0 where the driver does not know it. */
int cuda_attribute(struct gv_backend *b, CUdevice_attribute attribute, CUdevice device);
/* As what physical memory of a device is made. */
CUmemAllocationProp cuda_properties(struct gv_backend *b, CUdevice device);
/* What memory is created in multiples of; 0: the device has no virtual memory management. */
uint64_t cuda_granularity(struct gv_backend *b, CUdevice device);
/* physical_create that does not wait for room. */
int cuda_physical_new(struct gv_context *c, uint64_t size, struct gv_physical **out);
int cuda_driver_create(struct gv_physical *p);
int cuda_driver_access(struct gv_backend *b, const struct mapping *g, uint32_t device, uint32_t rights);
/* Maps it, and gives all devices their rights; what has failed leaves nothing mapped. */
int cuda_driver_map(struct gv_backend *b, const struct mapping *g);
/* Takes it from the list, and frees it; the driver has it no more. */
void cuda_physical_forget(struct gv_physical *p);
/* Addresses of the worker's own, multiples of `chunk`; 0: there are none. */
uint64_t cuda_space_take(struct gv_backend *b, struct cuda_device *d, uint64_t size);
void cuda_space_give(struct gv_backend *b, uint64_t address, uint64_t size);

uint32_t cuda_device_of(const struct gv_physical *p);
/* Where all of a physical memory can be read and written already: `at` of each. */
void cuda_find_addresses(struct gv_backend *b);
/* The address where it can be read and written: `at`, or some of the worker's own for the time being. */
int cuda_reach(struct gv_physical *p, uint64_t *address, bool *mapped);
void cuda_leave(struct gv_physical *p, uint64_t address, bool mapped);
/* Gives memory of another session back: those handles that are left. */
int cuda_release_pieces(const struct gv_backend *b, struct imported *from);
/* Whether it shares memory with other sessions, or has. */
bool cuda_memory_is_shared(const struct gv_backend *b);

/* ---- exports.c ---- */
/* Counts what sessions that have ended do not count any more. Executor. */
void cuda_inherit(struct gv_backend *b);

#endif
