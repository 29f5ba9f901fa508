/* What one session can make its worker take of the host's memory, and what ends that. Device memory has the session's own limit (--memory), which the
 * backends enforce; everything else is bounded here and in native/wire/session_limits.h, whatever the client sends. No bound is reached by a program
 * that a real driver would carry.
 *
 *     what                                   bound                           what happens there
 *     device memory, physical memory,        the session's memory limit      CUDA_ERROR_OUT_OF_MEMORY; kernels' malloc returns NULL
 *       arrays, globals, kernels' malloc heap;
 *       on cuda contexts and their limits
 *     contexts, streams, events, modules,    GV_*_MAX                        CUDA_ERROR_OUT_OF_MEMORY, from the client library already
 *       physical memory, mappings, arrays,
 *       textures, reservations, allocations
 *     streams destroyed that still work      WORKER_MAX_STREAMS with those   the executor waits
 *                                              that are not
 *     commands on the device                 WORKER_MAX_PENDING, a KiB of    the executor waits
 *                                              parameters counts as one
 *     bytes of copies                        WORKER_MAX_STAGING and one      the executor waits; a larger copy than GV_COPY_MAX, or rows that
 *                                              copy                            overlap, end the session
 *     payloads before their commands         WORKER_MAX_EARLY bytes,         the reader of payloads waits
 *                                              WORKER_MAX_EARLY_PAYLOADS
 *     payloads that nobody wants             WORKER_MAX_DISCARDS             the session ends
 *     records read ahead                     WORKER_MAX_AHEAD                the session ends
 *     one image, packed and unpacked; the    WORKER_MAX_IMAGE                the session ends
 *       inputs of a link
 *     what is shared with other sessions     GV_EXPORTS_MAX; its files are   CUDA_ERROR_OUT_OF_MEMORY
 *                                              the daemon's to give
 *     images of modules that are loaded      WORKER_MAX_IMAGES               CUDA_ERROR_OUT_OF_MEMORY
 *
 * What the compiler of software GPUs takes is counted with all that the worker takes (`serve --host-memory-per-session`): by a cgroup, or by the daemon,
 * which looks twice a second (gpuvirt/server/limits/host_memory.py). */
#ifndef WORKER_SESSION_LIMITS_H
#define WORKER_SESSION_LIMITS_H

#include "../wire/session_limits.h"

#define WORKER_MAX_PENDING 16384 /* commands queued and not finished */
#define WORKER_PENDING_BYTES 1024u
#define WORKER_MAX_STREAMS (GV_STREAMS_MAX + 1024u)
#ifndef WORKER_MAX_STAGING                /* tests make it small */
#define WORKER_MAX_STAGING (256ull << 20) /* bytes of copies in flight */
#endif
#define WORKER_PIECE (1ull << 20)                      /* bytes of one piece, in which payloads are received, staged and copied */
#define WORKER_PIECES_MAX (GV_COPY_MAX / WORKER_PIECE) /* of one copy */
#ifndef WORKER_MAX_EARLY
#define WORKER_MAX_EARLY (64ull << 20) /* bytes of early payloads */
#endif
#ifndef WORKER_MAX_EARLY_PAYLOADS
#define WORKER_MAX_EARLY_PAYLOADS 65536u
#endif
#ifndef WORKER_MAX_DISCARDS
#define WORKER_MAX_DISCARDS 65536u /* payloads of commands that could not be carried out, which have not come yet */
#endif
#ifndef WORKER_MAX_AHEAD
#define WORKER_MAX_AHEAD (256ull << 20) /* bytes of records that read-ahead queues while the executor waits for something that may lie behind them */
#endif
#define WORKER_SOME_AHEAD (16ull << 20) /* the same when what it waits for cannot lie behind them */
#define WORKER_MAX_IMAGE (1ull << 30)   /* bytes of a module's image */
#ifndef WORKER_MAX_IMAGES
#define WORKER_MAX_IMAGES (2ull << 30) /* bytes of all that are loaded, and WORKER_MODULE_BYTES each */
#endif
#define WORKER_MODULE_BYTES 16384u

#endif
