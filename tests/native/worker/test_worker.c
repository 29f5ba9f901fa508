/* The worker in this process, a scripted client at the other end of a real link: test_worker TRANSPORT [case...]. */
#include "scripted_client.h"

int main(int argc, char **argv) {
    static const struct test_case *const lists[] = {ending_cases, memory_cases,  copy_cases, stream_cases,
                                                    module_cases, held_up_cases, turn_cases, device_view_cases};
    static struct test_case cases[100];
    size_t n = 0;
    if (argc < 2) return 2;
    transport = argv[1];
    for (size_t i = 0; i + !verbs() < sizeof lists / sizeof *lists; i++) /* the last one is for verbs */
        for (const struct test_case *c = lists[i]; c->name; c++) {
            CHECK(n < sizeof cases / sizeof *cases);
            cases[n++] = *c;
        }
    if (verbs()) fake_memory_in_a_file();
    return run_cases(cases, n, argc - 1, argv + 1, 240);
}
