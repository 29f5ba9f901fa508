#include "step.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link_inputs.h"
#include "lz4.h"
#include "memory_operation.h"
#include "record.h"
#include "sha256.h"

#define NUMBER(name, i) {name, (i) * 8, 8, ROLE_NUMBER, N_KINDS}
const struct shape shapes[] = {
#include "shapes.inc"
    /* backend: 0 soft, 1 cuda, 2 soft as a strict driver. transport: 0 shm, 1 tcp, 2 sealed tcp. sound: nothing is wrong with the sequence, so that nothing may fail. */
    {"session",
     DO_SESSION,
     0,
     0,
     64,
     8,
     {NUMBER("backend", 0), NUMBER("transport", 1), NUMBER("devices", 2), NUMBER("grace", 3), NUMBER("answers", 4), NUMBER("sound", 5),
      NUMBER("cache", 6), NUMBER("memory", 7)}},
    {"payload", DO_PAYLOAD, 0, 0, 24, 3, {NUMBER("tag", 0), NUMBER("lie", 1), {"data", 16, 4, ROLE_BYTES, N_KINDS}}},
    {"expect", DO_EXPECT, 0, 0, 16, 2, {NUMBER("tag", 0), {"data", 8, 4, ROLE_BYTES, N_KINDS}}},
    {"wait", DO_WAIT, 0, 0, 0, 0, {{0}}},
    {"sleep", DO_SLEEP, 0, 0, 8, 1, {NUMBER("us", 0)}},
    {"cut", DO_CUT, 0, 0, 0, 0, {{0}}},
    {"resume", DO_RESUME, 0, 0, 32, 4, {NUMBER("epoch", 0), NUMBER("seq", 1), NUMBER("bulk", 2), NUMBER("other", 3)}},
    {"channel", DO_CHANNEL, 0, 0, 16, 2, {NUMBER("channel", 0), {"data", 8, 4, ROLE_BYTES, N_KINDS}}},
    {"end", DO_END, 0, 0, 0, 0, {{0}}},
};
const unsigned n_shapes = sizeof shapes / sizeof *shapes, n_commands = sizeof shapes / sizeof *shapes - 9;

static const char bases[] = "\0agtrn";
static const char *const blob_names[] = {"zero",   "noise",   "text",    "image",  "packed",     "hash", "digest",
                                         "inputs", "options", "windows", "params", "operations", "words"};
static const char *const texts[] = {"table", "counter", "nothing", "", "kernel.ptx", "bad"};

const struct shape *shape_of(const struct step *s) { return &shapes[s->shape]; }

int shape_named(const char *name) {
    for (unsigned i = 0; i < n_shapes; i++)
        if (!strcmp(shapes[i].name, name)) return (int)i;
    return -1;
}

struct step step_new(const char *name) {
    int shape = shape_named(name);
    if (shape < 0) {
        fprintf(stderr, "there is no step called %s\n", name);
        exit(2);
    }
    return (struct step){.shape = (uint16_t)shape};
}

static bool is_blob(const struct field *f) { return f->role == ROLE_BYTES || f->role == ROLE_TEXT; }

static int find(const struct shape *shape, const char *name, unsigned *blob) {
    *blob = 0;
    for (unsigned i = 0; i < shape->n_fields; i++) {
        if (!strcmp(shape->fields[i].name, name)) return (int)i;
        *blob += is_blob(&shape->fields[i]);
    }
    return -1;
}

struct value *step_value(struct step *s, const char *field) {
    unsigned blob;
    int i = find(shape_of(s), field, &blob);
    return i < 0 || is_blob(&shape_of(s)->fields[i]) ? NULL : &s->values[i];
}

struct blob *step_blob(struct step *s, const char *field) {
    unsigned blob;
    int i = find(shape_of(s), field, &blob);
    return i < 0 || !is_blob(&shape_of(s)->fields[i]) ? NULL : &s->blobs[blob];
}

void step_set(struct step *s, const char *field, uint64_t number) {
    struct value *v = step_value(s, field);
    if (v) *v = (struct value){.number = number};
}

uint64_t step_get(const struct step *s, const char *field) {
    unsigned blob;
    int i = find(shape_of(s), field, &blob);
    return i < 0 ? 0 : s->values[i].number;
}

