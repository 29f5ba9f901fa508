/* Copies and fills. Bytes to the device stay in staging memory until the device has read them, bytes to the client until they are sent. */
#include <stdlib.h>
#include <string.h>

#include "state.h"
#include "view.h"

/* Bytes of a copy; 0: no client library sends it. Staging memory has room for one copy of GV_COPY_MAX beyond what it may hold, and rows that lay on
 * one another would make much of little. */
static uint64_t bytes_of(uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice) {
    uint64_t plane, all;
    if (__builtin_mul_overflow(width, height, &plane) || __builtin_mul_overflow(plane, depth, &all) || !all || all > GV_COPY_MAX) return 0;
    if (height > 1 && pitch < width) return 0;
    return depth > 1 && (slice < width || (height > 1 && (slice - width) / pitch < height - 1)) ? 0 : all;
}

/* Staging for a copy; an error is reported to the client. */
static void *staging(struct worker *w, const struct gv_record *record, uint64_t size) {
    void *data = staging_take(&w->staging, size);
    if (!data) worker_failed(w, record, CUDA_ERROR_OUT_OF_MEMORY, "the server has no memory for the copy's bytes");
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
    struct incoming *in = arg;
    give_back(in->w, in->data, in->size);
    worker_tell(in->w, in->stream, status); /* error of earlier work: the command's own mark follows */
    worker_stream_drop(in->stream);
    free(in);
}

static void await_payload(void *arg) {
    struct incoming *in = arg;
    worker_wait_payload(in->w, &in->expected);
}

static bool contiguous(uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice) {
    return (height == 1 || pitch == width) && (depth == 1 || slice == width * height);
}

int worker_do_copy_in(struct worker *w, const struct gv_record *record, const struct gv_cmd_copy_in *c, struct worker_stream *s) {
    uint64_t size = bytes_of(c->width, c->height, c->depth, c->pitch, c->slice);
    if (!size || (!c->bulk && c->data_size != size)) return -1;
    if (!s) return worker_discard_payload(w, c->bulk);
    if (c->bulk && contiguous(c->width, c->height, c->depth, c->pitch, c->slice)) return worker_bulk_copy_in(w, record, s, c->bulk, c->dst, size);
    struct incoming *in = malloc(sizeof *in);
    void *data = in ? staging(w, record, size) : NULL;
    if (!data) {
        free(in);
        return worker_discard_payload(w, c->bulk);
    }
    *in = (struct incoming){.w = w, .stream = s, .data = data, .size = size};
    int status = 0;
    if (c->bulk) {
        worker_expect(w, &in->expected, c->bulk, data, size);
        status = w->ops->gate(s->stream, await_payload, in);
        if (status) worker_await_payload(w, &in->expected);
    } else {
        memcpy(data, c->data, size);
    }
    struct gv_shape shape = {c->width, c->height, c->depth, c->pitch, c->slice, c->width, c->width * c->height};
    if (!status) status = w->ops->copy_to_device(s->stream, c->dst, data, &shape);
    if (status) worker_failed(w, record, status, "the copy to the device could not be queued");
    worker_stream_hold(s);
    /* Without a mark the end of the device's access is unknown: the memory is lost, like the stream. */
    int marked = w->ops->mark(s->stream, incoming_done, in);
    if (marked && !status) worker_failed(w, record, marked, "the copy to the device could not be followed");
    return 0;
}

/* ---- from the device -------------------------------------------------------------------------------------------------- */

/* One copy to the client: its pieces are payloads, each sent as soon as it is ready; the client assembles them. */
struct outgoing {
    struct worker_copy_out listed; /* first: what it is listed by */
    struct worker *w;
    struct worker_stream *stream;
    uint64_t size, tag, seq, dst;
    uint32_t n_left; /* pieces; used by their marks only, which are called in order */
    /* Under the copies' lock: */
    struct outgoing_piece *unsent, *last_unsent;
    bool sent;    /* some have been sent */
    bool refused; /* the client was told that no bytes follow */
    /* In place. */
    struct worker_view view;
    int status;
    bool done;     /* the link has released the memory; under the worker's lock */
    uint32_t refs; /* the gate, the link; the same */
};

