/* Copies and fills. Each call is translated to a box of width x height x depth between two sides, each a device range or host memory, and each box to commands.
 *
 * Host to device: small data travels in the record, more on the bulk channel. The call returns when the source may be reused; an asynchronous call
 * from pinned memory returns at once, and the link sends from that memory. Device to host: the session writes the bytes to their destination before it publishes the
 * stream's completion. The driver's calls are in copy_calls.c. */
#include "objects/ipc.h"
#include "objects/graph/graph.h"

#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "objects/managed/managed.h"
#include "objects/managed/shadow.h"
#include "objects/memory/host_mapping.h"
#include "wire/session_limits.h"

/* Rows that are not contiguous are sent in pieces of about this many bytes. */
#define PIECE (4ull << 20)
/* Copies to the device of at most this many bytes are looked through for pointers to pinned memory: structures that kernels read. */
#define STRUCTURES 4096
/* Most pieces in flight of a copy that the call waits for. */
#define PIECES_UNDER_WAY 16

/* ---- checks -------------------------------------------------------------------------------------------------------- */

/* Bytes from the first byte of a box to the end of its last; 0 when that overflows. */
static uint64_t extent(const struct copy_side *side, const struct copy_box *box) {
    uint64_t rows, slices, all;
    if (__builtin_mul_overflow(side->pitch, box->height - 1, &rows) || __builtin_mul_overflow(side->slice, box->depth - 1, &slices)) return 0;
    if (__builtin_add_overflow(rows, slices, &all) || __builtin_add_overflow(all, box->width, &all)) return 0;
    return all;
}

#define MAY_READ 1u
#define MAY_WRITE 3u

/* Finds the range that contains the whole device side. `rights`: the access that is needed there. */
static int check_device(struct shim_stream *s, struct copy_side *side, const struct copy_box *box, unsigned rights) {
    struct range r;
    uint64_t size = extent(side, box);
    if (!size || !range_find_device(side->address, &r)) return CUDA_ERROR_INVALID_VALUE;
    if (r.kind == RANGE_MAPPED) {
        /* A mapping belongs to no context: the stream's context is used, or the primary context of the device that has the memory. */
        struct shim_context *theirs = r.device == s->context->device ? NULL : context_primary(r.device);
        side->context = theirs && atomic_load(&theirs->object.live) ? theirs : s->context;
        side->ctx = side->context->id;
        return range_mapped(side->address, size, rights) ? 0 : CUDA_ERROR_INVALID_VALUE;
    }
    if (size > r.size - (side->address - range_base(&r))) return CUDA_ERROR_INVALID_VALUE;
    side->ctx = r.ctx;
    side->context = r.context;
    return 0;
}

static int check_host(struct copy_side *side, const struct copy_box *box) {
    struct range r;
    uint64_t size = extent(side, box);
    if (!side->address || !size || size - 1 > UINT64_MAX - side->address) return CUDA_ERROR_INVALID_VALUE;
    if (range_find_host(side->address, &r)) {
        if (size > r.size - (side->address - range_base(&r))) return CUDA_ERROR_INVALID_VALUE;
        side->pinned = true;
    }
    return 0;
}

/* Joins rows that are contiguous on both sides into one row, and slices likewise. */
static void flatten(struct copy_side *a, struct copy_side *b, struct copy_box *box) {
    if (box->height == 1) a->pitch = b->pitch = box->width;
    if (box->height > 1 && a->pitch == box->width && b->pitch == box->width) {
        if (box->depth == 1 || (a->slice == box->width * box->height && b->slice == a->slice)) {
            box->width *= box->height;
            box->height = 1;
            a->pitch = b->pitch = box->width;
        }
    }
    if (box->depth > 1 && box->height == 1 && a->slice == box->width && b->slice == box->width) {
        box->width *= box->depth;
        box->depth = 1;
        a->pitch = b->pitch = box->width;
    }
    if (box->depth > 1 && box->height == 1) { /* a slice of one row is a row */
        box->height = box->depth;
        box->depth = 1;
        a->pitch = a->slice;
        b->pitch = b->slice;
    }
    if (box->depth == 1) {
        a->slice = a->pitch * box->height;
        b->slice = b->pitch * box->height;
    }
}

