/* An engine whose kernels are hand-written C functions, and how a grid of one is run. */
#ifndef ENGINE_FIXTURE_H
#define ENGINE_FIXTURE_H

#include <signal.h>
#include <stdint.h>

#include "check.h"
#include "engine/exec.h"
#include "engine/exec_private.h"
#include "engine/kernel_abi.h"
#include "limits.h"

extern struct soft_engine *engine;
extern struct soft_heap *heap;
extern char err[512], printed[1 << 20]; /* the last grid's error, what all have printed */
extern size_t printed_used;

int run(void (*entry)(struct soft_warp *), uint32_t blocks, uint32_t threads, uint32_t barrier, uint32_t cooperative, uint32_t shared, uint32_t local,
        const void *params, uint32_t size);

/* ---- the cases of other files */

void test_indices(void);
void test_runs(void);
void test_loops(void);
void test_short_grids(void);
void test_barrier(void);
void test_exited_warps_count(void);
void test_reductions(void);
void test_arrive(void);
void test_warpgroups(void);
void test_barrier_nobody_reaches(void);
void test_memories(void);
void test_beyond_shared(void);
void test_places_in_clusters(void);
void test_wrong_clusters(void);
void test_cluster_barrier(void);
void test_cluster_barrier_after_exits(void);
void test_cluster_barrier_nobody_reaches(void);
void test_beyond_a_clusters_memory(void);
void test_answers_to_a_cluster(void);
void test_faults(void);
void test_fault_elsewhere(void);
void test_guarded(void);
void test_cooperative(void);
void test_company(void);
void test_look_back(void);
void test_printf(void);
void test_malloc(void);
void test_several_grids(void);
void test_turns(void);
void test_stop(void);
void measure(void);

void install_program_handler(void); /* of SIGSEGV, as a program has that was there before the engine */
/* kernels that several files run */
void illegal(struct soft_warp *w);    /* no instruction */
void sum_rounds(struct soft_warp *w); /* of shared memory, with barriers */

#endif
