/* Streams: each has a queue and a thread. The thread is started with the first work and ends after some idle time. */
#define _GNU_SOURCE
#include "stream.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "../../wire/clock.h"

#define THREAD_STACK (8u << 20) /* kernels without barriers run on it */
#define IDLE_NS 10000000000
/* ns that a thread polls for work before it sleeps, about the cost of waking it. It yields its core meanwhile. */
#define LOOK_NS 50000

/* ---- life ---- */

static void hold(struct gv_stream *s) { atomic_fetch_add(&s->refs, 1); }

static void drop(struct gv_stream *s) {
    if (atomic_fetch_sub(&s->refs, 1) > 1) return;
    struct gv_context *c = s->context;
    pthread_mutex_lock(&c->backend->lock);
    if (s->next) s->next->previous = s->previous;
    if (s->previous)
        s->previous->next = s->next;
    else
        c->streams = s->next;
    pthread_mutex_unlock(&c->backend->lock);
    pthread_cond_destroy(&s->wake);
    free(s);
    soft_context_drop(c);
}

struct gv_stream *soft_stream_new(struct gv_context *c, uint32_t flags) {
    struct gv_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->context = c;
    s->flags = flags;
    atomic_init(&s->refs, 1);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    soft_context_hold(c);
    soft_draws_begin(&s->draws, soft_engine_schedule(c->backend->engine));
    pthread_mutex_lock(&c->backend->lock);
    s->next = c->streams;
    if (s->next) s->next->previous = s;
    c->streams = s;
    pthread_mutex_unlock(&c->backend->lock);
    return s;
}

