/* The allocator against a byte-exact model of who owns what, under random use; and its rules one by one. */
#include <stdlib.h>
#include <string.h>

#include "objects/memory/allocator.h"
#include "check.h"

#define BASE 0x100000000000ull
#define MB (1ull << 20)

static struct {
    uint64_t limit, backed, grows, largest_grow, shrinks;
    uint64_t others; /* bytes of it that other sessions have until somebody waits for them */
} server;

static int grow(void *arg, uint64_t address, uint64_t needed, bool waits, uint64_t *size) {
    (void)arg;
    CHECK(address % (2 * MB) == 0 && *size % (2 * MB) == 0 && needed % (2 * MB) == 0 && *size > 0 && needed <= *size);
    if (server.backed + server.others + *size > server.limit) *size = needed;
    if (waits && server.backed + server.others + *size > server.limit) server.others = 0;
    if (!*size || server.backed + server.others + *size > server.limit) return 2;
    server.backed += *size;
    server.grows++;
    if (*size > server.largest_grow) server.largest_grow = *size;
    return 0;
}

static void shrink(void *arg, uint64_t address, uint64_t size) {
    (void)arg;
    CHECK(address % (2 * MB) == 0 && size % (2 * MB) == 0 && size > 0);
    server.backed -= size;
    server.shrinks++;
}

static struct allocator start(uint64_t window, uint64_t initial, uint64_t limit) {
    struct allocator a = {0};
    EQUAL(allocator_init(&a, BASE, window, 2 * MB, initial), 0);
    a.grow = grow;
    a.shrink = shrink;
    memset(&server, 0, sizeof server);
    server.limit = limit;
    server.backed = initial;
    return a;
}

static void rules(void) {
    struct allocator a = start(1024 * MB, 4 * MB, 64 * MB);
    EQUAL(allocator_round(1), 512);
    EQUAL(allocator_round(512), 512);
    EQUAL(allocator_round(UINT64_MAX - 100), 0);
    uint64_t first = allocator_take(&a, MB), second = allocator_take(&a, MB);
    EQUAL(first, BASE);
    EQUAL(second, BASE + MB);
    EQUAL(allocator_take(&a, 3 * MB), 0); /* only 2 MB of credit are left */

    /* Doubling, and joined to the free end of what is backed. */
    EQUAL(allocator_grow(&a, 3 * MB, 1024 * MB, true), 0);
    EQUAL(server.grows, 1);
    EQUAL(server.largest_grow, 4 * MB);
    EQUAL(allocator_take(&a, 3 * MB), BASE + 2 * MB);

    /* Where there is not enough for a doubled grow, what is needed is backed. */
    server.limit = server.backed + 8 * MB, server.others = 4 * MB;
    EQUAL(allocator_grow(&a, 7 * MB, 1024 * MB, true), 0);
    EQUAL(a.backed, 12 * MB);
    EQUAL(a.backed, server.backed);
    EQUAL(server.others, 4 * MB); /* nobody had to give way for it */
    EQUAL(allocator_grow(&a, 8 * MB, 1024 * MB, false), 2);
    EQUAL(server.others, 4 * MB);
    EQUAL(allocator_grow(&a, 8 * MB, 1024 * MB, true), 0);
    EQUAL(server.others, 0);
    EQUAL(allocator_grow(&a, 64 * MB, 1024 * MB, true), 2);
    EQUAL(allocator_grow(&a, 1ull << 40, 1024 * MB, true), 2); /* beyond the window */

    /* Quarantine: reusable only when the stamp has been passed. */
    EQUAL(allocator_give(&a, first, MB, 10), 0);
    EQUAL(allocator_give(&a, second, MB, 20), 0);
    EQUAL(allocator_release(&a, 9), 0);
    EQUAL(allocator_release(&a, 10), MB);
    EQUAL(allocator_take(&a, MB), first);        /* best fit: the hole, not the large block behind */
    EQUAL(allocator_give(&a, first, MB, 15), 0); /* stamps only rise: 20 */
    EQUAL(allocator_release(&a, 19), 0);
    EQUAL(allocator_release(&a, UINT64_MAX), 2 * MB);
    EQUAL(a.quarantined, 0);

    /* Shrinking gives back whole chunks, and never what is in use. */
    uint64_t before = a.backed;
    EQUAL(allocator_shrink(&a, 64 * MB, 0), 0);
    uint64_t given = allocator_shrink(&a, 0, 0);
    CHECK(given >= 2 * MB);
    EQUAL(a.backed, before - given);
    EQUAL(server.backed, a.backed);
    EQUAL(a.backed, a.used + a.free_bytes);

    /* Addresses set aside: as high as may be, or where the caller wants them. */
    EQUAL(allocator_reserve(&a, 4 * MB, 0, 0), BASE + 1020 * MB);
    EQUAL(allocator_reserve(&a, 2 * MB, 8 * MB, 0), BASE + 1016 * MB);
    EQUAL(allocator_reserve(&a, 4 * MB, 0, BASE + 500 * MB), BASE + 500 * MB);
    EQUAL(allocator_reserve(&a, 4 * MB, 0, BASE + 502 * MB), BASE + 1012 * MB); /* taken */
    EQUAL(allocator_reserve(&a, 1025 * MB, 0, 0), 0);
    allocator_unreserve(&a, BASE + 1016 * MB, 2 * MB);
    EQUAL(allocator_reserve(&a, 4 * MB, 0, 0), BASE + 1016 * MB);
    allocator_fini(&a);
}

