#define _GNU_SOURCE
#include "futex.h"

/* How often a contended lock is tried before its taker sleeps: its holder fills one record, some 100 ns. */
#define LOCK_SPINS 200

void gv_lock_slow(struct gv_lock *lock) {
    for (int i = 0; i < LOCK_SPINS; i++) {
        if (atomic_load_explicit(&lock->state, memory_order_relaxed) == 0 && gv_lock_try(lock)) return;
        gv_pause();
    }
    while (atomic_exchange_explicit(&lock->state, 2, memory_order_acquire) != 0) gv_futex_wait(&lock->state, 2, 1000000000);
}
