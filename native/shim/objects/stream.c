/* Streams: handles, the last command posted to each, and waiting for it. The driver's calls are in stream_calls.c. */
#include <stdlib.h>

#include "gv_client.h"
#include "memory_operation.h"
#include "objects/objects.h"

_Thread_local CUstream shim_default_stream = CU_STREAM_LEGACY;

/* ---- life ---------------------------------------------------------------------------------------------------------- */

/* Frees destroyed streams whose work has completed; c->lock held. */
static void reap(struct shim_context *c) {
    bool lost = session_broken() != 0;
    for (struct shim_stream *s = c->streams, *next; s; s = next) {
        next = s->next;
        if (!s->retired) continue;
        if (!lost && atomic_load(&s->session.completed) < atomic_load(&s->session.posted)) continue;
        if (s->previous)
            s->previous->next = s->next;
        else
            c->streams = s->next;
        if (s->next) s->next->previous = s->previous;
        session_stream_remove(&s->session);
        object_free(s);
    }
}

static int green_default(struct shim_context *bound, struct shim_stream **out);

int stream_new(struct shim_context *bound, enum stream_kind kind, unsigned flags, int priority, struct shim_stream **out) {
    struct shim_context *c = bound->root;
    if (bound->green && kind == STREAM_CREATED && !(flags & CU_STREAM_NON_BLOCKING)) { /* what it is ordered with */
        int rc = green_default(bound, out);
        if (rc) return rc;
    }
    struct shim_stream *s = object_new(OBJECT_STREAM);
    if (!s) { /* perhaps there are as many as there may be, and some of them have gone */
        pthread_mutex_lock(&c->lock);
        reap(c);
        pthread_mutex_unlock(&c->lock);
        s = object_new(OBJECT_STREAM);
    }
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    s->context = c;
    s->kind = kind;
    s->flags = flags;
    int greatest = device_attribute(c->info, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED) ? -5 : 0;
    priority = priority > 0 ? 0 : priority < greatest ? greatest : priority;
    if (bound->green) { /* not ordered with the primary context's legacy stream, but with its own default stream */
        atomic_store(&s->green, bound);
        s->within = !(flags & CU_STREAM_NON_BLOCKING);
        flags |= CU_STREAM_NON_BLOCKING;
    }
    s->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    s->priority = priority;
    s->session.id = kind == STREAM_LEGACY ? GV_LEGACY_STREAM(c->id) : s->object.id;
    s->session.ctx = c->id;
    s->session.order = kind == STREAM_LEGACY ? SESSION_LEGACY : s->blocking ? SESSION_BLOCKING : SESSION_UNORDERED;
    if (!s->blocking || kind == STREAM_PER_THREAD) atomic_store(&c->has_unordered_streams, true);
    session_stream_add(&s->session);
    if (kind != STREAM_LEGACY) {
        struct gv_cmd_stream_create create = {.stream = s->object.id, .flags = flags, .priority = priority};
        if (!post_stream_create(c->id, 0, &create)) {
            session_stream_remove(&s->session);
            object_free(s);
            return post_refused();
        }
    }
    pthread_mutex_lock(&c->lock);
    reap(c);
    s->next = c->streams;
    if (s->next) s->next->previous = s;
    c->streams = s;
    if (kind != STREAM_INTERNAL && c->gate && stream_in_flight(c->gate)) stream_after(s, c->gate);
    if (kind != STREAM_INTERNAL && bound != c && bound->gate && stream_in_flight(bound->gate)) stream_after(s, bound->gate);
    pthread_mutex_unlock(&c->lock);
    *out = s;
    return 0;
}

/* Nothing can wait for a stream that is gone: what is to come after its work waits now. */
static void wait_for_retired(struct shim_stream *s) {
    struct shim_context *c = s->context, *green = atomic_load(&s->green);
    struct shim_stream *default_stream = green && s->within && s->kind == STREAM_CREATED ? green->legacy : NULL;
    if (s->kind == STREAM_INTERNAL || (default_stream && stream_between(c))) return;
    pthread_mutex_lock(&c->lock);
    if (stream_in_flight(s)) {
        if (c->joined) stream_after(c->joined, s);
        if (green && green->joined) stream_after(green->joined, s);
        if (default_stream) stream_after(default_stream, s);
        s->joined = (c->joined ? 1 : 0) | (green && green->joined ? 2 : 0);
    }
    pthread_mutex_unlock(&c->lock);
}

