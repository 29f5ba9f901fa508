/* Host memory in the devices whose pages are the program's own: it was registered, or is pinned and too large for the window. It may share its pages with anything, so they are not
 * watched: its device memory, the shadow, lies elsewhere, and what each side has changed is found by comparing with what both had last. */
#ifndef SHIM_SHADOW_H
#define SHIM_SHADOW_H

#include "objects/objects.h"

extern _Atomic uint64_t shadows;
static inline bool shadow_in_use(void) { return atomic_load_explicit(&shadows, memory_order_relaxed) != 0; }

/* The device's memory at `device` becomes the shadow of a host range that has none. 0 or CUDA_ERROR_OUT_OF_MEMORY, or what a stream cannot be made for. */
int shadow_add(const struct range *r, uint64_t device);
/* Whether an address lies in a shadow. */
bool shadow_contains(uint64_t device);
/* The address in a shadow that stands for one of the host. 0: none does. */
uint64_t shadow_of(uint64_t host);
/* A kernel that may read and write all of them is about to be posted: what the host has changed is sent. Its stream has yet to be ordered
 * after that (stream_after_copies). 0 or a CUresult. */
int shadow_launch(void);
/* The same for a command that reads (or writes) an address of a device. */
int shadow_access(uint64_t device, bool written);
/* The program has waited for some work: what the devices have changed comes to the host. */
void shadow_waited(void);
/* What the device has changed comes to the host range that begins there, whose shadow is one no more. Nothing runs that uses it. */
void shadow_remove(uint64_t host);
/* Nothing runs in the context any more, whose memory is about to be freed. */
void shadow_context_gone(const struct shim_context *c);

#endif
