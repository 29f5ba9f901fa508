#include "mutate.h"

#include <string.h>

#include "record.h"

uint64_t chance(struct chances *r, uint64_t below) {
    uint64_t x = r->state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % below;
}

bool one_in(struct chances *r, uint64_t n) { return chance(r, n) == 0; }

uint64_t odd_number(struct chances *r) {
    static const uint64_t odd[] = {0,           1,          2,
                                   3,           7,          8,
                                   63,          64,         4095,
                                   4096,        65535,      65536,
                                   65537,       MIB - 1,    MIB,
                                   MIB + 1,     2 * MIB,    4 * MIB,
                                   8 * MIB + 1, 64 * MIB,   1 << 30,
                                   1u << 31,    UINT32_MAX, UINT32_MAX - 7,
                                   1ull << 32,  1ull << 46, (1ull << 46) + 1,
                                   1ull << 63,  UINT64_MAX, UINT64_MAX - 4095};
    return one_in(r, 4) ? chance(r, 300) : odd[chance(r, sizeof odd / sizeof *odd)];
}

uint64_t handle_of(enum kind kind, uint64_t i) { return kind == KIND_CONTEXT ? 1 + i : 0x1000ull * (kind + 1) + i; }

static void change_value(struct value *v, const struct field *f, struct chances *r) {
    switch (chance(r, 8)) {
    case 0: *v = (struct value){.number = odd_number(r)}; break;
    case 1: *v = (struct value){.number = handle_of((enum kind)chance(r, N_KINDS), chance(r, 6))}; break;
    case 2: v->number += (uint64_t)chance(r, 17) - 8; break;
    case 3: v->base = (uint8_t)chance(r, BASE_PAYLOAD), v->slot = (uint8_t)chance(r, SLOTS), v->number = odd_number(r); break;
    case 4: v->number = f->kind < N_KINDS ? handle_of(f->kind, chance(r, 6)) : v->number * 2; break;
    case 5: v->number ^= 1ull << chance(r, 64); break;
    case 6: *v = (struct value){.number = one_in(r, 2) ? UINT32_MAX : UINT64_MAX}; break;
    default: *v = (struct value){.number = chance(r, 4)};
    }
}

static void change_blob(struct blob *b, struct chances *r) {
    switch (chance(r, 4)) {
    case 0: b->kind = (uint8_t)chance(r, N_BLOB_KINDS); break;
    case 1: b->size = one_in(r, 2) ? (uint32_t)chance(r, 100) : (uint32_t)(odd_number(r) % (4 * MIB)); break;
    case 2: b->size += (uint32_t)chance(r, 17) - 8, b->size %= 4 * MIB; break;
    default: b->seed = (uint32_t)chance(r, 100);
    }
}

void change_step(struct step *s, struct chances *r) {
    const struct shape *shape = shape_of(s);
    if (shape->op == DO_SESSION) return;
    unsigned which = (unsigned)chance(r, shape->n_fields + 5), blob = 0;
    if (which == shape->n_fields) s->context = one_in(r, 4) ? (uint32_t)odd_number(r) : (uint32_t)chance(r, 5);
    if (which == shape->n_fields + 1) s->mark = !s->mark;
    if (which == shape->n_fields + 2) s->loose = !s->loose;
    if (which == shape->n_fields + 3) s->resize = (int32_t)(chance(r, 9) * 8) - 32;
    if (which == shape->n_fields + 4) s->flip_at = (uint32_t)chance(r, 128), s->flip = 1u << chance(r, 8);
    for (unsigned i = 0; i < shape->n_fields; i++) {
        bool is_blob = shape->fields[i].role == ROLE_BYTES || shape->fields[i].role == ROLE_TEXT;
        if (i == which && is_blob) change_blob(&s->blobs[blob], r);
        if (i == which && !is_blob) change_value(&s->values[i], &shape->fields[i], r);
        blob += is_blob;
    }
}

static void insert(struct sequence *q, uint32_t i, const struct step *s) {
    if (q->n == STEPS_MAX) return;
    memmove(&q->steps[i + 1], &q->steps[i], (q->n - i) * sizeof *q->steps);
    q->steps[i] = *s;
    q->n++;
}

static void delete(struct sequence *q, uint32_t i) {
    memmove(&q->steps[i], &q->steps[i + 1], (q->n - i - 1) * sizeof *q->steps);
    q->n--;
}

struct step misdeed(struct chances *r) {
    static const char *const names[] = {"payload", "payload", "payload", "sleep", "wait", "cut",
                                        "resume",  "resume",  "channel", "end",   "bye",  "attach"};
    struct step s = step_new(names[chance(r, sizeof names / sizeof *names)]);
    switch (shape_of(&s)->op) {
    case DO_PAYLOAD:
        *step_blob(&s, "data") = (struct blob){.kind = BLOB_NOISE, .size = (uint32_t)(odd_number(r) % (4 * MIB))};
        if (one_in(r, 2)) step_set(&s, "lie", one_in(r, 2) ? odd_number(r) : (uint64_t)chance(r, 33) - 16);
        if (one_in(r, 3)) step_set(&s, "tag", GV_BULK_LATE | chance(r, 3));
        break;
    case DO_RESUME:
        step_set(&s, "epoch", one_in(r, 3) ? odd_number(r) : 1 + chance(r, 2));
        if (one_in(r, 2)) step_set(&s, "seq", (uint64_t)chance(r, 5) - 2);
        if (one_in(r, 3)) step_set(&s, "bulk", odd_number(r));
        if (one_in(r, 5)) step_set(&s, "other", 1);
        break;
    case DO_CHANNEL:
        step_set(&s, "channel", one_in(r, 3) ? odd_number(r) % UINT32_MAX : chance(r, 3));
        *step_blob(&s, "data") = (struct blob){.kind = BLOB_NOISE, .size = (uint32_t)chance(r, 80), .seed = (uint32_t)chance(r, 50)};
        break;
    case DO_SLEEP: step_set(&s, "us", chance(r, 5000)); break;
    default: break;
    }
    return s;
}

void mutate(struct sequence *q, struct chances *r) {
    step_set(&q->steps[0], "sound", 0);
    for (uint64_t n = 1 + chance(r, 4); n > 0 && q->n > 3; n--) {
        uint32_t i = 1 + (uint32_t)chance(r, q->n - 1), j = 1 + (uint32_t)chance(r, q->n - 1);
        struct step s = q->steps[i];
        switch (chance(r, 10)) {
        case 0: delete(q, i); break;
        case 1: insert(q, j, &s); break;
        case 2: q->steps[i] = q->steps[j], q->steps[j] = s; break;
        case 3: s = misdeed(r), insert(q, i, &s); break;
        case 4: q->n = i + 1 > 4 ? i + 1 : q->n; break;
        case 5: change_value(&q->steps[0].values[chance(r, 7)], &shape_of(&q->steps[0])->fields[0], r); break;
        default: change_step(&q->steps[i], r);
        }
    }
    step_set(&q->steps[0], "sound", 0);
}
