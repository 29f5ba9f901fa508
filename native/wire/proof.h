/* Who proves what in the handshake (handshake.h): the computations, free of sockets. */
#ifndef GV_PROOF_H
#define GV_PROOF_H

#include <stdbool.h>

#include "handshake.h"

enum gv_greeting_verdict {
    GV_GREETING_GOOD,
    GV_GREETING_FOREIGN,      /* not a gpuvirt server */
    GV_GREETING_OTHER_VERSION /* one, but without our wire version */
};

/* Judges a greeting as it came, and ends its texts with a NUL whatever the peer put there. */
enum gv_greeting_verdict gv_greeting_check(struct gv_greeting *greeting);

/* Fills in magic, version and the proof. `key` is the token's secret (SESSION, CHECK) or the session key (CHANNEL); everything else must be there
 * already. */
void gv_hello_prove(struct gv_hello *hello, const uint8_t key[GV_SECRET_SIZE], const uint8_t server_nonce[GV_NONCE_SIZE]);
bool gv_hello_proved(const struct gv_hello *hello, const uint8_t key[GV_SECRET_SIZE], const uint8_t server_nonce[GV_NONCE_SIZE]);

/* The same for the server's answer. */
void gv_welcome_prove(struct gv_welcome *welcome, const uint8_t key[GV_SECRET_SIZE], const uint8_t client_nonce[GV_NONCE_SIZE],
                      const uint8_t server_nonce[GV_NONCE_SIZE]);
bool gv_welcome_proved(const struct gv_welcome *welcome, const uint8_t key[GV_SECRET_SIZE], const uint8_t client_nonce[GV_NONCE_SIZE],
                       const uint8_t server_nonce[GV_NONCE_SIZE]);

/* The key of a session's further connections. */
void gv_session_key(uint8_t key[GV_SECRET_SIZE], const uint8_t secret[GV_SECRET_SIZE], const uint8_t server_nonce[GV_NONCE_SIZE],
                    const uint8_t client_nonce[GV_NONCE_SIZE], uint64_t session);

#endif
