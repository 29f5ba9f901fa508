/* Device memory that payloads come to and go from without staging memory. */
#ifndef WORKER_VIEW_H
#define WORKER_VIEW_H

#include <stdbool.h>
#include <stdint.h>

struct worker;

struct worker_view {
    char *at;       /* for the link; NULL: there is none */
    bool of_device; /* `at` is an address of the device's: the link's devices reach it, or others do for it (GPUDirect); else the CPU does */
    uint64_t address, size;
};

/* For as long as it is open nothing can be mapped there in its place. Executor. False: the copy needs staging memory. */
bool worker_view_open(struct worker *w, struct worker_view *v, uint64_t address, uint64_t size);
/* The link may use it from now on, without a copy if it can. */
void worker_view_offer(struct worker *w, const struct worker_view *v);
/* Writes bytes that have come another way, in a gate. False: it could not be done. */
bool worker_view_write(struct worker *w, const struct worker_view *v, uint64_t at, const void *from, uint64_t size);
/* written: by the link. What is queued behind the gate sees it. */
void worker_view_close(struct worker *w, struct worker_view *v, bool written);

#endif
