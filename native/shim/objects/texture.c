/* Texture objects and tensor maps. Device code reads their values, so the worker's driver creates them; descriptors are kept here for the program's queries. */
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/objects.h"

#include <stdlib.h>
#include <string.h>

struct texture {
    struct texture *next;
    CUtexObject object;
    uint32_t ctx;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC sampling;
    CUDA_RESOURCE_VIEW_DESC view;
    bool has_view;
};

static struct texture *textures;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Copies the descriptors of a texture of any context. */
static int find(CUtexObject object, struct texture *out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    int rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (const struct texture *t = textures; t; t = t->next) {
        if (t->object != object) continue;
        *out = *t;
        rc = 0;
        break;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static int describe(const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *sampling, struct gv_cmd_texture_create *c) {
    c->kind = resource->resType;
    switch (resource->resType) {
    case CU_RESOURCE_TYPE_LINEAR:
        c->address = resource->res.linear.devPtr;
        c->format = resource->res.linear.format;
        c->channels = resource->res.linear.numChannels;
        c->width = resource->res.linear.sizeInBytes;
        break;
    case CU_RESOURCE_TYPE_PITCH2D:
        c->address = resource->res.pitch2D.devPtr;
        c->format = resource->res.pitch2D.format;
        c->channels = resource->res.pitch2D.numChannels;
        c->width = resource->res.pitch2D.width;
        c->height = resource->res.pitch2D.height;
        c->pitch = resource->res.pitch2D.pitchInBytes;
        break;
    default: shim_log_once("cuTexObjectCreate: textures of arrays are not supported yet"); return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!c->address || (c->channels != 1 && c->channels != 2 && c->channels != 4)) return CUDA_ERROR_INVALID_VALUE;
    c->flags = sampling->flags;
    c->filter = sampling->filterMode;
    for (int i = 0; i < 3; i++) c->modes[i] = sampling->addressMode[i];
    return 0;
}

CUresult impl_cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *sampling,
                                const CUDA_RESOURCE_VIEW_DESC *view) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!out || !resource || !sampling) return CUDA_ERROR_INVALID_VALUE;
    struct gv_cmd_texture_create command = {0};
    rc = describe(resource, sampling, &command);
    if (rc) return rc;
    struct texture *t = calloc(1, sizeof *t);
    if (!t) return CUDA_ERROR_OUT_OF_MEMORY;
    struct session_reply reply;
    struct gv_reply_texture_create answer;
    rc = call_texture_create(c->id, &command, &answer, &reply);
    session_reply_done(&reply);
    if (rc == CUDA_ERROR_NOT_SUPPORTED)
        shim_log_once("cuTexObjectCreate: this device has textures of linear memory only, read by the element's number; a kernel can read pitched "
                      "memory as it is");
    if (rc) {
        free(t);
        return rc;
    }
    t->object = answer.object;
    t->ctx = c->id;
    t->resource = *resource;
    t->sampling = *sampling;
    t->has_view = view != NULL;
    if (view) t->view = *view;
    pthread_mutex_lock(&lock);
    t->next = textures;
    textures = t;
    pthread_mutex_unlock(&lock);
    *out = answer.object;
    return CUDA_SUCCESS;
}

CUresult impl_cuTexObjectDestroy(CUtexObject object) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    pthread_mutex_lock(&lock);
    struct texture **at = &textures, *t;
    while (*at && (*at)->object != object) at = &(*at)->next;
    t = *at;
    if (t) *at = t->next;
    pthread_mutex_unlock(&lock);
    if (!t) return CUDA_ERROR_INVALID_VALUE;
    post_texture_destroy(t->ctx, 0, &(struct gv_cmd_texture_destroy){.object = object});
    free(t);
    return session_broken();
}

CUresult impl_cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject object) {
    struct texture t;
    int rc = find(object, &t);
    if (!rc && !out) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = t.resource;
    return rc;
}

CUresult impl_cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *out, CUtexObject object) {
    struct texture t;
    int rc = find(object, &t);
    if (!rc && !out) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = t.sampling;
    return rc;
}

CUresult impl_cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out, CUtexObject object) {
    struct texture t;
    int rc = find(object, &t);
    if (!rc && (!out || !t.has_view)) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = t.view;
    return rc;
}

static size_t format_size(CUarray_format format) {
    switch (format) {
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

CUresult impl_cuDeviceGetTexture1DLinearMaxWidth(size_t *out, CUarray_format format, unsigned channels, CUdevice device) {
    (void)device;
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !format_size(format) || (channels != 1 && channels != 2 && channels != 4)) return CUDA_ERROR_INVALID_VALUE;
    *out = (size_t)1 << 28; /* elements, as MAXIMUM_TEXTURE1D_LINEAR_WIDTH has it */
    return CUDA_SUCCESS;
}

CUresult impl_cuTensorMapEncodeTiled(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,
                                     const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    struct shim_context *c;
    int rc = context_any(&c);
    if (rc) return rc;
    if (!out || !address || !rank || rank > 5 || !dims || (rank > 1 && !strides) || !box || !steps) return CUDA_ERROR_INVALID_VALUE;
    struct gv_cmd_tensor_map command = {.type = type,
                                        .rank = rank,
                                        .interleave = interleave,
                                        .swizzle = swizzle,
                                        .promotion = promotion,
                                        .fill = fill,
                                        .address = (uint64_t)(uintptr_t)address,
                                        .dims = dims,
                                        .dims_size = rank * 8,
                                        .strides = strides,
                                        .strides_size = (rank - 1) * 8,
                                        .box = box,
                                        .box_size = rank * 4,
                                        .steps = steps,
                                        .steps_size = rank * 4};
    struct session_reply reply;
    struct gv_reply_tensor_map answer;
    rc = call_tensor_map(c->id, &command, &answer, &reply);
    if (!rc && answer.map_size != sizeof *out) rc = CUDA_ERROR_UNKNOWN;
    if (!rc) memcpy(out, answer.map, sizeof *out);
    session_reply_done(&reply);
    return rc;
}
