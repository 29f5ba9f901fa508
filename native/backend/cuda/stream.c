/* Streams, by the driver. */
#include <stdlib.h>

#include "backend_cuda.h"

int cuda_stream_create(struct gv_context *c, uint32_t flags, int32_t priority, struct gv_stream **out) {
    struct gv_stream *s = calloc(1, sizeof *s);
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    s->context = c;
    int status = cuda_enter(c);
    if (!status && c->b->has_words && !(s->words = cuda_words_take(c->b))) status = CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) status = cuda_enter(c);
    if (!status) status = c->b->driver.stream_create(&s->stream, flags, priority);
    if (status) {
        if (s->words) cuda_words_give(c->b, s->words);
        free(s);
        return status;
    }
    s->next = c->streams;
    if (s->next) s->next->previous = s;
    c->streams = s;
    *out = s;
    return 0;
}

void cuda_stream_free(struct gv_stream *s) {
    const struct driver *d = &s->context->b->driver;
    if (cuda_enter(s->context) == 0) {
        if (s->value_there) d->event_destroy(s->value_there);
        d->stream_destroy(s->stream);
    }
    if (s->words) cuda_words_give(s->context->b, s->words);
    free(s);
}

void cuda_stream_destroy(struct gv_stream *s) {
    struct gv_backend *b = s->context->b;
    if (s->next) s->next->previous = s->previous;
    *(s->previous ? &s->previous->next : &s->context->streams) = s->next;
    pthread_mutex_lock(&b->lock);
    s->dying = true;
    bool later = s->is_watched || s->is_probed;
    pthread_mutex_unlock(&b->lock);
    if (later) return; /* the watcher does it after the last mark, or the prober */
    cuda_stream_free(s);
}

static bool at_work(const struct gv_context *c, const struct gv_stream *s) { return c->b->driver.stream_query(s->stream) == CUDA_ERROR_NOT_READY; }

int cuda_at_rest(struct gv_backend *b) {
    bool works = false;
    for (struct gv_context *c = b->contexts; c && !works; c = c->next) {
        if (cuda_enter(c)) continue; /* it is lost: nothing runs there */
        works = at_work(c, c->legacy);
        for (const struct gv_stream *s = c->streams; s && !works; s = s->next) works = at_work(c, s);
    }
    return !works;
}

struct gv_stream *cuda_stream_legacy(struct gv_context *c) { return c->legacy; }
