/* What the daemon wants of sealing: its end of the key exchange, and whether there is a library for it. */
#include <stdio.h>

#include "../transport/seal/exchange.h"
#include "worker.h"

#define EXPORT __attribute__((visibility("default")))
#define TEXT_SIZE 512

EXPORT int worker_exchange_answer(const uint8_t *heard, uint8_t *said, uint8_t *shared, char *why) {
    char reason[GV_DEATH_TEXT] = "";
    bool good = gv_exchange_answer(heard, said, shared, reason);
    snprintf(why, TEXT_SIZE, "%s", reason);
    return good ? 0 : -1;
}

EXPORT int worker_seal_library(char *text) {
    char reason[GV_DEATH_TEXT];
    const struct gv_crypto *crypto = gv_crypto_library(reason);
    if (crypto) {
        snprintf(text, TEXT_SIZE, "%s by %s", gv_cipher_name(gv_cipher_preferred()), crypto->version);
    } else {
        snprintf(text, TEXT_SIZE, "%s", reason);
    }
    return crypto ? 0 : -1;
}
