/* The cuda backend: arrays and mipmapped arrays, and textures and surfaces of them, made by the driver. What they take of the device is measured, as of modules; when
 * the session is parked they stay, because a texture holds its array. */
#include <stdlib.h>
#include <string.h>

#include "backend_cuda.h"

/* What the driver has made: an array, or a mipmapped array with its levels. */
struct cuda_array_storage {
    CUarray array;
    CUmipmappedArray levels; /* NULL: `array` is all */
    uint64_t counted;        /* bytes */
    uint32_t refs;           /* the executor's */
};

struct gv_array {
    struct gv_context *context;
    struct cuda_array_storage *storage;
    CUarray array; /* NULL: all levels */
};

static int array_new(struct gv_context *c, struct cuda_array_storage *storage, CUarray array, struct gv_array **out) {
    struct gv_array *a = malloc(sizeof *a);
    if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
    *a = (struct gv_array){c, storage, array};
    storage->refs++;
    *out = a;
    return 0;
}

static int destroy(struct gv_context *c, struct cuda_array_storage *storage) {
    int status = cuda_enter(c);
    if (!status) status = storage->levels ? c->b->driver.levels_destroy(storage->levels) : c->b->driver.array_destroy(storage->array);
    if (status) return status;
    cuda_give(c, storage->counted);
    free(storage);
    return 0;
}

static int create(struct gv_context *c, const struct gv_array_shape *shape, struct cuda_array_storage *storage) {
    const struct driver *d = &c->b->driver;
    const CUDA_ARRAY3D_DESCRIPTOR described = {.Width = shape->width,
                                               .Height = shape->height,
                                               .Depth = shape->depth,
                                               .Format = (CUarray_format)shape->format,
                                               .NumChannels = shape->channels,
                                               .Flags = shape->flags};
    uint64_t before = cuda_free_memory(c);
    int status = cuda_enter(c);
    if (!status)
        status = shape->levels ? d->levels_create(&storage->levels, &described, shape->levels) : d->array_create(&storage->array, &described);
    if (status || cuda_take_since(c, before, &storage->counted)) return status;
    if (storage->levels)
        d->levels_destroy(storage->levels);
    else
        d->array_destroy(storage->array);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Bytes without what the driver adds, at most what a device has. */
static uint64_t about(const struct gv_array_shape *shape) {
    uint64_t bytes = 16, sizes[] = {shape->width, shape->height ? shape->height : 1, shape->depth ? shape->depth : 1};
    for (int i = 0; i < 3; i++)
        if (__builtin_mul_overflow(bytes, sizes[i], &bytes)) return 1ull << 62;
    return bytes;
}

int cuda_array_create(struct gv_context *c, const struct gv_array_shape *shape, struct gv_array **out) {
    struct cuda_array_storage *storage = calloc(1, sizeof *storage);
    if (!storage) return CUDA_ERROR_OUT_OF_MEMORY;
    int status = create(c, shape, storage);
    for (int i = 0; status == CUDA_ERROR_OUT_OF_MEMORY && i < CUDA_ROOM_TRIES && cuda_make_room(c, about(shape)); i++) {
        *storage = (struct cuda_array_storage){0};
        status = create(c, shape, storage);
    }
    if (status) {
        free(storage);
        return status;
    }
    status = array_new(c, storage, storage->array, out);
    if (status) destroy(c, storage);
    return status;
}

int cuda_array_level(struct gv_array *array, uint32_t level, struct gv_array **out) {
    CUarray made = NULL;
    if (!array->storage->levels || array->array) return CUDA_ERROR_INVALID_VALUE;
    int status = cuda_enter(array->context);
    if (!status) status = array->context->b->driver.levels_get(&made, array->storage->levels, level);
    return status ? status : array_new(array->context, array->storage, made, out);
}

int cuda_array_destroy(struct gv_array *a) {
    struct cuda_array_storage *storage = a->storage;
    if (storage->refs == 1) {
        int status = destroy(a->context, storage);
        if (status) return status;
    } else {
        storage->refs--;
    }
    free(a);
    return 0;
}

/* ---- copies ---- */

int cuda_copy_array(struct gv_stream *s, const struct gv_array_side *dst, const struct gv_array_side *src, const struct gv_shape *shape) {
    struct gv_context *c = s->context;
    CUDA_MEMCPY3D copy = {.WidthInBytes = shape->width, .Height = shape->height, .Depth = shape->depth};
    if ((dst->array && !dst->array->array) || (src->array && !src->array->array)) return CUDA_ERROR_INVALID_VALUE;
    if (dst->array) {
        copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        copy.dstArray = dst->array->array;
    } else {
        if (!cuda_dst_owned(s, dst->address, shape)) return CUDA_ERROR_INVALID_VALUE;
        copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.dstDevice = dst->address;
        copy.dstPitch = shape->dst_pitch;
        copy.dstHeight = shape->dst_pitch ? shape->dst_slice / shape->dst_pitch : shape->height;
    }
    copy.dstXInBytes = dst->at[0], copy.dstY = dst->at[1], copy.dstZ = dst->at[2];
    if (src->array) {
        copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        copy.srcArray = src->array->array;
    } else {
        if (!cuda_src_owned(s, src->address, shape)) return CUDA_ERROR_INVALID_VALUE;
        copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.srcDevice = src->address;
        copy.srcPitch = shape->src_pitch;
        copy.srcHeight = shape->src_pitch ? shape->src_slice / shape->src_pitch : shape->height;
    }
    copy.srcXInBytes = src->at[0], copy.srcY = src->at[1], copy.srcZ = src->at[2];
    int status = cuda_enter(c);
    return status ? status : (int)c->b->driver.copy_3d(&copy, s->stream);
}

/* ---- textures and surfaces ---- */

CUarray cuda_array_of(const struct gv_array *a, CUmipmappedArray *levels) {
    *levels = a->array ? NULL : a->storage->levels;
    return a->array;
}

static CUDA_RESOURCE_DESC resource_of(const struct gv_array *a) {
    CUDA_RESOURCE_DESC resource;
    memset(&resource, 0, sizeof resource);
    if (a->array) {
        resource.resType = CU_RESOURCE_TYPE_ARRAY;
        resource.res.array.hArray = a->array;
    } else {
        resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
        resource.res.mipmap.hMipmappedArray = a->storage->levels;
    }
    return resource;
}

int cuda_array_texture(struct gv_context *c, struct gv_array *array, const struct gv_texture *texture, uint64_t *object) {
    const CUDA_RESOURCE_DESC resource = resource_of(array);
    return cuda_texture_of(c, &resource, texture, object);
}

int cuda_surface_create(struct gv_context *c, struct gv_array *array, uint64_t *object) {
    const CUDA_RESOURCE_DESC resource = resource_of(array);
    CUsurfObject made = 0;
    int status = c->n_textures < GV_TEXTURES_MAX ? cuda_enter(c) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) status = c->b->driver.surface_create(&made, &resource);
    if (!status) c->n_textures++;
    *object = made;
    return status;
}

int cuda_surface_destroy(struct gv_context *c, uint64_t object) {
    int status = cuda_enter(c);
    if (!status) status = c->b->driver.surface_destroy(object);
    if (!status && c->n_textures) c->n_textures--;
    return status;
}
