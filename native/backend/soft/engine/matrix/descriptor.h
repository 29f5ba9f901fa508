/* Matrices in shared memory, as the descriptors of wgmma and tcgen05 have them: where each 16 bytes of a row lie.
 *
 * A descriptor (PTX ISA, "matrix descriptor"): bits 0 to 13 the shared address / 16, 16 to 29 the leading and 32 to 45 the stride dimension's offset / 16, 49 to 51 the
 * base offset, 61 to 63 the swizzle: 0 none, 2 of 128, 4 of 64, 6 of 32 bytes, 1 of 128 bytes in pieces of 32. Rows of as many bytes (16 without a swizzle) follow
 * each other, and of every 8 rows pieces of 16 bytes change places: bits 4 to 6 of the address, as far as the swizzle reaches, are those exclusive-or
 * bits 7 to 9. With pieces of 32 bytes bits 5 and 6 are those exclusive-or bits 7 and 8. */
#ifndef GV_SOFT_MATRIX_DESCRIPTOR_H
#define GV_SOFT_MATRIX_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

#define MATRIX_PIECE 16u /* bytes */

struct matrix {
    const char *shared; /* of the block that it lies in */
    uint64_t start, leading, stride, base;
    uint32_t width; /* bytes of a row */
    bool atom32;    /* pieces of 32 bytes change places */
};

static inline struct matrix matrix_of(const void *shared, uint64_t d) {
    static const uint8_t widths[] = {16, 128, 64, 32};
    bool atom32 = d >> 61 == 1;
    return (struct matrix){.shared = shared,
                           .start = (d & 0x3fff) << 4,
                           .leading = (d >> 16 & 0x3fff) << 4,
                           .stride = (d >> 32 & 0x3fff) << 4,
                           .base = d >> 49 & 7,
                           .width = atom32 ? 128 : widths[d >> 62],
                           .atom32 = atom32};
}

/* 16 bytes, by their address before the swizzle. */
static inline const char *matrix_piece(const struct matrix *m, uint64_t address) {
    uint64_t pieces = m->width / MATRIX_PIECE, row = (address >> 7) - m->base;
    return m->shared + (address ^ (m->atom32 ? (row & 3) * 2 : row & (pieces - 1)) * MATRIX_PIECE);
}

/* Row-major: 16 bytes of a row, counted by these. */
static inline const char *matrix_piece_of_row(const struct matrix *m, uint32_t row, uint32_t number) {
    uint32_t side = m->width / MATRIX_PIECE; /* side by side */
    return matrix_piece(m, m->start + row % 8 * m->width + row / 8 * m->stride + number % side * MATRIX_PIECE + number / side * m->leading);
}

/* Column-major, of elements of so many bytes: 16 bytes of one column, from `row` on. */
static inline const char *matrix_piece_of_column(const struct matrix *m, uint32_t row, uint32_t column, uint32_t size) {
    uint32_t rows = m->width / size, columns = m->atom32 ? 4 : 8; /* side by side */
    uint64_t along = m->width == MATRIX_PIECE ? m->stride : m->leading, across = m->width == MATRIX_PIECE ? m->leading : m->stride;
    return matrix_piece(m, m->start + row % rows * size + row / rows * along + column % columns * m->width + column / columns * across);
}

#endif
