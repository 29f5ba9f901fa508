/* Who handles incoming records, and how everybody else waits.
 *
 * Exactly one thread at a time holds the `role` and reads the link. A caller that waits takes the role if it is free and polls the link
 * itself: no thread wake-up in the way. Other waiters enlist and sleep on a futex word of their own; whoever handles a record that satisfies
 * one wakes it, and whoever gives the role up wakes one of those left to take it over. The background thread takes the role when nobody did
 * for a tick, sleeps in the link, and gives it up as soon as a waiter enlists.
 *
 * No wake-up is lost, because each side writes first and looks second, all sequentially consistent: a sleeper enlists (n_sleepers), then looks
 * at its counter, `over` and the role; the other side moves the counter, sets `over` or frees the role, then looks at n_sleepers. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "session/session_state.h"

enum { ROLE_FREE, ROLE_WAITER, ROLE_BACKGROUND };

struct sleeper {
    const _Atomic uint64_t *counter;
    uint64_t target;
    _Atomic uint32_t word; /* raised to wake it */
    struct sleeper *next, **link;
};

static _Atomic int role;
static _Atomic uint32_t activity; /* raised whenever a caller takes the role: the background thread stays away */
static pthread_mutex_t sleepers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sleeper *sleepers;
static _Atomic int n_sleepers;
static _Atomic bool poll_wanted; /* somebody asks again and again: the background thread gives way */
static _Atomic(const char *) waiting_for;

#define BATCH 64            /* records handled before waiters are looked at */
#define POLL_NS 500000000ll /* longest sleep in the link */
#define TICK_NS 2000000ll   /* the background thread takes over a role that nobody took for so long */
#define TICK_MAX_NS 16000000ll
#define IDLE_NS 1000000000ll

/* ---- sleeping ------------------------------------------------------------------------------------------------------ */

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns) {
    struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0);
}

