/* Backends execute. `cuda` calls the real driver, `soft` runs the program's PTX on CPU cores; nothing above knows which one it has.
 *
 * Objects are opaque pointers that belong to the backend; the worker maps the client's ids to them. Functions return CUresult values as int (0: done). What is
 * queued on a stream (copies, launches, marks) returns at once and runs in stream order; only module_load, link and context_create may be slow, and nothing
 * waits for the device. All functions may be called from the executor thread; those marked [any] from any thread. `char *err` receives one line of explanation. */
#ifndef GV_BACKEND_H
#define GV_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "../wire/device_info.h"
#include "../wire/link_inputs.h"

struct gv_backend;
struct gv_context;
struct gv_stream;
struct gv_event;
struct gv_module;
struct gv_physical;

#define GV_ERR_SIZE 512

struct gv_backend_config {
    const uint32_t *devices; /* which of the host's GPUs this session got: pool ordinals */
    uint32_t n_devices;
    uint64_t memory;        /* bytes per device this session may use at most, 0: what the device has */
    const char *driver;     /* cuda: absolute path of the driver library, NULL: the system's */
    uint32_t capability;    /* soft: compute capability * 10, 0: 130 */
    uint64_t device_memory; /* soft: bytes of one device */
    int strict;             /* soft: imitate the real driver's legal nastiness; no fixed addresses */
    int drop_launches;      /* test only: a worker that loses every launch */
    int ledger_fd;          /* soft: shared ledger of memory used per pool device (ledger.h), -1: none */
    uint32_t ledger_slot;   /* this session's slot in it */
    void *compiler;         /* soft: struct soft_compiler */
    /* Text that device code printed. [any thread] */
    void (*console)(void *arg, const char *text, size_t size);
    void *console_arg;
};

/* A rectangular copy of width x height x depth; width in bytes. height = depth = 1 for a plain one. */
struct gv_shape {
    uint64_t width, height, depth;
    uint64_t dst_pitch, dst_slice; /* bytes from row to row, from slice to slice */
    uint64_t src_pitch, src_slice;
};

struct gv_launch {
    struct gv_module *module;
    uint32_t kernel; /* index in the module's metadata */
    uint32_t grid[3], block[3];
    uint32_t shared; /* dynamic shared memory, bytes */
    uint32_t cooperative;
    const void *params; /* packed; valid during the call only */
    uint32_t params_size;
};

/* A texture in linear or pitched memory; numbers as in CUDA_RESOURCE_DESC and CUDA_TEXTURE_DESC. */
struct gv_texture {
    uint32_t kind; /* CUresourcetype: 2 linear, 3 pitched */
    uint32_t format, channels, flags, filter, modes[3];
    uint64_t address, width, height, pitch; /* linear: width is in bytes */
};

/* The arguments of cuTensorMapEncodeTiled. */
struct gv_tensor_map {
    uint32_t type, rank, interleave, swizzle, promotion, fill;
    uint64_t address, dims[5], strides[5]; /* rank - 1 strides, bytes */
    uint32_t box[5], steps[5];
};

/* What the linker is to make one image of. */
struct gv_link_job {
    const struct gv_link_part *inputs;
    const struct gv_link_option *options; /* for the whole link */
    uint32_t n_inputs, n_options;
};

#define GV_LINK_LOG_SIZE 8192

/* What came of it. The texts are always NUL-terminated. */
struct gv_link_result {
    void *image; /* malloc'ed, the caller's to free; NULL when it failed */
    size_t size;
    char info[GV_LINK_LOG_SIZE], error[GV_LINK_LOG_SIZE];
};

struct gv_backend_ops {
    const char *name; /* "cuda", "soft" */
    int (*open)(const struct gv_backend_config *config, struct gv_backend **out, char *err);
    void (*close)(struct gv_backend *b); /* stops everything, whatever is running */