struct outgoing_piece {
    struct outgoing *copy;
    struct outgoing_piece *next; /* that is not sent */
    uint64_t position;           /* of the stream, behind it */
    bool sent;
    void *data;
    uint64_t size;
};

/* Sends the copy's first piece that is not sent. The copies' lock is held. */
static void send_piece(struct outgoing_piece *p, int status) {
    struct outgoing *o = p->copy;
    struct worker *w = o->w;
    o->unsent = p->next;
    if (!o->unsent) o->last_unsent = NULL;
    p->sent = true;
    if (o->size > GV_INLINE_MAX && (!status || o->sent)) {
        /* Once a piece was sent the client waits for all of them; that the data are invalid it learns from the stream's error. */
        o->listed.number = worker_send_payload(w, o->tag, p->data, p->size, true);
        o->sent = true;
    } else {
        if (!o->refused) worker_send_data(w, o->tag, status, p->data, status ? 0 : (uint32_t)p->size);
        o->refused = true;
        give_back(w, p->data, p->size);
    }
}

static void send_finished(struct worker_copy_out *listed) {
    struct outgoing *o = (struct outgoing *)listed;
    const struct gv_backend_ops *ops = o->w->ops;
    while (ops->stream_passed && o->unsent && ops->stream_passed(o->stream->stream, o->unsent->position)) send_piece(o->unsent, 0);
}

static void piece_ready(void *arg, int status) {
    struct outgoing_piece *p = arg;
    struct outgoing *o = p->copy;
    struct worker *w = o->w;
    struct worker_stream *s = o->stream;
    worker_note(w, s, o->seq, GV_OP_COPY_OUT, status);
    pthread_mutex_lock(&w->copies.lock);
    if (!p->sent) send_piece(p, status);
    if (o->listed.number > s->last_bulk) s->last_bulk = o->listed.number;
    pthread_mutex_unlock(&w->copies.lock);
    bool last = --o->n_left == 0;
    if (last) worker_copies_remove(w, &o->listed);
    worker_tell(w, s, status);
    if (last) {
        worker_stream_drop(s);
        free(o);
    }
    free(p);
}

/* The device's part of a piece is queued, its mark is not. */
static void list_piece(struct outgoing *o, struct outgoing_piece *p) {
    struct worker *w = o->w;
    p->position = w->ops->stream_position ? w->ops->stream_position(o->stream->stream) : 0;
    pthread_mutex_lock(&w->copies.lock);
    *(o->last_unsent ? &o->last_unsent->next : &o->unsent) = p;
    o->last_unsent = p;
    pthread_mutex_unlock(&w->copies.lock);
}

/* No mark follows the last piece: it is not sent. */
static void unlist_last_piece(struct outgoing *o) {
    pthread_mutex_lock(&o->w->copies.lock);
    struct outgoing_piece **at = &o->unsent, *before = NULL;
    while (*at && *at != o->last_unsent) {
        before = *at;
        at = &(*at)->next;
    }
    *at = NULL;
    o->last_unsent = before;
    pthread_mutex_unlock(&o->w->copies.lock);
}