#define UNITS 4096 /* of 64 KiB: the model's resolution and the window */
#define UNIT (64ull << 10)

/* Every byte of the window is owned by at most one allocation; what was freed is not handed out before its stamp has passed. */
static void random_use(unsigned seed) {
    struct allocator a = start(UNITS * UNIT, 2 * MB, 200 * MB);
    static uint8_t owned[UNITS];
    memset(owned, 0, sizeof owned);
    struct {
        uint64_t address, size, stamp;
        int state; /* 0 unused, 1 in use, 2 in quarantine */
    } block[256] = {0};
    uint64_t clock = 0, passed = 0, ahead = 0, ahead_address = 0, reserved = 0, reserved_size = 0, set_aside = 0;
    srandom(seed);
    for (int step = 0; step < 20000; step++) {
        int i = (int)(random() % 256);
        clock++;
        if (block[i].state == 0) {
            uint64_t size = (1 + (uint64_t)random() % 24) * UNIT;
            uint64_t address = allocator_take(&a, size);
            if (!address && allocator_grow(&a, size, 32 * MB, random() % 2) == 0) {
                address = allocator_take(&a, size);
                CHECK(address);
            }
            if (!address) continue;
            CHECK(address % 512 == 0 && address >= BASE && address + size <= BASE + UNITS * UNIT);
            for (uint64_t u = (address - BASE) / UNIT; u < (address - BASE + size) / UNIT; u++) {
                CHECK(!owned[u]);
                owned[u] = 1;
            }
            block[i].address = address;
            block[i].size = size;
            block[i].state = 1;
        } else if (block[i].state == 1) {
            block[i].stamp = clock;
            block[i].state = 2;
            EQUAL(allocator_give(&a, block[i].address, block[i].size, clock), 0);
        }
        if (random() % 8 == 0) {
            passed = clock - (uint64_t)random() % 20;
            for (int j = 0; j < 256; j++) {
                if (block[j].state != 2 || block[j].stamp > passed) continue;
                for (uint64_t u = (block[j].address - BASE) / UNIT; u < (block[j].address - BASE + block[j].size) / UNIT; u++) owned[u] = 0;
                block[j].state = 0;
            }
            allocator_release(&a, passed);
        }
        /* Credit asked for ahead: the answer comes later, and may be a refusal. */
        if (!ahead && random() % 50 == 0) ahead = allocator_ahead(&a, (uint64_t)random() % (16 * MB), &ahead_address);
        if (ahead && random() % 20 == 0) {
            allocator_ahead_done(&a, ahead_address, ahead, random() % 4 && !grow(NULL, ahead_address, 0, false, &ahead));
            ahead = 0;
        }
        /* Addresses set aside belong to nobody else until they are given back. */
        if (!reserved && random() % 100 == 0) {
            uint64_t size = (1 + (uint64_t)random() % 8) * 2 * MB, alignment = 1ull << (18 + random() % 6),
                     hint = BASE + (uint64_t)random() % 128 * 2 * MB;
            reserved = allocator_reserve(&a, size, alignment, random() % 2 ? hint : 0);
            CHECK(!reserved || (reserved % alignment == 0 && reserved % (2 * MB) == 0 && reserved >= BASE && reserved + size <= BASE + UNITS * UNIT));
            if (reserved) reserved_size = size;
            if (reserved) set_aside++;
            for (uint64_t u = (reserved - BASE) / UNIT; reserved && u < (reserved - BASE + size) / UNIT; u++) {
                CHECK(!owned[u]);
                owned[u] = 1;
            }
        } else if (reserved && random() % 50 == 0) {
            memset(&owned[(reserved - BASE) / UNIT], 0, reserved_size / UNIT);
            allocator_unreserve(&a, reserved, reserved_size);
            reserved = 0;
        }
        if (random() % 500 == 0) allocator_shrink(&a, 0, (uint64_t)random() % (8 * MB));
        EQUAL(a.backed, a.used + a.free_bytes + a.quarantined);
        EQUAL(a.backed, server.backed);
    }
    CHECK(server.grows > 0 && server.shrinks > 0 && set_aside > 10);
    allocator_fini(&a);
}

int main(void) {
    rules();
    for (unsigned seed = 1; seed <= 4; seed++) random_use(seed);
    return check_result("allocator");
}
