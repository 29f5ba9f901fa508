/* A set of addresses, kept as sorted disjoint ranges. Not thread-safe. */
#ifndef ADDRESS_RANGES_H
#define ADDRESS_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct address_range {
    uint64_t start, end;
};

struct address_ranges {
    struct address_range *items;
    size_t n, size;
};

/* Whether all of / any of [start, start + size) is in the set. size > 0. */
bool address_ranges_hold(const struct address_ranges *r, uint64_t start, uint64_t size);
bool address_ranges_touch(const struct address_ranges *r, uint64_t start, uint64_t size);
/* Where the first part of the set begins that has `size`; 0: none has. */
uint64_t address_ranges_fit(const struct address_ranges *r, uint64_t size);
/* What is added is not in the set yet, what is removed is wholly in it. False: out of memory, nothing was changed. */
bool address_ranges_add(struct address_ranges *r, uint64_t start, uint64_t size);
bool address_ranges_remove(struct address_ranges *r, uint64_t start, uint64_t size);
void address_ranges_free(struct address_ranges *r);

#endif
