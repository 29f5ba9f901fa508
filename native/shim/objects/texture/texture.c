/* Texture and surface objects. Device code reads their values, so the worker's driver creates them; descriptors are kept here for the program's
 * queries. */
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/array.h"

#include <stdlib.h>
#include <string.h>

struct texture {
    struct texture *next;
    uint64_t object;
    uint32_t ctx;
    bool surface;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC sampling;
    CUDA_RESOURCE_VIEW_DESC view;
};

static struct texture *textures; /* and surfaces */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Copies the descriptors of a texture or surface of any context. */
static int find(uint64_t object, bool surface, struct texture *out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    int rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (const struct texture *t = textures; t; t = t->next) {
        if (t->object != object || t->surface != surface) continue;
        *out = *t;
        rc = 0;
        break;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static void add(struct texture *t) {
    pthread_mutex_lock(&lock);
    t->next = textures;
    textures = t;
    pthread_mutex_unlock(&lock);
}

/* Takes it out of the list; NULL: there is none. */
static struct texture *take(uint64_t object, bool surface) {
    pthread_mutex_lock(&lock);
    struct texture **at = &textures, *t;
    while (*at && ((*at)->object != object || (*at)->surface != surface)) at = &(*at)->next;
    t = *at;
    if (t) *at = t->next;
    pthread_mutex_unlock(&lock);
    return t;
}

/* ---- textures ---- */

#define KNOWN_FLAGS (CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION)

/* What a texture cannot be, as the driver has it: borders, wrapping and filters need an array or pitched memory, and numbers that are filtered are floats. */
/* A filter that integers cannot have is taken, and has no effect: that it is wrong says the runtime. */
static int check_sampling(const CUDA_TEXTURE_DESC *sampling, bool cube) {
    if (sampling->flags & ~(unsigned)KNOWN_FLAGS) {
        if (!cube || sampling->flags & ~(unsigned)(KNOWN_FLAGS | CU_TRSF_SEAMLESS_CUBEMAP)) return CUDA_ERROR_INVALID_VALUE;
        shim_log_once("cuTexObjectCreate: seamless cube maps are not supported (flags 0x%x)", sampling->flags);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    for (int i = 0; i < 3; i++)
        if ((unsigned)sampling->addressMode[i] > CU_TR_ADDRESS_MODE_BORDER) return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)sampling->filterMode > CU_TR_FILTER_MODE_LINEAR || (unsigned)sampling->mipmapFilterMode > CU_TR_FILTER_MODE_LINEAR)
        return CUDA_ERROR_INVALID_VALUE;
    return 0;
}

static int create_of_memory(struct shim_context *c, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *sampling, uint64_t *object) {
    struct gv_cmd_texture_create command = {.kind = resource->resType, .flags = sampling->flags, .filter = sampling->filterMode};
    if (resource->resType == CU_RESOURCE_TYPE_LINEAR) {
        command.address = resource->res.linear.devPtr;
        command.format = resource->res.linear.format;
        command.channels = resource->res.linear.numChannels;
        command.width = resource->res.linear.sizeInBytes;
    } else {
        command.address = resource->res.pitch2D.devPtr;
        command.format = resource->res.pitch2D.format;
        command.channels = resource->res.pitch2D.numChannels;
        command.width = resource->res.pitch2D.width;
        command.height = resource->res.pitch2D.height;
        command.pitch = resource->res.pitch2D.pitchInBytes;
        if (command.pitch % (uint64_t)device_attribute(c->info, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT)) return CUDA_ERROR_INVALID_VALUE;
    }
    if (!command.address || (command.channels != 1 && command.channels != 2 && command.channels != 4)) return CUDA_ERROR_INVALID_VALUE;
    int rc = check_sampling(sampling, false);
    if (rc) return rc;
    for (int i = 0; i < 3; i++) command.modes[i] = sampling->addressMode[i];
    memcpy(command.border, sampling->borderColor, sizeof command.border);
    struct session_reply reply;
    struct gv_reply_texture_create answer = {0};
    rc = call_texture_create(c->id, &command, &answer, &reply);
    session_reply_done(&reply);
    *object = answer.object;
    return rc;
}

/* The array, or the mipmapped one, that a resource names. */
static int array_of(const CUDA_RESOURCE_DESC *resource, struct shim_array **out) {
    switch (resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY: return array_find(resource->res.array.hArray, out);
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: return array_find_levels(resource->res.mipmap.hMipmappedArray, out);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static int create_of_array(struct shim_context *c, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *sampling, uint64_t *object) {
    struct shim_array *a;
    int rc = array_of(resource, &a);
    if (!rc) rc = check_sampling(sampling, a->shape.Flags & CUDA_ARRAY3D_CUBEMAP);
    if (!rc && a->levels > 1 && !(sampling->flags & CU_TRSF_NORMALIZED_COORDINATES)) rc = CUDA_ERROR_INVALID_VALUE;
    if (rc) return rc;
    struct gv_cmd_array_texture command = {.array = a->object.id,
                                           .flags = sampling->flags,
                                           .filter = sampling->filterMode,
                                           .mip_filter = sampling->mipmapFilterMode,
                                           .bias = sampling->mipmapLevelBias,
                                           .least = sampling->minMipmapLevelClamp,
                                           .most = sampling->maxMipmapLevelClamp};
    for (int i = 0; i < 3; i++) command.modes[i] = sampling->addressMode[i];
    memcpy(command.border, sampling->borderColor, sizeof command.border);
    struct session_reply reply;
    struct gv_reply_array_texture answer = {0};
    rc = call_array_texture(c->id, &command, &answer, &reply);
    session_reply_done(&reply);
    *object = answer.object;
    return rc;
}

/* The format of a view that reads an array as it is; NONE: there is none. The formats of views count: one, two, four channels of the eight formats of arrays. */
static CUresourceViewFormat own_format(const struct shim_array *a) {
    static const uint8_t order[] = {CU_AD_FORMAT_UNSIGNED_INT8,  CU_AD_FORMAT_SIGNED_INT8,  CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_SIGNED_INT16,
                                    CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32, CU_AD_FORMAT_HALF,           CU_AD_FORMAT_FLOAT};
    for (unsigned i = 0; i < sizeof order; i++)
        for (unsigned k = 0; k < 3; k++)
            if (order[i] == (unsigned)a->shape.Format && a->shape.NumChannels == 1u << k) return (CUresourceViewFormat)(1 + 3 * i + k);
    return CU_RES_VIEW_FORMAT_NONE;
}

/* A view that says what the array is anyway changes nothing. */
static int check_view(const CUDA_RESOURCE_DESC *resource, const CUDA_RESOURCE_VIEW_DESC *view) {
    struct shim_array *a;
    int rc = array_of(resource, &a);
    if (rc) return rc;
    bool all_layers = !view->firstLayer && (!view->lastLayer || view->lastLayer + 1 == array_slices(a));
    bool all_levels = !view->firstMipmapLevel && (!view->lastMipmapLevel || view->lastMipmapLevel + 1 == a->levels);
    bool own = view->format == CU_RES_VIEW_FORMAT_NONE || view->format == own_format(a);
    if (own && all_layers && all_levels && view->width == a->shape.Width) return 0;
    shim_log_once("cuTexObjectCreate: views that read an array as another format, or a part of its layers or levels, are not supported");
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* What is told of a texture without a view of its own: that of the whole array. */
static CUDA_RESOURCE_VIEW_DESC own_view(const CUDA_RESOURCE_DESC *resource) {
    struct shim_array *a;
    int rc = array_of(resource, &a);
    if (rc) return (CUDA_RESOURCE_VIEW_DESC){.format = CU_RES_VIEW_FORMAT_NONE};
    return (CUDA_RESOURCE_VIEW_DESC){.format = own_format(a),
                                     .width = a->shape.Width,
                                     .height = a->shape.Height,
                                     .depth = a->shape.Depth,
                                     .lastMipmapLevel = a->levels ? a->levels - 1 : 0,
                                     .lastLayer = (unsigned)array_slices(a) - 1};
}

CUresult impl_cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *sampling,
                                const CUDA_RESOURCE_VIEW_DESC *view) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!out || !resource || !sampling || (unsigned)resource->resType > CU_RESOURCE_TYPE_PITCH2D || resource->flags) return CUDA_ERROR_INVALID_VALUE;
    rc = view ? check_view(resource, view) : 0;
    if (rc) return rc;
    struct texture *t = calloc(1, sizeof *t);
    if (!t) return CUDA_ERROR_OUT_OF_MEMORY;
    bool memory = resource->resType == CU_RESOURCE_TYPE_LINEAR || resource->resType == CU_RESOURCE_TYPE_PITCH2D;
    rc = memory ? create_of_memory(c, resource, sampling, &t->object) : create_of_array(c, resource, sampling, &t->object);
    if (rc) {
        free(t);
        return rc;
    }
    t->ctx = c->id;
    t->resource = *resource;
    t->sampling = *sampling;
    if (view)
        t->view = *view;
    else if (!memory)
        t->view = own_view(resource);
    *out = t->object;
    add(t);
    return CUDA_SUCCESS;
}

CUresult impl_cuTexObjectDestroy(CUtexObject object) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    struct texture *t = take(object, false);
    if (!t) return CUDA_SUCCESS; /* drivers do not look whether it is one: programs end what they never made */
    post_texture_destroy(t->ctx, 0, &(struct gv_cmd_texture_destroy){.object = object});
    free(t);
    return session_broken();
}

