/* Managed memory: device memory whose addresses the host may use as well. On the server it is ordinary device memory; the client keeps a copy of it, in pages that are accessible only
 * as far as that copy is good, and keeps the two coherent. The worker knows nothing of it.
 *
 * pager*.c      pages of the host: what the program may do with them, and who is told when it does more
 * region.c      one allocation: its two views, and a state for each block of it
 * transfer.c    bytes of a block to the device, and back
 * coherence.c   what a touch, a launch, a copy and a wait do to the states
 * shadow.c      host memory that is not watched, at another address of the device
 * pointers.c    pointers among what the host has written
 * advice.c      hints, kept to be asked for
 * managed_calls.c   the driver's calls */
#ifndef SHIM_MANAGED_H
#define SHIM_MANAGED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shim_context;
struct shim_stream;

/* How many allocations, and shadows, there are; what follows costs one load while there is none. */
extern _Atomic uint64_t managed_regions;
/* How many blocks were fetched while work was under way that may have written them. */
extern _Atomic uint64_t managed_provisional;

static inline bool managed_in_use(void) { return atomic_load_explicit(&managed_regions, memory_order_relaxed) != 0; }

/* Whether an address lies in managed memory, or is a device's address of host memory. */
bool managed_contains(uint64_t address);

/* Around managed_launch, or managed_access, and the posting of its command: until that, nothing that is asked of the streams knows of it, and what is fetched may lack what it writes. */
bool managed_begin(void);
void managed_end(bool begun);
/* A kernel, which may read and write all that its stream has access to, is about to be posted: what the host has written is sent on the stream before it. 0 or a CUresult. */
int managed_launch(struct shim_stream *s);
/* A command that reads (or writes) `size` bytes of device memory at an address is about to be posted; anything may lie there. `whole`: it writes each byte of them. */
int managed_access(struct shim_stream *s, uint64_t address, uint64_t size, bool written, bool whole);
/* Pointers, at most `room` of them, among what the host has written and no kernel was given yet. Returns how many. */
size_t managed_pointers(bool (*wanted)(uint64_t), uint64_t *out, size_t room);
/* The program has waited for some work: blocks that were fetched meanwhile are fetched anew when they are touched. */
void managed_waited(void);
/* The host begins to use a module's variable, whose pages nothing else is in. 0 or a CUresult. */
int managed_variable(struct shim_context *c, uint64_t address, uint64_t size);
/* Host memory that kernels may use from now on: shared pages at `address` that hold what the host has written, and whose device memory is there already. 0 or a CUresult. */
int managed_host_memory(struct shim_context *c, uint64_t address, uint64_t size);
/* New host memory that kernels may use, zeros, at addresses that the server's driver and this process both have free. 0 or a CUresult. */
int managed_host_allocate(struct shim_context *c, uint64_t size, uint64_t *out);
/* The allocation or variable at `base` is about to be freed. */
void managed_forget(uint64_t base);

#endif
