/* Tensor copies: boxes of up to five dimensions between global and shared memory, as a tensor map describes them. */
#include "../driver_constants.h"
#include "exec_private.h"
#include "tensor_map.h"

#include <string.h>

#define SOFT_EXPORT __attribute__((visibility("default")))

/* What is copied as one: an element, or with elements of less than a byte 2 or 16 of them. In shared memory 16 of those may lie further apart. */
struct unit {
    uint8_t elements, size, shared_size; /* of which there are 1 << elements; bytes */
};

static struct unit unit_of(uint32_t type) {
    static const struct unit units[] = {{0, 1, 1}, {0, 2, 2}, {0, 4, 4}, {0, 4, 4}, {0, 8, 8}, {0, 8, 8}, {0, 2, 2},  {0, 4, 4},
                                        {0, 8, 8}, {0, 2, 2}, {0, 4, 4}, {0, 4, 4}, {0, 4, 4}, {1, 1, 1}, {4, 8, 16}, {4, 12, 16}};
    return type < sizeof units / sizeof *units ? units[type] : (struct unit){0, 0, 0};
}

#define SWIZZLE_128B_ATOM_32B 4u                       /* CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B */
static const uint32_t spans[] = {0, 32, 64, 128, 128}; /* bytes, of swizzles */

/* What both kinds of maps have. */
static bool begin_map(struct soft_tensor_map *map, uint32_t type, uint32_t rank, uint64_t address, const uint64_t *dims, const uint64_t *strides,
                      const uint32_t *steps, uint32_t interleave, uint32_t swizzle, uint32_t fill) {
    const struct unit unit = unit_of(type);
    const uint32_t parts = (1u << unit.elements) - 1;
    if (!unit.size || !rank || rank > 5 || address % 16 || interleave || swizzle > SWIZZLE_128B_ATOM_32B || fill > 1) return false;
    if (fill && (type < SOFT_TENSOR_F16 || type > SOFT_TENSOR_TF32_FTZ)) return false;
    if (dims[0] & parts || (parts && steps[0] != 1)) return false;
    memset(map, 0, sizeof *map);
    *map = (struct soft_tensor_map){
        .magic = SOFT_TENSOR_MAGIC, .type = (uint8_t)type, .rank = (uint8_t)rank, .swizzle = (uint8_t)swizzle, .fill = (uint8_t)fill};
    map->address = address;
    for (uint32_t i = 0; i < rank; i++) {
        if (!dims[i] || dims[i] > 1ull << 32 || !steps[i] || steps[i] > 8) return false;
        if (i + 1 < rank && (strides[i] % 16 || strides[i] >= 1ull << 40)) return false;
        map->last[i] = (uint32_t)(dims[i] - 1);
        map->step[i] = (uint8_t)steps[i];
        if (i + 1 < rank) map->stride[i] = strides[i];
    }
    return true;
}

/* Whether so many elements may lie side by side in shared memory. */
static bool good_row(const struct soft_tensor_map *map, uint32_t elements) {
    const struct unit unit = unit_of(map->type);
    uint32_t inner = (elements >> unit.elements) * unit.shared_size;
    return !(elements & ((1u << unit.elements) - 1)) && inner % 16 == 0 && (!map->swizzle || inner <= spans[map->swizzle]);
}

int soft_tensor_map_tiled(struct soft_tensor_map *map, uint32_t type, uint32_t rank, uint64_t address, const uint64_t *dims, const uint64_t *strides,
                          const uint32_t *box, const uint32_t *steps, uint32_t interleave, uint32_t swizzle, uint32_t fill) {
    if (!begin_map(map, type, rank, address, dims, strides, steps, interleave, swizzle, fill)) return -1;
    for (uint32_t i = 0; i < rank; i++) {
        if (!box[i] || box[i] > 256) return -1;
        map->box[i] = (uint16_t)box[i];
    }
    return good_row(map, box[0]) ? 0 : -1;
}

