/* What the tests of delayed sockets and of delayed links share. */
#ifndef DELAY_FIXTURE_H
#define DELAY_FIXTURE_H

#include <pthread.h>
#include <sys/socket.h>

#include "../../../../native/transport/delay/delay.h"
#include "../../check.h"
#include "../pair.h"

#define MS 1000000LL

static inline void sleep_ns(int64_t ns) {
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    nanosleep(&t, NULL);
}

static inline struct gv_link_spec spec_of(const char *text) {
    struct gv_link_spec spec;
    char error[GV_LINK_ERROR_TEXT];
    CHECK(gv_link_spec_parse(text, &spec, error));
    return spec;
}

static inline int at_end(int fd) {
    char byte;
    return recv(fd, &byte, 1, 0) == 0;
}

static inline uint64_t next(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 27);
}

static inline uint8_t byte_at(uint64_t seed, uint64_t at) {
    uint64_t state = seed + at / 64 * 77;
    return (uint8_t)(next(&state) >> (at % 57));
}

#endif
