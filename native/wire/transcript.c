#define _GNU_SOURCE
#include "transcript.h"

#include <string.h>

#include "hkdf.h"

static void mac_of(const struct gv_transcript *t, const char *label, const uint8_t *key, uint8_t mac[GV_PROOF_SIZE]) {
    struct gv_sha256 so_far = t->hash;
    uint8_t digest[GV_SHA256_SIZE];
    struct gv_hmac hmac;
    gv_sha256_end(&so_far, digest);
    gv_hmac_init(&hmac, key, GV_SECRET_SIZE);
    gv_hmac_add(&hmac, label, strlen(label));
    gv_hmac_add(&hmac, digest, sizeof digest);
    gv_hmac_end(&hmac, mac);
}

void gv_transcript_begin(struct gv_transcript *t, const uint8_t *greeting, size_t size) {
    static const char label[] = "gpuvirt wire 2";
    gv_sha256_init(&t->hash);
    gv_sha256_add(&t->hash, label, sizeof label - 1);
    gv_sha256_add(&t->hash, greeting, size);
}

void gv_transcript_add(struct gv_transcript *t, const uint8_t *raw, size_t size) { gv_sha256_add(&t->hash, raw, size); }

static void prove(struct gv_transcript *t, const char *label, uint8_t *raw, size_t size, const uint8_t *key) {
    gv_sha256_add(&t->hash, raw, size - GV_PROOF_SIZE);
    mac_of(t, label, key, raw + size - GV_PROOF_SIZE);
    gv_sha256_add(&t->hash, raw + size - GV_PROOF_SIZE, GV_PROOF_SIZE);
}

static bool proved(struct gv_transcript *t, const char *label, const uint8_t *raw, size_t size, const uint8_t *key) {
    uint8_t expected[GV_PROOF_SIZE];
    gv_sha256_add(&t->hash, raw, size - GV_PROOF_SIZE);
    mac_of(t, label, key, expected);
    gv_sha256_add(&t->hash, raw + size - GV_PROOF_SIZE, GV_PROOF_SIZE);
    return gv_equal_secret(expected, raw + size - GV_PROOF_SIZE, sizeof expected);
}

void gv_hello_prove(struct gv_transcript *t, uint8_t *raw, size_t size, const uint8_t key[GV_SECRET_SIZE]) {
    prove(t, "gpuvirt client", raw, size, key);
}

void gv_welcome_prove(struct gv_transcript *t, uint8_t *raw, size_t size, const uint8_t key[GV_SECRET_SIZE]) {
    prove(t, "gpuvirt server", raw, size, key);
}

bool gv_hello_proved(struct gv_transcript *t, const uint8_t *raw, size_t size, const uint8_t key[GV_SECRET_SIZE]) {
    return proved(t, "gpuvirt client", raw, size, key);
}

bool gv_welcome_proved(struct gv_transcript *t, const uint8_t *raw, size_t size, const uint8_t key[GV_SECRET_SIZE]) {
    return proved(t, "gpuvirt server", raw, size, key);
}

void gv_session_key(const struct gv_transcript *t, const uint8_t secret[GV_SECRET_SIZE], uint8_t key[GV_SECRET_SIZE]) {
    mac_of(t, "gpuvirt session", secret, key);
}

void gv_sealed_session_keys(const struct gv_transcript *t, const uint8_t secret[GV_SECRET_SIZE], const uint8_t shared[GV_SECRET_SIZE],
                            uint8_t key[GV_SECRET_SIZE], uint8_t link[GV_SECRET_SIZE]) {
    static const char session_label[] = "gpuvirt session", link_label[] = "gpuvirt link";
    struct gv_sha256 so_far = t->hash;
    uint8_t digest[GV_SHA256_SIZE], material[2 * GV_SECRET_SIZE], extracted[GV_SHA256_SIZE];
    gv_sha256_end(&so_far, digest);
    memcpy(material, secret, GV_SECRET_SIZE);
    memcpy(material + GV_SECRET_SIZE, shared, GV_SECRET_SIZE);
    gv_hkdf_extract(digest, sizeof digest, material, sizeof material, extracted);
    gv_hkdf_expand(extracted, session_label, sizeof session_label - 1, key, GV_SECRET_SIZE);
    gv_hkdf_expand(extracted, link_label, sizeof link_label - 1, link, GV_SECRET_SIZE);
    explicit_bzero(material, sizeof material);
    explicit_bzero(extracted, sizeof extracted);
}
