/* Frees the slot of a dead session in the table of memory usage. The daemon calls it, because Python has no atomic operations. */
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include "../backend/soft/memory_usage.h"
#include "worker.h"

__attribute__((visibility("default"))) int worker_memory_usage_release(int32_t fd, uint32_t slot) {
    if (slot >= GV_MEMORY_USAGE_SLOTS) return EINVAL;
    struct gv_memory_usage *memory_usage = mmap(NULL, sizeof(*memory_usage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory_usage == MAP_FAILED) return errno;
    for (int device = 0; device < GV_MEMORY_USAGE_DEVICES; device++) {
        uint64_t left = atomic_exchange((_Atomic uint64_t *)&memory_usage->slot_used[slot][device], 0);
        if (left) atomic_fetch_sub((_Atomic uint64_t *)&memory_usage->used[device], left);
    }
    munmap(memory_usage, sizeof(*memory_usage));
    return 0;
}
