/* Records that were handed to the socket and that the peer has not said it has: they go out again when the connection is cut. One thread at a time.
 *
 *     front ...sent, not acknowledged... cursor ...not sent... end
 *
 * The bytes between front and end are whole records, the oldest first. */
#ifndef GV_KEPT_H
#define GV_KEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gv_kept {
    uint8_t *data;
    uint64_t size; /* of the memory */
    uint64_t front, cursor, end;
    uint64_t piece_end; /* how far what was last begun to be sent reaches: between records */
    uint64_t peak;      /* the most bytes that were ever kept */
    uint64_t dropped;   /* seq of the last record that the peer was known to have */
};

void gv_kept_init(struct gv_kept *k);
void gv_kept_free(struct gv_kept *k);
/* Adds `size` bytes of whole records. False: no memory. */
bool gv_kept_put(struct gv_kept *k, const void *records, uint64_t size);
/* What is to be sent next, in one piece: its size, from *at; gv_kept_sent says how much of it went. */
uint64_t gv_kept_next(struct gv_kept *k, const void **at);
void gv_kept_sent(struct gv_kept *k, uint64_t size);
/* Whether something else may be sent now: nothing is halfway out. */
bool gv_kept_between(const struct gv_kept *k);
/* The peer has all records up to `seq`. False: it cannot have them, they were never sent. */
bool gv_kept_drop(struct gv_kept *k, uint64_t seq);
/* Everything goes out again. Returns how many records that had begun to. */
uint64_t gv_kept_rewind(struct gv_kept *k);

static inline uint64_t gv_kept_bytes(const struct gv_kept *k) { return k->end - k->front; }

#endif
