/* The links' own threads. */
#ifndef GV_THREAD_H
#define GV_THREAD_H

#include <pthread.h>

/* Starts a thread that no signal of the program's reaches. 0 or an errno. */
int gv_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name);

#endif
