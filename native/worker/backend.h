/* The interface of the backends: `cuda` calls the real driver, `soft` runs the program's PTX on CPU cores; no other file depends on which one it is.
 *
 * Objects are opaque pointers owned by the backend; the worker maps the client's handles to them. Functions return CUresult values as int (0:
 * success). Work queued on a stream (copies, launches, marks) returns at once and runs in stream order; only module_load, link and context_create may
 * take long, and nothing waits for the device. All functions may be called from the executor thread; those marked [any] from any thread. `char *err`
 * receives one line of text. */
#ifndef GV_BACKEND_H
#define GV_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../wire/device_info.h"
#include "../wire/link_inputs.h"

struct gv_backend;
struct gv_image_in;
struct gv_image_out;
struct gv_context;
struct gv_stream;
struct gv_event;
struct gv_module;
struct gv_physical;
struct gv_array;

#define GV_ERR_SIZE 512

struct gv_backend_config {
    const uint32_t *devices; /* which of the host's GPUs this session got: pool ordinals */
    uint32_t n_devices;
    uint64_t memory;        /* bytes per device this session may use at most, 0: what the device has */
    const char *driver;     /* cuda: absolute path of the driver library, NULL: the system's */
    uint32_t capability;    /* soft: compute capability * 10, 0: 130 */
    uint64_t device_memory; /* soft: bytes of one device */
    int rdma;               /* cuda: devices of the link are to reach device memory themselves, where they can */
    int strict;             /* soft: do what the real driver is allowed to do and the software GPU otherwise does not (strict); no fixed addresses */
    int memory_usage_fd;    /* soft: memfd of the table of memory usage (memory_usage.h), -1: none */
    uint32_t memory_usage_slot; /* this session's slot in the table */
    void *memory_row;           /* that row, mapped writable (struct gv_memory_row), NULL: it is mapped from memory_usage_fd */
    int memory_file;            /* soft: memfd for device memory that is mapped more than once, taken over; 0: one is made when it is first needed */
    void *compiler;             /* soft: struct soft_compiler */
    /* Text that device code printed. [any thread] */
    void (*console)(void *arg, const char *text, size_t size);
    void *console_arg;
    /* Asks for room on a device that other sessions have, `bytes` of it, and waits; NULL: nobody makes any. True: try again; meanwhile the session may
     * have been parked and brought back. False: there is none to be had. [executor, in an operation, no lock held] */
    bool (*make_room)(void *arg, uint32_t device, uint64_t bytes);
    void *make_room_arg;
    /* soft: a file of so many bytes for memory that sessions share, and its number; and that such a one is not used here any more. -1: there is none to be
     * had. NULL: the backend makes them itself. [executor, no lock held; the other one: any] */
    int (*new_memory_file)(void *arg, uint64_t size, uint64_t *number);
    void (*memory_file_over)(void *arg, uint64_t number);
    void *memory_file_arg;
    /* soft: what becomes of turns on a device of the pool (gv_turn_said of turns.h); number: of the word that STOPPED answers. [a thread of the backend's] */
    void (*turn_said)(void *arg, uint32_t device, uint32_t what, uint32_t number);
    void *turn_arg;
};

/* What is exported to other sessions. It travels from worker to worker as bytes, with its descriptors beside it: whoever has it from another one checks it. */
enum gv_shared_kind { GV_SHARED_MEMORY = 1, GV_SHARED_EVENT };
#define GV_SHARED_PIECES 6

struct gv_shared {
    uint32_t kind, n_pieces;
    uint32_t ordinal; /* of the device, in the pool */
    uint32_t unused;
    uint64_t size;           /* bytes of all pieces, whole chunks */
    uint64_t offset, length; /* of the allocation in them; of an event: where it lies in its file */
    struct gv_shared_piece {
        uint64_t offset, size; /* in its file */
    } pieces[GV_SHARED_PIECES];
    uint64_t file[GV_SHARED_PIECES]; /* what the exporting worker has them as: a number of the daemon's; 0: it is a descriptor of the driver's */
    int32_t fd[GV_SHARED_PIECES];    /* one a piece; -1: none */
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
    uint32_t cluster, preferred_cluster; /* cluster_dims.h, with the scheduling policy in the first; 0: none was named */
    const void *params;                  /* packed; valid during the call only */
    uint32_t params_size;
};

/* How many clusters of a kernel run at once, or, with `potential`, the most blocks that a cluster of it may have: for launches like this one. */
struct gv_cluster_query {
    uint32_t kernel;
    uint32_t grid[3], block[3];
    uint32_t shared;
    uint32_t cluster; /* cluster_dims.h; 0: none is named */
    uint32_t potential;
};

/* An array, as CUDA_ARRAY3D_DESCRIPTOR has it. levels: of a mipmapped array; 0: it is none. */
struct gv_array_shape {
    uint32_t format, channels, flags, levels;
    uint64_t width, height, depth;
};

/* One side of a copy: of an array, from byte, row and slice (or layer) on; or (array: NULL) device memory. */
struct gv_array_side {
    struct gv_array *array;
    uint64_t address;
    uint32_t at[3];
};

/* A texture in linear or pitched memory, or how an array is read; numbers as in CUDA_RESOURCE_DESC and CUDA_TEXTURE_DESC. */
struct gv_texture {
    uint32_t kind; /* CUresourcetype: 2 linear, 3 pitched; of an array 0, and neither format, channels nor a place */
    uint32_t format, channels, flags, filter, modes[3];
    float border[4];
    uint64_t address, width, height, pitch; /* linear: width is in bytes */
    uint32_t mip_filter;
    float bias, least, most; /* of the level of detail */
    uint32_t anisotropy;     /* at most; 0 and 1: none. A software GPU has none */
};

/* The arguments of cuTensorMapEncodeTiled. */
struct gv_tensor_map {
    uint32_t type, rank, interleave, swizzle, promotion, fill;
    uint64_t address, dims[5], strides[5]; /* rank - 1 strides, bytes */
    uint32_t box[5], steps[5];
    /* Of cuTensorMapEncodeIm2col, which has no box: channels of a pixel (0: the map is a tiled one), pixels of a column, and where the box of pixels begins and ends. */
    uint32_t channels, pixels;
    int32_t lower[3], upper[3];
};

/* The inputs of a link. */
struct gv_link_job {
    const struct gv_link_part *inputs;
    const struct gv_link_option *options; /* for the whole link */
    uint32_t n_inputs, n_options;
};

#define GV_LINK_LOG_SIZE 8192

/* The result of a link. The texts */
struct gv_link_result {
    void *image; /* malloc'ed, freed by the caller; NULL when the link failed */
    size_t size;
    char info[GV_LINK_LOG_SIZE], error[GV_LINK_LOG_SIZE];
};

#include "gv_backend_ops.h" /* struct gv_backend_ops, of native/api/backend.toml */

extern const struct gv_backend_ops gv_backend_soft;
extern const struct gv_backend_ops gv_backend_cuda;

#endif
