/* tex, tld4, suld, sust and sured: what compiled code asks of textures and surfaces, for the lanes of a warp. */
#include <math.h>
#include <string.h>

#include "../driver_constants.h"
#include "exec_private.h"
#include "texture.h"

#define SOFT_EXPORT __attribute__((visibility("default")))

static _Noreturn void fail(struct soft_warp *w, const char *format, uint64_t handle) {
    struct runner *r = soft_fiber_of(w)->block->runner;
    soft_grid_fail(r->grid, CUDA_ERROR_ILLEGAL_ADDRESS, w, format, (unsigned long long)handle);
    soft_leave(r);
}

static const struct soft_texture *texture_of(struct soft_warp *w, uint64_t handle, bool surface) {
    const struct soft_texture *t = (const struct soft_texture *)(uintptr_t)handle;
    if (handle % 8 || t->magic != SOFT_TEXTURE_MAGIC || (t->kind == SOFT_SURFACE) != surface)
        fail(w, surface ? "0x%llx is no surface" : "0x%llx is no texture", handle);
    return t;
}

/* ---- textures ---- */

/* Of linear memory: outside of it there is 0. */
static void linear(const struct soft_texture *t, const struct soft_fetch *f, uint32_t out[4]) {
    int64_t x = f->integers ? f->at[0] : f->x[0] >= 0 && f->x[0] < 1e9f ? (int64_t)f->x[0] : -1;
    bool inside = x >= 0 && (uint64_t)x < t->elements;
    const char *at = (const char *)(uintptr_t)(t->address + (uint64_t)x * soft_format_bytes(t->format) * t->channels);
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t rest = k < 3 ? 0 : soft_yields_floats(t) ? 0x3F800000 : 1;
        out[k] = !inside ? 0 : k < t->channels ? soft_component(t, at, k) : rest;
    }
}

static void numbers_of(const uint32_t *rows, uint32_t lane, float out[3]) {
    for (uint32_t d = 0; d < 3; d++) memcpy(&out[d], &rows[d * SOFT_LANES + lane], 4);
}

SOFT_EXPORT void soft_tex(struct soft_warp *w, uint32_t lanes, const uint64_t *handles, const uint32_t *rows, uint32_t what, uint32_t *out) {
    for (uint32_t todo = lanes; todo; todo &= todo - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(todo), got[4];
        const struct soft_texture *t = texture_of(w, handles[i], false);
        struct soft_fetch f = {
            .geometry = what & 3, .layered = what & SOFT_TEX_LAYERED, .integers = what & SOFT_TEX_INTEGERS, .layer = rows[i], .lod = NAN};
        numbers_of(rows + SOFT_LANES, i, f.x);
        for (uint32_t d = 0; d < 3; d++) f.at[d] = (int32_t)rows[(1 + d) * SOFT_LANES + i];
        if (what & SOFT_TEX_LEVEL) memcpy(&f.lod, &rows[4 * SOFT_LANES + i], 4);
        if (what & SOFT_TEX_GRADIENTS) {
            float dx[3], dy[3];
            numbers_of(rows + 4 * SOFT_LANES, i, dx);
            numbers_of(rows + 7 * SOFT_LANES, i, dy);
            f.lod = soft_lod_of(t, f.geometry, dx, dy);
        }
        if (t->kind == SOFT_LINEAR_TEXTURE)
            linear(t, &f, got);
        else if (what >> SOFT_TEX_GATHER_SHIFT)
            soft_gather(t, &f, (what >> SOFT_TEX_GATHER_SHIFT) - 1, got);
        else
            soft_sample(t, &f, got);
        for (uint32_t k = 0; k < 4; k++) out[k * SOFT_LANES + i] = got[k];
    }
}

/* ---- surfaces ---- */

static int64_t clamped(int64_t i, int64_t size) { return i < 0 ? 0 : i < size ? i : size - 1; }

