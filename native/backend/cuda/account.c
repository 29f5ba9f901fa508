/* What the session has of a device's memory, and what it may have. What the driver takes by itself (contexts, modules' globals and code) is measured by
 * the memory that is free before and after: other sessions disturb that, so what is refused for it is tried once more. */
#include <time.h>

#include "backend_cuda.h"

#define OWN_MOST (2ull << 30) /* a measurement of more is disturbed; bytes */

/* What the driver has given is there, whatever the other sessions have: only the session's own limit counts. */
bool cuda_take(struct gv_context *c, uint64_t size) {
    struct memory_share *s = &c->account->share;
    if (s->used > s->limit || size > s->limit - s->used) return false;
    s->used += size;
    memory_show(&c->b->room, s);
    return true;
}

void cuda_give(struct gv_context *c, uint64_t size) { memory_discharge(&c->b->room, &c->account->share, size); }

uint64_t cuda_free_memory(struct gv_context *c) {
    size_t available = 0, total = 0;
    if (cuda_enter(c) || c->b->driver.memory_info(&available, &total)) return 0;
    return available;
}

bool cuda_take_since(struct gv_context *c, uint64_t before, uint64_t *counted) {
    uint64_t now = before ? cuda_free_memory(c) : 0;
    *counted = now && now < before ? before - now : 0;
    if (*counted > OWN_MOST && *counted < c->account->share.limit / 2) *counted = OWN_MOST;
    if (cuda_take(c, *counted)) return true;
    *counted = 0;
    return false;
}

/* Memory that another session has given back, or a worker had that was killed, is counted as free at once; the driver may still be taking it back. */
#define LOOKS 20
#define BETWEEN_LOOKS_NS 10000000

static void await_driver(struct gv_context *c, uint64_t size) {
    for (int i = 0; i < LOOKS && cuda_free_memory(c) < size; i++) nanosleep(&(struct timespec){.tv_nsec = BETWEEN_LOOKS_NS}, NULL);
}

/* By the table there may be room that the driver has not: what others than our sessions have, and contexts that nobody has counted. As much more is asked for. */
bool cuda_make_room(struct gv_context *c, uint64_t size) {
    struct memory_room *r = &c->b->room;
    const struct memory_share *s = &c->account->share;
    if (!r->make || !memory_others_have_it(r, s, size)) return false;
    uint64_t unused = memory_unused(r, s), available = cuda_free_memory(c);
    uint64_t beyond = available < unused ? unused - available : 0;
    if (size <= unused - beyond) return true; /* it is there by now */
    if (!r->make(r->make_arg, s->ordinal, size + beyond)) return false;
    await_driver(c, size);
    return true;
}
