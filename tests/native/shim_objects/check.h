/* One macro for all C tests here: a failed check says where and what, and the program exits 1 at its end. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>

__attribute__((weak)) int check_failures; /* one for all files of a program */

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            check_failures++;                                                       \
        }                                                                           \
    } while (0)

/* Both sides as numbers. */
#define EQUAL(a, b)                                                                                                            \
    do {                                                                                                                       \
        long long a_ = (long long)(a), b_ = (long long)(b);                                                                    \
        if (a_ != b_) {                                                                                                        \
            fprintf(stderr, "%s:%d: %s is %lld (0x%llx), not %lld\n", __FILE__, __LINE__, #a, a_, (unsigned long long)a_, b_); \
            check_failures++;                                                                                                  \
        }                                                                                                                      \
    } while (0)

static inline int check_result(const char *name) {
    if (check_failures) fprintf(stderr, "%s: %d checks failed\n", name, check_failures);
    return check_failures != 0;
}

#endif
