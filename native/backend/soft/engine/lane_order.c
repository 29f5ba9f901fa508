/* Lanes in the lane fallback are kept in step as on a GPU: those that are at the same place of the program run in lockstep, from one visible
 * instruction (an access to memory that others see, a call, an exchange) to the next, and those that a branch divided wait where their ways join.
 *
 * Compiled code numbers these instructions ("points") in the order of the control flow graph, which is topological but for the ways back to a loop's
 * first block. The lanes at the lowest number run first, so nobody passes a block to which others may still come: lanes reconverge at the immediate
 * post-dominator of what divided them, or before it. A loop is swept: lanes that have gone back to its beginning wait until those in its middle have
 * come to its end, and those that have left it until nobody is in it. Vector code goes through the blocks in the same order.
 *
 * Every lane makes progress all the same. Lanes in a loop that only looks at memory may wait for lanes that wait for them here: after some rounds they
 * are put aside, the others go on, and those aside look again now and then. Lanes that neither arrive nor look for a very long time are put aside too. */
#include "lane_order.h"

#include <string.h>

#define NONE UINT32_MAX
/* Iterations that only read memory, with a turn for other warps after each, before the lanes are put aside. Lanes mostly wait for other warps, and
 * then they should stay together; but each time the awaited lanes were of the same warp, the number for this loop is halved. */
#define PATIENCE 256u
#define HALVINGS 6u
#define PROBE 32u            /* runs of the others after which lanes that were put aside run again */
#define ROUNDS_MOST 1024u    /* iterations of a waiting loop that do more than read, until they count as only reading */
#define HELD_MOST (1u << 20) /* largest number of runs of others for which a lane waits */
#define TURN 1024u           /* runs after which other warps have a turn in any case */

static uint32_t level(const struct lane_order *o, uint32_t lane) { return o->depth[lane] < LANE_DEPTHS ? o->depth[lane] : LANE_DEPTHS - 1; }

void lane_order_begin(struct lane_order *o, uint32_t lanes) {
    memset(o, 0, sizeof *o);
    o->ready = lanes;
    for (uint32_t i = 0; i < SOFT_LANES; i++) o->path[i][0].loop = NONE;
}

/* ---- what lanes say ---- */

static bool within(const struct lane_order *o, uint32_t point, uint32_t loop) {
    return o->loops[loop].first <= point && point <= o->loops[loop].last;
}

void lane_order_acts(struct lane_order *o, uint32_t lane) {
    o->acted |= 1u << lane;
    if (o->rounds[lane] <= ROUNDS_MOST) o->idle &= ~(1u << lane);
}

void lane_order_point(struct lane_order *o, uint32_t lane, uint32_t point, uint32_t loop, bool acts) {
    o->path[lane][level(o, lane)] = (struct lane_place){point, loop};
    if (acts) lane_order_acts(o, lane);
    if (!o->rounds[lane]) return;
    uint32_t d = o->spin_depth[lane];
    if (level(o, lane) >= d && within(o, o->path[lane][d].point, o->spin_loop[lane])) return;
    o->rounds[lane] = 0; /* it has left the loop */
    o->idle &= ~(1u << lane);
}

void lane_order_spin_round(struct lane_order *o, uint32_t lane, uint32_t loop) {
    uint32_t d = level(o, lane), bit = 1u << lane;
    /* Of nested waiting loops the outer one counts. */
    bool same = o->rounds[lane] && d >= o->spin_depth[lane] && within(o, o->path[lane][o->spin_depth[lane]].point, o->spin_loop[lane]) &&
                (d > o->spin_depth[lane] || within(o, o->loops[loop].first, o->spin_loop[lane]));
    if (!same) {
        o->spin_loop[lane] = loop;
        o->spin_depth[lane] = d;
        o->rounds[lane] = 0;
    }
    o->rounds[lane]++;
    if (!(o->acted & bit) || o->rounds[lane] > ROUNDS_MOST) o->idle |= bit;
    o->acted &= ~bit;
}

