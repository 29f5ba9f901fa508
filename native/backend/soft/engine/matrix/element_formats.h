/* Elements of matrices as floats: what 16 bytes of a row, or of a column, mean. */
#ifndef GV_SOFT_ELEMENT_FORMATS_H
#define GV_SOFT_ELEMENT_FORMATS_H

#include <stdint.h>

enum element_format {
    ELEMENT_F16,
    ELEMENT_BF16,
    ELEMENT_TF32,
    ELEMENT_S8,
    ELEMENT_U8,
    ELEMENT_E4M3,
    ELEMENT_E5M2,
    ELEMENT_E2M3, /* sixteen elements begin every 16 bytes, in as many bits as they have; as in the formats of 8 bits */
    ELEMENT_E3M2,
    ELEMENT_E2M1,
    ELEMENT_E2M1_PACKED, /* thirty-two */
    ELEMENT_FORMATS
};

/* Elements in 16 bytes. */
uint32_t soft_elements_in_piece(enum element_format format);

/* Those of one piece to out[0], out[step], ...; each with its sign changed if `negate`. */
void soft_elements(enum element_format format, const void *piece, int negate, float *out, uint32_t step);

/* Scales of blocks: ue4m3, or ue8m0, whose values are powers of two. */
double soft_scale(uint8_t code, int is_ue8m0);

#endif
