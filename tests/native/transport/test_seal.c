/* What seals a link: published vectors, what is altered is refused, both ends change keys alike. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

#include "../../../native/transport/seal/exchange.h"
#include "../../../native/transport/seal/seal.h"
#include "../../../native/wire/hkdf.h"
#include "../check.h"

static char why[GV_DEATH_TEXT];

static size_t unhex(const char *text, uint8_t *out) {
    size_t n = strlen(text) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        CHECK(sscanf(text + 2 * i, "%2x", &byte) == 1);
        out[i] = (uint8_t)byte;
    }
    return n;
}

static void check_hex(const uint8_t *got, const char *expected) {
    uint8_t bytes[256];
    size_t n = unhex(expected, bytes);
    CHECK(memcmp(got, bytes, n) == 0);
}

static const struct gv_crypto *library(void) {
    const struct gv_crypto *crypto = gv_crypto_library(why);
    if (!crypto) fprintf(stderr, "%s\n", why);
    CHECK(crypto);
    return crypto;
}

/* ---- vectors ------------------------------------------------------------------------------------------------------- */

/* The library's cipher by itself: seals, and opens again. */
static void aead(enum gv_cipher cipher, const char *key_hex, const char *nonce_hex, const char *aad_hex, const uint8_t *text, int size,
                 const char *sealed_hex, const char *tag_hex) {
    const struct gv_crypto *c = library();
    uint8_t key[32], nonce[12], aad[64], out[256], back[256], tag[16];
    CHECK(unhex(key_hex, key) == 32 && unhex(nonce_hex, nonce) == 12);
    int aad_size = (int)unhex(aad_hex, aad), n;
    void *x = c->context_new();
    CHECK(x && c->cipher_init(x, c->ciphers[cipher], NULL, NULL, NULL, 1) == 1 && c->context_control(x, 9, 12, NULL) == 1);
    CHECK(c->cipher_init(x, NULL, NULL, key, nonce, 1) == 1 && c->cipher_update(x, NULL, &n, aad, aad_size) == 1);
    CHECK(c->cipher_update(x, out, &n, text, size) == 1 && n == size && c->cipher_final(x, back, &n) == 1);
    CHECK(c->context_control(x, 0x10, 16, tag) == 1);
    check_hex(out, sealed_hex);
    check_hex(tag, tag_hex);
    CHECK(c->cipher_init(x, NULL, NULL, key, nonce, 0) == 1 && c->cipher_update(x, NULL, &n, aad, aad_size) == 1);
    CHECK(c->cipher_update(x, back, &n, out, size) == 1 && c->context_control(x, 0x11, 16, tag) == 1 && c->cipher_final(x, back + size, &n) == 1);
    CHECK(memcmp(back, text, (size_t)size) == 0);
    c->context_free(x);
}

/* Test case 16 of the GCM specification. */
static void gcm_vector(void) {
    uint8_t text[64];
    int size =
        (int)unhex("d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39", text);
    aead(GV_CIPHER_AES, "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888",
         "feedfacedeadbeeffeedfacedeadbeefabaddad2", text, size,
         "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
         "76fc6ece0f4e1768cddf8853bb2d551b");
}

/* RFC 8439, 2.8.2 */
static void chacha_vector(void) {
    static const char text[] = "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.";
    aead(
        GV_CIPHER_CHACHA, "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f", "070000004041424344454647", "50515253c0c1c2c3c4c5c6c7",
        (const uint8_t *)text, sizeof text - 1,
        "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d77"
        "8b8c9803aee328091b58fab324e4fad675945585808b4831d7bc3ff4def08e4b7a9de576d26586cec64b6116",
        "1ae10b594f09e26a7e902ecbd0600691");
}

