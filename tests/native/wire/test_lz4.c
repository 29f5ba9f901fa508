/* LZ4 blocks: what is packed comes back, packed bytes made by others are understood, and rubbish is refused without harm. */
#include "../../../native/wire/lz4.h"

#include "../check.h"

static uint32_t state = 1;
static uint32_t next(void) { return (state = state * 1664525 + 1013904223) >> 8; }

/* Packs, unpacks into memory of exactly that size, compares; returns the packed size. */
static size_t there_and_back(const char *data, size_t size) {
    size_t room = size + size / 255 + 16;
    char *packed = malloc(room), *again = malloc(size ? size : 1);
    size_t n = gv_lz4_pack(data, size, packed, room);
    CHECK(n);
    char *exact = malloc(n);
    memcpy(exact, packed, n);
    CHECK(!gv_lz4_unpack(exact, n, again, size) && !memcmp(again, data, size));
    if (size) CHECK(gv_lz4_unpack(exact, n, again, size - 1));
    for (size_t less = 0; less < n; less += 1 + n / 50) CHECK(!gv_lz4_pack(data, size, packed, less));
    free(exact);
    free(packed);
    free(again);
    return n;
}

static void all_sizes(void) {
    static char data[70000];
    for (size_t size = 0; size < 600; size++) {
        for (size_t i = 0; i < size; i++) data[i] = (char)(next() % (size % 7 + 1));
        there_and_back(data, size);
    }
    for (int kind = 1; kind < 5; kind++) {
        for (size_t i = 0; i < sizeof data; i++)
            data[i] = kind == 1 ? 'a' : kind == 2 ? (char)next() : kind == 3 ? data[i % 300] : "add.f32 %f"[next() % 10];
        there_and_back(data, sizeof data);
    }
}

static void packs(void) {
    static char text[200000];
    size_t n = 0;
    while (n < sizeof text - 100)
        n += (size_t)sprintf(text + n, "    ld.global.f32 %%f%u, [%%rd%u+%u];\n", next() % 90, next() % 30, next() % 64 * 4);
    CHECK(there_and_back(text, n) < n / 2);
    memset(text, 0, sizeof text);
    CHECK(there_and_back(text, sizeof text) < 1000);
}

/* By the format's own description: four literals, a match of nine that overlaps itself, one literal at the end. */
static void known_block(void) {
    static const uint8_t block[] = {0x45, 'a', 'b', 'c', 'd', 2, 0, 0x10, '!'};
    char out[14];
    CHECK(!gv_lz4_unpack(block, sizeof block, out, sizeof out) && !memcmp(out, "abcdcdcdcdcdc!", 14));
}

static void rubbish(void) {
    static char data[3000], packed[4000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = "abcdefgh"[next() % 8];
    size_t n = gv_lz4_pack(data, sizeof data, packed, sizeof packed);
    int refused = 0;
    for (int round = 0; round < 60000; round++) {
        size_t size = round % 3 ? n : next() % n, wanted = round % 5 ? sizeof data : next() % 5000;
        uint8_t *bytes = malloc(size ? size : 1), *out = malloc(wanted ? wanted : 1);
        memcpy(bytes, packed, size);
        for (unsigned i = 0; i < round % 6u && size; i++) bytes[next() % size] = (uint8_t)(next() % 4 ? next() : 255);
        refused += gv_lz4_unpack(bytes, size, out, wanted) != 0;
        free(bytes);
        free(out);
    }
    CHECK(refused > 30000 && refused < 60000);
    CHECK(gv_lz4_unpack("", 0, data, 10));
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"all_sizes", all_sizes}, {"packs", packs}, {"known_block", known_block}, {"rubbish", rubbish}};
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
