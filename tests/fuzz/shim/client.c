/* A program that uses the real driver library, whose server is hostile. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client.h"

/* What a client may use, sanitizers and their shadow included; it asks for a few MiB itself. */
#ifndef RSS_MAX_MB
#define RSS_MAX_MB 500
#endif

_Thread_local unsigned call_thread = FUZZ_THREADS;

CUresult call_returned(CUresult rc) {
    atomic_store(&shared->at[call_thread], NULL);
    atomic_fetch_add(&shared->calls, 1);
    if (rc != CUDA_SUCCESS) atomic_fetch_add(&shared->failed_calls, 1);
    return rc;
}

static long resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return pages;
}

/* What the server still sends, it sends now: until nothing comes any more, or for three seconds. */
static void wait_for_the_rest(bool lost) {
    usleep(lost ? 2000 : 20000);
    long before = resident(), now = before;
    for (int i = 0; i < 30 && !lost && (i == 0 || now > before + 256); i++) {
        before = now;
        usleep(100000);
        now = resident();
    }
}

static void *call(void *arg) {
    struct caller *c = arg;
    call_thread = c->number;
    calls_make(c);
    return NULL;
}

_Noreturn void client_run(const struct session_plan *plan) {
    static struct caller callers[FUZZ_THREADS];
    pthread_t threads[FUZZ_THREADS];
    struct dice d = dice_of(plan->seed, 6);
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(nothing, 1);
    unsigned n = plan->honest ? 2 : 1 + (unsigned)roll(&d, FUZZ_THREADS);
    if (CALL(cuInit, 0) != CUDA_SUCCESS) {
        if (plan->honest) violation("the honest server was not attached to");
        atomic_fetch_add(&shared->never_attached, 1);
        exit(0);
    }
    for (unsigned i = 0; i < n; i++) {
        callers[i] = (struct caller){.number = i, .dice = dice_of(plan->seed, 10 + i), .honest = plan->honest, .calls = 40 + roll(&d, 160)};
        if (pthread_create(&threads[i], NULL, call, &callers[i])) _exit(70);
    }
    bool lost = false;
    for (unsigned i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        lost |= callers[i].lost;
    }
    if (lost && plan->honest) violation("the session was lost");
    atomic_fetch_add(lost ? &shared->lost : &shared->finished, 1);
    wait_for_the_rest(lost || plan->honest || !atomic_load(&shared->told));
    for (unsigned i = 0; i < n; i++) blocks_look(&callers[i].blocks);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    if (used.ru_maxrss > RSS_MAX_MB * 1024l) violation("%ld MiB were in use", used.ru_maxrss / 1024);
    exit(0);
}
