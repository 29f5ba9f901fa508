/* The ephemeral key exchange of a session's handshake: X25519 (RFC 7748) and the choice of the cipher. What each end says of it is GV_EXCHANGE_SIZE bytes
 * of a handshake's key_exchange field: a cipher (GV_CIPHER_*), then a public key. The client names the cipher that suits its processor; the server
 * answers with that one, or with ChaCha20-Poly1305 where AES does not suit its own. */
#ifndef GV_EXCHANGE_H
#define GV_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "crypto_library.h"

#define GV_EXCHANGE_SIZE (1u + GV_CRYPTO_KEY)

/* Each returns false with a reason in `why`: no library (why says what to do), no random numbers, or nonsense from the peer.
 *
 * The client's offer: `secret` is a new private key. */
bool gv_exchange_offer(uint8_t secret[GV_CRYPTO_KEY], uint8_t said[GV_EXCHANGE_SIZE], char why[GV_DEATH_TEXT]);
/* The server's end, all of it: what to answer, and what both share from then on. */
bool gv_exchange_answer(const uint8_t heard[GV_EXCHANGE_SIZE], uint8_t said[GV_EXCHANGE_SIZE], uint8_t shared[GV_CRYPTO_KEY],
                        char why[GV_DEATH_TEXT]);
/* The client's end: what the answer makes of its offer. Wipes `secret`, also when it fails. */
bool gv_exchange_finish(uint8_t secret[GV_CRYPTO_KEY], const uint8_t said[GV_EXCHANGE_SIZE], const uint8_t heard[GV_EXCHANGE_SIZE],
                        uint8_t shared[GV_CRYPTO_KEY], char why[GV_DEATH_TEXT]);

/* X25519 alone. gv_x25519_shared is false for a peer's key of small order, whose result everybody knows; then `shared` is wiped. */
bool gv_x25519_public(const struct gv_crypto *crypto, const uint8_t secret[GV_CRYPTO_KEY], uint8_t key[GV_CRYPTO_KEY]);
bool gv_x25519_shared(const struct gv_crypto *crypto, const uint8_t secret[GV_CRYPTO_KEY], const uint8_t peer[GV_CRYPTO_KEY],
                      uint8_t shared[GV_CRYPTO_KEY]);

#endif
