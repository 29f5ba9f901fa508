#include "element_formats.h"

#include <math.h>
#include <string.h>

#include "../exec_private.h"

struct format {
    uint8_t bits, elements;     /* of an element; in 16 bytes */
    uint8_t exponent, fraction; /* bits; 0: no small float */
};

static const struct format formats[ELEMENT_FORMATS] = {
    [ELEMENT_F16] = {16, 8, 0, 0},  [ELEMENT_BF16] = {16, 8, 0, 0}, [ELEMENT_TF32] = {32, 4, 0, 0},        [ELEMENT_S8] = {8, 16, 0, 0},
    [ELEMENT_U8] = {8, 16, 0, 0},   [ELEMENT_E4M3] = {8, 16, 4, 3}, [ELEMENT_E5M2] = {8, 16, 5, 2},        [ELEMENT_E2M3] = {6, 16, 2, 3},
    [ELEMENT_E3M2] = {6, 16, 3, 2}, [ELEMENT_E2M1] = {4, 16, 2, 1}, [ELEMENT_E2M1_PACKED] = {4, 32, 2, 1},
};

uint32_t soft_elements_in_piece(enum element_format format) { return formats[format].elements; }

static float of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* The exponent's and fraction's bits at a float's place make the number, but for a power of two; so they do for subnormal ones. */
static float small_float(const struct format *f, uint32_t code) {
    uint32_t size = code & ((1u << (f->exponent + f->fraction)) - 1), sign = (code >> (f->exponent + f->fraction) & 1) << 31;
    if (f->exponent == 4 && size == 0x7F) return NAN;
    if (f->exponent == 5 && size >= 0x7C) return size == 0x7C ? of_bits(sign | 0x7F800000) : NAN;
    int bias = (1 << (f->exponent - 1)) - 1;
    return of_bits(sign | size << (23 - f->fraction)) * of_bits((uint32_t)(254 - bias) << 23);
}

static uint32_t code_at(const uint8_t *piece, uint32_t bit, uint32_t bits) {
    uint32_t two = piece[bit / 8] | (bit / 8 < 15 ? (uint32_t)piece[bit / 8 + 1] << 8 : 0);
    return two >> bit % 8 & ((1u << bits) - 1);
}

static float element(enum element_format format, const uint8_t *piece, uint32_t i) {
    uint32_t word;
    uint16_t half;
    switch (format) {
    case ELEMENT_F16: memcpy(&half, piece + 2 * i, 2); return soft_from_half(half);
    case ELEMENT_BF16: memcpy(&half, piece + 2 * i, 2); return of_bits((uint32_t)half << 16);
    case ELEMENT_TF32: memcpy(&word, piece + 4 * i, 4); return of_bits(word & ~0x1FFFu); /* the lower 13 bits do not take part */
    case ELEMENT_S8: return (float)(int8_t)piece[i];
    case ELEMENT_U8: return (float)piece[i];
    default: return small_float(&formats[format], code_at(piece, i * formats[format].bits, formats[format].bits));
    }
}

void soft_elements(enum element_format format, const void *piece, int negate, float *out, uint32_t step) {
    for (uint32_t i = 0; i < formats[format].elements; i++) {
        float value = element(format, piece, i);
        out[i * step] = negate ? -value : value;
    }
}

double soft_scale(uint8_t code, int is_ue8m0) {
    if (!is_ue8m0) return small_float(&formats[ELEMENT_E4M3], code & 0x7F);
    return code == 0xFF ? (double)NAN : ldexp(1, code - 127);
}
