/* Tensor memory: who has which columns, and what moves between it, registers and shared memory (tcgen05).
 *
 * All of it happens when the instruction comes, so there is nothing that tcgen05.wait and .fence would wait for. */
#include "tensor_memory.h"

#include <string.h>

#include "../../driver_constants.h"
#include "descriptor.h"

#define SOFT_EXPORT __attribute__((visibility("default")))
#define TAKEN_BY 32u /* columns */

static _Noreturn void fail(struct soft_warp *w, const char *what, uint32_t number) {
    struct runner *r = soft_fiber_of(w)->block->runner;
    soft_grid_fail(r->grid, CUDA_ERROR_LAUNCH_FAILED, w, what, number);
    soft_leave(r);
}

/* ---- columns ---- */

static struct tensor_memory *memory_of(struct soft_warp *w, struct block *b) {
    if (b->tensor) return b->tensor;
    void *made = mmap(NULL, sizeof *b->tensor, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) fail(w, "out of memory for %u columns of tensor memory", SOFT_TENSOR_COLUMNS);
    return b->tensor = made;
}

/* The columns as bits; 0: no such number of columns. */
static uint32_t bits_of(uint32_t columns) {
    bool good = columns >= TAKEN_BY && columns <= SOFT_TENSOR_COLUMNS && !(columns & (columns - 1));
    return good ? (1u << columns / TAKEN_BY) - 1 : 0;
}

/* Where lanes run by themselves, and come here together, the first of them does the work. */
static bool is_first(const struct soft_warp *w, uint32_t lanes) { return (w->lanes & (w->lanes - 1)) != 0 || !(lanes & (w->lanes - 1)); }

SOFT_EXPORT void soft_tensor_memory_alloc(struct soft_warp *w, uint32_t lanes, void *to, uint32_t columns) {
    struct block *b = soft_fiber_of(w)->block;
    uint32_t wanted = bits_of(columns);
    if (!is_first(w, lanes)) return;
    if (!wanted) fail(w, "tcgen05.alloc of %u columns, which are no power of two from 32 to 512", columns);
    if (b->tensor_relinquished) fail(w, "tcgen05.alloc of %u columns after tcgen05.relinquish_alloc_permit", columns);
    memory_of(w, b);
    for (;; soft_yield(w)) {
        for (uint32_t first = 0; first + columns / TAKEN_BY <= SOFT_TENSOR_COLUMNS / TAKEN_BY; first++) {
            if (b->tensor_allocated & wanted << first) continue;
            b->tensor_allocated |= (uint16_t)(wanted << first);
            uint32_t address = first * TAKEN_BY;
            memcpy(to, &address, 4);
            return;
        }
    }
}

SOFT_EXPORT void soft_tensor_memory_dealloc(struct soft_warp *w, uint32_t lanes, uint32_t address, uint32_t columns) {
    struct block *b = soft_fiber_of(w)->block;
    uint32_t bits = bits_of(columns), first = tensor_column(address) / TAKEN_BY;
    if (!is_first(w, lanes)) return;
    if (!bits) fail(w, "tcgen05.dealloc of %u columns, which are no power of two from 32 to 512", columns);
    soft_tensor_memory_check(w, b, 0, 1, tensor_column(address), columns);
    b->tensor_allocated &= (uint16_t)~(bits << first);
}

SOFT_EXPORT void soft_tensor_memory_relinquish(struct soft_warp *w) { soft_fiber_of(w)->block->tensor_relinquished = true; }

void soft_tensor_memory_check(struct soft_warp *w, const struct block *b, uint32_t lane, uint32_t lanes, uint32_t column, uint32_t columns) {
    if (lane + lanes > SOFT_TENSOR_LANES) fail(w, "tensor memory has 128 lanes, and no lane %u", lane + lanes - 1);
    if (column + columns > SOFT_TENSOR_COLUMNS) fail(w, "tensor memory has 512 columns, and no column %u", column + columns - 1);
    for (uint32_t i = column / TAKEN_BY; i * TAKEN_BY < column + columns; i++)
        if (!(b->tensor_allocated >> i & 1)) fail(w, "column %u of tensor memory is not allocated", i * TAKEN_BY < column ? column : i * TAKEN_BY);
}

void soft_tensor_pair(struct block *b, struct block *pair[2]) {
    struct block *first = b->lead;
    while (first && first->rank != (b->rank & ~1u)) first = first->next;
    pair[0] = first;
    pair[1] = first ? first->next : NULL;
}

/* ---- registers ---- */

struct place {
    uint32_t lane, column;
};

/* Where a thread's register lies, in columns of a register's bits. */
static struct place place_of(uint32_t shape, uint32_t thread, uint32_t number, uint32_t half) {
    switch (shape) {
    case SOFT_TENSOR_16X64: return (struct place){thread / 4 + thread % 2 * 8, 2 * number + thread / 2 % 2};
    case SOFT_TENSOR_16X128: return (struct place){thread / 4 + number % 2 * 8, number / 2 * 4 + thread % 4};
    case SOFT_TENSOR_16X256: return (struct place){thread / 4 + number / 2 % 2 * 8, number / 4 * 8 + thread % 4 * 2 + number % 2};
    case SOFT_TENSOR_16X32X2: return (struct place){thread % 16, number + thread / 16 * half};
    default: return (struct place){thread, number};
    }
}

