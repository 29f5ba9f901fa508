/* What stands behind asynchronous copies: mbarrier objects, copies of many bytes, reductions of many elements. Everything is done when it is asked for,
 * so an operation that completes a barrier does so before the instruction that started it is over: one of the orders that a GPU may show.
 *
 * All warps of a cluster run on one thread, so barriers need no atomic operations. */
#include "exec_private.h"

#include <string.h>

#define SOFT_EXPORT __attribute__((visibility("default")))

/* ---- mbarrier ---- */

/* The 64 bits of a barrier: arrivals that the phase still waits for (20), arrivals of the next phase (20), bytes on their way (22, signed), phase (1 bit,
 * at the top). A state that an arrival returns is the whole word. */
#define COUNT 0xFFFFFull
#define TX_SHIFT 40
#define TX_BITS 22
#define PHASE (1ull << 63)

static int64_t tx_of(uint64_t word) { return (int64_t)(word << (64 - TX_SHIFT - TX_BITS)) >> (64 - TX_BITS); }

static uint64_t with_tx(uint64_t word, int64_t tx) {
    uint64_t mask = ((1ull << TX_BITS) - 1) << TX_SHIFT;
    return (word & ~mask) | (((uint64_t)tx << TX_SHIFT) & mask);
}

static uint64_t settle(uint64_t word) {
    if ((word & COUNT) || tx_of(word)) return word;
    return ((word & PHASE) ^ PHASE) | (word & (COUNT << 20)) | (word >> 20 & COUNT);
}

SOFT_EXPORT uint64_t soft_mbarrier(struct soft_warp *w, uint32_t lane, uint32_t op, void *address, uint64_t count, int64_t tx) {
    if ((uintptr_t)address % 8) soft_trap(w, 1u << lane, SOFT_TRAP_MISALIGNED);
    uint64_t word, before;
    memcpy(&word, address, 8);
    before = word;
    switch (op) {
    case SOFT_MBARRIER_INIT: word = (count & COUNT) | (count & COUNT) << 20; break;
    case SOFT_MBARRIER_INVAL: word = 0; break;
    case SOFT_MBARRIER_DROP: word = (word & ~(COUNT << 20)) | (((word >> 20 & COUNT) - count) & COUNT) << 20; /* fallthrough */
    case SOFT_MBARRIER_ARRIVE:
        word = with_tx(word, tx_of(word) + tx);
        word = settle((word & ~COUNT) | ((word - count) & COUNT));
        break;
    case SOFT_MBARRIER_TX: word = with_tx(word, tx_of(word) + tx); break;
    case SOFT_MBARRIER_COMPLETE: word = settle(with_tx(word, tx_of(word) - tx)); break;
    default: return 0;
    }
    memcpy(address, &word, 8);
    return before;
}

/* Whether the phase that `state` was returned in, or the one of parity `state` (0 or 1), is over; `patient`: lets others run first if it is not. If it is, the
 * block's next warp has its turn all the same: programs count on it that an asynchronous operation takes longer than the other warps need to come to where they wait for
 * it, and here it was over at once; a warp that went on could complete the next phase too, before another has looked for this one. */
SOFT_EXPORT uint32_t soft_mbarrier_test(struct soft_warp *w, uint32_t lane, void *address, uint64_t state, uint32_t by_parity, uint32_t patient) {
    if ((uintptr_t)address % 8) soft_trap(w, 1u << lane, SOFT_TRAP_MISALIGNED);
    for (int round = 0;; round++) {
        uint64_t word;
        memcpy(&word, address, 8);
        uint64_t phase = word >> 63;
        uint32_t over = phase != (by_parity ? (state & 1) : state >> 63);
        if (over && patient && !round && !soft_fiber_of(w)->lanes_run) soft_turn(w);
        if (over || !patient || round) return over;
        soft_yield(w);
    }
}

/* ---- many bytes ---- */

