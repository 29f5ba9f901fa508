#define _GNU_SOURCE
#include "delay_line.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* More than rate * rtt, so that a stalled reader shows as it would behind a network's buffers. */
#define EXTRA_BYTES (4u << 20)
#define UNPACED_BYTES (64u << 20)
#define MOST_BYTES (1ull << 30)
#define FIRST_BYTES (256u << 10)
#define MARKS 32768u /* a power of two */
/* Without a rate, bytes that come in so soon after others leave with them: more marks would not be more truth. */
#define SAME_NS 1000
/* The wire is taken at most for this long ahead, and asked for again when it is taken for half as long. */
#define AHEAD_NS 2000000
/* What one sender moves before others get their turn, and the steps in which it arrives. */
#define PORTION_NS 500000
#define STEP_NS 50000
#define PORTION_MIN 1500u
#define PORTION_MAX (256u << 10)

static struct gv_line_mark *mark(const struct gv_line *line, uint64_t number) { return &line->marks[number & (MARKS - 1)]; }

/* How long `n` bytes take the wire. */
static int64_t taken_by(const struct gv_line *line, uint64_t n) {
    if (!line->rate_bps) return 0;
    return (int64_t)(((unsigned __int128)n * 8000000000u + line->rate_bps - 1) / line->rate_bps);
}

static uint64_t bytes_in(const struct gv_line *line, int64_t ns) {
    return (uint64_t)((unsigned __int128)line->rate_bps * (uint64_t)ns / 8000000000u);
}

static bool grow(struct gv_line *line, uint64_t capacity) {
    uint8_t *bytes = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) return false;
    madvise(bytes, capacity, MADV_DONTFORK);
    for (uint64_t at = line->head; at < line->tail;) {
        uint64_t from = at & (line->capacity - 1), to = at & (capacity - 1), n = line->tail - at;
        if (n > line->capacity - from) n = line->capacity - from;
        if (n > capacity - to) n = capacity - to;
        memcpy(bytes + to, line->bytes + from, n);
        at += n;
    }
    if (line->bytes) munmap(line->bytes, line->capacity);
    line->bytes = bytes;
    line->capacity = capacity;
    return true;
}

bool gv_line_init(struct gv_line *line, const struct gv_link_spec *spec, struct gv_wire *wire, uint64_t largest) {
    memset(line, 0, sizeof *line);
    line->wire = wire;
    line->delay_ns = (spec->rtt_ns + 1) / 2; /* both ways together are never less than the rtt */
    line->rate_bps = spec->rate_bps;
    uint64_t in_flight = spec->rate_bps ? bytes_in(line, spec->rtt_ns) + EXTRA_BYTES : UNPACED_BYTES;
    if (in_flight > MOST_BYTES) in_flight = MOST_BYTES;
    line->limit = in_flight > 2 * largest ? in_flight : 2 * largest;
#ifdef GV_BREAK_DELAY /* Defined by one test only, which shows that the others would notice: too early, not paced, not bounded. */
    if (GV_BREAK_DELAY == 1) line->delay_ns -= line->delay_ns / 50;
    if (GV_BREAK_DELAY == 2) line->rate_bps = 0;
    if (GV_BREAK_DELAY == 3) line->limit *= 64;
#endif
    line->marks = malloc(MARKS * sizeof *line->marks);
    if (line->marks && grow(line, FIRST_BYTES)) return true;
    gv_line_free(line);
    return false;
}

void gv_line_free(struct gv_line *line) {
    if (line->marks) gv_line_drop(line);
    if (line->bytes) munmap(line->bytes, line->capacity);
    free(line->marks);
    line->bytes = NULL;
    line->marks = NULL;
}

/* ---- in */

uint64_t gv_line_portion(const struct gv_line *line) {
    if (!line->rate_bps) return PORTION_MAX;
    uint64_t n = bytes_in(line, PORTION_NS);
    return n < PORTION_MIN ? PORTION_MIN : n > PORTION_MAX ? PORTION_MAX : n;
}

bool gv_line_open(struct gv_line *line, uint64_t want, int64_t now, int64_t *again) {
    *again = INT64_MAX;
    uint64_t steps = line->rate_bps ? want / PORTION_MIN + 2 : 3;
    if (line->limit - (line->tail - line->head) < want || MARKS - (line->last - line->first) < steps) return false;
    if (line->rate_bps) {
        int64_t free_at = atomic_load_explicit(&line->wire->free_at, memory_order_relaxed);
        if (free_at - now > AHEAD_NS) {
            *again = free_at - AHEAD_NS / 2;
            return false;
        }
    }
    uint64_t capacity = line->capacity;
    while (capacity - (line->tail - line->head) < want) capacity *= 2;
    return capacity == line->capacity || grow(line, capacity);
}

