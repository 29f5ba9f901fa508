/* The CUDA objects behind the handles, for the files that implement them (context.c, stream.c, ...). Other files include shim.h.
 *
 * Handles are pointers into regions, one per kind, that are reserved once and never unmapped. So a handle can be checked without dereferencing it: it must lie in the
 * region of its kind, at the start of a slot, and the slot must be live. Slots are reused late (first freed, first reused, and only after many others), so that a stale handle is
 * nearly always recognised; what travels on the wire is a number that is never used twice.
 *
 * Layers: a file calls only files of the lines above its own.
 *     call_reason             why a call fails
 *     object_slots, device, memory/{treap, allocator, address_map}, module/{image, image_file, module_cache, jit_options}
 *     ipc                     what was exported to other processes, and handles of that
 *     context                 the thread's stack of contexts, and whether one may be used
 *     stream                  what was posted to each, and waiting for it
 *     context_start           a context begins with its legacy stream
 *     graph/{graph, capture}  what capturing streams are given
 *     device_resource         multiprocessors and work queues, and partitions of them
 *     occupancy, cluster      what fits the device
 *     memory/, module/, event, array, texture, launch, ...    what works in a context
 *     graph/execute           makes the calls of what was captured
 *     context_end             gives back all that works in it
 *     green_context           its streams, and what it may use
 *     context_event           events of all streams of a context */
#ifndef SHIM_OBJECTS_H
#define SHIM_OBJECTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "wire/module_meta.h"
#include "objects/module/image.h"
#include "objects/shim.h"
#include "objects/memory/treap.h"

/* ---- slots (object_slots.c) --------------------------------------------------------------------------------------------- */

enum object_kind {
    OBJECT_CONTEXT,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_FUNCTION,
    OBJECT_LIBRARY,
    OBJECT_KERNEL,
    OBJECT_LINK,
    OBJECT_PHYSICAL,
    OBJECT_ARRAY,
    OBJECT_REFERENCE,
    OBJECT_GRAPH,
    OBJECT_GRAPH_NODE,
    OBJECT_GRAPH_EXEC,
    OBJECT_USER,
    OBJECT_RESOURCES,
    OBJECT_GREEN,
    OBJECT_GREEN_CONTEXT,
    OBJECT_KINDS
};

struct object {
    _Atomic uint32_t live;
    uint32_t kind;
    uint64_t id; /* unique in the process, never 0, small enough never to meet a special stream id */
    struct object *next_free;
};

struct object_space {
    char *base;
    _Atomic uint64_t used; /* bytes handed out so far */
    uint32_t stride;       /* a power of two */
};
extern struct object_space object_spaces[OBJECT_KINDS];

/* A fresh slot, zeroed but for its header, with a new id, not live yet. NULL: out of memory. */
void *object_new(enum object_kind kind);
void object_publish(void *object);
/* Makes a handle invalid. False when it was already: one of two threads that destroy an object gets true. */
bool object_retire(void *object);
/* Frees the slot. Its memory stays readable. */
void object_free(void *object);
uint64_t object_next_id(void);
/* The slot at a handle's value, live or not; NULL when no slot of this kind is there. */
static inline void *object_slot(enum object_kind kind, const void *handle) {
    const struct object_space *space = &object_spaces[kind];
    uint64_t offset = (uint64_t)(uintptr_t)handle - (uint64_t)(uintptr_t)space->base;
    if (offset >= atomic_load_explicit(&space->used, memory_order_acquire) || (offset & (space->stride - 1))) return NULL;
    return (void *)(uintptr_t)handle;
}
/* The live object behind a handle, or NULL. */
static inline void *object_get(enum object_kind kind, const void *handle) {
    struct object *o = object_slot(kind, handle);
    return o && atomic_load_explicit(&o->live, memory_order_acquire) ? o : NULL;
}

/* The result of a call whose command could not be sent: the session is lost, or the process is exiting. */
static inline int post_refused(void) {
    int rc = session_broken();
    return rc ? rc : (int)CUDA_ERROR_DEINITIALIZED;
}

/* ---- contexts (context*.c) ----------------------------------------------------------------------------------------- */

#define CONTEXT_LIMITS 16

