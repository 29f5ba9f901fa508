/* Modules that need not travel again. Which images the server keeps it says at ATTACH and in its answers; what their kernels are is kept here, on
 * this machine's disk, under the image's hash and the kind of device. Whatever goes wrong with a file means that it is not there. */
#ifndef SHIM_MODULE_CACHE_H
#define SHIM_MODULE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/device_info.h"
#include "wire/module_known.h"

enum module_place {
    MODULE_AWAY,    /* the server lacks the image */
    MODULE_ASK,     /* it keeps it, says a list that may be wrong: a call by hash */
    MODULE_ACCEPTED /* it keeps it, and its metadata have this digest: no call is needed */
};

/* What the server has of the image. meta: the beginning of the metadata's digest, when accepted. */
enum module_place module_place(const uint8_t hash[GV_SHA256_SIZE], uint8_t meta[4]);
/* The server's answer to a load says that it keeps the image now, or that it does not keep it after all. */
void module_place_learn(const uint8_t hash[GV_SHA256_SIZE], enum module_place place, const uint8_t meta[4]);

/* The metadata of the image on such a device if they are here and their digest begins with `meta`: malloc'ed, sound, with no addresses of globals in
 * them. digest gets the digest whole. NULL: not here. */
void *module_meta_read(const uint8_t hash[GV_SHA256_SIZE], const struct gv_device_info *device, const uint8_t meta[4], size_t *size,
                       uint8_t digest[GV_SHA256_SIZE]);
/* Keeps sound metadata for later processes; digest is theirs. */
void module_meta_write(const uint8_t hash[GV_SHA256_SIZE], const struct gv_device_info *device, const void *meta, size_t size,
                       const uint8_t digest[GV_SHA256_SIZE]);

#endif
