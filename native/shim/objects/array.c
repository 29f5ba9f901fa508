/* Arrays and mipmapped arrays. The server has them; here is their shape, against which copies and textures are checked before anything travels. */
#include "objects/array.h"

#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of which levels there are */

/* ---- shapes ---- */

unsigned array_format_size(CUarray_format format) {
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
    }
}

unsigned array_texel(const struct shim_array *a) { return array_format_size(a->shape.Format) * a->shape.NumChannels; }
uint64_t array_rows(const struct shim_array *a) { return a->shape.Height ? a->shape.Height : 1; }
uint64_t array_slices(const struct shim_array *a) { return a->shape.Depth ? a->shape.Depth : 1; }

/* Whether every size is at most what an attribute of the device says; 0: there is no such size. */
static bool within(const struct gv_device_info *device, const CUDA_ARRAY3D_DESCRIPTOR *s, int width, int height, int depth) {
    const int attributes[] = {width, height, depth};
    const size_t sizes[] = {s->Width, s->Height, s->Depth};
    for (int i = 0; i < 3; i++) {
        int most = attributes[i] ? device_attribute(device, attributes[i]) : 0;
        if (attributes[i] ? !sizes[i] || sizes[i] > (size_t)most : sizes[i] != 0) return false;
    }
    return true;
}

#define TEXTURE(what) CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE##what

static bool fits(const struct gv_device_info *d, const CUDA_ARRAY3D_DESCRIPTOR *s) {
    bool layered = s->Flags & CUDA_ARRAY3D_LAYERED;
    if (s->Flags & CUDA_ARRAY3D_CUBEMAP) {
        if (s->Width != s->Height || !s->Width || s->Depth % 6 || !s->Depth || (!layered && s->Depth != 6)) return false;
        int widest = device_attribute(d, layered ? TEXTURE(CUBEMAP_LAYERED_WIDTH) : TEXTURE(CUBEMAP_WIDTH));
        return s->Width <= (size_t)widest && (!layered || s->Depth <= (size_t)device_attribute(d, TEXTURE(CUBEMAP_LAYERED_LAYERS)));
    }
    if (layered && s->Height) return within(d, s, TEXTURE(2D_LAYERED_WIDTH), TEXTURE(2D_LAYERED_HEIGHT), TEXTURE(2D_LAYERED_LAYERS));
    if (layered) return within(d, s, TEXTURE(1D_LAYERED_WIDTH), 0, TEXTURE(1D_LAYERED_LAYERS));
    if (s->Depth)
        return within(d, s, TEXTURE(3D_WIDTH), TEXTURE(3D_HEIGHT), TEXTURE(3D_DEPTH)) ||
               within(d, s, TEXTURE(3D_WIDTH_ALTERNATE), TEXTURE(3D_HEIGHT_ALTERNATE), TEXTURE(3D_DEPTH_ALTERNATE));
    return s->Height ? within(d, s, TEXTURE(2D_WIDTH), TEXTURE(2D_HEIGHT), 0) : within(d, s, TEXTURE(1D_WIDTH), 0, 0);
}

