/* Events. An event refers to its latest record; a waiter holds the record that was the latest when it started to wait. */
#include <stdlib.h>

#include "../../wire/clock.h"
#include "../../wire/image_stream.h"
#include "shared/shared.h"
#include "stream.h"

struct gv_event {
    struct gv_context *context;
    uint32_t flags;
    struct stamp *latest;      /* under backend.lock; NULL: never recorded */
    struct event_words *words; /* it is shared with other sessions; NULL: it is not */
    struct event_file *file;   /* where they lie */
};

int soft_event_create(struct gv_context *c, uint32_t flags, struct gv_event **out) {
    struct gv_event *e = calloc(1, sizeof *e);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    e->context = c;
    e->flags = flags;
    soft_context_hold(c);
    *out = e;
    return 0;
}

void soft_event_destroy(struct gv_event *e) {
    struct gv_context *c = e->context;
    pthread_mutex_lock(&c->backend->lock);
    soft_stamp_drop_locked(e->latest);
    if (e->file) event_file_drop(&c->backend->event_files, e->file);
    pthread_mutex_unlock(&c->backend->lock);
    soft_context_drop(c);
    free(e);
}

/* From here on all sessions that share it see that it is recorded; lock held. */
static void count_record(struct gv_event *e, struct stamp *t) {
    t->words = e->words;
    t->file = e->file;
    t->file->refs++;
    t->number = event_words_record(e->words);
}

struct record_op {
    struct op op;
    struct stamp *stamp;
};

/* Runs also after an error, so that waiters continue and see the error. */
static void record_drop(struct gv_stream *s, struct op *op) {
    struct gv_backend *b = s->context->backend;
    struct stamp *t = ((struct record_op *)op)->stamp;
    uint64_t now = (uint64_t)gv_now_ns();
    pthread_mutex_lock(&b->lock);
    t->time = now;
    t->done = true;
    if (t->words) event_words_reach(t->words, t->number);
    if (t->file) event_file_drop(&b->event_files, t->file);
    soft_stamp_drop_locked(t);
    if (b->waiters) pthread_cond_broadcast(&b->done);
    pthread_mutex_unlock(&b->lock);
}

int soft_event_record(struct gv_event *e, struct gv_stream *s) {
    if (e->context != s->context) return CUDA_ERROR_INVALID_HANDLE;
    struct gv_backend *b = e->context->backend;
    struct stamp *t = calloc(1, sizeof *t);
    struct record_op *r = soft_op_new(sizeof *r, OP_ALWAYS, NULL, record_drop);
    if (!t || !r) {
        free(t);
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    t->refs = 2; /* held by the event and the operation */
    r->stamp = t;
    r->op.quick = true;
    pthread_mutex_lock(&b->lock);
    soft_stamp_drop_locked(e->latest);
    e->latest = t;
    if (e->words) count_record(e, t);
    pthread_mutex_unlock(&b->lock);
    return soft_stream_push(s, &r->op);
}

int soft_event_elapsed(struct gv_event *start, struct gv_event *end, float *ms) {
    struct gv_backend *b = start->context->backend;
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || start->context != end->context) return CUDA_ERROR_INVALID_HANDLE;
    int error = atomic_load(&start->context->error);
    if (error) return error;
    pthread_mutex_lock(&b->lock);
    const struct stamp *from = start->latest, *to = end->latest;
    int rc = !from || !to ? CUDA_ERROR_INVALID_HANDLE : !from->done || !to->done ? CUDA_ERROR_NOT_READY : 0;
    if (!rc) *ms = (float)((double)(int64_t)(to->time - from->time) * 1e-6);
    pthread_mutex_unlock(&b->lock);
    return rc;
}

/* ---- shared with other sessions ---- */

struct shared_wait {
    struct op op;
    struct event_words *words;
    struct event_file *file;
    uint64_t number;
};

static bool given_up(struct gv_context *c, struct event_file *f) {
    pthread_mutex_lock(&c->backend->lock);
    bool closing = c->backend->closing;
    pthread_mutex_unlock(&c->backend->lock);
    return closing || atomic_load(&c->error) || atomic_load(&f->gone);
}

static int shared_wait_run(struct gv_stream *s, struct op *op, char *err) {
    (void)err;
    struct shared_wait *w = (struct shared_wait *)op;
    while (!event_words_reached(w->words, w->number) && !given_up(s->context, w->file)) event_words_wait(w->words, w->number);
    return 0;
}

static void shared_wait_drop(struct gv_stream *s, struct op *op) {
    struct gv_backend *b = s->context->backend;
    pthread_mutex_lock(&b->lock);
    event_file_drop(&b->event_files, ((struct shared_wait *)op)->file);
    pthread_mutex_unlock(&b->lock);
}

