/* Matrices in shared memory, as the descriptors of wgmma have them: where each 16 bytes of a row lie.
 *
 * A descriptor (PTX ISA, "matrix descriptor"): bits 0 to 13 the shared address / 16, 16 to 29 the leading and 32 to 45 the stride dimension's offset / 16, 49 to 51 the
 * base offset, 62 and 63 the swizzle: 0 none, 1 of 128, 2 of 64, 3 of 32 bytes. Rows of as many bytes (16 without a swizzle) follow each other, and of every 8 rows
 * pieces of 16 bytes change places: bits 4 to 6 of the address, as far as the swizzle reaches, are those exclusive-or bits 7 to 9. */
#include "kernel_abi.h"

#include <string.h>

#define SOFT_EXPORT __attribute__((visibility("default")))
#define PIECE 16u /* bytes */

struct matrix {
    const char *shared;
    uint64_t start, leading, stride, base;
    uint32_t width; /* bytes of a row */
};

static struct matrix matrix_of(const struct soft_warp *w, uint64_t d) {
    static const uint8_t widths[] = {16, 128, 64, 32};
    return (struct matrix){.shared = w->shared,
                           .start = (d & 0x3fff) << 4,
                           .leading = (d >> 16 & 0x3fff) << 4,
                           .stride = (d >> 32 & 0x3fff) << 4,
                           .base = d >> 49 & 7,
                           .width = widths[d >> 62]};
}

/* 16 bytes, by their address before the swizzle. */
static const char *piece(const struct matrix *m, uint64_t address) {
    uint64_t pieces = m->width / PIECE, row = (address >> 7) - m->base;
    return m->shared + (address ^ (row & (pieces - 1)) * PIECE);
}

/* Row-major: 16 bytes of a row, counted by these. */
static const char *piece_of_row(const struct matrix *m, uint32_t row, uint32_t number) {
    uint32_t side = m->width / PIECE; /* side by side */
    return piece(m, m->start + row % 8 * m->width + row / 8 * m->stride + number % side * PIECE + number / side * m->leading);
}

/* Column-major, of 16-bit elements: eight rows from `row` on, of one column. */
static const char *piece_of_column(const struct matrix *m, uint32_t row, uint32_t column) {
    uint32_t rows = m->width / 2; /* side by side */
    uint64_t along = m->width == PIECE ? m->stride : m->leading, across = m->width == PIECE ? m->leading : m->stride;
    return piece(m, m->start + row % rows * 2 + row / rows * along + column % 8 * m->width + column / 8 * across);
}

SOFT_EXPORT void soft_matrix_load(struct soft_warp *w, uint64_t descriptor, uint32_t first, uint32_t blocks, uint32_t pieces, uint32_t transposed,
                                  void *out) {
    const struct matrix m = matrix_of(w, descriptor);
    char *to = out;
    for (uint32_t block = 0; block < blocks; block++)
        for (uint32_t number = 0; number < pieces; number++, to += 8 * PIECE) {
            uint32_t row = first + 8 * block;
            for (uint32_t i = 0; i < 8; i++) {
                if (!transposed) {
                    memcpy(to + i * PIECE, piece_of_row(&m, row + i, number), PIECE);
                    continue;
                }
                uint16_t column[8];
                memcpy(column, piece_of_column(&m, row, 8 * number + i), PIECE);
                for (uint32_t r = 0; r < 8; r++) memcpy(to + r * PIECE + 2 * i, &column[r], 2);
            }
        }
}
