/* The session's own threads. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "session/session_state.h"

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
    sigdelset(&all, SIGSEGV); /* its own faults: a host function may touch managed memory */
    sigdelset(&all, SIGBUS);
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
