/* Contiguous copies to the device whose bytes come on the bulk channel.
 *
 * Where the CPU reaches device memory (host_view), the copy is a gate on its stream and nothing else: once the stream has come there, what has come in
 * meanwhile is copied by the stream's thread, and the reader receives the rest of the payload straight into device memory. Elsewhere the device copies
 * from staging memory, piece by piece, each behind a gate of its own, so that receiving and copying overlap. That memory is taken before the stream is
 * gated: memory that is missing behind a gate would never come. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "../wire/clock.h"
#include "state.h"

#define OPEN_NS 100000 /* how long the reader gives a stream that may be idle to come to the copy */

struct staged_piece {
    struct worker_landing *landing;
    uint64_t at, size;
    void *data;
};

struct worker_landing {
    struct worker *w;
    struct worker_stream *stream;
    struct worker_expected expected;
    uint64_t dst, size;
    uint64_t landed; /* bytes that have come; under the worker's lock */
    /* With a view. */
    char *view;
    _Atomic bool open;                 /* the stream has come to the copy */
    bool looked;                       /* the reader has waited for that */
    struct worker_piece *first, *last; /* what came before */
    /* Without. */
    uint32_t n_pieces, n_done;
    struct staged_piece pieces[];
};

uint64_t worker_landing_size(const struct worker_landing *l) { return l->size; }

void worker_landing_landed(struct worker_landing *l, uint64_t landed) {
    l->landed = landed;
    pthread_cond_broadcast(&l->w->changed);
}

static void free_landing(struct worker_landing *l) {
    worker_stream_drop(l->stream);
    free(l);
}

/* Whether no more bytes will come, all or not; lock held. */
static bool over(struct worker_landing *l) {
    struct worker_expected *e = &l->expected;
    /* When the session ends while the reader is in it, the dead link makes it stop soon. */
    if (!e->arrived && atomic_load(&l->w->stopping) && worker_withdraw(l->w, e)) e->arrived = e->failed = true;
    return e->arrived;
}

/* ---- with a view ------------------------------------------------------------------------------------------------------- */

/* An idle stream is about to come to the copy: its thread only has to be let run. lock held, and let go meanwhile. */
static void look_for_stream(struct worker_landing *l) {
    struct worker *w = l->w;
    l->looked = true;
    pthread_mutex_unlock(&w->lock);
    for (int64_t until = gv_now_ns() + OPEN_NS; !atomic_load(&l->open) && gv_now_ns() < until;) sched_yield();
    pthread_mutex_lock(&w->lock);
}

static bool has_room(struct worker *w) { return atomic_load(&w->staging.in_use) - atomic_load(&w->early_bytes) < WORKER_MAX_STAGING; }

static void *view_place(struct worker_landing *l, uint64_t at, uint64_t *n) {
    struct worker *w = l->w;
    if (!l->looked && !atomic_load(&l->open)) look_for_stream(l);
    w->reader_waits = true;
    while (!atomic_load(&l->open) && !atomic_load(&w->stopping) && !has_room(w)) pthread_cond_wait(&w->changed, &w->lock);
    w->reader_waits = false;
    if (atomic_load(&l->open)) { /* also when stopping: whoever waits at the gate waits for us then */
        *n = l->size - at;
        return l->view + at;
    }
    *n = l->size - at < WORKER_PIECE ? l->size - at : WORKER_PIECE;
    struct worker_piece *p = atomic_load(&w->stopping) ? NULL : malloc(sizeof *p);
    void *data = p ? staging_take(&w->staging, *n) : NULL;
    if (!data) {
        free(p);
        *n = 0;
        return NULL;
    }
    *p = (struct worker_piece){.at = at, .size = *n, .data = data};
    if (l->last)
        l->last->next = p;
    else
        l->first = p;
    l->last = p;
    return data;
}

