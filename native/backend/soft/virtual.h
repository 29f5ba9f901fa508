/* Virtual memory management of the software GPU: the functions of backend.h, and those that memory.c calls. */
#ifndef SOFT_VIRTUAL_H
#define SOFT_VIRTUAL_H

#include "soft.h"

/* Physical memory at an address. */
struct soft_mapping {
    uint64_t address, size;
    struct gv_physical *physical;
    uint32_t rights; /* two bits a device of the session: CU_MEM_ACCESS_FLAGS */
};

/* Whether anything is mapped in [address, address + size); memory.lock held. */
bool soft_mappings_touch(const struct soft_memory *m, uint64_t address, uint64_t size);
/* Whether all that is mapped there may be written; true when nothing is. memory.lock held. */
bool soft_mappings_writable(const struct soft_memory *m, uint64_t address, uint64_t size);
/* Called at the end, when nothing runs any more. */
void soft_virtual_close(struct soft_memory *m);

#endif
