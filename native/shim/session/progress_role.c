/* Who handles incoming records, and how everybody else waits.
 *
 * Exactly one thread at a time holds the `role` and reads the link. A caller that waits takes the role if it is free and polls the link
 * itself: no thread wake-up in the way. Other waiters enlist and sleep on a futex word of their own; whoever handles a record that satisfies
 * one wakes it, and whoever gives the role up wakes one of those left to take it over. The background thread (progress.c) takes the role when
 * nobody did for a tick, sleeps in the link, and gives it up as soon as a waiter enlists.
 *
 * No wake-up is lost, because each side writes first and looks second, all sequentially consistent: a sleeper enlists (n_sleepers), then looks
 * at its counter, `over` and the role; the other side moves the counter, sets `over` or frees the role, then looks at n_sleepers. */
#include "session/progress_role.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "session/session_state.h"

#define IDLE_NS 1000000000ll

struct sleeper {
    const _Atomic uint64_t *counter;
    uint64_t target;
    _Atomic uint32_t word; /* raised to wake it */
    struct sleeper *next, **link;
};

static _Atomic int role;
static _Atomic uint32_t taken; /* raised whenever a caller takes the role: the background thread stays away */
static pthread_mutex_t sleepers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sleeper *sleepers;
static _Atomic int n_sleepers;
static _Atomic bool poll_wanted; /* somebody asks again and again: the background thread gives way */

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns) {
    struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0);
}

static void wake_sleeper(struct sleeper *s) {
    atomic_fetch_add(&s->word, 1);
    syscall(SYS_futex, &s->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

uint64_t progress_value(const _Atomic uint64_t *counter) {
    return counter == &session.bulk_acked ? gv_bulk_acked(session.link) : atomic_load(counter);
}

static bool satisfied(const struct sleeper *s) { return progress_value(s->counter) >= s->target || atomic_load(&session.over); }

void progress_wake(void) {
    if (!atomic_load(&n_sleepers)) return;
    pthread_mutex_lock(&sleepers_lock);
    for (struct sleeper *s = sleepers; s; s = s->next)
        if (satisfied(s)) wake_sleeper(s);
    pthread_mutex_unlock(&sleepers_lock);
}

/* A free role and a sleeper must not stay together: called after giving up the role, and by each sleeper that leaves without it (it may have
 * swallowed the wake-up). */
static void pass_on(void) {
    if (!atomic_load(&n_sleepers) || atomic_load(&role) != ROLE_FREE) return;
    pthread_mutex_lock(&sleepers_lock);
    if (sleepers) wake_sleeper(sleepers);
    pthread_mutex_unlock(&sleepers_lock);
}

bool progress_role_take(enum progress_role as, enum progress_role *holder) {
    int had = ROLE_FREE;
    bool mine = atomic_compare_exchange_strong(&role, &had, as);
    if (holder) *holder = had;
    if (mine && as == ROLE_WAITER) atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed);
    return mine;
}

void progress_role_leave(void) {
    atomic_store(&role, ROLE_FREE);
    pass_on();
}

bool progress_role_sleep(const _Atomic uint64_t *counter, uint64_t target, int64_t deadline) {
    struct sleeper me = {.counter = counter, .target = target};
    pthread_mutex_lock(&sleepers_lock);
    me.next = sleepers;
    me.link = &sleepers;
    if (sleepers) sleepers->link = &me.next;
    sleepers = &me;
    atomic_fetch_add(&n_sleepers, 1);
    pthread_mutex_unlock(&sleepers_lock);

    bool mine = false;
    for (;;) {
        uint32_t seen = atomic_load(&me.word);
        if (satisfied(&me)) break;
        enum progress_role holder;
        if ((mine = progress_role_take(ROLE_WAITER, &holder))) break;
        if (holder == ROLE_BACKGROUND) gv_recv_wake(session.link); /* it sees n_sleepers and gives way */
        int64_t timeout = IDLE_NS;
        if (deadline) {
            int64_t left = deadline - session_now();
            if (left <= 0) break;
            if (left < timeout) timeout = left;
        }
        futex_wait(&me.word, seen, timeout);
    }
    pthread_mutex_lock(&sleepers_lock);
    *me.link = me.next;
    if (me.next) me.next->link = me.link;
    atomic_fetch_sub(&n_sleepers, 1);
    pthread_mutex_unlock(&sleepers_lock);
    if (!mine) pass_on();
    return mine;
}

uint32_t progress_role_taken(void) { return atomic_load(&taken); }

bool progress_role_wanted(void) { return atomic_load(&n_sleepers) || atomic_load(&poll_wanted); }

void progress_role_poll(enum progress_role holder) {
    if (holder == ROLE_BACKGROUND && !atomic_exchange(&poll_wanted, true)) gv_recv_wake(session.link);
}

void progress_role_polled(void) { atomic_store(&poll_wanted, false); }

void progress_changed(void) {
    progress_wake();
    if (atomic_load(&role) == ROLE_WAITER || atomic_load(&session.over)) gv_recv_wake(session.link);
}
