/* A driver of the tests' own: streams are threads, host functions are called one at a time, and a context that is lost calls none any more. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../../../../native/backend/cuda/driver.h"

/* From now on the context is lost: what is queued is dropped, every call fails with `error`. 0: all is well again. */
void fake_driver_break(int error);
/* Streams rest until this is called with false. */
void fake_driver_hold(bool hold);
/* Queues what the device itself does, behind the stream's earlier work; a CUresult. */
int fake_driver_work(CUstream stream, void (*fn)(void *arg), void *arg);
/* What the next synchronising call finds that kernels have printed. */
extern const char *_Atomic fake_driver_print;
/* The last launch, as the driver saw it. */
struct fake_launch {
    CUfunction function;
    unsigned grid, block, shared;
    uint64_t first; /* first 8 bytes of its parameters */
    bool cooperative;
};
extern struct fake_launch fake_launch;
struct fake_link {
    int created; /* and not destroyed */
    unsigned level, own_options;
    bool addresses;
};
extern struct fake_link fake_link;
/* The last batch of stream memory operations. */
struct fake_batch {
    unsigned n, flags;
    CUstreamBatchMemOpParams operations[8];
};
extern struct fake_batch fake_batch;
/* What the calls of virtual memory management were given last. */
struct fake_virtual {
    CUmemAllocationProp prop;
    CUdeviceptr mapped, unmapped, freed;
    CUmemGenericAllocationHandle handle, released;
    CUmemAccessDesc access;
    size_t created, reserved, alignment;
    int fail; /* what the next of them returns */
};
extern struct fake_virtual fake_virtual;
/* Bytes of device memory: free, and what each context and each module takes. */
struct fake_memory {
    size_t free, context, module;
};
extern struct fake_memory fake_memory;
/* A module's global, device memory that no call has allocated. */
#define FAKE_GLOBAL 0x1000ull
#define FAKE_GLOBAL_SIZE 0x2000ull
extern _Atomic int fake_events, fake_streams; /* alive */

#endif
