/* Hash table from the client's handles to the worker's objects. Open addressing; handle 0 is never used. */
#ifndef WORKER_HANDLES_H
#define WORKER_HANDLES_H

#include <stdint.h>

struct handles {
    uint64_t *ids;
    void **objects;
    uint64_t size, used; /* size: power of two or 0; used: occupied slots, deleted ones included */
    uint64_t live;       /* objects */
};

void *handles_get(const struct handles *h, uint64_t id);
/* 0, or -1 when the id is taken, is 0 or 2^64 - 1, or memory is out. */
int handles_put(struct handles *h, uint64_t id, void *object);
/* The object in slot `i` < size, or NULL: for iteration; objects may be removed meanwhile. */
void *handles_at(const struct handles *h, uint64_t i);
void *handles_take(struct handles *h, uint64_t id);
/* Removes and returns any object; NULL: the table is empty. */
void *handles_pop(struct handles *h);
void handles_free(struct handles *h);

#endif
