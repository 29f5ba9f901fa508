/* tcgen05.mma: a product of matrices into tensor memory, whose shape and formats the instruction descriptor has.
 *
 * Bits of the instruction descriptor (PTX ISA, "instruction descriptor"): 0 and 1 which column has the metadata (of 16 bits and more), 2 sparse, 3 saturate,
 * 4 and 5 the format of D (0 f16, 1 f32, 2 s32), 7 to 9 and 10 to 12 the formats of A and B, 13 and 14 their negations, 15 and 16: their elements of a column lie
 * side by side, 17 to 22 N / 8, 24 to 28 M / 16. With scales: 4 and 5 B's and 29 and 30 A's first byte of a column of scales, 23 the scales' format, 31 another
 * depth.
 *
 * Where row m and column n of D lie (PTX ISA, "data path layout organization"), with A's row m, where that is in tensor memory, in the same lane: lane_of. */
#include "../../driver_constants.h"
#include "descriptor.h"
#include "element_formats.h"
#include "tensor_memory.h"

#include <string.h>

#define SOFT_EXPORT __attribute__((visibility("default")))
#define PIECES 2u  /* of 16 bytes, of a row of A, and of B where A is not sparse */
#define STRIPE 32u /* columns whose sums stay in registers */

/* PTX's data path organizations: into how many parts D's columns are divided, each in lanes of its own; _HALF: of every 32 lanes 16 have rows. */
enum paths { PATHS_4X1 = 1, PATHS_2X2 = 2, PATHS_1X4 = 4, PATHS_4X1_HALF = 16 };

struct product {
    uint32_t how, instruction;
    uint32_t m, n, k; /* m: rows of this block */
    enum paths paths;
    enum element_format a, b;
    bool sparse, add;
    uint32_t vectors; /* scales of a row; 0: none */
    uint32_t d, metadata, scale_a, scale_b;
    uint64_t left, right; /* descriptors, or an address */
    uint64_t disabled[4];
    double scales[TENSOR_ROWS][4]; /* of B's rows, for the part of the columns at hand */
};

static uint32_t field(uint32_t word, uint32_t first, uint32_t bits) { return word >> first & ((1u << bits) - 1); }

/* ---- what the descriptor says ---- */

static enum element_format format_of(uint32_t kind, uint32_t code) {
    static const uint8_t halves[] = {ELEMENT_F16, ELEMENT_BF16, ELEMENT_TF32};
    static const uint8_t bytes[] = {ELEMENT_E4M3, ELEMENT_E5M2, ELEMENT_FORMATS, ELEMENT_E2M3,
                                    ELEMENT_E3M2, ELEMENT_E2M1, ELEMENT_FORMATS, ELEMENT_FORMATS};
    switch (kind) {
    case SOFT_PRODUCT_F16: return code < 2 ? halves[code] : ELEMENT_FORMATS;
    case SOFT_PRODUCT_TF32: return code == 2 ? ELEMENT_TF32 : ELEMENT_FORMATS;
    case SOFT_PRODUCT_I8: return code < 2 ? (code ? ELEMENT_S8 : ELEMENT_U8) : ELEMENT_FORMATS;
    case SOFT_PRODUCT_F8F6F4:
    case SOFT_PRODUCT_MXF8F6F4: return bytes[code & 7];
    default: return (code & 3) == 1 ? ELEMENT_E2M1_PACKED : ELEMENT_FORMATS;
    }
}

