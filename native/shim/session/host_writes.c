/* Which threads of the session write into the program's memory now. Once the session is over, a waiter returns and the program may free its buffer:
 * host_writes_quiesce waits for the last writer, and nobody starts after `over`. */
#include <time.h>

#include "session/session_state.h"

static _Atomic int writers;

bool host_write_begin(void) {
    atomic_fetch_add(&writers, 1);
    if (!atomic_load(&session.over)) return true;
    atomic_fetch_sub(&writers, 1);
    return false;
}

void host_write_end(void) { atomic_fetch_sub(&writers, 1); }

void host_writes_quiesce(void) {
    int64_t deadline = session_now() + SESSION_GOODBYE_NS;
    while (atomic_load(&writers) && session_now() < deadline) {
        struct timespec t = {0, 50000};
        nanosleep(&t, NULL);
    }
}
