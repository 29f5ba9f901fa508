/* Physical memory, and where its pages are. virtual.c changes it. */
#ifndef SOFT_PHYSICAL_H
#define SOFT_PHYSICAL_H

#include "soft.h"

enum soft_pages_where {
    FRESH,    /* no page yet */
    PRIVATE,  /* the pages lie where it is mapped, `at` */
    DETACHED, /* not mapped; the pages lie at `at` */
    SHARED,   /* in the file, from `at` on */
    PIECES    /* in files that other sessions have open too: exported, or imported */
};

struct gv_physical {
    struct gv_physical *next, *previous; /* memory.physicals */
    struct gv_backend *backend;
    struct soft_device *device;
    uint64_t size;
    uint32_t maps;
    enum soft_pages_where state;
    uint64_t at;
    uint32_t number;   /* in a session's image */
    uint64_t exporter; /* the session whose it is, and as whose it counts; 0: this one's */
    bool inherited;    /* that session has ended: it counts as this one's, beside its limit */
    struct soft_pieces *pieces;
};

/* physical_create, but that it waits for no frees. */
int soft_physical_new(struct gv_context *c, uint64_t size, struct gv_physical **out);

#endif
