/* A set of addresses, kept as sorted disjoint ranges. Not thread-safe. */
#ifndef SOFT_RANGES_H
#define SOFT_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct soft_range {
    uint64_t start, end;
};

struct soft_ranges {
    struct soft_range *items;
    size_t n, size;
};

/* Whether all of / any of [start, start + size) is in the set. size > 0. */
bool soft_ranges_hold(const struct soft_ranges *r, uint64_t start, uint64_t size);
bool soft_ranges_touch(const struct soft_ranges *r, uint64_t start, uint64_t size);
/* What is added is not in the set yet, what is removed is wholly in it. False: out of memory, nothing was changed. */
bool soft_ranges_add(struct soft_ranges *r, uint64_t start, uint64_t size);
bool soft_ranges_remove(struct soft_ranges *r, uint64_t start, uint64_t size);
void soft_ranges_free(struct soft_ranges *r);

#endif
