/* HKDF-SHA256 (RFC 5869): keys from a secret that is not one yet, and many keys from one. */
#ifndef GV_HKDF_H
#define GV_HKDF_H

#include "sha256.h"

/* The most bytes that gv_hkdf_expand gives. */
#define GV_HKDF_OUT_MAX (255u * GV_SHA256_SIZE)

void gv_hkdf_extract(const void *salt, size_t salt_size, const void *material, size_t material_size, uint8_t key[GV_SHA256_SIZE]);
/* `size` bytes, at most GV_HKDF_OUT_MAX; `info` says what they are for. */
void gv_hkdf_expand(const uint8_t key[GV_SHA256_SIZE], const void *info, size_t info_size, uint8_t *out, size_t size);

#endif
