/* Back-pressure: bounds how many bytes of commands and of payloads are sent behind a host function that has not run (the limits are in
 * session_state.h). host_functions.c says where the oldest one stands. */
#include "session/session_state.h"

static _Atomic uint64_t functions_run;
static _Thread_local int exempt;

void throttle_exempt_begin(void) { exempt++; }

void throttle_exempt_end(void) { exempt--; }

void throttle_function_ran(void) {
    atomic_fetch_add(&functions_run, 1);
    progress_changed();
}

void throttle_commands_wait(void) {
    if (exempt) return;
    int64_t start = session_now();
    for (;;) {
        uint64_t run = atomic_load(&functions_run), held_at = atomic_load(&session.held_at);
        if (held_at == UINT64_MAX || atomic_load(&session.posted) - held_at <= SESSION_BEHIND_HOST) break;
        if (progress_wait(&functions_run, run + 1, 0, "a host function")) break;
    }
    session_waited(start);
}

bool throttle_payload_would_wait(uint64_t size) {
    uint64_t late_at = atomic_load(&session.late_at);
    return late_at != UINT64_MAX && atomic_load(&session.sent) + size - late_at > SESSION_BEHIND_LATE && !exempt;
}

void throttle_payload(uint64_t size) {
    if (!throttle_payload_would_wait(size)) return;
    int64_t start = session_now();
    for (;;) {
        uint64_t run = atomic_load(&functions_run);
        if (!throttle_payload_would_wait(size) || progress_wait(&functions_run, run + 1, 0, "a copy whose source is still being written")) break;
    }
    session_waited(start);
}
