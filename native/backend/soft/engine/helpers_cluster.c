/* What the blocks of a cluster do together: their barrier, and what is written to several of them at once. They run on one thread, so plain integers do. */
#include "../driver_constants.h"
#include "exec_private.h"

#include <string.h>

#define SOFT_EXPORT __attribute__((visibility("default")))

/* ---- the barrier ---- */

static void complete(struct block *lead) {
    lead->cluster.arrived = 0;
    lead->cluster.phase++;
    for (struct block *b = lead; b; b = b->next) {
        b->runnable |= b->cluster_waiting;
        b->cluster_waiting = 0;
    }
}

void soft_cluster_warp_exited(struct block *b, const struct fiber *f) {
    struct block *lead = b->lead;
    struct cluster_barrier *bar = &lead->cluster;
    bar->live--;
    if (f->arrived && f->arrived_phase == bar->phase) bar->arrived--;
    if (bar->arrived && bar->arrived >= bar->live) complete(lead);
}

/* Parts of a warp may arrive one after the other, where a branch has divided it: the first one counts, for all of it. */
SOFT_EXPORT void soft_cluster_arrive(struct soft_warp *w) {
    struct fiber *f = soft_fiber_of(w);
    struct block *lead = f->block->lead;
    if (!f->block->runner->grid->fibers || f->arrived) return;
    f->arrived = true;
    f->arrived_phase = lead->cluster.phase;
    if (++lead->cluster.arrived >= lead->cluster.live) complete(lead);
}

SOFT_EXPORT void soft_cluster_wait(struct soft_warp *w) {
    struct fiber *f = soft_fiber_of(w);
    struct block *b = f->block;
    struct runner *r = b->runner;
    if (!r->grid->fibers) return; /* one warp */
    if (!f->arrived) {
        soft_grid_fail(r->grid, CUDA_ERROR_LAUNCH_FAILED, w, "barrier.cluster.wait without an arrival");
        soft_leave(r);
    }
    if (f->arrived_phase == b->lead->cluster.phase) {
        b->cluster_waiting |= f->bit;
        b->runnable &= ~f->bit;
        soft_pass_on(r, f);
    }
    f->arrived = false;
}

/* ---- answers to clusterlaunchcontrol ---- */

/* Blocks begin in any order, and none is taken back: the answer is no, which is zeros. */
SOFT_EXPORT void soft_cancel_answer(struct soft_warp *w, uint32_t lane, void *to, void *mbarrier, uint32_t all) {
    uint32_t blocks = all ? w->cluster[0] * w->cluster[1] * w->cluster[2] : 1;
    for (uint32_t rank = 0; rank < blocks; rank++) {
        void *there = all ? soft_in_block(w, to, rank) : to, *told = all ? soft_in_block(w, mbarrier, rank) : mbarrier;
        if ((uintptr_t)there % 16) soft_trap(w, 1u << lane, SOFT_TRAP_MISALIGNED);
        memset(there, 0, 16);
        soft_mbarrier(w, lane, SOFT_MBARRIER_COMPLETE, told, 0, 16);
    }
}
