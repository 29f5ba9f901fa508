/* What mappings mean where the devices share the processor's address space; memory.lock is held in all of this. */
#ifndef SOFT_MAPPINGS_H
#define SOFT_MAPPINGS_H

#include "soft.h"

/* Whether all that is mapped there may be written; true when nothing is. */
bool soft_mappings_writable(const struct soft_memory *m, uint64_t address, uint64_t size);
/* The PROT_* of a mapping with these rights (two bits a device): the most that any of the devices has. */
int soft_mapping_protection(uint32_t rights);

#endif
