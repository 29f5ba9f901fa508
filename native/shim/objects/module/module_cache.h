/* Modules that need not be sent again. The server lists the images that it keeps at ATTACH and in its answers; the metadata of their kernels are kept on
 * this machine's disk, by the image's hash and the kind of device. A file that cannot be read counts as missing. */
#ifndef SHIM_MODULE_CACHE_H
#define SHIM_MODULE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/device_info.h"
#include "wire/module_known.h"

enum module_place {
    MODULE_AWAY,    /* the server lacks the image */
    MODULE_ASK,     /* the server's list names it but may be wrong: load it by hash and wait */
    MODULE_ACCEPTED /* the server keeps it with metadata of this digest: load it without waiting */
};

/* Where the image is. meta: the first bytes of the metadata's digest, when accepted. */
enum module_place module_place(const uint8_t hash[GV_SHA256_SIZE], uint8_t meta[4]);
/* Records from the server's answer to a load whether it keeps the image. */
void module_place_learn(const uint8_t hash[GV_SHA256_SIZE], enum module_place place, const uint8_t meta[4]);

/* The metadata of the image on such a device if they are here and their digest begins with `meta`: malloc'ed, sound, with no addresses of globals in
 * them. digest gets the digest whole. NULL: not here. */
void *module_meta_read(const uint8_t hash[GV_SHA256_SIZE], const struct gv_device_info *device, const uint8_t meta[4], size_t *size,
                       uint8_t digest[GV_SHA256_SIZE]);
/* Stores checked metadata for later processes; digest: of the metadata. */
void module_meta_write(const uint8_t hash[GV_SHA256_SIZE], const struct gv_device_info *device, const void *meta, size_t size,
                       const uint8_t digest[GV_SHA256_SIZE]);

#endif
