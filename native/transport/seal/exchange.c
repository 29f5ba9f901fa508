#define _GNU_SOURCE
#include "exchange.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "../../wire/sha256.h"

static bool fail(char why[GV_DEATH_TEXT], const char *text) {
    snprintf(why, GV_DEATH_TEXT, "%s", text);
    return false;
}

bool gv_x25519_public(const struct gv_crypto *crypto, const uint8_t secret[GV_CRYPTO_KEY], uint8_t key[GV_CRYPTO_KEY]) {
    size_t size = GV_CRYPTO_KEY;
    crypto->mark();
    void *own = crypto->private_key(crypto, secret);
    bool good = own && crypto->get_public(own, key, &size) == 1 && size == GV_CRYPTO_KEY;
    if (own) crypto->key_free(own);
    crypto->unmark();
    return good;
}

bool gv_x25519_shared(const struct gv_crypto *crypto, const uint8_t secret[GV_CRYPTO_KEY], const uint8_t peer[GV_CRYPTO_KEY],
                      uint8_t shared[GV_CRYPTO_KEY]) {
    static const uint8_t zeros[GV_CRYPTO_KEY];
    size_t size = GV_CRYPTO_KEY;
    crypto->mark();
    void *own = crypto->private_key(crypto, secret), *other = crypto->public_key(crypto, peer);
    void *context = own ? crypto->derive_context(crypto, own) : NULL;
    bool good = context && other && crypto->derive_init(context) == 1 && crypto->derive_peer(context, other) == 1 &&
                crypto->derive(context, shared, &size) == 1 && size == GV_CRYPTO_KEY && !gv_equal_secret(shared, zeros, sizeof zeros);
    if (context) crypto->derive_free(context);
    if (other) crypto->key_free(other);
    if (own) crypto->key_free(own);
    crypto->unmark();
    if (!good) explicit_bzero(shared, GV_CRYPTO_KEY);
    return good;
}

static bool new_key(const struct gv_crypto *crypto, uint8_t secret[GV_CRYPTO_KEY], uint8_t key[GV_CRYPTO_KEY], char why[GV_DEATH_TEXT]) {
    if (getrandom(secret, GV_CRYPTO_KEY, 0) != GV_CRYPTO_KEY) {
        snprintf(why, GV_DEATH_TEXT, "no random numbers from the kernel: %s", strerror(errno));
        return false;
    }
    if (gv_x25519_public(crypto, secret, key)) return true;
    snprintf(why, GV_DEATH_TEXT, "%s makes no X25519 key", crypto->version);
    return false;
}

bool gv_exchange_offer(uint8_t secret[GV_CRYPTO_KEY], uint8_t said[GV_EXCHANGE_SIZE], char why[GV_DEATH_TEXT]) {
    const struct gv_crypto *crypto = gv_crypto_library(why);
    said[0] = (uint8_t)gv_cipher_preferred();
    return crypto && new_key(crypto, secret, said + 1, why);
}

bool gv_exchange_answer(const uint8_t heard[GV_EXCHANGE_SIZE], uint8_t said[GV_EXCHANGE_SIZE], uint8_t shared[GV_CRYPTO_KEY],
                        char why[GV_DEATH_TEXT]) {
    uint8_t secret[GV_CRYPTO_KEY];
    const struct gv_crypto *crypto = gv_crypto_library(why);
    if (!crypto) return false;
    if (!gv_cipher_name(heard[0])) return fail(why, "the client wants a cipher that this server does not know");
    said[0] = heard[0] == GV_CIPHER_AES ? (uint8_t)gv_cipher_preferred() : GV_CIPHER_CHACHA;
    bool made = new_key(crypto, secret, said + 1, why), good = made && gv_x25519_shared(crypto, secret, heard + 1, shared);
    explicit_bzero(secret, sizeof secret);
    return good || (made && fail(why, "the client's key is none"));
}

bool gv_exchange_finish(uint8_t secret[GV_CRYPTO_KEY], const uint8_t said[GV_EXCHANGE_SIZE], const uint8_t heard[GV_EXCHANGE_SIZE],
                        uint8_t shared[GV_CRYPTO_KEY], char why[GV_DEATH_TEXT]) {
    const struct gv_crypto *crypto = gv_crypto_library(why);
    bool offered = heard[0] == GV_CIPHER_CHACHA || (heard[0] == GV_CIPHER_AES && said[0] == GV_CIPHER_AES);
    bool good = crypto && offered && gv_x25519_shared(crypto, secret, heard + 1, shared);
    explicit_bzero(secret, GV_CRYPTO_KEY);
    return good || (crypto && fail(why, offered ? "its key is none" : "it chose a cipher that it was not offered"));
}
