/* What the handshake's proofs are computed over (handshake.h), free of sockets.
 *
 *     digest          SHA-256("gpuvirt wire 2" | every byte of the connection so far, in the order of sending)
 *     hello's proof   HMAC-SHA256(key, "gpuvirt client" | digest of greeting and hello up to its proof)
 *     welcome's proof HMAC-SHA256(key, "gpuvirt server" | digest of greeting, hello, states and welcome up to its proof)
 *     session key     HMAC-SHA256(secret, "gpuvirt session" | digest of all of the handshake, the welcome's proof included)
 *     sealed          key = HKDF-Extract(salt = that digest, secret | what the key exchange made both share), and in the session key's place
 *                     HKDF-Expand(key, "gpuvirt session"); the link's secret is HKDF-Expand(key, "gpuvirt link")
 *
 * No label is followed by a NUL. Whoever alters a byte of the handshake on its way changes a digest, and the next proof does not fit. */
#ifndef GV_TRANSCRIPT_H
#define GV_TRANSCRIPT_H

#include "handshake.h"
#include "sha256.h"

struct gv_transcript {
    struct gv_sha256 hash;
};

/* Begins with the greeting's bytes. */
void gv_transcript_begin(struct gv_transcript *t, const uint8_t *greeting, size_t size);
/* Adds a message that carries no proof, or whose proof was checked. */
void gv_transcript_add(struct gv_transcript *t, const uint8_t *raw, size_t size);

/* Fills in the proof, the last GV_PROOF_SIZE bytes of an encoded message, and adds the message. `key` is the token's secret (SESSION, CHECK, ENDED)
 * or the session key (CHANNEL, RESUME). */
void gv_hello_prove(struct gv_transcript *t, uint8_t *raw, size_t size, const uint8_t key[GV_SECRET_SIZE]);
void gv_welcome_prove(struct gv_transcript *t, uint8_t *raw, size_t size, const uint8_t key[GV_SECRET_SIZE]);
/* Whether a received message's proof fits; adds the message. */
bool gv_hello_proved(struct gv_transcript *t, const uint8_t *raw, size_t size, const uint8_t key[GV_SECRET_SIZE]);
bool gv_welcome_proved(struct gv_transcript *t, const uint8_t *raw, size_t size, const uint8_t key[GV_SECRET_SIZE]);

/* The key of a session's further connections, once its welcome is part of the transcript. */
void gv_session_key(const struct gv_transcript *t, const uint8_t secret[GV_SECRET_SIZE], uint8_t key[GV_SECRET_SIZE]);
/* The same after a key exchange, and the secret that the link is sealed by: who learns the token's secret later learns neither. */
void gv_sealed_session_keys(const struct gv_transcript *t, const uint8_t secret[GV_SECRET_SIZE], const uint8_t shared[GV_SECRET_SIZE],
                            uint8_t key[GV_SECRET_SIZE], uint8_t link[GV_SECRET_SIZE]);

#endif
