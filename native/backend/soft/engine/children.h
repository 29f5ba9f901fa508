/* Kernels that kernels launch. While a grid runs, the engine notes them; the grid's caller runs them afterwards (../children.c). */
#ifndef SOFT_CHILDREN_H
#define SOFT_CHILDREN_H

#include <stdatomic.h>
#include <stdint.h>

/* Addresses of kernels: this and 16 for each up to and including its own number. gpuvirt/soft/ptx/layout.py has the same. */
#define SOFT_KERNEL_BASE 0x0e00000000000000ull
/* Per-grid streams of the device runtime; all others keep the order of launches. */
#define SOFT_STREAM_TAIL 3
/* Errors of the device runtime as libcudadevrt numbers them. */
enum { SOFT_CHILD_INVALID_VALUE = 1, SOFT_CHILD_INVALID_CONFIGURATION = 7, SOFT_CHILD_TOO_MANY = 12 };

/* A launch and, behind it, the parameters, which the kernel writes itself. The device runtime in gpuvirt/soft/ptx/device_runtime.py writes the shape at these offsets. */
struct soft_child {
    struct soft_child *made; /* -64: the buffer that the grid got before */
    struct soft_child *next; /* -56: the launch before; afterwards, the one to run next */
    uint64_t kernel;         /* -48 */
    uint32_t grid[3];        /* -40 */
    uint32_t block[3];       /* -28 */
    uint32_t shared;         /* -16 */
    uint32_t launched;       /* -12 */
    uint64_t stream;         /*  -8 */
    char params[];
};

/* What one grid may launch, and has launched. */
struct soft_children {
    _Atomic(struct soft_child *) made, launched; /* the last ones */
    _Atomic uint32_t n;
    /* Bytes of a kernel's parameters; < 0: there is no such kernel. */
    int64_t (*param_bytes)(void *arg, uint64_t kernel);
    /* 0, or the error of the launch. */
    uint32_t (*check)(void *arg, const struct soft_child *c);
    void *arg;
};

#endif
