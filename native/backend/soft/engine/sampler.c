/* How textures are sampled: addressing, filters, levels of detail. The rules are those of the CUDA C++ programming guide, "Texture Fetching". */
#include "texture.h"

#include <math.h>
#include <string.h>

#include "../driver_constants.h"
#include "exec_private.h"

enum { READ_AS_INTEGER = 1, NORMALIZED = 2, SRGB = 0x10 }; /* CU_TRSF_* */
enum { WRAP, CLAMP, MIRROR, BORDER };                      /* CU_TR_ADDRESS_MODE_* */
enum { FILTER_POINT, FILTER_LINEAR };                      /* CU_TR_FILTER_MODE_* */

uint32_t soft_format_bytes(uint32_t format) {
    switch (format) {
    case 0x01:
    case 0x08: return 1;
    case 0x02:
    case 0x09:
    case 0x10: return 2;
    case 0x03:
    case 0x0a:
    case 0x20: return 4;
    default: return 0;
    }
}

/* ---- levels ---- */

static uint32_t halved(uint32_t size, uint32_t level) {
    uint32_t half = level < 32 ? size >> level : 0;
    return half ? half : 1;
}

struct soft_level soft_level_shape(uint32_t width, uint32_t height, uint32_t depth, bool layered, uint32_t texel_bytes, uint32_t level) {
    struct soft_level l = {.width = halved(width, level), .height = halved(height, level), .depth = layered ? depth : halved(depth, level)};
    l.pitch = (uint64_t)l.width * texel_bytes;
    l.slice = l.pitch * l.height;
    return l;
}

uint64_t soft_image_bytes(uint32_t width, uint32_t height, uint32_t depth, bool layered, uint32_t texel_bytes, uint32_t levels) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < levels; i++) {
        struct soft_level l = soft_level_shape(width, height, depth, layered, texel_bytes, i);
        bytes += l.slice * l.depth;
    }
    return bytes;
}

static uint32_t texel_bytes(const struct soft_texture *t) { return soft_format_bytes(t->format) * t->channels; }

struct soft_level soft_level_of(const struct soft_texture *t, uint32_t level) {
    uint32_t width = (uint32_t)t->elements, depth = t->layers ? t->layers : t->depth;
    struct soft_level l = soft_level_shape(width, t->height, depth, t->layers, texel_bytes(t), level);
    l.address = t->address + soft_image_bytes(width, t->height, depth, t->layers, texel_bytes(t), level);
    if (!level) {
        l.pitch = t->pitch;
        l.slice = t->pitch * l.height;
    }
    return l;
}

/* ---- texels ---- */

