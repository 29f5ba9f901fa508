#include "coverage.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#define PLAIN __attribute__((no_sanitize_coverage, no_sanitize_address, no_sanitize_undefined))

static uint8_t *maps;
static volatile uint8_t *reached;

PLAIN void coverage_start(unsigned n) {
    void *map = mmap(NULL, (size_t)n * COVERAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (map != MAP_FAILED) maps = map;
}

PLAIN void coverage_use(unsigned map) {
    if (!maps) return;
    memset(maps + (size_t)map * COVERAGE_SIZE, 0, COVERAGE_SIZE);
    reached = maps + (size_t)map * COVERAGE_SIZE;
}

PLAIN uint32_t coverage_add(unsigned map, uint8_t *all) {
    uint32_t n = 0;
    const uint8_t *there = maps ? maps + (size_t)map * COVERAGE_SIZE : all;
    for (uint32_t i = 0; i < COVERAGE_SIZE; i++) {
        n += there[i] && !all[i];
        all[i] |= there[i];
    }
    return n;
}

void __sanitizer_cov_trace_pc(void);

/* Places are 4 bytes apart at least, as calls are; a program of less than COVERAGE_SIZE * 16 bytes of code has hardly two in one byte of the map. */
PLAIN void __sanitizer_cov_trace_pc(void) {
    uintptr_t at = (uintptr_t)__builtin_return_address(0) - (uintptr_t)coverage_start;
    if (reached) reached[(at ^ at >> 16) * 0x9e3779b1u >> 8 & (COVERAGE_SIZE - 1)] = 1;
}
