/* Payloads whose bytes tell which they are and where they lie. Eight at a time: the sanitizers look at each access. */
#ifndef NUMBERED_BYTES_H
#define NUMBERED_BYTES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t numbered_word(uint64_t n, uint64_t i) { return n * 0x9e3779b97f4a7c15u + i * 0x0101010101010101u; }

static inline void fill_numbered(uint8_t *data, uint64_t size, uint64_t n) {
    for (uint64_t i = 0; i < size / 8; i++) {
        uint64_t word = numbered_word(n, i);
        memcpy(data + 8 * i, &word, 8);
    }
    for (uint64_t i = size & ~7ull; i < size; i++) data[i] = (uint8_t)(numbered_word(n, i / 8) >> 8 * (i % 8));
}

static inline bool is_numbered(const uint8_t *data, uint64_t size, uint64_t n) {
    for (uint64_t i = 0; i < size / 8; i++) {
        uint64_t word;
        memcpy(&word, data + 8 * i, 8);
        if (word != numbered_word(n, i)) return false;
    }
    for (uint64_t i = size & ~7ull; i < size; i++)
        if (data[i] != (uint8_t)(numbered_word(n, i / 8) >> 8 * (i % 8))) return false;
    return true;
}

#endif
