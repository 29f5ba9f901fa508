/* What all files of session/ look at: the session's state, its figures, and whether it still stands. */
#include "session/session_state.h"

#include "wire/clock.h"

struct session_state session = {.held_at = UINT64_MAX, .late_at = UINT64_MAX};
struct session_stats session_stats;

int64_t session_now(void) { return gv_now_ns(); }

const struct shim_server *session_server(void) { return &session.server; }

int session_broken(void) { return atomic_load_explicit(&session.broken, memory_order_acquire); }

bool session_in_forked_child(void) { return session.forked; }

void session_count_wait(uint64_t ns) {
    atomic_fetch_add_explicit(&session_stats.waits, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&session_stats.wait_ns, ns, memory_order_relaxed);
}

void session_waited(int64_t start) {
    uint64_t ns = (uint64_t)(session_now() - start);
    if (ns > SESSION_CONTENTION_NS) session_count_wait(ns);
}