/* RFC 7748, 6.1 */
static void x25519_vector(void) {
    const struct gv_crypto *c = library();
    uint8_t a[32], b[32], a_public[32], b_public[32], shared[32];
    unhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a", a);
    unhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb", b);
    CHECK(gv_x25519_public(c, a, a_public) && gv_x25519_public(c, b, b_public));
    check_hex(a_public, "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
    check_hex(b_public, "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
    CHECK(gv_x25519_shared(c, a, b_public, shared));
    check_hex(shared, "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
    CHECK(gv_x25519_shared(c, b, a_public, shared));
    check_hex(shared, "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
}

static int (*real_derive)(void *context, uint8_t *out, size_t *size);

static int derive_and_fail(void *context, uint8_t *out, size_t *size) {
    CHECK(real_derive(context, out, size) == 1);
    return 0;
}

/* An exchange that fails when the secret has been computed leaves nothing of it. */
static void a_failed_exchange_leaves_nothing(void) {
    static const uint8_t zeros[32];
    struct gv_crypto failing = *library();
    uint8_t a[32] = {1}, b[32] = {2}, b_public[32], shared[32];
    CHECK(gv_x25519_public(library(), b, b_public) && gv_x25519_shared(library(), a, b_public, shared) && memcmp(shared, zeros, 32) != 0);
    real_derive = failing.derive;
    failing.derive = derive_and_fail;
    CHECK(!gv_x25519_shared(&failing, a, b_public, shared) && memcmp(shared, zeros, 32) == 0);
}

static void hkdf(const uint8_t *salt, size_t salt_size, const uint8_t *material, size_t size, const uint8_t *info, size_t info_size,
                 const char *key_hex, const char *out_hex) {
    uint8_t key[32], out[128];
    gv_hkdf_extract(salt, salt_size, material, size, key);
    check_hex(key, key_hex);
    gv_hkdf_expand(key, info, info_size, out, strlen(out_hex) / 2);
    check_hex(out, out_hex);
}

/* RFC 5869, A.1 to A.3 */
static void hkdf_vectors(void) {
    uint8_t counting[256], same[22];
    for (int i = 0; i < 256; i++) counting[i] = (uint8_t)i;
    memset(same, 0x0b, sizeof same);
    hkdf(counting, 13, same, 22, counting + 0xf0, 10, "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5",
         "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
    hkdf(counting + 0x60, 80, counting, 80, counting + 0xb0, 80, "06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244",
         "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
         "cc30c58179ec3e87c14c01d5c1f3434f1d87");
    hkdf(same, 0, same, 22, same, 0, "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04",
         "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8");
}

/* ---- frames -------------------------------------------------------------------------------------------------------- */

static const struct gv_link_secret *secret_of(unsigned cipher) {
    static struct gv_link_secret secret;
    for (unsigned i = 0; i < sizeof secret.key; i++) secret.key[i] = (uint8_t)(7 * i + cipher);
    secret.cipher = (uint8_t)cipher;
    return &secret;
}

static struct gv_seal *seal_of(unsigned cipher, bool client, bool sending, enum gv_seal_use use, uint32_t channel, uint32_t epoch) {
    struct gv_seal *s = gv_seal_new(secret_of(cipher), client, sending, use, channel, epoch, why);
    if (!s) fprintf(stderr, "%s\n", why);
    CHECK(s);
    return s;
}

/* The format that seal.h describes, made from its parts. */
static void frame_format(void) {
    static const char label[] = "gpuvirt traffic";
    for (unsigned cipher = 1; cipher <= 2; cipher++) {
        uint8_t key[44], text[5] = "frame", out[5], tag[16], end[16], expected[21];
        uint8_t whole[15 + 15] = {0};
        memcpy(whole, label, 15);
        const uint8_t rest[15] = {2, GV_SEAL_BULK, (uint8_t)cipher, 9, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0};
        memcpy(whole + 15, rest, 15);
        gv_hkdf_expand(secret_of(cipher)->key, whole, sizeof whole, key, sizeof key);
        uint64_t counter = 2ull * GV_SEAL_GENERATION + 0x1234;
        for (int i = 0; i < 8; i++) key[43 - i] ^= (uint8_t)(counter >> 8 * i);
        const struct gv_crypto *c = library();
        void *x = c->context_new();
        int n;
        CHECK(c->cipher_init(x, c->ciphers[cipher], NULL, key, key + 32, 1) == 1 && c->cipher_update(x, NULL, &n, (const uint8_t *)"aad", 3) == 1);
        CHECK(c->cipher_update(x, expected, &n, text, 5) == 1 && c->cipher_final(x, end, &n) == 1 &&
              c->context_control(x, 0x10, 16, expected + 5) == 1);
        c->context_free(x);
        struct gv_seal *s = seal_of(cipher, false, true, GV_SEAL_BULK, 9, 5);
        struct iovec pieces[2] = {{text, 2}, {text + 2, 3}};
        CHECK(gv_seal_seal(s, counter, "aad", 3, pieces, 2, out, tag));
        CHECK(memcmp(out, expected, 5) == 0 && memcmp(tag, expected + 5, 16) == 0);
        gv_seal_free(s);
    }
}

/* Every size up to some blocks, in pieces, in place and elsewhere; both directions. */
static void round_trips(void) {
    static uint8_t text[70000], sealed[70000], back[70000];
    uint8_t tag[16], aad[16] = "beside the frame";
    for (size_t i = 0; i < sizeof text; i++) text[i] = (uint8_t)(i * 131 + i / 256);
    for (unsigned cipher = 1; cipher <= 2; cipher++) {
        for (int client = 0; client < 2; client++) {
            struct gv_seal *out = seal_of(cipher, client, true, GV_SEAL_RECORDS, 0, 0), *in = seal_of(cipher, !client, false, GV_SEAL_RECORDS, 0, 0);
            uint64_t counter = 1ull << 40;
            for (size_t size = 0; size <= sizeof text; size = size < 200 ? size + 1 : size * 3 + 7) {
                size_t first = size / 3, second = size / 2;
                struct iovec pieces[4] = {{text, first}, {text + first, 0}, {text + first, second - first}, {text + second, size - second}};
                CHECK(gv_seal_seal(out, counter, aad, sizeof aad, pieces, 4, sealed, tag));
                CHECK(size < 16 || memcmp(sealed, text, size) != 0);
                CHECK(gv_seal_open(in, counter, aad, sizeof aad, sealed, size, back, tag) && memcmp(back, text, size) == 0);
                CHECK(gv_seal_open(in, counter, aad, sizeof aad, sealed, size, sealed, tag) && memcmp(sealed, text, size) == 0);
                CHECK(gv_seal_seal(out, counter, aad, 0, &(struct iovec){sealed, size}, 1, sealed, tag)); /* in place */
                CHECK(gv_seal_open(in, counter++, aad, 0, sealed, size, back, tag) && memcmp(back, text, size) == 0);
            }
            CHECK(!gv_seal_seal(in, counter, aad, 1, NULL, 0, sealed, tag) && !gv_seal_open(out, counter, aad, 1, sealed, 0, back, tag));
            gv_seal_free(out);
            gv_seal_free(in);
        }
    }
}

/* Each bit of the frame, of what is beside it and of the tag; and a frame that is shorter, or longer. */
static void altered(void) {
    uint8_t all[16 + 77 + 16], text[80] = "what the server is told to do", back[80];
    for (unsigned cipher = 1; cipher <= 2; cipher++) {
        struct gv_seal *out = seal_of(cipher, true, true, GV_SEAL_NOTES, 0, 3), *in = seal_of(cipher, false, false, GV_SEAL_NOTES, 0, 3);
        for (int i = 0; i < 16; i++) all[i] = (uint8_t)i;
        CHECK(gv_seal_seal(out, 5, all, 16, &(struct iovec){text, 77}, 1, all + 16, all + 93));
        CHECK(gv_seal_open(in, 5, all, 16, all + 16, 77, back, all + 93) && memcmp(back, text, 77) == 0);
        for (size_t bit = 0; bit < sizeof all * 8; bit++) {
            all[bit / 8] ^= (uint8_t)(1 << bit % 8);
            memset(back, 1, sizeof back);
            CHECK(!gv_seal_open(in, 5, all, 16, all + 16, 77, back, all + 93));
            for (int i = 0; i < 77; i++) CHECK(back[i] == 0);
            all[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        CHECK(!gv_seal_open(in, 5, all, 15, all + 16, 77, back, all + 93) && !gv_seal_open(in, 5, all, 16, all + 16, 76, back, all + 93));
        CHECK(gv_seal_open(in, 5, all, 16, all + 16, 77, back, all + 93)); /* it still can */
        gv_seal_free(out);
        gv_seal_free(in);
    }
}

/* A frame is opened only as what it was sealed as. */
static void other_place(void) {
    static const struct {
        bool client;
        enum gv_seal_use use;
        uint32_t channel, epoch;
        uint64_t counter;
        unsigned cipher, key;
        bool opens;
    } tries[] = {
        {false, GV_SEAL_BULK, 1, 2, 7, 0, 0, true},
        {true, GV_SEAL_BULK, 1, 2, 7, 0, 0, false}, /* the other direction: what was sent comes back */
        {false, GV_SEAL_NOTES, 1, 2, 7, 0, 0, false},
        {false, GV_SEAL_RECORDS, 1, 2, 7, 0, 0, false},
        {false, GV_SEAL_BULK, 0, 2, 7, 0, 0, false},
        {false, GV_SEAL_BULK, 1, 1, 7, 0, 0, false},
        {false, GV_SEAL_BULK, 1, 2, 8, 0, 0, false},
        {false, GV_SEAL_BULK, 1, 2, 7ull + (1ull << 32), 0, 0, false},
        {false, GV_SEAL_BULK, 1, 2, 7 + GV_SEAL_GENERATION, 0, 0, false},
        {false, GV_SEAL_BULK, 1, 2, 7, 1, 0, false}, /* the other cipher */
        {false, GV_SEAL_BULK, 1, 2, 7, 0, 1, false}, /* another link */
    };
    uint8_t text[40] = "forty bytes", sealed[40], back[40], tag[16];
    for (unsigned cipher = 1; cipher <= 2; cipher++) {
        struct gv_seal *out = seal_of(cipher, true, true, GV_SEAL_BULK, 1, 2);
        CHECK(gv_seal_seal(out, 7, "a", 1, &(struct iovec){text, 40}, 1, sealed, tag));
        for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
            struct gv_link_secret secret = *secret_of(cipher);
            if (tries[i].cipher) secret.cipher = (uint8_t)(3 - cipher);
            secret.key[31] ^= (uint8_t)tries[i].key;
            struct gv_seal *in = gv_seal_new(&secret, tries[i].client, false, tries[i].use, tries[i].channel, tries[i].epoch, why);
            CHECK(in && gv_seal_open(in, tries[i].counter, "a", 1, sealed, 40, back, tag) == tries[i].opens);
            gv_seal_free(in);
        }
        gv_seal_free(out);
    }
}

/* Over the end of a generation and back, as when frames go out again; a key that does not move on says so in the bytes. */
static void generations(void) {
    uint8_t text[16] = "sixteen bytes ..", sealed[6][16], tag[6][16], back[16];
    const uint64_t at[6] = {0, GV_SEAL_GENERATION - 1, GV_SEAL_GENERATION, GV_SEAL_GENERATION + 1, 5ull * GV_SEAL_GENERATION, 1};
    for (unsigned cipher = 1; cipher <= 2; cipher++) {
        struct gv_seal *out = seal_of(cipher, true, true, GV_SEAL_BULK, 0, 1), *in = seal_of(cipher, false, false, GV_SEAL_BULK, 0, 1);
        for (int i = 0; i < 6; i++) {
            CHECK(gv_seal_seal(out, at[i], NULL, 0, &(struct iovec){text, 16}, 1, sealed[i], tag[i]));
            CHECK(gv_seal_open(in, at[i], NULL, 0, sealed[i], 16, back, tag[i]) && memcmp(back, text, 16) == 0);
        }
        for (int i = 5; i >= 0; i--) CHECK(gv_seal_open(in, at[i], NULL, 0, sealed[i], 16, back, tag[i]) && memcmp(back, text, 16) == 0);
        gv_seal_free(out);
        gv_seal_free(in);
        /* The others keep theirs: a record's counter goes on for ever. */
        out = seal_of(cipher, true, true, GV_SEAL_RECORDS, 0, 0);
        in = seal_of(cipher, false, false, GV_SEAL_RECORDS, 0, 0);
        CHECK(gv_seal_seal(out, UINT64_MAX, NULL, 0, &(struct iovec){text, 16}, 1, sealed[0], tag[0]));
        CHECK(gv_seal_open(in, UINT64_MAX, NULL, 0, sealed[0], 16, back, tag[0]) && memcmp(back, text, 16) == 0);
        gv_seal_free(out);
        gv_seal_free(in);
    }
    struct gv_link_secret secret = {.cipher = 3};
    CHECK(!gv_seal_new(&secret, true, true, GV_SEAL_BULK, 0, 0, why));
    CHECK_TEXT(why, "no cipher has the number 3");
}

/* What is prepared for one frame is used for that one, once; whatever is prepared, a frame is the same as without. */
static void prepared(void) {
    enum { SIZE = 40 };
    uint8_t text[SIZE] = "forty bytes", aad[32] = "beside the frame", right[SIZE], got[SIZE], tag[2][16], back[SIZE];
    for (unsigned cipher = 1; cipher <= 2; cipher++) {
        struct gv_seal *plain = seal_of(cipher, true, true, GV_SEAL_BULK, 0, 0), *out = seal_of(cipher, true, true, GV_SEAL_BULK, 0, 0);
        struct gv_seal *in = seal_of(cipher, false, false, GV_SEAL_BULK, 0, 0);
        struct iovec piece = {text, SIZE};
        for (uint64_t i = 0; i < 4 * 5 * 3; i++) {
            uint64_t counter = GV_SEAL_GENERATION - 20 + i; /* also over the end of a generation */
            size_t aad_size = (size_t[]){0, 7, 16, 32, 16}[i % 5];
            const void *beside = aad_size ? aad : NULL;
            struct gv_seal *ends[2] = {out, in};
            for (int end = 0; end < 2; end++) {
                if (i % 2) gv_seal_prepare(ends[end], counter, beside, aad_size);
                CHECK(gv_seal_is_prepared(ends[end], counter, beside, aad_size) == (i % 2 && aad_size <= GV_SEAL_AAD_MOST));
                if (i % 4 == 2) gv_seal_prepare(ends[end], counter + 1, beside, aad_size); /* for another frame, or for another one after all */
                if (i % 4 == 3) gv_seal_prepare(ends[end], counter, "another", 7);
            }
            text[0] = (uint8_t)i;
            CHECK(gv_seal_seal(plain, counter, beside, aad_size, &piece, 1, right, tag[0]));
            for (int again = 0; again < 2; again++) {
                CHECK(gv_seal_seal(out, counter, beside, aad_size, &piece, 1, got, tag[1]));
                CHECK(memcmp(got, right, SIZE) == 0 && memcmp(tag[0], tag[1], 16) == 0);
                CHECK(!gv_seal_is_prepared(out, counter, beside, aad_size));
            }
            got[i % SIZE] ^= 1;
            if (i % 3) CHECK(!gv_seal_open(in, counter, beside, aad_size, got, SIZE, back, tag[1]));
            CHECK(gv_seal_open(in, counter, beside, aad_size, right, SIZE, back, tag[0]) && memcmp(back, text, SIZE) == 0);
            CHECK(gv_seal_open(in, counter, beside, aad_size, right, SIZE, back, tag[0]) && memcmp(back, text, SIZE) == 0);
        }
        gv_seal_prepare(out, 5, NULL, 0); /* and is wiped with it */
        gv_seal_free(plain);
        gv_seal_free(out);
        gv_seal_free(in);
    }
}

/* ---- the exchange -------------------------------------------------------------------------------------------------- */

static void exchanges(void) {
    uint8_t secret[32], offer[33], again[33], answer[33], shared[2][32], zeros[32] = {0};
    for (unsigned cipher = 1; cipher <= 2; cipher++) {
        CHECK(gv_exchange_offer(secret, offer, why) && offer[0] == gv_cipher_preferred());
        offer[0] = (uint8_t)cipher; /* of a client with another processor */
        CHECK(gv_exchange_answer(offer, answer, shared[0], why));
        CHECK(answer[0] == (cipher == GV_CIPHER_AES ? gv_cipher_preferred() : GV_CIPHER_CHACHA));
        CHECK(gv_exchange_finish(secret, offer, answer, shared[1], why));
        CHECK(memcmp(shared[0], shared[1], 32) == 0 && memcmp(secret, zeros, 32) == 0);
    }
    CHECK(gv_exchange_offer(secret, again, why) && memcmp(offer + 1, again + 1, 32) != 0); /* ephemeral */
    /* Nonsense of either side. */
    offer[0] = GV_CIPHER_CHACHA;
    answer[0] = GV_CIPHER_AES;
    CHECK(!gv_exchange_finish(secret, offer, answer, shared[0], why) && memcmp(secret, zeros, 32) == 0);
    CHECK_TEXT(why, "a cipher that it was not offered");
    CHECK(gv_exchange_offer(secret, offer, why));
    memset(answer + 1, 0, 32); /* a point of small order: everybody knows what comes of it */
    answer[0] = GV_CIPHER_CHACHA;
    CHECK(!gv_exchange_finish(secret, offer, answer, shared[0], why));
    CHECK_TEXT(why, "its key is none");
    memset(offer + 1, 0, 32);
    CHECK(!gv_exchange_answer(offer, answer, shared[0], why));
    CHECK_TEXT(why, "the client's key is none");
    offer[0] = 0;
    CHECK(!gv_exchange_answer(offer, answer, shared[0], why));
    CHECK_TEXT(why, "a cipher that this server does not know");
}

/* ---- threads, processes -------------------------------------------------------------------------------------------- */

static void *seals(void *arg) {
    uint8_t text[64] = "a thread's", sealed[64], tag[16], reason[GV_DEATH_TEXT];
    for (unsigned i = 0; i < 200; i++) {
        struct gv_link_secret secret = {.cipher = (uint8_t)(1 + i % 2)};
        struct gv_seal *out = gv_seal_new(&secret, true, true, GV_SEAL_NOTES, 0, i, (char *)reason);
        struct gv_seal *in = gv_seal_new(&secret, false, false, GV_SEAL_NOTES, 0, i, (char *)reason);
        CHECK(out && in && gv_seal_seal(out, i, NULL, 0, &(struct iovec){text, 64}, 1, sealed, tag));
        CHECK(gv_seal_open(in, i, NULL, 0, sealed, 64, sealed, tag) && memcmp(sealed, text, 64) == 0);
        gv_seal_free(out);
        gv_seal_free(in);
    }
    return arg;
}

/* Threads that begin at once: the first of them loads the library. */
static void threads(void) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, seals, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

/* A child loads it by itself, and one of a parent that had it has it too. */
static void children(void) {
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid) {
            alarm(30);
            seals(NULL);
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
        seals(NULL);
    }
}

/* Not a test: what sealing costs (seal_costs as the only argument). */
static void seal_costs(void) {
    static uint8_t text[262144], sealed[262144], tag[16], aad[16];
    for (unsigned cipher = 1; cipher <= 2; cipher++) {
        for (size_t size = 64; size <= sizeof text; size *= size < 4096 ? 64 : 4) {
            struct gv_seal *out = seal_of(cipher, true, true, GV_SEAL_BULK, 0, 0), *in = seal_of(cipher, false, false, GV_SEAL_BULK, 0, 0);
            struct timespec t[3];
            unsigned n = size == 64 ? 200000 : (unsigned)((256u << 20) / size);
            clock_gettime(CLOCK_MONOTONIC, &t[0]);
            for (unsigned i = 0; i < n; i++) CHECK(gv_seal_seal(out, i, aad, 16, &(struct iovec){text, size}, 1, sealed, tag));
            clock_gettime(CLOCK_MONOTONIC, &t[1]);
            for (unsigned i = 0; i < n; i++) (void)gv_seal_open(in, n - 1, aad, 16, sealed, size, text, tag);
            clock_gettime(CLOCK_MONOTONIC, &t[2]);
            double ns[2];
            for (int i = 0; i < 2; i++) ns[i] = ((double)(t[i + 1].tv_sec - t[i].tv_sec) * 1e9 + (double)(t[i + 1].tv_nsec - t[i].tv_nsec)) / n;
            printf("%s, %zu bytes: seal %.0f ns (%.2f GB/s), open %.0f ns (%.2f GB/s)\n", gv_cipher_name(cipher), size, ns[0], (double)size / ns[0],
                   ns[1], (double)size / ns[1]);
            gv_seal_free(out);
            gv_seal_free(in);
        }
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"threads", threads},
        {"children", children},
        {"gcm_vector", gcm_vector},
        {"chacha_vector", chacha_vector},
        {"x25519_vector", x25519_vector},
        {"a_failed_exchange_leaves_nothing", a_failed_exchange_leaves_nothing},
        {"hkdf_vectors", hkdf_vectors},
        {"frame_format", frame_format},
        {"round_trips", round_trips},
        {"altered", altered},
        {"other_place", other_place},
        {"generations", generations},
        {"prepared", prepared},
        {"exchanges", exchanges},
    };
    if (argc == 2 && strcmp(argv[1], "seal_costs") == 0) return seal_costs(), 0;
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 60);
}
