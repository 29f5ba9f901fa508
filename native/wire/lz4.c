#include "lz4.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A block is a row of sequences: a token (4 bits number of literals, 4 bits length of the match less 4; 15: more bytes of length follow, up to one
 * below 255), the literals, and two bytes that say how far back the match lies. The last sequence has no match. As the format demands, the last five
 * bytes are literals and no match begins in the last twelve. */
#define MATCH_LEAST 4u
#define LAST_LITERALS 5u
#define MATCH_ENDS_BEFORE 12u
#define FURTHEST 65535u
#define TABLE_BITS 14

static uint32_t four(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

struct output {
    uint8_t *at, *end;
};

/* What of a length is beyond the token's 15. */
static int put_length(struct output *o, size_t length) {
    for (; length >= 255; length -= 255) {
        if (o->at == o->end) return -1;
        *o->at++ = 255;
    }
    if (o->at == o->end) return -1;
    *o->at++ = (uint8_t)length;
    return 0;
}

/* One sequence; back 0: the last one, without a match. */
static int put_sequence(struct output *o, const uint8_t *literals, size_t n, size_t back, size_t match) {
    if (o->at == o->end) return -1;
    uint8_t *token = o->at++;
    size_t rest = back ? match - MATCH_LEAST : 0;
    *token = (uint8_t)((n < 15 ? n : 15) << 4 | (rest < 15 ? rest : 15));
    if (n >= 15 && put_length(o, n - 15)) return -1;
    if ((size_t)(o->end - o->at) < n) return -1;
    if (n) memcpy(o->at, literals, n);
    o->at += n;
    if (!back) return 0;
    if (o->end - o->at < 2) return -1;
    *o->at++ = (uint8_t)back;
    *o->at++ = (uint8_t)(back >> 8);
    return rest >= 15 ? put_length(o, rest - 15) : 0;
}

size_t gv_lz4_pack(const void *data, size_t size, void *out, size_t room) {
    if (size > UINT32_MAX) return 0;
    const uint8_t *start = data, *literals = start, *end = start + size;
    struct output o = {out, (uint8_t *)out + room};
    uint32_t *table = calloc(1 << TABLE_BITS, sizeof *table); /* where four such bytes were last seen, plus one */
    if (!table) return 0;
    bool full = false;
    size_t at = 0, misses = 0;
    while (!full && at + MATCH_ENDS_BEFORE < size) {
        uint32_t v = four(start + at), *slot = &table[v * 2654435761u >> (32 - TABLE_BITS)], seen = *slot;
        *slot = (uint32_t)at + 1;
        if (!seen || at + 1 - seen > FURTHEST || four(start + seen - 1) != v) {
            at += 1 + (misses++ >> 6); /* incompressible data are skipped in growing steps */
            continue;
        }
        misses = 0;
        const uint8_t *from = start + seen - 1;
        size_t match = MATCH_LEAST;
        while (at + match < size - LAST_LITERALS && from[match] == start[at + match]) match++;
        full = put_sequence(&o, literals, (size_t)(start + at - literals), (size_t)(start + at - from), match) != 0;
        at += match;
        literals = start + at;
    }
    free(table);
    if (full || put_sequence(&o, literals, (size_t)(end - literals), 0, 0)) return 0;
    return (size_t)(o.at - (uint8_t *)out);
}

/* Adds the length bytes that follow a token's 15 to *length; limit: the largest valid length. */
static int get_length(const uint8_t **at, const uint8_t *end, size_t *length, size_t limit) {
    for (uint8_t more = 255; more == 255;) {
        if (*at == end || *length > limit) return -1;
        more = *(*at)++;
        *length += more;
    }
    return 0;
}

int gv_lz4_unpack(const void *packed, size_t packed_size, void *out, size_t size) {
    const uint8_t *at = packed, *end = at + packed_size;
    uint8_t *start = out;
    size_t done = 0;
    for (;;) {
        if (at == end) return -1;
        uint8_t token = *at++;
        size_t n = token >> 4, match = token & 15;
        if (n == 15 && get_length(&at, end, &n, size)) return -1;
        if (n > (size_t)(end - at) || n > size - done) return -1;
        if (n) memcpy(start + done, at, n);
        at += n;
        done += n;
        if (at == end) return done == size && !match ? 0 : -1;
        if (end - at < 2) return -1;
        size_t back = (size_t)at[0] | (size_t)at[1] << 8;
        at += 2;
        if (match == 15 && get_length(&at, end, &match, size)) return -1;
        match += MATCH_LEAST;
        if (!back || back > done || match > size - done) return -1;
        for (; match; match--, done++) start[done] = start[done - back]; /* source and destination may overlap */
    }
}
