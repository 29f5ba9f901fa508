/* Stream memory operations by the driver, as batches. */
#include <string.h>

#include "../../wire/memory_operation.h"
#include "backend_cuda.h"

/* False: there is no such operation. */
static bool translate(const struct gv_memory_operation *o, CUstreamBatchMemOpParams *out) {
    memset(out, 0, sizeof *out);
    switch (o->kind) {
    case GV_WAIT_VALUE_32:
    case GV_WAIT_VALUE_64:
        out->waitValue.address = o->address;
        out->waitValue.value64 = o->value;
        out->waitValue.flags = o->flags;
        break;
    case GV_WRITE_VALUE_32:
    case GV_WRITE_VALUE_64:
        out->writeValue.address = o->address;
        out->writeValue.value64 = o->value;
        out->writeValue.flags = o->flags;
        break;
    case GV_FLUSH_REMOTE_WRITES: out->flushRemoteWrites.flags = o->flags; break;
    case GV_MEMORY_BARRIER: out->memoryBarrier.flags = o->flags; break;
    default: return false;
    }
    out->operation = (CUstreamBatchMemOpType)o->kind; /* the first field of each */
    return true;
}

static bool waits(const struct gv_memory_operation *all, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (all[i].kind == GV_WAIT_VALUE_32 || all[i].kind == GV_WAIT_VALUE_64) return true;
    return false;
}

/* Without the event the session may be refused parking while this stream waits. */
static void mark_wait(struct gv_stream *s) {
    const struct driver *d = &s->context->b->driver;
    if (!s->value_there && d->event_create(&s->value_there, CU_EVENT_DISABLE_TIMING)) s->value_there = NULL;
    if (s->value_there) d->event_record(s->value_there, s->stream);
}

int cuda_memory_operations(struct gv_stream *s, const void *operations, uint32_t size) {
    const struct gv_memory_operation *all = operations;
    CUstreamBatchMemOpParams batch[GV_MEMORY_OPERATIONS_MAX];
    uint32_t n = size / sizeof *all;
    if (size % sizeof *all || n > GV_MEMORY_OPERATIONS_MAX) return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < n; i++)
        if (!translate(&all[i], &batch[i]) || !cuda_memory_owned(s->context, all[i].address, gv_memory_operation_width(&all[i])))
            return CUDA_ERROR_INVALID_VALUE;
    int status = cuda_enter(s->context);
    if (!status && n) status = (int)s->context->b->driver.memory_operations(s->stream, n, batch, 0);
    if (!status && waits(all, n)) mark_wait(s);
    return status;
}

static bool awaits(const struct gv_context *c, const struct gv_stream *s) {
    return s->value_there && c->b->driver.event_query(s->value_there) == CUDA_ERROR_NOT_READY;
}

int cuda_awaits_value(struct gv_backend *b) {
    bool any = false;
    for (struct gv_context *c = b->contexts; c && !any; c = c->next) {
        if (cuda_enter(c)) continue; /* it is lost: nothing runs there */
        any = awaits(c, c->legacy);
        for (const struct gv_stream *s = c->streams; s && !any; s = s->next) any = awaits(c, s);
    }
    return any;
}
