/* Payloads over verbs. The ring has them in parts: bytes, or where bytes are lent. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "../../wire/record.h"
#include "verbs.h"

#define PIECE (256u << 10) /* both sides copy at the same time, and the piece stays in the caches */
#define SPIN_NS 20000      /* within a large payload the next piece is on its way */

/* ---- sending */

static bool put_piece(struct verbs *v, const uint8_t *p, uint32_t size, bool push) {
    struct verbs_part part = {.size = size};
    return gv_verbs_bulk_put(v, &part, sizeof part, false) && gv_verbs_bulk_put(v, p, size, push);
}

/* From memory that this process cannot reach. */
static bool put_from_device(struct verbs *v, const struct verbs_region *region, const uint8_t *p, uint64_t size, bool push) {
    uint8_t *piece = malloc(size < PIECE ? size : PIECE);
    bool good = true;
    for (uint64_t at = 0; at < size && good; at += PIECE) {
        uint32_t n = size - at < PIECE ? (uint32_t)(size - at) : PIECE;
        good = piece && gv_verbs_memory_move(region, p + at, piece, n, false);
        if (!good) gv_link_kill(&v->link, GV_VERBS_NO_MOVE);
        good = good && put_piece(v, piece, n, push);
    }
    free(piece);
    return good;
}

static bool put(struct verbs *v, const uint8_t *p, uint64_t size, bool push) {
    struct verbs_region *region = gv_verbs_memory_of_device(&v->memory, p, size);
    if (region) {
        bool good = put_from_device(v, region, p, size, push);
        gv_verbs_memory_used(&v->memory, region);
        return good;
    }
    while (size) {
        uint32_t n = size < PIECE ? (uint32_t)size : PIECE;
        if (!put_piece(v, p, n, push)) return false;
        p += n;
        size -= n;
    }
    return true;
}

bool gv_verbs_payload_put(struct gv_link *link, const void *data, uint64_t size) { return put((struct verbs *)link, data, size, true); }

bool gv_verbs_payload_write(struct gv_link *link, const void *data, uint64_t size) {
    return gv_part_queue_write(&((struct verbs *)link)->parts, data, size);
}

bool gv_verbs_payload_lend(struct gv_link *link, const void *data, uint64_t size, void (*done)(void *arg), void *arg) {
    struct verbs *v = (struct verbs *)link;
    struct verbs_loan loan = {.at = data, .size = size, .before = atomic_load(&v->parts.written), .done = done, .arg = arg};
    struct {
        struct verbs_part part;
        struct verbs_lent lent;
    } in_ring = {.part = {.size = sizeof in_ring.lent, .lent = 1}};
    if (size < VERBS_LENT_LEAST || !gv_verbs_loan(v, &loan, &in_ring.lent)) return false;
    gv_verbs_bulk_put(v, &in_ring, sizeof in_ring, true);
    return true;
}

int gv_verbs_payload_part(struct gv_link *link, const void *data, uint64_t size, void (*done)(void *arg), void *arg) {
    struct verbs *v = (struct verbs *)link;
    uint64_t in_ring = sizeof(struct verbs_part) + (done ? sizeof(struct verbs_lent) : size);
    bool now = gv_part_queue_idle(&v->parts) && gv_ring_room(&v->bulk_tx) >= in_ring; /* the caller's own thread needs no other one then */
    bool lent = now && done && gv_verbs_payload_lend(link, data, size, done, arg);
    if (!lent && (done || !now)) return gv_part_queue_add(&v->parts, data, size, done, arg);
    if (!lent) { /* a payload's header: what follows in the caller's own thread takes it along */
        struct gv_bulk_header header = {0};
        if (size == sizeof header) memcpy(&header, data, sizeof header);
        if (!put(v, data, size, !header.size)) return -1;
    }
    atomic_fetch_add(&v->parts.written, size);
    return 0;
}

uint64_t gv_verbs_payload_acked(const struct gv_link *link) {
    const struct verbs *v = (const struct verbs *)link;
    uint64_t written = atomic_load(&v->parts.written), oldest = atomic_load(&v->loans.oldest); /* in this order: what is lent counts there first */
    return oldest < written ? oldest : written;
}

