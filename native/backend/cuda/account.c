/* What the session has of a device's memory, and what it may have. What the driver takes by itself (contexts, modules' globals and code) is measured by
 * the memory that is free before and after: other sessions disturb that, so what is refused for it is tried once more. */
#include "backend_cuda.h"

#define OWN_MOST (2ull << 30) /* a measurement of more is disturbed; bytes */

bool cuda_take(struct gv_context *c, uint64_t size) {
    uint64_t limit = c->b->memory, *used = &c->account->used;
    if (limit && (*used > limit || size > limit - *used)) return false;
    *used += size;
    return true;
}

void cuda_give(struct gv_context *c, uint64_t size) { c->account->used -= size; }

uint64_t cuda_free_memory(struct gv_context *c) {
    size_t available = 0, total = 0;
    if (!c->b->memory || cuda_enter(c) || c->b->driver.memory_info(&available, &total)) return 0;
    return available;
}

bool cuda_take_since(struct gv_context *c, uint64_t before, uint64_t *counted) {
    uint64_t now = before ? cuda_free_memory(c) : 0;
    *counted = now && now < before ? before - now : 0;
    if (*counted > OWN_MOST && *counted < c->b->memory / 2) *counted = OWN_MOST;
    if (cuda_take(c, *counted)) return true;
    *counted = 0;
    return false;
}
