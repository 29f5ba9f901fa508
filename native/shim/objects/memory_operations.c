/* Stream memory operations: a stream waits for the value of a word in device memory, or writes a word. Host memory has no device address, so words are in device memory. */
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "memory_operation.h"
#include "objects/graph/graph.h"
#include "objects/managed/managed.h"

enum { MAY_READ = 1, MAY_WRITE = 3 }; /* CU_MEM_ACCESS_FLAGS */

static int check_word(const struct gv_memory_operation *o, unsigned rights) {
    uint32_t width = gv_memory_operation_width(o);
    struct range r;
    if (o->address % width || !range_find_device(o->address, &r)) return CUDA_ERROR_INVALID_VALUE;
    bool inside = r.kind == RANGE_MAPPED ? range_mapped(o->address, width, rights) : width <= r.size - (o->address - range_base(&r));
    return inside ? 0 : CUDA_ERROR_INVALID_VALUE;
}

/* Checks an operation against the attributes of the server's device. */
static int check(const struct gv_device_info *device, const struct gv_memory_operation *o) {
    unsigned known;
    bool able = true, flush = o->kind == GV_FLUSH_REMOTE_WRITES;
    switch (o->kind) {
    case GV_WAIT_VALUE_32:
    case GV_WAIT_VALUE_64:
        known = CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH;
        flush = o->flags & CU_STREAM_WAIT_VALUE_FLUSH;
        if ((o->flags & 3u) == CU_STREAM_WAIT_VALUE_NOR) able = device_attribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR);
        break;
    case GV_WRITE_VALUE_32:
    case GV_WRITE_VALUE_64: known = 0; break; /* that it may be reordered is a wish of the first versions only */
    case GV_FLUSH_REMOTE_WRITES: known = 0; break;
    case GV_MEMORY_BARRIER: known = CU_STREAM_MEMORY_BARRIER_TYPE_GPU; break;
    case CU_STREAM_MEM_OP_ATOMIC_REDUCTION: return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    if (o->flags & ~known) return CUDA_ERROR_INVALID_VALUE;
    uint32_t width = gv_memory_operation_width(o);
    if (width == 8) able = able && device_attribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
    if (flush) able = able && device_attribute(device, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES);
    if (!able) return CUDA_ERROR_NOT_SUPPORTED;
    bool writes = o->kind == GV_WRITE_VALUE_32 || o->kind == GV_WRITE_VALUE_64;
    return width ? check_word(o, writes ? MAY_WRITE : MAY_READ) : 0;
}

/* As the driver's structure has it. */
static CUstreamBatchMemOpParams described(const struct gv_memory_operation *o) {
    CUstreamBatchMemOpParams p = {.operation = (CUstreamBatchMemOpType)o->kind};
    switch (p.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        p.waitValue.flags = o->flags;
        p.waitValue.address = o->address;
        p.waitValue.value64 = o->value;
        break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        p.writeValue.flags = o->flags;
        p.writeValue.address = o->address;
        p.writeValue.value64 = o->value;
        break;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: p.flushRemoteWrites.flags = o->flags; break;
    default: p.memoryBarrier.flags = o->flags; break;
    }
    return p;
}

int graph_describe_batch(const CUDA_BATCH_MEM_OP_NODE_PARAMS *p, struct graph_work *out) {
    if (!p || p->count > 256 || (p->count && !p->paramArray) || p->flags) return CUDA_ERROR_INVALID_VALUE;
    size_t size = p->count * sizeof *p->paramArray; /* none is a number of operations, too */
    *out = (struct graph_work){.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                               .batch = {.context = p->ctx, .count = p->count, .flags = p->flags, .operations = malloc(size + 1)}};
    if (!out->batch.operations) return CUDA_ERROR_OUT_OF_MEMORY;
    if (size) memcpy(out->batch.operations, p->paramArray, size);
    return 0;
}

static int capture(struct shim_stream *s, const struct gv_memory_operation *operations, unsigned n) {
    CUstreamBatchMemOpParams *all = calloc(n + 1, sizeof *all);
    if (!all) return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < n; i++) all[i] = described(&operations[i]);
    int rc = capture_work(s, &(struct graph_work){.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .batch = {.count = n, .operations = all}});
    free(all);
    return rc;
}