bool sequence_add(struct sequence *q, const struct step *s) {
    if (q->n == STEPS_MAX) return false;
    q->steps[q->n++] = *s;
    return true;
}

/* ---- text -------------------------------------------------------------------------------------------------------------- */

static int put_value(char *to, size_t room, const struct value *v) {
    if (!v->base) return snprintf(to, room, "%" PRIu64, v->number);
    return snprintf(to, room, "%c%u+%" PRIu64, bases[v->base], v->slot, v->number);
}

static size_t put_step(const struct step *s, char *to, size_t room) {
    const struct shape *shape = shape_of(s);
    char value[64];
    size_t n = (size_t)snprintf(to, room, "%s%s%s", shape->name, s->mark ? "!" : "", s->loose ? "&" : "");
    if (s->context) n += (size_t)snprintf(to + n, room - n, " @%u", s->context);
    unsigned blob = 0;
    for (unsigned i = 0; i < shape->n_fields; i++) {
        if (is_blob(&shape->fields[i])) {
            const struct blob *b = &s->blobs[blob++];
            if (!b->kind && !b->size) continue;
            put_value(value, sizeof value, &b->at);
            n += (size_t)snprintf(to + n, room - n, " %s=%s:%u:%u:%s", shape->fields[i].name, blob_names[b->kind], b->size, b->seed, value);
        } else if (s->values[i].base || s->values[i].number) {
            put_value(value, sizeof value, &s->values[i]);
            n += (size_t)snprintf(to + n, room - n, " %s=%s", shape->fields[i].name, value);
        }
    }
    if (s->into) n += (size_t)snprintf(to + n, room - n, " into=%u", s->into);
    if (s->resize) n += (size_t)snprintf(to + n, room - n, " resize=%d", s->resize);
    if (s->flip) n += (size_t)snprintf(to + n, room - n, " flip=%u:%u", s->flip_at, s->flip);
    return n + (size_t)snprintf(to + n, room - n, "\n");
}

void sequence_write(const struct sequence *q, char *to, size_t room) {
    size_t n = 0;
    *to = 0;
    for (uint32_t i = 0; i < q->n && n + 2048 < room; i++) n += put_step(&q->steps[i], to + n, room - n);
}

static bool get_value(const char *text, struct value *v) {
    char *end;
    *v = (struct value){0};
    const char *base = *text ? memchr(bases + 1, *text, sizeof bases - 2) : NULL;
    if (base) {
        v->base = (uint8_t)(base - bases);
        v->slot = (uint8_t)(strtoul(text + 1, &end, 10) % SLOTS);
        if (*end != '+') return false;
        text = end + 1;
    }
    v->number = strtoull(text, &end, 10);
    return end != text && !*end;
}

static bool get_blob(char *text, struct blob *b) {
    char *colon = strchr(text, ':');
    if (!colon) return false;
    *colon = 0;
    for (unsigned i = 0; i < N_BLOB_KINDS; i++) {
        if (strcmp(blob_names[i], text) != 0) continue;
        int used = 0;
        *b = (struct blob){.kind = (uint8_t)i};
        return sscanf(colon + 1, "%u:%u:%n", &b->size, &b->seed, &used) == 2 && used && get_value(colon + 1 + used, &b->at);
    }
    return false;
}

/* One `name=value` of a step. */
static bool get_field(struct step *s, char *word) {
    char *value = strchr(word, '=');
    if (*word == '@') return s->context = (uint32_t)strtoul(word + 1, NULL, 10), true;
    if (!value) return false;
    *value++ = 0;
    if (!strcmp(word, "into")) return s->into = (uint8_t)(strtoul(value, NULL, 10) % SLOTS), true;
    if (!strcmp(word, "resize")) return s->resize = (int32_t)strtol(value, NULL, 10), true;
    if (!strcmp(word, "flip")) return sscanf(value, "%u:%u", &s->flip_at, &s->flip) == 2;
    unsigned blob;
    int i = find(shape_of(s), word, &blob);
    if (i < 0) return false;
    return is_blob(&shape_of(s)->fields[i]) ? get_blob(value, &s->blobs[blob]) : get_value(value, &s->values[i]);
}

