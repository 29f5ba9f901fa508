/* Contiguous copies to the device whose bytes arrive on the bulk channel.
 *
 * Where device memory can be reached without the GPU (view.h), the copy is only a gate on its stream: once the stream has reached it, the stream's thread
 * copies the bytes that have arrived meanwhile, and the reader receives the rest of the payload directly into device memory. Otherwise the device
 * copies from staging memory, piece by piece, each behind a gate of its own, so that receiving and copying overlap. Staging memory is allocated
 * before the stream is gated, because an allocation that fails behind a gate could not be repeated. */
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "../wire/clock.h"
#include "state.h"
#include "view.h"

#define OPEN_NS 100000 /* ns that the reader waits for a stream that may be idle to reach the copy */

struct staged_piece {
    struct bulk_copy_in *copy;
    uint64_t at, size;
    void *data;
};

struct bulk_copy_in {
    struct worker *w;
    struct worker_stream *stream;
    struct worker_expected expected;
    struct worker_destination to;
    uint64_t dst;
    uint64_t received; /* bytes that have arrived; under the worker's lock */
    /* With a view. */
    struct worker_view view;
    _Atomic bool open;                 /* the stream has reached the copy */
    bool looked;                       /* the reader has waited for that */
    struct worker_piece *first, *last; /* the bytes that arrived before that */
    /* Without. */
    struct worker_piece *arriving; /* on the heap, which the reader is writing to as this command comes; under the lock */
    uint32_t n_pieces, n_done;
    struct staged_piece pieces[];
};

static struct bulk_copy_in *copy_of(struct worker_destination *d) {
    return (struct bulk_copy_in *)(void *)((char *)d - offsetof(struct bulk_copy_in, to));
}

/* Moves a piece from the heap to the memory that the device copies from. */
static void settle(struct bulk_copy_in *c, struct worker_piece *p) {
    memcpy(c->pieces[p->at / WORKER_PIECE].data, p->data, p->size);
    staging_give_either(&c->w->staging, p->data, p->size, true);
    free(p);
}

static void received(struct worker_destination *d, uint64_t end) {
    struct bulk_copy_in *c = copy_of(d);
    if (c->arriving && end > c->arriving->at) {
        settle(c, c->arriving);
        c->arriving = NULL;
        if (c->w->held_up) pthread_cond_signal(&c->w->room); /* it counted twice */
    }
    c->received = end;
    pthread_cond_broadcast(&c->w->changed);
}

static void free_copy(struct bulk_copy_in *c) {
    worker_stream_drop(c->stream);
    if (c->arriving) staging_give_either(&c->w->staging, c->arriving->data, c->arriving->size, true);
    free(c->arriving);
    free(c);
}

/* Whether the payload has ended, complete or not; lock held. */
static bool over(struct bulk_copy_in *c) {
    struct worker_expected *e = &c->expected;
    /* When the session ends while the reader is in it, the dead link makes it stop soon. */
    if (!e->arrived && atomic_load(&c->w->stopping) && worker_withdraw(c->w, e)) e->arrived = e->failed = true;
    return e->arrived;
}

/* ---- with a view ------------------------------------------------------------------------------------------------------- */

/* An idle stream is about to reach the copy, if its thread is scheduled. lock held, released meanwhile. */
static void look_for_stream(struct bulk_copy_in *c) {
    struct worker *w = c->w;
    c->looked = true;
    pthread_mutex_unlock(&w->lock);
    for (int64_t until = gv_now_ns() + OPEN_NS; !atomic_load(&c->open) && gv_now_ns() < until;) sched_yield();
    pthread_mutex_lock(&w->lock);
}

static bool has_room(struct worker *w) { return atomic_load(&w->staging.in_use) - atomic_load(&w->early_bytes) < WORKER_MAX_STAGING; }

static void *view_place(struct bulk_copy_in *c, uint64_t at, uint64_t *n) {
    struct worker *w = c->w;
    if (!c->looked && !atomic_load(&c->open)) look_for_stream(c);
    w->reader_waits = true;
    while (!atomic_load(&c->open) && !atomic_load(&w->stopping) && !has_room(w)) pthread_cond_wait(&w->changed, &w->lock);
    w->reader_waits = false;
    if (atomic_load(&c->open)) { /* also when stopping: the thread at the gate waits for this flag */
        *n = c->to.size - at;
        return c->view.at + at;
    }
    *n = c->to.size - at < WORKER_PIECE ? c->to.size - at : WORKER_PIECE;
    struct worker_piece *p = atomic_load(&w->stopping) ? NULL : malloc(sizeof *p);
    void *data = p ? staging_take(&w->staging, *n) : NULL;
    if (!data) {
        free(p);
        *n = 0;
        return NULL;
    }
    *p = (struct worker_piece){.at = at, .size = *n, .data = data};
    if (c->last)
        c->last->next = p;
    else
        c->first = p;
    c->last = p;
    return data;
}