int soft_tensor_map_im2col(struct soft_tensor_map *map, uint32_t type, uint32_t rank, uint64_t address, const uint64_t *dims, const uint64_t *strides,
                           const struct soft_pixels *pixels, const uint32_t *steps, uint32_t interleave, uint32_t swizzle, uint32_t fill) {
    static const int32_t corners[] = {[3] = 1 << 15, [4] = 1 << 7, [5] = 1 << 4}; /* what the corners' coordinates are below */
    if (rank < 3 || !begin_map(map, type, rank, address, dims, strides, steps, interleave, swizzle, fill)) return -1;
    if (!pixels->channels || pixels->channels > 256 || !pixels->count || pixels->count > 1024 || !good_row(map, pixels->channels)) return -1;
    map->im2col = 1;
    map->channels = (uint16_t)pixels->channels;
    map->pixels = (uint16_t)pixels->count;
    for (uint32_t i = 0; i < rank - 2; i++) {
        int32_t low = pixels->lower[i], high = pixels->upper[i], most = corners[rank];
        if (low < -most || low >= most || high < -most || high >= most || (int64_t)dims[i + 1] + high <= low) return -1;
        map->lower[i] = (int16_t)low;
        map->upper[i] = (int16_t)high;
    }
    return 0;
}

/* The bits of a shared address that a swizzle mixes: 16-byte pieces are exchanged within 32, 64 or 128 bytes, by the number of the 128-byte line, or 32-byte
 * pieces within 128 bytes. */
static uint64_t swizzled(uint64_t offset, uint32_t mode) {
    static const uint8_t masks[] = {0, 1, 3, 7};
    return mode == SWIZZLE_128B_ATOM_32B ? offset ^ (offset >> 7 & 3) << 5 : offset ^ (offset >> 7 & masks[mode]) << 4;
}

struct walk {
    const struct soft_tensor_map *map;
    struct unit unit;
    uint32_t count[5]; /* of units in the first dimension */
    int64_t at[5];
};

static uint32_t bad_map(const struct soft_tensor_map *map) {
    return (uintptr_t)map % 64 || map->magic != SOFT_TENSOR_MAGIC || !map->rank || map->rank > 5 || !unit_of(map->type).size;
}

/* The address of a unit of the box, or 0 outside of the tensor. */
static uint64_t global_of(const struct walk *k, const uint32_t *index) {
    uint64_t address = k->map->address;
    for (uint32_t i = 0; i < k->map->rank; i++) {
        int64_t x = k->at[i] + (int64_t)index[i] * k->map->step[i];
        if (x < 0 || x > (int64_t)(i ? k->map->last[i] : k->map->last[0] >> k->unit.elements)) return 0;
        address += (uint64_t)x * (i ? k->map->stride[i - 1] : k->unit.size);
    }
    return address;
}

static void filled(void *to, uint32_t size, const struct soft_tensor_map *map) {
    static const uint64_t nan[9] = {[2] = 0x7FFF, [4] = 0x7FFFFFFF, [8] = 0x7FFFFFFFFFFFFFFF};
    uint64_t value[2] = {map->fill ? nan[size] : 0}; /* none of the wider ones has NaNs */
    memcpy(to, value, size);
}

static void flush(void *element) {
    uint32_t bits;
    memcpy(&bits, element, 4);
    if (!(bits & 0x7F800000)) bits &= 0x80000000;
    memcpy(element, &bits, 4);
}

static uint32_t reduce_type(uint32_t type) {
    if (type > SOFT_TENSOR_TF32_FTZ) return 0xFF;
    static const uint8_t types[] = {0xFF,
                                    0xFF,
                                    SOFT_REDUCE_U32,
                                    SOFT_REDUCE_S32,
                                    SOFT_REDUCE_U64,
                                    SOFT_REDUCE_S64,
                                    SOFT_REDUCE_F16,
                                    SOFT_REDUCE_F32,
                                    SOFT_REDUCE_F64,
                                    SOFT_REDUCE_BF16,
                                    SOFT_REDUCE_F32,
                                    SOFT_REDUCE_F32,
                                    SOFT_REDUCE_F32};
    return types[type];
}

/* How a copy moves units, `how` as soft_tensor_copy has it. */
struct move {
    const struct soft_tensor_map *map;
    struct unit unit;
    uint32_t how;
    bool flushes;
};

static struct move begin_move(struct soft_warp *w, uint32_t lane, const struct soft_tensor_map *map, const char *shared, uint32_t how, uint32_t rank,
                              bool im2col) {
    struct runner *r = soft_fiber_of(w)->block->runner;
    if (bad_map(map) || map->rank != rank || map->im2col != im2col) {
        soft_grid_fail(r->grid, CUDA_ERROR_ILLEGAL_INSTRUCTION, w, "%p is no tensor map of %u dimensions", (const void *)map, rank);
        soft_leave(r);
    }
    if ((uintptr_t)shared % 128) soft_trap(w, 1u << lane, SOFT_TRAP_MISALIGNED);
    if (how >= SOFT_TENSOR_REDUCE && reduce_type(map->type) == 0xFF) {
        soft_grid_fail(r->grid, CUDA_ERROR_ILLEGAL_INSTRUCTION, w, "a tensor of elements that cannot be reduced");
        soft_leave(r);
    }
    bool flushes = how == SOFT_TENSOR_LOAD && (map->type == SOFT_TENSOR_F32_FTZ || map->type == SOFT_TENSOR_TF32_FTZ);
    return (struct move){.map = map, .unit = unit_of(map->type), .how = how, .flushes = flushes};
}

