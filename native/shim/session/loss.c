/* The end of a session that was lost: its one message, what calls return from then on, and that every waiter returns. */
#include <pthread.h>
#include <stdio.h>

#include "gv_results.h"
#include "session/session_state.h"

static char lost_text[768];
static char attach_text[768];
static void (*_Atomic over_call)(void);

void session_on_over(void (*call)(void)) { atomic_store(&over_call, call); }

void session_lost(const char *why, const char *during) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    if (atomic_load(&session.over)) return;
    gv_link_kill(session.link, why ? why : "gave up");
    if (!during) during = atomic_load_explicit(&session.waiting_for, memory_order_relaxed);

    pthread_mutex_lock(&once);
    bool first = !atomic_load(&session.over);
    if (first) {
        const char *death = gv_link_death(session.link);
        snprintf(lost_text, sizeof lost_text, "lost the GPU server %s (%s)", session.pool, *death ? death : "no reason known");
        if (!atomic_load(&session.leaving)) {
            /* Before anybody's call returns: the program may end at once. shim_log does not block. */
            shim_log("%s during %s; what it held is gone: see that the server runs (`gpuvirt devices --pool %s`), then start this program again",
                     lost_text, during ? during : "a pause between calls", session.pool);
            atomic_store_explicit(&session.broken, CUDA_ERROR_DEVICE_UNAVAILABLE, memory_order_release);
        }
        atomic_store(&session.over, 1);
    }
    pthread_mutex_unlock(&once);
    if (!first) return;
    progress_changed();
    void (*call)(void) = atomic_load(&over_call);
    if (call) call();
}

void session_attach_text(const char *text) { snprintf(attach_text, sizeof attach_text, "%s", text); }

const char *session_error_text(int code) {
    if (code == CUDA_ERROR_DEVICE_UNAVAILABLE && session_broken() == CUDA_ERROR_DEVICE_UNAVAILABLE) return lost_text;
    if (code == CUDA_ERROR_NO_DEVICE && attach_text[0] && !atomic_load(&session.attached)) return attach_text;
    return NULL;
}