/* The gate. lock held, but not while bytes are copied. */
static void copy_as_it_comes(void *arg) {
    struct bulk_copy_in *c = arg;
    struct worker *w = c->w;
    pthread_mutex_lock(&w->lock);
    atomic_store(&c->open, true);
    if (w->reader_waits) pthread_cond_broadcast(&w->changed);
    for (;;) {
        struct worker_piece *p = c->first;
        bool arrived = over(c);
        if (p && (arrived || p->at + p->size <= c->received)) {
            c->first = p->next;
            if (!c->first) c->last = NULL;
            bool there = p->at + p->size <= c->received;
            pthread_mutex_unlock(&w->lock);
            if (there && !worker_view_write(w, &c->view, p->at, p->data, p->size))
                gv_link_kill(w->link, "a payload could not be carried to the device");
            worker_piece_drop(w, p);
            pthread_mutex_lock(&w->lock);
            continue;
        }
        if (arrived) break;
        pthread_cond_wait(&w->changed, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    worker_view_close(w, &c->view, true);
    free_copy(c);
}

/* ---- without ----------------------------------------------------------------------------------------------------------- */

static void await_piece(void *arg) {
    const struct staged_piece *p = arg;
    struct bulk_copy_in *c = p->copy;
    struct worker *w = c->w;
    pthread_mutex_lock(&w->lock);
    while (c->received < p->at + p->size && !over(c)) pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

/* Its bytes have come before the stream is stopped for them. */
static bool is_there(const struct staged_piece *p) {
    struct worker *w = p->copy->w;
    pthread_mutex_lock(&w->lock);
    bool there = p->copy->received >= p->at + p->size;
    pthread_mutex_unlock(&w->lock);
    return there;
}

static void piece_done(void *arg, int status) {
    (void)status; /* the command's own mark tells the client */
    struct staged_piece *p = arg;
    struct bulk_copy_in *c = p->copy;
    struct worker *w = c->w;
    staging_give(&w->staging, p->data, p->size);
    worker_room_again(w);
    worker_tell(w, c->stream, status);
    if (++c->n_done < c->n_pieces) return; /* only here; marks are called in order */
    pthread_mutex_lock(&w->lock);
    while (!over(c)) pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
    free_copy(c);
}

static void *place(struct worker_destination *d, uint64_t at, uint64_t *n) {
    struct bulk_copy_in *c = copy_of(d);
    if (c->view.at) return view_place(c, at, n);
    const struct staged_piece *p = &c->pieces[at / WORKER_PIECE];
    *n = p->at + p->size - at;
    return (char *)p->data + (at - p->at);
}

static void claim(struct worker_destination *d, struct worker_early *early) {
    struct bulk_copy_in *c = copy_of(d);
    c->received = early->received;
    if (c->view.at) {
        c->first = early->first;
        c->last = early->last;
    } else {
        for (struct worker_piece *p = early->first, *next; p; p = next) {
            next = p->next;
            struct staged_piece *mine = &c->pieces[p->at / WORKER_PIECE];
            if (p->heap && p->at + p->size <= early->received) {
                settle(c, p);
                continue;
            }
            if (p->heap) { /* the last */
                c->arriving = p;
                break;
            }
            staging_give(&c->w->staging, mine->data, mine->size);
            mine->data = p->data;
            free(p);
        }
    }
    early->first = early->last = NULL;
}

static bool take_pieces(struct bulk_copy_in *c) {
    for (uint32_t i = 0; i < c->n_pieces; i++) {
        struct staged_piece *p = &c->pieces[i];
        uint64_t at = (uint64_t)i * WORKER_PIECE;
        *p = (struct staged_piece){.copy = c, .at = at, .size = c->to.size - at < WORKER_PIECE ? c->to.size - at : WORKER_PIECE};
        p->data = staging_take(&c->w->staging, p->size);
        if (p->data) continue;
        while (i--) staging_give(&c->w->staging, c->pieces[i].data, c->pieces[i].size);
        return false;
    }
    return true;
}

static int queue_pieces(struct bulk_copy_in *c, const struct gv_record *record) {
    const struct gv_backend_ops *ops = c->w->ops;
    struct gv_stream *s = c->stream->stream;
    struct worker *w = c->w;
    uint32_t n = c->n_pieces; /* the last mark may be called, and free the copy, at once */
    int failed = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct staged_piece *p = &c->pieces[i];
        struct gv_shape shape = {p->size, 1, 1, p->size, p->size, p->size, p->size};
        int status = is_there(p) ? 0 : ops->gate(s, await_piece, p);
        if (status) await_piece(p);
        if (!status) status = ops->copy_to_device(s, c->dst + p->at, p->data, &shape);
        /* Without a mark the end of the device's access is unknown: the memory is lost, like the stream. */
        int marked = ops->mark(s, piece_done, p);
        if (!failed) failed = status ? status : marked;
    }
    if (failed) worker_failed(w, record, failed, "the copy to the device could not be queued");
    return 0;
}

/* ---- both -------------------------------------------------------------------------------------------------------------- */

int worker_bulk_copy_in(struct worker *w, const struct gv_record *record, struct worker_stream *s, uint64_t number, uint64_t dst, uint64_t size) {
    struct worker_view view;
    bool viewed = worker_view_open(w, &view, dst, size);
    uint64_t n_pieces = viewed ? 0 : (size + WORKER_PIECE - 1) / WORKER_PIECE;
    struct bulk_copy_in *c = n_pieces <= WORKER_PIECES_MAX ? calloc(1, sizeof *c + n_pieces * sizeof *c->pieces) : NULL;
    if (c)
        *c = (struct bulk_copy_in){
            .w = w, .stream = s, .to = {size, place, received, claim}, .dst = dst, .view = view, .n_pieces = (uint32_t)n_pieces};
    if (!c || !take_pieces(c)) {
        free(c);
        if (viewed) worker_view_close(w, &view, false);
        worker_failed(w, record, CUDA_ERROR_OUT_OF_MEMORY, "the server has no memory for the copy's bytes");
        return worker_discard_payload(w, number);
    }
    c->expected = (struct worker_expected){.number = number, .size = size, .to = &c->to};
    if (viewed) worker_view_offer(w, &c->view);
    worker_stream_hold(s);
    worker_expect_it(w, &c->expected);
    if (!viewed) return queue_pieces(c, record);
    int status = w->ops->gate(s->stream, copy_as_it_comes, c);
    if (!status) return 0;
    worker_failed(w, record, status, "the copy to the device could not be queued");
    copy_as_it_comes(c);
    return 0;
}