void lane_order_enter(struct lane_order *o, uint32_t lane) {
    o->depth[lane]++;
    o->path[lane][level(o, lane)] = (struct lane_place){0, NONE};
}

void lane_order_leave(struct lane_order *o, uint32_t lane) { o->depth[lane]--; }

/* ---- who is next ---- */

/* The lowest point of lanes, at one level, that is not below `from`. */
static uint32_t lowest(const struct lane_order *o, uint32_t set, uint32_t d, uint32_t from) {
    uint32_t found = NONE;
    for (uint32_t todo = set; todo; todo &= todo - 1) {
        uint32_t point = o->path[__builtin_ctz(todo)][d].point;
        if (point >= from && point < found) found = point;
    }
    return found;
}

/* The point from which to search in one call: after the last one, within its loop; else the loop's beginning; else behind the loop. */
static uint32_t choose(const struct lane_order *o, uint32_t set, uint32_t d) {
    uint32_t first = lowest(o, set, d, 0);
    if (o->swept <= d) return first;
    struct lane_place last = o->sweep[d];
    uint32_t outermost = NONE;
    for (uint32_t l = last.loop; l != NONE; l = o->loops[l].outer) outermost = l;
    if (outermost == NONE || first < o->loops[outermost].first) return first;
    uint32_t ahead = lowest(o, set, d, last.point + 1);
    for (uint32_t l = last.loop; l != NONE; l = o->loops[l].outer) {
        if (ahead != NONE && ahead <= o->loops[l].last) return ahead;
        uint32_t back = lowest(o, set, d, o->loops[l].first);
        if (back <= last.point) return back;
    }
    return first;
}

uint32_t lane_order_next(struct lane_order *o, uint32_t runnable) {
    uint32_t ready = o->ready & runnable;
    if (ready) {
        o->ready = 0;
        return ready;
    }
    uint32_t set = runnable & ~o->aside;
    if (!set) {
        o->aside = 0;
        set = runnable;
    }
    for (uint32_t d = 0;; d++) {
        uint32_t inside = 0; /* the call that lanes were in last, unless all have come back */
        for (uint32_t todo = o->swept > d ? set : 0; todo; todo &= todo - 1) {
            uint32_t i = (uint32_t)__builtin_ctz(todo);
            if (level(o, i) > d && o->path[i][d].point == o->sweep[d].point) inside |= 1u << i;
        }
        if (inside) {
            set = inside;
            continue;
        }
        uint32_t point = choose(o, set, d), here = 0, deeper = 0;
        for (uint32_t todo = set; todo; todo &= todo - 1) {
            uint32_t i = (uint32_t)__builtin_ctz(todo);
            if (o->path[i][d].point != point) continue;
            o->sweep[d] = o->path[i][d];
            if (level(o, i) == d)
                here |= 1u << i;
            else
                deeper |= 1u << i;
        }
        o->swept = d + 1;
        if (here) return here;
        set = deeper;
    }
}

static void put_aside(struct lane_order *o, uint32_t group) {
    o->aside |= group;
    o->stalled = o->runs = o->held = o->held_runs = 0;
}

bool lane_order_ran(struct lane_order *o, uint32_t group, uint32_t runnable) {
    uint32_t others = runnable & ~(o->aside | group);
    if (!(group & ~(runnable & o->idle))) {
        uint8_t *releases = &o->releases[o->spin_loop[__builtin_ctz(group)] % LANE_LOOPS];
        if (++o->stalled >= PATIENCE >> *releases) {
            if (others && *releases < HALVINGS) (*releases)++;
            put_aside(o, group);
        }
        return true;
    }
    o->stalled = 0;
    if (o->aside && ++o->runs >= PROBE) o->aside = o->runs = 0;
    o->held &= others;
    if (!o->held) {
        o->held = others;
        o->held_runs = 0;
    } else if (++o->held_runs >= HELD_MOST) {
        put_aside(o, group & runnable);
    }
    return ++o->turns % TURN == 0;
}