static bool get_step(char *line, struct step *s) {
    char *rest, *word = strtok_r(line, " ", &rest);
    size_t n = strcspn(word, "!&");
    bool mark = strchr(word + n, '!') != NULL, loose = strchr(word + n, '&') != NULL;
    word[n] = 0;
    int shape = shape_named(word);
    if (shape < 0) return false;
    *s = (struct step){.shape = (uint16_t)shape, .mark = mark, .loose = loose};
    while ((word = strtok_r(NULL, " ", &rest)))
        if (!get_field(s, word)) return false;
    return true;
}

bool sequence_read(struct sequence *q, const char *text) {
    char *copy = strdup(text), *rest;
    bool good = true;
    q->n = 0;
    for (char *line = strtok_r(copy, "\n", &rest); line && good; line = strtok_r(NULL, "\n", &rest)) {
        struct step s;
        char kept[200];
        snprintf(kept, sizeof kept, "%s", line);
        if (*line == '#') continue;
        good = get_step(line, &s) && sequence_add(q, &s);
        if (!good) fprintf(stderr, "this is no step, or one too many: %s\n", kept);
    }
    free(copy);
    if (good && (!q->n || shape_of(&q->steps[0])->op != DO_SESSION)) good = false, fprintf(stderr, "the first step is not `session`\n");
    return good;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------------- */

void world_number(struct step_world *w, const struct sequence *q) {
    uint64_t sent = 0;
    for (uint32_t i = 0; i < q->n; i++) {
        if (shape_of(&q->steps[i])->op != DO_PAYLOAD) continue;
        sent++;
        if (!(step_get(&q->steps[i], "tag") & GV_BULK_LATE)) w->numbers[w->n_numbers++] = sent;
    }
}

uint64_t value_of(struct step_world *w, const struct value *v) {
    if (v->base == BASE_PAYLOAD) return (w->announced < w->n_numbers ? w->numbers[w->announced++] : w->n_numbers + 1) + v->number;
    return v->base ? w->slots[v->base][v->slot] + v->number : v->number;
}

const char *image_text;

const char *image_of(uint32_t which, size_t *size) {
    static char images[IMAGES][40000];
    static const size_t sizes[IMAGES] = {64, 3000, sizeof images[0], 100};
    size_t text = which % IMAGES != 3 && image_text ? strlen(image_text) : 0;
    char *image = images[which %= IMAGES];
    for (size_t i = 5; i < sizes[which]; i++) image[i] = (char)(which + i / 7);
    memcpy(image, which == 3 ? "evil" : "good", 5);
    if (text && text < sizeof images[0]) {
        memset(image, '\n', sizeof images[0]);
        memcpy(image, image_text, text);
    }
    return *size = sizes[which] > text ? sizes[which] : text, image;
}

static uint32_t noise(uint32_t *state) { return *state = *state * 1664525u + 1013904223u, *state >> 8; }

static uint32_t put_inputs(const struct blob *b, uint8_t *to, uint32_t room) {
    uint32_t size = 0, state = b->seed;
    for (uint32_t i = 0; i < b->size && i < 64; i++) {
        struct gv_link_option options[2] = {{.option = 7, .value = 3}, {.option = noise(&state) % 30, .value = noise(&state)}};
        size_t image_size;
        struct gv_link_part part = {.type = noise(&state) % 6, .n_options = noise(&state) % 3, .name = texts[noise(&state) % 5], .options = options};
        part.data = image_of(noise(&state), &image_size);
        part.size = noise(&state) % (image_size < 3000 ? image_size : 3000);
        if (size + gv_link_part_size(&part) > room) break;
        gv_link_part_put(to + size, &part);
        size += (uint32_t)gv_link_part_size(&part);
    }
    return size;
}

static uint32_t put_operations(struct step_world *w, const struct blob *b, uint8_t *to, uint32_t room) {
    uint32_t n = 0, state = b->seed;
    for (; n < b->size && (n + 1) * sizeof(struct gv_memory_operation) <= room; n++) {
        /* Writes, with now and then something that nobody knows; what waits forever waits for the session's end. */
        struct gv_memory_operation o = {.kind = noise(&state) % 8 ? GV_WRITE_VALUE_32 : noise(&state) % 8};
        o.address = value_of(w, &b->at) + n * 8ull;
        o.value = noise(&state);
        if (o.kind == GV_WAIT_VALUE_32 || o.kind == GV_WAIT_VALUE_64) o.value = 0, o.flags = noise(&state) % 4;
        memcpy(to + n * sizeof o, &o, sizeof o);
    }
    return n * (uint32_t)sizeof(struct gv_memory_operation);
}

static uint32_t put_windows(const struct blob *b, uint8_t *to) {
    /* The second is the one that fits; a size of chance may come before it. */
    uint64_t offers[] = {1ull << 44, b->at.number, 0x320000000000ull, 64ull << 30, 0x320000000000ull, 128ull << 20};
    uint32_t size = b->seed % 3 ? 32 : b->size % (sizeof offers + 1);
    memcpy(to, b->seed % 3 == 1 ? offers + 2 : offers, size);
    return size;
}

uint32_t blob_put(struct step_world *w, const struct blob *b, uint8_t *to, uint32_t room) {
    uint32_t size = b->size < room ? b->size : room, state = b->seed;
    size_t image_size;
    const char *image = image_of(b->seed, &image_size);
    uint8_t digest[GV_SHA256_SIZE] = {0};
    switch (b->kind) {
    case BLOB_TEXT: return (uint32_t)snprintf((char *)to, room, "%s", texts[b->seed % (sizeof texts / sizeof *texts)]);
    case BLOB_IMAGE:
        if (b->size && b->size < image_size) image_size = b->size;
        if (image_size > room) image_size = room;
        memcpy(to, image, image_size);
        return (uint32_t)image_size;
    case BLOB_PACKED: return (uint32_t)gv_lz4_pack(image, image_size, to, room);
    case BLOB_HASH:
        gv_sha256(image, image_size, digest);
        if (size > sizeof digest) size = sizeof digest;
        memcpy(to, digest, size);
        return size;
    case BLOB_INPUTS: return put_inputs(b, to, room);
    case BLOB_OPERATIONS: return put_operations(w, b, to, room);
    case BLOB_WINDOWS: return put_windows(b, to);
    case BLOB_OPTIONS:
        for (uint32_t i = 0; i < b->size && (i + 1) * 16 <= room; i++)
            memcpy(to + (size_t)i * 16, &(struct gv_link_option){.option = 7, .value = b->seed}, 16);
        return b->size * 16 < room ? b->size * 16 : room & ~15u;
    case BLOB_PARAMS: /* of the tests' kernels: an address, a count, a value */
        memset(to, 0, size);
        if (size >= 16) memcpy(to + 8, (uint32_t[2]){b->seed, 77}, 8);
        if (size >= 8) memcpy(to, (uint64_t[1]){value_of(w, &b->at)}, 8);
        return size;
    case BLOB_WORDS: /* numbers of `at`, 8 bytes each with an odd seed, else 4 */
        size = b->size < 16 ? b->size * (b->seed % 2 ? 8 : 4) : 0;
        for (uint32_t i = 0, each = b->seed % 2 ? 8 : 4; i * each < size; i++) memcpy(to + (size_t)i * each, &b->at.number, each);
        return size;
    case BLOB_NOISE:
    case BLOB_DIGEST:
        for (uint32_t i = 0; i < size; i++) to[i] = (uint8_t)noise(&state);
        return size;
    default: memset(to, 0, size); return size;
    }
}

uint32_t step_encode(struct step_world *w, const struct step *s, uint8_t *body) {
    const struct shape *shape = shape_of(s);
    uint32_t size = shape->fixed;
    memset(body, 0, size);
    for (unsigned i = 0, blob = 0; i < shape->n_fields; i++) {
        const struct field *f = &shape->fields[i];
        if (!is_blob(f)) {
            uint64_t number = value_of(w, &s->values[i]);
            memcpy(body + f->offset, &number, f->width);
            continue;
        }
        uint32_t length = blob_put(w, &s->blobs[blob++], body + size, STEP_BODY_MAX - size - 64), end = length + (f->role == ROLE_TEXT);
        memset(body + size + length, 0, 8);
        memcpy(body + f->offset, &length, 4);
        size += (end + 7) & ~7u;
    }
    return size;
}