bool soft_yields_floats(const struct soft_texture *t) {
    return t->format == 0x20 || t->format == 0x10 || (!(t->flags & READ_AS_INTEGER) && soft_format_bytes(t->format) < 4);
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static float from_srgb(float c) { return c <= 0.04045f ? c / 12.92f : powf((c + 0.055f) / 1.055f, 2.4f); }

static float fraction(float value, float most) { return value < -most ? -1 : value / most; }

uint32_t soft_component(const struct soft_texture *t, const char *at, uint32_t component) {
    int8_t c;
    int16_t s;
    uint16_t h;
    uint32_t word;
    bool integer = t->flags & READ_AS_INTEGER;
    at += component * soft_format_bytes(t->format);
    switch (t->format) {
    case 0x01: {
        uint8_t u = *(const uint8_t *)at;
        if (integer) return u;
        return bits_of(t->flags & SRGB && component < 3 ? from_srgb((float)u / 255) : (float)u / 255);
    }
    case 0x02: memcpy(&h, at, 2); return integer ? h : bits_of((float)h / 65535);
    case 0x08: memcpy(&c, at, 1); return integer ? (uint32_t)c : bits_of(fraction((float)c, 127));
    case 0x09: memcpy(&s, at, 2); return integer ? (uint32_t)s : bits_of(fraction((float)s, 32767));
    case 0x10: memcpy(&h, at, 2); return bits_of(soft_from_half(h));
    default: memcpy(&word, at, 4); return word;
    }
}

/* ---- addressing, in each dimension by itself ---- */

/* The place in texels. Wrapping and mirroring take away whole images first, so that far away coordinates keep their precision. */
static float place(const struct soft_texture *t, uint32_t dimension, float x, uint32_t size) {
    if (!(t->flags & NORMALIZED)) return x;
    if (t->modes[dimension] == WRAP) x -= floorf(x);
    if (t->modes[dimension] == MIRROR) {
        float whole = floorf(x);
        x -= whole;
        if (fmodf(whole, 2) != 0) x = 1 - x;
    }
    return x * (float)size;
}

/* The texel's number, -1: it is the border. */
static int64_t address(const struct soft_texture *t, uint32_t dimension, int64_t i, uint32_t size) {
    if (i >= 0 && i < size) return i;
    switch (t->flags & NORMALIZED || t->modes[dimension] == BORDER ? t->modes[dimension] : CLAMP) {
    case WRAP: i %= size; return i < 0 ? i + size : i;
    case BORDER: return -1;
    default: return i < 0 ? 0 : (int64_t)size - 1; /* one beyond a mirrored edge is the edge's own texel */
    }
}

/* NAN and what no texture reaches become numbers that can be compared. */
static int64_t whole(float x) {
    if (!(x > -1e9f)) return -1000000000;
    if (!(x < 1e9f)) return 1000000000;
    int64_t i = (int64_t)x; /* floorf is a call where the compiler may use SSE2 alone */
    return (float)i > x ? i - 1 : i;
}

struct axis {
    int64_t near, far; /* texels, -1: the border */
    float weight;      /* of `far` */
};

static void nearest(const struct soft_texture *t, uint32_t dimension, float x, uint32_t size, struct axis *a) {
    a->near = address(t, dimension, whole(place(t, dimension, x, size)), size);
}

/* The weight has eight bits of fraction. */
static void between(const struct soft_texture *t, uint32_t dimension, float x, uint32_t size, struct axis *a) {
    float from = place(t, dimension, x, size) - 0.5f;
    int64_t i = whole(from);
    float rest = from - floorf(from);
    a->near = address(t, dimension, i, size);
    a->far = address(t, dimension, i + 1, size);
    a->weight = rest >= 0 && rest <= 1 ? rintf(rest * 256) / 256 : 0;
}

/* ---- fetching ---- */

/* Filled in its place, once: a copy reads in 16 bytes what was just written in 4 or 8, for which a processor waits longer than for all the rest of a fetch. */
struct spot {
    struct soft_level level;
    uint32_t n; /* dimensions */
    struct axis axes[3];
    uint64_t layer;
};

/* What the texture lacks. */
static uint32_t lacking(const struct soft_texture *t, uint32_t component) { return component < 3 ? 0 : soft_yields_floats(t) ? bits_of(1) : 1; }

static void border(const struct soft_texture *t, uint32_t out[4]) {
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t integer = t->border[k] >= 0 ? (uint32_t)t->border[k] : (uint32_t)(int32_t)t->border[k];
        out[k] = k >= t->channels ? lacking(t, k) : soft_yields_floats(t) ? bits_of(t->border[k]) : integer;
    }
}