struct shim_context {
    struct object object;
    uint32_t id; /* on the wire; a primary context gets a new one each time it is started */
    /* Itself. The CUcontext of a green context has the primary context, in which all works that is made or run in it, and only what tells the two apart: what is said of
     * the fields below holds for the root alone, unless it names green contexts. */
    struct shim_context *root;
    struct shim_green *green; /* NULL: it is no green context's */
    CUdevice device;
    uint32_t server_device;
    bool primary;
    int retained; /* primary: how many times; under context_life_lock */
    unsigned flags, api_version;
    _Atomic int status; /* sticky */
    size_t limits[CONTEXT_LIMITS];
    CUfunc_cache cache_config;
    uint32_t peers; /* bit per device whose memory this context may use */
    const struct gv_device_info *info;
    pthread_mutex_t lock;        /* guards the two lists */
    struct shim_stream *streams; /* with the legacy and per-thread streams, and destroyed streams with work in flight */
    struct shim_module *modules;
    struct shim_stream *legacy;                     /* of a green context: its default stream; NULL: nothing has used it */
    struct shim_stream *pages;                      /* fetches managed memory to the host; NULL: the context has none */
    struct shim_stream *joined;                     /* context_event.c; green contexts have one, too: waits for other streams; NULL: not yet */
    struct shim_stream *gate;                       /* likewise: has what later streams wait for */
    struct shim_stream *beside_legacy;              /* likewise: to be ordered with the legacy stream, and with no other */
    struct shim_event *between;                     /* orders two streams; under lock; NULL: not yet */
    struct shim_context *greens;                    /* those of its green contexts; under context_life_lock */
    _Atomic bool has_unordered_streams;             /* a stream that is not ordered with the legacy stream has existed */
    _Atomic uint64_t copied;                        /* the newest of its streams' copied */
    _Atomic uint32_t capturing, capturing_blocking; /* streams that capture; those of them that are ordered with the legacy stream */
    _Atomic bool capture_broken;                    /* the legacy stream, or the whole context, was used meanwhile */
    struct shim_context *next;                      /* list of live contexts, under context_lock; of green ones: its root's */
};

extern pthread_mutex_t context_lock;
extern struct shim_context *context_list;
/* Contexts begin and end one after the other; held while one that ends waits for its work. Taken before context_lock. */
extern pthread_mutex_t context_life_lock;

static inline bool context_live(const struct shim_context *c) { return atomic_load_explicit(&c->object.live, memory_order_acquire); }
/* The object of a context of a device, not live. NULL: out of memory. */
struct shim_context *context_object(CUdevice device);
/* That of a green context's CUcontext, whose work runs in `root`. */
struct shim_context *context_object_of_green(struct shim_context *root);
uint32_t context_next_id(void);
/* The object of a device's primary context, live or not; NULL for a bad ordinal. context_life_lock held. */
struct shim_context *context_primary_object(CUdevice device);
/* The calling thread's stack of contexts. reserve makes room for the next push: 0 or CUDA_ERROR_OUT_OF_MEMORY. pop of an empty stack does nothing. */
int context_stack_reserve(void);
void context_push(struct shim_context *c);
void context_pop(void);
/* What the thread has made current: the current context, or a green context's CUcontext of which that is the root. */
struct shim_context *context_bound(void);
/* The same for a handle; NULL when it is not live. */
struct shim_context *context_bound_get(CUcontext handle);

/* 0, or CUDA_ERROR_INVALID_VALUE for flags that no context has, or that name two ways to wait. */
int context_check_flags(unsigned flags);
/* The current context: 0 and *out, or the call's error (no context, destroyed, faulted, session lost). Of a green context: its root, here and below. */
int context_require(struct shim_context **out);
/* A context checked the same way. */
int context_usable(struct shim_context *c, struct shim_context **out);
/* A context given by handle, checked the same way; NULL is an invalid context. */
int context_check(CUcontext handle, struct shim_context **out);
/* The same; of a green context, its own. */
int context_check_bound(CUcontext handle, struct shim_context **out);
/* The current context, else any live primary context, else that of the first device, which is started (not retained); for libraries, which need a context. */
int context_any(struct shim_context **out);
/* The server's number of a device by its ordinal in the program; the caller has checked the ordinal. */
uint32_t device_server_index(CUdevice device);
int device_attribute(const struct gv_device_info *info, int attribute); /* 0 when the driver does not know it */
int device_capability(const struct gv_device_info *info);               /* 10 * major + minor */

