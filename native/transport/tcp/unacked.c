#include "unacked.h"

#include <stdlib.h>
#include <string.h>

#include "../../wire/record.h"

#define FIRST_SIZE (1u << 20)
#define LARGE (4u << 20) /* memory of this size is given back once nothing is unacknowledged */

void gv_unacked_init(struct gv_unacked *k) { *k = (struct gv_unacked){0}; }

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

bool gv_unacked_put(struct gv_unacked *k, const void *records, uint64_t size) {
    if (size > k->size - k->end && !make_room(k, size)) return false;
    memcpy(k->data + k->end, records, size);
    k->end += size;
    if (gv_unacked_bytes(k) > k->peak) k->peak = gv_unacked_bytes(k);
    return true;
}

static const struct gv_record *record_at(const struct gv_unacked *k, uint64_t position) {
    return (const struct gv_record *)(const void *)(k->data + position);
}

uint64_t gv_unacked_next(struct gv_unacked *k, const void **at) {
    if (k->cursor == k->piece_end) k->piece_end = k->end;
    *at = k->data + k->cursor;
    return k->piece_end - k->cursor;
}

void gv_unacked_sent(struct gv_unacked *k, uint64_t size) { k->cursor += size; }

bool gv_unacked_between(const struct gv_unacked *k) { return k->cursor == k->piece_end; }

bool gv_unacked_drop(struct gv_unacked *k, uint64_t seq) {
    uint64_t position = k->front;
    /* A record that is only halfway out cannot have arrived whole. */
    while (position < k->cursor && record_at(k, position)->seq <= seq) {
        uint64_t next = position + record_at(k, position)->size;
        if (next > k->cursor) return false;
        k->dropped = record_at(k, position)->seq;
        position = next;
    }
    k->front = position;
    if (seq > k->dropped) return false;
    if (k->front == k->end) {
        if (k->size >= LARGE) gv_unacked_free(k);
        k->front = k->cursor = k->end = k->piece_end = 0;
    }
    return true;
}

uint64_t gv_unacked_rewind(struct gv_unacked *k) {
    uint64_t again = 0;
    for (uint64_t position = k->front; position < k->cursor; position += record_at(k, position)->size) again++;
    k->cursor = k->piece_end = k->front;
    return again;
}
