/* The wire format of one stream memory operation: a word of device memory that a stream waits for or writes. Numbers are CUDA's. */
#ifndef GV_MEMORY_OPERATION_H
#define GV_MEMORY_OPERATION_H

#include <stdint.h>

#define GV_MEMORY_OPERATIONS_MAX 255u /* of one command; cuStreamBatchMemOp takes no more */

/* CUstreamBatchMemOpType */
enum gv_memory_operation_kind {
    GV_WAIT_VALUE_32 = 1,
    GV_WRITE_VALUE_32 = 2,
    GV_FLUSH_REMOTE_WRITES = 3, /* no address */
    GV_WAIT_VALUE_64 = 4,
    GV_WRITE_VALUE_64 = 5,
    GV_MEMORY_BARRIER = 6, /* no address */
};

struct gv_memory_operation {
    uint32_t kind;
    uint32_t flags; /* CUstreamWaitValue_flags, CUstreamWriteValue_flags, CUstreamMemoryBarrier_flags */
    uint64_t address;
    uint64_t value;
};

/* Bytes of the word; 0 where there is none. */
static inline uint32_t gv_memory_operation_width(const struct gv_memory_operation *o) {
    switch (o->kind) {
    case GV_WAIT_VALUE_32:
    case GV_WRITE_VALUE_32: return 4;
    case GV_WAIT_VALUE_64:
    case GV_WRITE_VALUE_64: return 8;
    default: return 0;
    }
}

#endif
