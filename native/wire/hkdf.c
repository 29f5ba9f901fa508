#define _GNU_SOURCE
#include "hkdf.h"

#include <string.h>

void gv_hkdf_extract(const void *salt, size_t salt_size, const void *material, size_t material_size, uint8_t key[GV_SHA256_SIZE]) {
    struct gv_hmac hmac;
    gv_hmac_init(&hmac, salt, salt_size);
    gv_hmac_add(&hmac, material, material_size);
    gv_hmac_end(&hmac, key);
}

void gv_hkdf_expand(const uint8_t key[GV_SHA256_SIZE], const void *info, size_t info_size, uint8_t *out, size_t size) {
    uint8_t block[GV_SHA256_SIZE];
    for (uint8_t number = 1; size; number++) {
        struct gv_hmac hmac;
        gv_hmac_init(&hmac, key, GV_SHA256_SIZE);
        if (number > 1) gv_hmac_add(&hmac, block, sizeof block);
        gv_hmac_add(&hmac, info, info_size);
        gv_hmac_add(&hmac, &number, 1);
        gv_hmac_end(&hmac, block);
        size_t now = size < sizeof block ? size : sizeof block;
        memcpy(out, block, now);
        out += now;
        size -= now;
    }
    explicit_bzero(block, sizeof block);
}