/* ---- streams and events (stream.c, event.c) ------------------------------------------------------------------------ */

/* STREAM_GREEN_DEFAULT: of a green context, what the legacy stream is of others. STREAM_INTERNAL: not the program's; no work of a context. */
enum stream_kind { STREAM_LEGACY, STREAM_CREATED, STREAM_PER_THREAD, STREAM_GREEN_DEFAULT, STREAM_INTERNAL };

struct shim_stream {
    struct object object;
    struct session_stream session;
    struct shim_context *context;
    struct shim_context *_Atomic green;  /* of the green context that it belongs to; NULL: none */
    struct shim_stream *next, *previous; /* in the context's list */
    enum stream_kind kind;
    bool blocking;         /* implicitly ordered with the legacy stream */
    bool within;           /* implicitly ordered with its green context's default stream, or that itself */
    _Atomic bool detached; /* its green context has been destroyed */
    unsigned char joined;  /* a retired one, by: 1, its context's `joined`; 2, its green context's; under context->lock */
    uint64_t after_within; /* and is ordered after those streams up to this seq; under context->lock */
    bool retired;          /* destroyed by the program; freed when its work has completed */
    unsigned flags;
    int priority;
    _Atomic uint64_t copied; /* seq of the last copy to the device that the program regards as complete: see stream_after_copies */
    _Atomic uint64_t after;  /* later commands are ordered after the context's copies up to this seq */
    CUstreamAttrValue attributes[8];
    struct capture *_Atomic capture; /* graph/capture.c; NULL: it does not capture */
    struct graph_node **ends;        /* what its next node depends on */
    size_t n_ends;
};

struct shim_event {
    struct object object;
    struct shim_context *context;
    uint32_t ctx;
    unsigned flags;
    pthread_mutex_t lock;
    struct shim_stream *stream; /* of the last record; NULL: never recorded */
    uint64_t stream_id, seq;
    bool shared;              /* other processes record it, or wait for it, too */
    bool imported;            /* another process's */
    _Atomic uint64_t capture; /* the last record was on a stream of this capture; 0: it was not */
    struct graph_node **ends; /* and stands for these nodes */
    size_t n_ends;
};

static inline bool stream_is_default(const struct shim_stream *s) { return s->kind == STREAM_LEGACY || s->kind == STREAM_GREEN_DEFAULT; }
/* Whether a stream's work is that of a context: a primary context has that of its green contexts, too. */
static inline bool stream_works_in(const struct shim_stream *s, const struct shim_context *bound) {
    return s->kind != STREAM_INTERNAL && (!bound->green || atomic_load_explicit(&s->green, memory_order_relaxed) == bound);
}
static inline bool stream_in_flight(const struct shim_stream *s) {
    return atomic_load_explicit(&s->session.posted, memory_order_acquire) > atomic_load_explicit(&s->session.completed, memory_order_acquire);
}

/* The live event behind a handle, of a live context: 0, or the call's error. */
int event_find(CUevent event, struct shim_event **out);
/* Whether the latest record of a shared event, whoever has made it, has been reached: 0, CUDA_ERROR_NOT_READY, or an error. It answers when the worker has carried out
 * all that this process has asked for so far, records included. */
int event_ask(const struct shim_event *e);

/* A new stream of a context, or of a green one, its priority clamped to what there is; the caller publishes its handle. */
int stream_new(struct shim_context *c, enum stream_kind kind, unsigned flags, int priority, struct shim_stream **out);
/* Makes a stream wait for what another of the same context has been given so far; context->lock held, and stream_between has made the event. */
void stream_after(struct shim_stream *s, struct shim_stream *other);
int stream_between(struct shim_context *c);
/* Retires a stream; its slot is freed once its work is done. */
void stream_retire(struct shim_stream *s);
/* Frees the streams of a context in which nothing runs any more. */
void stream_drop_all(struct shim_context *c);
/* Resolves a handle and checks its context's and its own sticky status, for a question about the stream: nothing is ordered, and no capture ends. */
int stream_asked(CUstream handle, struct shim_stream **out);
/* The same for what works on the stream: a call on the legacy stream ends the captures that it would have to wait for. */
int stream_require(CUstream handle, struct shim_stream **out);
/* A copy to the device that a program has waited for counts as done for all it does next, on any stream. The call returns when the copy is taken up; streams that are
 * ordered with its own come after it anyway, and the first call on any other waits here (stream_require does it). */