/* What is wrong with it, or NULL. */
static const char *describe(struct product *p) {
    uint32_t kind = p->how & SOFT_PRODUCT_KIND, i = p->instruction, blocks = p->how & SOFT_PRODUCT_PAIR ? 2 : 1, m = field(i, 24, 5) * 16;
    p->vectors = field(p->how, SOFT_PRODUCT_VECTORS_SHIFT, 4);
    p->n = field(i, 17, 6) * 8;
    p->m = m / blocks;
    p->sparse = p->how & SOFT_PRODUCT_SPARSE;
    p->a = format_of(kind, field(i, 7, 3));
    p->b = format_of(kind, field(i, 10, 3));
    if (p->a == ELEMENT_FORMATS || p->b == ELEMENT_FORMATS) return "formats that the kind does not have";
    p->k = PIECES * soft_elements_in_piece(p->a) * (p->sparse ? 2 : 1);
    if (p->how & SOFT_PRODUCT_STATIONARY)
        p->paths = m == 32 ? PATHS_1X4 : m == 64 ? PATHS_2X2 : PATHS_4X1;
    else if (p->m == 64)
        p->paths = blocks == 1 || p->sparse ? PATHS_4X1_HALF : PATHS_2X2;
    else
        p->paths = PATHS_4X1;
    bool fits = p->paths == PATHS_1X4 ? p->m == 32 : p->paths == PATHS_4X1 ? p->m == 128 : p->m == 64;
    uint32_t parts = p->paths == PATHS_4X1_HALF ? 1 : p->paths;
    if (!fits || !p->n || p->n > TENSOR_ROWS || p->n % (8 * parts) || p->n % (8 * blocks)) return "a shape that it does not have";
    if (p->vectors && field(i, 31, 1)) return "a depth of 96";
    if (p->sparse && p->paths == PATHS_4X1_HALF) return "a sparse factor of 64 rows";
    if (p->sparse != field(i, 2, 1)) return "a descriptor that disagrees about the sparse factor";
    if (p->how & SOFT_PRODUCT_LEFT_HERE && soft_elements_in_piece(p->a) == 16 && p->a >= ELEMENT_E2M3)
        return "elements of 6 or 4 bits in tensor memory";
    return NULL;
}

/* The lane of row m of a part of the columns. */
static uint32_t lane_of(const struct product *p, uint32_t m, uint32_t part) {
    return p->paths == PATHS_4X1_HALF ? m / 16 * 32 + m % 16 : p->paths == PATHS_4X1 ? m : m + part * (SOFT_TENSOR_LANES / p->paths);
}

/* ---- the factors ---- */

/* Rows of a factor in shared memory to out[row * by_row + column * by_column]. */
static void read_rows(const struct block *b, uint64_t descriptor, enum element_format format, bool negate, bool transposed, uint32_t rows,
                      uint32_t columns, float *out, uint32_t by_row, uint32_t by_column) {
    const struct matrix m = matrix_of(b->shared, descriptor);
    uint32_t each = soft_elements_in_piece(format);
    if (!transposed) {
        for (uint32_t row = 0; row < rows; row++)
            for (uint32_t i = 0; i * each < columns; i++)
                soft_elements(format, matrix_piece_of_row(&m, row, i), negate, out + row * by_row + i * each * by_column, by_column);
        return;
    }
    for (uint32_t row = 0; row < rows; row += each)
        for (uint32_t column = 0; column < columns; column++) {
            float some[32];
            soft_elements(format, matrix_piece_of_column(&m, row, column, MATRIX_PIECE / each), negate, some, 1);
            for (uint32_t i = 0; i < each && row + i < rows; i++) out[(row + i) * by_row + column * by_column] = some[i];
        }
}

/* The places of a sparse row's elements: a chunk of 4, of 2 (tf32), or of 8 in pairs (4 bits) has 4 bits. Of 16 bits and more, lane l has rows l % 8 + l / 16 * 16
 * and, in the upper half, 8 more, of the first or the second half of the columns (l / 8 % 2); else a lane has its row's, in two columns. */
