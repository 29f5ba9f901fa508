/* CUDA arrays and mipmapped arrays: images in memory that the backend has placed, in engine/texture.h's layout; copies from and to them; textures and surfaces of
 * them. */
#include <stdlib.h>
#include <string.h>

#include "../../wire/image_stream.h"
#include "stream.h"
#include "texture.h"

enum { LAYERED = 1, SURFACE = 2, CUBEMAP = 4, GATHER = 8, COLOR_ATTACHMENT = 0x20 }; /* CUDA_ARRAY3D_* */
#define LEVELS_MOST 32u

/* The memory of an array, or of all levels of a mipmapped one. */
struct soft_array_storage {
    struct soft_placed *placed;
    uint32_t refs; /* arrays: the executor's */
};

struct gv_array {
    struct gv_array *next, *previous; /* context.arrays */
    struct gv_context *context;
    struct soft_array_storage *storage;
    uint64_t address;
    uint32_t format, channels, flags, levels; /* levels: 1, unless it is a mipmapped array */
    uint32_t width, height, depth;            /* depth: or layers; at least 1 each */
};

static bool layered(const struct gv_array *a) { return a->flags & (LAYERED | CUBEMAP); }
static uint32_t texel_bytes(const struct gv_array *a) { return soft_format_bytes(a->format) * a->channels; }

static uint64_t bytes_of(const struct gv_array *a) { return soft_image_bytes(a->width, a->height, a->depth, layered(a), texel_bytes(a), a->levels); }

/* ---- made and destroyed ---- */

static struct gv_array *listed(struct gv_context *c, const struct gv_array *as) {
    struct gv_array *a = malloc(sizeof *a);
    if (!a) return NULL;
    *a = *as;
    a->context = c;
    a->previous = NULL;
    a->next = c->arrays;
    if (a->next) a->next->previous = a;
    c->arrays = a;
    a->storage->refs++;
    soft_context_hold(c);
    return a;
}

static int make(struct gv_context *c, struct gv_array *as, struct gv_array **out) {
    uint64_t size = (bytes_of(as) + SOFT_PAGE - 1) & ~(SOFT_PAGE - 1);
    struct soft_array_storage *storage = calloc(1, sizeof *storage);
    int rc = storage ? soft_memory_place(c->backend, c->device, size, false, &storage->placed) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!rc) {
        as->storage = storage;
        as->address = storage->placed->address;
        *out = listed(c, as);
        if (!*out) {
            soft_memory_unplace(c->backend, storage->placed);
            rc = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (rc) free(storage);
    return rc;
}

/* Whether an array of this shape can be; its sizes are so small then that nothing overflows. */
static int described(const struct gv_array_shape *s, struct gv_array *out) {
    bool layers = s->flags & (LAYERED | CUBEMAP), cube = s->flags & CUBEMAP;
    bool one_or_more = s->width && (s->channels == 1 || s->channels == 2 || s->channels == 4) && soft_format_bytes(s->format);
    if (!one_or_more || s->width > 1u << 17 || s->height > 1u << 17 || s->depth > 1u << 14 || s->levels > LEVELS_MOST)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->flags & ~(uint32_t)(LAYERED | SURFACE | CUBEMAP | GATHER | COLOR_ATTACHMENT)) return CUDA_ERROR_NOT_SUPPORTED;
    if (cube && (s->width != s->height || !s->depth || (s->flags & LAYERED ? s->depth % 6 != 0 : s->depth != 6))) return CUDA_ERROR_INVALID_VALUE;
    if (layers ? !s->depth : s->depth && !s->height) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct gv_array){.format = s->format,
                             .channels = s->channels,
                             .flags = s->flags,
                             .levels = s->levels ? s->levels : 1,
                             .width = (uint32_t)s->width,
                             .height = s->height ? (uint32_t)s->height : 1,
                             .depth = s->depth ? (uint32_t)s->depth : 1};
    return 0;
}

int soft_array_create(struct gv_context *c, const struct gv_array_shape *shape, struct gv_array **out) {
    struct gv_array as;
    int rc = described(shape, &as);
    return rc ? rc : make(c, &as, out);
}

