#include "abi/md2.h"

#include <string.h>

#define ROUNDS 18u

/* The permutation of RFC 1319, made from the digits of pi. */
static const uint8_t pi_permutation[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,   243, 192, 199, 115, 140, 152, 147, 43,  217, 188,
    76,  130, 202, 30,  155, 87,  60,  253, 212, 224, 22,  103, 66,  111, 24,  138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160, 251,
    245, 142, 187, 47,  238, 122, 169, 104, 121, 145, 21,  178, 7,   63,  148, 194, 16,  137, 11,  34,  95,  33,  128, 127, 93,  154, 90,  144, 50,
    39,  53,  62,  204, 231, 191, 247, 151, 3,   255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,  170, 198, 79,  184, 56,  210,
    150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,  100, 113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,   27,
    96,  37,  173, 174, 176, 185, 246, 28,  70,  97,  105, 52,  64,  126, 15,  85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249, 206, 186, 197,
    234, 38,  44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129, 77,  82,  106, 220, 55,  200, 108, 193, 171, 250, 36,  225, 123,
    8,   12,  189, 177, 74,  120, 136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254, 59,  0,   29,  57,  242, 239, 183, 14,  102, 88,  208, 228,
    166, 119, 114, 248, 235, 117, 75,  10,  49,  68,  80,  180, 143, 237, 31,  26,  219, 153, 141, 51,  159, 17,  131, 20,
};

void md2_begin(struct md2 *m) { memset(m, 0, sizeof *m); }

static void mix(struct md2 *m, const uint8_t block[MD2_SIZE]) {
    for (unsigned i = 0; i < MD2_SIZE; i++) {
        m->state[16 + i] = block[i];
        m->state[32 + i] = block[i] ^ m->state[i];
    }
    uint8_t t = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < sizeof m->state; i++) t = m->state[i] ^= pi_permutation[t];
        t = (uint8_t)(t + round);
    }
}

static void take_block(struct md2 *m) {
    uint8_t last = m->checksum[MD2_SIZE - 1];
    for (unsigned i = 0; i < MD2_SIZE; i++) last = m->checksum[i] ^= pi_permutation[m->block[i] ^ last];
    mix(m, m->block);
    m->fill = 0;
}

void md2_add(struct md2 *m, const void *data, size_t size) {
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++) {
        m->block[m->fill++] = bytes[i];
        if (m->fill == MD2_SIZE) take_block(m);
    }
}

void md2_end(struct md2 *m, uint8_t digest[MD2_SIZE]) {
    /* Always padded, a full block when nothing waits; each byte says how many there are. */
    uint8_t padding = (uint8_t)(MD2_SIZE - m->fill);
    memset(m->block + m->fill, padding, padding);
    take_block(m);
    uint8_t checksum[MD2_SIZE];
    memcpy(checksum, m->checksum, sizeof checksum);
    mix(m, checksum);
    memcpy(digest, m->state, MD2_SIZE);
}

void hmac_md2_begin(struct hmac_md2 *h, const uint8_t key[MD2_SIZE]) {
    uint8_t inner_key[MD2_SIZE];
    for (unsigned i = 0; i < MD2_SIZE; i++) {
        inner_key[i] = key[i] ^ 0x36u;
        h->outer_key[i] = key[i] ^ 0x5cu;
    }
    md2_begin(&h->inner);
    md2_add(&h->inner, inner_key, sizeof inner_key);
}

void hmac_md2_add(struct hmac_md2 *h, const void *data, size_t size) { md2_add(&h->inner, data, size); }

void hmac_md2_end(struct hmac_md2 *h, uint8_t digest[MD2_SIZE]) {
    uint8_t inner[MD2_SIZE];
    md2_end(&h->inner, inner);
    struct md2 outer;
    md2_begin(&outer);
    md2_add(&outer, h->outer_key, MD2_SIZE);
    md2_add(&outer, inner, sizeof inner);
    md2_end(&outer, digest);
}
