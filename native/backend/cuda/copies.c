/* Copies and fills as the driver's own calls. */
#include "backend_cuda.h"

static bool plain(const struct gv_shape *s) { return s->depth == 1 && (s->height == 1 || (s->dst_pitch == s->width && s->src_pitch == s->width)); }

/* Whether a box in device memory is the session's. */
static bool owned(struct gv_stream *s, uint64_t address, uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice) {
    uint64_t rows, slices, size;
    if (!width || !height || !depth) return true;
    if (__builtin_mul_overflow(height - 1, pitch, &rows) || __builtin_mul_overflow(depth - 1, slice, &slices) ||
        __builtin_add_overflow(rows, slices, &size) || __builtin_add_overflow(size, width, &size))
        return false;
    return cuda_memory_owned(s->context, address, size);
}
bool cuda_dst_owned(struct gv_stream *s, uint64_t address, const struct gv_shape *box) {
    return owned(s, address, box->width, box->height, box->depth, box->dst_pitch, box->dst_slice);
}
bool cuda_src_owned(struct gv_stream *s, uint64_t address, const struct gv_shape *box) {
    return owned(s, address, box->width, box->height, box->depth, box->src_pitch, box->src_slice);
}

static CUDA_MEMCPY3D cuboid(const struct gv_shape *s) {
    CUDA_MEMCPY3D copy = {.WidthInBytes = s->width,
                          .Height = s->height,
                          .Depth = s->depth,
                          .dstPitch = s->dst_pitch,
                          .srcPitch = s->src_pitch,
                          .dstHeight = s->dst_slice && s->dst_pitch ? s->dst_slice / s->dst_pitch : s->height,
                          .srcHeight = s->src_slice && s->src_pitch ? s->src_slice / s->src_pitch : s->height};
    return copy;
}

int cuda_copy_to_device(struct gv_stream *s, uint64_t dst, const void *src, const struct gv_shape *shape) {
    struct driver *d = &s->context->b->driver;
    int status = cuda_dst_owned(s, dst, shape) ? cuda_enter(s->context) : CUDA_ERROR_INVALID_VALUE;
    if (status) return status;
    if (plain(shape)) return d->copy_in(dst, src, shape->width * shape->height, s->stream);
    CUDA_MEMCPY3D copy = cuboid(shape);
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = src;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = dst;
    return d->copy_3d(&copy, s->stream);
}

int cuda_copy_to_host(struct gv_stream *s, void *dst, uint64_t src, const struct gv_shape *shape) {
    struct driver *d = &s->context->b->driver;
    int status = cuda_src_owned(s, src, shape) ? cuda_enter(s->context) : CUDA_ERROR_INVALID_VALUE;
    if (status) return status;
    if (plain(shape)) return d->copy_out(dst, src, shape->width * shape->height, s->stream);
    CUDA_MEMCPY3D copy = cuboid(shape);
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = src;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = dst;
    return d->copy_3d(&copy, s->stream);
}

int cuda_copy_device(struct gv_stream *s, uint64_t dst, struct gv_context *dst_ctx, uint64_t src, struct gv_context *src_ctx,
                     const struct gv_shape *shape) {
    struct driver *d = &s->context->b->driver;
    int status = cuda_dst_owned(s, dst, shape) && cuda_src_owned(s, src, shape) ? cuda_enter(s->context) : CUDA_ERROR_INVALID_VALUE;
    if (status) return status;
    bool same = dst_ctx->context == src_ctx->context;
    if (plain(shape)) {
        uint64_t size = shape->width * shape->height;
        return same ? d->copy_device(dst, src, size, s->stream) : d->copy_peer(dst, dst_ctx->context, src, src_ctx->context, size, s->stream);
    }
    CUDA_MEMCPY3D copy = cuboid(shape);
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = src;
    copy.dstDevice = dst;
    if (same) return d->copy_3d(&copy, s->stream);
    CUDA_MEMCPY3D_PEER peer = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                               .srcDevice = src,
                               .srcContext = src_ctx->context,
                               .srcPitch = copy.srcPitch,
                               .srcHeight = copy.srcHeight,
                               .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                               .dstDevice = dst,
                               .dstContext = dst_ctx->context,
                               .dstPitch = copy.dstPitch,
                               .dstHeight = copy.dstHeight,
                               .WidthInBytes = copy.WidthInBytes,
                               .Height = copy.Height,
                               .Depth = copy.Depth};
    return d->copy_3d_peer(&peer, s->stream);
}

int cuda_fill(struct gv_stream *s, uint64_t dst, uint64_t pitch, uint32_t elem, uint32_t value, uint64_t width, uint64_t height) {
    struct driver *d = &s->context->b->driver;
    uint64_t bytes;
    if (__builtin_mul_overflow(width, (uint64_t)elem, &bytes) || !owned(s, dst, bytes, height, 1, pitch, 0)) return CUDA_ERROR_INVALID_VALUE;
    int status = cuda_enter(s->context);
    if (status) return status;
    bool row = height == 1;
    switch (elem) {
    case 1:
        return row ? d->fill_row_8(dst, (unsigned char)value, width, s->stream)
                   : d->fill_8(dst, pitch, (unsigned char)value, width, height, s->stream);
    case 2:
        return row ? d->fill_row_16(dst, (unsigned short)value, width, s->stream)
                   : d->fill_16(dst, pitch, (unsigned short)value, width, height, s->stream);
    case 4: return row ? d->fill_row_32(dst, value, width, s->stream) : d->fill_32(dst, pitch, value, width, height, s->stream);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}