/* ---- receiving */

static bool over(const struct verbs *v) { return gv_link_dead(&v->link) || atomic_load(&v->peer_gone); }

static bool readable(struct verbs *v, void *between) {
    return gv_ring_readable(&v->bulk_rx) || over(v) || (*(const bool *)between && gv_paused_between(&v->link));
}

static bool spin_readable(struct verbs *v) {
    for (int64_t end = gv_now_ns() + SPIN_NS; gv_now_ns() < end; sched_yield()) {
        gv_verbs_poll_bulk(v);
        if (gv_ring_readable(&v->bulk_rx)) return true;
    }
    return false;
}

/* The next `size` bytes of the ring. False: the link died, or none is to be begun now. */
static bool take(struct verbs *v, uint8_t *p, uint64_t size, bool between) {
    struct gv_ring_reader *r = &v->bulk_rx;
    bool spins = size >= PIECE;
    while (size) {
        if (between && gv_paused_between(&v->link)) return false;
        bool wake, gone = over(v);
        gv_verbs_poll_bulk(v);
        int64_t n = gv_ring_take(r, p, size < PIECE ? size : PIECE, &wake);
        if (n < 0) gv_link_kill(&v->link, "malformed ring: the peer's position is impossible");
        if (n == 0 && gone) gv_link_kill(&v->link, "the peer closed the connection");
        if (gv_link_dead(&v->link)) return false;
        gv_verbs_tell(v);
        if (n == 0 && !(spins && spin_readable(v))) gv_verbs_bulk_sleep(v, readable, &between);
        between = between && n == 0;
        if (p) p += n;
        size -= (uint64_t)n;
    }
    return true;
}

/* What comes next. False as `take`. */
static bool next_part(struct verbs *v, bool between) {
    struct verbs_part part;
    if (!take(v, (uint8_t *)&part, sizeof part, between)) return false;
    bool sound = part.lent ? part.lent == 1 && part.size == sizeof v->lent : part.size != 0;
    if (sound && part.lent && !take(v, (uint8_t *)&v->lent, sizeof v->lent, false)) return false;
    if (!sound || (part.lent && !v->lent.size)) gv_link_kill(&v->link, "malformed payload: a part of an impossible kind or size");
    v->part = part;
    return !gv_link_dead(&v->link);
}

/* The ring's next bytes, to where they belong; region: of a device. */
static bool take_to(struct verbs *v, const struct verbs_region *region, uint8_t *p, uint64_t size) {
    if (!region) return take(v, p, size, false);
    for (uint64_t at = 0, n; at < size; at += n) {
        n = size - at < VERBS_BOUNCE ? size - at : VERBS_BOUNCE;
        if (!take(v, v->out->bounce, n, false)) return false;
        if (!gv_verbs_memory_move(region, p + at, v->out->bounce, n, true)) {
            gv_link_kill(&v->link, GV_VERBS_NO_MOVE);
            return false;
        }
    }
    return true;
}

static bool read_to(struct verbs *v, const struct verbs_region *region, void *data, uint64_t size) {
    for (uint8_t *p = data; size;) {
        if (!gv_verbs_part_left(v) && !next_part(v, p == data)) return false;
        uint64_t n = size < gv_verbs_part_left(v) ? size : gv_verbs_part_left(v);
        if (v->part.lent) {
            if (!gv_verbs_pull(v, p, n)) return false;
            v->lent.size -= n;
            if (!v->lent.size) {
                atomic_fetch_add(&v->pulled, 1);
                gv_verbs_tell(v);
            }
        } else {
            if (!take_to(v, region, p, n)) return false;
            v->part.size -= (uint32_t)n;
        }
        if (p) p += n;
        size -= n;
    }
    return true;
}

bool gv_verbs_payload_read(struct gv_link *link, void *data, uint64_t size) {
    struct verbs *v = (struct verbs *)link;
    struct verbs_region *region = gv_verbs_memory_of_device(&v->memory, data, size);
    bool good = read_to(v, region, data, size);
    if (region) gv_verbs_memory_used(&v->memory, region);
    return good;
}
