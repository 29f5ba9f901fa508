#include "mappings.h"

#include <stdlib.h>
#include <string.h>

#include "../wire/session_limits.h"

size_t mappings_find(const struct mappings *m, uint64_t address) {
    size_t low = 0, high = m->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (m->items[middle].address + m->items[middle].size > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool mappings_touch(const struct mappings *m, uint64_t address, uint64_t size) {
    size_t i = mappings_find(m, address);
    return i < m->n && m->items[i].address < address + size;
}

size_t mappings_whole(const struct mappings *m, uint64_t address, uint64_t size, size_t *first) {
    size_t i = *first = mappings_find(m, address);
    uint64_t at = address, end = address + size;
    for (; i < m->n && at < end && m->items[i].address == at; i++) at += m->items[i].size;
    return size && at == end ? i - *first : 0;
}

bool mappings_grow(struct mappings *m) {
    if (m->n >= GV_MAPPINGS_MAX) return false;
    if (m->n < m->size) return true;
    size_t more = m->size ? 2 * m->size : 16;
    struct mapping *items = realloc(m->items, more * sizeof *items);
    if (!items) return false;
    m->items = items;
    m->size = more;
    return true;
}

void mappings_add(struct mappings *m, struct mapping mapping) {
    size_t i = mappings_find(m, mapping.address);
    memmove(&m->items[i + 1], &m->items[i], (m->n - i) * sizeof *m->items);
    m->items[i] = mapping;
    m->n++;
}

void mappings_remove(struct mappings *m, size_t at) {
    m->n--;
    memmove(&m->items[at], &m->items[at + 1], (m->n - at) * sizeof *m->items);
}

void mappings_free(struct mappings *m) {
    free(m->items);
    *m = (struct mappings){0};
}