/* Pieces of a contiguous copy are WORKER_PIECE large; any other copy is one. */
static int queue_out(struct worker *w, const struct gv_record *record, const struct gv_cmd_copy_out *c, struct outgoing *o) {
    bool whole = !contiguous(c->width, c->height, c->depth, c->pitch, c->slice);
    uint64_t step = whole ? o->size : WORKER_PIECE, n = (o->size + step - 1) / step;
    struct outgoing_piece **pieces = n <= WORKER_PIECES_MAX ? calloc(n, sizeof *pieces) : NULL;
    bool enough = pieces != NULL;
    for (uint64_t i = 0; i < n && enough; i++) {
        uint64_t size = o->size - i * step < step ? o->size - i * step : step;
        enough = (pieces[i] = malloc(sizeof **pieces)) != NULL;
        if (enough) *pieces[i] = (struct outgoing_piece){.copy = o, .size = size, .data = staging_take(&w->staging, size)};
        if (enough) enough = pieces[i]->data != NULL;
    }
    int status = enough ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t queued = 0;
    o->n_left = (uint32_t)n;
    for (; queued < n && !status; queued++) {
        struct outgoing_piece *p = pieces[queued];
        struct gv_shape shape = whole ? (struct gv_shape){c->width, c->height, c->depth, c->width, c->width * c->height, c->pitch, c->slice}
                                      : (struct gv_shape){p->size, 1, 1, p->size, p->size, p->size, p->size};
        status = w->ops->copy_to_host(o->stream->stream, p->data, c->src + queued * step, &shape);
        if (!status) list_piece(o, p);
        int marked = status ? status : w->ops->mark(o->stream->stream, piece_ready, p);
        if (!status && marked) unlist_last_piece(o);
        if (!status && marked) p->data = NULL; /* the device may still write there: it is lost */
        if (!status) status = marked;
        if (status) break;
    }
    if (status) {
        worker_failed(w, record, status, enough ? "the copy to the host could not be queued" : "the server has no memory for the copy's bytes");
        for (uint64_t i = queued; pieces && i < n && pieces[i]; i++) {
            if (pieces[i]->data) give_back(w, pieces[i]->data, pieces[i]->size);
            free(pieces[i]);
        }
    }
    free(pieces);
    return queued ? 0 : status;
}

/* ---- from the device, in place: the stream stands still while the link reads the device's memory */

static void in_place(struct worker *w, int more) {
    pthread_mutex_lock(&w->lock);
    w->n_in_place += (uint64_t)(int64_t)more;
    pthread_mutex_unlock(&w->lock);
}

static void out_drop(struct outgoing *o) {
    struct worker *w = o->w;
    pthread_mutex_lock(&w->lock);
    bool last = --o->refs == 0;
    pthread_mutex_unlock(&w->lock);
    if (last) free(o);
}

static void out_sent(void *arg) {
    struct outgoing *o = arg;
    struct worker *w = o->w;
    pthread_mutex_lock(&w->lock);
    o->done = true;
    bool last = --o->refs == 0;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (last) free(o);
}

static void out_status(void *arg, int status) {
    struct outgoing *o = arg;
    worker_note(o->w, o->stream, o->seq, GV_OP_COPY_OUT, status);
    o->status = status;
    worker_tell(o->w, o->stream, status);
}

static void send_from_device(void *arg) {
    struct outgoing *o = arg;
    struct worker *w = o->w;
    if (o->status) {
        worker_send_data(w, o->tag, o->status, NULL, 0);
    } else {
        o->refs = 2;
        worker_view_offer(w, &o->view);
        pthread_mutex_lock(&w->copies.lock);
        o->listed.number = worker_send_in_place(w, o->tag, o->view.at, o->size, out_sent, o);
        if (o->listed.number > o->stream->last_bulk) o->stream->last_bulk = o->listed.number;
        pthread_mutex_unlock(&w->copies.lock);
        pthread_mutex_lock(&w->lock);
        while (!o->done && !atomic_load(&w->stopping)) pthread_cond_wait(&w->changed, &w->lock);
        pthread_mutex_unlock(&w->lock);
    }
    worker_copies_remove(w, &o->listed);
    worker_view_close(w, &o->view, false);
    in_place(w, -1);
    worker_stream_drop(o->stream);
    if (o->status)
        free(o);
    else
        out_drop(o);
}

