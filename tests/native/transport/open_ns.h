/* Given to the compiler in front of every file: the time limit of an unanswering server is a test's to set (mini_start does). */
#ifndef OPEN_NS_H
#define OPEN_NS_H

#define _GNU_SOURCE

#include <stdatomic.h>
#include <stdint.h>

extern _Atomic int64_t test_open_ns;
#define OPEN_NS ((long long)atomic_load(&test_open_ns))

#endif
