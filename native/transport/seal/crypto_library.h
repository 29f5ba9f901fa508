/* The library that seals: OpenSSL's libcrypto, found and loaded when the first link wants it, never linked against. It is a copy of the system's that
 * only we call, by its own symbols, whatever the program exports or has loaded itself. */
#ifndef GV_CRYPTO_LIBRARY_H
#define GV_CRYPTO_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../transport.h"

enum gv_cipher { GV_CIPHER_AES = 1, GV_CIPHER_CHACHA = 2 }; /* AES-256-GCM, ChaCha20-Poly1305 */

#define GV_CRYPTO_KEY 32u   /* of either cipher, and of X25519 */
#define GV_CRYPTO_NONCE 12u /* of either cipher */
#define GV_CRYPTO_TAG 16u

/* libcrypto's functions of the same names, without their types: its headers need not be there. */
struct gv_crypto {
    void *library; /* OSSL_LIB_CTX of our own; NULL before version 3 */
    char version[64];
    const void *ciphers[3]; /* by gv_cipher */
    void *(*context_new)(void);
    void (*context_free)(void *context);
    int (*context_control)(void *context, int type, int value, void *pointer);
    int (*cipher_init)(void *context, const void *cipher, void *engine, const uint8_t *key, const uint8_t *nonce, int sealing);
    int (*cipher_update)(void *context, uint8_t *out, int *out_size, const uint8_t *in, int in_size);
    int (*cipher_final)(void *context, uint8_t *out, int *out_size);
    int (*tag_out)(void *context, uint8_t tag[GV_CRYPTO_TAG]); /* of the frame that was sealed; of the one that is to be opened */
    int (*tag_in)(void *context, const uint8_t tag[GV_CRYPTO_TAG]);
    int (*mark)(void); /* ERR_set_mark, ERR_pop_to_mark: our errors do not stay in the program's queue */
    int (*unmark)(void);
    void *(*private_key)(const struct gv_crypto *crypto, const uint8_t *key);
    void *(*public_key)(const struct gv_crypto *crypto, const uint8_t *key);
    int (*get_public)(const void *key, uint8_t *out, size_t *size);
    void (*key_free)(void *key);
    void *(*derive_context)(const struct gv_crypto *crypto, void *key);
    void (*derive_free)(void *context);
    int (*derive_init)(void *context);
    int (*derive_peer)(void *context, void *peer);
    int (*derive)(void *context, uint8_t *out, size_t *size);
};

/* Loaded, once a process; NULL with what to do about it in `why` (not NULL). Any thread; also in a child of fork. */
const struct gv_crypto *gv_crypto_library(char why[GV_DEATH_TEXT]);
/* What this processor does quickly: AES where it has instructions for it. */
enum gv_cipher gv_cipher_preferred(void);
/* "AES-256-GCM", ...; NULL: no such cipher. */
const char *gv_cipher_name(unsigned cipher);

#endif
