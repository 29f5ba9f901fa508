/* Host memory that kernels use: it gets device memory at its own addresses, and is kept coherent like managed memory (managed/). */
#ifndef SHIM_HOST_MAPPING_H
#define SHIM_HOST_MAPPING_H

#include "objects/objects.h"

/* Bytes of addresses that host memory takes of the window, which gives them out by the chunk. */
static inline uint64_t host_chunks(const struct shim_context *c, uint64_t size) {
    uint64_t chunk = c->info->chunk ? c->info->chunk : 2ull << 20;
    return (size + chunk - 1) & ~(chunk - 1);
}
/* Allocates host memory that is mapped from the beginning. 0 or a CUresult. */
int host_mapped_allocate(struct shim_context *c, size_t size, unsigned flags, uint64_t *out);
/* Maps a host range, if it is not mapped yet. 0, or CUDA_ERROR_NOT_SUPPORTED where it lies elsewhere than in the window. */
int host_map(const struct range *r);
/* Gives device memory at another address, *device, to a host range that lies elsewhere than in the window (managed/shadow.h), if it has none. 0 or a CUresult. */
int host_shadow(const struct range *r, uint64_t *device);
/* The range is about to go: so does that memory. */
void host_unshadow(const struct range *r);
/* The range, which is in the host's map no more, is about to be freed: its device memory goes. */
void host_unmap(uint64_t base, const struct range *r);
/* The same for what a context has; its pages stay until they are freed, and are inaccessible. Nothing runs in it any more. */
void host_context_gone(struct shim_context *c);
/* Maps what pointers among these bytes point to, which are on their way to the device. 0 or a CUresult. */
int host_map_pointers(const void *bytes, size_t size);
/* Maps what a kernel's parameters point to, and what can be reached from there through memory that the host has written. 0 or a CUresult. */
int host_map_reachable(const void *params, size_t size);

#endif