static int check(const struct shim_context *c, const CUDA_ARRAY3D_DESCRIPTOR *s, const char *call) {
    const unsigned known =
        CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_COLOR_ATTACHMENT;
    if (s->NumChannels != 1 && s->NumChannels != 2 && s->NumChannels != 4) return CUDA_ERROR_INVALID_VALUE;
    if (!array_format_size(s->Format)) {
        if (!s->Format) return CUDA_ERROR_INVALID_VALUE;
        shim_log_once("%s: of array formats those with components of 8, 16 or 32 bits are supported; format %d is none", call, (int)s->Format);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (s->Flags & ~known) {
        shim_log_once("%s: arrays that are sparse, of deferred mapping, or for video and depth are not supported (flags 0x%x)", call, s->Flags);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return fits(c->info, s) ? 0 : CUDA_ERROR_INVALID_VALUE;
}

/* ---- made ---- */

static int ask(struct shim_context *c, const struct shim_array *a) {
    struct session_reply reply;
    const CUDA_ARRAY3D_DESCRIPTOR *s = &a->shape;
    struct gv_cmd_array_create command = {.array = a->object.id,
                                          .format = s->Format,
                                          .channels = s->NumChannels,
                                          .flags = s->Flags,
                                          .levels = a->levels,
                                          .width = s->Width,
                                          .height = s->Height,
                                          .depth = s->Depth};
    int rc = call_array_create(c->id, &command, NULL, &reply);
    session_reply_done(&reply);
    return rc;
}

/* Levels beyond the last possible one are not made, as the driver does it. */
static unsigned levels_of(const CUDA_ARRAY3D_DESCRIPTOR *s, unsigned wanted) {
    size_t largest = s->Width > s->Height ? s->Width : s->Height;
    if (!(s->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) && s->Depth > largest) largest = s->Depth;
    unsigned most = 1;
    while (largest >> most && most < ARRAY_LEVELS) most++;
    return wanted < most ? wanted : most;
}

static int create(const CUDA_ARRAY3D_DESCRIPTOR *shape, bool mipmapped, unsigned levels, const char *call, struct shim_array **out) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!shape || (mipmapped && !levels)) return CUDA_ERROR_INVALID_VALUE;
    rc = check(c, shape, call);
    if (rc) return rc;
    struct shim_array *a = object_new(OBJECT_ARRAY);
    if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
    a->context = c;
    a->ctx = c->id;
    a->shape = *shape;
    a->levels = mipmapped ? levels_of(shape, levels) : 0;
    a->of_level = mipmapped ? calloc(a->levels, sizeof *a->of_level) : NULL;
    rc = mipmapped && !a->of_level ? (int)CUDA_ERROR_OUT_OF_MEMORY : ask(c, a);
    if (rc == CUDA_ERROR_OUT_OF_MEMORY && !session_broken()) {
        stream_drain_context(NULL); /* so that what was freed is free */
        memory_trim(c, 0);
        rc = ask(c, a);
    }
    if (rc) {
        free(a->of_level);
        object_free(a);
        return rc;
    }
    object_publish(a);
    *out = a;
    return 0;
}

CUresult impl_cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    struct shim_array *a;
    if (!out) return shim_initialized() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    int rc = create(shape, false, 0, "cuArray3DCreate", &a);
    if (!rc) *out = (CUarray)a;
    return rc;
}

CUresult impl_cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *shape) {
    if (!shape) return shim_initialized() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    const CUDA_ARRAY3D_DESCRIPTOR full = {.Width = shape->Width, .Height = shape->Height, .Format = shape->Format, .NumChannels = shape->NumChannels};
    return impl_cuArray3DCreate(out, &full);
}

CUresult impl_cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels) {
    struct shim_array *a;
    if (!out) return shim_initialized() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    int rc = create(shape, true, levels, "cuMipmappedArrayCreate", &a);
    if (!rc) *out = (CUmipmappedArray)a;
    return rc;
}

/* ---- found ---- */

static int find(const void *handle, bool mipmapped, struct shim_array **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_array *a = object_get(OBJECT_ARRAY, handle);
    if (!a || (a->levels != 0) != mipmapped) return CUDA_ERROR_INVALID_HANDLE;
    if (a->context->id != a->ctx || !atomic_load(&a->context->object.live)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = a;
    int rc = session_broken();
    return rc ? rc : context_status(a->context);
}

int array_find(CUarray handle, struct shim_array **out) { return find(handle, false, out); }
int array_find_levels(CUmipmappedArray handle, struct shim_array **out) { return find(handle, true, out); }

static size_t halved(size_t size, unsigned level) { return size && !(size >> level) ? 1 : size >> level; }

static int level_new(struct shim_array *all, unsigned level, struct shim_array **out) {
    struct shim_array *a = object_new(OBJECT_ARRAY);
    if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
    a->context = all->context;
    a->ctx = all->ctx;
    a->shape = all->shape;
    a->shape.Width = halved(all->shape.Width, level);
    a->shape.Height = halved(all->shape.Height, level);
    if (!(all->shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP))) a->shape.Depth = halved(all->shape.Depth, level);
    a->is_level = true;
    struct gv_cmd_array_level command = {.level = a->object.id, .array = all->object.id, .number = level};
    if (!post_array_level(a->ctx, 0, &command)) {
        object_free(a);
        return post_refused();
    }
    object_publish(a);
    *out = a;
    return 0;
}