static void complete_tx(struct soft_warp *w, uint32_t lane, void *mbarrier, uint64_t bytes) {
    if (mbarrier) soft_mbarrier(w, lane, SOFT_MBARRIER_COMPLETE, mbarrier, 0, (int64_t)bytes);
}

/* cp.async.bulk: 16-byte aligned addresses, a multiple of 16 bytes. `keep`: of every 16 bytes, those whose bit is set are written (.cp_mask). */
SOFT_EXPORT void soft_bulk_copy(struct soft_warp *w, uint32_t lane, void *to, const void *from, uint32_t bytes, void *mbarrier, uint32_t keep,
                                uint32_t ranks) {
    if (ranks & SOFT_RANKS) {
        for (uint32_t left = ranks & SOFT_RANKS; left; left &= left - 1) {
            uint32_t rank = (uint32_t)__builtin_ctz(left);
            soft_bulk_copy(w, lane, soft_in_block(w, to, rank), from, bytes, soft_multicast_mbarrier(w, mbarrier, rank, ranks), keep, 0);
        }
        return;
    }
    if (((uintptr_t)to | (uintptr_t)from | bytes) % 16) soft_trap(w, 1u << lane, SOFT_TRAP_MISALIGNED);
    if (keep == 0xFFFF) {
        memmove(to, from, bytes);
    } else {
        for (uint32_t i = 0; i < bytes; i++)
            if (keep >> (i % 16) & 1) ((char *)to)[i] = ((const char *)from)[i];
    }
    complete_tx(w, lane, mbarrier, bytes);
}

/* st.bulk */
SOFT_EXPORT void soft_bulk_zero(struct soft_warp *w, uint32_t lane, void *to, uint64_t bytes) {
    if (((uintptr_t)to | bytes) % 8) soft_trap(w, 1u << lane, SOFT_TRAP_MISALIGNED);
    memset(to, 0, bytes);
}

/* ---- reductions of many elements ---- */

float soft_from_half(uint16_t h) {
    uint32_t size = h & 0x7FFFu, bits;
    float value;
    if (size >= 0x7C00)
        bits = size << 13 | 0x7F800000;
    else {
        bits = size << 13;
        memcpy(&value, &bits, 4);
        value *= 0x1p112f;
        memcpy(&bits, &value, 4);
    }
    bits |= (uint32_t)(h & 0x8000) << 16;
    memcpy(&value, &bits, 4);
    return value;
}

uint16_t soft_to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    if (size > 0x7F800000) return 0x7FFF;
    if (size >= 0x477FF000) return (uint16_t)(sign | 0x7C00);
    if (size < 0x38800000) {
        float tiny, half = 0.5f;
        memcpy(&tiny, &size, 4);
        tiny += half; /* the last bit of a subnormal half is now the last bit of the float */
        memcpy(&size, &tiny, 4);
        return (uint16_t)(sign | (size - 0x3F000000));
    }
    return (uint16_t)(sign | ((size + 0xFFF + (size >> 13 & 1) - (112u << 23)) >> 13));
}

