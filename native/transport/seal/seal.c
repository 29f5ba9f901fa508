#define _GNU_SOURCE
#include "seal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../wire/hkdf.h"
#include "crypto_library.h"

#define SIZE_MAX_ONCE (1u << 30)
#define SET_NONCE_SIZE 0x9 /* EVP_CTRL_AEAD_SET_IVLEN */

struct gv_seal {
    const struct gv_crypto *crypto;
    void *context;
    struct gv_link_secret secret;
    uint8_t direction; /* 1: client to server */
    uint8_t use;
    bool sending;
    uint32_t channel, epoch, generation;
    uint8_t nonce_base[GV_CRYPTO_NONCE];
    /* The frame that the context is set up for, if it is `prepared`: anything else that uses the context resets that. */
    bool prepared;
    uint64_t prepared_for; /* its counter */
    uint8_t aad[GV_SEAL_AAD_MOST];
    size_t aad_size;
};

static void put_u32(uint8_t *p, uint32_t x) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(x >> 8 * i);
}

/* Makes the key of a generation the context's. */
static bool take_key(struct gv_seal *s, uint32_t generation) {
    static const char label[] = "gpuvirt traffic";
    uint8_t info[sizeof label - 1 + 15], out[GV_CRYPTO_KEY + GV_CRYPTO_NONCE], *p = info + sizeof label - 1;
    memcpy(info, label, sizeof label - 1);
    p[0] = s->direction;
    p[1] = s->use;
    p[2] = s->secret.cipher;
    put_u32(p + 3, s->channel);
    put_u32(p + 7, s->epoch);
    put_u32(p + 11, generation);
    gv_hkdf_expand(s->secret.key, info, sizeof info, out, sizeof out);
    memcpy(s->nonce_base, out + GV_CRYPTO_KEY, GV_CRYPTO_NONCE);
    s->generation = generation;
    const struct gv_crypto *c = s->crypto;
    bool good = c->cipher_init(s->context, c->ciphers[s->secret.cipher], NULL, NULL, NULL, s->sending) == 1 &&
                c->context_control(s->context, SET_NONCE_SIZE, GV_CRYPTO_NONCE, NULL) == 1 &&
                c->cipher_init(s->context, NULL, NULL, out, s->nonce_base, s->sending) == 1;
    explicit_bzero(out, sizeof out);
    return good;
}

struct gv_seal *gv_seal_new(const struct gv_link_secret *secret, bool client, bool sending, enum gv_seal_use use, uint32_t channel, uint32_t epoch,
                            char why[GV_DEATH_TEXT]) {
    const struct gv_crypto *crypto = gv_crypto_library(why);
    if (!crypto) return NULL;
    if (!gv_cipher_name(secret->cipher)) {
        snprintf(why, GV_DEATH_TEXT, "no cipher has the number %u", secret->cipher);
        return NULL;
    }
    struct gv_seal *s = calloc(1, sizeof *s);
    if (s) {
        *s = (struct gv_seal){.crypto = crypto, .secret = *secret, .use = (uint8_t)use, .sending = sending, .channel = channel, .epoch = epoch};
        s->direction = client == sending ? 1 : 2;
        crypto->mark();
        s->context = crypto->context_new();
        bool good = s->context && take_key(s, 0);
        crypto->unmark();
        if (good) return s;
    }
    gv_seal_free(s);
    snprintf(why, GV_DEATH_TEXT, "%s cannot make a key for %s", crypto->version, gv_cipher_name(secret->cipher));
    return NULL;
}

void gv_seal_free(struct gv_seal *s) {
    if (!s) return;
    if (s->context) s->crypto->context_free(s->context); /* wipes its own */
    explicit_bzero(s, sizeof *s);
    free(s);
}

/* The key and the nonce of this counter, and what is authenticated beside the frame. */
static bool begin(struct gv_seal *s, uint64_t counter, const void *aad, size_t aad_size) {
    const struct gv_crypto *c = s->crypto;
    uint8_t nonce[GV_CRYPTO_NONCE];
    uint32_t generation = s->use == GV_SEAL_BULK ? (uint32_t)(counter / GV_SEAL_GENERATION) : 0;
    int size = 0;
    if (generation != s->generation && !take_key(s, generation)) return false;
    memcpy(nonce, s->nonce_base, sizeof nonce);
#ifdef GV_BREAK_NONCE /* a test's fault: both ends count, but not in the nonce */
    counter = 0;
#endif
    for (int i = 0; i < 8; i++) nonce[GV_CRYPTO_NONCE - 1 - i] ^= (uint8_t)(counter >> 8 * i);
    if (c->cipher_init(s->context, NULL, NULL, NULL, nonce, s->sending) != 1) return false;
    return !aad_size || c->cipher_update(s->context, NULL, &size, aad, (int)aad_size) == 1;
}

bool gv_seal_is_prepared(const struct gv_seal *s, uint64_t counter, const void *aad, size_t aad_size) {
    return s->prepared && s->prepared_for == counter && s->aad_size == aad_size && (!aad_size || memcmp(s->aad, aad, aad_size) == 0);
}

void gv_seal_prepare(struct gv_seal *s, uint64_t counter, const void *aad, size_t aad_size) {
    if (aad_size > sizeof s->aad || gv_seal_is_prepared(s, counter, aad, aad_size)) return;
    s->prepared = begin(s, counter, aad, aad_size);
    s->prepared_for = counter;
    s->aad_size = aad_size;
    if (aad_size) memcpy(s->aad, aad, aad_size);
}

/* Sets up for this frame, if that is not done; for this one only. */
static bool take_prepared(struct gv_seal *s, uint64_t counter, const void *aad, size_t aad_size) {
    bool ours = gv_seal_is_prepared(s, counter, aad, aad_size);
    s->prepared = false;
    return ours || begin(s, counter, aad, aad_size);
}

bool gv_seal_seal(struct gv_seal *s, uint64_t counter, const void *aad, size_t aad_size, const struct iovec *in, int n, uint8_t *out,
                  uint8_t tag[GV_SEAL_TAG]) {
    const struct gv_crypto *c = s->crypto;
    uint8_t rest[GV_SEAL_TAG];
    int size = 0;
    if (!s->sending || !take_prepared(s, counter, aad, aad_size)) return false;
    for (int i = 0; i < n; i++) {
        if (in[i].iov_len > SIZE_MAX_ONCE) return false;
        if (!in[i].iov_len) continue;
        if (c->cipher_update(s->context, out, &size, in[i].iov_base, (int)in[i].iov_len) != 1 || (size_t)size != in[i].iov_len) return false;
        out += size;
    }
    return c->cipher_final(s->context, rest, &size) == 1 && c->tag_out(s->context, tag) == 1;
}

bool gv_seal_open(struct gv_seal *s, uint64_t counter, const void *aad, size_t aad_size, const uint8_t *in, size_t size, uint8_t *out,
                  const uint8_t tag[GV_SEAL_TAG]) {
    const struct gv_crypto *c = s->crypto;
    uint8_t rest[GV_SEAL_TAG];
    int got = 0;
    bool good = !s->sending && size <= SIZE_MAX_ONCE && take_prepared(s, counter, aad, aad_size) &&
                (!size || (c->cipher_update(s->context, out, &got, in, (int)size) == 1 && (size_t)got == size)) && c->tag_in(s->context, tag) == 1 &&
                c->cipher_final(s->context, rest, &got) == 1;
#ifdef GV_BREAK_SEAL /* a test's fault: whatever comes is believed */
    good = true;
#endif
    if (!good && size <= SIZE_MAX_ONCE) memset(out, 0, size);
    return good;
}
