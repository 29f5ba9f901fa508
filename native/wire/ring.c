#include "ring.h"

#include <string.h>

void gv_ring_writer_init(struct gv_ring_writer *w, struct gv_ring_control *control, void *data, uint64_t size) {
    *w = (struct gv_ring_writer){.control = control, .data = data, .size = size, .pad_at = UINT64_MAX};
}

void gv_ring_reader_init(struct gv_ring_reader *r, struct gv_ring_control *control, const void *data, uint64_t size) {
    *r = (struct gv_ring_reader){.control = control, .data = data, .size = size};
}

bool gv_ring_writer_resume(struct gv_ring_writer *w, uint64_t tail, uint64_t granularity) {
    w->tail = tail;
    w->head = atomic_load_explicit(&w->control->head, memory_order_acquire);
    return tail % granularity == 0 && tail - w->head <= w->size && tail == atomic_load_explicit(&w->control->tail, memory_order_acquire);
}

bool gv_ring_reader_resume(struct gv_ring_reader *r, uint64_t head, uint64_t granularity) {
    r->head = r->tail = r->released = head;
    return head % granularity == 0 && head == atomic_load_explicit(&r->control->head, memory_order_acquire);
}

int gv_record_check(uint32_t size, uint64_t available, uint32_t limit) {
    if (size < sizeof(struct gv_record) || size % 8) return GV_RECORD_BAD;
#ifndef GV_BREAK_DECODER /* Defined by one test only, which shows that the fuzzer would notice if this check were missing. */
    if (size > limit) return GV_RECORD_BAD;
#else
    (void)limit;
#endif
    return size <= available ? GV_RECORD_WHOLE : GV_RECORD_PART;
}

/* Whether `n` more bytes fit; reads the reader's position only when the last known one is not sufficient. */
static bool fits(struct gv_ring_writer *w, uint64_t n) {
    if (n <= w->size - (w->tail - w->head)) return true;
    uint64_t head = atomic_load_explicit(&w->control->head, memory_order_acquire);
    if (head - w->head > w->tail - w->head) {
        w->broken = true;
        return false;
    }
    w->head = head;
    return n <= w->size - (w->tail - head);
}

void *gv_ring_reserve(struct gv_ring_writer *w, uint32_t size) {
    uint64_t offset = w->tail & (w->size - 1);
    uint64_t to_end = w->size - offset;
    uint64_t pad = size > to_end ? to_end : 0;
    if (w->broken || !fits(w, pad + size)) return NULL;
    if (pad) {
        uint64_t header = pad | (uint64_t)GV_RING_PAD << 32;
        memcpy(w->data + offset, &header, sizeof header);
        atomic_store_explicit(&w->pad_at, w->tail, memory_order_relaxed);
        w->tail += pad;
        offset = 0;
    }
    w->reserved = size;
    return w->data + offset;
}

bool gv_ring_publish(struct gv_ring_writer *w) {
    w->tail += w->reserved;
    w->reserved = 0;
    /* Sequentially consistent, as is the reader's store and check before it sleeps: one of the two sees the other. */
    atomic_store(&w->control->tail, w->tail);
    return atomic_load(&w->control->reader_sleeps) == GV_RING_ASLEEP;
}

/* Bytes that may be read, 0 for none, -1 when the writer's position is impossible. */
static int64_t available(struct gv_ring_reader *r, uint64_t granularity) {
    if (r->tail != r->head) return (int64_t)(r->tail - r->head);
    uint64_t tail = atomic_load_explicit(&r->control->tail, memory_order_acquire);
    if (tail - r->head > r->size || tail % granularity) return -1;
    r->tail = tail;
    return (int64_t)(tail - r->head);
}

int64_t gv_ring_read(struct gv_ring_reader *r, void *into, uint32_t limit) {
    for (;;) {
        int64_t left = available(r, 8);
        if (left <= 0) return left;
        uint64_t offset = r->head & (r->size - 1);
        uint64_t to_end = r->size - offset;
        uint64_t most = (uint64_t)left < to_end ? (uint64_t)left : to_end;
        /* Read once, so that the checked value is the one used, whatever the writer does to the memory meanwhile. */
        uint64_t header = atomic_load_explicit((const _Atomic uint64_t *)(const void *)(r->data + offset), memory_order_relaxed);
        uint32_t size = (uint32_t)header;
        if ((uint16_t)(header >> 32) == GV_RING_PAD) {
            if (size != to_end || size > most) return -1;
            r->head += size;
            continue;
        }
        if (gv_record_check(size, most, limit) != GV_RECORD_WHOLE) return -1;
        memcpy(into, &header, sizeof header);
        memcpy((uint8_t *)into + sizeof header, r->data + offset + sizeof header, size - sizeof header);
        r->head += size;
        return size;
    }
}

bool gv_ring_release(struct gv_ring_reader *r) {
    if (r->released == r->head) return false;
    r->released = r->head;
    atomic_store(&r->control->head, r->head);
    return atomic_load(&r->control->writer_sleeps) == GV_RING_ASLEEP;
}

bool gv_ring_readable(const struct gv_ring_reader *r) { return r->tail != r->head || atomic_load(&r->control->tail) != r->head; }

uint64_t gv_ring_span(struct gv_ring_reader *r, const struct gv_ring_writer *w, const void **at) {
    r->tail = atomic_load(&r->control->tail);
    /* A second pad cannot come before the first one was passed: it would need room that the first one still takes. */
    uint64_t pad_at = atomic_load_explicit(&w->pad_at, memory_order_relaxed);
    if (r->head == pad_at && r->head != r->tail) r->head = (r->head | (r->size - 1)) + 1;
    uint64_t offset = r->head & (r->size - 1);
    uint64_t n = r->tail - r->head;
    if (n > r->size - offset) n = r->size - offset;
    if (pad_at > r->head && pad_at - r->head < n) n = pad_at - r->head;
    *at = r->data + offset;
    return n;
}

uint64_t gv_ring_put(struct gv_ring_writer *w, const void *from, uint64_t n, bool *wake) {
    *wake = false;
    if (w->broken || n == 0 || !fits(w, 1)) return 0;
    uint64_t room = w->size - (w->tail - w->head);
    uint64_t offset = w->tail & (w->size - 1);
    if (n > room) n = room;
    if (n > w->size - offset) n = w->size - offset;
    memcpy(w->data + offset, from, n);
    w->reserved = n;
    *wake = gv_ring_publish(w);
    return n;
}

uint64_t gv_ring_room(struct gv_ring_writer *w) { return w->broken || !fits(w, w->size) ? (w->broken ? 0 : w->size - (w->tail - w->head)) : w->size; }

int64_t gv_ring_take(struct gv_ring_reader *r, void *into, uint64_t n, bool *wake) {
    *wake = false;
    int64_t left = available(r, 1);
    if (left <= 0 || n == 0) return left < 0 ? -1 : 0;
    uint64_t offset = r->head & (r->size - 1);
    if (n > (uint64_t)left) n = (uint64_t)left;
    if (n > r->size - offset) n = r->size - offset;
    if (into) memcpy(into, r->data + offset, n);
    r->head += n;
    *wake = gv_ring_release(r);
    return (int64_t)n;
}
