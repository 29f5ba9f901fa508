/* Events. An event is a position in a stream: recording posts one command without waiting, and queries compare the position with the stream's completion. */
#include <time.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"
#include "objects/ipc.h"
#include "objects/managed/managed.h"

CUresult impl_cuEventCreate(CUevent *event, unsigned int flags) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!event || flags & ~known) return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_EVENT_INTERPROCESS) {
        if (!(flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
    }
    struct shim_event *e = object_new(OBJECT_EVENT);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&e->lock, NULL);
    e->context = c;
    e->ctx = c->id;
    e->flags = flags;
    if (!post_event_create(c->id, 0, &(struct gv_cmd_event_create){.event = e->object.id, .flags = flags})) {
        object_free(e);
        return post_refused();
    }
    object_publish(e);
    *event = (CUevent)e;
    return CUDA_SUCCESS;
}

/* The event behind a handle. An event of a context that has ended is invalid. */
int event_find(CUevent event, struct shim_event **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_event *e = object_get(OBJECT_EVENT, event);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    if (e->context->id != e->ctx || !atomic_load(&e->context->object.live)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = e;
    int rc = session_broken();
    return rc ? rc : context_status(e->context);
}

static void forget_capture(struct shim_event *e) {
    if (!atomic_load(&e->capture)) return;
    pthread_mutex_lock(&graph_lock);
    capture_forget_event(e);
    pthread_mutex_unlock(&graph_lock);
}

CUresult impl_cuEventDestroy(CUevent event) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_event *e = object_get(OBJECT_EVENT, event);
    if (!e || !object_retire(e)) return CUDA_ERROR_INVALID_HANDLE;
    if (e->flags & CU_EVENT_INTERPROCESS) ipc_forget(e->object.id);
    if (e->context->id == e->ctx && atomic_load(&e->context->object.live))
        post_event_destroy(e->ctx, 0, &(struct gv_cmd_event_destroy){.event = e->object.id});
    forget_capture(e);
    object_free(e);
    return CUDA_SUCCESS;
}

/* A process that hears from this one, by a pipe say, that the event was recorded may wait for it at once; its commands come by another link. CUDA promises that such a wait is
 * for this record, or a later one. So the call returns only when the worker has queued the record: that it is reached nobody waits for. In the same way a wait is for the latest
 * record at the time of the call, and not for one that the other process makes when it has heard of the wait, perhaps of work that is ordered after it. */
static int event_told(const struct shim_event *e) {
    int rc = event_ask(e);
    return rc == CUDA_ERROR_NOT_READY ? 0 : rc;
}

int event_ask(const struct shim_event *e) {
    struct session_reply reply;
    int rc = call_event_query(e->ctx, &(struct gv_cmd_event_query){.event = e->object.id}, NULL, &reply);
    session_reply_done(&reply);
    return rc;
}

CUresult impl_cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
    struct shim_stream *s;
    struct shim_event *e;
    int rc = stream_require(stream, &s);
    if (!rc) rc = event_find(event, &e);
    if (rc) return rc;
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    if (e->context != s->context) return CUDA_ERROR_INVALID_HANDLE;
    if (stream_captures(s) && flags & CU_EVENT_RECORD_EXTERNAL)
        return capture_work(s, &(struct graph_work){.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = event});
    if (stream_captures(s)) return capture_record(s, e);
    forget_capture(e);
    pthread_mutex_lock(&e->lock);
    uint64_t seq = post_event_record(e->ctx, GV_RECORD_MARK, &(struct gv_cmd_event_record){.event = e->object.id, .stream = stream_id(s)});
    if (seq) {
        stream_posted(s, seq, true);
        e->stream = s;
        e->stream_id = s->object.id;
        e->seq = seq;
    } else {
        rc = post_refused();
    }
    bool shared = e->shared;
    pthread_mutex_unlock(&e->lock);
    if (shared && !rc) rc = event_told(e);
    return rc;
}

