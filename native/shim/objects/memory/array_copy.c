/* Copies from and to arrays. Between arrays and device memory they are one command; what comes from host memory or goes there passes through device memory that is
 * allocated for it, so that all the ways of host data (payloads, pinned memory, late sources, resuming) are those of other copies. */
#include "objects/managed/managed.h"
#include "objects/memory/array_copy.h"

#include "gv_client.h"
#include "objects/array.h"
#include "objects/graph/graph.h"
#include "objects/memory/copy.h"

#define SCRATCH (32ull << 20) /* bytes of device memory that a copy passes through at a time */

/* Whether a box lies in its array. It need not begin and end with texels. */
static int check_array(const struct copy_side *side, const struct copy_box *box) {
    const struct shim_array *a = side->array;
    uint64_t row = a->shape.Width * array_texel(a), x = side->at[0], y = side->at[1], z = side->at[2];
    if (x > row || box->width > row - x) return CUDA_ERROR_INVALID_VALUE;
    if (y > array_rows(a) || box->height > array_rows(a) - y || z > array_slices(a) || box->depth > array_slices(a) - z)
        return CUDA_ERROR_INVALID_VALUE;
    return 0;
}

static int post_ready(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait) {
    int rc = src->where == COPY_ARRAY ? 0 : copy_managed(s, src, box, false);
    if (!rc && dst->where != COPY_ARRAY) rc = copy_managed(s, dst, box, true);
    if (rc) return rc;
    struct gv_cmd_copy_array c = {.stream = stream_id(s), .width = box->width, .height = box->height, .depth = box->depth};
    if (dst->where == COPY_ARRAY) {
        c.dst_array = dst->array->object.id;
        for (int i = 0; i < 3; i++) c.dst_at[i] = (uint32_t)dst->at[i];
    } else {
        c.dst = dst->address, c.dst_pitch = dst->pitch, c.dst_slice = dst->slice;
    }
    if (src->where == COPY_ARRAY) {
        c.src_array = src->array->object.id;
        for (int i = 0; i < 3; i++) c.src_at[i] = (uint32_t)src->at[i];
    } else {
        c.src = src->address, c.src_pitch = src->pitch, c.src_slice = src->slice;
    }
    bool tell = wait && atomic_load(&s->context->has_unordered_streams);
    uint64_t seq = post_copy_array(stream_ctx(s), tell ? GV_RECORD_MARK : 0, &c);
    if (!seq) return post_refused();
    stream_posted(s, seq, tell);
    if (wait) stream_copied(s, seq);
    return 0;
}

static int post(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait) {
    bool begun = managed_begin();
    int rc = post_ready(s, dst, src, box, wait);
    managed_end(begun);
    return !rc && wait && dst->where != COPY_ARRAY ? copy_settle(s, dst->address) : rc;
}

/* The part of a side that begins so many rows and slices further. */
static struct copy_side part(const struct copy_side *side, uint64_t y, uint64_t z) {
    struct copy_side p = *side;
    p.address += z * side->slice + y * side->pitch;
    p.at[1] += y;
    p.at[2] += z;
    return p;
}

static int pass(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, uint64_t scratch,
                bool wait) {
    struct copy_side between = {.where = COPY_DEVICE, .address = scratch, .pitch = box->width, .slice = box->width * box->height};
    if (dst->where == COPY_ARRAY) {
        int rc = copy_box(s, &between, src, box, wait);
        return rc ? rc : post(s, dst, &between, box, wait);
    }
    int rc = post(s, &between, src, box, false);
    return rc ? rc : copy_box(s, dst, &between, box, wait);
}

/* One side is host memory. */
static int by_way_of_the_device(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box,
                                bool wait) {
    uint64_t slices = box->width * box->height >= SCRATCH ? 1 : SCRATCH / (box->width * box->height);
    uint64_t rows = slices > 1 || box->width * box->height <= SCRATCH ? box->height : box->width >= SCRATCH ? 1 : SCRATCH / box->width;
    for (uint64_t z = 0; z < box->depth;) {
        for (uint64_t y = 0; y < box->height;) {
            struct copy_box piece = {.width = box->width,
                                     .height = box->height - y < rows ? box->height - y : rows,
                                     .depth = box->depth - z < slices ? box->depth - z : slices};
            CUdeviceptr scratch;
            int rc = memory_allocate(s->context, piece.width * piece.height * piece.depth, &scratch);
            if (rc == CUDA_ERROR_OUT_OF_MEMORY && piece.depth > 1) {
                slices = piece.depth / 2;
                continue;
            }
            if (rc == CUDA_ERROR_OUT_OF_MEMORY && piece.height > 1) {
                rows = piece.height / 2;
                continue;
            }
            if (rc) return rc;
            struct copy_side to = part(dst, y, z), from = part(src, y, z);
            rc = pass(s, &to, &from, &piece, scratch, wait);
            memory_release(scratch);
            if (rc) return rc;
            y += piece.height;
            if (y == box->height) z += piece.depth;
        }
    }
    return 0;
}

/* The destination and the source. */
static int check_sides(struct shim_stream *s, struct copy_side sides[2], const struct copy_box *box) {
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++) rc = sides[i].where == COPY_ARRAY ? check_array(&sides[i], box) : copy_check(s, &sides[i], box, i == 0);
    return rc;
}

/* On a stream that captures: what is wrong now is told now. */
static int capture(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait) {
    struct copy_side sides[] = {*dst, *src};
    if (wait) return capture_forbidden(s);
    if (!box->width || !box->height || !box->depth) return 0;
    int rc = check_sides(s, sides, box);
    if (rc) return rc;
    return capture_work(s, &(struct graph_work){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = {sides[0], sides[1], *box}});
}

int array_copy_box(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait) {
    if (stream_captures(s)) return capture(s, dst, src, box, wait);
    if (dst->where != COPY_ARRAY && src->where != COPY_ARRAY) return copy_box(s, dst, src, box, wait);
    if (!box->width || !box->height || !box->depth) return 0;
    struct copy_side sides[] = {*dst, *src};
    int rc = check_sides(s, sides, box);
    if (rc) return rc;
    if (sides[0].where == COPY_HOST || sides[1].where == COPY_HOST) return by_way_of_the_device(s, &sides[0], &sides[1], box, wait);
    return post(s, &sides[0], &sides[1], box, wait);
}
