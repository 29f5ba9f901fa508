/* Occupancy: how many blocks of a kernel fit a multiprocessor, by the rules that NVIDIA documents: threads, blocks, registers and shared memory each set a limit.
 * All numbers come from the device's attributes and the kernel's metadata; the worker is not asked. */
#include "gv_impl.h"
#include "objects/objects.h"

#define WARP 32
#define REGISTER_UNIT 256 /* registers are allocated to a warp in this unit */
#define WARP_UNIT 4       /* warps are allocated in groups of this many, one for each sub-core */

static int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

static int64_t shared_unit(const struct gv_device_info *info) { return device_capability(info) >= 80 ? 128 : 256; }

int occupancy_blocks(const struct shim_function *f, int block_threads, size_t dynamic_shared) {
    const struct gv_device_info *info = f->context->info;
    if (block_threads <= 0 || block_threads > (int)f->max_threads) return 0;
    if (dynamic_shared > atomic_load(&f->max_dynamic_shared)) return 0;
    int64_t warps = (block_threads + WARP - 1) / WARP;
    int64_t blocks = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) / WARP / warps;

    int64_t most = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    if (most > 0 && blocks > most) blocks = most;

    int64_t registers = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
    if (f->meta->num_regs && registers > 0) {
        int64_t per_warp = round_up((int64_t)f->meta->num_regs * WARP, REGISTER_UNIT);
        if (per_warp * round_up(warps, WARP_UNIT) > device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)) return 0;
        int64_t warps_fit = registers / WARP_UNIT / per_warp * WARP_UNIT;
        if (blocks > warps_fit / warps) blocks = warps_fit / warps;
    }

    int64_t shared = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    int64_t reserved = device_attribute(info, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
    int64_t per_block = round_up((int64_t)f->meta->static_shared + (int64_t)dynamic_shared + reserved, shared_unit(info));
    if (per_block > 0 && shared > 0 && blocks > shared / per_block) blocks = shared / per_block;
    return (int)blocks;
}

/* The function of any context, or a kernel's function in the current context. */
int function_of_any(CUfunction handle, struct shim_function **out) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    *out = object_get(OBJECT_FUNCTION, handle);
    return *out ? 0 : function_resolve(handle, c, out);
}

CUresult impl_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block_size, size_t dynamic_shared,
                                                                   unsigned int flags) {
    struct shim_function *f;
    int rc = function_of_any(function, &f);
    if (rc) return rc;
    if (!blocks || block_size <= 0 || flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) return CUDA_ERROR_INVALID_VALUE;
    *blocks = occupancy_blocks(f, block_size, dynamic_shared);
    return CUDA_SUCCESS;
}

CUresult impl_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size, size_t dynamic_shared) {
    return impl_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, dynamic_shared, 0);
}

/* The block size, in whole warps where possible, with the most threads on a multiprocessor; the largest of equal ones. */
CUresult impl_cuOccupancyMaxPotentialBlockSizeWithFlags(int *min_grid, int *block, CUfunction function, CUoccupancyB2DSize dynamic_of,
                                                        size_t dynamic_shared, int limit, unsigned int flags) {
    struct shim_function *f;
    int rc = function_of_any(function, &f);
    if (rc) return rc;
    if (!min_grid || !block || limit < 0 || flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) return CUDA_ERROR_INVALID_VALUE;
    const struct gv_device_info *info = f->context->info;
    int most = (int)f->max_threads;
    if (limit > 0 && limit < most) most = limit;
    int full = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    int best_threads = 0, best_block = 0, best_blocks = 0;
    for (int up = (int)round_up(most, WARP); up > 0; up -= WARP) {
        int size = up < most ? up : most;
        int blocks = occupancy_blocks(f, size, dynamic_of ? dynamic_of(size) : dynamic_shared);
        if (blocks * size > best_threads) {
            best_threads = blocks * size;
            best_block = size;
            best_blocks = blocks;
        }
        if (best_threads >= full) break;
    }
    *block = best_block;
    *min_grid = best_blocks * device_attribute(info, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    return CUDA_SUCCESS;
}

CUresult impl_cuOccupancyMaxPotentialBlockSize(int *min_grid, int *block, CUfunction function, CUoccupancyB2DSize dynamic_of, size_t dynamic_shared,
                                               int limit) {
    return impl_cuOccupancyMaxPotentialBlockSizeWithFlags(min_grid, block, function, dynamic_of, dynamic_shared, limit, 0);
}

CUresult impl_cuOccupancyAvailableDynamicSMemPerBlock(size_t *size, CUfunction function, int blocks, int block_size) {
    struct shim_function *f;
    int rc = function_of_any(function, &f);
    if (rc) return rc;
    if (!size || blocks <= 0 || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (blocks > occupancy_blocks(f, block_size, 0)) return CUDA_ERROR_INVALID_VALUE;
    const struct gv_device_info *info = f->context->info;
    int64_t shared = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    int64_t each = shared / blocks / shared_unit(info) * shared_unit(info);
    int64_t left = each - device_attribute(info, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK) - (int64_t)f->meta->static_shared;
    int64_t most = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) - (int64_t)f->meta->static_shared;
    if (left > most) left = most;
    *size = left > 0 ? (size_t)left : 0;
    return CUDA_SUCCESS;
}