/* The gate. lock held on the way, but not while bytes move. */
static void land(void *arg) {
    struct worker_landing *l = arg;
    struct worker *w = l->w;
    pthread_mutex_lock(&w->lock);
    atomic_store(&l->open, true);
    if (w->reader_waits) pthread_cond_broadcast(&w->changed);
    for (;;) {
        struct worker_piece *p = l->first;
        bool arrived = over(l);
        if (p && (arrived || p->at + p->size <= l->landed)) {
            l->first = p->next;
            if (!l->first) l->last = NULL;
            bool there = p->at + p->size <= l->landed;
            pthread_mutex_unlock(&w->lock);
            if (there) memcpy(l->view + p->at, p->data, p->size);
            worker_piece_drop(w, p);
            pthread_mutex_lock(&w->lock);
            continue;
        }
        if (arrived) break;
        pthread_cond_wait(&w->changed, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    w->ops->host_view_end(w->backend, l->dst, l->size);
    free_landing(l);
}

/* ---- without ----------------------------------------------------------------------------------------------------------- */

static void await_piece(void *arg) {
    const struct staged_piece *p = arg;
    struct worker_landing *l = p->landing;
    struct worker *w = l->w;
    pthread_mutex_lock(&w->lock);
    while (l->landed < p->at + p->size && !over(l)) pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void piece_done(void *arg, int status) {
    (void)status; /* the command's own mark tells the client */
    struct staged_piece *p = arg;
    struct worker_landing *l = p->landing;
    struct worker *w = l->w;
    staging_give(&w->staging, p->data, p->size);
    worker_room_again(w);
    worker_tell(w, l->stream, status);
    if (++l->n_done < l->n_pieces) return; /* only here, and in order */
    pthread_mutex_lock(&w->lock);
    while (!over(l)) pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
    free_landing(l);
}

void *worker_landing_place(struct worker_landing *l, uint64_t at, uint64_t *n) {
    if (l->view) return view_place(l, at, n);
    const struct staged_piece *p = &l->pieces[at / WORKER_PIECE];
    *n = p->at + p->size - at;
    return (char *)p->data + (at - p->at);
}

void worker_landing_claim(struct worker_landing *l, struct worker_early *early) {
    l->landed = early->landed;
    if (l->view) {
        l->first = early->first;
        l->last = early->last;
    } else {
        for (struct worker_piece *p = early->first, *next; p; p = next) {
            next = p->next;
            struct staged_piece *mine = &l->pieces[p->at / WORKER_PIECE];
            staging_give(&l->w->staging, mine->data, mine->size);
            mine->data = p->data;
            free(p);
        }
    }
    early->first = early->last = NULL;
}

static bool take_pieces(struct worker_landing *l) {
    for (uint32_t i = 0; i < l->n_pieces; i++) {
        struct staged_piece *p = &l->pieces[i];
        uint64_t at = (uint64_t)i * WORKER_PIECE;
        *p = (struct staged_piece){.landing = l, .at = at, .size = l->size - at < WORKER_PIECE ? l->size - at : WORKER_PIECE};
        p->data = staging_take(&l->w->staging, p->size);
        if (p->data) continue;
        while (i--) staging_give(&l->w->staging, l->pieces[i].data, l->pieces[i].size);
        return false;
    }
    return true;
}

static int queue_pieces(struct worker_landing *l, const struct gv_record *record) {
    const struct gv_backend_ops *ops = l->w->ops;
    struct gv_stream *s = l->stream->stream;
    uint32_t n = l->n_pieces; /* the last mark may come, and the landing go, at once */
    int failed = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct staged_piece *p = &l->pieces[i];
        struct gv_shape shape = {p->size, 1, 1, p->size, p->size, p->size, p->size};
        int status = ops->gate(s, await_piece, p);
        if (status) await_piece(p);
        if (!status) status = ops->copy_to_device(s, l->dst + p->at, p->data, &shape);
        /* Without a mark nobody knows when the memory is free again: it is lost then, like the stream. */
        int marked = ops->mark(s, piece_done, p);
        if (!failed) failed = status ? status : marked;
    }
    if (failed) worker_failed(l->w, record, failed, "the copy to the device could not be queued");
    return 0;
}

/* ---- both -------------------------------------------------------------------------------------------------------------- */

int worker_land(struct worker *w, const struct gv_record *record, struct worker_stream *s, uint64_t number, uint64_t dst, uint64_t size) {
    char *view = w->ops->host_view ? w->ops->host_view(w->backend, dst, size) : NULL;
    uint64_t n_pieces = view ? 0 : (size + WORKER_PIECE - 1) / WORKER_PIECE;
    struct worker_landing *l = n_pieces <= WORKER_PIECES_MAX ? calloc(1, sizeof *l + n_pieces * sizeof *l->pieces) : NULL;
    if (l) *l = (struct worker_landing){.w = w, .stream = s, .dst = dst, .size = size, .view = view, .n_pieces = (uint32_t)n_pieces};
    if (!l || !take_pieces(l)) {
        free(l);
        if (view) w->ops->host_view_end(w->backend, dst, size);
        worker_failed(w, record, CUDA_ERROR_OUT_OF_MEMORY, "the server has no memory for the copy's bytes");
        return worker_discard_payload(w, number);
    }
    l->expected = (struct worker_expected){.number = number, .size = size, .landing = l};
    worker_stream_hold(s);
    worker_expect_it(w, &l->expected);
    if (!view) return queue_pieces(l, record);
    int status = w->ops->gate(s->stream, land, l);
    if (!status) return 0;
    worker_failed(w, record, status, "the copy to the device could not be queued");
    land(l);
    return 0;
}
