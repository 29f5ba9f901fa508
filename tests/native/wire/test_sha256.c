/* The published vectors of SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 4231). */
#include "../../../native/wire/sha256.h"

#include "../check.h"

static void check_hex(const uint8_t *got, const char *expected) {
    char text[65];
    for (int i = 0; i < 32; i++) snprintf(text + 2 * i, 3, "%02x", got[i]);
    if (strcmp(text, expected) != 0) fprintf(stderr, "got %s\nnot %s\n", text, expected);
    CHECK(strcmp(text, expected) == 0);
}

static void hash(const char *text, const char *expected) {
    uint8_t digest[32];
    gv_sha256(text, strlen(text), digest);
    check_hex(digest, expected);
}

static void digests(void) {
    hash("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    hash("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    hash("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
}

/* A million times "a", in pieces of every size up to 130. */
static void in_pieces(void) {
    struct gv_sha256 h;
    uint8_t digest[32], piece[130];
    memset(piece, 'a', sizeof piece);
    gv_sha256_init(&h);
    for (size_t left = 1000000, n = 0; left;) {
        n = n % sizeof piece + 1;
        size_t now = n < left ? n : left;
        gv_sha256_add(&h, piece, now);
        left -= now;
    }
    gv_sha256_end(&h, digest);
    check_hex(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void hmac(const char *key, size_t key_size, const char *text, size_t text_size, const char *expected) {
    struct gv_hmac h;
    uint8_t mac[32];
    gv_hmac_init(&h, key, key_size);
    gv_hmac_add(&h, text, text_size / 2);
    gv_hmac_add(&h, text + text_size / 2, text_size - text_size / 2);
    gv_hmac_end(&h, mac);
    check_hex(mac, expected);
}

static void macs(void) {
    char bytes[131], text[50];
    memset(bytes, 0x0b, 20);
    hmac(bytes, 20, "Hi There", 8, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    hmac("Jefe", 4, "what do ya want for nothing?", 28, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(bytes, 0xaa, 131);
    memset(text, 0xdd, 50);
    hmac(bytes, 20, text, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    hmac(bytes, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void equal(void) {
    CHECK(gv_equal_secret("abcd", "abcd", 4) && !gv_equal_secret("abcd", "abce", 4) && !gv_equal_secret("abcd", "bbcd", 4) &&
          gv_equal_secret("a", "b", 0));
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"digests", digests}, {"in_pieces", in_pieces}, {"macs", macs}, {"equal", equal}};
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
