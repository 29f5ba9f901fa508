/* Taking back what a dead session left in the ledger. Called by the daemon, which is Python and has no atomic operations of its own. */
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include "../backend/soft/memory_usage.h"
#include "worker.h"

__attribute__((visibility("default"))) int worker_ledger_release(int32_t fd, uint32_t slot) {
    if (slot >= GV_LEDGER_SLOTS) return EINVAL;
    struct gv_ledger *ledger = mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ledger == MAP_FAILED) return errno;
    for (int device = 0; device < GV_LEDGER_DEVICES; device++) {
        uint64_t left = atomic_exchange((_Atomic uint64_t *)&ledger->slot_used[slot][device], 0);
        if (left) atomic_fetch_sub((_Atomic uint64_t *)&ledger->used[device], left);
    }
    munmap(ledger, sizeof(*ledger));
    return 0;
}
