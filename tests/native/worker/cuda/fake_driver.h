/* A driver of the tests' own: streams are threads, host functions are called one at a time, and a context that is lost calls none any more. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../../../../native/backend/cuda/driver.h"

/* From now on the context is lost: what is queued is dropped, every call fails with `error`. 0: all is well again. */
void fake_driver_break(int error);
int fake_driver_state(void); /* that error */
/* Streams rest until this is called with false. */
void fake_driver_hold(bool hold);
/* Whether devices can use the host's pointers, so that they write and await words of its memory. */
extern bool fake_driver_words;
extern bool fake_driver_no_host_memory; /* cuMemHostAlloc fails */
/* How many operations a stream has room for, 0: any number. A call for which there is none waits, and holds the lock that all calls take. */
void fake_driver_room(unsigned operations);
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
    unsigned cluster[3], preferred[3], policy, attributes; /* what cuLaunchKernelEx was given, and how many attributes */
};
extern struct fake_launch fake_launch;
/* The last question about clusters; how many the driver says there are. */
extern struct fake_clusters {
    unsigned grid, block, shared, cluster[3], attributes;
    bool potential;
    int count, fail;
} fake_clusters;
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
/* What the calls of virtual memory management were given last, and what there is. */
enum fake_call {
    FAKE_ANY,
    FAKE_RESERVE,
    FAKE_FREE,
    FAKE_CREATE,
    FAKE_RELEASE,
    FAKE_MAP,
    FAKE_UNMAP,
    FAKE_ACCESS,
    FAKE_COPY,
    FAKE_EXPORT,
    FAKE_IMPORT
};
#define FAKE_DEVICE_MEMORY (64ull << 20)
struct fake_virtual {
    bool none; /* the device has none of it */
    int handles;
    size_t bytes, mapped_bytes; /* of all handles, of all mappings */
    CUmemAllocationProp prop;
    CUdeviceptr mapped, unmapped, freed;
    CUmemGenericAllocationHandle handle, released;
    CUmemAccessDesc access;
    size_t created, reserved, alignment;
    int fail;             /* what the next of them returns, */
    enum fake_call fails; /* or the next call of this kind, */
    int after;            /* or the one behind so many */
};
extern struct fake_virtual fake_virtual;
/* What the device says of RDMA, if it is to be asked for that; the range that a dma-buf was last made of, and how often writes were flushed. */
struct fake_rdma {
    bool asked, refuses;
    int dma_buf, peer, vmm, ordering, flush;
    CUdeviceptr address;
    size_t size;
    int flushes;
};
extern struct fake_rdma fake_rdma;
/* Forgets all of it: nobody has any memory. */
void fake_memory_empty(void);
/* Bytes of device memory: free, and what each context and each module takes. */
struct fake_memory {
    size_t free, context, module;
    size_t later; /* so much more is free once it has been asked so often */
    int asks;
};
extern struct fake_memory fake_memory;
/* Arrays: how many there are, what an array takes of the device, the last copy, and the last texture's array; what the next call of their kind returns. */
struct fake_arrays {
    int alive, mipmapped, textures;
    size_t each;
    CUDA_MEMCPY3D copy;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC sampling;
    int fail;
};
extern struct fake_arrays fake_arrays;
/* The module's references "picture" and "canvas": what was set of them. */
struct fake_reference {
    CUarray array, drawn;
    CUmipmappedArray levels;
    CUdeviceptr address;
    size_t bytes, pitch, offset; /* offset: what the driver says of the address */
    CUDA_ARRAY_DESCRIPTOR shape;
    CUarray_format format;
    int channels;
    unsigned flags, how, modes[3], filter, mip_filter, anisotropy;
    float bias, least, most, border[4];
};
extern struct fake_reference fake_reference;
/* A module's global, device memory that no call has allocated. */
#define FAKE_GLOBAL 0x1000ull
#define FAKE_GLOBAL_SIZE 0x2000ull
/* The private table with the groups of multiprocessors: how many slots it has (0: there is none), how many pairs of arrays are alive; what the device says. */
extern struct fake_groups {
    unsigned slots;
    bool hollow; /* its slots are null */
    int alive, fail;
} fake_groups;
extern _Atomic int fake_events, fake_streams; /* alive */

#endif
