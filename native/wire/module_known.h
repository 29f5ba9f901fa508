/* Images that the client need not send again: the list in the worker's reply to ATTACH, and the digests that name metadata. */
#ifndef GV_MODULE_KNOWN_H
#define GV_MODULE_KNOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sha256.h"

/* One image in the worker's module cache. `meta` is the beginning of the digest of its metadata; all zero: the worker has not verified the image, so
 * the client asks with a waiting call that carries the hash alone. */
struct gv_module_known {
    uint8_t hash[8]; /* the beginning of the image's SHA-256 */
    uint8_t meta[4];
};

/* As many as fit, with the device infos, into the initial congestion window of a TCP connection. */
#define GV_MODULES_KNOWN_MAX 768u

/* Beginning of the metadata's digest that a one-way load carries, so that client and worker mean the same kernels by the same numbers. */
#define GV_META_DIGEST_SIZE 8u

/* `kept` in the reply to MODULE_LOAD: whether the image can be loaded by its hash later. */
enum gv_module_kept {
    GV_MODULE_NOT_KEPT,
    GV_MODULE_PROMISED, /* this session can load it by its hash, whatever happens to the file */
    GV_MODULE_ON_DISK   /* it is in the cache until it is evicted: ask by its hash first */
};

/* The status of a MODULE_LOAD by hash alone when the worker does not keep that image (any more): no CUresult, the client sends the image then. */
#define GV_MODULE_NOT_HERE 0x47560001

/* Digest of sound metadata (gv_meta_check), whatever addresses its globals got this time. */
void gv_meta_digest(const void *blob, size_t size, uint8_t digest[GV_SHA256_SIZE]);
/* Clears the addresses of globals, which differ between sessions. */
void gv_meta_forget_addresses(void *blob);

#endif
