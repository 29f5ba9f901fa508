/* The client of one session: it carries out a sequence on a real worker in this process. */
#ifndef CLIENT_H
#define CLIENT_H

#include "step.h"

struct worker;

struct surroundings {
    const char *driver;                    /* of the cuda backend: a library */
    const char *folder;                    /* for what a session leaves on disk: cache-PID in it */
    unsigned patience;                     /* s, after which a session that has not ended hangs */
    bool cuda_alone;                       /* whatever a session says */
    const int *rings;                      /* the memory of a sound session over shm, a descriptor; NULL: it makes its own */
    void (*at_end)(struct worker *worker); /* in the place of the end of a session that is sound */
};

/* Runs the session and ends it. Whatever is wrong with the worker ends the process: a sanitizer's report, or a line that begins with "wrong: ". */
void client_run(const struct sequence *q, const struct surroundings *where);

/* How a session's process exits that a busy server has not let begin. */
#define EXIT_BUSY 4

/* What was expected of a worker is not so. */
__attribute__((format(printf, 1, 2), noreturn)) void client_wrong(const char *format, ...);

struct soft_compiler;
/* The compiler of the soft backend: every image that begins with "good" has the same kernels (soft_modules.c), as the fake driver's have. */
struct soft_compiler *soft_modules(void);

#endif
