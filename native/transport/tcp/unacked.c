#include "unacked.h"

#include <stdlib.h>
#include <string.h>

#include "../../wire/record.h"

#define FIRST_SIZE (1u << 20)
#define LARGE (4u << 20) /* memory of this size is given back once nothing is unacknowledged */

void gv_unacked_init(struct gv_unacked *k) { *k = (struct gv_unacked){.seq_at = offsetof(struct gv_record, seq)}; }
void gv_unacked_init_frames(struct gv_unacked *k, size_t seq_at) { *k = (struct gv_unacked){.seq_at = seq_at, .frames = true}; }

void gv_unacked_free(struct gv_unacked *k) {
    free(k->data);
    k->data = NULL;
    k->size = k->front = k->cursor = k->end = k->piece_end = 0;
}

/* Begins at the start of the memory again, where the caches are warm. */
static void move_to(struct gv_unacked *k, uint8_t *memory) {
    if (k->end > k->front) memmove(memory, k->data + k->front, k->end - k->front);
    k->cursor -= k->front;
    k->piece_end -= k->front;
    k->end -= k->front;
    k->front = 0;
}

static bool make_room(struct gv_unacked *k, uint64_t size) {
    uint64_t needed = gv_unacked_bytes(k) + size;
    /* Moving what is there costs less than half of what it makes room for, or else the memory is too small. */
    if (needed <= k->size && gv_unacked_bytes(k) <= k->size / 2) {
        move_to(k, k->data);
        return true;
    }
    uint64_t more = k->size ? k->size * 2 : FIRST_SIZE;
    while (more < needed) more *= 2;
    uint8_t *memory = malloc(more);
    if (!memory) return false;
    move_to(k, memory);
    free(k->data);
    k->data = memory;
    k->size = more;
    return true;
}

uint8_t *gv_unacked_room(struct gv_unacked *k, uint64_t size) {
    if (size > k->size - k->end && !make_room(k, size)) return NULL;
    return k->data + k->end;
}

void gv_unacked_add(struct gv_unacked *k, uint64_t size, uint64_t last) {
    k->end += size;
    k->newest = last;
    if (gv_unacked_bytes(k) > k->peak) k->peak = gv_unacked_bytes(k);
}

/* Where the unit at `position` ends. */
static uint64_t behind(const struct gv_unacked *k, uint64_t position) {
    uint32_t size;
    memcpy(&size, k->data + position, sizeof size);
    return position + size;
}

/* The seqs of its first and last record. */
static uint64_t first(const struct gv_unacked *k, uint64_t position) {
    uint64_t seq;
    memcpy(&seq, k->data + position + k->seq_at, sizeof seq);
    return seq;
}

static uint64_t last(const struct gv_unacked *k, uint64_t position) {
    if (!k->frames) return first(k, position);
    uint64_t next = behind(k, position);
    return next < k->end ? first(k, next) - 1 : k->newest;
}

uint64_t gv_unacked_next(struct gv_unacked *k, const void **at) {
    if (k->cursor == k->piece_end) k->piece_end = k->end;
    *at = k->data + k->cursor;
    return k->piece_end - k->cursor;
}

void gv_unacked_sent(struct gv_unacked *k, uint64_t size) { k->cursor += size; }

bool gv_unacked_between(const struct gv_unacked *k) { return k->cursor == k->piece_end; }

bool gv_unacked_drop(struct gv_unacked *k, uint64_t seq) {
    if (seq <= k->dropped) return true; /* known: since then a frame of which the peer has some may be on its way again */
    while (k->front < k->cursor && last(k, k->front) <= seq) {
        uint64_t next = behind(k, k->front);
        if (next > k->cursor) return false; /* a unit that is only halfway out cannot have arrived whole */
        k->gone = last(k, k->front);
        k->front = next;
    }
    /* It may have some of a frame's records, of one that is wholly out. */
    bool some = k->front < k->cursor && first(k, k->front) <= seq;
    if (some ? behind(k, k->front) > k->cursor : seq > k->gone) return false;
    if (seq > k->dropped) k->dropped = seq;
    if (k->front == k->end) {
        if (k->size >= LARGE) gv_unacked_free(k);
        k->front = k->cursor = k->end = k->piece_end = 0;
    }
    return true;
}

uint64_t gv_unacked_rewind(struct gv_unacked *k) {
    uint64_t again = 0;
    for (uint64_t position = k->front; position < k->cursor; position = behind(k, position)) again += last(k, position) - first(k, position) + 1;
    k->cursor = k->piece_end = k->front;
    return again;
}

bool gv_unacked_restore(struct gv_unacked *k, const void *units, uint64_t size) {
    if (!size) return true; /* there is no memory yet, and none is needed */
    uint64_t least = k->seq_at + sizeof(uint64_t);
    for (uint64_t at = 0; at < size;) {
        uint32_t unit;
        if (size - at < least) return false;
        memcpy(&unit, (const uint8_t *)units + at, sizeof unit);
        if (unit < least || unit % 8 || unit > size - at) return false;
        at += unit;
    }
    uint8_t *room = gv_unacked_room(k, size);
    if (!room) return false;
    memcpy(room, units, size);
    /* As if all of it had been sent: an acknowledgement may be of all of it. */
    k->end += size;
    k->cursor = k->piece_end = k->end;
    return true;
}
