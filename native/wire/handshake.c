#include "proof.h"

#include <stddef.h>
#include <string.h>

#include "record.h"
#include "sha256.h"

static void add_label(struct gv_hmac *mac, const char *label) { gv_hmac_add(mac, label, strlen(label)); }

enum gv_greeting_verdict gv_greeting_check(struct gv_greeting *greeting) {
    if (memcmp(greeting->magic, GV_MAGIC, sizeof greeting->magic) != 0) return GV_GREETING_FOREIGN;
    greeting->boot_id[sizeof greeting->boot_id - 1] = 0;
    greeting->unix_path[sizeof greeting->unix_path - 1] = 0;
    greeting->server_name[sizeof greeting->server_name - 1] = 0;
    bool common = greeting->version_min <= GV_WIRE_VERSION && GV_WIRE_VERSION <= greeting->version_max;
    return common ? GV_GREETING_GOOD : GV_GREETING_OTHER_VERSION;
}

static void hello_proof(uint8_t proof[GV_PROOF_SIZE], const struct gv_hello *hello, const uint8_t *key, const uint8_t *server_nonce) {
    struct gv_hmac mac;
    gv_hmac_init(&mac, key, GV_SECRET_SIZE);
    add_label(&mac, "gpuvirt client");
    gv_hmac_add(&mac, server_nonce, GV_NONCE_SIZE);
    gv_hmac_add(&mac, hello, offsetof(struct gv_hello, proof));
    gv_hmac_end(&mac, proof);
}

void gv_hello_prove(struct gv_hello *hello, const uint8_t key[GV_SECRET_SIZE], const uint8_t server_nonce[GV_NONCE_SIZE]) {
    memcpy(hello->magic, GV_MAGIC, sizeof hello->magic);
    hello->version = GV_WIRE_VERSION;
    hello_proof(hello->proof, hello, key, server_nonce);
}

bool gv_hello_proved(const struct gv_hello *hello, const uint8_t key[GV_SECRET_SIZE], const uint8_t server_nonce[GV_NONCE_SIZE]) {
    uint8_t proof[GV_PROOF_SIZE];
    hello_proof(proof, hello, key, server_nonce);
    return gv_equal_secret(proof, hello->proof, sizeof proof);
}

static void welcome_proof(uint8_t proof[GV_PROOF_SIZE], const struct gv_welcome *welcome, const uint8_t *key, const uint8_t *client_nonce,
                          const uint8_t *server_nonce) {
    struct gv_hmac mac;
    gv_hmac_init(&mac, key, GV_SECRET_SIZE);
    add_label(&mac, "gpuvirt server");
    gv_hmac_add(&mac, client_nonce, GV_NONCE_SIZE);
    gv_hmac_add(&mac, server_nonce, GV_NONCE_SIZE);
    gv_hmac_add(&mac, welcome, offsetof(struct gv_welcome, proof));
    gv_hmac_end(&mac, proof);
}

void gv_welcome_prove(struct gv_welcome *welcome, const uint8_t key[GV_SECRET_SIZE], const uint8_t client_nonce[GV_NONCE_SIZE],
                      const uint8_t server_nonce[GV_NONCE_SIZE]) {
    memcpy(welcome->magic, GV_MAGIC, sizeof welcome->magic);
    welcome->version = GV_WIRE_VERSION;
    welcome_proof(welcome->proof, welcome, key, client_nonce, server_nonce);
}

bool gv_welcome_proved(const struct gv_welcome *welcome, const uint8_t key[GV_SECRET_SIZE], const uint8_t client_nonce[GV_NONCE_SIZE],
                       const uint8_t server_nonce[GV_NONCE_SIZE]) {
    uint8_t proof[GV_PROOF_SIZE];
    welcome_proof(proof, welcome, key, client_nonce, server_nonce);
    return gv_equal_secret(proof, welcome->proof, sizeof proof);
}

void gv_session_key(uint8_t key[GV_SECRET_SIZE], const uint8_t secret[GV_SECRET_SIZE], const uint8_t server_nonce[GV_NONCE_SIZE],
                    const uint8_t client_nonce[GV_NONCE_SIZE], uint64_t session) {
    struct gv_hmac mac;
    gv_hmac_init(&mac, secret, GV_SECRET_SIZE);
    add_label(&mac, "gpuvirt session");
    gv_hmac_add(&mac, server_nonce, GV_NONCE_SIZE);
    gv_hmac_add(&mac, client_nonce, GV_NONCE_SIZE);
    gv_hmac_add(&mac, &session, sizeof session);
    gv_hmac_end(&mac, key);
}