static void wake_sleeper(struct sleeper *s) {
    atomic_fetch_add(&s->word, 1);
    syscall(SYS_futex, &s->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static uint64_t value_of(const _Atomic uint64_t *counter) {
    return counter == &session.bulk_acked ? gv_bulk_acked(session.link) : atomic_load(counter);
}

static bool satisfied(const struct sleeper *s) { return value_of(s->counter) >= s->target || atomic_load(&session.over); }

static void wake_satisfied(void) {
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

static bool take_role(int as, int *holder) {
    int free_role = ROLE_FREE;
    bool mine = atomic_compare_exchange_strong(&role, &free_role, as);
    if (holder) *holder = free_role;
    if (mine && as == ROLE_WAITER) atomic_fetch_add_explicit(&activity, 1, memory_order_relaxed);
    return mine;
}

static void leave_role(void) {
    atomic_store(&role, ROLE_FREE);
    pass_on();
}

/* Sleeps until the counter is there, the session over or the deadline past (false), or until this thread got the role (true). */
static bool sleep_for_role(const _Atomic uint64_t *counter, uint64_t target, int64_t deadline) {
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
        int holder;
        if ((mine = take_role(ROLE_WAITER, &holder))) break;
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

/* ---- handling records (role held) ---------------------------------------------------------------------------------- */

static int handle_some(void) {
    static uint64_t acked; /* the role's holder only */
    int n = 0;
    while (n < BATCH) {
        const struct gv_record *record = gv_recv_peek(session.link);
        if (!record) break;
        const char *why = NULL;
        int bad = events_handle(record, &why);
        gv_recv_consume(session.link);
        n++;
        if (bad) {
            session_lost(why, NULL);
            break;
        }
    }
    /* Acknowledgements of payloads come between the records, and are none. */
    uint64_t now = gv_bulk_acked(session.link);
    if (n || now != acked) wake_satisfied();
    acked = now;
    return n;
}

static void poll_until(const _Atomic uint64_t *counter, uint64_t target, int64_t deadline, const char *what) {
    while (value_of(counter) < target && !atomic_load(&session.over)) {
        if (handle_some() || value_of(counter) >= target) continue;
        if (gv_link_dead(session.link)) {
            session_lost(NULL, what);
            break;
        }
        int64_t timeout = POLL_NS;
        if (deadline) {
            int64_t left = deadline - session_now();
            if (left <= 0) break;
            if (left < timeout) timeout = left;
        }
        gv_recv_wait(session.link, timeout, SESSION_SPIN_NS);
    }
}

int progress_wait(const _Atomic uint64_t *counter, uint64_t target, int64_t deadline, const char *what) {
    if (value_of(counter) >= target) return 0;
    atomic_store_explicit(&waiting_for, what, memory_order_relaxed);
    gv_send_flush(session.link);
    int outcome = 0;
    while (value_of(counter) < target) {
        if (atomic_load(&session.over)) {
            bulk_quiesce();
            outcome = value_of(counter) >= target ? 0 : session_broken();
            break;
        }
        if (deadline && session_now() >= deadline) {
            outcome = -1;
            break;
        }
        if (take_role(ROLE_WAITER, NULL) || sleep_for_role(counter, target, deadline)) {
            poll_until(counter, target, deadline, what);
            leave_role();
        }
    }
    atomic_store_explicit(&waiting_for, NULL, memory_order_relaxed);
    return outcome;
}

void progress_changed(void) {
    wake_satisfied();
    if (atomic_load(&role) == ROLE_WAITER || atomic_load(&session.over)) gv_recv_wake(session.link);
}

const char *progress_waiting_for(void) { return atomic_load_explicit(&waiting_for, memory_order_relaxed); }

void session_poll(void) {
    if (session_broken()) return;
    gv_send_flush(session.link);
    int holder;
    if (!take_role(ROLE_WAITER, &holder)) { /* whoever holds it handles what arrives */
        if (holder == ROLE_BACKGROUND && !atomic_exchange(&poll_wanted, true)) gv_recv_wake(session.link);
        return;
    }
    while (handle_some() == BATCH) {
    }
    if (gv_link_dead(session.link)) session_lost(NULL, "a query");
    leave_role();
}

/* ---- the background thread ----------------------------------------------------------------------------------------- */

static void *background(void *arg) {
    (void)arg;
    static _Atomic uint32_t never;
    uint32_t last = atomic_load(&activity);
    int64_t tick = TICK_NS;
    while (!atomic_load(&session.over)) {
        futex_wait(&never, 0, tick);
        uint32_t now = atomic_load(&activity);
        int holder = ROLE_FREE;
        if (now != last || !take_role(ROLE_BACKGROUND, &holder)) {
            /* Callers come and go, or one has been polling for long: look less often then. */
            tick = now != last ? TICK_NS : tick * 2 < TICK_MAX_NS ? tick * 2 : TICK_MAX_NS;
            last = now;
            continue;
        }
        atomic_store(&poll_wanted, false);
        while (!atomic_load(&session.over) && !atomic_load(&n_sleepers) && !atomic_load(&poll_wanted)) {
            if (handle_some()) continue;
            if (gv_link_dead(session.link)) {
                session_lost(NULL, NULL);
                break;
            }
            gv_recv_wait(session.link, IDLE_NS, 0);
        }
        leave_role();
        last = atomic_load(&activity);
        tick = TICK_NS;
    }
    return NULL;
}

int progress_start(void) { return session_thread("gpuvirt-events", background, NULL, 256 * 1024); }

/* ---- streams ------------------------------------------------------------------------------------------------------- */

static void (*context_failed)(uint32_t ctx, int status);

void session_on_context_failure(void (*call)(uint32_t ctx, int status)) { context_failed = call; }

#define STREAM_BUCKETS 256u
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct session_stream *streams[STREAM_BUCKETS];

static struct session_stream **bucket_of(uint64_t id) { return &streams[(id ^ id >> 8 ^ id >> 16) % STREAM_BUCKETS]; }

void session_stream_add(struct session_stream *s) {
    pthread_mutex_lock(&streams_lock);
    struct session_stream **bucket = bucket_of(s->id);
    s->next = *bucket;
    *bucket = s;
    pthread_mutex_unlock(&streams_lock);
}

void session_stream_remove(struct session_stream *s) {
    pthread_mutex_lock(&streams_lock);
    struct session_stream **at = bucket_of(s->id);
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
    expect_stream_gone(s);
    pthread_mutex_unlock(&streams_lock);
}

static struct session_stream *find_stream(uint64_t id) {
    struct session_stream *s = *bucket_of(id);
    while (s && s->id != id) s = s->next;
    return s;
}

enum expect_outcome progress_publish(uint64_t stream, uint64_t upto, int status, uint64_t *receiving) {
    uint32_t failed_ctx = 0;
    enum expect_outcome outcome = EXPECT_ENDED;
    pthread_mutex_lock(&streams_lock);
    struct session_stream *s = find_stream(stream);
    if (s) outcome = expect_end(s, upto, status || atomic_load(&s->status), receiving);
    if (s && outcome == EXPECT_ENDED) {
        if (status) {
            atomic_store(&s->status, status);
            failed_ctx = s->ctx;
        }
        if (upto > atomic_load(&s->completed)) atomic_store(&s->completed, upto);
    }
    pthread_mutex_unlock(&streams_lock);
    if (failed_ctx && context_failed) context_failed(failed_ctx, status);
    return outcome;
}

enum expect_outcome progress_end_copies(uint64_t stream, uint64_t before, int status, uint64_t *receiving) {
    pthread_mutex_lock(&streams_lock);
    struct session_stream *s = find_stream(stream);
    enum expect_outcome outcome = s ? expect_end(s, before - 1, status || atomic_load(&s->status), receiving) : EXPECT_ENDED;
    pthread_mutex_unlock(&streams_lock);
    return outcome;
}

void progress_context_failed(uint32_t ctx, int status) {
    pthread_mutex_lock(&streams_lock);
    for (unsigned i = 0; i < STREAM_BUCKETS; i++)
        for (struct session_stream *s = streams[i]; s; s = s->next)
            if (s->ctx == ctx) atomic_store(&s->status, status);
    pthread_mutex_unlock(&streams_lock);
    if (context_failed) context_failed(ctx, status);
}

int session_wait_stream(struct session_stream *s, uint64_t seq) {
    if (atomic_load(&s->completed) < seq) {
        int64_t start = session_now();
        int outcome = progress_wait(&s->completed, seq, 0, "a wait for a stream");
        atomic_fetch_add_explicit(&session_stats.waits, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&session_stats.wait_ns, (uint64_t)(session_now() - start), memory_order_relaxed);
        if (outcome) return outcome;
    }
    return atomic_load(&s->status);
}
