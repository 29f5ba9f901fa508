#define _GNU_SOURCE
#include "sha256.h"

#include <string.h>
#if defined(__x86_64__) && !defined(SHA256_PLAIN) /* a test tries both */
#define QUICK 1
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

static uint32_t big_endian(const uint8_t *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }

static void put_big_endian(uint8_t *p, uint32_t x) {
    p[0] = (uint8_t)(x >> 24);
    p[1] = (uint8_t)(x >> 16);
    p[2] = (uint8_t)(x >> 8);
    p[3] = (uint8_t)x;
}

static void compress_plain(uint32_t state[8], const uint8_t block[64]) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) w[i] = big_endian(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        /* The eight words move on by one each round: it is the numbers that move, not the words. */
        uint32_t a = s[-i & 7], b = s[(1 - i) & 7], c = s[(2 - i) & 7], e = s[(4 - i) & 7], f = s[(5 - i) & 7], g = s[(6 - i) & 7];
        uint32_t sum1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25), choice = (e & f) ^ (~e & g);
        uint32_t t1 = s[(7 - i) & 7] + sum1 + choice + K[i] + w[i];
        uint32_t sum0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22), majority = (a & b) ^ (a & c) ^ (b & c);
        s[(3 - i) & 7] += t1;
        s[(7 - i) & 7] = t1 + sum0 + majority;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

#ifdef QUICK
/* The same on processors with the SHA extensions, several times as fast. Their instructions keep the state as two vectors, ABEF and CDGH, and do four
 * rounds with four words of the message at a time; w[] holds the last sixteen of those words. */
__attribute__((target("sha,sse4.1,ssse3"))) static void compress_quick(uint32_t state[8], const uint8_t *data, size_t blocks) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
    __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
    for (; blocks; blocks--, data += 64) {
        __m128i w[4], abef_before = abef, cdgh_before = cdgh;
        for (int i = 0; i < 4; i++) w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), swap);
        for (int i = 0; i < 16; i++) {
            __m128i now = w[i % 4];
            if (i >= 4) {
                now = _mm_sha256msg1_epu32(now, w[(i + 1) % 4]);
                now = _mm_add_epi32(now, _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4));
                now = w[i % 4] = _mm_sha256msg2_epu32(now, w[(i + 3) % 4]);
            }
            __m128i sum = _mm_add_epi32(now, _mm_loadu_si128((const __m128i *)(K + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    low = _mm_shuffle_epi32(abef, 0x1b);
    high = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(low, high, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(high, low, 8));
}

static bool is_quick(void) {
    static _Atomic int known; /* 1: no, 2: yes */
    if (!known) {
        unsigned a, b, c, d;
        bool sse = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_1) && (c & bit_SSSE3);
        known = sse && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29) ? 2 : 1;
    }
    return known == 2;
}
#endif

static void compress(uint32_t state[8], const uint8_t *data, size_t blocks) {
#ifdef QUICK
    if (is_quick()) {
        compress_quick(state, data, blocks);
        return;
    }
#endif
    for (; blocks; blocks--, data += 64) compress_plain(state, data);
}

void gv_sha256_init(struct gv_sha256 *h) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(h->state, start, sizeof start);
    h->length = 0;
}

void gv_sha256_add(struct gv_sha256 *h, const void *data, size_t size) {
    const uint8_t *p = data;
    size_t used = h->length % 64;
    h->length += size;
    if (used) {
        size_t part = size < 64 - used ? size : 64 - used;
        memcpy(h->block + used, p, part);
        p += part;
        size -= part;
        if (used + part < 64) return;
        compress(h->state, h->block, 1);
    }
    compress(h->state, p, size / 64);
    p += size / 64 * 64;
    size %= 64;
    if (size) memcpy(h->block, p, size);
}

void gv_sha256_end(struct gv_sha256 *h, uint8_t digest[GV_SHA256_SIZE]) {
    uint64_t bits = h->length * 8;
    size_t used = h->length % 64;
    h->block[used++] = 0x80;
    if (used > 56) {
        memset(h->block + used, 0, 64 - used);
        compress(h->state, h->block, 1);
        used = 0;
    }
    memset(h->block + used, 0, 56 - used);
    put_big_endian(h->block + 56, (uint32_t)(bits >> 32));
    put_big_endian(h->block + 60, (uint32_t)bits);
    compress(h->state, h->block, 1);
    for (int i = 0; i < 8; i++) put_big_endian(digest + 4 * i, h->state[i]);
    explicit_bzero(h, sizeof *h);
}

void gv_sha256(const void *data, size_t size, uint8_t digest[GV_SHA256_SIZE]) {
    struct gv_sha256 h;
    gv_sha256_init(&h);
    gv_sha256_add(&h, data, size);
    gv_sha256_end(&h, digest);
}

void gv_hmac_init(struct gv_hmac *h, const void *key, size_t key_size) {
    uint8_t block[64] = {0};
    if (key_size > sizeof block) {
        gv_sha256(key, key_size, block);
    } else if (key_size) {
        memcpy(block, key, key_size);
    }
    for (size_t i = 0; i < sizeof block; i++) block[i] ^= 0x36;
    gv_sha256_init(&h->inner);
    gv_sha256_add(&h->inner, block, sizeof block);
    for (size_t i = 0; i < sizeof block; i++) block[i] ^= 0x36 ^ 0x5c;
    gv_sha256_init(&h->outer);
    gv_sha256_add(&h->outer, block, sizeof block);
    explicit_bzero(block, sizeof block);
}

void gv_hmac_add(struct gv_hmac *h, const void *data, size_t size) { gv_sha256_add(&h->inner, data, size); }

void gv_hmac_end(struct gv_hmac *h, uint8_t mac[GV_SHA256_SIZE]) {
    uint8_t inner[GV_SHA256_SIZE];
    gv_sha256_end(&h->inner, inner);
    gv_sha256_add(&h->outer, inner, sizeof inner);
    gv_sha256_end(&h->outer, mac);
    explicit_bzero(inner, sizeof inner);
}

bool gv_equal_secret(const void *a, const void *b, size_t size) {
    const volatile uint8_t *x = a, *y = b;
    uint8_t difference = 0;
    for (size_t i = 0; i < size; i++) difference |= x[i] ^ y[i];
    return difference == 0;
}
