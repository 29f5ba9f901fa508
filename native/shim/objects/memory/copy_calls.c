/* The driver's copy and fill calls. Those without a stream argument work on shim_default_stream. */
#include "objects/array.h"
#include "objects/graph/graph.h"
#include "objects/memory/array_copy.h"
#include "gv_impl.h"

static struct copy_side device_side(CUdeviceptr address, size_t size) {
    return (struct copy_side){.where = COPY_DEVICE, .address = address, .pitch = size, .slice = size};
}

static struct copy_side host_side(const void *address, size_t size) {
    return (struct copy_side){.where = COPY_HOST, .address = (uint64_t)(uintptr_t)address, .pitch = size, .slice = size};
}

static struct copy_side any_side(CUdeviceptr address, size_t size) {
    return (struct copy_side){.where = COPY_ANYWHERE, .address = address, .pitch = size, .slice = size};
}

/* A row of an array, from a byte on; the driver takes such offsets of rows alone. */
static int array_side(CUarray handle, size_t offset, struct copy_side *out) {
    struct shim_array *a;
    int rc = array_find(handle, &a);
    if (!rc && array_rows(a) * array_slices(a) > 1) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = (struct copy_side){.where = COPY_ARRAY, .array = a, .at = {offset}};
    return rc;
}

static int copy_row(CUstream stream, struct copy_side dst, struct copy_side src, size_t size, bool wait) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    return rc ? rc : array_copy_box(s, &dst, &src, &(struct copy_box){.width = size, .height = 1, .depth = 1}, wait);
}

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

CUresult impl_cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t size) {
    return copy_row(shim_default_stream, device_side(dst, size), host_side(src, size), size, true);
}

CUresult impl_cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t size, CUstream stream) {
    return copy_row(stream, device_side(dst, size), host_side(src, size), size, false);
}

CUresult impl_cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t size) {
    return copy_row(shim_default_stream, host_side(dst, size), device_side(src, size), size, true);
}

CUresult impl_cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t size, CUstream stream) {
    return copy_row(stream, host_side(dst, size), device_side(src, size), size, false);
}

CUresult impl_cuMemcpyDtoD(CUdeviceptr dst, CUdeviceptr src, size_t size) {
    return copy_row(shim_default_stream, device_side(dst, size), device_side(src, size), size, true);
}

CUresult impl_cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) {
    return copy_row(stream, device_side(dst, size), device_side(src, size), size, false);
}

CUresult impl_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t size) {
    return copy_row(shim_default_stream, any_side(dst, size), any_side(src, size), size, true);
}

CUresult impl_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) {
    return copy_row(stream, any_side(dst, size), any_side(src, size), size, false);
}

/* Addresses are unique among the devices of a session, so the two contexts are only checked, and may be left out. */
static int check_peers(CUcontext dst, CUcontext src) {
    return (!dst || context_get(dst)) && (!src || context_get(src)) ? 0 : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult impl_cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t size) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    int rc = check_peers(dst_context, src_context);
    return rc ? rc : copy_row(shim_default_stream, device_side(dst, size), device_side(src, size), size, true);
}

CUresult impl_cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t size, CUstream stream) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    int rc = check_peers(dst_context, src_context);
    return rc ? rc : copy_row(stream, device_side(dst, size), device_side(src, size), size, false);
}

CUresult impl_cuMemcpyHtoAAsync(CUarray dst, size_t offset, const void *src, size_t size, CUstream stream) {
    struct copy_side to;
    int rc = array_side(dst, offset, &to);
    return rc ? rc : copy_row(stream, to, host_side(src, size), size, false);
}

CUresult impl_cuMemcpyHtoA(CUarray dst, size_t offset, const void *src, size_t size) {
    struct copy_side to;
    int rc = array_side(dst, offset, &to);
    return rc ? rc : copy_row(shim_default_stream, to, host_side(src, size), size, true);
}

CUresult impl_cuMemcpyAtoHAsync(void *dst, CUarray src, size_t offset, size_t size, CUstream stream) {
    struct copy_side from;
    int rc = array_side(src, offset, &from);
    return rc ? rc : copy_row(stream, host_side(dst, size), from, size, false);
}

CUresult impl_cuMemcpyAtoH(void *dst, CUarray src, size_t offset, size_t size) {
    struct copy_side from;
    int rc = array_side(src, offset, &from);
    return rc ? rc : copy_row(shim_default_stream, host_side(dst, size), from, size, true);
}