static void texel(const struct soft_texture *t, const struct spot *s, uint32_t which, uint32_t out[4]) {
    uint64_t at[3] = {0, 0, 0};
    for (uint32_t d = 0; d < s->n; d++) {
        int64_t i = which >> d & 1 ? s->axes[d].far : s->axes[d].near;
        if (i < 0) return border(t, out);
        at[d] = (uint64_t)i;
    }
    uint64_t z = s->n == 3 ? at[2] : s->layer;
    const char *from = (const char *)(uintptr_t)(s->level.address + z * s->level.slice + at[1] * s->level.pitch + at[0] * texel_bytes(t));
    for (uint32_t k = 0; k < 4; k++) out[k] = k < t->channels ? soft_component(t, from, k) : lacking(t, k);
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static void blend(const struct soft_texture *t, const struct spot *s, uint32_t out[4]) {
    double sums[4] = {0, 0, 0, 0};
    for (uint32_t which = 0; which < 1u << s->n; which++) {
        double weight = 1;
        for (uint32_t d = 0; d < s->n; d++) weight *= which >> d & 1 ? (double)s->axes[d].weight : 1 - (double)s->axes[d].weight;
        if (weight == 0) continue;
        uint32_t one[4];
        texel(t, s, which, one);
        for (uint32_t k = 0; k < 4; k++) sums[k] += weight * (double)float_of(one[k]);
    }
    for (uint32_t k = 0; k < 4; k++) out[k] = bits_of((float)sums[k]);
}

/* Faces of a cube: which coordinate counts, and what the other two become. */
static uint32_t cube_face(const float x[3], float st[2]) {
    float ax = fabsf(x[0]), ay = fabsf(x[1]), az = fabsf(x[2]), m, s, t;
    uint32_t face;
    if (ax >= ay && ax >= az) {
        face = x[0] < 0;
        m = ax, s = face ? x[2] : -x[2], t = -x[1];
    } else if (ay >= az) {
        face = 2 + (x[1] < 0);
        m = ay, s = x[0], t = face == 3 ? -x[2] : x[2];
    } else {
        face = 4 + (x[2] < 0);
        m = az, s = face == 5 ? -x[0] : x[0], t = -x[1];
    }
    st[0] = (s / m + 1) / 2;
    st[1] = (t / m + 1) / 2;
    return face;
}

/* An image that a fetch is of: the texture, or a cube's face. */
struct image {
    const struct soft_texture *texture;
    const float *x; /* where in it */
    uint64_t layer;
    struct soft_texture face; /* if it is one: a texture of its own, normalized, and clamped at its edges */
    float st[3];
};

static void image_of(const struct soft_texture *t, const struct soft_fetch *f, struct image *image) {
    image->texture = t;
    image->x = f->x;
    image->layer = f->layered ? f->layer : 0;
    if (f->geometry != SOFT_TEX_CUBE) return;
    uint64_t n = t->layers / 6;
    image->face = *t;
    image->face.flags |= NORMALIZED;
    for (int d = 0; d < 3; d++) image->face.modes[d] = CLAMP;
    if (n && image->layer >= n) image->layer = n - 1;
    image->layer = 6 * image->layer + cube_face(f->x, image->st);
    image->st[2] = f->x[2];
    image->texture = &image->face;
    image->x = image->st;
}

static void spot_of(const struct soft_texture *t, const struct soft_fetch *f, const float x[3], uint64_t layer, uint32_t level, bool linear,
                    struct spot *s) {
    s->level = soft_level_of(t, level);
    s->n = f->geometry == SOFT_TEX_CUBE ? 2 : (uint32_t)f->geometry + 1;
    uint32_t sizes[3] = {s->level.width, s->level.height, s->level.depth};
    s->layer = !t->layers ? 0 : layer < t->layers ? layer : t->layers - 1;
    for (uint32_t d = 0; d < s->n; d++) {
        if (f->integers)
            s->axes[d].near = address(&(struct soft_texture){.modes = {t->modes[0], t->modes[1], t->modes[2]}}, d, f->at[d], sizes[d]);
        else if (linear)
            between(t, d, x[d], sizes[d], &s->axes[d]);
        else
            nearest(t, d, x[d], sizes[d], &s->axes[d]);
    }
}

static void level_sample(const struct soft_texture *t, const struct soft_fetch *f, const float x[3], uint64_t layer, uint32_t level,
                         uint32_t out[4]) {
    bool linear = t->filter == FILTER_LINEAR && soft_yields_floats(t) && !f->integers;
    struct spot s;
    spot_of(t, f, x, layer, level, linear, &s);
    if (linear)
        blend(t, &s, out);
    else
        texel(t, &s, 0, out);
}

void soft_sample(const struct soft_texture *texture, const struct soft_fetch *f, uint32_t out[4]) {
    struct image image;
    image_of(texture, f, &image);
    const struct soft_texture *t = image.texture;
    const float *st = image.x;
    uint64_t layer = image.layer;
    if (t->levels < 2) return level_sample(t, f, st, layer, 0, out);
    float lod = (isnan(f->lod) ? 0 : f->lod) + t->bias;
    lod = fminf(fmaxf(fminf(fmaxf(lod, t->least), t->most), 0), (float)(t->levels - 1));
    uint32_t level = t->mip_filter == FILTER_LINEAR ? (uint32_t)lod : (uint32_t)floorf(lod + 0.5f);
    level_sample(t, f, st, layer, level, out);
    float weight = rintf((lod - (float)level) * 256) / 256;
    if (t->mip_filter != FILTER_LINEAR || weight <= 0 || !soft_yields_floats(t)) return;
    uint32_t next[4];
    level_sample(t, f, st, layer, level + 1, next);
    for (uint32_t k = 0; k < 4; k++)
        out[k] = bits_of((float)((1 - (double)weight) * (double)float_of(out[k]) + (double)weight * (double)float_of(next[k])));
}

void soft_gather(const struct soft_texture *texture, const struct soft_fetch *f, uint32_t component, uint32_t out[4]) {
    static const uint8_t order[4] = {2, 3, 1, 0}; /* bit 0: the right one; bit 1: the lower one */
    struct image image;
    struct spot s;
    image_of(texture, f, &image);
    const struct soft_texture *t = image.texture;
    spot_of(t, f, image.x, image.layer, 0, true, &s);
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t one[4];
        texel(t, &s, order[k], one);
        out[k] = one[component];
    }
}

float soft_lod_of(const struct soft_texture *t, enum soft_geometry geometry, const float dx[3], const float dy[3]) {
    float sizes[3] = {(float)t->elements, (float)t->height, (float)t->depth}, across = 0, down = 0;
    uint32_t n = geometry == SOFT_TEX_CUBE ? 3 : (uint32_t)geometry + 1;
    for (uint32_t d = 0; d < n; d++) {
        float size = geometry == SOFT_TEX_CUBE ? sizes[0] / 2 : sizes[d];
        across += dx[d] * size * dx[d] * size;
        down += dy[d] * size * dy[d] * size;
    }
    float most = fmaxf(across, down);
    return most > 0 ? log2f(most) / 2 : 0;
}
