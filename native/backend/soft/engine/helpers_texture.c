/* tex.1d from linear memory. */
#include "../driver_constants.h"
#include "exec_private.h"
#include "texture.h"

#include <string.h>

#define SOFT_EXPORT __attribute__((visibility("default")))

/* One component: its bits as an integer, or as a float where the type has fewer bits than 32 and the program did not ask for integers. */
static uint32_t component(const struct soft_texture *t, const char *at) {
    int8_t c;
    int16_t s;
    uint16_t h;
    uint32_t word;
    float value;
    bool normalized = !(t->flags & 1);
    switch (t->format) {
    case 0x01:
        word = *(const uint8_t *)at;
        value = (float)word / 255;
        break;
    case 0x02:
        memcpy(&h, at, 2);
        word = h;
        value = (float)word / 65535;
        break;
    case 0x08:
        memcpy(&c, at, 1);
        word = (uint32_t)c;
        value = (float)c / 127 < -1 ? -1 : (float)c / 127;
        break;
    case 0x09:
        memcpy(&s, at, 2);
        word = (uint32_t)s;
        value = (float)s / 32767 < -1 ? -1 : (float)s / 32767;
        break;
    case 0x10:
        memcpy(&h, at, 2);
        value = soft_from_half(h);
        normalized = true;
        word = 0;
        break;
    default: memcpy(&word, at, 4); return word;
    }
    if (normalized) memcpy(&word, &value, 4);
    return word;
}

/* For each lane the four components of element x[lane] of texture handles[lane]; what the texture lacks is 0, the fourth component 1. Outside: 0. */
SOFT_EXPORT void soft_tex_1d(struct soft_warp *w, uint32_t lanes, const uint64_t *handles, const int32_t *x, uint32_t *out) {
    static const uint32_t sizes[33] = {[0x01] = 1, [0x08] = 1, [0x02] = 2, [0x09] = 2, [0x10] = 2, [0x03] = 4, [0x0a] = 4, [0x20] = 4};
    for (uint32_t todo = lanes; todo; todo &= todo - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(todo);
        const struct soft_texture *t = (const struct soft_texture *)(uintptr_t)handles[i];
        if (handles[i] % 8 || t->magic != SOFT_TEXTURE_MAGIC) {
            struct runner *r = soft_fiber_of(w)->block->runner;
            soft_grid_fail(r->grid, CUDA_ERROR_ILLEGAL_ADDRESS, w, "0x%llx is no texture", (unsigned long long)handles[i]);
            soft_leave(r);
        }
        bool inside = x[i] >= 0 && (uint64_t)x[i] < t->elements;
        bool real = t->format == 0x20 || t->format == 0x10 || (!(t->flags & 1) && sizes[t->format] < 4);
        uint32_t size = sizes[t->format];
        const char *at = (const char *)(uintptr_t)(t->address + (uint64_t)(uint32_t)x[i] * size * t->channels);
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t word = k < 3 ? 0 : real ? 0x3F800000 : 1;
            if (!inside)
                word = 0;
            else if (k < t->channels)
                word = component(t, at + (size_t)k * size);
            out[k * SOFT_LANES + i] = word;
        }
    }
}
