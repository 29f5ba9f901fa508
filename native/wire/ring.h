/* A ring of records, or of plain bytes, between one writer and one reader, over any memory, without system calls or locks.
 *
 * Positions count bytes from the start; a position's place in the ring is its value modulo the ring's size (a power of two). Records are contiguous:
 * one that would not fit before the ring's end is preceded by a pad record, whose op is GV_RING_PAD and whose size reaches to the end. A pad has only
 * the first 8 bytes of a record header.
 *
 * The other side may be a malicious process. Each side keeps its own position in private memory and uses the other's only after checking that it is
 * possible; the reader copies a record out before it reads it, so that it cannot change afterwards.
 *
 * A side that sleeps sets its word to GV_RING_ASLEEP, checks again, and sleeps on the word (futex). Publishing and releasing return whether the other
 * side must be woken: then set the word to GV_RING_AWAKE and wake it. A side that sets it to GV_RING_NAPS polls again by itself after a short sleep
 * and need not be woken. */
#ifndef GV_RING_H
#define GV_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "record.h"

#define GV_RING_PAD 0xffffu
#define GV_RING_LINE 128 /* two cache lines: the prefetcher fetches them in pairs */

/* What the words reader_sleeps and writer_sleeps say. */
enum { GV_RING_AWAKE = 0, GV_RING_ASLEEP = 1, GV_RING_NAPS = 2 };

/* What the two sides share beside the bytes. All zeros is an empty ring. */
struct gv_ring_control {
    _Alignas(GV_RING_LINE) _Atomic uint64_t tail; /* the writer's: bytes before it may be read */
    _Alignas(GV_RING_LINE) _Atomic uint64_t head; /* the reader's: bytes before it may be overwritten */
    _Alignas(GV_RING_LINE) _Atomic uint32_t reader_sleeps;
    _Atomic uint32_t reader_cpu; /* 1 + the CPU that the reader last waited on, 0: not known; a hint */
    _Alignas(GV_RING_LINE) _Atomic uint32_t writer_sleeps;
};
_Static_assert(sizeof(struct gv_ring_control) == 512, "the layout of shared memory depends on it");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "atomics in shared memory must need no lock");

struct gv_ring_writer {
    struct gv_ring_control *control;
    uint8_t *data;
    uint64_t size;
    uint64_t tail;           /* what is published, plus the pad in front of the reserved record */
    uint64_t head;           /* the reader's position as last seen */
    uint64_t reserved;       /* bytes of the record being written */
    _Atomic uint64_t pad_at; /* where the last pad began; for gv_ring_span */
    bool broken;             /* the reader's position was impossible */
};

struct gv_ring_reader {
    struct gv_ring_control *control;
    const uint8_t *data;
    uint64_t size;
    uint64_t head;     /* what has been read */
    uint64_t released; /* what the writer has been told */
    uint64_t tail;     /* the writer's position as last seen */
};

/* `size` is a power of two, at least 4096; `data` is 8-aligned. */
void gv_ring_writer_init(struct gv_ring_writer *w, struct gv_ring_control *control, void *data, uint64_t size);
void gv_ring_reader_init(struct gv_ring_reader *r, struct gv_ring_control *control, const void *data, uint64_t size);

/* One side goes on in another process, from the position that it had; what has to be right about it is checked. False: it is impossible. */
bool gv_ring_writer_resume(struct gv_ring_writer *w, uint64_t tail, uint64_t granularity);
bool gv_ring_reader_resume(struct gv_ring_reader *r, uint64_t head, uint64_t granularity);

/* ---- records */

/* Room for a record of `size` bytes (multiple of 8, at most half the ring), or NULL while there is none (`broken` tells when there never will be). */
void *gv_ring_reserve(struct gv_ring_writer *w, uint32_t size);
/* Hands the reserved record over. True when the reader must be woken. */
bool gv_ring_publish(struct gv_ring_writer *w);
/* Copies the next record into `into` (`limit` bytes of room). Its size; 0 when there is none; -1 when the bytes are no record. */
int64_t gv_ring_read(struct gv_ring_reader *r, void *into, uint32_t limit);
/* Releases the bytes that were read to the writer. True when the writer must be woken. */
bool gv_ring_release(struct gv_ring_reader *r);
/* Whether something was published that was not read. */
bool gv_ring_readable(const struct gv_ring_reader *r);
/* The next published bytes in one piece, pads left out, for a reader in the writer's own process: their number, from *at. Read them with r->head +=
 * n, then gv_ring_release. */
uint64_t gv_ring_span(struct gv_ring_reader *r, const struct gv_ring_writer *w, const void **at);

/* ---- plain bytes */

/* Copies at most `n` bytes in and publishes them. How many; 0 when the ring is full, or `broken`. */
uint64_t gv_ring_put(struct gv_ring_writer *w, const void *from, uint64_t n, bool *wake);
/* How many bytes fit now. */
uint64_t gv_ring_room(struct gv_ring_writer *w);
/* Copies at most `n` bytes out (`into` NULL: discards them) and releases them. Returns their number; 0: there are none; -1: the writer's position is
 * impossible. */
int64_t gv_ring_take(struct gv_ring_reader *r, void *into, uint64_t n, bool *wake);

/* ---- one record's header */

enum { GV_RECORD_BAD = -1, GV_RECORD_PART = 0, GV_RECORD_WHOLE = 1 };
/* Checks a record's size: `available` bytes of it are there, `limit` is the largest valid size. */
int gv_record_check(uint32_t size, uint64_t available, uint32_t limit);

#endif