static int wait_shared(struct gv_stream *s, struct gv_event *e) {
    struct gv_backend *b = s->context->backend;
    uint64_t number = event_words_latest(e->words);
    if (event_words_reached(e->words, number)) return 0;
    struct shared_wait *w = soft_op_new(sizeof *w, OP_EVENT_WAIT, shared_wait_run, shared_wait_drop);
    if (!w) return CUDA_ERROR_OUT_OF_MEMORY;
    w->words = e->words;
    w->file = e->file;
    w->number = number;
    pthread_mutex_lock(&b->lock);
    w->file->refs++;
    pthread_mutex_unlock(&b->lock);
    return soft_stream_push(s, &w->op);
}

int soft_event_query(struct gv_event *e) {
    struct gv_backend *b = e->context->backend;
    int error = atomic_load(&e->context->error);
    if (error) return error;
    pthread_mutex_lock(&b->lock);
    bool reached = !e->latest || e->latest->done;
    pthread_mutex_unlock(&b->lock);
    if (e->words) reached = event_words_reached(e->words, event_words_latest(e->words)) || atomic_load(&e->file->gone);
    return reached ? 0 : CUDA_ERROR_NOT_READY;
}

int soft_event_export(struct gv_event *e, struct gv_shared *out) {
    struct gv_backend *b = e->context->backend;
    if (!(e->flags & CU_EVENT_INTERPROCESS) || (e->file && e->file->session)) return CUDA_ERROR_INVALID_HANDLE;
    if (!e->file) { /* it has no shared words yet */
        uint64_t at;
        struct event_file *f;
        struct event_words *words = event_words_new(&b->event_files, &f, &at);
        if (!words) return CUDA_ERROR_OUT_OF_MEMORY;
        pthread_mutex_lock(&b->lock);
        e->words = words;
        e->file = f;
        f->refs++;
        struct stamp *t = e->latest;
        if (t && t->done) event_words_reach(words, event_words_record(words));
        if (t && !t->done) count_record(e, t);
        pthread_mutex_unlock(&b->lock);
    }
    event_words_say(e->file, e->words, e->context->device->share.ordinal, out);
    return 0;
}

int soft_event_import(struct gv_context *c, const struct gv_shared *shared, uint64_t session, struct gv_event **out) {
    struct gv_event *e;
    struct event_file *f = NULL;
    struct event_words *words = event_words_open(&c->backend->event_files, shared, session, &f);
    if (!words) return CUDA_ERROR_INVALID_VALUE;
    int rc = soft_event_create(c, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, &e);
    if (!rc) {
        e->words = words;
        e->file = f;
        *out = e;
        return 0;
    }
    pthread_mutex_lock(&c->backend->lock);
    event_file_drop(&c->backend->event_files, f);
    pthread_mutex_unlock(&c->backend->lock);
    return rc;
}

int soft_stream_wait_event(struct gv_stream *s, struct gv_event *e) {
    struct gv_backend *b = s->context->backend;
    if (e->words) return wait_shared(s, e);
    struct op *op = soft_op_new(sizeof *op, OP_EVENT_WAIT, NULL, NULL);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&b->lock);
    struct stamp *t = e->latest;
    bool needed = t && !t->done;
    if (needed) {
        t->refs++;
        op->wait_for = t;
    }
    pthread_mutex_unlock(&b->lock);
    if (!needed) {
        free(op);
        return 0;
    }
    int rc = soft_stream_push(s, op);
    if (rc) {
        pthread_mutex_lock(&b->lock);
        soft_stamp_drop_locked(t);
        pthread_mutex_unlock(&b->lock);
    }
    return rc;
}

/* Times of day, for the other worker's host may have another monotonic clock. */
void soft_save_event(struct gv_event *e, struct gv_image_out *out) {
    struct gv_backend *b = e->context->backend;
    pthread_mutex_lock(&b->lock);
    gv_image_put(out, e->flags);
    gv_image_put(out, e->latest != NULL);
    gv_image_put(out, e->latest ? e->latest->time + b->day_offset : 0);
    pthread_mutex_unlock(&b->lock);
}

int soft_restore_event(struct gv_context *c, struct gv_image_in *in, struct gv_event **out) {
    uint32_t flags = (uint32_t)gv_image_get(in, UINT32_MAX);
    bool recorded = gv_image_get(in, 1);
    uint64_t time = gv_image_get(in, UINT64_MAX);
    struct stamp *t = recorded ? calloc(1, sizeof *t) : NULL;
    int rc = recorded && !t ? CUDA_ERROR_OUT_OF_MEMORY : soft_event_create(c, flags, out);
    if (rc) {
        free(t);
        return rc;
    }
    if (t) *t = (struct stamp){.refs = 1, .done = true, .time = time - c->backend->day_offset};
    (*out)->latest = t;
    return 0;
}
