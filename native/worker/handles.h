/* From the client's ids to our objects. Open addressing; id 0 is never used. */
#ifndef WORKER_HANDLES_H
#define WORKER_HANDLES_H

#include <stdint.h>

struct handles {
    uint64_t *ids;
    void **objects;
    uint64_t size, used; /* size: power of two or 0; used counts graves too */
};

void *handles_get(const struct handles *h, uint64_t id);
/* 0, or -1 when the id is taken, is 0 or 2^64 - 1, or memory is out. */
int handles_put(struct handles *h, uint64_t id, void *object);
/* The object in slot `i` < size, or NULL: to go through all of them, taking some out meanwhile. */
void *handles_at(const struct handles *h, uint64_t i);
void *handles_take(struct handles *h, uint64_t id);
/* Takes any object out; NULL when none is left. */
void *handles_pop(struct handles *h);
void handles_free(struct handles *h);

#endif
