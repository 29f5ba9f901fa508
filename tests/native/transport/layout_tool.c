/* Prints the bytes of the shared memory for four rings. */
#include "../../../native/transport/shm/shm_layout.h"

#include "../check.h"

int main(int argc, char **argv) {
    CHECK(argc == 5);
    uint64_t rings[GV_SHM_RINGS];
    for (int i = 0; i < 4; i++) rings[i] = strtoull(argv[i + 1], NULL, 10);
    printf("%llu\n", (unsigned long long)gv_shm_size(rings));
    return 0;
}
