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

/* Staging for a copy: an error is the client's to hear, and never silent. */
static void *staging(struct worker *w, const struct gv_record *record, uint64_t size) {
    void *data = staging_take(&w->staging, size);
    if (!data) worker_failed(w, record, WORKER_OUT_OF_MEMORY, "the server has no memory for the copy's bytes");
    return data;
}

static void give_back(struct worker *w, void *data, uint64_t size) {
    staging_give(&w->staging, data, size);
    worker_room_again(w);
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
    (void)status; /* the command's own mark tells the client */
    struct incoming *in = arg;
    give_back(in->w, in->data, in->size);
    worker_stream_drop(in->stream);
    free(in);
}

static void await_payload(void *arg) {
    struct incoming *in = arg;
    worker_wait_payload(in->w, &in->expected);
}

/* The payload of a copy that cannot be made still has to be taken: those behind it are in its way. */
static int swallow(struct worker *w, uint64_t number) {
    if (!number) return 0;
    struct worker_expected e;
    worker_expect(w, &e, number, NULL, 0);
    bool good = worker_wait_payload(w, &e);
    free(e.data);
    return good ? 0 : -1;
}

int worker_do_copy_in(void *worker, const struct gv_record *record, const struct gv_cmd_copy_in *c) {
    struct worker *w = worker;
    uint64_t size = bytes_of(c->width, c->height, c->depth);
    if (!size || (!c->bulk && c->data_size != size)) return -1;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    if (!s) return swallow(w, c->bulk);
    struct incoming *in = malloc(sizeof *in);
    void *data = in ? staging(w, record, size) : NULL;
    if (!data) {
        free(in);
        return swallow(w, c->bulk);
    }
    *in = (struct incoming){.w = w, .stream = s, .data = data, .size = size};
    int status = 0;
    if (c->bulk) {
        worker_expect(w, &in->expected, c->bulk, data, size);
        status = w->ops->gate(s->stream, await_payload, in);
        if (status) worker_wait_payload(w, &in->expected);
    } else {
        memcpy(data, c->data, size);
    }
    struct gv_shape shape = {c->width, c->height, c->depth, c->pitch, c->slice, c->width, c->width * c->height};
    if (!status) status = w->ops->copy_to_device(s->stream, c->dst, data, &shape);
    if (status) worker_failed(w, record, status, "the copy to the device could not be queued");
    worker_stream_hold(s);
    /* Without a mark nobody knows when the memory is free again: it is lost then, like the stream. */
    int marked = w->ops->mark(s->stream, incoming_done, in);
    if (marked && !status) worker_failed(w, record, marked, "the copy to the device could not be followed");
    return 0;
}

/* ---- from the device -------------------------------------------------------------------------------------------------- */

struct outgoing {
    struct worker *w;
    struct worker_stream *stream;
    void *data;
    uint64_t size, tag, seq;
};

static void outgoing_done(void *arg, int status) {
    struct outgoing *o = arg;
    struct worker *w = o->w;
    worker_note(w, o->stream, o->seq, GV_OP_COPY_OUT, status);
    if (!status && o->size > GV_INLINE_MAX) {
        o->stream->last_bulk = worker_send_payload(w, o->tag, o->data, o->size, true);
    } else {
        worker_send_data(w, o->tag, status, o->data, status ? 0 : (uint32_t)o->size);
        give_back(w, o->data, o->size);
    }
    worker_stream_drop(o->stream);
    free(o);
}

int worker_do_copy_out(void *worker, const struct gv_record *record, const struct gv_cmd_copy_out *c) {
    struct worker *w = worker;
    uint64_t size = bytes_of(c->width, c->height, c->depth);
    if (!size) return -1;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    struct outgoing *o = s ? malloc(sizeof *o) : NULL;
    void *data = o ? staging(w, record, size) : NULL;
    if (!data) { /* the client was told */
        free(o);
        worker_send_data(w, c->tag, s ? WORKER_OUT_OF_MEMORY : WORKER_INVALID_HANDLE, NULL, 0);
        return 0;
    }
    *o = (struct outgoing){w, s, data, size, c->tag, record->seq};
    struct gv_shape shape = {c->width, c->height, c->depth, c->width, c->width * c->height, c->pitch, c->slice};
    int status = w->ops->copy_to_host(s->stream, data, c->src, &shape);
    worker_stream_hold(s);
    int marked = status ? status : w->ops->mark(s->stream, outgoing_done, o);
    if (!marked) return 0;
    worker_failed(w, record, marked, "the copy to the host could not be queued");
    worker_send_data(w, c->tag, marked, NULL, 0);
    worker_stream_drop(s);
    if (status) give_back(w, data, size); /* else the device may still write there */
    free(o);
    return 0;
}

/* ---- on the device ---------------------------------------------------------------------------------------------------- */

int worker_do_copy_device(void *worker, const struct gv_record *record, const struct gv_cmd_copy_device *c) {
    struct worker *w = worker;
    struct worker_stream *s = worker_stream(w, record, c->stream);
    struct worker_context *dst = worker_context(w, c->dst_ctx), *src = worker_context(w, c->src_ctx);
    if (!s) return 0;
    struct gv_shape shape = {c->width, c->height, c->depth, c->dst_pitch, c->dst_slice, c->src_pitch, c->src_slice};
    int status = dst && src ? w->ops->copy_device(s->stream, c->dst, dst->context, c->src, src->context, &shape) : WORKER_INVALID_CONTEXT;
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
