/* Seeded schedules (GPUVIRT_SOFT_SCHEDULE=SEED[,cores]): a test mode in which random numbers decide what CUDA leaves open about the progress of a grid.
 *
 * Drawn are: how many blocks are resident at first and when another one becomes so, which block and which of its warps runs next, where a warp is
 * preempted (compiled code asks before each access to memory that others see: soft_preempt), which warps and blocks lag behind, when the lanes of a
 * warp that wait leave the code for 32 of them, in what order lanes in step carry out an instruction, whether a warp gets quick or good code where
 * there are both, and how late a stream begins and ends an operation. Blocks still become resident in the order of their index, on which programs rely.
 *
 * A grid runs on one thread, the one that submitted it, and its numbers follow from the seed and from how many grids the engine has begun: so one
 * stream's grids go the same ways again. With `cores`, all cores take part, each with numbers of its own, and no run is exactly like another. */
#ifndef SOFT_SCHEDULE_H
#define SOFT_SCHEDULE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of an engine. */
struct soft_schedule {
    bool seeded, cores;
    uint64_t seed;
    _Atomic uint64_t begun;  /* runners that have entered a grid since the seed was set */
    _Atomic uint64_t passed; /* what the grids that have ended drew, folded into one number: equal for equal schedules */
};

/* Of a runner, for one grid. */
struct soft_draws {
    bool on;
    uint64_t state;
    uint64_t drawn;         /* the decisions so far, folded into one number */
    uint32_t often;         /* a warp is preempted at one in `often` places */
    uint32_t slow_warps;    /* that seldom run while others can */
    bool slow_blocks;       /* every other block runs less often */
    uint32_t spin_patience; /* turns of a waiting loop after which the lanes may leave the code for 32 of them */
};

/* What GPUVIRT_SOFT_SCHEDULE says. False: nothing that is known; err says what is. */
bool soft_schedule_read(struct soft_schedule *s, char *err, size_t size);
/* This thread's numbers for the grid that it enters, and its end. */
void soft_draws_begin(struct soft_draws *d, struct soft_schedule *s);
void soft_draws_end(struct soft_draws *d, struct soft_schedule *s);

/* A number below `below`, which is not 0. */
uint32_t soft_draw(struct soft_draws *d, uint32_t below);
/* One bit's number out of `set`, which is not 0. */
uint32_t soft_draw_bit(struct soft_draws *d, uint32_t set);
/* Which of the runnable warps runs next. */
uint32_t soft_draw_warp(struct soft_draws *d, uint32_t runnable);
/* Of draws that are on: sleeps now and then, up to 2 ms. */
void soft_draw_pause(struct soft_draws *d);

#endif