int stream_after_copies(struct shim_stream *s);
/* Posts a command that does nothing but has a place in the stream's order, as work has. */
int stream_barrier(struct shim_stream *s);
/* `seq` on `s` is such a copy. */
void stream_copied(struct shim_stream *s, uint64_t seq);
/* Notes that the command `seq` was posted to the stream, with GV_RECORD_MARK or not. */
void stream_posted(struct shim_stream *s, uint64_t seq, bool marked);
/* Posts a fence if the stream's last command will report no completion; does not wait. Returns the seq to wait for, 0 when nothing is in flight. */
uint64_t stream_fence(struct shim_stream *s);
/* Waits for everything that was posted to all streams of one context (NULL: of all contexts), or of a green one. Returns the first error. */
int stream_drain_context(struct shim_context *c);
/* Posts fences on all streams of all contexts, so that they report their progress; does not wait. */
void stream_fence_all(void);
/* The highest seq posted to any stream, and the highest seq that all streams have completed (UINT64_MAX: nothing is in flight). */
void stream_progress(uint64_t *newest, uint64_t *passed);
/* Whether all streams but two, of all contexts, are known to have done what was posted to them. */
bool streams_passed_but(const struct shim_stream *a, const struct shim_stream *b);
/* Whether command seq of that stream has completed; true when the stream has been destroyed. */
static inline bool stream_passed(const struct shim_stream *s, uint64_t id, uint64_t seq) {
    uint64_t completed = atomic_load_explicit(&s->session.completed, memory_order_acquire);
    return completed >= seq || s->object.id != id;
}

/* ---- device resources and green contexts (device_resource.c, green_context.c) ---------------------------------------- */

/* What cuDevResourceGenerateDesc has put together. Without multiprocessors (sm.type) they are all the device's. */
struct shim_resources {
    struct object object;
    CUdevice device;
    CUdevResource sm, config, queue; /* type CU_DEV_RESOURCE_TYPE_INVALID: none */
};

struct shim_green {
    struct object object;
    struct shim_context *context; /* its CUcontext */
    CUdevResource sm, config, queue;
};

/* The live green context behind a handle, and not after a fault or without a server: 0, or the call's error, of which a missing context is the only one that is its own. */
int green_usable(CUgreenCtx handle, struct shim_green **out);
/* One of a device's resources; and one as it is asked for anew, so that it may be split. 0 or CUDA_ERROR_INVALID_RESOURCE_TYPE. */
int resource_of_device(CUdevice device, CUdevResourceType type, CUdevResource *out);
void resource_asked_for(const CUdevResource *resource, CUdevResource *out);
/* The work queues of a context. */
void resource_queue(CUdevice device, uint64_t id, CUdevResource *out);

/* ---- memory (memory/) ------------------------------------------------------------------- */

/* RANGE_MAPPED: one mapping of virtual memory management, which belongs to no context. Adjacent mappings may be used as one range. */
enum range_kind { RANGE_DEVICE, RANGE_GLOBAL, RANGE_MAPPED, RANGE_HOST, RANGE_REGISTERED };

/* One allocation, registration, global or mapping. */
struct range {
    struct treap_node node; /* key: base */
    uint64_t size;          /* as asked for */
    enum range_kind kind;
    uint32_t ctx; /* id of the context it belongs to */
    CUdevice device;
    struct shim_context *context;
    unsigned flags; /* host: CU_MEMHOSTALLOC_*, CU_MEMHOSTREGISTER_*; mapped: rights, two bits a device */
    uint64_t buffer_id;
    uint64_t lead;   /* bytes between what the worker allocated and the base; 0 with fixed addresses */
    bool managed;    /* device memory that the host sees as well (managed/) */
    bool mapped;     /* host memory that kernels use as well: it is in both maps */
    bool graph;      /* a graph's node allocates it (graph/memory_nodes.c) */
    uint64_t pool;   /* that it is of, where other processes may have its memory; 0: none such */
    bool exported;   /* other processes may open it (ipc.c) */
    bool imported;   /* it is another process's (memory/ipc_memory.c) */
    bool placed;     /* host memory at addresses of the window, so that it can be mapped later */
    uint64_t shadow; /* of host memory: where device memory stands for it; of that: where the host's is (managed/shadow.h); 0: neither */
    bool sync_memops;
};

