/* fork() and the end of the process. */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gv_client.h"
#include "session/session_state.h"

/* ---- fork() -------------------------------------------------------------------------------------------------------- */

/* A child has one thread, and locks as they happened to be: none of ours is touched. What the parent had is closed, so that a child that lives
 * on does not keep a dead session alive, and every call says what a real driver's would. */
static void in_child(void) {
    if (atomic_load(&session.attached) || atomic_load(&session.attaching)) {
        session.forked = true;
        atomic_store(&session.broken, CUDA_ERROR_NOT_INITIALIZED);
        atomic_store(&session.over, 1);
    }
    if (session.link) gv_link_abandon(session.link);
    session.link = NULL;
    attach_in_child();
    completions_in_child();
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

/* ---- exit ---------------------------------------------------------------------------------------------------------- */

static _Atomic uint32_t said_goodbye;
static _Atomic int64_t launches = -1;

static void *goodbye(void *arg) {
    static struct session_reply reply;
    (void)arg;
    struct gv_cmd_bye bye = {0};
    void *body = session_begin_any(GV_OP_BYE, GV_RECORD_SYNC, 0, (uint32_t)gv_cmd_bye_size(&bye));
    if (body) {
        reply.op = GV_OP_BYE;
        gv_cmd_bye_encode(&bye, body);
        session_send_call(&reply);
        struct gv_reply_bye out;
        if (!session_wait_until(&reply, session_now() + SESSION_GOODBYE_NS) && !gv_reply_bye_decode(&out, reply.body, reply.body_size))
            atomic_store(&launches, (int64_t)out.launches);
        gv_link_last(session.link); /* a cut from here on is the end */
    }
    atomic_store(&said_goodbye, 1);
    syscall(SYS_futex, &said_goodbye, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    return NULL;
}

/* Library destructors run after the program's and cudart's atexit handlers, which still use the session. Other threads may be anywhere, also
 * inside this library: nothing is freed, and the goodbye is said from a thread of its own, so that whatever lock somebody died with costs two
 * seconds and no more. */
__attribute__((destructor(101))) static void leave(void) {
    if (!atomic_load(&session.attached) || session.forked || session.owner != getpid()) return;
    bool lost = atomic_load(&session.over);
    int none = 0;
    atomic_store(&session.leaving, 1);
    atomic_compare_exchange_strong(&session.broken, &none, CUDA_ERROR_DEINITIALIZED);
    if (!lost && !session_thread("gpuvirt-bye", goodbye, NULL, 256 * 1024)) {
        int64_t deadline = session_now() + SESSION_GOODBYE_NS + 100000000ll;
        int64_t left;
        while (!atomic_load(&said_goodbye) && (left = deadline - session_now()) > 0) {
            struct timespec t = {left / 1000000000, left % 1000000000};
            syscall(SYS_futex, &said_goodbye, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0);
        }
    }
    stats_write(atomic_load(&launches));
    launch_record_left(atomic_load(&session.launched));
}
