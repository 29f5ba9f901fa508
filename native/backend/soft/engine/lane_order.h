/* Which lanes of a warp run next in the lane fallback (lane_order.c). No fibers and no memory of the program: masks in, masks out. */
#ifndef SOFT_LANE_ORDER_H
#define SOFT_LANE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "kernel_abi.h"

#define LANE_DEPTHS 32 /* calls inside one another that are distinguished; deeper ones count as one */
#define LANE_LOOPS 64  /* loops that are distinguished; others share an entry */

struct lane_place {
    uint32_t point, loop;
};

struct lane_order {
    const struct soft_lane_loop *loops;
    /* Where each lane is, in each call under way, outermost first; depth: the innermost. */
    struct lane_place path[SOFT_LANES][LANE_DEPTHS];
    uint32_t depth[SOFT_LANES];
    struct lane_place sweep[LANE_DEPTHS]; /* where the lanes that ran last were, before they ran */
    uint32_t swept;                       /* so many levels of it count */
    uint32_t ready;                       /* lanes that a convergence point let go, or that begin: they run to their next point before any other */
    /* Lanes in a loop that waits for memory: which loop, in which call, rounds in a row (0: in none). */
    uint32_t spin_loop[SOFT_LANES], spin_depth[SOFT_LANES], rounds[SOFT_LANES];
    uint32_t idle;                /* lanes whose last iteration only read memory */
    uint32_t acted;               /* lanes that have done more since their last iteration */
    uint32_t aside;               /* lanes that the others no longer wait for */
    uint32_t stalled;             /* consecutive runs in which all lanes were idle */
    uint8_t releases[LANE_LOOPS]; /* how often lanes were put aside in a loop, by its number */
    uint32_t runs;                /* since lanes were put aside */
    uint32_t turns;               /* runs in all */
    uint32_t held;                /* lanes that have not had a turn for `held_runs` runs */
    uint32_t held_runs;
};

void lane_order_begin(struct lane_order *o, uint32_t lanes);
/* The lanes that run now, each to its next point, out of those that can run (not none). */
uint32_t lane_order_next(struct lane_order *o, uint32_t runnable);
/* After they have: who can run now. True when other warps should have a turn, for these only wait or have run for long. */
bool lane_order_ran(struct lane_order *o, uint32_t group, uint32_t runnable);

/* Reports of a lane as it runs. */
void lane_order_point(struct lane_order *o, uint32_t lane, uint32_t point, uint32_t loop, bool acts);
void lane_order_spin_round(struct lane_order *o, uint32_t lane, uint32_t loop);
void lane_order_enter(struct lane_order *o, uint32_t lane);
void lane_order_leave(struct lane_order *o, uint32_t lane);
/* It met others, or waits to. */
void lane_order_acts(struct lane_order *o, uint32_t lane);

#endif