/* Columns of 32 bits, from the address's on, that so many registers have. */
static uint32_t columns_of(uint32_t shape, uint32_t registers, uint32_t half) {
    switch (shape) {
    case SOFT_TENSOR_16X64:
    case SOFT_TENSOR_16X128:
    case SOFT_TENSOR_16X256: return 2 * registers;
    case SOFT_TENSOR_16X32X2: return registers + half;
    default: return registers;
    }
}

/* The cell of the address; what else is touched is checked too. */
static uint32_t (*cells_of(struct soft_warp *w, uint32_t address, uint32_t shape, uint32_t registers, uint32_t packed, uint32_t half))
    [SOFT_TENSOR_COLUMNS] {
        struct block *b = soft_fiber_of(w)->block;
        uint32_t columns = columns_of(shape, registers << packed, half);
        soft_tensor_memory_check(w, b, tensor_lane(address), shape == SOFT_TENSOR_32X32 ? 32 : 16, tensor_column(address), columns);
        return b->tensor->cells + tensor_lane(address);
    }

SOFT_EXPORT void soft_tensor_memory_load(struct soft_warp *w, uint32_t address, uint32_t shape, uint32_t registers, uint32_t packed, uint32_t half,
                                         uint32_t *out) {
    uint32_t (*cells)[SOFT_TENSOR_COLUMNS] = cells_of(w, address, shape, registers, packed, half);
    uint32_t first = tensor_column(address);
    for (uint32_t i = 0; i < registers; i++)
        for (uint32_t thread = 0; thread < SOFT_LANES; thread++, out++) {
            struct place p = place_of(shape, thread, i, half >> packed);
            const uint32_t *cell = cells[p.lane] + first + (p.column << packed);
            *out = packed ? (cell[0] & 0xffff) | cell[1] << 16 : cell[0];
        }
}

SOFT_EXPORT void soft_tensor_memory_store(struct soft_warp *w, uint32_t address, uint32_t shape, uint32_t registers, uint32_t packed, uint32_t half,
                                          const uint32_t *values) {
    uint32_t (*cells)[SOFT_TENSOR_COLUMNS] = cells_of(w, address, shape, registers, packed, half);
    uint32_t first = tensor_column(address);
    for (uint32_t i = 0; i < registers; i++)
        for (uint32_t thread = 0; thread < SOFT_LANES; thread++, values++) {
            struct place p = place_of(shape, thread, i, half >> packed);
            uint32_t *cell = cells[p.lane] + first + (p.column << packed);
            cell[0] = packed ? *values & 0xffff : *values;
            if (packed) cell[1] = *values >> 16;
        }
}

/* ---- shared memory ---- */

static void copy_rows(struct soft_warp *w, struct block *b, uint32_t address, uint64_t descriptor, uint32_t shape) {
    /* Of each shape the rows, 16 bytes of each, and how far apart the lanes of rows and of copies are. */
    static const struct {
        uint8_t rows, pieces, apart, copies, copy_apart;
    } shapes[] = {[SOFT_TENSOR_128X256] = {128, 2, 1, 1, 0},      [SOFT_TENSOR_4X256] = {4, 2, 32, 1, 0},
                  [SOFT_TENSOR_128X128] = {128, 1, 1, 1, 0},      [SOFT_TENSOR_64X128_02_13] = {64, 1, 1, 2, 64},
                  [SOFT_TENSOR_64X128_01_23] = {64, 1, 1, 2, 32}, [SOFT_TENSOR_32X128] = {32, 1, 1, 4, 32}};
    const struct matrix m = matrix_of(b->shared, descriptor);
    uint32_t first = tensor_lane(address), column = tensor_column(address), pieces = shapes[shape].pieces;
    soft_tensor_memory_check(w, b, first, (shapes[shape].rows - 1u) * shapes[shape].apart + 1, column, 4 * pieces);
    for (uint32_t row = 0; row < shapes[shape].rows; row++)
        for (uint32_t copy = 0; copy < shapes[shape].copies; copy++) {
            uint32_t lane = first + row * shapes[shape].apart + copy * shapes[shape].copy_apart;
            if (shape == SOFT_TENSOR_64X128_01_23) lane += row / 32 * 32; /* rows 32 to 63 go to lanes from 64 on */
            for (uint32_t i = 0; i < pieces; i++)
                memcpy(&b->tensor->cells[lane % SOFT_TENSOR_LANES][column + 4 * i], matrix_piece_of_row(&m, row, i), MATRIX_PIECE);
        }
}

SOFT_EXPORT void soft_tensor_memory_copy(struct soft_warp *w, uint32_t lane, uint32_t address, uint64_t descriptor, uint32_t shape, uint32_t pair) {
    (void)lane;
    struct block *blocks[2] = {soft_fiber_of(w)->block, NULL};
    if (pair) soft_tensor_pair(blocks[0], blocks);
    for (int i = 0; i < 2; i++)
        if (blocks[i]) copy_rows(w, blocks[i], address, descriptor, shape);
}

/* ---- completion ---- */

SOFT_EXPORT void soft_tensor_commit(struct soft_warp *w, uint32_t lane, void *mbarrier, uint32_t ranks) {
    if (!ranks) soft_mbarrier(w, lane, SOFT_MBARRIER_ARRIVE, mbarrier, 1, 0);
    for (; ranks; ranks &= ranks - 1) soft_mbarrier(w, lane, SOFT_MBARRIER_ARRIVE, soft_in_block(w, mbarrier, (uint32_t)__builtin_ctz(ranks)), 1, 0);
}