/* Posts all operations or none: they are checked before the first is posted. */
static int post(CUstream stream, const struct gv_memory_operation *operations, unsigned n) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    for (unsigned i = 0; i < n && !rc; i++) rc = check(device_info(s->context->device), &operations[i]);
    if (!rc && stream_captures(s)) {
        return capture(s, operations, n);
    }
    bool begun = managed_begin();
    for (unsigned i = 0; i < n && !rc; i++) {
        bool written = operations[i].kind == GV_WRITE_VALUE_32 || operations[i].kind == GV_WRITE_VALUE_64;
        rc = managed_access(s, operations[i].address, gv_memory_operation_width(&operations[i]), written, false);
    }
    uint64_t seq = 0;
    if (!rc && n) {
        struct gv_cmd_memory_operations c = {.stream = stream_id(s), .operations = operations, .operations_size = n * (uint32_t)sizeof operations[0]};
        seq = post_memory_operations(stream_ctx(s), 0, &c);
        if (seq) stream_posted(s, seq, false);
    }
    managed_end(begun);
    return rc || !n || seq ? rc : post_refused();
}

static int post_one(CUstream stream, enum gv_memory_operation_kind kind, CUdeviceptr address, uint64_t value, unsigned flags) {
    struct gv_memory_operation o = {.kind = kind, .flags = flags, .address = address, .value = value};
    return post(stream, &o, 1);
}

CUresult impl_cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
    return post_one(stream, GV_WAIT_VALUE_32, address, value, flags);
}

CUresult impl_cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
    return post_one(stream, GV_WAIT_VALUE_64, address, value, flags);
}

CUresult impl_cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
    return post_one(stream, GV_WRITE_VALUE_32, address, value, flags);
}

CUresult impl_cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
    return post_one(stream, GV_WRITE_VALUE_64, address, value, flags);
}

static struct gv_memory_operation translate(const CUstreamBatchMemOpParams *p) {
    struct gv_memory_operation o = {.kind = (uint32_t)p->operation};
    switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        o.flags = p->waitValue.flags;
        o.address = p->waitValue.address;
        o.value = p->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? p->waitValue.value : p->waitValue.value64;
        break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        o.flags = p->writeValue.flags;
        o.address = p->writeValue.address;
        o.value = p->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ? p->writeValue.value : p->writeValue.value64;
        break;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: o.flags = p->flushRemoteWrites.flags; break;
    case CU_STREAM_MEM_OP_BARRIER: o.flags = p->memoryBarrier.flags; break;
    default: break; /* refused by its kind */
    }
    return o;
}

CUresult impl_cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params, unsigned int flags) {
    struct gv_memory_operation operations[GV_MEMORY_OPERATIONS_MAX];
    if (flags || count > GV_MEMORY_OPERATIONS_MAX || (count && !params)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) operations[i] = translate(&params[i]);
    return post(stream, operations, count);
}

/* ---- first versions ---- */

/* A device says by an attribute whether it has them. Drivers of CUDA 13 say no, and refuse them. */
static int check_first_version(CUstream stream) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    return device_attribute(device_info(s->context->device), CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1) ? 0 : CUDA_ERROR_NOT_SUPPORTED;
}

/* `wishes`: flags that change no result. */
#define FIRST_VERSION(name, type, wishes)                                                        \
    CUresult impl_##name(CUstream stream, CUdeviceptr address, type value, unsigned int flags) { \
        int rc = check_first_version(stream);                                                    \
        return rc ? (CUresult)rc : impl_##name##_v2(stream, address, value, flags & ~(wishes));  \
    }

FIRST_VERSION(cuStreamWaitValue32, cuuint32_t, 0u)
FIRST_VERSION(cuStreamWaitValue64, cuuint64_t, 0u)
FIRST_VERSION(cuStreamWriteValue32, cuuint32_t, (unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
FIRST_VERSION(cuStreamWriteValue64, cuuint64_t, (unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)

CUresult impl_cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params, unsigned int flags) {
    int rc = check_first_version(stream);
    return rc ? (CUresult)rc : impl_cuStreamBatchMemOp_v2(stream, count, params, flags);
}
