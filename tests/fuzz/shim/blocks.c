#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

_Noreturn void violation(const char *format, ...) {
    char text[300] = "violation: ";
    va_list args;
    va_start(args, format);
    vsnprintf(text + strlen(text), sizeof text - strlen(text) - 1, format, args);
    va_end(args);
    strcat(text, "\n");
    if (write(2, text, strlen(text)) < 0) _exit(FUZZ_VIOLATION);
    _exit(FUZZ_VIOLATION);
}

static void refill(struct block *k, uint8_t with) {
    k->filled = with;
    memset(k->memory, with, k->size);
}

void blocks_begin(struct blocks *b, struct dice *d, bool honest) {
    static const size_t sizes[BLOCKS] = {600, 5000, 9000, 40000, 70000, 100000, 300000, 900000};
    b->dice = d;
    b->honest = honest;
    for (int i = 0; i < BLOCKS; i++) {
        struct block *k = &b->of[i];
        void *pinned = NULL;
        k->size = sizes[i];
        k->pinned = roll(d, 3) && CALL(cuMemHostAlloc, &pinned, k->size, 0) == CUDA_SUCCESS;
        k->memory = k->pinned ? pinned : malloc(k->size);
        refill(k, (uint8_t)(1 + i));
    }
}

struct block *block_take(struct blocks *b, bool pinned) {
    for (uint64_t i = 0, first = roll(b->dice, BLOCKS); i < BLOCKS; i++) {
        struct block *k = &b->of[(first + i) % BLOCKS];
        if (!atomic_load(&k->copy) && k->pinned >= pinned) return k;
    }
    return NULL;
}

void block_expect(struct blocks *b, struct block *k, int stream) {
    atomic_store(&k->copy, ++b->copies);
    if (stream >= 0) b->stream_covers[stream][k - b->of] = b->copies;
}

/* ---- looking -------------------------------------------------------------------------------------------------------- */

static bool inside(const struct block *k, size_t at) {
    if (at < k->at) return false;
    size_t z = k->depth > 1 ? (at - k->at) / k->slice : 0, in_slice = (at - k->at) - z * (k->depth > 1 ? k->slice : 0);
    size_t y = k->height > 1 ? in_slice / k->pitch : 0, x = in_slice - y * (k->height > 1 ? k->pitch : 0);
    return z < k->depth && y < k->height && x < k->width;
}

/* As memcmp with a byte; quick. */
static bool all_are(const uint8_t *p, size_t n, uint8_t value) { return !n || (*p == value && !memcmp(p, p + 1, n - 1)); }

void block_look(const struct block *k) {
    atomic_fetch_add(&shared->stolen_looks, 1);
    bool open = atomic_load(&k->copy);
    if (open ? all_are(k->memory, k->at, k->filled) && k->height == 1 && k->depth == 1 &&
                   all_are(k->memory + k->at + k->width, k->size - k->at - k->width, k->filled)
             : all_are(k->memory, k->size, k->filled))
        return;
    for (size_t i = 0; i < k->size; i++) {
        if (k->memory[i] == k->filled || (open && inside(k, i))) continue;
        violation("byte %zu of %zu of a block became 0x%02x, which was 0x%02x; %s", i, k->size, k->memory[i], k->filled,
                  open ? "it is beside a copy's destination" : "no copy into it is under way");
    }
}

void blocks_look(struct blocks *b) {
    for (int i = 0; i < BLOCKS; i++) block_look(&b->of[i]);
}

static uint64_t sum_of(const struct block *k) {
    uint64_t sum = 14695981039346656037u;
    for (size_t z = 0; z < k->depth; z++)
        for (size_t y = 0; y < k->height; y++) {
            const uint8_t *row = k->memory + k->at + z * k->slice + y * k->pitch;
            for (size_t x = 0; x < k->width; x += x + 64 < k->width ? 7 : 1) sum = (sum ^ row[x]) * 1099511628211u;
        }
    return sum;
}

void block_seen(struct block *k, uint64_t copy) {
    if (atomic_load(&k->copy) != copy) return;
    uint64_t sum = sum_of(k);
    atomic_store(&k->sum, sum);
    atomic_store(&k->seen, copy);
}

/* ---- the end of a copy ------------------------------------------------------------------------------------------------ */

static void check_bytes(const struct block *k) {
    for (size_t z = 0; z < k->depth; z++)
        for (size_t y = 0; y < k->height; y++)
            for (size_t x = 0; x < k->width; x++) {
                uint8_t got = k->memory[k->at + z * k->slice + y * k->pitch + x];
                uint8_t want = device_byte(k->source + z * k->source_slice + y * k->source_pitch, x);
                if (got != want) violation("byte %zu of row %zu of a copy is 0x%02x instead of 0x%02x", x, y, got, want);
            }
}

void block_over(struct blocks *b, struct block *k, bool good) {
    uint64_t copy = atomic_load(&k->copy);
    block_look(k);
    if (good && atomic_load(&k->seen) == copy && atomic_load(&k->sum) != sum_of(k))
        violation("a copy's destination changed after the host function behind it had begun");
    if (good && b->honest) check_bytes(k);
    atomic_store(&k->copy, 0);
    atomic_fetch_add(&shared->copies, 1);
    refill(k, (uint8_t)(1 + roll(b->dice, 250)));
}

void blocks_over(struct blocks *b, const uint64_t covers[BLOCKS], bool good) {
    for (int i = 0; i < BLOCKS; i++)
        if (covers[i] && covers[i] == atomic_load(&b->of[i].copy)) block_over(b, &b->of[i], good);
}

void blocks_all_over(struct blocks *b) {
    for (int i = 0; i < BLOCKS; i++)
        if (atomic_load(&b->of[i].copy)) block_over(b, &b->of[i], false);
}
