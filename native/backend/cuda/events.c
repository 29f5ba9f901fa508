/* Events, by the driver. Those that sessions share have words in a file as well (../event_words.h), and not the driver's own handles: for these it needs files that
 * all processes of the user can open, and a worker in its box has none. So a mark tells that a record has been reached, and who waits for another session's stops at a gate. */
#include <stdlib.h>

#include "backend_cuda.h"

/* Of an event that may be shared. Under the backend's lock. */
struct record {
    struct gv_backend *backend;
    uint32_t refs; /* the event's, and the mark's */
    bool reached;
    struct event_words *words; /* NULL: it is not shared yet */
    struct event_file *file;
    uint64_t number;
};

struct gv_event {
    struct gv_context *context;
    CUevent event;
    uint32_t flags;
    struct record *latest;     /* NULL: of an event that is never shared, or was never recorded here; under the backend's lock */
    struct event_words *words; /* NULL: it is not shared */
    struct event_file *file;
};

int cuda_event_create(struct gv_context *c, uint32_t flags, struct gv_event **out) {
    struct gv_event *e = calloc(1, sizeof *e);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    e->context = c;
    e->flags = flags;
    int status = cuda_enter(c);
    if (!status) status = c->b->driver.event_create(&e->event, flags & ~(unsigned)CU_EVENT_INTERPROCESS);
    if (status)
        free(e);
    else
        *out = e;
    return status;
}

/* Lock held. */
static void drop(struct record *r) {
    if (r && !--r->refs) free(r);
}

void cuda_event_destroy(struct gv_event *e) {
    struct gv_backend *b = e->context->b;
    if (cuda_enter(e->context) == 0) b->driver.event_destroy(e->event);
    pthread_mutex_lock(&b->lock);
    drop(e->latest);
    if (e->file) event_file_drop(&b->event_files, e->file);
    pthread_mutex_unlock(&b->lock);
    free(e);
}

/* ---- recording ---- */

/* From here on all sessions that share it see that it is recorded; lock held. */
static void count_record(struct gv_event *e, struct record *r) {
    r->words = e->words;
    r->file = e->file;
    r->file->refs++;
    r->number = event_words_record(e->words);
}

/* Also after an error, so that waiters continue, and see the error of their own. */
static void reached(void *arg, int status) {
    (void)status;
    struct record *r = arg;
    struct gv_backend *b = r->backend;
    pthread_mutex_lock(&b->lock);
    r->reached = true;
    if (r->words) event_words_reach(r->words, r->number);
    if (r->file) event_file_drop(&b->event_files, r->file);
    drop(r);
    pthread_mutex_unlock(&b->lock);
}

static int mark_record(struct gv_event *e, struct gv_stream *s) {
    struct gv_backend *b = e->context->b;
    struct record *r = calloc(1, sizeof *r);
    if (!r) return CUDA_ERROR_OUT_OF_MEMORY;
    *r = (struct record){.backend = b, .refs = 2};
    pthread_mutex_lock(&b->lock);
    drop(e->latest);
    e->latest = r;
    if (e->words) count_record(e, r);
    pthread_mutex_unlock(&b->lock);
    int status = cuda_mark(s, reached, r);
    if (status) reached(r, status);
    return status;
}

int cuda_event_record(struct gv_event *e, struct gv_stream *s) {
    int status = cuda_enter(s->context);
    if (!status) status = (int)s->context->b->driver.event_record(e->event, s->stream);
    return status || !(e->flags & CU_EVENT_INTERPROCESS) ? status : mark_record(e, s);
}

int cuda_event_elapsed(struct gv_event *start, struct gv_event *end, float *ms) {
    int status = cuda_enter(start->context);
    return status ? status : (int)start->context->b->driver.event_elapsed(ms, start->event, end->event);
}

/* ---- waiting ---- */

/* What a stream waits for that another session has recorded. */
struct shared_wait {
    struct gv_context *context;
    struct event_words *words;
    struct event_file *file;
    uint64_t number;
};

static bool given_up(const struct shared_wait *w) {
    struct gv_backend *b = w->context->b;
    pthread_mutex_lock(&b->lock);
    bool stopping = b->stopping;
    pthread_mutex_unlock(&b->lock);
    return stopping || atomic_load(&w->context->error) > 0 || atomic_load(&w->file->gone);
}

