/* MD2 (RFC 1319) and HMAC over it (RFC 2104). For answering the runtime's query only: MD2 protects nothing. */
#ifndef SHIM_MD2_H
#define SHIM_MD2_H

#include <stddef.h>
#include <stdint.h>

#define MD2_SIZE 16 /* of a digest, and of a block */

struct md2 {
    uint8_t state[48], checksum[MD2_SIZE], block[MD2_SIZE];
    size_t fill; /* bytes of `block` that wait */
};

void md2_begin(struct md2 *m);
void md2_add(struct md2 *m, const void *data, size_t size);
void md2_end(struct md2 *m, uint8_t digest[MD2_SIZE]);

struct hmac_md2 {
    struct md2 inner;
    uint8_t outer_key[MD2_SIZE];
};

/* The key has the size of a block, so it is never hashed itself. */
void hmac_md2_begin(struct hmac_md2 *h, const uint8_t key[MD2_SIZE]);
void hmac_md2_add(struct hmac_md2 *h, const void *data, size_t size);
void hmac_md2_end(struct hmac_md2 *h, uint8_t digest[MD2_SIZE]);

#endif