static float from_bfloat(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t to_bfloat(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static double real(double a, double b, uint32_t op) {
    if (op == SOFT_REDUCE_ADD) return a + b;
    if (a != a || b != b) return a != a ? b : a;
    return op == SOFT_REDUCE_MIN ? (b < a ? b : a) : (b > a ? b : a);
}

static float single(float a, float b, uint32_t op) { return op == SOFT_REDUCE_ADD ? a + b : (float)real(a, b, op); }

static uint64_t whole(uint64_t a, uint64_t b, uint32_t op, uint32_t type) {
    bool narrow = type == SOFT_REDUCE_U32 || type == SOFT_REDUCE_S32, is_signed = type == SOFT_REDUCE_S32 || type == SOFT_REDUCE_S64;
    if (is_signed && narrow) a = (uint64_t)(int64_t)(int32_t)a, b = (uint64_t)(int64_t)(int32_t)b;
    bool less = is_signed ? (int64_t)b < (int64_t)a : b < a;
    switch (op) {
    case SOFT_REDUCE_ADD: return a + b;
    case SOFT_REDUCE_MIN: return less ? b : a;
    case SOFT_REDUCE_MAX: return less ? a : b;
    case SOFT_REDUCE_AND: return a & b;
    case SOFT_REDUCE_OR: return a | b;
    case SOFT_REDUCE_XOR: return a ^ b;
    case SOFT_REDUCE_INC: return a >= b ? 0 : a + 1;
    default: return a == 0 || a > b ? b : a - 1;
    }
}

static uint64_t combined(uint64_t old, uint64_t value, uint32_t op, uint32_t type) {
    float f, g;
    double d, x;
    switch (type) {
    case SOFT_REDUCE_F16: return soft_to_half(single(soft_from_half((uint16_t)old), soft_from_half((uint16_t)value), op));
    case SOFT_REDUCE_BF16: return to_bfloat(single(from_bfloat((uint16_t)old), from_bfloat((uint16_t)value), op));
    case SOFT_REDUCE_F32:
        memcpy(&f, &old, 4);
        memcpy(&g, &value, 4);
        f = single(f, g, op);
        old = 0;
        memcpy(&old, &f, 4);
        return old;
    case SOFT_REDUCE_F64:
        memcpy(&d, &old, 8);
        memcpy(&x, &value, 8);
        d = real(d, x, op);
        memcpy(&old, &d, 8);
        return old;
    default: return whole(old, value, op, type);
    }
}

void soft_reduce_element(void *to, const void *from, uint32_t op, uint32_t type) {
    uint64_t value = 0;
    if (type == SOFT_REDUCE_F16 || type == SOFT_REDUCE_BF16) {
        uint16_t old = __atomic_load_n((uint16_t *)to, __ATOMIC_RELAXED);
        memcpy(&value, from, 2);
        while (
            !__atomic_compare_exchange_n((uint16_t *)to, &old, (uint16_t)combined(old, value, op, type), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        }
    } else if (soft_reduce_size(type) == 4) {
        uint32_t old = __atomic_load_n((uint32_t *)to, __ATOMIC_RELAXED);
        memcpy(&value, from, 4);
        while (
            !__atomic_compare_exchange_n((uint32_t *)to, &old, (uint32_t)combined(old, value, op, type), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        }
    } else {
        uint64_t old = __atomic_load_n((uint64_t *)to, __ATOMIC_RELAXED);
        memcpy(&value, from, 8);
        while (!__atomic_compare_exchange_n((uint64_t *)to, &old, combined(old, value, op, type), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        }
    }
}

/* cp.reduce.async.bulk */
SOFT_EXPORT void soft_bulk_reduce(struct soft_warp *w, uint32_t lane, void *to, const void *from, uint32_t bytes, void *mbarrier, uint32_t op,
                                  uint32_t type) {
    uint32_t size = soft_reduce_size(type);
    if (((uintptr_t)to | (uintptr_t)from | bytes) % size) soft_trap(w, 1u << lane, SOFT_TRAP_MISALIGNED);
    for (uint32_t i = 0; i < bytes; i += size) soft_reduce_element((char *)to + i, (const char *)from + i, op, type);
    complete_tx(w, lane, mbarrier, bytes);
}

/* st.async and red.async: one element, in the low bytes of `value` */
SOFT_EXPORT void soft_st_async(struct soft_warp *w, uint32_t lane, void *to, uint64_t value, uint32_t size, void *mbarrier) {
    memcpy(to, &value, size);
    complete_tx(w, lane, mbarrier, size);
}

SOFT_EXPORT void soft_red_async(struct soft_warp *w, uint32_t lane, void *to, uint64_t value, uint32_t size, void *mbarrier, uint32_t op,
                                uint32_t type) {
    soft_bulk_reduce(w, lane, to, &value, size, mbarrier, op, type);
}
