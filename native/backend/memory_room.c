#include "memory_room.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../wire/clock.h"
#include "gv_results.h"

#define ATTEMPTS 200
#define ROW(slot) (offsetof(struct gv_memory_usage, rows) + (size_t)(slot) * sizeof(struct gv_memory_row))

static uint64_t peek(const uint64_t *word) { return atomic_load((const _Atomic uint64_t *)word); }
static void put(uint64_t *word, uint64_t value) { atomic_store((_Atomic uint64_t *)word, value); }

/* ---- open, close ---- */

static void *map_part(int fd, int rights, size_t offset, size_t size) {
    void *map = mmap(NULL, size, rights, MAP_SHARED, fd, (off_t)offset);
    return map == MAP_FAILED ? NULL : map;
}

int memory_room_open(struct memory_room *r, const struct gv_backend_config *config, char *err) {
    r->make = config->make_room;
    r->make_arg = config->make_room_arg;
    if (config->memory_usage_fd < 0) return 0;
    struct stat st;
    if (config->memory_usage_slot >= GV_MEMORY_USAGE_SLOTS || fstat(config->memory_usage_fd, &st) ||
        (size_t)st.st_size < sizeof(struct gv_memory_usage)) {
        snprintf(err, GV_ERR_SIZE, "the table of memory usage is too small, or has no slot %u", config->memory_usage_slot);
        return CUDA_ERROR_INVALID_VALUE;
    }
    r->slot = config->memory_usage_slot;
    r->usage = map_part(config->memory_usage_fd, PROT_READ, 0, sizeof *r->usage);
    r->row = config->memory_row;
    if (r->usage && !r->row) r->row = map_part(config->memory_usage_fd, PROT_READ | PROT_WRITE, ROW(r->slot), sizeof *r->row);
    if (!r->usage || !r->row) {
        snprintf(err, GV_ERR_SIZE, "mapping the table of memory usage: %s", strerror(errno));
        return CUDA_ERROR_UNKNOWN;
    }
    if (r->usage->magic != GV_MEMORY_USAGE_MAGIC || r->usage->version != GV_MEMORY_USAGE_VERSION) {
        snprintf(err, GV_ERR_SIZE, "the table of memory usage is not of version %d", GV_MEMORY_USAGE_VERSION);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return 0;
}

/* The row stays: the daemon reads it when this process has ended. */
void memory_room_close(struct memory_room *r) {
    if (r->usage) munmap((void *)r->usage, sizeof *r->usage);
    r->usage = NULL;
}

void memory_share_open(const struct memory_room *r, struct memory_share *s, const struct gv_backend_config *config, uint32_t device, uint64_t total) {
    *s = (struct memory_share){.ordinal = config->devices[device], .total = total};
    if (r->usage && s->ordinal < GV_MEMORY_USAGE_DEVICES && r->usage->total[s->ordinal]) s->total = r->usage->total[s->ordinal];
    s->limit = config->memory && config->memory < s->total ? config->memory : s->total;
}

/* ---- what is left ---- */

/* What the other sessions' rows say, each as far as its session may go. */
static uint64_t others(const struct memory_room *r, const struct memory_share *s, bool wanted) {
    uint64_t sum = 0;
    for (uint32_t slot = 0; slot < GV_MEMORY_USAGE_SLOTS; slot++) {
        uint64_t limit = peek(&r->usage->limit[slot]);
        if (!limit || slot == r->slot) continue;
        const struct gv_memory_row *row = &r->usage->rows[slot];
        uint64_t value = peek(wanted ? &row->wanted[s->ordinal] : &row->used[s->ordinal]);
        sum += value < limit ? value : limit;
    }
    return sum;
}

static uint64_t shown(const struct memory_share *s) { return s->used - s->parked + s->beside; }

uint64_t memory_unused(const struct memory_room *r, const struct memory_share *s) {
    uint64_t used = (r->usage ? others(r, s, false) : 0) + shown(s);
    return used < s->total ? s->total - used : 0;
}

bool memory_others_have_it(const struct memory_room *r, const struct memory_share *s, uint64_t size) {
    return r->row && size <= s->limit - s->used && size <= s->total;
}

/* ---- what is taken ---- */

/* Announces, looks, and grants itself: of two that ask at the same time at least one sees the other. Where there is not enough for what all announce, who
 * sees that takes back and tries again a little later, so that one of them gets it. */
int memory_charge(struct memory_room *r, struct memory_share *s, uint64_t size) {
    if (s->used > s->limit || size > s->limit - s->used) return CUDA_ERROR_OUT_OF_MEMORY;
    struct gv_memory_row *row = r->row;
    unsigned chance = r->slot * 2654435761u + (unsigned)gv_now_ns();
    for (int attempt = 0; row; attempt++) {
        put(&row->wanted[s->ordinal], size);
        /* What moves from wanted to used between these two is counted twice, never not at all. */
        uint64_t wanted = others(r, s, true), left = memory_unused(r, s);
        bool granted = size <= left && wanted <= left - size;
        if (granted) put(&row->used[s->ordinal], shown(s) + size);
        put(&row->wanted[s->ordinal], 0);
        if (granted) break;
        if (size > left || attempt == ATTEMPTS) return CUDA_ERROR_OUT_OF_MEMORY;
        usleep((unsigned)rand_r(&chance) % (attempt < 8 ? 1u << attempt : 256u));
    }
    s->used += size;
    return 0;
}

void memory_show(struct memory_room *r, const struct memory_share *s) {
    if (r->row) put(&r->row->used[s->ordinal], shown(s));
}

void memory_discharge(struct memory_room *r, struct memory_share *s, uint64_t size) {
    s->used -= size;
    memory_show(r, s);
}

/* ---- parking ---- */

void memory_park(struct memory_room *r, struct memory_share *s, uint64_t size) {
    s->parked = size;
    memory_show(r, s);
}

bool memory_unpark(struct memory_room *r, struct memory_share *const *shares, uint32_t n) {
    uint64_t parked[GV_MAX_DEVICES];
    uint32_t taken = 0;
    bool room = true;
    for (; taken < n && room; taken++) {
        struct memory_share *s = shares[taken];
        parked[taken] = s->parked;
        s->used -= s->parked;
        s->parked = 0;
        room = !memory_charge(r, s, parked[taken]);
        if (!room) s->used += parked[taken];
    }
    for (uint32_t i = 0; !room && i < taken; i++) memory_park(r, shares[i], parked[i]);
    return room;
}
