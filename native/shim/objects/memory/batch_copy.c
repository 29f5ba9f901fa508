/* Batches of copies, and copies with attributes: one copy after the other on the stream. Hints where an operand lies change nothing. */
#include "gv_impl.h"
#include "objects/array.h"
#include "objects/memory/array_copy.h"

/* Whether the source has been read when the call returns, as DURING_API_CALL asks: what is not pinned has been, and for what is pinned it waits. */
static int check_order(CUmemcpySrcAccessOrder order, bool *wait) {
    *wait = order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY ? 0 : CUDA_ERROR_INVALID_VALUE;
}

/* A batch does not run on the legacy stream. */
static int stream_of(CUstream stream, struct shim_stream **out) {
    int rc = stream_require(stream, out);
    return !rc && stream_is_default(*out) ? (int)CUDA_ERROR_INVALID_VALUE : rc;
}

static int copy_one(struct shim_stream *s, CUdeviceptr dst, CUdeviceptr src, size_t size, const CUmemcpyAttributes *attributes) {
    bool wait;
    struct copy_side to = {.where = COPY_ANYWHERE, .address = dst, .pitch = size, .slice = size};
    struct copy_side from = {.where = COPY_ANYWHERE, .address = src, .pitch = size, .slice = size};
    int rc = check_order(attributes->srcAccessOrder, &wait);
    return rc ? rc : array_copy_box(s, &to, &from, &(struct copy_box){.width = size, .height = 1, .depth = 1}, wait);
}

CUresult impl_cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *first,
                                    size_t n_attributes, CUstream stream) {
    struct shim_stream *s;
    int rc = stream_of(stream, &s);
    if (rc) return rc;
    if (!dsts || !srcs || !sizes || !count || !attributes || !first || !n_attributes || n_attributes > count || first[0])
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 1; i < n_attributes; i++)
        if (first[i] <= first[i - 1] || first[i] >= count) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, which = 0; i < count && !rc; i++) {
        if (which + 1 < n_attributes && first[which + 1] == i) which++;
        rc = copy_one(s, dsts[i], srcs[i], sizes[i], &attributes[which]);
    }
    return rc;
}

CUresult impl_cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *first,
                                 size_t n_attributes, size_t *failed, CUstream stream) {
    int rc = impl_cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attributes, first, n_attributes, stream);
    if (rc && failed) *failed = SIZE_MAX; /* it is not said which */
    return rc;
}

CUresult impl_cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUmemcpyAttributes *attributes, CUstream stream) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    return attributes ? copy_one(s, dst, src, size, attributes) : (int)CUDA_ERROR_INVALID_VALUE;
}

/* An operand's array; NULL: it is memory. */
static int array_of(const CUmemcpy3DOperand *o, struct shim_array **out) {
    *out = NULL;
    if (o->type == CU_MEMCPY_OPERAND_TYPE_POINTER) return 0;
    return o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? array_find(o->op.array.array, out) : (int)CUDA_ERROR_INVALID_VALUE;
}

/* Sizes count elements: texels of the array, or bytes where there is none. */
static struct copy_side side_of(const CUmemcpy3DOperand *o, struct shim_array *a, const CUextent3D *extent, size_t element) {
    if (a)
        return (struct copy_side){
            .where = COPY_ARRAY, .array = a, .at = {o->op.array.offset.x * element, o->op.array.offset.y, o->op.array.offset.z}};
    size_t row = (o->op.ptr.rowLength ? o->op.ptr.rowLength : extent->width) * element;
    size_t rows = o->op.ptr.layerHeight ? o->op.ptr.layerHeight : extent->height;
    return (struct copy_side){.where = COPY_ANYWHERE, .address = o->op.ptr.ptr, .pitch = row, .slice = row * rows};
}

static int copy_box_of(struct shim_stream *s, const CUDA_MEMCPY3D_BATCH_OP *op) {
    struct shim_array *to, *from;
    bool wait;
    int rc = check_order(op->srcAccessOrder, &wait);
    if (!rc) rc = array_of(&op->dst, &to);
    if (!rc) rc = array_of(&op->src, &from);
    if (!rc && (!op->extent.width || !op->extent.height || !op->extent.depth)) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc && to && from && array_texel(to) != array_texel(from)) rc = CUDA_ERROR_INVALID_VALUE;
    if (rc) return rc;
    size_t element = to ? array_texel(to) : from ? array_texel(from) : 1;
    struct copy_side dst = side_of(&op->dst, to, &op->extent, element), src = side_of(&op->src, from, &op->extent, element);
    struct copy_box box = {.width = op->extent.width * element, .height = op->extent.height, .depth = op->extent.depth};
    return array_copy_box(s, &dst, &src, &box, wait);
}

CUresult impl_cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream stream) {
    struct shim_stream *s;
    int rc = stream_of(stream, &s);
    if (!rc && (!count || !ops || flags)) rc = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && !rc; i++) rc = copy_box_of(s, &ops[i]);
    return rc;
}

CUresult impl_cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed, unsigned long long flags, CUstream stream) {
    int rc = impl_cuMemcpy3DBatchAsync_v2(count, ops, flags, stream);
    if (rc && failed) *failed = SIZE_MAX;
    return rc;
}

CUresult impl_cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream stream) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    return op && !flags ? copy_box_of(s, op) : (int)CUDA_ERROR_INVALID_VALUE;
}