static inline uint64_t range_base(const struct range *r) { return r->node.key; }

/* Adds a range (copied). 0 or CUDA_ERROR_OUT_OF_MEMORY. */
int range_add(const struct range *range, uint64_t base);
/* Removes the range of one of two kinds that begins at base; false when there is none. *out gets what it was. */
bool range_remove(uint64_t base, enum range_kind kind, enum range_kind or_kind, struct range *out);
/* The device or global range that contains an address; false when there is none. */
bool range_find_device(uint64_t address, struct range *out);
bool range_find_host(uint64_t address, struct range *out);
bool range_find(uint64_t address, struct range *out);
/* Whether mappings without a gap cover [address, address + size) and some device has `rights` (CU_MEM_ACCESS_FLAGS) on each. */
bool range_mapped(uint64_t address, uint64_t size, unsigned rights);
void range_set_rights(uint64_t base, unsigned rights);
/* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of the device range that contains an address; false when there is none. */
bool range_set_sync_memops(uint64_t address, bool on);
/* The device range that begins there is managed; the ranges of both maps are mapped. */
void range_set_managed(uint64_t base);
void range_set_mapped(uint64_t base, unsigned flags);
/* The device range at `device` stands for the host range at `host`, or, with 0, none does any more. */
void range_set_shadow(uint64_t host, uint64_t device);
/* The device range that begins there is a graph's, and how the program's frees of such are carried out (to be set at start). */
void range_set_graph(uint64_t base);
void memory_on_graph_free(int (*call)(CUdeviceptr address));
/* The device range that begins there is of a pool that processes share (memory_pool.c). */
void range_set_pool(uint64_t base, uint64_t pool);
/* The device range that begins there has been exported. */
void range_set_exported(uint64_t base);
/* How the program's frees of what another process has allocated are carried out, and what is called when the context of such memory ends (to be set at start). */
void memory_on_imported(int (*freed)(CUdeviceptr address), void (*context_ended)(CUdeviceptr address));
/* Where host ranges that are placed lie, all of them: [range_placed_low, + range_placed_span); the span is 0 while there has been none. */
extern _Atomic uint64_t range_placed_low, range_placed_span;
/* How many of them kernels cannot use yet. */
extern _Atomic uint64_t range_unmapped;
static inline bool range_may_be_placed(uint64_t address) {
    return address - atomic_load_explicit(&range_placed_low, memory_order_relaxed) < atomic_load_explicit(&range_placed_span, memory_order_relaxed);
}
/* Registers a function that is called for a device address in no range; it returns whether it has added ranges. To be set at start. */
void range_on_unknown(bool (*call)(void));
/* The reservation that contains an address (memory/virtual_memory.c); false when there is none. */
bool virtual_reservation(uint64_t address, uint64_t *base, uint64_t *size);
/* Whether a host range overlaps [base, base + size). */
bool range_host_overlaps(uint64_t base, uint64_t size);
/* The next device or global range of a context at or above `from`. */
bool range_next_of(uint32_t ctx, uint64_t from, struct range *out);

/* Allocates in a context; the address is in the map afterwards. CUDA_ERROR_OUT_OF_MEMORY is exact. */
int memory_allocate(struct shim_context *c, size_t size, CUdeviceptr *out);
/* The same for managed memory: at the beginning of a page of the host. */
int memory_allocate_pages(struct shim_context *c, size_t size, CUdeviceptr *out);
/* Backs addresses of the program's part of the window that memory_reserve gave, in whole chunks, and takes the memory back. CUDA_ERROR_OUT_OF_MEMORY. */
int memory_back(struct shim_context *c, uint64_t address, uint64_t size);
void memory_unback(struct shim_context *c, uint64_t address, uint64_t size);
/* Frees; CUDA_ERROR_INVALID_VALUE for what is no allocation. The memory is used again only after every stream has passed this point. */
int memory_release(CUdeviceptr address);
/* The same for mapped host memory, and for memory of graphs. */
int memory_release_mapped(CUdeviceptr address);
/* Gives back free credit of the context's device down to `keep` bytes. */
void memory_trim(struct shim_context *c, uint64_t keep);
/* Bytes backed on a device of the server, and in use. */
void memory_usage(uint32_t server_device, uint64_t *reserved, uint64_t *used);
/* Reserves addresses in a device's part of the window, at `hint` if that is free, and releases them. CUDA_ERROR_OUT_OF_MEMORY when the part is full. */
int memory_reserve(uint32_t server_device, uint64_t size, uint64_t alignment, uint64_t hint, uint64_t *address);
void memory_unreserve(uint32_t server_device, uint64_t address, uint64_t size);
/* Frees the allocations of a context and removes its globals from the map; nothing runs in it any more. */
void memory_context_gone(struct shim_context *c);

