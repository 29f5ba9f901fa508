/* Our threads, fork() and the end of the process. */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gv_client.h"
#include "session/session_state.h"

/* ---- threads ------------------------------------------------------------------------------------------------------- */

struct start {
    char name[16];
    void *(*fn)(void *);
    void *arg;
};

static void *started(void *arg) {
    struct start start = *(struct start *)arg;
    free(arg);
    prctl(PR_SET_NAME, start.name);
    return start.fn(start.arg);
}

int session_thread(const char *name, void *(*fn)(void *), void *arg, size_t stack) {
    struct start *start = calloc(1, sizeof *start);
    pthread_attr_t attr;
    if (!start || pthread_attr_init(&attr)) {
        free(start);
        return -1;
    }
    snprintf(start->name, sizeof start->name, "%s", name);
    start->fn = fn;
    start->arg = arg;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (stack) pthread_attr_setstacksize(&attr, stack);
    /* Signals are the program's: none of its handlers may run on a thread it does not know. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int failed = pthread_create(&thread, &attr, started, start);
    if (failed && stack) { /* too small for the thread-local storage of the program's libraries, which lies on it */
        pthread_attr_destroy(&attr);
        failed = pthread_attr_init(&attr);
        if (!failed) {
            pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
            failed = pthread_create(&thread, &attr, started, start);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (failed) free(start);
    return failed ? -1 : 0;
}

/* ---- fork() -------------------------------------------------------------------------------------------------------- */

static bool forked;

bool session_in_forked_child(void) { return forked; }

/* A child has one thread, and locks as they happened to be: none of ours is touched. What the parent had is closed, so that a child that lives
 * on does not keep a dead session alive, and every call says what a real driver's would. */
static void in_child(void) {
    if (atomic_load(&session.attached) || atomic_load(&session.attaching)) {
        forked = true;
        atomic_store(&session.broken, CUDA_ERROR_NOT_INITIALIZED);
        atomic_store(&session.over, 1);
    }
    if (session.link) gv_link_abandon(session.link);
    session.link = NULL;
    attach_in_child();
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
    if (!atomic_load(&session.attached) || forked || session.owner != getpid()) return;
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
}