/* ---- pieces -------------------------------------------------------------------------------------------------------- */

/* A piece of a box between host and device: `rows` rows of `width` bytes. */
struct piece {
    uint64_t device, host;
    uint64_t width, rows;
    uint64_t device_pitch, host_pitch;
    bool last;
};

/* Divides a box into pieces and calls fn for each, until one fails. */
static int each_piece(const struct copy_side *device, const struct copy_side *host, const struct copy_box *box,
                      int (*fn)(void *arg, const struct piece *piece), void *arg) {
    uint64_t rows_each = box->width >= PIECE ? 1 : PIECE / box->width, width_each = box->width < GV_COPY_MAX ? box->width : GV_COPY_MAX;
    for (uint64_t z = 0; z < box->depth; z++) {
        for (uint64_t y = 0; y < box->height; y += rows_each) {
            for (uint64_t x = 0; x < box->width; x += width_each) {
                struct piece p = {
                    .device = device->address + z * device->slice + y * device->pitch + x,
                    .host = host->address + z * host->slice + y * host->pitch + x,
                    .width = box->width - x < width_each ? box->width - x : width_each,
                    .rows = box->height - y < rows_each ? box->height - y : rows_each,
                    .device_pitch = device->pitch,
                    .host_pitch = host->pitch,
                };
                p.last = z + 1 == box->depth && y + p.rows == box->height && x + p.width == box->width;
                int rc = fn(arg, &p);
                if (rc) return rc;
            }
        }
    }
    return 0;
}

/* ---- host to device ------------------------------------------------------------------------------------------------ */

struct inward {
    struct shim_stream *stream;
    char *staging;
    bool lend; /* the program does not change the source until the copy has completed */
    bool tell; /* the program may soon ask whether the copy has completed */
    uint64_t last;
};

static uint32_t flags_of(const struct inward *in, const struct piece *p) { return in->tell && p->last ? GV_RECORD_MARK : 0; }

/* The bytes of a piece without gaps between rows. Rows are packed into *staging, which is allocated when first needed. NULL: out of memory. */
static const void *packed(const struct piece *p, char **staging) {
    const char *data = (const char *)(uintptr_t)p->host;
    if (p->rows == 1 || p->host_pitch == p->width) return data;
    if (!*staging) *staging = malloc(PIECE);
    for (uint64_t y = 0; *staging && y < p->rows; y++) memcpy(*staging + y * p->width, data + y * p->host_pitch, p->width);
    return *staging;
}

static struct gv_cmd_copy_in copy_in(const struct shim_stream *s, const struct piece *p) {
    return (struct gv_cmd_copy_in){.stream = stream_id(s),
                                   .dst = p->device,
                                   .width = p->width,
                                   .height = p->rows,
                                   .depth = 1,
                                   .pitch = p->device_pitch,
                                   .slice = p->device_pitch * p->rows};
}

static int send_piece(void *arg, const struct piece *p) {
    struct inward *in = arg;
    uint64_t size = p->width * p->rows;
    const void *data = packed(p, &in->staging);
    if (!data) return CUDA_ERROR_OUT_OF_MEMORY;
    bool lend = in->lend && data != in->staging;
    struct gv_cmd_copy_in c = copy_in(in->stream, p);
    uint64_t seq;
    if (size <= STRUCTURES && atomic_load_explicit(&range_unmapped, memory_order_relaxed)) {
        int rc = host_map_pointers(data, size);
        if (rc) return rc;
    }
    if (size <= GV_INLINE_MAX) {
        c.data = data;
        c.data_size = (uint32_t)size;
        seq = post_copy_in(stream_ctx(in->stream), flags_of(in, p), &c);
    } else {
        struct session_bulk bulk;
        if (!session_bulk_reserve(&bulk, data, size, lend)) return post_refused();
        c.bulk = bulk.number;
        seq = session_bulk_commit(&bulk, post_copy_in(stream_ctx(in->stream), flags_of(in, p), &c));
    }
    if (!seq) return post_refused();
    stream_posted(in->stream, seq, flags_of(in, p) != 0);
    in->last = seq;
    return 0;
}

