#include "damage.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../native/worker/image/format.h"
#include "record.h"

enum { SET, ADD, XOR, COPY, DROP, REPEAT, SWAP, LOSE, CUT, DIGEST, RECORD, N_DEEDS };
static const char *const deed_names[] = {"set", "add", "xor", "copy", "drop", "repeat", "swap", "lose", "cut", "digest", "record"};

#define PAGE_WORDS 512u
#define FRONT 24u       /* words in which a section says how many there are, and of its first */
#define ROOM (1u << 16) /* words that an image may grow by */

bool image_take_apart(struct image *image) {
    size_t at = 0;
    for (unsigned s = 1; s < SECTIONS; s++) {
        while (at < image->n && image->words[at] != (IMAGE_SECTION << 32 | s)) at++;
        image->sections[s] = at;
    }
    image->sections[SECTIONS] = image->n ? image->n - 1 : 0;
    return image->n && at < image->n;
}

/* ---- text -------------------------------------------------------------------------------------------------------------- */

void damage_write(const struct damage *d, char *to, size_t room) {
    size_t n = (size_t)snprintf(to, room, "base %u\n", d->base);
    for (uint32_t i = 0; i < d->n && n < room; i++) {
        const struct deed *e = &d->deeds[i];
        n += (size_t)snprintf(to + n, room - n, "%s %u %" PRIu64 " %" PRIu64 "\n", deed_names[e->kind], e->section, e->word, e->value);
    }
}

bool damage_read(struct damage *d, const char *text) {
    int used = 0;
    *d = (struct damage){0};
    if (sscanf(text, "base %u\n%n", &d->base, &used) != 1 || !used) return false;
    for (text += used; *text; text += used) {
        char name[16];
        struct deed e = {.kind = 0};
        used = 0;
        if (sscanf(text, "%15s %u %" SCNu64 " %" SCNu64 "\n%n", name, &e.section, &e.word, &e.value, &used) != 4 || !used) return false;
        while (e.kind < N_DEEDS && strcmp(name, deed_names[e.kind]) != 0) e.kind++;
        if (e.kind == N_DEEDS || e.section >= SECTIONS || d->n == DEEDS_MAX) return false;
        d->deeds[d->n++] = e;
    }
    return true;
}

/* ---- chance ------------------------------------------------------------------------------------------------------------ */

/* Words that say something: not what is in pages, which may be anything. */
static uint64_t word_of(struct chances *r, const struct image *image, unsigned section) {
    size_t from = image->sections[section], n = image->sections[section + 1] - from;
    if (section != IMAGE_PAGES || one_in(r, 16)) return chance(r, n > FRONT && one_in(r, 2) ? FRONT : n);
    size_t heads = 0, at = 1;
    uint64_t chosen = 0;
    while (at + 4 <= n) { /* kind, number, where, pages */
        if (chance(r, ++heads) == 0) chosen = at;
        uint64_t pages = image->words[from + at + 3];
        if (!image->words[from + at] || pages > n) break;
        at += 4 + pages * PAGE_WORDS;
    }
    return chosen + chance(r, 4);
}

static uint64_t new_value(struct chances *r, const struct image *image) {
    static const uint64_t edges[] = {0,
                                     1,
                                     2,
                                     UINT64_MAX,
                                     UINT64_MAX - 1,
                                     INT64_MAX,
                                     1ull << 63,
                                     UINT32_MAX,
                                     1ull << 32,
                                     INT32_MAX,
                                     1ull << 31,
                                     1u << 14,
                                     1u << 18,
                                     1u << 24,
                                     1ull << 28,
                                     1ull << 30,
                                     2ull << 20,
                                     4096,
                                     0x320000000000,
                                     (1ull << 47) - 4096,
                                     0xfffffffffffff000};
    switch (chance(r, 4)) {
    case 0: return chance(r, 20);
    case 1: return image->words[chance(r, image->n)];
    case 2: return odd_number(r);
    default: return edges[chance(r, sizeof edges / sizeof *edges)];
    }
}