int soft_stream_create(struct gv_context *c, uint32_t flags, int32_t priority, struct gv_stream **out) {
    (void)priority; /* stream priorities have no effect */
    if (flags & ~(uint32_t)CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    *out = soft_stream_new(c, flags);
    return *out ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

void soft_stream_destroy(struct gv_stream *s) {
    if (s->legacy || s->internal) return; /* it lives as long as its context */
    pthread_mutex_lock(&s->context->backend->lock);
    s->destroyed = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->context->backend->lock);
    drop(s);
}

struct gv_stream *soft_stream_legacy(struct gv_context *c) { return c->legacy; }

void soft_stream_wake_all(struct gv_backend *b) {
    for (struct gv_context *c = b->contexts; c; c = c->next)
        for (struct gv_stream *s = c->streams; s; s = s->next) pthread_cond_signal(&s->wake);
}

void soft_stream_end_context(struct gv_context *c) {
    struct gv_backend *b = c->backend;
    pthread_mutex_lock(&b->lock);
    struct gv_stream *own[] = {c->legacy, c->reaper};
    c->legacy = c->reaper = NULL;
    for (int i = 0; i < 2; i++)
        if (own[i]) {
            own[i]->destroyed = true;
            pthread_cond_signal(&own[i]->wake);
        }
    pthread_mutex_unlock(&b->lock);
    for (int i = 0; i < 2; i++)
        if (own[i]) drop(own[i]);
}

/* ---- the thread ---- */

static void done(struct gv_backend *b) {
    if (b->waiters) pthread_cond_broadcast(&b->done);
}

void soft_stamp_drop_locked(struct stamp *t) {
    if (t && !--t->refs) free(t);
}

static void wait_done(struct gv_backend *b) {
    b->waiters++;
    pthread_cond_wait(&b->done, &b->lock);
    b->waiters--;
}

/* Waits until everything that the operation depends on has completed; false: the backend closes. Lock held. */
static bool ready(struct gv_backend *b, struct op *op) {
    for (uint32_t i = 0; i < op->n_dependencies; i++)
        while (op->dependencies[i].stream->completed < op->dependencies[i].seq) {
            if (b->closing) return false;
            wait_done(b);
        }
    while (op->wait_for && !op->wait_for->done) {
        if (b->closing) return false;
        wait_done(b);
    }
    return !b->closing;
}

static void run(struct gv_stream *s, struct op *op) {
    struct gv_context *c = s->context;
    struct gv_backend *b = c->backend;
    if (op->run && (op->kind != OP_WORK || !atomic_load(&c->error))) {
        bool queue = b->strict && op->kind != OP_MARK && op->kind != OP_EVENT_WAIT;
        if (queue) {
            pthread_mutex_lock(&b->lock);
            while (b->hardware_busy >= SOFT_HARDWARE_QUEUES && !b->closing) wait_done(b);
            b->hardware_busy++;
            pthread_mutex_unlock(&b->lock);
        }
        char err[GV_ERR_SIZE] = "";
        soft_draw_pause(&s->draws);
        int rc = op->run(s, op, err);
        soft_draw_pause(&s->draws);
        if (rc) soft_context_fail(c, rc, err);
        if (queue) {
            pthread_mutex_lock(&b->lock);
            b->hardware_busy--;
            done(b);
            pthread_mutex_unlock(&b->lock);
        }
    }
    if (op->drop) op->drop(s, op);
}

static void forget_dependencies(struct op *op) {
    for (uint32_t i = 0; i < op->n_dependencies; i++) drop(op->dependencies[i].stream);
    free(op->dependencies);
    op->dependencies = NULL;
    op->n_dependencies = 0;
}

/* Lock held, released meanwhile. */
static void look_for_work(struct gv_stream *s) {
    struct gv_backend *b = s->context->backend;
    uint64_t queued = atomic_load(&s->queued), until = (uint64_t)gv_now_ns() + LOOK_NS;
    pthread_mutex_unlock(&b->lock);
    while (atomic_load_explicit(&s->queued, memory_order_relaxed) == queued && (uint64_t)gv_now_ns() < until) sched_yield();
    pthread_mutex_lock(&b->lock);
}

/* Waits for the next operation; NULL: the thread is to end. Lock held. */
static struct op *next_op(struct gv_stream *s) {
    struct gv_backend *b = s->context->backend;
    if (!s->first && !s->destroyed) look_for_work(s);
    while (!s->first) {
        if (s->destroyed || b->closing) return NULL;
        struct timespec until = gv_deadline(CLOCK_MONOTONIC, IDLE_NS);
        s->sleeping = true;
        int rc = pthread_cond_timedwait(&s->wake, &b->lock, &until);
        s->sleeping = false;
        if (rc == ETIMEDOUT && !s->first) return NULL;
    }
    struct op *op = s->first;
    return ready(b, op) ? op : NULL;
}

static void *stream_thread(void *arg) {
    struct gv_stream *s = arg;
    struct gv_backend *b = s->context->backend;
    soft_thread_signals();
    pthread_setname_np(pthread_self(), "soft-stream");
    pthread_mutex_lock(&b->lock);
    struct op *op;
    while ((op = next_op(s))) {
        s->first = op->next;
        if (!s->first) s->last = NULL;
        if (op->wait_for) soft_stamp_drop_locked(op->wait_for);
        s->executing = true;
        pthread_mutex_unlock(&b->lock);
        run(s, op);
        uint64_t seq = op->seq;
        forget_dependencies(op);
        free(op);
        pthread_mutex_lock(&b->lock);
        s->executing = false;
        s->completed = seq;
        done(b);
    }
    s->running = false;
    pthread_mutex_unlock(&b->lock);
    drop(s);
    /* Last: the backend may be freed after this. */
    pthread_mutex_lock(&b->lock);
    b->n_threads--;
    pthread_cond_broadcast(&b->done);
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* Lock held. */
static int ensure_thread(struct gv_stream *s) {
    if (s->running) return 0;
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, THREAD_STACK);
    pthread_attr_setguardsize(&attr, SOFT_GUARD);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    hold(s);
    s->running = true;
    s->context->backend->n_threads++;
    int rc = pthread_create(&thread, &attr, stream_thread, s);
    pthread_attr_destroy(&attr);
    if (!rc) return 0;
    s->running = false;
    s->context->backend->n_threads--;
    atomic_fetch_sub(&s->refs, 1); /* never the last: the caller holds one */
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- queueing ---- */

void *soft_op_new(size_t size, enum op_kind kind, int (*fn)(struct gv_stream *, struct op *, char *),
                  void (*give_back)(struct gv_stream *, struct op *)) {
    struct op *op = calloc(1, size);
    if (!op) return NULL;
    op->kind = kind;
    op->run = fn;
    op->drop = give_back;
    return op;
}

static bool depend(struct op *op, struct gv_stream *on, uint64_t seq) {
    if (on->completed >= seq) return true;
    struct dependency *more = realloc(op->dependencies, ((size_t)op->n_dependencies + 1) * sizeof *more);
    if (!more) return false;
    op->dependencies = more;
    more[op->n_dependencies++] = (struct dependency){on, seq};
    hold(on);
    return true;
}

/* The legacy default stream: its operations wait for everything queued before in the context's blocking streams, and theirs wait for everything
 * queued before in it. Marks wait like work, but nothing waits for a mark: it only tells. */
static bool legacy_rules(struct gv_stream *s, struct op *op) {
    struct gv_context *c = s->context;
    if (s->legacy) {
        for (struct gv_stream *other = c->streams; other; other = other->next) {
            if (other == s || other->internal || other->flags & CU_STREAM_NON_BLOCKING || other->seen == other->work) continue;
            if (!depend(op, other, other->work)) return false;
            other->seen = other->work;
        }
    } else if (c->legacy && !s->internal && !(s->flags & CU_STREAM_NON_BLOCKING) && s->legacy_seen != c->legacy->work) {
        if (!depend(op, c->legacy, c->legacy->work)) return false;
        s->legacy_seen = c->legacy->work;
    }
    return true;
}

static int push_locked(struct gv_stream *s, struct op *op) {
    int rc = s->context->backend->closing ? CUDA_ERROR_CONTEXT_IS_DESTROYED : 0;
    if (!rc && !legacy_rules(s, op)) rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (!rc) rc = ensure_thread(s);
    if (rc) return rc;
    op->seq = atomic_load(&s->queued) + 1;
    if (op->kind != OP_MARK) s->work = op->seq;
    if (s->last)
        s->last->next = op;
    else
        s->first = op;
    s->last = op;
    atomic_store(&s->queued, op->seq);
    if (s->sleeping) pthread_cond_signal(&s->wake);
    return 0;
}

int soft_stream_push(struct gv_stream *s, struct op *op) {
    pthread_mutex_lock(&s->context->backend->lock);
    int rc = push_locked(s, op);
    pthread_mutex_unlock(&s->context->backend->lock);
    if (rc) {
        forget_dependencies(op);
        if (op->drop) op->drop(s, op);
        free(op);
    }
    return rc;
}

int soft_stream_after_all(struct gv_context *c, struct op *op) {
    struct gv_backend *b = c->backend;
    if (!c->reaper) {
        if (!(c->reaper = soft_stream_new(c, 0))) {
            op->drop(c->legacy, op);
            free(op);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        c->reaper->internal = true;
    }
    bool enough = true;
    pthread_mutex_lock(&b->lock);
    for (struct gv_stream *s = c->streams; s && enough; s = s->next)
        if (s != c->reaper) enough = depend(op, s, s->work);
    pthread_mutex_unlock(&b->lock);
    /* Without memory for the dependency it does not wait for that stream, which is wrong only for a program that frees memory in use. */
    return soft_stream_push(c->reaper, op);
}

/* ---- marks and gates ---- */

struct mark_op {
    struct op op;
    void (*fn)(void *arg, int status);
    void *arg;
};

static int mark_run(struct gv_stream *s, struct op *op, char *err) {
    (void)err;
    struct mark_op *m = (struct mark_op *)op;
    m->fn(m->arg, atomic_load(&s->context->error));
    return 0;
}

int soft_mark(struct gv_stream *s, void (*fn)(void *arg, int status), void *arg) {
    struct mark_op *m = soft_op_new(sizeof *m, OP_MARK, mark_run, NULL);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    m->fn = fn;
    m->arg = arg;
    return soft_stream_push(s, &m->op);
}

#define LOOK_AHEAD 4 /* operations */

/* The running mark has left the queue already. */
int soft_mark_follows(struct gv_stream *s) {
    struct gv_backend *b = s->context->backend;
    bool follows = false;
    pthread_mutex_lock(&b->lock);
    const struct op *op = b->closing ? NULL : s->first;
    for (int i = 0; op && !follows && i < LOOK_AHEAD; i++, op = op->next) {
        bool free_to_run = !op->wait_for;
        for (uint32_t d = 0; d < op->n_dependencies && free_to_run; d++)
            free_to_run = op->dependencies[d].stream->completed >= op->dependencies[d].seq;
        if (!free_to_run) break;
        follows = op->kind == OP_MARK;
        if (!op->quick) break;
    }
    pthread_mutex_unlock(&b->lock);
    return follows;
}

uint64_t soft_stream_position(struct gv_stream *s) { return atomic_load(&s->queued); }

int soft_stream_passed(struct gv_stream *s, uint64_t position) {
    struct gv_backend *b = s->context->backend;
    pthread_mutex_lock(&b->lock);
    bool passed = s->completed >= position;
    pthread_mutex_unlock(&b->lock);
    return passed && !atomic_load(&s->context->error); /* in this order: after an error work is skipped */
}

struct gate_op {
    struct op op;
    void (*fn)(void *arg);
    void *arg;
};

static int gate_run(struct gv_stream *s, struct op *op, char *err) {
    (void)s, (void)err;
    struct gate_op *g = (struct gate_op *)op;
    g->fn(g->arg);
    return 0;
}

/* Runs also after an error, because it releases what the caller holds. */
int soft_gate(struct gv_stream *s, void (*fn)(void *arg), void *arg) {
    struct gate_op *g = soft_op_new(sizeof *g, OP_ALWAYS, gate_run, NULL);
    if (!g) return CUDA_ERROR_OUT_OF_MEMORY;
    g->fn = fn;
    g->arg = arg;
    return soft_stream_push(s, &g->op);
}