static uint64_t fence_locked(struct shim_stream *s);

void stream_retire(struct shim_stream *s) {
    struct shim_context *c = s->context;
    wait_for_retired(s);
    /* With the lock, so that who waits for the whole context posts no fence of its own behind the end. */
    pthread_mutex_lock(&c->lock);
    fence_locked(s); /* events recorded on it and waits for the whole context need its completion */
    post_stream_destroy(c->id, 0, &(struct gv_cmd_stream_destroy){.stream = s->object.id});
    s->retired = true;
    reap(c);
    pthread_mutex_unlock(&c->lock);
}

void stream_drop_all(struct shim_context *c) {
    pthread_mutex_lock(&c->lock);
    while (c->streams) {
        struct shim_stream *s = c->streams;
        c->streams = s->next;
        if (!s->retired && s->kind != STREAM_LEGACY) post_stream_destroy(c->id, 0, &(struct gv_cmd_stream_destroy){.stream = s->object.id});
        session_stream_remove(&s->session);
        object_free(s);
    }
    pthread_mutex_unlock(&c->lock);
}

/* ---- order among the streams of a context --------------------------------------------------------------------------- */

int stream_between(struct shim_context *c) {
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    struct shim_event *e = c->between ? NULL : object_new(OBJECT_EVENT);
    if (!c->between && !e) rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (e && !post_event_create(c->id, 0, &(struct gv_cmd_event_create){.event = e->object.id, .flags = CU_EVENT_DISABLE_TIMING})) {
        object_free(e);
        rc = post_refused();
    } else if (e) {
        c->between = e;
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* One event serves all: a wait is for the last record before it. */
void stream_after(struct shim_stream *s, struct shim_stream *other) {
    uint32_t ctx = s->session.ctx;
    uint64_t event = s->context->between->object.id;
    uint64_t upto = post_event_record(ctx, GV_RECORD_MARK, &(struct gv_cmd_event_record){.event = event, .stream = stream_id(other)});
    if (!upto) return; /* the session is lost, as every call will say */
    stream_posted(other, upto, true);
    uint64_t seq = post_event_wait(ctx, 0, &(struct gv_cmd_event_wait){.stream = stream_id(s), .event = event});
    if (!seq) return;
    session_stream_waits(&s->session, seq, other->session.id, upto);
    stream_posted(s, seq, false);
}

/* In a green context the default stream and the streams that were not created as non-blocking are ordered as the legacy stream is with others. The worker knows
 * nothing of green contexts: what it does for the legacy stream, waits do here. */
static int order_within(struct shim_stream *s) {
    struct shim_context *c = s->context;
    if (atomic_load_explicit(&s->capture, memory_order_relaxed)) return 0;
    int rc = stream_between(c);
    if (rc) return rc;
    pthread_mutex_lock(&c->lock);
    uint64_t newest = s->after_within;
    for (struct shim_stream *o = c->streams; o && !rc; o = o->next) {
        if (!o->within || o->retired || o->green != s->green || stream_is_default(o) == stream_is_default(s)) continue;
        if (atomic_load_explicit(&o->capture, memory_order_relaxed)) {
            atomic_store(&c->capture_broken, true);
            rc = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        } else if (stream_in_flight(o) && atomic_load(&o->session.posted) > s->after_within) {
            stream_after(s, o);
            if (newest < atomic_load(&o->session.posted)) newest = atomic_load(&o->session.posted);
        }
    }
    s->after_within = newest;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* ---- the calling thread's own default streams ---------------------------------------------------------------------- */

struct own_stream {
    struct own_stream *next;
    uint32_t ctx;
    struct shim_stream *stream;
    uint64_t id;
};

static _Thread_local struct own_stream *own_streams;
static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

static void drop_own_streams(void *list) {
    for (struct own_stream *o = list, *next; o; o = next) {
        next = o->next;
        if (!session_in_forked_child() && o->stream->object.id == o->id && object_retire(o->stream)) stream_retire(o->stream);
        free(o);
    }
    own_streams = NULL;
}

static void make_own_key(void) { pthread_key_create(&own_key, drop_own_streams); }

static int own_stream(struct shim_context *c, struct shim_stream **out) {
    if (c->green) return CUDA_ERROR_INVALID_HANDLE; /* as CUDA has it */
    for (struct own_stream *o = own_streams; o; o = o->next) {
        if (o->ctx == c->id) {
            *out = o->stream;
            return 0;
        }
    }
    struct own_stream *o = calloc(1, sizeof *o);
    if (!o) return CUDA_ERROR_OUT_OF_MEMORY;
    int rc = stream_new(c, STREAM_PER_THREAD, CU_STREAM_DEFAULT, 0, &o->stream);
    if (rc) {
        free(o);
        return rc;
    }
    object_publish(o->stream);
    o->ctx = c->id;
    o->id = o->stream->object.id; /* NOLINT(clang-analyzer-core.NullDereference): post_refused, which stream_new returns, is never 0 */
    o->next = own_streams;
    own_streams = o;
    pthread_once(&own_once, make_own_key);
    pthread_setspecific(own_key, o);
    *out = o->stream;
    return 0;
}

/* ---- handles ------------------------------------------------------------------------------------------------------- */

/* A green context has its default stream from its first use on, whether it was created with one or not. */
static int green_default(struct shim_context *c, struct shim_stream **out) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    int rc = c->legacy ? 0 : stream_new(c, STREAM_GREEN_DEFAULT, CU_STREAM_DEFAULT, 0, &c->legacy);
    pthread_mutex_unlock(&lock);
    *out = c->legacy;
    return rc;
}

static int resolve(CUstream handle, struct shim_context *bound, struct shim_stream **out) {
    if (!handle || handle == CU_STREAM_LEGACY) {
        if (bound->green) return green_default(bound, out);
        *out = bound->legacy;
        return *out ? 0 : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (handle == CU_STREAM_PER_THREAD) return own_stream(bound, out);
    *out = object_get(OBJECT_STREAM, handle);
    if (*out && atomic_load_explicit(&(*out)->detached, memory_order_relaxed)) return CUDA_ERROR_STREAM_DETACHED;
    return *out ? 0 : CUDA_ERROR_INVALID_HANDLE;
}

int stream_resolve(CUstream handle, struct shim_stream **out) {
    struct shim_context *c = context_bound();
    if (!c) return shim_initialized() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
    return resolve(handle, c, out);
}

int stream_asked(CUstream handle, struct shim_stream **out) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (!rc) rc = resolve(handle, context_bound(), out);
    if (rc) return rc;
    if ((*out)->kind == STREAM_LEGACY && atomic_load_explicit(&(*out)->context->capturing_blocking, memory_order_relaxed))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if ((*out)->context != c) rc = context_status((*out)->context);
    return rc ? rc : atomic_load_explicit(&(*out)->session.status, memory_order_relaxed);
}

int stream_require(CUstream handle, struct shim_stream **out) {
    int rc = stream_asked(handle, out);
    if (rc == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) atomic_store(&(*out)->context->capture_broken, true); /* it must wait for it */
    if (!rc && (*out)->within) rc = order_within(*out);
    return rc ? rc : stream_after_copies(*out);
}

struct session_stream *stream_session(struct shim_stream *s) { return &s->session; }

uint64_t stream_id(const struct shim_stream *s) { return s->kind == STREAM_LEGACY ? 0 : s->object.id; }

uint32_t stream_ctx(const struct shim_stream *s) { return s->session.ctx; }

/* ---- progress ------------------------------------------------------------------------------------------------------ */

static void raise_to(_Atomic uint64_t *value, uint64_t to) {
    uint64_t old = atomic_load_explicit(value, memory_order_relaxed);
    while (old < to && !atomic_compare_exchange_weak_explicit(value, &old, to, memory_order_release, memory_order_relaxed)) {
    }
}

void stream_posted(struct shim_stream *s, uint64_t seq, bool marked) { session_stream_posted(&s->session, seq, marked, false); }

/* The last command that a wait for this stream must cover. The legacy stream covers the blocking streams of its context as well; c->lock held for it. */
static uint64_t newest_command(const struct shim_stream *s) {
    uint64_t newest = atomic_load_explicit(&s->session.posted, memory_order_acquire);
    if (s->kind != STREAM_LEGACY) return newest;
    for (const struct shim_stream *o = s->context->streams; o; o = o->next) {
        uint64_t posted = atomic_load_explicit(&o->session.posted, memory_order_acquire);
        if (o->blocking && posted > newest && atomic_load_explicit(&o->session.completed, memory_order_acquire) < posted) newest = posted;
    }
    return newest;
}

static uint64_t fence_locked(struct shim_stream *s) {
    uint64_t newest = newest_command(s);
    if (newest <= atomic_load_explicit(&s->session.completed, memory_order_acquire)) return 0;
    uint64_t marked = atomic_load_explicit(&s->session.marked, memory_order_acquire);
    if (marked >= newest) return marked;
    uint64_t seq = post_fence(s->session.ctx, GV_RECORD_MARK, &(struct gv_cmd_fence){.stream = stream_id(s)});
    if (!seq) return newest; /* the session is lost; the waiter gets its error */
    session_stream_posted(&s->session, seq, true, true);
    return seq;
}

int stream_barrier(struct shim_stream *s) {
    struct gv_memory_operation o = {.kind = GV_MEMORY_BARRIER, .flags = CU_STREAM_MEMORY_BARRIER_TYPE_GPU};
    struct gv_cmd_memory_operations c = {.stream = stream_id(s), .operations = &o, .operations_size = sizeof o};
    uint64_t seq = post_memory_operations(stream_ctx(s), 0, &c);
    if (!seq) return post_refused();
    stream_posted(s, seq, false);
    return 0;
}

uint64_t stream_fence(struct shim_stream *s) {
    if (s->kind != STREAM_LEGACY) return fence_locked(s);
    pthread_mutex_lock(&s->context->lock);
    uint64_t seq = fence_locked(s);
    pthread_mutex_unlock(&s->context->lock);
    return seq;
}

static int wait_seq(struct session_stream *s, uint64_t seq) {
    uint32_t ctx = s->ctx;
    int status = session_wait_stream(s, seq);
    if (status && !session_broken()) context_failed(ctx, status);
    return status;
}

int stream_drain(struct shim_stream *s) {
    uint64_t seq = stream_fence(s);
    if (!seq) return atomic_load_explicit(&s->session.status, memory_order_relaxed);
    return wait_seq(&s->session, seq);
}

/* ---- copies that the program has waited for ------------------------------------------------------------------------- */

void stream_copied(struct shim_stream *s, uint64_t seq) {
    raise_to(&s->copied, seq);
    raise_to(&s->context->copied, seq);
}

static bool ordered(const struct shim_stream *a, const struct shim_stream *b) {
    return a == b || (a->kind == STREAM_LEGACY && b->blocking) || (b->kind == STREAM_LEGACY && a->blocking);
}

int stream_after_copies(struct shim_stream *s) {
    struct shim_context *c = s->context;
    uint64_t newest = atomic_load_explicit(&c->copied, memory_order_acquire);
    if (newest <= atomic_load_explicit(&s->after, memory_order_relaxed)) return 0;
    struct shim_stream *other;
    do {
        uint64_t seq = 0;
        pthread_mutex_lock(&c->lock);
        for (other = c->streams; other; other = other->next) {
            seq = atomic_load(&other->copied);
            if (!ordered(other, s) && seq > atomic_load_explicit(&other->session.completed, memory_order_acquire)) break;
        }
        if (other && atomic_load(&other->session.marked) < seq) seq = fence_locked(other);
        pthread_mutex_unlock(&c->lock);
        int rc = other && seq ? wait_seq(&other->session, seq) : 0;
        if (rc) return rc;
    } while (other);
    raise_to(&s->after, newest);
    return 0;
}

/* ---- all streams --------------------------------------------------------------------------------------------------- */

struct pending_wait {
    struct session_stream *stream;
    uint64_t seq;
};

struct wait_list {
    struct pending_wait *waits;
    size_t n, capacity;
};

/* Posts the fences that a context's streams need and appends the waits to the list. */
static int fence_context(struct shim_context *bound, struct wait_list *list) {
    struct shim_context *c = bound->root;
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    for (struct shim_stream *s = c->streams; s && !rc; s = s->next) {
        uint64_t seq = bound->green && !stream_works_in(s, bound) ? 0 : fence_locked(s);
        if (!seq || !list) continue;
        if (list->n == list->capacity) {
            size_t capacity = list->capacity ? 2 * list->capacity : 16;
            struct pending_wait *more = realloc(list->waits, capacity * sizeof *more);
            if (!more) {
                rc = CUDA_ERROR_OUT_OF_MEMORY;
                break;
            }
            list->waits = more;
            list->capacity = capacity;
        }
        list->waits[list->n++] = (struct pending_wait){.stream = &s->session, .seq = seq};
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* The live contexts, for callers that must not hold context_lock. Their slots stay readable; a context that ends meanwhile has no streams. */
static size_t contexts_now(struct shim_context **out, size_t most) {
    size_t n = 0;
    pthread_mutex_lock(&context_lock);
    for (struct shim_context *c = context_list; c && n < most; c = c->next) out[n++] = c;
    pthread_mutex_unlock(&context_lock);
    return n;
}

#define MOST_CONTEXTS 256

int stream_drain_context(struct shim_context *c) {
    struct shim_context *all[MOST_CONTEXTS];
    struct wait_list list = {0};
    size_t n = 1;
    int rc = 0, status = 0;
    if (c)
        all[0] = c;
    else
        n = contexts_now(all, MOST_CONTEXTS);
    for (size_t i = 0; i < n && !rc; i++) rc = fence_context(all[i], &list);
    /* All fences have been posted, so all these waits together take one round trip. */
    for (size_t i = 0; i < list.n; i++) {
        int one = wait_seq(list.waits[i].stream, list.waits[i].seq);
        if (one && !status) status = one;
    }
    free(list.waits);
    if (c) {
        pthread_mutex_lock(&c->root->lock);
        reap(c->root);
        pthread_mutex_unlock(&c->root->lock);
        if (!status) status = context_status(c->root);
    }
    return rc ? rc : status;
}

void stream_fence_all(void) {
    struct shim_context *all[MOST_CONTEXTS];
    size_t n = contexts_now(all, MOST_CONTEXTS);
    for (size_t i = 0; i < n; i++) fence_context(all[i], NULL);
}

void stream_progress(uint64_t *newest, uint64_t *passed) {
    struct shim_context *all[MOST_CONTEXTS];
    size_t n = contexts_now(all, MOST_CONTEXTS);
    *newest = 0;
    *passed = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        pthread_mutex_lock(&all[i]->lock);
        for (struct shim_stream *s = all[i]->streams; s; s = s->next) {
            uint64_t completed = atomic_load_explicit(&s->session.completed, memory_order_acquire);
            uint64_t posted = atomic_load_explicit(&s->session.posted, memory_order_acquire);
            if (posted > *newest) *newest = posted;
            if (completed < posted && completed < *passed) *passed = completed;
        }
        pthread_mutex_unlock(&all[i]->lock);
    }
}

bool streams_passed_but(const struct shim_stream *a, const struct shim_stream *b) {
    struct shim_context *all[MOST_CONTEXTS];
    size_t n = contexts_now(all, MOST_CONTEXTS);
    bool passed = true;
    for (size_t i = 0; i < n && passed; i++) {
        pthread_mutex_lock(&all[i]->lock);
        for (struct shim_stream *s = all[i]->streams; s && passed; s = s->next) {
            if (s == a || s == b) continue;
            uint64_t completed = atomic_load_explicit(&s->session.completed, memory_order_acquire);
            passed = completed >= atomic_load_explicit(&s->session.posted, memory_order_acquire);
        }
        pthread_mutex_unlock(&all[i]->lock);
    }
    return passed;
}
