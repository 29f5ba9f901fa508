/* SHA-256 and HMAC-SHA256 (FIPS 180-4, RFC 2104): the handshake's proofs and the names of modules by their content. */
#ifndef GV_SHA256_H
#define GV_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GV_SHA256_SIZE 32

struct gv_sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    uint8_t block[64];
};

void gv_sha256_init(struct gv_sha256 *h);
void gv_sha256_add(struct gv_sha256 *h, const void *data, size_t size);
void gv_sha256_end(struct gv_sha256 *h, uint8_t digest[GV_SHA256_SIZE]);
/* All of it at once. */
void gv_sha256(const void *data, size_t size, uint8_t digest[GV_SHA256_SIZE]);

struct gv_hmac {
    struct gv_sha256 inner, outer;
};

void gv_hmac_init(struct gv_hmac *h, const void *key, size_t key_size);
void gv_hmac_add(struct gv_hmac *h, const void *data, size_t size);
/* Also wipes the key's traces from `h`. */
void gv_hmac_end(struct gv_hmac *h, uint8_t mac[GV_SHA256_SIZE]);

/* Compares two secrets in a time that does not depend on where they differ. */
bool gv_equal_secret(const void *a, const void *b, size_t size);

#endif