/* `wait`: the program regards the copy as complete when the call returns. It is only queued then; stream_copied makes streams that are not ordered with this one wait for it. But what the stream was given
 * before is over for the program, too, and of that it can see what is written to host memory. */
static int send_now(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait) {
    struct inward in = {.stream = s, .lend = !wait && src->pinned, .tell = wait && atomic_load(&s->context->has_unordered_streams)};
    int rc = each_piece(dst, src, box, send_piece, &in);
    free(in.staging);
    if (!rc && wait) stream_copied(s, in.last);
    /* Others may look once the call has returned: commands that write the same host memory, other processes. */
    if (!rc && wait && (host_writes_pending(0, UINT64_MAX) || ipc_memory_is_shared())) rc = stream_drain(s);
    return rc;
}

/* A copy whose source an earlier asynchronous copy or host function may still write. The call must not wait for that, so a host function of the shim is queued in front of
 * the copy and sends the data when the stream reaches it. Such payloads are identified by tags, because other payloads are sent before them. */
struct later {
    struct shim_stream *stream;
    struct copy_side dst, src;
    struct copy_box box;
    uint64_t tag, n, posted;
    char *staging;
};

static int count_piece(void *arg, const struct piece *p) {
    (void)p;
    ((struct later *)arg)->n++;
    return 0;
}

static int post_later(void *arg, const struct piece *p) {
    struct later *l = arg;
    struct gv_cmd_copy_in c = copy_in(l->stream, p);
    c.bulk = l->tag++;
    l->posted = post_copy_in(stream_ctx(l->stream), p->last ? GV_RECORD_MARK : 0, &c);
    if (!l->posted) return post_refused();
    stream_posted(l->stream, l->posted, p->last);
    return 0;
}

static int send_later_piece(void *arg, const struct piece *p) {
    struct later *l = arg;
    return session_bulk_late(l->tag++, packed(p, &l->staging), p->width * p->rows);
}

/* Also called when the stream has failed: the worker waits for the bytes. */
static void send_later(void *stream, int status, void *arg) {
    struct later *l = arg;
    (void)stream, (void)status;
    each_piece(&l->dst, &l->src, &l->box, send_later_piece, l);
    free(l->staging);
    free(l);
}

/* Late functions have a thread of their own: one does not begin before the program's that are queued before it have returned only if the stream stops behind
 * those, which it does for any command but another function (native/worker/host/host_gate.c). */
static uint64_t post_late_function(struct shim_stream *s, uint64_t tag) {
    if (!post_fence(stream_ctx(s), 0, &(struct gv_cmd_fence){.stream = stream_id(s)})) return 0;
    uint64_t seq = post_host_func(stream_ctx(s), 0, &(struct gv_cmd_host_func){.stream = stream_id(s), .tag = tag});
    if (!seq) return 0;
    stream_posted(s, seq, false);
    session_host_func_posted(tag, &s->session, seq);
    return seq;
}

