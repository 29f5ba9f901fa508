/* Reading the link: the thread that holds the progress role (progress_role.c) hands each incoming record to its handler. */
#include <time.h>

#include "session/progress_role.h"
#include "session/session_state.h"

#define BATCH 64            /* records handled before waiters are looked at */
#define POLL_NS 500000000ll /* longest sleep in the link */
#define TICK_NS 2000000ll   /* the background thread takes over a role that nobody took for so long */
#define TICK_MAX_NS 16000000ll
#define IDLE_NS 1000000000ll

static progress_handler *handle;

/* ---- handling records (role held) ---------------------------------------------------------------------------------- */

static int handle_some(void) {
    static uint64_t acked; /* the role's holder only */
    int n = 0;
    while (n < BATCH) {
        const struct gv_record *record = gv_recv_peek(session.link);
        if (!record) break;
        const char *why = NULL;
        int bad = handle(record, &why);
        gv_recv_consume(session.link);
        n++;
        if (bad) {
            session_lost(why, NULL);
            break;
        }
    }
    /* Acknowledgements of payloads come between the records, and are none. */
    uint64_t now = gv_bulk_acked(session.link);
    if (n || now != acked) progress_wake();
    acked = now;
    return n;
}

static void poll_until(const _Atomic uint64_t *counter, uint64_t target, int64_t deadline, const char *what) {
    while (progress_value(counter) < target && !atomic_load(&session.over)) {
        if (handle_some() || progress_value(counter) >= target) continue;
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
    if (progress_value(counter) >= target) return 0;
    atomic_store_explicit(&session.waiting_for, what, memory_order_relaxed);
    gv_send_flush(session.link);
    int outcome = 0;
    while (progress_value(counter) < target) {
        if (atomic_load(&session.over)) {
            host_writes_quiesce();
            outcome = progress_value(counter) >= target ? 0 : session_broken();
            break;
        }
        if (deadline && session_now() >= deadline) {
            outcome = -1;
            break;
        }
        if (progress_role_take(ROLE_WAITER, NULL) || progress_role_sleep(counter, target, deadline)) {
            poll_until(counter, target, deadline, what);
            progress_role_leave();
        }
    }
    atomic_store_explicit(&session.waiting_for, NULL, memory_order_relaxed);
    return outcome;
}

void session_poll(void) {
    if (session_broken()) return;
    gv_send_flush(session.link);
    enum progress_role holder;
    if (!progress_role_take(ROLE_WAITER, &holder)) { /* whoever holds it handles what arrives */
        progress_role_poll(holder);
        return;
    }
    while (handle_some() == BATCH) {
    }
    if (gv_link_dead(session.link)) session_lost(NULL, "a query");
    progress_role_leave();
}

/* ---- the background thread ----------------------------------------------------------------------------------------- */

static void *background(void *arg) {
    (void)arg;
    uint32_t last = progress_role_taken();
    int64_t tick = TICK_NS;
    while (!atomic_load(&session.over)) {
        nanosleep(&(struct timespec){.tv_nsec = tick}, NULL);
        uint32_t now = progress_role_taken();
        if (now != last || !progress_role_take(ROLE_BACKGROUND, NULL)) {
            /* Callers come and go, or one has been polling for long: look less often then. */
            tick = now != last ? TICK_NS : tick * 2 < TICK_MAX_NS ? tick * 2 : TICK_MAX_NS;
            last = now;
            continue;
        }
        progress_role_polled();
        while (!atomic_load(&session.over) && !progress_role_wanted()) {
            if (handle_some()) continue;
            if (gv_link_dead(session.link)) {
                session_lost(NULL, NULL);
                break;
            }
            gv_recv_wait(session.link, IDLE_NS, 0);
        }
        progress_role_leave();
        last = progress_role_taken();
        tick = TICK_NS;
    }
    return NULL;
}

int progress_start(progress_handler *handler) {
    handle = handler;
    return session_thread("gpuvirt-events", background, NULL, 256 * 1024);
}