int soft_array_level(struct gv_array *array, uint32_t level, struct gv_array **out) {
    if (level >= array->levels) return CUDA_ERROR_INVALID_VALUE;
    struct soft_level l = soft_level_shape(array->width, array->height, array->depth, layered(array), texel_bytes(array), level);
    struct gv_array as = *array;
    as.address += soft_image_bytes(array->width, array->height, array->depth, layered(array), texel_bytes(array), level);
    as.levels = 1;
    as.width = l.width;
    as.height = l.height;
    as.depth = l.depth;
    *out = listed(array->context, &as);
    return *out ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

int soft_array_destroy(struct gv_array *a) {
    struct gv_context *c = a->context;
    struct soft_array_storage *storage = a->storage;
    if (a->next) a->next->previous = a->previous;
    *(a->previous ? &a->previous->next : &c->arrays) = a->next;
    free(a);
    int rc = 0;
    if (!--storage->refs) {
        rc = soft_memory_unplace_later(c, storage->placed);
        free(storage);
    }
    soft_context_drop(c);
    return rc;
}

/* ---- copies ---- */

/* The bytes from which a side's box begins, and its distances from row to row and slice to slice; false: the box is not in the array. */
static bool side_of(const struct gv_array_side *side, const struct gv_shape *box, uint64_t *address, uint64_t *pitch, uint64_t *slice) {
    const struct gv_array *a = side->array;
    if (!a) {
        *address = side->address;
        return true;
    }
    uint64_t row = (uint64_t)a->width * texel_bytes(a);
    *pitch = row;
    *slice = row * a->height;
    *address = a->address + side->at[2] * *slice + side->at[1] * row + side->at[0];
    return a->levels == 1 && side->at[0] <= row && box->width <= row - side->at[0] && side->at[1] <= a->height &&
           box->height <= a->height - side->at[1] && side->at[2] <= a->depth && box->depth <= a->depth - side->at[2];
}

int soft_copy_array(struct gv_stream *s, const struct gv_array_side *dst, const struct gv_array_side *src, const struct gv_shape *shape) {
    struct gv_shape box = *shape;
    uint64_t to, from;
    if (!side_of(dst, shape, &to, &box.dst_pitch, &box.dst_slice) || !side_of(src, shape, &from, &box.src_pitch, &box.src_slice))
        return CUDA_ERROR_INVALID_VALUE;
    struct gv_context *to_context = dst->array ? dst->array->context : s->context, *from_context = src->array ? src->array->context : s->context;
    return soft_copy_device(s, to, to_context, from, from_context, &box);
}

/* ---- textures and surfaces ---- */

static struct soft_texture image_of(const struct gv_array *a, uint32_t kind) {
    return (struct soft_texture){.magic = SOFT_TEXTURE_MAGIC,
                                 .kind = kind,
                                 .format = a->format,
                                 .channels = a->channels,
                                 .address = a->address,
                                 .elements = a->width,
                                 .height = a->height,
                                 .depth = layered(a) ? 1 : a->depth,
                                 .layers = layered(a) ? a->depth : 0,
                                 .levels = a->levels,
                                 .pitch = (uint64_t)a->width * texel_bytes(a)};
}

int soft_texture_of_array(const struct gv_context *c, const struct gv_array *a, const struct gv_texture *texture, struct soft_texture *out) {
    *out = image_of(a, SOFT_IMAGE_TEXTURE);
    soft_texture_sampling(out, texture);
    return a->context->device == c->device ? 0 : CUDA_ERROR_INVALID_VALUE;
}

int soft_surface_of_array(const struct gv_context *c, const struct gv_array *a, struct soft_texture *out) {
    *out = image_of(a, SOFT_SURFACE);
    return a->levels == 1 && a->context->device == c->device ? 0 : CUDA_ERROR_INVALID_VALUE; /* the client looks at SURFACE */
}

int soft_array_texture(struct gv_context *c, struct gv_array *a, const struct gv_texture *texture, uint64_t *object) {
    struct soft_texture t;
    int rc = soft_texture_of_array(c, a, texture, &t);
    return rc ? rc : soft_texture_add(c, &t, object);
}

int soft_surface_create(struct gv_context *c, struct gv_array *a, uint64_t *object) {
    struct soft_texture t;
    int rc = soft_surface_of_array(c, a, &t);
    return rc ? rc : soft_texture_add(c, &t, object);
}

int soft_surface_destroy(struct gv_context *c, uint64_t object) { return soft_texture_destroy(c, object); }

/* ---- in a session's image ---- */

void soft_save_array(struct gv_array *a, struct gv_image_out *out) {
    const struct soft_placed *p = a->storage->placed;
    const uint64_t fields[] = {p->address, p->size, a->address, a->format, a->channels, a->flags, a->levels, a->width, a->height, a->depth};
    gv_image_put_bytes(out, fields, sizeof fields);
}

static bool read_array(struct gv_image_in *in, struct gv_array *out) {
    out->format = (uint32_t)gv_image_get(in, UINT32_MAX);
    out->channels = (uint32_t)gv_image_get(in, 4);
    out->flags = (uint32_t)gv_image_get(in, UINT32_MAX);
    out->levels = (uint32_t)gv_image_get(in, LEVELS_MOST);
    out->width = (uint32_t)gv_image_get(in, 1u << 17);
    out->height = (uint32_t)gv_image_get(in, 1u << 17);
    out->depth = (uint32_t)gv_image_get(in, 1u << 17);
    return !in->failed && soft_format_bytes(out->format) && out->channels && out->levels && out->width && out->height && out->depth;
}

/* The first of those that share memory places it; its size is what all levels took. */
int soft_restore_array(struct gv_context *c, struct gv_image_in *in, struct gv_array **out) {
    struct gv_array as = {.width = 0};
    uint64_t at = gv_image_get(in, UINT64_MAX), size = gv_image_get(in, c->device->share.limit);
    as.address = gv_image_get(in, UINT64_MAX);
    if (!read_array(in, &as) || !at || size % SOFT_PAGE || as.address < at || as.address - at > size || bytes_of(&as) > size - (as.address - at))
        return CUDA_ERROR_INVALID_VALUE;
    const struct gv_array *other = c->arrays;
    while (other && other->storage->placed->address != at) other = other->next;
    if (other && other->storage->placed->size != size) return CUDA_ERROR_INVALID_VALUE;
    as.storage = other ? other->storage : calloc(1, sizeof *as.storage);
    int rc = as.storage ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    if (!rc && !other) rc = soft_memory_place_at(c->backend, c->device, size, at, &as.storage->placed);
    if (!rc && !(*out = listed(c, &as))) {
        if (!other) soft_memory_unplace(c->backend, as.storage->placed);
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (rc && !other) free(as.storage);
    return rc;
}
