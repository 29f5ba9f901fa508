#define _GNU_SOURCE
#include "thread.h"

#include <signal.h>

int gv_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_t attr;
    int error = pthread_attr_init(&attr);
    if (error) return error;
    /* Thread-local storage of the program's libraries lives on the stack too, hence not the minimum. */
    pthread_attr_setstacksize(&attr, 512 * 1024);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (!error) pthread_setname_np(*thread, name);
    return error;
}
