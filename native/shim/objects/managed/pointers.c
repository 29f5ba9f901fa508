/* Pointers among what the host has written: what a kernel may follow, although no parameter names it. */
#include <string.h>

#include "objects/managed/managed.h"
#include "objects/managed/region.h"

/* Looks through one block. Returns how many it has found. */
static size_t look(const struct region *r, size_t block, bool (*wanted)(uint64_t), uint64_t *out, size_t room) {
    const char *at = r->view + ((uint64_t)block << r->shift);
    uint64_t size = region_bytes(r, block, 1), word;
    size_t n = 0;
    for (uint64_t i = 0; i + sizeof word <= size && n < room; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        if (wanted(word)) out[n++] = word;
    }
    return n;
}

size_t managed_pointers(bool (*wanted)(uint64_t), uint64_t *out, size_t room) {
    size_t n = 0;
    pthread_mutex_lock(&region_lock);
    for (struct region *r = region_list; r && n < room; r = r->next)
        for (size_t i = 0; i < r->n && r->dirty && !r->gone && n < room; i++)
            if (region_state(r, i) == BLOCK_DIRTY) n += look(r, i, wanted, out + n, room - n);
    pthread_mutex_unlock(&region_lock);
    return n;
}
