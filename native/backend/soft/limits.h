/* Limits of one software GPU. The device attributes, the launch checks and the limit of cooperative launches come from here. */
#ifndef SOFT_LIMITS_H
#define SOFT_LIMITS_H

#include <stdint.h>

/* A constant, independent of the host's cores, so that grids which programs size by it, and the order of their sums, are the same on every
 * machine. */
#define SOFT_MULTIPROCESSORS 16
#define SOFT_MAX_THREADS 1024 /* per block */
#define SOFT_MAX_WARPS 32     /* per block */
#define SOFT_CLUSTER_MAX 16   /* blocks of a cluster; 8 unless the program says that it need not be portable */
#define SOFT_THREADS_PER_SM 2048
#define SOFT_BLOCKS_PER_SM 32
#define SOFT_SHARED_STATIC (48u << 10) /* per block without opting in */
#define SOFT_SHARED_OPTIN (227u << 10) /* per block at most */
#define SOFT_SHARED_PER_SM (228u << 10)
#define SOFT_SHARED_RESERVED (1u << 10) /* per block, the driver's own */
#define SOFT_REGISTERS 65536
#define SOFT_MAX_GRID_X 2147483647
#define SOFT_MAX_GRID_YZ 65535
#define SOFT_MAX_BLOCK_Z 64
#define SOFT_GUARD (1u << 20) /* bytes of the guard below a stack that runs kernels, larger than nearly all frames */

/* How many blocks of this shape are resident on the device at once (CUDA's occupancy, registers apart). */
static inline uint64_t soft_resident_blocks(uint32_t threads, uint64_t shared) {
    uint32_t per_sm = SOFT_THREADS_PER_SM / 32 / ((threads + 31) / 32);
    if (per_sm > SOFT_BLOCKS_PER_SM) per_sm = SOFT_BLOCKS_PER_SM;
    uint64_t per_block = (shared + SOFT_SHARED_RESERVED + 127) & ~127ull;
    if (per_sm > SOFT_SHARED_PER_SM / per_block) per_sm = (uint32_t)(SOFT_SHARED_PER_SM / per_block);
    return (uint64_t)per_sm * SOFT_MULTIPROCESSORS;
}

#endif