/* The same level is the same array. */
CUresult impl_cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle, unsigned int level) {
    struct shim_array *all;
    int rc = array_find_levels(handle, &all);
    if (rc) return rc;
    if (!out || level >= all->levels) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (!all->of_level[level]) rc = level_new(all, level, &all->of_level[level]);
    if (!rc) *out = (CUarray)all->of_level[level];
    pthread_mutex_unlock(&lock);
    return rc;
}

static void describe(const struct shim_array *a, CUDA_ARRAY_DESCRIPTOR *out) {
    *out = (CUDA_ARRAY_DESCRIPTOR){a->shape.Width, a->shape.Height, a->shape.Format, a->shape.NumChannels};
}

CUresult impl_cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR *out, CUarray handle) {
    struct shim_array *a;
    int rc = array_find(handle, &a);
    if (!rc && !out) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) describe(a, out);
    return rc;
}

CUresult impl_cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray handle) {
    struct shim_array *a;
    int rc = array_find(handle, &a);
    if (!rc && !out) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = a->shape;
    return rc;
}

/* What none of these arrays has: the driver says so by CUDA_ERROR_INVALID_VALUE. */
static int has_not(int found) { return found ? found : (int)CUDA_ERROR_INVALID_VALUE; }

CUresult impl_cuArrayGetPlane(CUarray *out, CUarray handle, unsigned int plane) {
    struct shim_array *a;
    (void)out, (void)plane;
    return has_not(array_find(handle, &a));
}

CUresult impl_cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUarray handle) {
    struct shim_array *a;
    (void)out;
    return has_not(array_find(handle, &a));
}

CUresult impl_cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray handle, CUdevice device) {
    struct shim_array *a;
    (void)out, (void)device;
    return has_not(array_find(handle, &a));
}

CUresult impl_cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUmipmappedArray handle) {
    struct shim_array *a;
    (void)out;
    return has_not(array_find_levels(handle, &a));
}

CUresult impl_cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray handle, CUdevice device) {
    struct shim_array *a;
    (void)out, (void)device;
    return has_not(array_find_levels(handle, &a));
}

/* ---- destroyed ---- */

static void end(struct shim_array *a) {
    if (a->context->id == a->ctx && atomic_load(&a->context->object.live))
        post_array_destroy(a->ctx, 0, &(struct gv_cmd_array_destroy){.array = a->object.id});
    free(a->of_level);
    a->of_level = NULL;
    object_free(a);
}

CUresult impl_cuArrayDestroy(CUarray handle) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_array *a = object_get(OBJECT_ARRAY, handle);
    if (!a || a->levels) return CUDA_ERROR_INVALID_HANDLE;
    if (a->is_level) return CUDA_ERROR_INVALID_VALUE;
    if (!object_retire(a)) return CUDA_ERROR_INVALID_HANDLE;
    end(a);
    return session_broken();
}

CUresult impl_cuMipmappedArrayDestroy(CUmipmappedArray handle) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_array *a = object_get(OBJECT_ARRAY, handle);
    if (!a || !a->levels || !object_retire(a))
        return handle ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_HANDLE; /* the first as the driver does */
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < a->levels; i++)
        if (a->of_level[i] && object_retire(a->of_level[i])) end(a->of_level[i]);
    pthread_mutex_unlock(&lock);
    end(a);
    return session_broken();
}
