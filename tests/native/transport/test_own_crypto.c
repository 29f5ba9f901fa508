/* A program that exports functions of libcrypto's names (as one with a BoringSSL inside does): sealing never comes upon them. */
#define _GNU_SOURCE
#include "../../../native/transport/seal/exchange.h"
#include "../../../native/transport/seal/seal.h"
#include "../check.h"

static int called;

/* With -rdynamic these are in front of every library's. */
#define OWN(name)                                                \
    void *name(void);                                            \
    void *name(void) {                                           \
        called++;                                                \
        fprintf(stderr, "the program's %s was called\n", #name); \
        _exit(1);                                                \
    }
OWN(EVP_CIPHER_CTX_new)
OWN(EVP_CIPHER_CTX_ctrl)
OWN(EVP_CipherInit_ex)
OWN(EVP_CipherUpdate)
OWN(EVP_CipherFinal_ex)
OWN(EVP_EncryptInit_ex)
OWN(EVP_DecryptInit_ex)
OWN(EVP_EncryptUpdate)
OWN(EVP_DecryptUpdate)
OWN(EVP_EncryptFinal_ex)
OWN(EVP_DecryptFinal_ex)
OWN(EVP_PKEY_new)
OWN(EVP_PKEY_derive)
OWN(CRYPTO_malloc)
OWN(CRYPTO_zalloc)
OWN(ERR_set_mark)
OWN(OPENSSL_init_crypto)

static void sealing(void) {
    char why[GV_DEATH_TEXT];
    uint8_t secret[32], offer[33], answer[33], shared[2][32], text[64] = "text", sealed[64], tag[16];
    CHECK(gv_exchange_offer(secret, offer, why) && gv_exchange_answer(offer, answer, shared[0], why));
    CHECK(gv_exchange_finish(secret, offer, answer, shared[1], why) && memcmp(shared[0], shared[1], 32) == 0);
    for (unsigned cipher = 1; cipher <= 2; cipher++) {
        struct gv_link_secret s = {.cipher = (uint8_t)cipher};
        struct gv_seal *out = gv_seal_new(&s, true, true, GV_SEAL_BULK, 0, 0, why), *in = gv_seal_new(&s, false, false, GV_SEAL_BULK, 0, 0, why);
        CHECK(out && in && gv_seal_seal(out, 1, "a", 1, &(struct iovec){text, 64}, 1, sealed, tag));
        CHECK(gv_seal_open(in, 1, "a", 1, sealed, 64, sealed, tag) && memcmp(sealed, text, 64) == 0);
        gv_seal_free(out);
        gv_seal_free(in);
    }
    CHECK(called == 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"sealing", sealing}};
    return run_cases(cases, 1, argc, argv, 60);
}