static int defer(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box) {
    struct later posting = {.stream = s, .dst = *dst, .src = *src, .box = *box}, *l = malloc(sizeof *l);
    /* Rows are packed into memory that is allocated now, so that it is available when the function runs. */
    char *staging = box->height > 1 ? malloc(PIECE) : NULL;
    if (!l || (box->height > 1 && !staging)) {
        free(l);
        free(staging);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    each_piece(dst, src, box, count_piece, &posting);
    posting.tag = session_late_tags(posting.n);
    *l = posting;
    l->staging = staging;
    uint64_t function = session_late_func(send_later, l);
    uint64_t seq = function ? post_late_function(s, function) : 0;
    if (!seq) return session_broken() || function ? post_refused() : CUDA_ERROR_OUT_OF_MEMORY;
    int rc = each_piece(dst, src, box, post_later, &posting);
    if (rc) return rc;
    /* The source is in use until then: it must not be freed, and later copies from it are ordered after this one. */
    host_writes_add(src->address, src->address + extent(src, box), s, posting.posted);
    session_flush();
    return 0;
}

static int host_to_device(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait) {
    uint64_t end = src->address + extent(src, box);
    /* With many late payloads outstanding this one is sent late, too; the call would have to wait for them. */
    bool late = !wait && src->pinned && (host_writes_pending(src->address, end) || session_late_crowded(box->width * box->height * box->depth));
    if (late) return defer(s, dst, src, box);
    /* A synchronous call waits for the writers of its source; pageable memory is read at once. */
    int rc = wait ? host_writes_wait(src->address, end) : 0;
    return rc ? rc : send_now(s, dst, src, box, wait);
}

/* ---- device to host ------------------------------------------------------------------------------------------------ */

struct outward {
    struct shim_stream *stream;
    bool waiting;
    uint64_t seqs[PIECES_UNDER_WAY]; /* of the last pieces, a ring */
    uint64_t n, last;
};

static int fetch_piece(void *arg, const struct piece *p) {
    struct outward *out = arg;
    if (out->waiting && out->n >= PIECES_UNDER_WAY) {
        int rc = session_wait_stream(&out->stream->session, out->seqs[out->n % PIECES_UNDER_WAY]);
        if (rc) return rc;
    }
    uint64_t tag = session_expect((void *)(uintptr_t)p->host, p->width, p->rows, 1, p->host_pitch, p->host_pitch * p->rows);
    if (!tag) {
        int rc = session_broken();
        return rc ? rc : CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct gv_cmd_copy_out c = {.stream = stream_id(out->stream),
                                .src = p->device,
                                .width = p->width,
                                .height = p->rows,
                                .depth = 1,
                                .pitch = p->device_pitch,
                                .slice = p->device_pitch * p->rows,
                                .tag = tag};
    bool mark = p->last || out->waiting;
    uint64_t seq = post_copy_out(stream_ctx(out->stream), mark ? GV_RECORD_MARK : 0, &c);
    if (!seq) {
        session_expect_cancel(tag);
        return post_refused();
    }
    session_expect_posted(tag, &out->stream->session, seq);
    stream_posted(out->stream, seq, mark);
    out->seqs[out->n++ % PIECES_UNDER_WAY] = seq;
    out->last = seq;
    return 0;
}

static void nothing(void *stream, int status, void *arg) { (void)stream, (void)status, (void)arg; }

/* What the stream is given now begins when the bytes of earlier copies that it is ordered after have landed: a host function is not called before. Bytes of copies of two streams are not kept in order on their
 * way: the worker may send those of the later one first, and large ones come on a bulk channel, others with the records. */
static int after_landing(struct shim_stream *s) {
    uint64_t function = session_late_func(nothing, NULL);
    uint64_t seq = function ? post_late_function(s, function) : 0;
    if (!seq) return session_broken() || function ? post_refused() : CUDA_ERROR_OUT_OF_MEMORY;
    return 0;
}

static int device_to_host(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait) {
    /* As in the driver, a copy to pageable memory is synchronous. */
    struct outward out = {.stream = s, .waiting = wait || !dst->pinned};
    int rc = host_copies_pending(dst->address, dst->address + extent(dst, box)) ? after_landing(s) : 0;
    if (!rc) rc = each_piece(src, dst, box, fetch_piece, &out);
    if (out.waiting) {
        /* Also after a failure: the caller's memory must not be written once the call has returned. */
        int status = out.last ? session_wait_stream(&s->session, out.last) : 0;
        if (status && !session_broken()) context_failed(stream_ctx(s), status);
        managed_waited();
        return rc ? rc : status;
    }
    if (out.last) host_writes_add(dst->address, dst->address + extent(dst, box), s, out.last);
    return rc;
}

/* ---- the others ---------------------------------------------------------------------------------------------------- */

static int device_to_device(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait) {
    /* A synchronous copy between contexts is ordered after all earlier work of both and before all later work of both. */
    bool foreign = wait && (dst->context != s->context || src->context != s->context);
    int rc = 0;
    if (foreign && dst->context != s->context) rc = stream_drain_context(dst->context);
    if (!rc && foreign && src->context != s->context && src->context != dst->context) rc = stream_drain_context(src->context);
    if (rc) return rc;
    struct gv_cmd_copy_device c = {.stream = stream_id(s),
                                   .dst = dst->address,
                                   .src = src->address,
                                   .dst_ctx = dst->ctx,
                                   .src_ctx = src->ctx,
                                   .width = box->width,
                                   .height = box->height,
                                   .depth = box->depth,
                                   .dst_pitch = dst->pitch,
                                   .dst_slice = dst->slice,
                                   .src_pitch = src->pitch,
                                   .src_slice = src->slice};
    uint64_t seq = post_copy_device(stream_ctx(s), foreign ? GV_RECORD_MARK : 0, &c);
    if (!seq) return post_refused();
    stream_posted(s, seq, foreign);
    if (wait && managed_contains(src->address)) stream_copied(s, seq); /* it may be host memory to the program, and the copy over */
    return foreign ? stream_drain(s) : 0;
}

static int host_to_host(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box) {
    int rc = stream_drain(s);
    if (!rc) rc = host_writes_wait(src->address, src->address + extent(src, box));
    if (rc) return rc;
    for (uint64_t z = 0; z < box->depth; z++) {
        for (uint64_t y = 0; y < box->height; y++) {
            memmove((char *)(uintptr_t)dst->address + z * dst->slice + y * dst->pitch,
                    (const char *)(uintptr_t)src->address + z * src->slice + y * src->pitch, box->width);
        }
    }
    return 0;
}

static void choose_side(struct copy_side *side) {
    struct range r;
    if (side->where == COPY_ANYWHERE) side->where = range_find(side->address, &r) && r.kind < RANGE_HOST ? COPY_DEVICE : COPY_HOST;
    /* Pinned memory has one address for both sides, so a program may call it device memory. */
    if (side->where == COPY_DEVICE && !range_find_device(side->address, &r) && range_find_host(side->address, &r)) side->where = COPY_HOST;
    if (side->where == COPY_HOST && managed_contains(side->address))
        side->where = COPY_DEVICE; /* the same memory, and no page of the host is touched */
    uint64_t shadow = side->where == COPY_HOST ? shadow_of(side->address) : 0;
    if (shadow) *side = (struct copy_side){.where = COPY_DEVICE, .address = shadow, .pitch = side->pitch, .slice = side->slice};
}

/* An address in the window where no host memory was placed: it is no host address. */
static bool is_no_host(const struct copy_side *side) {
    const struct shim_server *server = session_server();
    struct range r;
    bool inside = server->addresses == GV_ADDRESSES_FIXED && side->address - server->window_base < server->window_size;
    return side->where == COPY_HOST && inside && !range_find_host(side->address, &r);
}

int copy_check(struct shim_stream *s, struct copy_side *side, const struct copy_box *box, bool written) {
    choose_side(side);
    if (is_no_host(side) || (box->height > 1 && side->pitch < box->width)) return CUDA_ERROR_INVALID_VALUE;
    return side->where == COPY_DEVICE ? check_device(s, side, box, written ? MAY_WRITE : MAY_READ) : check_host(side, box);
}

int copy_settle(struct shim_stream *s, uint64_t address) {
    if (!managed_contains(address)) return 0;
    int rc = stream_drain(s);
    managed_waited();
    return rc;
}

int copy_managed(struct shim_stream *s, const struct copy_side *side, const struct copy_box *box, bool written) {
    uint64_t size = extent(side, box);
    return managed_access(s, side->address, size, written, size == box->width * box->height * box->depth);
}

static int copy_posted(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait) {
    int rc = src->where == COPY_DEVICE ? copy_managed(s, src, box, false) : 0;
    if (!rc && dst->where == COPY_DEVICE) rc = copy_managed(s, dst, box, true);
    if (rc) return rc;
    if (dst->where == COPY_HOST) return src->where == COPY_DEVICE ? device_to_host(s, dst, src, box, wait) : host_to_host(s, dst, src, box);
    return src->where == COPY_DEVICE ? device_to_device(s, dst, src, box, wait) : host_to_device(s, dst, src, box, wait);
}

/* Between two sides that were checked. */
static int copy_checked(struct shim_stream *s, const struct copy_side *dst, const struct copy_side *src, const struct copy_box *box, bool wait) {
    bool begun = managed_begin();
    int rc = copy_posted(s, dst, src, box, wait);
    managed_end(begun);
    return !rc && wait && dst->where != COPY_HOST ? copy_settle(s, dst->address) : rc;
}

int copy_box(struct shim_stream *s, const struct copy_side *dst_side, const struct copy_side *src_side, const struct copy_box *shape, bool wait) {
    if (!shape->width || !shape->height || !shape->depth) return 0;
    struct copy_side dst = *dst_side, src = *src_side;
    struct copy_box box = *shape;
    choose_side(&dst);
    choose_side(&src);
    if (is_no_host(&dst) || is_no_host(&src)) return CUDA_ERROR_INVALID_VALUE;
    if (box.height > 1 && (dst.pitch < box.width || src.pitch < box.width)) return CUDA_ERROR_INVALID_VALUE;
    flatten(&dst, &src, &box);
    int rc = dst.where == COPY_DEVICE ? check_device(s, &dst, &box, MAY_WRITE) : check_host(&dst, &box);
    if (!rc) rc = src.where == COPY_DEVICE ? check_device(s, &src, &box, MAY_READ) : check_host(&src, &box);
    return rc ? rc : copy_checked(s, &dst, &src, &box, wait);
}

/* ---- fills --------------------------------------------------------------------------------------------------------- */

static void fill_host(char *dst, uint64_t pitch, unsigned element, uint32_t value, uint64_t width, uint64_t height) {
    for (uint64_t y = 0; y < height; y++) {
        char *row = dst + y * pitch;
        for (uint64_t x = 0; x < width; x++) memcpy(row + x * element, &value, element); /* little-endian: the low bytes come first */
    }
}

int copy_fill(struct shim_stream *s, uint64_t dst, uint64_t pitch, unsigned element, uint32_t value, uint64_t width, uint64_t height, bool wait) {
    uint64_t row;
    if (dst % element || (height > 1 && pitch % element)) return CUDA_ERROR_INVALID_VALUE;
    if (!width || !height) return 0;
    if (__builtin_mul_overflow(width, (uint64_t)element, &row) || (height > 1 && pitch < row)) return CUDA_ERROR_INVALID_VALUE;
    if (height == 1 || pitch == row) {
        if (__builtin_mul_overflow(width, height, &width) || __builtin_mul_overflow(row, height, &row)) return CUDA_ERROR_INVALID_VALUE;
        height = 1;
        pitch = row;
    }
    if (stream_captures(s)) {
        struct graph_fill f = {.dst = dst, .pitch = pitch, .width = width, .height = height, .element = element, .value = value};
        return capture_work(s, &(struct graph_work){.type = CU_GRAPH_NODE_TYPE_MEMSET, .fill = f});
    }
    struct copy_side side = {.where = COPY_ANYWHERE, .address = dst, .pitch = pitch, .slice = 0};
    struct copy_box box = {.width = row, .height = height, .depth = 1};
    struct range r;
    if (!range_find(dst, &r) || (r.kind >= RANGE_HOST && !r.mapped)) {
        if (!range_find_host(dst, &r)) return CUDA_ERROR_INVALID_VALUE;
        int rc = check_host(&side, &box);
        if (!rc) rc = stream_drain(s);
        if (!rc) rc = host_writes_wait(dst, dst + extent(&side, &box));
        if (!rc) fill_host((char *)(uintptr_t)dst, pitch, element, value, width, height);
        return rc;
    }
    int rc = check_device(s, &side, &box, MAY_WRITE);
    if (rc) return rc;
    struct gv_cmd_fill c = {.stream = stream_id(s), .dst = dst, .pitch = pitch, .elem = element, .value = value, .width = width, .height = height};
    bool begun = managed_begin();
    rc = copy_managed(s, &side, &box, true);
    uint64_t seq = rc ? 0 : post_fill(stream_ctx(s), 0, &c);
    if (seq) stream_posted(s, seq, false);
    managed_end(begun);
    if (!seq) return rc ? rc : post_refused();
    return wait ? copy_settle(s, dst) : 0;
}
