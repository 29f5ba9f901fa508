#include "lies.h"

#include <string.h>

const char *const lie_names[FUZZ_LIES] = {
#define NAMED(name) #name,
    LIES(NAMED)
#undef NAMED
};

static bool chosen[LIE_KINDS];
static uint64_t one_in;
static _Atomic int64_t honest_for; /* occasions that pass first */

void lies_choose(const struct session_plan *plan) {
    static const uint64_t rates[] = {1, 4, 15};
    struct dice d = dice_of(plan->seed, 1);
    if (plan->honest) return;
    for (int i = 0; plan->only && i < LIE_KINDS; i++) {
        const char *at = strstr(plan->only, lie_names[i]);
        chosen[i] = at && (at == plan->only || at[-1] == ',') && strchr(",", at[strlen(lie_names[i])]);
    }
    if (plan->only) {
        one_in = rates[roll(&d, 2)];
        atomic_store(&honest_for, (int64_t)roll(&d, 20));
        return;
    }
    /* Each is the first of some session among so many as there are. */
    chosen[plan->seed % LIE_KINDS] = true;
    for (uint64_t more = roll(&d, 6); more; more--) chosen[roll(&d, LIE_KINDS)] = true;
    one_in = rates[roll(&d, 3)];
    atomic_store(&honest_for, (int64_t)(roll(&d, 2) ? roll(&d, 40) : 0));
}

bool lie_chosen(enum lie kind) { return chosen[kind]; }

/* Those of the first messages, and of modules. */
static bool few_occasions(enum lie kind) { return kind <= LIE_KNOWN || kind == LIE_META || kind == LIE_META_PAYLOAD || kind == LIE_REPLY_BODY; }

bool lie(struct dice *d, enum lie kind) {
    if (!chosen[kind] || atomic_fetch_sub(&honest_for, kind > LIE_CUT) > 0 || roll(d, few_occasions(kind) && one_in > 2 ? 2 : one_in)) return false;
    atomic_fetch_add(&shared->told, 1);
    atomic_fetch_add(&shared->told_of[kind], 1);
    atomic_fetch_add(&shared->lies[kind], 1);
    return true;
}

uint64_t odd_number(struct dice *d, uint64_t about) {
    static const uint64_t numbers[] = {
        0,          1,          2,          7,          8,          63,         64,         4095,       4096,       65536,      0x3fff8,
        0x40000,    0x7fffffff, 0x80000000, 0xfffffff8, 0xffffffff, 1ull << 32, 1ull << 40, 1ull << 46, 1ull << 47, 1ull << 48, 0x7ffffffffffffff8,
        1ull << 63, ~7ull,      ~0ull};
    switch (roll(d, 4)) {
    case 0: return about + 1 + roll(d, 8);
    case 1: return about - 1 - roll(d, 8);
    case 2: return roll(d, 1ull << 40) << roll(d, 24);
    default: return numbers[roll(d, sizeof numbers / sizeof *numbers)];
    }
}

void spoil(struct dice *d, void *bytes, size_t size) {
    uint8_t *p = bytes;
    for (uint64_t n = 1 + roll(d, 4); n && size; n--) {
        size_t width = roll(d, 2) ? 4 : 8, at = roll(d, size);
        uint64_t value = 0;
        switch (roll(d, 3)) {
        case 0: p[at] ^= (uint8_t)(1u << roll(d, 8)); break;
        case 1: p[at] = (uint8_t)roll(d, 256); break;
        default:
            at = at / width * width;
            if (at + width > size) break;
            memcpy(&value, p + at, width);
            value = odd_number(d, value);
            memcpy(p + at, &value, width);
        }
    }
}
