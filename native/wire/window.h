/* How the window of device addresses that client and worker agree on is shared out. Both sides compute it from the same three numbers, so nothing
 * of it travels.
 *
 * The window is split evenly among the session's devices, in their order. Of each device's part the client owns the lower seven eighths (it places
 * allocations there and asks for memory behind them); the worker owns the top eighth (globals of modules and what else it has to place itself).
 * Boundaries are multiples of GV_WINDOW_ALIGN. */
#ifndef GV_WINDOW_H
#define GV_WINDOW_H

#include <stdint.h>

#define GV_WINDOW_ALIGN (2ull << 20) /* bytes; also the smallest chunk a device may have */

struct gv_window_part {
    uint64_t base;        /* first address of this device's part */
    uint64_t client_size; /* bytes from base that the client places allocations in */
    uint64_t worker_base; /* = base + client_size */
    uint64_t worker_size; /* bytes from worker_base that the worker places things in */
};

/* Device i of n_devices in the window [base, base + size). All sizes are 0 when the window is too small to be shared out. */
static inline struct gv_window_part gv_window_part(uint64_t base, uint64_t size, uint32_t n_devices, uint32_t i) {
    struct gv_window_part part = {.base = base, .worker_base = base};
    if (!n_devices || i >= n_devices) return part;
    uint64_t start = (base + GV_WINDOW_ALIGN - 1) & ~(GV_WINDOW_ALIGN - 1);
    if (start < base || start - base >= size) return part;
    uint64_t each = ((size - (start - base)) / n_devices) & ~(GV_WINDOW_ALIGN - 1);
    part.base = start + i * each;
    part.worker_size = (each / 8) & ~(GV_WINDOW_ALIGN - 1);
    part.client_size = each - part.worker_size;
    part.worker_base = part.base + part.client_size;
    return part;
}

#endif
