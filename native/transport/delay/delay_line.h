/* One direction of a delayed link: bytes that stay in here until they are due, in their order. A line belongs to one thread; the wire that paces it is
 * shared by all lines of the process that go the same way, as they would share a network. */
#ifndef GV_DELAY_LINE_H
#define GV_DELAY_LINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../link_spec.h"

struct gv_wire {
    _Atomic int64_t free_at; /* until when it is taken by what was put into lines already */
};

struct gv_line_mark {
    uint64_t end; /* position behind the mark's last byte */
    int64_t due;  /* when that byte may leave */
    int fd;       /* a descriptor that travels with the first byte, -1: none */
};

struct gv_line {
    uint8_t *bytes;           /* a ring of `capacity` bytes, a power of two that grows up to `limit` */
    uint64_t capacity, limit; /* bytes */
    uint64_t head, tail;      /* positions, counted from the first byte ever: taken, put */
    uint64_t stamped;         /* where the last mark ends */
    struct gv_line_mark *marks;
    uint64_t first, last; /* numbers of the oldest mark and of the next one */
    struct gv_wire *wire;
    int64_t delay_ns, not_before; /* nothing is due before that time */
    uint64_t rate_bps;
    _Atomic int64_t last_due;
};

/* For half of spec's rtt, and its rate. `largest`: bytes that must fit at once. False: no memory. */
bool gv_line_init(struct gv_line *line, const struct gv_link_spec *spec, struct gv_wire *wire, uint64_t largest);
void gv_line_free(struct gv_line *line);

/* ---- in */

/* Whether `want` more bytes may be put now. If not, *again is when to ask again by the clock: INT64_MAX when something has to leave the line first. So
 * much as keeps the wire busy is taken from senders and no more: what waits for the wire waits on their side, and others get in between. */
bool gv_line_open(struct gv_line *line, uint64_t want, int64_t now, int64_t *again);
/* How many bytes to move at once, so that others of the same wire get their turn. */
uint64_t gv_line_portion(const struct gv_line *line);
/* Where the next byte goes and how many have room there in one piece: at least one of those that gv_line_open was asked for. */
uint8_t *gv_line_at(struct gv_line *line, uint64_t *room);
void gv_line_put(struct gv_line *line, uint64_t n);
/* What was put since the last time came in at `now`, and `fd` with its last byte (-1: none). `whole`: it is due at once, when its last byte is. */
void gv_line_stamp(struct gv_line *line, int64_t now, int fd, bool whole);
/* When something that happens now on this side (an end of file) is felt on the other. */
int64_t gv_line_arrival(const struct gv_line *line, int64_t now);

/* ---- out */

/* How many bytes are due, from the oldest: all of them, or the oldest mark's. *fd is the descriptor that travels with the first of them, -1: none. */
uint64_t gv_line_due(const struct gv_line *line, int64_t now, bool one_mark, int *fd);
/* The oldest bytes in one piece: how many, at most `most`, from *at. */
uint64_t gv_line_piece(const struct gv_line *line, uint64_t most, const uint8_t **at);
/* The oldest `n` bytes have left, and what travelled with the first; the caller closes that. */
void gv_line_take(struct gv_line *line, uint64_t n);
/* When the oldest bytes are due, INT64_MAX: there are none. */
int64_t gv_line_next(const struct gv_line *line);
static inline bool gv_line_empty(const struct gv_line *line) { return line->head == line->tail; }
/* Everything in it is lost. */
void gv_line_drop(struct gv_line *line);

#endif