uint8_t *gv_line_at(struct gv_line *line, uint64_t *room) {
    uint64_t offset = line->tail & (line->capacity - 1), left = line->capacity - (line->tail - line->head);
    *room = left < line->capacity - offset ? left : line->capacity - offset;
    return line->bytes + offset;
}

void gv_line_put(struct gv_line *line, uint64_t n) { line->tail += n; }

/* Takes the wire for `ns`, when it is free again; returns when that begins. */
static int64_t take_wire(struct gv_wire *wire, int64_t now, int64_t ns) {
    int64_t free_at = atomic_load_explicit(&wire->free_at, memory_order_relaxed), begin;
    do {
        begin = free_at > now ? free_at : now;
    } while (!atomic_compare_exchange_weak(&wire->free_at, &free_at, begin + ns));
    return begin;
}

static void add_mark(struct gv_line *line, uint64_t end, int64_t due, int fd) {
    if (due < line->not_before) due = line->not_before;
    int64_t last_due = atomic_load_explicit(&line->last_due, memory_order_relaxed);
    if (due < last_due) due = last_due;
    atomic_store_explicit(&line->last_due, due, memory_order_relaxed);
    *mark(line, line->last++) = (struct gv_line_mark){end, due, fd};
}

void gv_line_stamp(struct gv_line *line, int64_t now, int fd, bool whole) {
    uint64_t n = line->tail - line->stamped;
    if (n == 0) return;
    int64_t begin = line->rate_bps ? take_wire(line->wire, now, taken_by(line, n)) : now;
    uint64_t step = line->rate_bps && !whole ? bytes_in(line, STEP_NS) : n;
    if (step < PORTION_MIN) step = PORTION_MIN;
    int64_t due = now + line->delay_ns;
    if (!line->rate_bps && !whole && fd < 0 && line->last != line->first) {
        struct gv_line_mark *before = mark(line, line->last - 1);
        if (due - before->due < SAME_NS) {
            before->end = line->stamped = line->tail;
            if (due > before->due) before->due = due;
            atomic_store_explicit(&line->last_due, before->due, memory_order_relaxed);
            return;
        }
    }
    /* A stream socket hands out a descriptor's bytes together with those before them, never with those behind: it belongs to the last byte. */
    uint64_t plain = fd >= 0 ? n - 1 : n;
    for (uint64_t done = 0; done < plain;) {
        done = whole || plain - done <= step ? plain : done + step;
        add_mark(line, line->stamped + done, begin + taken_by(line, done) + line->delay_ns, -1);
    }
    if (fd >= 0) add_mark(line, line->tail, begin + taken_by(line, n) + line->delay_ns, fd);
    line->stamped = line->tail;
}

int64_t gv_line_arrival(const struct gv_line *line, int64_t now) {
    int64_t due = now + line->delay_ns, last_due = atomic_load_explicit(&line->last_due, memory_order_relaxed);
    if (due < line->not_before) due = line->not_before;
    return due > last_due ? due : last_due;
}

/* ---- out */

uint64_t gv_line_due(const struct gv_line *line, int64_t now, bool one_mark, int *fd) {
    uint64_t end = line->head;
    *fd = -1;
    for (uint64_t i = line->first; i != line->last; i++) {
        const struct gv_line_mark *m = mark(line, i);
        if (m->due > now || (i != line->first && (one_mark || m->fd >= 0))) break;
        if (i == line->first) *fd = m->fd;
        end = m->end;
    }
    return end - line->head;
}

uint64_t gv_line_piece(const struct gv_line *line, uint64_t most, const uint8_t **at) {
    uint64_t offset = line->head & (line->capacity - 1), n = line->tail - line->head;
    if (n > line->capacity - offset) n = line->capacity - offset;
    *at = line->bytes + offset;
    return n < most ? n : most;
}

void gv_line_take(struct gv_line *line, uint64_t n) {
    if (n == 0) return;
    line->head += n;
    mark(line, line->first)->fd = -1;
    while (line->first != line->last && mark(line, line->first)->end <= line->head) line->first++;
    /* An empty line begins anew, so that a quiet one keeps to its first pages. */
    if (line->head == line->tail) line->head = line->tail = line->stamped = 0;
}

int64_t gv_line_next(const struct gv_line *line) { return line->first == line->last ? INT64_MAX : mark(line, line->first)->due; }

void gv_line_drop(struct gv_line *line) {
    for (; line->first != line->last; line->first++) {
        if (mark(line, line->first)->fd >= 0) close(mark(line, line->first)->fd);
    }
    line->head = line->tail = line->stamped = 0;
}
