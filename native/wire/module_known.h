/* Modules that need not travel again: what a worker says in its answer to ATTACH of the images that it keeps, and how both sides name metadata. */
#ifndef GV_MODULE_KNOWN_H
#define GV_MODULE_KNOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sha256.h"

/* One image that the worker can load without being sent it. `meta` is the beginning of the digest of its metadata; all zero: the worker has not
 * looked whether the image it keeps is whole, so the client asks (a waiting call that carries the hash alone). */
struct gv_module_known {
    uint8_t hash[8]; /* the beginning of the image's SHA-256 */
    uint8_t meta[4];
};

/* As many as fit, with the devices, what a fresh TCP connection sends without waiting for the other end. */
#define GV_MODULES_KNOWN_MAX 768u

/* Beginning of the metadata's digest that a one-way load carries, so that client and worker mean the same kernels by the same numbers. */
#define GV_META_DIGEST_SIZE 8u

/* `kept` in the answer to a MODULE_LOAD: what the worker promises of the image. */
enum gv_module_kept {
    GV_MODULE_NOT_KEPT,
    GV_MODULE_PROMISED, /* this session can load it by its hash, come what may */
    GV_MODULE_ON_DISK   /* it is there for as long as nobody removes it: ask by its hash first */
};

/* The status of a MODULE_LOAD by hash alone when the worker does not keep that image (any more): no CUresult, the client sends the image then. */
#define GV_MODULE_NOT_HERE 0x47560001

/* Digest of sound metadata (gv_meta_check), whatever addresses its globals got this time. */
void gv_meta_digest(const void *blob, size_t size, uint8_t digest[GV_SHA256_SIZE]);
/* Takes the addresses of globals out: they are another session's. */
void gv_meta_forget_addresses(void *blob);

#endif
