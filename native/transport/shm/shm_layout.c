#define _GNU_SOURCE
#include "shm_layout.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

uint64_t gv_shm_size(const uint64_t rings[GV_SHM_RINGS]) {
    uint64_t size = GV_SHM_HEADER;
    for (int i = 0; i < GV_SHM_RINGS; i++) {
        uint64_t ring = rings[i];
        if (ring < GV_SHM_RING_MIN || ring > GV_SHM_RING_MAX || (ring & (ring - 1))) return 0;
        size += ring;
    }
    return size;
}

bool gv_shm_sound(int memfd, const uint64_t rings[GV_SHM_RINGS], char *why, size_t why_size) {
    uint64_t size = gv_shm_size(rings);
    struct stat st;
    int seals = fcntl(memfd, F_GET_SEALS);
    if (size == 0) {
        snprintf(why, why_size, "the sizes of the rings are not powers of two from %u to %u", GV_SHM_RING_MIN, GV_SHM_RING_MAX);
    } else if (fstat(memfd, &st) != 0 || (uint64_t)st.st_size != size) {
        snprintf(why, why_size, "the shared memory is not as large as its rings (%llu bytes)", (unsigned long long)size);
    } else if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) {
        snprintf(why, why_size, "the shared memory is not sealed against a change of its size");
    } else {
        return true;
    }
    return false;
}
