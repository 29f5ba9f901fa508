/* The worker's module cache: images that workers of this tenant on this host have loaded, on disk under their SHA-256, so that a client sends each
 * once. One flat folder for all workers of a tenant. File names are HASH.META.KEY: KEY stands for the backend, driver, device and build that accepted
 * the image, META for its metadata. A file that cannot be read or is damaged counts as absent. */
#ifndef WORKER_MODULE_CACHE_H
#define WORKER_MODULE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../wire/module_known.h"

struct module_cache;

/* Opens the cache in `folder`, which is created if needed. May take long, so a worker calls it before its session comes. Verifies the most recently
 * used images and keeps their files open, up to a limit; removes the least recently used ones when the folder exceeds its limits. NULL: there is no
 * usable cache. */
struct module_cache *module_cache_open(const char *folder);
/* Adds images that other workers have written since, while there is no session; cheap when there are none. */
void module_cache_refresh(struct module_cache *c);
/* Once, before all functions below: adds what was written since and keeps only entries of `key`, a text that differs between workers whose results
 * could differ. */
void module_cache_choose(struct module_cache *c, const char *key);
void module_cache_close(struct module_cache *c);
/* The entries, most recently used first, at most `most`; promised: the file is open. */
uint32_t module_cache_list(struct module_cache *c, struct gv_module_known *out, uint32_t most);
/* The image of that hash, verified; the caller frees it. NULL: not in the cache. */
void *module_cache_get(struct module_cache *c, const uint8_t hash[GV_SHA256_SIZE], size_t *size);
/* Stores an image and the digest of its metadata; failures are ignored. */
enum gv_module_kept module_cache_put(struct module_cache *c, const uint8_t hash[GV_SHA256_SIZE], const void *image, size_t size,
                                     const uint8_t meta[GV_META_DIGEST_SIZE]);
/* The session moves to another worker. The old one lists what it has promised, at most MODULE_CACHE_PROMISES images, and sees to it that each lies in
 * the folder; the new one, which has promised nothing yet, promises the same; false: one of them is missing or damaged. */
#define MODULE_CACHE_PROMISES 1024u
uint32_t module_cache_hand_over(struct module_cache *c, uint8_t (*hashes)[GV_SHA256_SIZE], uint32_t most);
bool module_cache_take_over(struct module_cache *c, const uint8_t (*hashes)[GV_SHA256_SIZE], uint32_t n);
/* Removes an image, from disk too. */
void module_cache_drop(struct module_cache *c, const uint8_t hash[GV_SHA256_SIZE]);

#endif
