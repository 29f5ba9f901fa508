/* Which physical memory is mapped where, and with what rights: a list sorted by address. virtual.c changes it. */
#include "mappings.h"

#include <sys/mman.h>

size_t soft_mappings_find(const struct soft_memory *m, uint64_t address) {
    size_t low = 0, high = m->n_mappings;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (m->mappings[middle].address + m->mappings[middle].size > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool soft_mappings_touch(const struct soft_memory *m, uint64_t address, uint64_t size) {
    size_t i = soft_mappings_find(m, address);
    return i < m->n_mappings && m->mappings[i].address < address + size;
}

size_t soft_mappings_whole(const struct soft_memory *m, uint64_t address, uint64_t size, size_t *first) {
    size_t i = *first = soft_mappings_find(m, address);
    uint64_t at = address, end = address + size;
    for (; i < m->n_mappings && at < end && m->mappings[i].address == at; i++) at += m->mappings[i].size;
    return size && at == end ? i - *first : 0;
}

int soft_mapping_protection(uint32_t rights) {
    uint32_t read = rights & 0x55555555u, write = (rights >> 1) & 0x55555555u;
    return write ? PROT_READ | PROT_WRITE : read ? PROT_READ : PROT_NONE;
}

bool soft_mappings_writable(const struct soft_memory *m, uint64_t address, uint64_t size) {
    for (size_t i = soft_mappings_find(m, address); i < m->n_mappings && m->mappings[i].address < address + size; i++) {
        if (!(soft_mapping_protection(m->mappings[i].rights) & PROT_WRITE)) return false;
    }
    return true;
}