    int (*driver_version)(struct gv_backend *b); /* as cuDriverGetVersion */
    int (*device_info)(struct gv_backend *b, uint32_t device, struct gv_device_info *out);
    /* Tries to reserve [base, base + size) for device memory; all devices share it. 0: addresses are fixed from here on. CUDA_ERROR_NOT_SUPPORTED: this backend places
     * memory itself. CUDA_ERROR_INVALID_VALUE: not this range, try another. */
    int (*reserve_window)(struct gv_backend *b, uint64_t base, uint64_t size);

    int (*context_create)(struct gv_backend *b, uint32_t device, uint32_t flags, int primary, struct gv_context **out, char *err);
    void (*context_destroy)(struct gv_context *c);
    /* cuCtxSetLimit for what kernels notice: the stack, printf's buffer, malloc's heap. `value` becomes what it is now. */
    int (*context_limit)(struct gv_context *c, uint32_t limit, uint64_t *value);
    int (*memory_info)(struct gv_context *c, uint64_t *free_bytes, uint64_t *total_bytes);
    /* The last asynchronous error's text ("illegal address 0x0 in kernel saxpy, block (1,0,0)"); "" when there is none. [any] */
    const char *(*error_text)(struct gv_context *c);

    /* Fixed addresses: physical memory behind [address, address + size), multiples of the device's chunk. CUDA_ERROR_OUT_OF_MEMORY when the device is full. */
    int (*memory_back)(struct gv_context *c, uint64_t address, uint64_t size);
    int (*memory_unback)(struct gv_context *c, uint64_t address, uint64_t size);
    /* Otherwise. */
    int (*memory_alloc)(struct gv_context *c, uint64_t size, uint64_t *address);
    int (*memory_free)(struct gv_context *c, uint64_t address);

    /* Virtual memory management; sizes and addresses are multiples of the device's chunk. All seven may be NULL: there is none. With fixed addresses the client sets
     * addresses of its part of the window aside by itself, and the first two are not called. */
    int (*address_reserve)(struct gv_backend *b, uint64_t size, uint64_t alignment, uint64_t *address);
    int (*address_free)(struct gv_backend *b, uint64_t address, uint64_t size);
    /* Memory of the context's device without an address. CUDA_ERROR_OUT_OF_MEMORY when the device is full. */
    int (*physical_create)(struct gv_context *c, uint64_t size, struct gv_physical **out);
    /* CUDA_ERROR_INVALID_VALUE while it is mapped. */
    int (*physical_destroy)(struct gv_physical *p);
    /* Its first `size` bytes, for nobody's use until memory_access says so. What is mapped already and gets a second address must not be in use meanwhile. */
    int (*memory_map)(struct gv_physical *p, uint64_t address, uint64_t size);
    /* A range of whole mappings, at once: whoever still uses it has an error. Fails while host_view holds any of it. The content stays with the physical memory. */
    int (*memory_unmap)(struct gv_backend *b, uint64_t address, uint64_t size);
    /* The same holds for taking rights away. What one of the session's devices may do in a range of whole mappings: CU_MEM_ACCESS_FLAGS (0 nothing, 1 read, 3 read and write). */
    int (*memory_access)(struct gv_backend *b, uint64_t address, uint64_t size, uint32_t device, uint32_t rights);

    int (*stream_create)(struct gv_context *c, uint32_t flags, int32_t priority, struct gv_stream **out);
    void (*stream_destroy)(struct gv_stream *s);              /* work already queued still runs */
    struct gv_stream *(*stream_legacy)(struct gv_context *c); /* the legacy default stream, with its blocking semantics */

    int (*event_create)(struct gv_context *c, uint32_t flags, struct gv_event **out);
    void (*event_destroy)(struct gv_event *e);
    int (*event_record)(struct gv_event *e, struct gv_stream *s);
    int (*event_elapsed)(struct gv_event *start, struct gv_event *end,
                         float *ms); /* CUDA_ERROR_NOT_READY, CUDA_ERROR_INVALID_HANDLE as the driver does */
    int (*stream_wait_event)(struct gv_stream *s, struct gv_event *e);