/* The address of `bytes` bytes of a surface; x counts bytes. NULL: outside, where that is no error. */
static char *surface_at(struct soft_warp *w, uint64_t handle, const uint32_t *rows, uint32_t lane, uint32_t what, uint32_t bytes) {
    const struct soft_texture *t = texture_of(w, handle, true);
    struct soft_level l = soft_level_of(t, 0);
    int64_t row = (int64_t)t->elements * soft_format_bytes(t->format) * t->channels;
    int64_t x = (int32_t)rows[SOFT_LANES + lane], y = (int32_t)rows[2 * SOFT_LANES + lane], z = (int32_t)rows[3 * SOFT_LANES + lane];
    uint32_t dimensions = (what & 3) + 1;
    if (dimensions < 2) y = 0;
    if (dimensions < 3) z = what & SOFT_TEX_LAYERED ? (int32_t)rows[lane] : 0;
    if (what & SOFT_SURFACE_CLAMP) {
        x = clamped(x / (int64_t)bytes, row / (int64_t)bytes) * (int64_t)bytes;
        y = clamped(y, l.height);
        z = clamped(z, l.depth);
    }
    bool inside = x >= 0 && x + (int64_t)bytes <= row && y >= 0 && y < l.height && z >= 0 && z < l.depth;
    if (!inside && what & SOFT_SURFACE_ZERO) return NULL;
    if (!inside) fail(w, "surface 0x%llx: an element outside of it", handle);
    if (x % (int64_t)bytes) fail(w, "surface 0x%llx: an element that is not aligned", handle);
    return (char *)(uintptr_t)(l.address + (uint64_t)z * l.slice + (uint64_t)y * l.pitch + (uint64_t)x);
}

SOFT_EXPORT void soft_surface_load(struct soft_warp *w, uint32_t lanes, const uint64_t *handles, const uint32_t *rows, uint32_t what, uint32_t bytes,
                                   uint32_t n, uint64_t *out) {
    for (uint32_t todo = lanes; todo; todo &= todo - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(todo);
        const char *at = surface_at(w, handles[i], rows, i, what, bytes * n);
        for (uint32_t k = 0; k < n; k++) {
            out[k * SOFT_LANES + i] = 0;
            if (at) memcpy(&out[k * SOFT_LANES + i], at + k * bytes, bytes);
        }
    }
}

SOFT_EXPORT void soft_surface_store(struct soft_warp *w, uint32_t lanes, const uint64_t *handles, const uint32_t *rows, uint32_t what, uint32_t bytes,
                                    uint32_t n, const uint64_t *values) {
    for (uint32_t todo = lanes; todo; todo &= todo - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(todo);
        char *at = surface_at(w, handles[i], rows, i, what, bytes * n);
        for (uint32_t k = 0; k < n && at; k++) memcpy(at + k * bytes, &values[k * SOFT_LANES + i], bytes);
    }
}

static uint64_t reduced(uint32_t op, uint64_t old, uint64_t value) {
    switch (op) {
    case SOFT_SURFACE_ADD: return old + value;
    case SOFT_SURFACE_AND: return old & value;
    case SOFT_SURFACE_OR: return old | value;
    case SOFT_SURFACE_MIN: return value < old ? value : old;
    case SOFT_SURFACE_MAX: return value > old ? value : old;
    case SOFT_SURFACE_MIN_SIGNED: return (int32_t)value < (int32_t)old ? value : old;
    default: return (int32_t)value > (int32_t)old ? value : old; /* SOFT_SURFACE_MAX_SIGNED */
    }
}

SOFT_EXPORT void soft_surface_reduce(struct soft_warp *w, uint32_t lanes, const uint64_t *handles, const uint32_t *rows, uint32_t what,
                                     uint32_t bytes, uint32_t op, const uint64_t *values) {
    for (uint32_t todo = lanes; todo; todo &= todo - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(todo);
        char *at = surface_at(w, handles[i], rows, i, what, bytes);
        if (!at) continue;
        if (bytes == 8) {
            uint64_t old = __atomic_load_n((uint64_t *)at, __ATOMIC_RELAXED);
            while (!__atomic_compare_exchange_n((uint64_t *)at, &old, reduced(op, old, values[i]), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            }
        } else {
            uint32_t old = __atomic_load_n((uint32_t *)at, __ATOMIC_RELAXED), value = (uint32_t)values[i];
            while (!__atomic_compare_exchange_n((uint32_t *)at, &old, (uint32_t)reduced(op, old, value), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            }
        }
    }
}