/* Host memory that asynchronous copies and host functions may still write: adds a writer; waits until no writer of [low, high) is left; asks whether there is one, and whether
 * there is one that is a copy. */
void host_writes_add(uint64_t low, uint64_t high, struct shim_stream *s, uint64_t seq);
int host_writes_wait(uint64_t low, uint64_t high);
bool host_writes_pending(uint64_t low, uint64_t high);
bool host_copies_pending(uint64_t low, uint64_t high);

/* ---- modules (module/) --------------------------------------------------------------------- */

/* The origin of an image, for messages: a file that the program named, or its pointer. */
struct module_source {
    const void *pointer;
    const char *path;
};

struct shim_module {
    struct object object;
    struct shim_context *context;
    uint32_t ctx;
    void *meta;                       /* module_meta.h, checked */
    struct shim_function **functions; /* one a kernel, in metadata order */
    uint32_t n_functions;
    uint32_t *by_name;                         /* kernel numbers, sorted by name */
    struct shim_library *library;              /* that loaded it, or NULL */
    struct module_global *globals;             /* asked for by name, not in the metadata */
    struct shim_reference *_Atomic references; /* to textures and surfaces, which the program has asked for (reference.c) */
    bool placed;                               /* the metadata have the addresses of the globals; else they are requested when needed */
    struct shim_module *next, *previous;       /* in the context's list */
};

/* What a program may set on a kernel. */
struct kernel_settings {
    int max_dynamic_shared; /* -1: the default */
    int carveout;           /* -1: the default */
    int cluster_width, cluster_height, cluster_depth;
    int nonportable_cluster, cluster_policy;
};

/* What the driver was asked about clusters of a function: all that the answer depends on, zeroed before it is filled; of the grid only whether it is made of whole clusters. */
struct cluster_question {
    uint32_t block[3], shared, cluster, potential, whole;
    struct kernel_settings settings;
};
struct cluster_answer {
    struct cluster_answer *next;
    struct cluster_question asked;
    int count, status;
};

struct shim_function {
    struct object object;
    struct shim_module *module;
    struct shim_context *context;
    const struct gv_meta_kernel *meta;
    const struct gv_meta_param *params;
    const char *name;
    uint32_t ctx, index;
    uint32_t max_threads;
    _Atomic uint32_t max_dynamic_shared;
    struct kernel_settings settings;
    struct shim_kernel *kernel;         /* of the library, or NULL */
    struct launch_by_offset *by_offset; /* launch_by_offset.c; NULL: nothing was set so */
    struct cluster_answer *clusters;    /* cluster.c */
};

#define KERNEL_CONTEXTS 32

/* A kernel of a library: independent of contexts; each context that uses it has a function of its own. */
struct shim_kernel {
    struct object object;
    struct shim_library *library;
    char *name; /* its own copy */
    uint32_t index;
    _Atomic uint32_t ctx[KERNEL_CONTEXTS];
    struct shim_function *functions[KERNEL_CONTEXTS];
    struct kernel_settings *settings; /* per device the program sees, or NULL */
};

struct shim_library {
    struct object object;
    pthread_mutex_t lock;
    struct image image;
    struct module_source source;    /* path: ours to free */
    struct library_module *modules; /* one a context */
    struct shim_kernel **kernels;   /* metadata order, known after the first load */
    uint32_t n_kernels;
    bool loaded;
};

#define KERNEL_SETTINGS_DEFAULT ((struct kernel_settings){.max_dynamic_shared = -1, .carveout = -1})