    /* Host memory given here is the worker's own and stays valid until the copy is done. Device to device may cross contexts. */
    int (*copy_to_device)(struct gv_stream *s, uint64_t dst, const void *src, const struct gv_shape *shape);
    int (*copy_to_host)(struct gv_stream *s, void *dst, uint64_t src, const struct gv_shape *shape);
    int (*copy_device)(struct gv_stream *s, uint64_t dst, struct gv_context *dst_ctx, uint64_t src, struct gv_context *src_ctx,
                       const struct gv_shape *shape);
    /* `elem` is 1, 2 or 4 bytes; width counts elements. */
    int (*fill)(struct gv_stream *s, uint64_t dst, uint64_t pitch, uint32_t elem, uint32_t value, uint64_t width, uint64_t height);

    /* meta (module_meta.h, addresses filled in) is malloc'ed; the caller frees it. */
    int (*module_load)(struct gv_context *c, const void *image, size_t size, struct gv_module **out, void **meta, size_t *meta_size, char *err);
    void (*module_unload)(struct gv_module *m);
    int (*module_global)(struct gv_module *m, const char *name, uint64_t *address, uint64_t *size);
    /* cuLink*: one image of several. out is zeroed; `error` says what is wrong when it fails. May be slow. */
    int (*link)(struct gv_context *c, const struct gv_link_job *job, struct gv_link_result *out);
    /* CUfunction_attribute */
    int (*kernel_set_attribute)(struct gv_module *m, uint32_t kernel, int32_t attribute, int32_t value);
    int (*launch)(struct gv_stream *s, const struct gv_launch *launch);
    /* What device code reads by a value of the driver's. A destroyed texture's launches may still be under way. All three may be
     * NULL. map: the 128 bytes of a CUtensorMap. */
    int (*texture_create)(struct gv_context *c, const struct gv_texture *texture, uint64_t *object);
    int (*texture_destroy)(struct gv_context *c, uint64_t object);
    int (*tensor_map)(struct gv_context *c, const struct gv_tensor_map *wanted, void *map);

    /* Calls fn(arg, status) once everything queued on the stream before is done; status is 0 or the context's asynchronous error. fn is quick and never blocks for long.
     * Order of marks on one stream is kept. fn runs on a thread of the backend. */
    int (*mark)(struct gv_stream *s, void (*fn)(void *arg, int status), void *arg);
    /* The stream stops here until fn(arg) has returned; fn may block (host functions, payloads still on their way). fn is called in any case, also after an
     * error, and has returned before a mark queued later on the stream is called. */
    int (*gate)(struct gv_stream *s, void (*fn)(void *arg), void *arg);

    /* Where the CPU can reach device memory: a pointer to [address, address + size), which stays valid until host_view_end with the same range (memory_unback and memory_unmap fail
     * meanwhile). Reading and writing there is ordered with nothing: only in a gate of a stream that it concerns. NULL when all of it is not backed, or not to be reached.
     * Both functions may be NULL. [any] */
    void *(*host_view)(struct gv_backend *b, uint64_t address, uint64_t size);
    void (*host_view_end)(struct gv_backend *b, uint64_t address, uint64_t size);
    /* From within a mark's fn: whether the stream has come to its next mark already, so that fn is about to be called again. False when that is not known. May be
     * NULL. */
    int (*mark_follows)(struct gv_stream *s);

    /* Host memory that copies are fastest with and never wait for (pinned). Both NULL: any memory will do. host_alloc gives NULL when there is no more. [any] */
    void *(*host_alloc)(struct gv_backend *b, size_t size);
    void (*host_free)(struct gv_backend *b, void *memory);
};

extern const struct gv_backend_ops gv_backend_soft;
extern const struct gv_backend_ops gv_backend_cuda;

#endif
