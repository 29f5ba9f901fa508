/* The smallest test frame: a program is a list of cases; the first broken promise ends it with the place and what was promised. */
#ifndef CHECK_H
#define CHECK_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(promise)                                                              \
    do {                                                                            \
        if (!(promise)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #promise); \
            _exit(1);                                                               \
        }                                                                           \
    } while (0)

#define CHECK_TEXT(text, part)                                                                            \
    do {                                                                                                  \
        const char *text_ = (text), *part_ = (part);                                                      \
        if (!strstr(text_, part_)) {                                                                      \
            fprintf(stderr, "%s:%d: \"%s\" does not contain \"%s\"\n", __FILE__, __LINE__, text_, part_); \
            _exit(1);                                                                                     \
        }                                                                                                 \
    } while (0)

struct test_case {
    const char *name;
    void (*run)(void);
};

/* Runs the cases named on the command line, else all. Each has `seconds` before SIGALRM ends the program. */
static inline int run_cases(const struct test_case *cases, size_t count, int argc, char **argv, unsigned seconds) {
    int ran = 0;
    for (size_t i = 0; i < count; i++) {
        int wanted = argc < 2;
        for (int j = 1; j < argc; j++) wanted |= strcmp(argv[j], cases[i].name) == 0;
        if (!wanted) continue;
        fprintf(stderr, "%s\n", cases[i].name);
        alarm(seconds);
        cases[i].run();
        ran++;
    }
    alarm(0);
    printf("%d cases passed\n", ran);
    return ran ? 0 : 1;
}

#endif
