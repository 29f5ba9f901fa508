/* What a session uses of its devices' memory, in the table that all sessions of a server share (memory_usage.h): limits, what is left, and what is parked. Where there
 * is no table only the session's own limit holds. Not thread-safe: one lock of the backend's guards a room and its shares. */
#ifndef MEMORY_ROOM_H
#define MEMORY_ROOM_H

#include "../worker/backend.h"
#include "memory_usage.h"

/* One device. Bytes. */
struct memory_share {
    uint32_t ordinal; /* in the pool */
    uint64_t total;   /* of the device, of all sessions together */
    uint64_t limit;   /* this session may use */
    uint64_t used;    /* this session uses, or has used and will again: what is parked is part of it */
    uint64_t parked;  /* of `used`, what is in a file */
    uint64_t beside;  /* what the driver has taken for the session: told to the others, and not counted against its limit */
};

struct memory_room {
    const struct gv_memory_usage *usage; /* NULL: there is no table */
    struct gv_memory_row *row;           /* ours, writable */
    uint32_t slot;
    bool (*make)(void *arg, uint32_t device, uint64_t bytes);
    void *make_arg;
};

/* Maps the table, where there is one. Not 0: a CUresult, and a line in err. */
int memory_room_open(struct memory_room *r, const struct gv_backend_config *config, char *err);
void memory_room_close(struct memory_room *r);
/* total: bytes of the device where the table does not say. */
void memory_share_open(const struct memory_room *r, struct memory_share *s, const struct gv_backend_config *config, uint32_t device, uint64_t total);

/* Bytes of the device that no session uses. */
uint64_t memory_unused(const struct memory_room *r, const struct memory_share *s);
/* Counts so much more. CUDA_ERROR_OUT_OF_MEMORY: the session has not so much left, or the device. */
int memory_charge(struct memory_room *r, struct memory_share *s, uint64_t size);
void memory_discharge(struct memory_room *r, struct memory_share *s, uint64_t size);
/* Tells the other sessions what this one uses. */
void memory_show(struct memory_room *r, const struct memory_share *s);
/* Whether the session may have so much more, if it were not for the others. */
bool memory_others_have_it(const struct memory_room *r, const struct memory_share *s, uint64_t size);

/* So much of what is used is in a file from now on. */
void memory_park(struct memory_room *r, struct memory_share *s, uint64_t size);
/* It is to come back on all `n` devices. False: there is no room, and nothing has changed. */
bool memory_unpark(struct memory_room *r, struct memory_share *const *shares, uint32_t n);

#endif