/* One unit; there: NULL outside of the tensor. */
static void move_unit(const struct move *m, char *here, char *there) {
    if (m->how >= SOFT_TENSOR_REDUCE) {
        if (there) soft_reduce_element(there, here, m->how - SOFT_TENSOR_REDUCE, reduce_type(m->map->type));
    } else if (m->how == SOFT_TENSOR_STORE) {
        if (there) memcpy(there, here, m->unit.size);
    } else if (there) {
        memcpy(here, there, m->unit.size);
        if (m->flushes) flush(here);
    } else {
        filled(here, m->unit.size, m->map);
    }
}

static void end_move(struct soft_warp *w, uint32_t lane, const struct move *m, void *mbarrier, uint64_t units) {
    if (mbarrier) soft_mbarrier(w, lane, SOFT_MBARRIER_COMPLETE, mbarrier, 0, (int64_t)(units * m->unit.size)); /* gaps are not counted */
}

/* cp.async.bulk.tensor and cp.reduce.async.bulk.tensor, tile mode. `how`: SOFT_TENSOR_LOAD, SOFT_TENSOR_STORE, or SOFT_TENSOR_REDUCE + the operation. */
SOFT_EXPORT void soft_tensor_copy(struct soft_warp *w, uint32_t lane, const struct soft_tensor_map *map, char *shared, uint32_t how, uint32_t rank,
                                  void *mbarrier, int32_t x0, int32_t x1, int32_t x2, int32_t x3, int32_t x4, uint32_t ranks) {
    if (ranks & SOFT_RANKS) {
        for (uint32_t left = ranks & SOFT_RANKS; left; left &= left - 1) {
            uint32_t block = (uint32_t)__builtin_ctz(left);
            soft_tensor_copy(w, lane, map, soft_in_block(w, shared, block), how, rank, soft_multicast_mbarrier(w, mbarrier, block, ranks), x0, x1, x2,
                             x3, x4, 0);
        }
        return;
    }
    const struct move m = begin_move(w, lane, map, shared, how, rank, false);
    struct walk k = {.map = map, .unit = m.unit, .at = {x0 >> m.unit.elements, x1, x2, x3, x4}};
    uint64_t total = 1;
    for (uint32_t i = 0; i < rank; i++) {
        uint32_t box = i ? map->box[i] : map->box[0] >> k.unit.elements;
        k.count[i] = (box + map->step[i] - 1u) / map->step[i];
        total *= k.count[i];
    }
    uint32_t index[5] = {0};
    uint64_t base = (uint64_t)(shared - (char *)w->shared);
    for (uint64_t n = 0; n < total; n++) {
        char *here = (char *)w->shared + swizzled(base + n * k.unit.shared_size, map->swizzle);
        move_unit(&m, here, (char *)(uintptr_t)global_of(&k, index));
        for (uint32_t i = 0; i < rank && ++index[i] == k.count[i]; i++) index[i] = 0;
    }
    end_move(w, lane, &m, mbarrier, total);
}

/* The address of a pixel's first channel, or 0 outside of the tensor. */
static uint64_t pixel_of(const struct soft_tensor_map *map, const int64_t *at) {
    uint64_t address = map->address;
    for (uint32_t i = 1; i < map->rank; i++) {
        if (at[i] < 0 || at[i] > (int64_t)map->last[i]) return 0;
        address += (uint64_t)at[i] * map->stride[i - 1];
    }
    return address;
}

/* The next pixel of the box: along its first dimension, then its next, and then in the next image. */
static void next_pixel(const struct soft_tensor_map *map, int64_t *at) {
    for (uint32_t i = 1; i + 1 < map->rank; i++) {
        at[i] += map->step[i];
        if (at[i] <= (int64_t)map->last[i] + map->upper[i - 1]) return;
        at[i] = map->lower[i - 1];
    }
    at[map->rank - 1] += map->step[map->rank - 1];
}

