/* A block's tensor memory. */
#ifndef GV_SOFT_TENSOR_MEMORY_H
#define GV_SOFT_TENSOR_MEMORY_H

#include <sys/mman.h>

#include "../exec_private.h"

#define TENSOR_ROWS 256u  /* of a factor, at most */
#define TENSOR_DEPTH 128u /* columns of A and B, at most */

struct tensor_memory {
    uint32_t cells[SOFT_TENSOR_LANES][SOFT_TENSOR_COLUMNS];
    /* What a product works with: the right factor, turned, and the part of the left one that this block has. */
    float right[TENSOR_DEPTH][TENSOR_ROWS];
    float left[SOFT_TENSOR_LANES][TENSOR_DEPTH];
    uint8_t places[SOFT_TENSOR_LANES][TENSOR_DEPTH]; /* in the row, of the elements that a sparse one has */
};

static inline void tensor_memory_delete(struct tensor_memory *t) {
    if (t) munmap(t, sizeof *t);
}

static inline uint32_t tensor_lane(uint32_t address) { return address >> 16 & 0x3fff; } /* the top bits number bytes, where they are anything */
static inline uint32_t tensor_column(uint32_t address) { return address & 0xffff; }

/* Ends the grid unless the block has taken these columns, and there are so many lanes from `lane` on. */
void soft_tensor_memory_check(struct soft_warp *w, const struct block *b, uint32_t lane, uint32_t lanes, uint32_t column, uint32_t columns);

/* The block's pair, its lower rank first; the second is NULL where the cluster ends. */
void soft_tensor_pair(struct block *b, struct block *pair[2]);

#endif
