/* Sleeping on a word of memory, and a lock that is held for a few instructions only. */
#ifndef GV_FUTEX_H
#define GV_FUTEX_H

#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../wire/clock.h"

static inline void gv_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleeps while *word == value, at most timeout_ns. Returns early when it likes: the caller looks again. Words are shared between processes
 * throughout. */
static inline void gv_futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
    struct timespec t = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
}

static inline void gv_futex_wake(_Atomic uint32_t *word, int how_many) { syscall(SYS_futex, word, FUTEX_WAKE, how_many, NULL, NULL, 0); }

/* Wakes whoever announced by a 1 in *word that he sleeps. */
static inline void gv_wake_sleeper(_Atomic uint32_t *word) {
    atomic_store(word, 0);
    gv_futex_wake(word, 1 << 30);
}

/* A spin lock, 0: free. For what is held for moments. */
static inline bool gv_spin_try(_Atomic uint32_t *lock) { return !atomic_load_explicit(lock, memory_order_relaxed) && !atomic_exchange(lock, 1); }

static inline void gv_spin_lock(_Atomic uint32_t *lock) {
    for (int i = 0; atomic_exchange(lock, 1); i++) {
        if (i % 64 == 63)
            sched_yield();
        else
            gv_pause();
    }
}

static inline void gv_spin_unlock(_Atomic uint32_t *lock) { atomic_store(lock, 0); }

/* 0: free, 1: held, 2: held and somebody sleeps. */
struct gv_lock {
    _Atomic uint32_t state;
};

void gv_lock_slow(struct gv_lock *lock);

/* True when it was free at once. */
static inline bool gv_lock_try(struct gv_lock *lock) {
    uint32_t free = 0;
    return atomic_compare_exchange_strong_explicit(&lock->state, &free, 1, memory_order_acquire, memory_order_relaxed);
}

static inline void gv_unlock(struct gv_lock *lock) {
    if (atomic_exchange_explicit(&lock->state, 0, memory_order_release) == 2) gv_futex_wake(&lock->state, 1);
}

#endif
