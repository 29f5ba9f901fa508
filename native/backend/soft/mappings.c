#include "mappings.h"

#include <sys/mman.h>

int soft_mapping_protection(uint32_t rights) {
    uint32_t read = rights & 0x55555555u, write = (rights >> 1) & 0x55555555u;
    return write ? PROT_READ | PROT_WRITE : read ? PROT_READ : PROT_NONE;
}

bool soft_mappings_writable(const struct soft_memory *m, uint64_t address, uint64_t size) {
    const struct mappings *all = &m->mappings;
    for (size_t i = mappings_find(all, address); i < all->n && all->items[i].address < address + size; i++) {
        if (!(soft_mapping_protection(all->items[i].rights) & PROT_WRITE)) return false;
    }
    return true;
}
