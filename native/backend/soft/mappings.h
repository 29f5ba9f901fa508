/* Where physical memory is mapped; memory.lock is held in all of this. */
#ifndef SOFT_MAPPINGS_H
#define SOFT_MAPPINGS_H

#include "soft.h"

/* Physical memory at an address. */
struct soft_mapping {
    uint64_t address, size;
    struct gv_physical *physical;
    uint32_t rights; /* two bits a device of the session: CU_MEM_ACCESS_FLAGS */
};

/* Index of the first mapping that ends behind `address`. */
size_t soft_mappings_find(const struct soft_memory *m, uint64_t address);
/* Whether anything is mapped in [address, address + size). */
bool soft_mappings_touch(const struct soft_memory *m, uint64_t address, uint64_t size);
/* The mappings that make up [address, address + size): *first, and their number; 0 when it has holes or begins or ends inside a mapping. */
size_t soft_mappings_whole(const struct soft_memory *m, uint64_t address, uint64_t size, size_t *first);
/* Whether all that is mapped there may be written; true when nothing is. */
bool soft_mappings_writable(const struct soft_memory *m, uint64_t address, uint64_t size);
/* The PROT_* of a mapping with these rights (two bits a device). The devices share one address space, so it is the most that any of them has. */
int soft_mapping_protection(uint32_t rights);

#endif