/* False: the copy must use staging memory. */
static bool queue_in_place(struct worker *w, const struct gv_record *record, const struct gv_cmd_copy_out *c, struct outgoing *o) {
    bool near = atomic_load_explicit(&w->rtt_ns, memory_order_relaxed) < WORKER_NEAR_NS;
    if (!near || o->size <= GV_INLINE_MAX || !contiguous(c->width, c->height, c->depth, c->pitch, c->slice)) return false;
    if (!worker_view_open(w, &o->view, c->src, o->size)) return false;
    in_place(w, 1);
    bool marked = w->ops->mark(o->stream->stream, out_status, o) == 0;
    int status = marked ? w->ops->gate(o->stream->stream, send_from_device, o) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) return true;
    in_place(w, -1);
    worker_view_close(w, &o->view, false);
    if (!marked) return false;
    /* Not freed: the mark still reads it. */
    worker_failed(w, record, status, "the copy to the host could not be queued");
    worker_send_data(w, c->tag, status, NULL, 0);
    return true;
}

int worker_do_copy_out(struct worker *w, const struct gv_record *record, const struct gv_cmd_copy_out *c, struct worker_stream *s) {
    uint64_t size = bytes_of(c->width, c->height, c->depth, c->pitch, c->slice);
    if (!size) return -1;
    struct outgoing *o = s ? calloc(1, sizeof *o) : NULL;
    if (!o) { /* the client was told */
        worker_send_data(w, c->tag, s ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_HANDLE, NULL, 0);
        return 0;
    }
    *o = (struct outgoing){.listed.send_finished = send_finished, .w = w, .stream = s, .size = size, .tag = c->tag, .seq = record->seq};
    worker_stream_hold(s);
    worker_copies_add(w, &o->listed);
    int status = queue_in_place(w, record, c, o) ? 0 : queue_out(w, record, c, o);
    if (!status) return 0;
    worker_copies_remove(w, &o->listed);
    worker_send_data(w, c->tag, status, NULL, 0);
    worker_stream_drop(s);
    free(o);
    return 0;
}

/* ---- on the device ---------------------------------------------------------------------------------------------------- */

int worker_do_copy_device(struct worker *w, const struct gv_record *record, const struct gv_cmd_copy_device *c, struct worker_stream *stream,
                          struct worker_context *dst_ctx, struct worker_context *src_ctx) {
    struct gv_shape shape = {c->width, c->height, c->depth, c->dst_pitch, c->dst_slice, c->src_pitch, c->src_slice};
    int status = w->ops->copy_device(stream->stream, c->dst, dst_ctx->context, c->src, src_ctx->context, &shape);
    if (status) worker_failed(w, record, status, "the copy on the device could not be queued");
    return 0;
}

/* A side of a copy of which at least one is an array. */
static bool side_of(struct worker *w, uint64_t handle, uint64_t address, const uint32_t at[3], struct gv_array_side *out) {
    struct worker_array *found = handle ? handles_get(&w->objects.arrays, handle) : NULL;
    *out = (struct gv_array_side){.array = found ? found->array : NULL, .address = address};
    memcpy(out->at, at, sizeof out->at);
    return found || !handle;
}

int worker_do_copy_array(struct worker *w, const struct gv_record *record, const struct gv_cmd_copy_array *c, struct worker_stream *stream) {
    struct gv_shape shape = {c->width, c->height, c->depth, c->dst_pitch, c->dst_slice, c->src_pitch, c->src_slice};
    struct gv_array_side dst, src;
    bool good = side_of(w, c->dst_array, c->dst, c->dst_at, &dst) && side_of(w, c->src_array, c->src, c->src_at, &src) && (dst.array || src.array);
    int status = good ? w->ops->copy_array(stream->stream, &dst, &src, &shape) : CUDA_ERROR_INVALID_HANDLE;
    if (status) worker_failed(w, record, status, "the copy of an array could not be queued");
    return 0;
}
