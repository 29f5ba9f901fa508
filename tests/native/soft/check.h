/* What the native tests have in common. A failed check prints where and ends the program with status 1. */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition); \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

#define CHECK_INT(value, expected)                                                                                   \
    do {                                                                                                             \
        long long got_ = (long long)(value), want_ = (long long)(expected);                                          \
        if (got_ != want_) {                                                                                         \
            fprintf(stderr, "%s:%d: %s: %s is %lld, not %lld\n", __FILE__, __LINE__, __func__, #value, got_, want_); \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)

#define CHECK_TEXT(text, part)                                                                                     \
    do {                                                                                                           \
        if (!strstr(text, part)) {                                                                                 \
            fprintf(stderr, "%s:%d: %s: \"%s\" does not hold \"%s\"\n", __FILE__, __LINE__, __func__, text, part); \
            exit(1);                                                                                               \
        }                                                                                                          \
    } while (0)

#endif