SOFT_EXPORT void soft_tensor_im2col(struct soft_warp *w, uint32_t lane, const struct soft_tensor_map *map, char *shared, uint32_t how, uint32_t rank,
                                    void *mbarrier, int32_t x0, int32_t x1, int32_t x2, int32_t x3, int32_t x4, uint32_t o0, uint32_t o1, uint32_t o2,
                                    uint32_t ranks) {
    if (ranks & SOFT_RANKS) {
        for (uint32_t left = ranks & SOFT_RANKS; left; left &= left - 1) {
            uint32_t block = (uint32_t)__builtin_ctz(left);
            soft_tensor_im2col(w, lane, map, soft_in_block(w, shared, block), how, rank, soft_multicast_mbarrier(w, mbarrier, block, ranks), x0, x1,
                               x2, x3, x4, o0, o1, o2, 0);
        }
        return;
    }
    const struct move m = begin_move(w, lane, map, shared, how, rank, true);
    const uint32_t channels = map->channels >> m.unit.elements, offsets[] = {o0, o1, o2};
    const int64_t first = x0 >> m.unit.elements, last = map->last[0] >> m.unit.elements;
    int64_t pixel[5] = {0, x1, x2, x3, x4};
    uint64_t base = (uint64_t)(shared - (char *)w->shared);
    for (uint32_t p = 0; p < map->pixels; p++) {
        int64_t at[5];
        memcpy(at, pixel, sizeof at);
        for (uint32_t i = 1; i + 1 < rank; i++) at[i] += (int64_t)(offsets[i - 1] & 0xFFFF);
        uint64_t begin = pixel_of(map, at);
        for (uint32_t c = 0; c < channels; c++) {
            char *here = (char *)w->shared + swizzled(base + ((uint64_t)p * channels + c) * m.unit.shared_size, map->swizzle);
            bool inside = begin && first + c >= 0 && first + c <= last;
            move_unit(&m, here, inside ? (char *)(uintptr_t)(begin + (uint64_t)(first + c) * m.unit.size) : NULL);
        }
        next_pixel(map, pixel);
    }
    end_move(w, lane, &m, mbarrier, (uint64_t)map->pixels * channels);
}

/* tensormap.replace: one field of a map that the program builds in memory. */
SOFT_EXPORT void soft_tensor_replace(struct soft_warp *w, uint32_t lane, struct soft_tensor_map *map, uint32_t field, uint32_t which,
                                     uint64_t value) {
    /* How the instruction numbers the types of elements, as a tensor map's creation does. */
    static const uint8_t types[] = {0,  1,  2, 3, 4, 5, 6, 7, SOFT_TENSOR_F32_FTZ, 8, SOFT_TENSOR_BF16, SOFT_TENSOR_TF32, SOFT_TENSOR_TF32_FTZ,
                                    13, 14, 15};
    (void)lane;
    struct runner *r = soft_fiber_of(w)->block->runner;
    /* A program that builds a map from nothing begins with zeros, and replaces every field. */
    if (!map->magic && !map->rank && !map->address) *map = (struct soft_tensor_map){.magic = SOFT_TENSOR_MAGIC, .rank = 1, .step = {1, 1, 1, 1, 1}};
    bool good = map->magic == SOFT_TENSOR_MAGIC && which < 5;
    switch (good ? field : ~0u) {
    case SOFT_TENSOR_ADDRESS: map->address = value; break;
    case SOFT_TENSOR_RANK: map->rank = (uint8_t)(value + 1); break;
    case SOFT_TENSOR_BOX: map->box[which] = (uint16_t)value; break;
    case SOFT_TENSOR_DIM: map->last[which] = (uint32_t)(value - 1); break;
    case SOFT_TENSOR_STRIDE: map->stride[which < 4 ? which : 3] = value; break;
    case SOFT_TENSOR_STEP: map->step[which] = (uint8_t)value; break;
    case SOFT_TENSOR_TYPE:
        good = value < sizeof types;
        if (good) map->type = types[value];
        break;
    case SOFT_TENSOR_INTERLEAVE: good = value == 0; break;
    case SOFT_TENSOR_SWIZZLE:
        good = value <= 3;
        if (good) map->swizzle = (uint8_t)value;
        break;
    case SOFT_TENSOR_FILL: map->fill = value != 0; break;
    default: good = false;
    }
    if (!good) {
        soft_grid_fail(r->grid, CUDA_ERROR_ILLEGAL_INSTRUCTION, w, "tensormap.replace: field %u of %p cannot become %llu", field, (void *)map,
                       (unsigned long long)value);
        soft_leave(r);
    }
}
