/* Addresses in the blocks of a cluster. */
#ifndef SOFT_CLUSTER_H
#define SOFT_CLUSTER_H

#include "exec_private.h"

/* What lies in the cluster's block of that rank where p lies in its own. */
static inline void *soft_in_block(const struct soft_warp *w, const void *p, uint32_t rank) {
    uint64_t offset = (uint64_t)((const char *)p - (const char *)w->window) & (SOFT_RANK_BYTES - 1);
    return (char *)w->window + rank * SOFT_RANK_BYTES + offset;
}

#endif
