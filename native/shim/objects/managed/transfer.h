/* Bytes between the host's copy of managed memory and the device. */
#ifndef SHIM_TRANSFER_H
#define SHIM_TRANSFER_H

#include "objects/objects.h"

/* Makes the context's stream for what the host fetches, `pages`, if it has none yet. 0 or a CUresult. */
int transfer_prepare(struct shim_context *c);
/* Queues a copy to the device; `from` may be written again when it returns. Later work on any stream comes after it. *seq gets what the stream must have passed. 0 or a CUresult. */
int transfer_push(struct shim_stream *s, uint64_t address, const char *from, uint64_t size, uint64_t *seq);
/* Queues a copy to the host; *seq gets what its stream must have passed. 0 or a CUresult. */
int transfer_fetch(struct shim_stream *s, char *to, uint64_t address, uint64_t size, uint64_t *seq);

#endif
