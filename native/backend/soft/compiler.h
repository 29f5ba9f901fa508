/* The interface from the software GPU's C code to its compiler (gpuvirt/soft, Python, in the same worker process).
 *
 * The compiler is a table of functions. In a worker it is filled with ctypes callbacks (each holds the GIL while it runs; no Python runs while a
 * kernel does). Every function returns 0 or a CUresult, and then one line of text in `err`. They may be called from any thread, several at once. */
#ifndef GV_SOFT_COMPILER_H
#define GV_SOFT_COMPILER_H

#include <stddef.h>
#include <stdint.h>

struct soft_warp; /* kernel_abi.h */

/* Replaces a kernel's code while the kernel is in use. Owned by the compiler; valid as long as the module is loaded. gpuvirt/soft/host/tiering.py
 * mirrors the struct. */
struct soft_tier {
    _Atomic uint64_t entry;    /* the best code so far, as soft_code.entry; read again for every block. Earlier code stays valid */
    _Atomic uint64_t spent_ns; /* time that grids took, added by the engine */
    uint64_t budget_ns;        /* when spent_ns reaches it, the engine sets `asked` and writes to wake_fd (an eventfd), once */
    _Atomic uint32_t asked;
    int32_t wake_fd;
};

/* An assumption of a kernel's code: the parameter at this offset is a multiple of `size`, a power of two, at most 128. */
struct soft_need {
    uint32_t offset, size;
};

/* A kernel compiled for one block shape, ready to run. */
struct soft_code {
    void (*entry)(struct soft_warp *); /* runs one warp of 32 lanes from start to end, or many (`loops`) */
    uint32_t static_shared;            /* bytes of statically declared shared memory */
    uint32_t dynamic_offset;           /* where dynamic shared memory begins, >= static_shared */
    uint32_t local_bytes;              /* local memory (.local arrays) of one lane, bytes */
    /* 0: the warps of a block may run one after the other on one stack. 1: they wait at barriers. 2: they also wait for memory to change, perhaps by
     * other blocks. */
    uint32_t uses_barrier;
    uint32_t param_bytes;
    uint32_t flush;         /* the kernel runs with subnormal numbers flushed by the processor (MXCSR's DAZ and FTZ) */
    uint32_t loops;         /* `entry` heeds soft_warp.blocks */
    struct soft_tier *tier; /* NULL: `entry` is final */
    _Atomic uint64_t pace;  /* for the engine, initially 0: cycles that recent blocks took */
    /* A launch whose parameters violate one of these runs the kernel's careful code. Owned by the compiler, valid as long as the module is loaded. */
    const struct soft_need *needs;
    uint32_t n_needs;
};

/* Flag of a kernel's number: code without assumptions on parameters, which ends the grid at a misaligned access. */
#define SOFT_CAREFUL 0x80000000u

/* One input of a link; `data` is not terminated. */
struct soft_link_input {
    uint32_t type; /* CUjitInputType */
    const char *name;
    const void *data;
    size_t size;
};

struct soft_compiler {
    void *self;
    /* Reads an image (PTX text, or a fatbin with PTX, LZ4 or ZSTD compressed or plain) and returns its metadata (module_meta.h, all addresses 0) in
     * *meta, which release_meta frees. `module` is the caller's number for the module from here on. */
    int (*module_load)(void *self, uint64_t module, const void *image, size_t size, void **meta, size_t *meta_size, char *err, size_t err_size);
    void (*release_meta)(void *self, void *meta);
    /* Sets the addresses of the module's globals (in metadata order) and writes their initial values there. Once, before any kernel_get. */
    int (*module_bind)(void *self, uint64_t module, uint32_t n_globals, const uint64_t *addresses, char *err, size_t err_size);
    /* Compiles kernel number `kernel` (metadata order, perhaps with SOFT_CAREFUL) for this block shape, or finds it in the cache. May take seconds. */
    int (*kernel_get)(void *self, uint64_t module, uint32_t kernel, const uint32_t block[3], struct soft_code *code, char *err, size_t err_size);
    /* Has it compiled in the background for a launch that is queued and will call kernel_get; an error is told there. Waits for the GIL alone. NULL: nothing is compiled so. */
    void (*kernel_precompile)(void *self, uint64_t module, uint32_t kernel, const uint32_t block[3]);
    void (*module_unload)(void *self, uint64_t module);
    /* Makes one PTX text, NUL included, of several inputs; release_meta frees it. */
    int (*link)(void *self, uint32_t n, const struct soft_link_input *inputs, void **image, size_t *size, char *err, size_t err_size);
};

#endif
