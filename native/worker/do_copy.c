/* Copies and fills. What comes in waits in staging memory until the device has taken it; what goes out waits there until it is sent. */
#include <stdlib.h>
#include <string.h>

#include "state.h"

/* width * height * depth, 0 when that is not a size. */
static uint64_t bytes_of(uint64_t width, uint64_t height, uint64_t depth) {
    uint64_t plane, all;
    if (__builtin_mul_overflow(width, height, &plane) || __builtin_mul_overflow(plane, depth, &all) || all > 1ull << 46) return 0;
    return all;
}

/* ---- to the device ---------------------------------------------------------------------------------------------------- */

struct incoming {
    struct worker *w;
    struct worker_stream *stream;
    struct worker_expected expected;
    void *data;
    uint64_t size;
};

static void incoming_done(void *arg, int status) {
    (void)status;
    struct incoming *in = arg;
    worker_staging_free(in->w, in->data, in->size);
    worker_stream_drop(in->w, in->stream);
    worker_pending_done(in->w);
    free(in);
}

static void await_payload(void *arg) {
    struct incoming *in = arg;
    worker_wait_payload(in->w, &in->expected);
}

int worker_do_copy_in(void *worker, const struct gv_record *record, const struct gv_cmd_copy_in *c) {
    struct worker *w = worker;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    uint64_t size = bytes_of(c->width, c->height, c->depth);
    if (!size || (!c->bulk && c->data_size != size)) return -1;
    struct incoming *in = calloc(1, sizeof *in);
    void *data = in ? worker_staging(w, size) : NULL;
    if (!data) {
        free(in);
        return -1;
    }
    *in = (struct incoming){.w = w, .stream = s, .data = data, .size = size};
    int status = 0;
    if (c->bulk)
        worker_expect(w, &in->expected, c->bulk, data, size);
    else
        memcpy(data, c->data, size);
    if (!s) { /* the client was told; the payload still has to be taken */
        if (c->bulk) worker_wait_payload(w, &in->expected);
        worker_staging_free(w, data, size);
        free(in);
        return 0;
    }
    worker_stream_hold(s);
    worker_pending_add(w);
    if (c->bulk) {
        status = w->ops->gate(s->stream, await_payload, in);
        if (status) worker_wait_payload(w, &in->expected);
    }
    struct gv_shape shape = {c->width, c->height, c->depth, c->pitch, c->slice, c->width, c->width * c->height};
    if (!status) status = w->ops->copy_to_device(s->stream, c->dst, data, &shape);
    if (status) worker_failed(w, record, status, "the copy to the device could not be queued");
    int marked = w->ops->mark(s->stream, incoming_done, in);
    if (marked) incoming_done(in, marked);
    return 0;
}

/* ---- from the device -------------------------------------------------------------------------------------------------- */

struct outgoing {
    struct worker *w;
    struct worker_stream *stream;
    void *data;
    uint64_t size, tag;
};

static void outgoing_done(void *arg, int status) {
    struct outgoing *o = arg;
    struct worker *w = o->w;
    if (!status && o->size > GV_INLINE_MAX) {
        o->stream->last_bulk = worker_send_payload(w, o->tag, o->data, o->size, true);
    } else {
        struct gv_evt_data_inline event = {.tag = o->tag, .status = status, .data = o->data, .data_size = status ? 0 : (uint32_t)o->size};
        struct gv_record *out = worker_event(w, GV_OP_DATA_INLINE, 0, gv_evt_data_inline_size(&event));
        if (out) {
            gv_evt_data_inline_encode(&event, out + 1);
            gv_send_commit(w->link);
        }
        worker_staging_free(w, o->data, o->size);
    }
    worker_stream_drop(w, o->stream);
    worker_pending_done(w);
    free(o);
}

int worker_do_copy_out(void *worker, const struct gv_record *record, const struct gv_cmd_copy_out *c) {
    struct worker *w = worker;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    uint64_t size = bytes_of(c->width, c->height, c->depth);
    if (!size) return -1;
    if (!s) return 0;
    struct outgoing *o = calloc(1, sizeof *o);
    void *data = o ? worker_staging(w, size) : NULL;
    if (!data) {
        free(o);
        return -1;
    }
    *o = (struct outgoing){w, s, data, size, c->tag};
    worker_stream_hold(s);
    worker_pending_add(w);
    struct gv_shape shape = {c->width, c->height, c->depth, c->width, c->width * c->height, c->pitch, c->slice};
    int status = w->ops->copy_to_host(s->stream, data, c->src, &shape);
    if (status) worker_failed(w, record, status, "the copy to the host could not be queued");
    int marked = status ? status : w->ops->mark(s->stream, outgoing_done, o);
    if (marked) outgoing_done(o, marked);
    return 0;
}

/* ---- on the device ---------------------------------------------------------------------------------------------------- */

int worker_do_copy_device(void *worker, const struct gv_record *record, const struct gv_cmd_copy_device *c) {
    struct worker *w = worker;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    struct worker_context *dst = worker_context(w, c->dst_ctx), *src = worker_context(w, c->src_ctx);
    if (!s) return 0;
    struct gv_shape shape = {c->width, c->height, c->depth, c->dst_pitch, c->dst_slice, c->src_pitch, c->src_slice};
    int status = dst && src ? w->ops->copy_device(s->stream, c->dst, dst->context, c->src, src->context, &shape) : 201;
    if (status) worker_failed(w, record, status, "the copy on the device could not be queued");
    return 0;
}

int worker_do_fill(void *worker, const struct gv_record *record, const struct gv_cmd_fill *c) {
    struct worker *w = worker;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    if (!s) return 0;
    int status = w->ops->fill(s->stream, c->dst, c->pitch, c->elem, c->value, c->width, c->height);
    if (status) worker_failed(w, record, status, "the fill could not be queued");
    return 0;
}
