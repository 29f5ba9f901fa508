/* What wgmma reads from shared memory. */
#include "../kernel_abi.h"
#include "descriptor.h"

#include <string.h>

#define SOFT_EXPORT __attribute__((visibility("default")))

SOFT_EXPORT void soft_matrix_load(struct soft_warp *w, uint64_t descriptor, uint32_t first, uint32_t blocks, uint32_t pieces, uint32_t transposed,
                                  void *out) {
    const struct matrix m = matrix_of(w->shared, descriptor);
    char *to = out;
    for (uint32_t block = 0; block < blocks; block++)
        for (uint32_t number = 0; number < pieces; number++, to += 8 * MATRIX_PIECE) {
            uint32_t row = first + 8 * block;
            for (uint32_t i = 0; i < 8; i++) {
                if (!transposed) {
                    memcpy(to + i * MATRIX_PIECE, matrix_piece_of_row(&m, row + i, number), MATRIX_PIECE);
                    continue;
                }
                uint16_t column[8];
                memcpy(column, matrix_piece_of_column(&m, row, 8 * number + i, 2), MATRIX_PIECE);
                for (uint32_t r = 0; r < 8; r++) memcpy(to + r * MATRIX_PIECE + 2 * i, &column[r], 2);
            }
        }
}