CUresult impl_cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject object) {
    struct texture t;
    int rc = find(object, false, &t);
    if (!rc && !out) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = t.resource;
    return rc;
}

CUresult impl_cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *out, CUtexObject object) {
    struct texture t;
    int rc = find(object, false, &t);
    if (!rc && !out) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = t.sampling;
    return rc;
}

CUresult impl_cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out, CUtexObject object) {
    struct texture t;
    int rc = find(object, false, &t);
    if (!rc && !out) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = t.view;
    return rc;
}

/* ---- surfaces ---- */

CUresult impl_cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource) {
    struct shim_context *c;
    struct shim_array *a;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!out || !resource || resource->resType != CU_RESOURCE_TYPE_ARRAY || resource->flags) return CUDA_ERROR_INVALID_VALUE;
    rc = array_find(resource->res.array.hArray, &a); /* CUDA_ARRAY3D_SURFACE_LDST is not looked for, as by drivers */
    if (rc) return rc;
    struct texture *t = calloc(1, sizeof *t);
    if (!t) return CUDA_ERROR_OUT_OF_MEMORY;
    struct session_reply reply;
    struct gv_reply_surface_create answer = {0};
    rc = call_surface_create(c->id, &(struct gv_cmd_surface_create){.array = a->object.id}, &answer, &reply);
    session_reply_done(&reply);
    if (rc) {
        free(t);
        return rc;
    }
    *t = (struct texture){.object = answer.object, .ctx = c->id, .surface = true, .resource = *resource};
    *out = t->object;
    add(t);
    return CUDA_SUCCESS;
}

CUresult impl_cuSurfObjectDestroy(CUsurfObject object) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    struct texture *t = take(object, true);
    if (!t) return CUDA_SUCCESS;
    post_surface_destroy(t->ctx, 0, &(struct gv_cmd_surface_destroy){.object = object});
    free(t);
    return session_broken();
}

CUresult impl_cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUsurfObject object) {
    struct texture t;
    int rc = find(object, true, &t);
    if (!rc && !out) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = t.resource;
    return rc;
}

/* ---- attributes ---- */

CUresult impl_cuDeviceGetTexture1DLinearMaxWidth(size_t *out, CUarray_format format, unsigned channels, CUdevice device) {
    (void)device;
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !array_format_size(format) || (channels != 1 && channels != 2 && channels != 4)) return CUDA_ERROR_INVALID_VALUE;
    *out = (size_t)1 << 28; /* elements, as MAXIMUM_TEXTURE1D_LINEAR_WIDTH has it */
    return CUDA_SUCCESS;
}