CUresult impl_cuEventRecord(CUevent event, CUstream stream) { return impl_cuEventRecordWithFlags(event, stream, 0); }

/* Where the event was recorded last; false when it never was. */
static bool position(struct shim_event *e, struct shim_stream **stream, uint64_t *id, uint64_t *seq) {
    pthread_mutex_lock(&e->lock);
    *stream = e->stream;
    *id = e->stream_id;
    *seq = e->seq;
    pthread_mutex_unlock(&e->lock);
    return *stream != NULL;
}

/* The status of the stream that it was recorded on; 0 when that stream has been destroyed. */
static int status_of(const struct shim_stream *s, uint64_t id) {
    return s->object.id == id ? atomic_load_explicit(&s->session.status, memory_order_relaxed) : 0;
}

static int query(struct shim_event *e) {
    if (e->shared) return event_ask(e);
    struct shim_stream *s;
    uint64_t id, seq;
    if (!position(e, &s, &id, &seq)) return CUDA_SUCCESS;
    if (!stream_passed(s, id, seq)) {
        session_flush();
        session_poll();
        if (!stream_passed(s, id, seq)) {
            int rc = session_broken();
            return rc ? rc : CUDA_ERROR_NOT_READY;
        }
    }
    return status_of(s, id);
}

CUresult impl_cuEventQuery(CUevent event) {
    struct shim_event *e;
    int rc = event_find(event, &e);
    if (!rc && atomic_load(&e->capture)) rc = capture_event_asked(e);
    if (!rc) rc = query(e);
    if (!rc) managed_waited();
    return rc;
}

/* Nothing of this process's tells when another one's record is reached: the worker is asked again and again. */
static int await_shared(const struct shim_event *e) {
    int64_t pause = 20000;
    int rc;
    while ((rc = event_ask(e)) == CUDA_ERROR_NOT_READY) {
        nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
        if (pause < 1000000) pause *= 2;
    }
    return rc;
}

CUresult impl_cuEventSynchronize(CUevent event) {
    struct shim_event *e;
    int rc = event_find(event, &e);
    if (!rc && atomic_load(&e->capture)) rc = capture_event_asked(e);
    if (rc) return rc;
    if (e->shared) {
        rc = await_shared(e);
        managed_waited();
        return rc;
    }
    struct shim_stream *s;
    uint64_t id, seq;
    if (!position(e, &s, &id, &seq)) return CUDA_SUCCESS;
    bool passed = stream_passed(s, id, seq);
    rc = passed ? status_of(s, id) : session_wait_stream(&s->session, seq);
    if (rc && !passed && !session_broken()) context_failed(e->ctx, rc);
    managed_waited();
    return rc;
}

CUresult impl_cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    struct shim_event *a, *b;
    int rc = event_find(start, &a);
    if (!rc) rc = event_find(end, &b);
    if (!rc && (atomic_load(&a->capture) || atomic_load(&b->capture))) rc = CUDA_ERROR_CAPTURED_EVENT;
    if (rc) return rc;
    if (!milliseconds) return CUDA_ERROR_INVALID_HANDLE; /* as the driver does */
    struct shim_stream *s;
    uint64_t id, seq;
    if ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING || a->context != b->context) return CUDA_ERROR_INVALID_HANDLE;
    if (!position(a, &s, &id, &seq) || !position(b, &s, &id, &seq)) return CUDA_ERROR_INVALID_HANDLE;
    rc = query(a);
    if (!rc) rc = query(b);
    if (rc) return rc;
    struct session_reply reply;
    struct gv_reply_event_elapsed answer;
    rc = call_event_elapsed(a->ctx, &(struct gv_cmd_event_elapsed){.start = a->object.id, .end = b->object.id}, &answer, &reply);
    if (!rc) *milliseconds = answer.milliseconds;
    session_reply_done(&reply);
    return rc;
}
