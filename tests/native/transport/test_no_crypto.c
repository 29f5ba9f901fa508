/* Sealing where there is no library for it: this program's CRYPTO_LIBRARIES are not there, or are others (MISSING is what is said of them). */
#include "../../../native/transport/seal/exchange.h"
#include "../../../native/transport/seal/seal.h"
#include "../check.h"

static void no_library(void) {
    char why[GV_DEATH_TEXT];
    uint8_t secret[32], offer[33], answer[33], shared[32];
    const struct gv_link_secret link = {.cipher = GV_CIPHER_AES};
    for (int i = 0; i < 2; i++) {
        CHECK(!gv_crypto_library(why));
        CHECK_TEXT(why, "install OpenSSL 3 (libssl3), or agree on tcp(plain)");
        CHECK_TEXT(why, MISSING);
        *why = 0;
        CHECK(!gv_seal_new(&link, true, true, GV_SEAL_BULK, 0, 0, why));
        CHECK_TEXT(why, "install OpenSSL 3");
        CHECK(!gv_exchange_offer(secret, offer, why) && !gv_exchange_answer(offer, answer, shared, why));
        CHECK(!gv_exchange_finish(secret, offer, answer, shared, why));
        CHECK_TEXT(why, "install OpenSSL 3");
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"no_library", no_library}};
    return run_cases(cases, 1, argc, argv, 60);
}
