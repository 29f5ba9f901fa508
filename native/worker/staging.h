/* Staging memory holds the bytes of a copy between network and device. Freed pieces are kept for later copies, because pinning memory is slow and new
 * pages fault. Pinned memory is in reach of kernels, so nothing that the worker believes is written there: what is kept is listed elsewhere.
 *
 * A driver may free pinned memory only when all streams have come to an end, and streams wait for the threads that give pieces back. So pinned pieces
 * that are not kept are freed by a thread that nothing waits for (staging_free_spare), and those that are left at the end by the process's end. */
#ifndef WORKER_STAGING_H
#define WORKER_STAGING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../transport/transport.h"
#include "backend.h"

#define STAGING_SMALLEST 12 /* 2^12 bytes */
#define STAGING_LARGEST 23  /* larger pieces are not kept */
#define STAGING_KEPT (64ull << 20)
#ifndef STAGING_KEPT_PINNED                /* tests make it small */
#define STAGING_KEPT_PINNED (256ull << 20) /* freeing pinned memory may wait for the device */
#endif

struct staging_kept {
    void **pieces; /* the last one was kept last */
    size_t n, size;
};

struct staging {
    struct gv_link *link; /* whose devices may use the pieces; NULL: nobody's */
    const struct gv_backend_ops *ops;
    struct gv_backend *backend;
    pthread_mutex_t lock;
    struct staging_kept kept[STAGING_LARGEST - STAGING_SMALLEST + 1];
    uint64_t kept_bytes;
    struct staging_kept spare;    /* pinned pieces that are not kept, until they are freed */
    _Atomic uint64_t spare_bytes; /* as requested */
    bool ended;                   /* pieces released from now on are not freed */
    _Atomic uint64_t in_use;      /* bytes in use, as requested */
};

void staging_init(struct staging *s);
/* Before the first piece: the link is told of all of them, and is closed after staging_end. */
void staging_set_link(struct staging *s, struct gv_link *link);
/* The allocator; NULL: the heap. */
void staging_set_backend(struct staging *s, const struct gv_backend_ops *ops, struct gv_backend *backend);
/* Any thread that nothing waits for while the driver does: pinning memory is a call of it. NULL: out of memory. */
void *staging_take(struct staging *s, uint64_t size);
void staging_give(struct staging *s, void *data, uint64_t size);
/* The same without the driver: memory that is kept, or the heap's (*heap), which no device may copy from before its bytes are there. */
void *staging_take_at_hand(struct staging *s, uint64_t size, bool *heap);
void staging_give_either(struct staging *s, void *data, uint64_t size, bool heap);
/* Frees the pinned pieces that are not kept; may wait for all that the device is doing. */
void staging_free_spare(struct staging *s);
/* Frees the kept pieces, unless they are pinned; called before the backend is closed. Pieces released later are not freed. */
void staging_end(struct staging *s);

#endif