/* Log buffers of the just-in-time compiler options; all may be NULL. */
struct jit_options {
    char *info, *error;
    size_t info_size, error_size;
    void **info_written, **error_written; /* where the option's value stands */
};

int jit_options_read(unsigned n, CUjit_option *options, void **values, struct jit_options *out);
/* Fills the buffers: `info` when status is 0, else `error`. jit may be NULL. */
void jit_write_logs(const struct jit_options *jit, int status, const char *info, const char *error);

/* Chooses from an image of several parts for a device that wants PTX: the part that was linked when the program was built if it has PTX, else the result of linking the
 * parts on the server. Fails as image_choose does, or as the link. */
int link_image(struct shim_context *c, const struct image *image, const struct image_target *target, struct image_choice *out, char *why,
               size_t why_size);
/* Loads an opened image into a context. */
int module_load(struct shim_context *c, const struct image *image, const struct module_source *source, const struct jit_options *jit,
                struct shim_library *library, struct shim_module **out);
void module_unload(struct shim_module *m);
/* Takes the first module of a context off its list and ends its handle, for a context that ends; NULL: it has none. module_drop unloads it. */
struct shim_module *module_take(struct shim_context *c);
/* Unloads a module that is in no list any more. */
void module_drop(struct shim_module *m);
struct shim_function *module_find(const struct shim_module *m, const char *name);
int module_global(struct shim_module *m, const char *name, CUdeviceptr *address, size_t *size);
/* The same for a managed variable, which the host can use afterwards; CUDA_ERROR_NOT_FOUND: it is none. */
int module_managed(struct shim_module *m, const char *name, CUdeviceptr *address, size_t *size);
/* Reads a whole file, NUL added. 0, CUDA_ERROR_FILE_NOT_FOUND, CUDA_ERROR_OUT_OF_MEMORY. The caller frees. */
int image_read_file(const char *path, void **data, size_t *size);

/* The function of a CUfunction or a CUkernel in a context; loads the kernel's library there if necessary. */
int function_resolve(CUfunction handle, struct shim_context *c, struct shim_function **out);
int kernel_function(struct shim_kernel *k, struct shim_context *c, struct shim_function **out);
/* Unloads all modules that a context still holds; the libraries forget theirs. Nothing runs in it any more. */
void library_context_gone(struct shim_context *c);
int function_get_attribute(const struct shim_function *f, int attribute, int *value);
int function_set_attribute(struct shim_function *f, int attribute, int value);
/* Validates a setting and stores it in `settings`; static_shared: the kernel's static shared memory in bytes. */
int settings_set(struct kernel_settings *settings, const struct gv_device_info *info, uint32_t static_shared, int attribute, int value);
int function_param_info(const struct shim_function *f, size_t index, size_t *offset, size_t *size);

/* Blocks of one kernel that fit a multiprocessor at once (occupancy.c). */
int occupancy_blocks(const struct shim_function *f, int block_threads, size_t dynamic_shared);
/* The function of any context, or a kernel's function in the current context, for queries. */
int function_of_any(CUfunction handle, struct shim_function **out);

/* ---- thread block clusters (cluster.c) ---- */

/* What of a launch clusters depend on. cluster and preferred: wire/cluster_dims.h, the first with the scheduling policy; 0: none is named. */
struct cluster_launch {
    unsigned grid[3], block[3], shared;
    uint32_t cluster, preferred;
};

/* Whether a launch of this function may name a cluster, or needs one: what has to be checked. */
static inline bool cluster_concerns(const struct shim_function *f, uint32_t cluster, uint32_t preferred) {
    const struct kernel_settings *s = &f->settings;
    return cluster || preferred || f->meta->cluster || f->meta->flags || s->cluster_width || s->cluster_height || s->cluster_depth;
}
/* Checks it as the driver does, and takes away what this device is not to be told. May ask the worker. `call`: for the log. */
int cluster_check(struct shim_function *f, struct cluster_launch *l, const char *call);
/* Of the three launch attributes about clusters. set: false when it is none of them, or the value is none. get: false when the words name nothing; the value is 0 then. */
bool cluster_attribute_set(int attribute, const CUlaunchAttributeValue *value, uint32_t *cluster, uint32_t *preferred);
bool cluster_attribute_get(int attribute, uint32_t cluster, uint32_t preferred, CUlaunchAttributeValue *value);

#endif