CUresult impl_cuMemcpyDtoA(CUarray dst, size_t offset, CUdeviceptr src, size_t size) {
    struct copy_side to;
    int rc = array_side(dst, offset, &to);
    return rc ? rc : copy_row(shim_default_stream, to, device_side(src, size), size, true);
}

CUresult impl_cuMemcpyAtoD(CUdeviceptr dst, CUarray src, size_t offset, size_t size) {
    struct copy_side from;
    int rc = array_side(src, offset, &from);
    return rc ? rc : copy_row(shim_default_stream, device_side(dst, size), from, size, true);
}

CUresult impl_cuMemcpyAtoA(CUarray dst, size_t dst_offset, CUarray src, size_t src_offset, size_t size) {
    struct copy_side to, from;
    int rc = array_side(dst, dst_offset, &to);
    if (!rc) rc = array_side(src, src_offset, &from);
    return rc ? rc : copy_row(shim_default_stream, to, from, size, true);
}

/* ---- rectangles and boxes ------------------------------------------------------------------------------------------ */

/* One side of a rectangular copy as the driver's structures describe it. */
struct described {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z, pitch, height;
};

static int describe_array(const struct described *d, struct copy_side *out) {
    struct shim_array *a;
    int rc = array_find(d->array, &a);
    if (!rc) *out = (struct copy_side){.where = COPY_ARRAY, .array = a, .at = {d->x, d->y, d->z}};
    return rc;
}

static int describe(const struct described *d, size_t width, size_t rows, struct copy_side *out) {
    if (d->type == CU_MEMORYTYPE_ARRAY) return describe_array(d, out);
    uint64_t pitch = d->pitch ? d->pitch : d->x + width, height = d->height ? d->height : rows, offset;
    if (d->pitch && rows > 1 && (d->x > SIZE_MAX - width || d->pitch < d->x + width)) return CUDA_ERROR_INVALID_VALUE;
    switch ((int)d->type) {
    case CU_MEMORYTYPE_HOST: *out = host_side(d->host, 0); break;
    case CU_MEMORYTYPE_DEVICE: *out = device_side(d->device, 0); break;
    case CU_MEMORYTYPE_UNIFIED: *out = any_side(d->device, 0); break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t slice, rows_before;
    if (__builtin_mul_overflow(pitch, height, &slice) || __builtin_mul_overflow(slice, (uint64_t)d->z, &offset)) return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_mul_overflow(pitch, (uint64_t)d->y, &rows_before) || __builtin_add_overflow(offset, rows_before, &offset))
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_add_overflow(offset, (uint64_t)d->x, &offset) || __builtin_add_overflow(out->address, offset, &out->address))
        return CUDA_ERROR_INVALID_VALUE;
    out->pitch = pitch;
    out->slice = slice;
    return 0;
}

static int copy_described(CUstream stream, const struct described *dst, const struct described *src, struct copy_box box, bool wait) {
    struct shim_stream *s;
    struct copy_side to, from;
    int rc = stream_require(stream, &s);
    if (!rc) rc = describe(dst, box.width, box.height, &to);
    if (!rc) rc = describe(src, box.width, box.height, &from);
    return rc ? rc : array_copy_box(s, &to, &from, &box, wait);
}

static int copy_2d(const CUDA_MEMCPY2D *p, CUstream stream, bool wait) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    struct described dst = {.type = p->dstMemoryType,
                            .host = p->dstHost,
                            .device = p->dstDevice,
                            .array = p->dstArray,
                            .x = p->dstXInBytes,
                            .y = p->dstY,
                            .pitch = p->dstPitch};
    struct described src = {.type = p->srcMemoryType,
                            .host = p->srcHost,
                            .device = p->srcDevice,
                            .array = p->srcArray,
                            .x = p->srcXInBytes,
                            .y = p->srcY,
                            .pitch = p->srcPitch};
    return copy_described(stream, &dst, &src, (struct copy_box){.width = p->WidthInBytes, .height = p->Height, .depth = 1}, wait);
}

CUresult impl_cuMemcpy2D(const CUDA_MEMCPY2D *p) { return copy_2d(p, shim_default_stream, true); }

CUresult impl_cuMemcpy2DUnaligned(const CUDA_MEMCPY2D *p) { return copy_2d(p, shim_default_stream, true); }

CUresult impl_cuMemcpy2DAsync(const CUDA_MEMCPY2D *p, CUstream stream) { return copy_2d(p, stream, false); }

/* CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER name these fields alike. */
#define DESCRIBE_3D(p, dst, src)                        \
    struct described dst = {.type = (p)->dstMemoryType, \
                            .host = (p)->dstHost,       \
                            .device = (p)->dstDevice,   \
                            .array = (p)->dstArray,     \
                            .x = (p)->dstXInBytes,      \
                            .y = (p)->dstY,             \
                            .z = (p)->dstZ,             \
                            .pitch = (p)->dstPitch,     \
                            .height = (p)->dstHeight};  \
    struct described src = {.type = (p)->srcMemoryType, \
                            .host = (p)->srcHost,       \
                            .device = (p)->srcDevice,   \
                            .array = (p)->srcArray,     \
                            .x = (p)->srcXInBytes,      \
                            .y = (p)->srcY,             \
                            .z = (p)->srcZ,             \
                            .pitch = (p)->srcPitch,     \
                            .height = (p)->srcHeight}

static int copy_3d(const CUDA_MEMCPY3D *p, CUstream stream, bool wait) {
    if (!p || p->srcLOD || p->dstLOD) return CUDA_ERROR_INVALID_VALUE;
    DESCRIBE_3D(p, dst, src);
    return copy_described(stream, &dst, &src, (struct copy_box){.width = p->WidthInBytes, .height = p->Height, .depth = p->Depth}, wait);
}

CUresult impl_cuMemcpy3D(const CUDA_MEMCPY3D *p) { return copy_3d(p, shim_default_stream, true); }

CUresult impl_cuMemcpy3DAsync(const CUDA_MEMCPY3D *p, CUstream stream) { return copy_3d(p, stream, false); }

int copy_describe(const CUDA_MEMCPY3D *p, struct graph_copy *out) {
    DESCRIBE_3D(p, dst, src);
    out->box = (struct copy_box){.width = p->WidthInBytes, .height = p->Height, .depth = p->Depth};
    int rc = p->WidthInBytes && p->Height && p->Depth ? describe(&dst, out->box.width, out->box.height, &out->dst) : CUDA_ERROR_INVALID_VALUE;
    return rc ? rc : describe(&src, out->box.width, out->box.height, &out->src);
}

static int copy_3d_peer(const CUDA_MEMCPY3D_PEER *p, CUstream stream, bool wait) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!p || p->srcLOD || p->dstLOD) return CUDA_ERROR_INVALID_VALUE;
    int rc = check_peers(p->dstContext, p->srcContext);
    if (rc) return rc;
    DESCRIBE_3D(p, dst, src);
    return copy_described(stream, &dst, &src, (struct copy_box){.width = p->WidthInBytes, .height = p->Height, .depth = p->Depth}, wait);
}

CUresult impl_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *p) { return copy_3d_peer(p, shim_default_stream, true); }

CUresult impl_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *p, CUstream stream) { return copy_3d_peer(p, stream, false); }

/* ---- fills --------------------------------------------------------------------------------------------------------- */

static int fill(CUstream stream, CUdeviceptr dst, size_t pitch, unsigned element, uint32_t value, size_t width, size_t height, bool wait) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    return rc ? rc : copy_fill(s, dst, pitch, element, value, width, height, wait);
}

CUresult impl_cuMemsetD8(CUdeviceptr dst, unsigned char value, size_t n) { return fill(shim_default_stream, dst, 0, 1, value, n, 1, true); }

CUresult impl_cuMemsetD16(CUdeviceptr dst, unsigned short value, size_t n) { return fill(shim_default_stream, dst, 0, 2, value, n, 1, true); }

CUresult impl_cuMemsetD32(CUdeviceptr dst, unsigned int value, size_t n) { return fill(shim_default_stream, dst, 0, 4, value, n, 1, true); }

CUresult impl_cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream) { return fill(stream, dst, 0, 1, value, n, 1, false); }

CUresult impl_cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t n, CUstream stream) {
    return fill(stream, dst, 0, 2, value, n, 1, false);
}

CUresult impl_cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t n, CUstream stream) { return fill(stream, dst, 0, 4, value, n, 1, false); }

CUresult impl_cuMemsetD2D8(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height) {
    return fill(shim_default_stream, dst, pitch, 1, value, width, height, true);
}

CUresult impl_cuMemsetD2D16(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height) {
    return fill(shim_default_stream, dst, pitch, 2, value, width, height, true);
}

CUresult impl_cuMemsetD2D32(CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height) {
    return fill(shim_default_stream, dst, pitch, 4, value, width, height, true);
}

CUresult impl_cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream) {
    return fill(stream, dst, pitch, 1, value, width, height, false);
}

CUresult impl_cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream) {
    return fill(stream, dst, pitch, 2, value, width, height, false);
}

CUresult impl_cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height, CUstream stream) {
    return fill(stream, dst, pitch, 4, value, width, height, false);
}
