/* Images that this host's workers have loaded before, kept on disk under their SHA-256, so that they travel once. One flat folder for all workers of
 * a user; a file's name says whose it is: HASH.META.KEY, where KEY stands for the backend, the driver, the device and the build that accepted it, and
 * META for the metadata it gave. Whatever goes wrong with a file means that it is not there. */
#ifndef WORKER_MODULE_CACHE_H
#define WORKER_MODULE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../wire/module_known.h"

struct module_cache;

/* Opens the cache in `folder`, made if need be: what may take long, so that a worker does it before its session comes. Reads what was used most recently
 * to see that it is whole and keeps it open, as much as it may. When the folder holds too much, what was used least recently goes. NULL: there is none to
 * be had. */
struct module_cache *module_cache_open(const char *folder);
/* Takes in what has come since, while no session is there yet; cheap when nothing has. */
void module_cache_refresh(struct module_cache *c);
/* Once, before all that follows: takes in what has come since, and leaves only what is ours. `key` is a text that no worker shares whose answers could
 * differ. */
void module_cache_choose(struct module_cache *c, const char *key);
void module_cache_close(struct module_cache *c);
/* What there is, most recently used first, at most `most` entries; promised is what is open. */
uint32_t module_cache_list(struct module_cache *c, struct gv_module_known *out, uint32_t most);
/* The image of that hash, checked; the caller frees it. NULL: not here. */
void *module_cache_get(struct module_cache *c, const uint8_t hash[GV_SHA256_SIZE], size_t *size);
/* Keeps an image and the digest of the metadata it gave, if it can. */
enum gv_module_kept module_cache_put(struct module_cache *c, const uint8_t hash[GV_SHA256_SIZE], const void *image, size_t size,
                                     const uint8_t meta[GV_META_DIGEST_SIZE]);
/* Forgets an image, on disk too. */
void module_cache_drop(struct module_cache *c, const uint8_t hash[GV_SHA256_SIZE]);

#endif
