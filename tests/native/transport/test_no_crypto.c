/* Sealing where there is no library for it: this program's CRYPTO_LIBRARIES are not there, or are others (MISSING is what is said of them). */
#include "../../../native/transport/seal/exchange.h"
#include "../../../native/transport/seal/seal.h"
#include "../check.h"
#include "mini_server.h"
#include "pair.h"

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

/* Never plain without a word: the client ends there, and the remedy works. */
static void client_without_a_library(void) {
    struct mini_server server;
    struct gv_open_error err;
    mini_start(&server, NO_FAULT);
    struct gv_link_options options = mini_options(&server, "tcp");
    CHECK(!gv_link_connect(&options, &err) && err.status == GV_OPEN_LOCAL && atomic_load(&server.sessions) == 0);
    CHECK_TEXT(err.text, "cannot be sealed: no library to seal the link with");
    CHECK_TEXT(err.text, "install OpenSSL 3");
    options.link = "tcp(plain)";
    struct pair p = {.client = gv_link_connect(&options, &err)};
    CHECK(p.client);
    p.worker = mini_worker(&server);
    mini_close(&server, &p);
    options.link = "shm";
    p.client = gv_link_connect(&options, &err);
    CHECK(p.client);
    p.worker = mini_worker(&server);
    mini_close(&server, &p);
    mini_stop(&server);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"no_library", no_library}, {"client_without_a_library", client_without_a_library}};
    return run_cases(cases, 2, argc, argv, 60);
}
