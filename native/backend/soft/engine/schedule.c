/* The random numbers of seeded schedules, and what they are asked for. */
#include "schedule.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SELDOM 32u /* of so many turns one in which slow warps may run too, while others can */
#define PAUSE_ONE_IN 4u
#define PAUSE_MOST_US 2000u

static uint64_t mixed(uint64_t x) { /* splitmix64's output function */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

bool soft_schedule_read(struct soft_schedule *s, char *err, size_t size) {
    memset(s, 0, sizeof *s);
    const char *text = getenv("GPUVIRT_SOFT_SCHEDULE");
    if (!text || !*text) return true;
    char *end;
    errno = 0;
    s->seed = strtoull(text, &end, 10);
    s->cores = !strcmp(end, ",cores");
    s->seeded = *text >= '0' && *text <= '9' && !errno && (!*end || s->cores);
    if (!s->seeded) snprintf(err, size, "GPUVIRT_SOFT_SCHEDULE=%s: it is a number, or a number and ',cores', or unset", text);
    return s->seeded;
}

uint32_t soft_draw(struct soft_draws *d, uint32_t below) {
    d->state += 0x9e3779b97f4a7c15u;
    uint32_t found = (uint32_t)((mixed(d->state) >> 32) * below >> 32);
    d->drawn = (d->drawn ^ found) * 0x100000001b3u; /* FNV-1a's step */
    return found;
}

uint32_t soft_draw_bit(struct soft_draws *d, uint32_t set) {
    for (uint32_t skip = soft_draw(d, (uint32_t)__builtin_popcount(set)); skip; skip--) set &= set - 1;
    return (uint32_t)__builtin_ctz(set);
}

uint32_t soft_draw_warp(struct soft_draws *d, uint32_t runnable) {
    uint32_t quick = runnable & ~d->slow_warps;
    return soft_draw_bit(d, quick && soft_draw(d, SELDOM) ? quick : runnable);
}

void soft_draws_begin(struct soft_draws *d, struct soft_schedule *s) {
    *d = (struct soft_draws){.on = s->seeded};
    if (!d->on) return;
    uint64_t number = atomic_fetch_add(&s->begun, 1);
    d->state = mixed(s->seed * 0x9e3779b97f4a7c15u + mixed(number + 1));
    static const uint32_t often[] = {2, 8, 64, 1024}, patience[] = {1, 4, 32, 256};
    d->often = often[soft_draw(d, 4)];
    d->spin_patience = patience[soft_draw(d, 4)];
    d->slow_blocks = soft_draw(d, 4) == 0;
    if (soft_draw(d, 2)) d->slow_warps = (uint32_t)mixed(d->state) & (uint32_t)(mixed(d->state + 1) >> 32);
}

void soft_draws_end(struct soft_draws *d, struct soft_schedule *s) {
    if (!d->on) return;
    d->on = false;
    atomic_fetch_add(&s->passed, mixed(d->drawn));
}

void soft_draw_pause(struct soft_draws *d) {
    if (!d->on || soft_draw(d, PAUSE_ONE_IN)) return;
    nanosleep(&(struct timespec){.tv_nsec = (long)soft_draw(d, PAUSE_MOST_US) * 1000}, NULL);
}