static void await_words(void *arg) {
    struct shared_wait *w = arg;
    struct gv_backend *b = w->context->b;
    while (!event_words_reached(w->words, w->number) && !given_up(w)) event_words_wait(w->words, w->number);
    pthread_mutex_lock(&b->lock);
    event_file_drop(&b->event_files, w->file);
    pthread_mutex_unlock(&b->lock);
    free(w);
}

static int wait_shared(struct gv_stream *s, struct gv_event *e, uint64_t number) {
    struct gv_backend *b = s->context->b;
    struct shared_wait *w = malloc(sizeof *w);
    if (!w) return CUDA_ERROR_OUT_OF_MEMORY;
    *w = (struct shared_wait){.context = s->context, .words = e->words, .file = e->file, .number = number};
    pthread_mutex_lock(&b->lock);
    w->file->refs++;
    pthread_mutex_unlock(&b->lock);
    int status = cuda_gate(s, await_words, w);
    if (!status) return 0;
    pthread_mutex_lock(&b->lock);
    event_file_drop(&b->event_files, w->file);
    pthread_mutex_unlock(&b->lock);
    free(w);
    return status;
}

/* Whether this session has made the record. */
static bool ours(const struct gv_event *e, uint64_t number) {
    struct gv_backend *b = e->context->b;
    pthread_mutex_lock(&b->lock);
    bool latest = e->latest && e->latest->words && e->latest->number == number;
    pthread_mutex_unlock(&b->lock);
    return latest;
}

int cuda_stream_wait_event(struct gv_stream *s, struct gv_event *e) {
    uint64_t number = e->words ? event_words_latest(e->words) : 0;
    if (e->words && event_words_reached(e->words, number)) return 0;
    if (e->words && !ours(e, number)) return wait_shared(s, e, number);
    int status = cuda_enter(s->context);
    return status ? status : (int)s->context->b->driver.stream_wait_event(s->stream, e->event, 0);
}

int cuda_event_query(struct gv_event *e) {
    int status = cuda_enter(e->context);
    if (status || !e->words) return status ? status : (int)e->context->b->driver.event_query(e->event);
    bool done = event_words_reached(e->words, event_words_latest(e->words)) || atomic_load(&e->file->gone);
    int error = atomic_load(&e->context->error);
    return error > 0 ? error : done ? 0 : CUDA_ERROR_NOT_READY;
}

/* ---- sharing ---- */

int cuda_event_export(struct gv_event *e, struct gv_shared *out) {
    struct gv_backend *b = e->context->b;
    if (!(e->flags & CU_EVENT_INTERPROCESS) || (e->file && e->file->session)) return CUDA_ERROR_INVALID_HANDLE;
    if (!e->file) { /* it has no words yet */
        uint64_t at;
        struct event_file *f;
        struct event_words *words = event_words_new(&b->event_files, &f, &at);
        if (!words) return CUDA_ERROR_OUT_OF_MEMORY;
        pthread_mutex_lock(&b->lock);
        e->words = words;
        e->file = f;
        f->refs++;
        struct record *r = e->latest;
        if (r && r->reached) event_words_reach(words, event_words_record(words));
        if (r && !r->reached) count_record(e, r);
        pthread_mutex_unlock(&b->lock);
    }
    event_words_say(e->file, e->words, e->context->account->share.ordinal, out);
    return 0;
}

int cuda_event_import(struct gv_context *c, const struct gv_shared *shared, uint64_t session, struct gv_event **out) {
    struct gv_backend *b = c->b;
    struct event_file *f = NULL;
    struct event_words *words = event_words_open(&b->event_files, shared, session, &f);
    if (!words) return CUDA_ERROR_INVALID_VALUE;
    int status = cuda_event_create(c, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, out);
    if (!status) {
        (*out)->words = words;
        (*out)->file = f;
        return 0;
    }
    pthread_mutex_lock(&b->lock);
    event_file_drop(&b->event_files, f);
    pthread_mutex_unlock(&b->lock);
    return status;
}
