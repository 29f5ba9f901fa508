/* Records that were handed to the socket and that the peer has not said it has: they go out again when the connection is cut. One thread at a time.
 *
 *     front ...sent, not acknowledged... cursor ...not sent... end
 *
 * The bytes between front and end are units, the oldest first: whole records, or frames of them (framing.h). A unit begins with its size, a u32; a frame
 * stays until the peer has all of its records. */
#ifndef GV_UNACKED_H
#define GV_UNACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gv_unacked {
    uint8_t *data;
    uint64_t size; /* of the memory */
    uint64_t front, cursor, end;
    uint64_t piece_end; /* how far what was last begun to be sent reaches: between records */
    uint64_t peak;      /* the most bytes that were ever unacknowledged */
    uint64_t dropped;   /* seq of the last record that the peer was known to have */
    size_t seq_at;      /* where a unit has the seq of its first record, a u64 */
    bool frames;        /* units have several records */
    uint64_t newest;    /* seq of the last record in the last frame */
    uint64_t gone;      /* seq of the last record in the units that were let go of */
};

/* Of records. */
void gv_unacked_init(struct gv_unacked *k);
/* Of frames, which have their first record's seq at `seq_at`. */
void gv_unacked_init_frames(struct gv_unacked *k, size_t seq_at);
void gv_unacked_free(struct gv_unacked *k);
/* Room for `size` bytes of whole units behind the others, 8-aligned; NULL: no memory. gv_unacked_add says that they are there; of a frame, which comes
 * alone, with the seq of its last record. */
uint8_t *gv_unacked_room(struct gv_unacked *k, uint64_t size);
void gv_unacked_add(struct gv_unacked *k, uint64_t size, uint64_t last);
/* What is to be sent next, in one piece: its size, from *at; gv_unacked_sent says how much of it went. */
uint64_t gv_unacked_next(struct gv_unacked *k, const void **at);
void gv_unacked_sent(struct gv_unacked *k, uint64_t size);
/* Whether something else may be sent now: nothing is halfway out. */
bool gv_unacked_between(const struct gv_unacked *k);
/* The peer has all records up to `seq`. False: it cannot have them, they were never sent. */
bool gv_unacked_drop(struct gv_unacked *k, uint64_t seq);
/* The `size` bytes of a link that goes on here, of which nothing has been sent on a connection of ours. False: they are no units, or there is no memory. */
bool gv_unacked_restore(struct gv_unacked *k, const void *units, uint64_t size);
/* Everything goes out again. Returns how many records that had begun to. */
uint64_t gv_unacked_rewind(struct gv_unacked *k);

static inline uint64_t gv_unacked_bytes(const struct gv_unacked *k) { return k->end - k->front; }

#endif
