/* The engine alone: hand-written C functions stand in for compiled kernels. */
#include "engine_fixture.h"

int main(int argc, char **argv) {
    install_program_handler();
    engine = soft_engine_create(3);
    heap = soft_heap_create(1u << 20, NULL);
    CHECK(engine && heap);
    if (argc == 2 && strcmp(argv[1], "short_grids") == 0) {
        test_short_grids();
        test_stop();
        soft_heap_destroy(heap);
        puts("ok");
        return 0;
    }
    bool drawn = getenv("GPUVIRT_SOFT_SCHEDULE") != NULL; /* then blocks are not run one after the other, nor the first warp before the others */
    test_indices();
    if (!drawn) test_runs();
    test_loops();
    test_barrier();
    test_exited_warps_count();
    test_reductions();
    test_arrive();
    test_warpgroups();
    test_barrier_nobody_reaches();
    test_memories();
    test_beyond_shared();
    test_places_in_clusters();
    test_wrong_clusters();
    test_cluster_barrier();
    test_cluster_barrier_after_exits();
    test_cluster_barrier_nobody_reaches();
    test_beyond_a_clusters_memory();
    test_answers_to_a_cluster();
    if (!drawn) test_faults();
    test_fault_elsewhere();
    test_guarded();
    test_cooperative();
    test_company();
    test_look_back();
    test_printf();
    test_malloc();
    test_several_grids();
    test_turns();
    if (!drawn) measure();
    test_stop();
    soft_heap_destroy(heap);
    puts("ok");
    return 0;
}
