/* Textures and surfaces of the software GPU, as compiled code finds them: a handle is the descriptor's address, in memory that the backend has placed, so that it
 * means the same when the session has moved.
 *
 * Texels lie row after row without gaps (pitched memory of the program's: with its pitch), slices and layers one behind the other, and the levels of a mipmap one
 * behind the other, each a whole image. */
#ifndef SOFT_TEXTURE_H
#define SOFT_TEXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SOFT_TEXTURE_MAGIC 0x58745664

enum { SOFT_LINEAR_TEXTURE, SOFT_IMAGE_TEXTURE, SOFT_SURFACE }; /* soft_texture.kind */

struct soft_texture {
    uint32_t magic, format, channels, flags; /* CUarray_format; CU_TRSF_* */
    uint64_t address;
    uint64_t elements;                           /* linear memory: how many; else the width */
    uint32_t kind, filter, modes[3], mip_filter; /* CUfilter_mode, CUaddress_mode */
    float bias, least, most;                     /* of the level of detail */
    float border[4];
    uint32_t height, depth, layers, levels; /* texels; layers: 0: it has none, and depth counts */
    uint64_t pitch;                         /* bytes from row to row of level 0; those of other levels have no gaps */
    uint8_t reserved[16];
};

/* Compiled code reads these (gpuvirt/soft/ops/texture.py). */
_Static_assert(offsetof(struct soft_texture, flags) == 12 && offsetof(struct soft_texture, elements) == 24, "texture.py");
_Static_assert(offsetof(struct soft_texture, height) == 84 && offsetof(struct soft_texture, layers) == 92, "texture.py");
_Static_assert(sizeof(struct soft_texture) == 128, "a page holds a whole number of them");

/* One level of an image. */
struct soft_level {
    uint64_t address, pitch, slice; /* bytes */
    uint32_t width, height, depth;  /* depth: or layers */
};

/* Bytes of a component of a CUarray_format, 0: none that is known. */
uint32_t soft_format_bytes(uint32_t format);
/* The size of one level: layers stay. */
struct soft_level soft_level_shape(uint32_t width, uint32_t height, uint32_t depth, bool layered, uint32_t texel_bytes, uint32_t level);
/* Of an image of that many levels. */
uint64_t soft_image_bytes(uint32_t width, uint32_t height, uint32_t depth, bool layered, uint32_t texel_bytes, uint32_t levels);
/* Where a level lies; `level` is one that there is. */
struct soft_level soft_level_of(const struct soft_texture *t, uint32_t level);

/* What a fetch asks for. `lod`: level of detail, NAN: none is asked for. */
enum soft_geometry { SOFT_TEX_1D, SOFT_TEX_2D, SOFT_TEX_3D, SOFT_TEX_CUBE };
struct soft_fetch {
    enum soft_geometry geometry;
    bool layered, integers; /* integers: x, y, z are numbers of texels, in the bits */
    uint32_t layer;
    float x[3];
    int32_t at[3];
    float lod;
};

/* The four components of what is fetched from an image, as bits: floats, or integers where the texture yields these. */
void soft_sample(const struct soft_texture *t, const struct soft_fetch *f, uint32_t out[4]);
/* One component of each of the four texels that a bilinear fetch would use, in tld4's order. */
void soft_gather(const struct soft_texture *t, const struct soft_fetch *f, uint32_t component, uint32_t out[4]);
/* One texel's component, as the texture yields it. */
uint32_t soft_component(const struct soft_texture *t, const char *at, uint32_t component);
/* Whether what the texture yields are floats. */
bool soft_yields_floats(const struct soft_texture *t);
/* The level of detail of coordinates that change so much from pixel to pixel. */
float soft_lod_of(const struct soft_texture *t, enum soft_geometry geometry, const float dx[3], const float dy[3]);

#endif