static void read_places(struct tensor_memory *t, const struct product *p, uint32_t part) {
    uint32_t lanes = p->paths == PATHS_4X1 ? 0 : part * (SOFT_TENSOR_LANES / p->paths), column = tensor_column(p->metadata);
    bool wide = soft_elements_in_piece(p->a) <= 8, packed = p->a == ELEMENT_E2M1_PACKED;
    uint32_t chunks = p->a == ELEMENT_TF32 ? p->k / 2 : packed ? p->k / 8 : p->k / 4;
    for (uint32_t row = 0; row < p->m; row++)
        for (uint32_t chunk = 0; chunk < chunks; chunk++) {
            uint32_t lane = lanes + (wide ? row % 8 + row / 16 * 16 + chunk / 4 * 8 : row);
            uint32_t word = t->cells[lane][column + (wide ? field(p->instruction, 0, 2) : chunk / 8)];
            uint32_t bits = word >> (wide ? row / 8 % 2 * 16 + chunk % 4 * 4 : chunk % 8 * 4) & 15;
            uint8_t *to = t->places[row] + chunk * (p->a == ELEMENT_TF32 ? 1 : packed ? 4 : 2);
            if (p->a == ELEMENT_TF32) {
                to[0] = (uint8_t)(2 * chunk + (bits >> 1 & 1));
                continue;
            }
            for (uint32_t i = 0; i < (packed ? 4u : 2u); i++)
                to[i] = (uint8_t)(packed ? 8 * chunk + 2 * (bits >> i / 2 * 2 & 3) + i % 2 : 4 * chunk + (bits >> 2 * i & 3));
        }
}

/* The left factor, or what of it tensor memory has in the lanes of a part. */
static void read_left(struct soft_warp *w, struct block *b, const struct product *p, uint32_t part) {
    struct tensor_memory *t = b->tensor;
    uint32_t columns = p->sparse ? p->k / 2 : p->k;
    bool negate = field(p->instruction, 13, 1) && (p->how & SOFT_PRODUCT_KIND) != SOFT_PRODUCT_I8;
    if (p->how & SOFT_PRODUCT_LEFT_HERE) {
        uint32_t first = tensor_lane((uint32_t)p->left), column = tensor_column((uint32_t)p->left);
        soft_tensor_memory_check(w, b, first, lane_of(p, p->m - 1, part) + 1, column, 4 * PIECES);
        for (uint32_t row = 0; row < p->m; row++)
            for (uint32_t i = 0; i < PIECES; i++) {
                uint32_t each = soft_elements_in_piece(p->a);
                soft_elements(p->a, &t->cells[first + lane_of(p, row, part)][column + 4 * i], negate, t->left[row] + i * each, 1);
            }
    } else if (part == 0) {
        read_rows(b, p->left, p->a, negate, field(p->instruction, 15, 1), p->m, columns, t->left[0], TENSOR_DEPTH, 1);
    }
    if (p->sparse) {
        uint32_t at = soft_elements_in_piece(p->a) <= 8 ? field(p->instruction, 0, 2) : 0, metadata = at ? 1 : 2;
        soft_tensor_memory_check(w, b, 0, 1, tensor_column(p->metadata) + at, metadata);
        read_places(t, p, part);
    } else if (part == 0) {
        for (uint32_t row = 0; row < p->m; row++)
            for (uint32_t i = 0; i < columns; i++) t->places[row][i] = (uint8_t)i;
    }
}

/* ---- the product ---- */

typedef float eight __attribute__((vector_size(32), aligned(4)));

/* sums[n] += left[i] * right[places[i]][n], i from `first` to `last`. */
static inline __attribute__((always_inline)) void add_row(float *sums, const float *left, const uint8_t *places, uint32_t first, uint32_t last,
                                                          const float (*right)[TENSOR_ROWS], uint32_t column, uint32_t columns) {
    uint32_t n = 0;
    for (; n + STRIPE <= columns; n += STRIPE) {
        eight a = *(eight *)(sums + n), b = *(eight *)(sums + n + 8), c = *(eight *)(sums + n + 16), d = *(eight *)(sums + n + 24);
        for (uint32_t i = first; i < last; i++) {
            const float *row = right[places[i]] + column + n;
            a += left[i] * *(const eight *)row;
            b += left[i] * *(const eight *)(row + 8);
            c += left[i] * *(const eight *)(row + 16);
            d += left[i] * *(const eight *)(row + 24);
        }
        *(eight *)(sums + n) = a;
        *(eight *)(sums + n + 8) = b;
        *(eight *)(sums + n + 16) = c;
        *(eight *)(sums + n + 24) = d;
    }
    for (; n < columns; n += 8) {
        eight a = *(eight *)(sums + n);
        for (uint32_t i = first; i < last; i++) a += left[i] * *(const eight *)(right[places[i]] + column + n);
        *(eight *)(sums + n) = a;
    }
}