struct damage damage_by_chance(struct chances *r, const struct image *bases, unsigned n_bases) {
    struct damage d = {.base = (unsigned)chance(r, n_bases)};
    const struct image *image = &bases[d.base];
    for (uint64_t n = 1 + chance(r, one_in(r, 3) ? 4 : 2); n; n--) {
        struct deed e = {.section = (unsigned)chance(r, SECTIONS)};
        uint64_t what = chance(r, 40);
        e.kind = what < 14 ? SET : what < 22 ? ADD : what < 27 ? XOR : what < 30 ? COPY : (unsigned)(DROP + (what - 30) % (N_DEEDS - DROP));
        e.word = word_of(r, image, e.section);
        e.value = new_value(r, image);
        if (e.kind == ADD) e.value = (uint64_t[]){1, UINT64_MAX, 8, 4096, UINT64_MAX - 4095, 2ull << 20, 1ull << 32, 16}[chance(r, 8)];
        if (e.kind == XOR) e.value = 1ull << chance(r, 64);
        if (e.kind == DROP || e.kind == REPEAT) e.value = 1 + chance(r, 6);
        if (e.kind == RECORD) e.section = IMAGE_RECORDS, e.word = chance(r, 110), e.value = 8 * chance(r, one_in(r, 4) ? 40 : 12);
        d.deeds[d.n++] = e;
    }
    return d;
}

/* ---- doing it ---------------------------------------------------------------------------------------------------------- */

/* As native/wire/image_stream.c; a difference is noticed at once, for then no image is taken over. */
static uint64_t digest_of(const uint64_t *words, size_t n) {
    uint64_t digest = 0x67707576697274ull;
    for (size_t i = 0; i < n; i++) {
        digest = (digest ^ words[i]) * 0x9e3779b97f4a7c15ull;
        digest ^= digest >> 29;
    }
    return digest;
}

/* Leaves `less` words out at `at` and makes room for `more`. */
static uint64_t *splice(struct image *image, size_t at, size_t less, size_t more) {
    if (less > image->n - at) less = image->n - at;
    memmove(image->words + at + more, image->words + at + less, (image->n - at - less) * 8);
    image->n += more - less;
    for (unsigned s = 1; s <= SECTIONS; s++)
        if (image->sections[s] > at) image->sections[s] = image->sections[s] + more < less + at ? at : image->sections[s] + more - less;
    return image->words + at;
}

static void swap_with_next(struct image *image, unsigned section) {
    if (section + 2 > SECTIONS) return;
    size_t a = image->sections[section], b = image->sections[section + 1], end = image->sections[section + 2];
    uint64_t *first = malloc((b - a + 1) * 8);
    memcpy(first, image->words + a, (b - a) * 8);
    memmove(image->words + a, image->words + b, (end - b) * 8);
    memcpy(image->words + a + (end - b), first, (b - a) * 8);
    image->sections[section + 1] = a + (end - b);
    free(first);
}

static void add_record(struct image *image, const struct deed *e) {
    size_t at = image->sections[IMAGE_RECORDS] + 1;
    uint64_t body = e->value / 8 % 512;
    if (at >= image->sections[SECTIONS] || image->n > ROOM / 2 + image->sections[SECTIONS]) return;
    image->words[at]++; /* how many there are */
    struct gv_record record = {.size = (uint32_t)(sizeof record + body * 8), .op = (uint16_t)e->word, .ctx = 1, .seq = 1000};
    uint64_t *to = splice(image, at + 1, 0, 1 + sizeof record / 8 + body);
    *to++ = record.size;
    memcpy(to, &record, sizeof record);
    memset(to + sizeof record / 8, 0, body * 8);
}

static bool do_one(struct image *image, const struct deed *e) {
    size_t from = image->sections[e->section], n = image->sections[e->section + 1] - from;
    if (!n || from + n > image->n) return true;
    uint64_t at = e->word % n, *word = image->words + from + at, some = e->value % 64;
    if (some > n - at) some = n - at;
    switch (e->kind) {
    case SET: *word = e->value; break;
    case ADD: *word += e->value; break;
    case XOR: *word ^= e->value; break;
    case COPY: *word = image->words[from + e->value % n]; break;
    case DROP: splice(image, from + at, some, 0); break;
    case REPEAT: {
        if (image->n > ROOM / 2 + image->sections[SECTIONS]) break;
        uint64_t *to = splice(image, from + at, 0, some);
        memcpy(to, to + some, some * 8);
        break;
    }
    case SWAP: swap_with_next(image, e->section); break;
    case LOSE: splice(image, from, n, 0); break;
    case CUT: image->n = from + at; return false;
    case RECORD: add_record(image, e); break;
    default: return false;
    }
    return true;
}

void damage_do(const struct damage *d, const struct image *from, struct image *to) {
    bool good = true;
    *to = *from;
    to->words = malloc((from->n + ROOM) * 8);
    memcpy(to->words, from->words, from->n * 8);
    for (uint32_t i = 0; i < d->n && good; i++) good = do_one(to, &d->deeds[i]);
    if (good && to->n) to->words[to->n - 1] = digest_of(to->words, to->n - 1);
}
