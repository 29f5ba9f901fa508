/* The blocks of a thread block cluster in each dimension, as one word: 10 bits a dimension, x lowest, each at least 1 where there is a cluster at all; 0: there is none. The two
 * bits above are a CUclusterSchedulingPolicy, where a word has one. */
#ifndef GV_CLUSTER_DIMS_H
#define GV_CLUSTER_DIMS_H

#include <stdbool.h>
#include <stdint.h>

#define GV_CLUSTER_DIM_MAX 1023u
#define GV_CLUSTER_PORTABLE 8u /* a cluster of so many blocks fits every device that has clusters and that is not a small part of one */
#define GV_CLUSTER_DIMS_MASK 0x3fffffffu
#define GV_CLUSTER_POLICY_SHIFT 30

/* False when a dimension is none that the word has room for. */
static inline bool gv_cluster_pack(unsigned x, unsigned y, unsigned z, uint32_t *word) {
    if (!x || !y || !z || x > GV_CLUSTER_DIM_MAX || y > GV_CLUSTER_DIM_MAX || z > GV_CLUSTER_DIM_MAX) return false;
    *word = x | y << 10 | z << 20;
    return true;
}

static inline unsigned gv_cluster_dim(uint32_t word, int dimension) { return word >> 10 * dimension & GV_CLUSTER_DIM_MAX; }

static inline uint32_t gv_cluster_policy(uint32_t word) { return word >> GV_CLUSTER_POLICY_SHIFT; }

/* Blocks of one cluster; 0: there is none. */
static inline uint64_t gv_cluster_blocks(uint32_t word) {
    return (uint64_t)gv_cluster_dim(word, 0) * gv_cluster_dim(word, 1) * gv_cluster_dim(word, 2);
}

#endif