typedef void add_function(float *, const float *, const uint8_t *, uint32_t, uint32_t, const float (*)[TENSOR_ROWS], uint32_t, uint32_t);

static void add_plain(float *sums, const float *left, const uint8_t *places, uint32_t first, uint32_t last, const float (*right)[TENSOR_ROWS],
                      uint32_t column, uint32_t columns) {
    add_row(sums, left, places, first, last, right, column, columns);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void add_avx2(float *sums, const float *left, const uint8_t *places, uint32_t first, uint32_t last,
                                                     const float (*right)[TENSOR_ROWS], uint32_t column, uint32_t columns) {
    add_row(sums, left, places, first, last, right, column, columns);
}

static add_function *adder(void) { return __builtin_cpu_supports("avx2") ? add_avx2 : add_plain; }
#else
static add_function *adder(void) { return add_plain; }
#endif

/* The scale of row m of a factor: 32 rows have one column each, in all groups of 32 lanes. */
static double scale_at(const struct tensor_memory *t, const struct product *p, uint32_t address, uint32_t lanes, uint32_t row, uint32_t byte) {
    uint32_t word = t->cells[lanes + row % 32][tensor_column(address) + row / 32];
    return soft_scale((uint8_t)(word >> 8 * byte), (int)field(p->instruction, 23, 1));
}

static void read_scales(struct soft_warp *w, const struct block *b, struct product *p, uint32_t lanes, uint32_t columns) {
    soft_tensor_memory_check(w, b, 0, 1, tensor_column(p->scale_a), (p->m + 31) / 32);
    soft_tensor_memory_check(w, b, 0, 1, tensor_column(p->scale_b), (columns + 31) / 32);
    for (uint32_t n = 0; n < columns; n++)
        for (uint32_t i = 0; i < p->vectors; i++)
            p->scales[n][i] = scale_at(b->tensor, p, p->scale_b, lanes, n, (field(p->instruction, 4, 2) + i) & 3);
}

/* Each block of a row's columns has a scale, and so has that of B's. */
static void add_scaled(const struct block *b, const struct product *p, add_function *add, float *sums, uint32_t row, uint32_t lanes, uint32_t column,
                       uint32_t columns) {
    struct tensor_memory *t = b->tensor;
    uint32_t size = (p->sparse ? p->k / 2 : p->k) / p->vectors;
    for (uint32_t i = 0; i < p->vectors; i++) {
        float part[TENSOR_ROWS] = {0};
        double scale = scale_at(t, p, p->scale_a, lanes, row, (field(p->instruction, 29, 2) + i) & 3);
        add(part, t->left[row], t->places[row], i * size, (i + 1) * size, (const float (*)[TENSOR_ROWS])t->right, column, columns);
        for (uint32_t n = 0; n < columns; n++)
            sums[n] = (float)(sums[n] + part[n] * (scale * p->scales[n][i])); /* double has room for any two scales */
    }
}

static int32_t saturated(int64_t value) { return value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : (int32_t)value; }

/* D's row before, in floats; integers come to the sum of products, which is exact, in the end. */
static void read_sums(const struct product *p, const uint32_t *cells, uint32_t form, uint32_t columns, float *sums) {
    uint32_t by = field(p->how, SOFT_PRODUCT_SCALE_SHIFT, 4);
    memset(sums, 0, columns * sizeof *sums);
    if (!p->add || form == 2) return;
    for (uint32_t n = 0; n < columns; n++) {
        if (form)
            memcpy(&sums[n], &cells[n], 4);
        else
            sums[n] = soft_from_half((uint16_t)cells[n]);
        if (by) sums[n] /= (float)(1u << by);
    }
}

static void write_sums(const struct product *p, uint32_t *cells, uint32_t form, uint32_t columns, const float *sums) {
    for (uint32_t n = 0; n < columns; n++) {
        if (form == 2) {
            int64_t sum = (int64_t)sums[n] + (p->add ? (int32_t)cells[n] : 0);
            cells[n] = field(p->instruction, 3, 1) ? (uint32_t)saturated(sum) : (uint32_t)sum;
        } else if (form) {
            memcpy(&cells[n], &sums[n], 4);
        } else {
            cells[n] = soft_to_half(sums[n]);
        }
    }
}

static void multiply(struct soft_warp *w, struct block *b, struct product *p, const uint64_t *disabled) {
    uint32_t form = p->vectors ? 1 : field(p->instruction, 4, 2), parts = p->paths == PATHS_4X1_HALF ? 1 : p->paths, columns = p->n / parts;
    uint32_t first = tensor_lane(p->d), at = tensor_column(p->d);
    add_function *add = adder();
    for (uint32_t part = 0; part < parts; part++) {
        uint32_t lanes = part * (SOFT_TENSOR_LANES / parts);
        soft_tensor_memory_check(w, b, first, lane_of(p, p->m - 1, part) + 1, at, columns);
        read_left(w, b, p, part);
        if (p->vectors) read_scales(w, b, p, lanes, columns);
        for (uint32_t row = 0; row < p->m; row++) {
            uint32_t lane = first + lane_of(p, row, part);
            float sums[TENSOR_ROWS];
            uint32_t *cells = b->tensor->cells[lane] + at;
            if (disabled[lane / 64] >> lane % 64 & 1) continue;
            read_sums(p, cells, form, columns, sums);
            if (p->vectors)
                add_scaled(b, p, add, sums, row, lanes, part * columns, columns);
            else
                add(sums, b->tensor->left[row], b->tensor->places[row], 0, p->sparse ? p->k / 2 : p->k,
                    (const float (*)[TENSOR_ROWS])b->tensor->right, part * columns, columns);
            write_sums(p, cells, form, columns, sums);
        }
    }
}

SOFT_EXPORT void soft_tensor_product(struct soft_warp *w, uint32_t lane, uint32_t how, uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                                     uint32_t metadata, uint32_t scale_a, uint32_t scale_b, uint32_t enable, uint64_t disabled0, uint64_t disabled1,
                                     uint64_t disabled2, uint64_t disabled3) {
    (void)lane;
    struct product p = {.how = how,
                        .instruction = instruction,
                        .d = d,
                        .metadata = metadata,
                        .scale_a = scale_a,
                        .scale_b = scale_b,
                        .left = a,
                        .right = b,
                        .add = enable,
                        .disabled = {disabled0, disabled1, disabled2, disabled3}};
    struct block *blocks[2] = {soft_fiber_of(w)->block, NULL};
    const char *wrong = describe(&p);
    if (how & SOFT_PRODUCT_PAIR) {
        soft_tensor_pair(blocks[0], blocks);
        if (!blocks[1]) wrong = "a pair of which there is one block";
    }
    if (wrong) {
        char text[96] = "tcgen05.mma with ";
        strncat(text, wrong, sizeof text - sizeof "tcgen05.mma with ");
        soft_unsupported(w, text);
    }
    uint32_t n_blocks = blocks[1] ? 2 : 1, rows = p.n / n_blocks;
    bool negate = field(instruction, 14, 1) && (how & SOFT_PRODUCT_KIND) != SOFT_PRODUCT_I8;
    for (uint32_t i = 0; i < n_blocks; i++) soft_tensor_memory_check(w, blocks[i], 0, 1, tensor_column(d), 1);
    for (uint32_t i = 0; i < n_blocks; i++) {
        float *to = &blocks[0]->tensor->right[0][i * rows];
        read_rows(blocks[i], b, p.b, negate, field(instruction, 16, 1), rows, p.k, to, 1, TENSOR_ROWS);
    }
    if (n_blocks == 2) memcpy(blocks[1]->tensor->right, blocks[0]->tensor->right, sizeof blocks[0]->tensor->right);
    for (uint32_t i = 0; i < n_blocks; i++) multiply(w, blocks[i], &p, p.disabled + 2 * i);
}
