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

int cuda_memory_operations(struct gv_stream *s, const void *operations, uint32_t size) {
    const struct gv_memory_operation *all = operations;
    CUstreamBatchMemOpParams batch[GV_MEMORY_OPERATIONS_MAX];
    uint32_t n = size / sizeof *all;
    if (size % sizeof *all || n > GV_MEMORY_OPERATIONS_MAX) return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < n; i++)
        if (!translate(&all[i], &batch[i]) || !cuda_memory_owned(s->context, all[i].address, gv_memory_operation_width(&all[i])))
            return CUDA_ERROR_INVALID_VALUE;
    int status = cuda_enter(s->context);
    return status || !n ? status : (int)s->context->b->driver.memory_operations(s->stream, n, batch, 0);
}
