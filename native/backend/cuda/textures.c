/* The cuda backend: texture objects and tensor maps, made by the driver. */
#include <string.h>

#include "backend_cuda.h"

int cuda_texture_of(struct gv_context *c, const CUDA_RESOURCE_DESC *resource, const struct gv_texture *texture, uint64_t *object) {
    CUDA_TEXTURE_DESC sampling;
    memset(&sampling, 0, sizeof sampling);
    for (int i = 0; i < 3; i++) sampling.addressMode[i] = (CUaddress_mode)texture->modes[i];
    sampling.filterMode = (CUfilter_mode)texture->filter;
    sampling.flags = texture->flags;
    sampling.mipmapFilterMode = (CUfilter_mode)texture->mip_filter;
    sampling.mipmapLevelBias = texture->bias;
    sampling.minMipmapLevelClamp = texture->least;
    sampling.maxMipmapLevelClamp = texture->most;
    memcpy(sampling.borderColor, texture->border, sizeof sampling.borderColor);
    CUtexObject made = 0;
    int status = c->n_textures < GV_TEXTURES_MAX ? cuda_enter(c) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) status = c->b->driver.texture_create(&made, resource, &sampling, NULL);
    if (!status) c->n_textures++;
    *object = made;
    return status;
}

int cuda_texture_create(struct gv_context *c, const struct gv_texture *texture, uint64_t *object) {
    CUDA_RESOURCE_DESC resource;
    memset(&resource, 0, sizeof resource);
    resource.resType = (CUresourcetype)texture->kind;
    if (resource.resType == CU_RESOURCE_TYPE_LINEAR) {
        resource.res.linear.devPtr = texture->address;
        resource.res.linear.format = (CUarray_format)texture->format;
        resource.res.linear.numChannels = texture->channels;
        resource.res.linear.sizeInBytes = texture->width;
    } else if (resource.resType == CU_RESOURCE_TYPE_PITCH2D) {
        resource.res.pitch2D.devPtr = texture->address;
        resource.res.pitch2D.format = (CUarray_format)texture->format;
        resource.res.pitch2D.numChannels = texture->channels;
        resource.res.pitch2D.width = texture->width;
        resource.res.pitch2D.height = texture->height;
        resource.res.pitch2D.pitchInBytes = texture->pitch;
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return cuda_texture_of(c, &resource, texture, object);
}

int cuda_texture_destroy(struct gv_context *c, uint64_t object) {
    int status = cuda_enter(c);
    if (!status) status = c->b->driver.texture_destroy(object);
    if (!status && c->n_textures) c->n_textures--;
    return status;
}

int cuda_tensor_map(struct gv_context *c, const struct gv_tensor_map *wanted, void *map) {
    CUtensorMap made;
    int status = cuda_enter(c);
    if (!status && wanted->channels)
        status = c->b->driver.tensor_map_im2col(&made, (CUtensorMapDataType)wanted->type, wanted->rank, (void *)(uintptr_t)wanted->address,
                                                wanted->dims, wanted->strides, wanted->lower, wanted->upper, wanted->channels, wanted->pixels,
                                                wanted->steps, (CUtensorMapInterleave)wanted->interleave, (CUtensorMapSwizzle)wanted->swizzle,
                                                (CUtensorMapL2promotion)wanted->promotion, (CUtensorMapFloatOOBfill)wanted->fill);
    else if (!status)
        status = c->b->driver.tensor_map(&made, (CUtensorMapDataType)wanted->type, wanted->rank, (void *)(uintptr_t)wanted->address, wanted->dims,
                                         wanted->strides, wanted->box, wanted->steps, (CUtensorMapInterleave)wanted->interleave,
                                         (CUtensorMapSwizzle)wanted->swizzle, (CUtensorMapL2promotion)wanted->promotion,
                                         (CUtensorMapFloatOOBfill)wanted->fill);
    if (!status) memcpy(map, &made, sizeof made);
    return status;
}

int cuda_tensor_map_address(struct gv_context *c, void *map, uint64_t address) {
    CUtensorMap changed;
    memcpy(&changed, map, sizeof changed);
    int status = cuda_enter(c);
    if (!status) status = c->b->driver.tensor_map_address(&changed, (void *)(uintptr_t)address);
    if (!status) memcpy(map, &changed, sizeof changed);
    return status;
}
