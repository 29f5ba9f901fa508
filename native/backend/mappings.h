/* Which physical memory is mapped where, and with what rights: a list sorted by address. Not thread-safe. */
#ifndef BACKEND_MAPPINGS_H
#define BACKEND_MAPPINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gv_physical;

/* Physical memory at an address. */
struct mapping {
    uint64_t address, size;
    struct gv_physical *physical;
    uint32_t rights; /* two bits a device of the session: CU_MEM_ACCESS_FLAGS */
};

struct mappings {
    struct mapping *items; /* disjoint */
    size_t n, size;
};

/* Index of the first mapping that ends behind `address`. */
size_t mappings_find(const struct mappings *m, uint64_t address);
/* Whether anything is mapped in [address, address + size). */
bool mappings_touch(const struct mappings *m, uint64_t address, uint64_t size);
/* The mappings that make up [address, address + size): *first, and their number; 0 when it has holes or begins or ends inside a mapping. */
size_t mappings_whole(const struct mappings *m, uint64_t address, uint64_t size, size_t *first);
/* Makes room for one more, so that the next mappings_add cannot fail. False: there are GV_MAPPINGS_MAX, or there is no memory. */
bool mappings_grow(struct mappings *m);
/* Nothing is mapped there, and there is room. */
void mappings_add(struct mappings *m, struct mapping mapping);
void mappings_remove(struct mappings *m, size_t at);
void mappings_free(struct mappings *m);

#endif
