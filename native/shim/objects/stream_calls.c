/* The driver's calls about streams. */
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"
#include "objects/managed/managed.h"

/* ---- creation ------------------------------------------------------------------------------------------------------ */

CUresult impl_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!stream || flags & ~(unsigned)CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    struct shim_stream *s;
    rc = stream_new(context_bound(), STREAM_CREATED, flags, priority, &s);
    if (rc) return rc;
    object_publish(s);
    *stream = (CUstream)s;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamCreate(CUstream *stream, unsigned int flags) { return impl_cuStreamCreateWithPriority(stream, flags, 0); }

CUresult impl_cuStreamDestroy(CUstream stream) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_stream *s = object_get(OBJECT_STREAM, stream);
    if (!s || s->kind != STREAM_CREATED || !object_retire(s)) return CUDA_ERROR_INVALID_HANDLE;
    if (stream_captures(s)) capture_forget_stream(s);
    stream_retire(s);
    return CUDA_SUCCESS;
}

/* ---- waiting ------------------------------------------------------------------------------------------------------- */

CUresult impl_cuStreamSynchronize(CUstream stream) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (!rc && stream_captures(s)) rc = capture_forbidden(s);
    if (rc) return rc;
    rc = stream_drain(s);
    managed_waited();
    return rc;
}

CUresult impl_cuStreamQuery(CUstream stream) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (!rc && stream_captures(s)) rc = capture_forbidden(s);
    if (rc) return rc;
    uint64_t seq = stream_fence(s);
    if (seq) {
        session_flush();
        session_poll();
        if (atomic_load_explicit(&s->session.completed, memory_order_acquire) < seq) {
            rc = session_broken();
            return rc ? rc : CUDA_ERROR_NOT_READY;
        }
    }
    managed_waited();
    return atomic_load_explicit(&s->session.status, memory_order_relaxed);
}

/* The latest record may be another process's. Returns when the worker knows which one is waited for (event.c says why). */
static int wait_shared(struct shim_stream *s, struct shim_event *e) {
    uint64_t seq = post_event_wait(s->session.ctx, 0, &(struct gv_cmd_event_wait){.stream = stream_id(s), .event = e->object.id});
    if (!seq) return post_refused();
    stream_posted(s, seq, false);
    int rc = event_ask(e);
    return rc == CUDA_ERROR_NOT_READY ? 0 : rc;
}

CUresult impl_cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    struct shim_event *e = object_get(OBJECT_EVENT, event);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    if (stream_captures(s) && flags & CU_EVENT_WAIT_EXTERNAL)
        return capture_work(s, &(struct graph_work){.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = event});
    if (stream_captures(s) || atomic_load(&e->capture)) return capture_wait(s, e);
    if (e->shared) return wait_shared(s, e);
    pthread_mutex_lock(&e->lock);
    /* No wait is needed when the event was never recorded, has completed, or was recorded on this stream. */
    if (e->stream && e->stream != s && !stream_passed(e->stream, e->stream_id, e->seq)) {
        uint64_t seq = post_event_wait(s->session.ctx, 0, &(struct gv_cmd_event_wait){.stream = stream_id(s), .event = e->object.id});
        if (seq) {
            session_stream_waits(&s->session, seq, e->stream->session.id, e->seq);
            stream_posted(s, seq, false);
        } else {
            rc = post_refused();
        }
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}

/* ---- host functions ------------------------------------------------------------------------------------------------ */

static int post_host_function(struct shim_stream *s, uint64_t tag) {
    uint64_t seq = post_host_func(s->session.ctx, 0, &(struct gv_cmd_host_func){.stream = stream_id(s), .tag = tag});
    if (!seq) return post_refused();
    stream_posted(s, seq, true); /* it is complete when the function has returned, which nobody need tell us */
    session_host_func_posted(tag, &s->session, seq);
    host_writes_add(0, UINT64_MAX, s, seq); /* the function may write host memory that a later copy reads */
    session_flush();
    return 0;
}

CUresult impl_cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if (!fn) return CUDA_ERROR_INVALID_VALUE;
    if (stream_captures(s)) return capture_work(s, &(struct graph_work){.type = CU_GRAPH_NODE_TYPE_HOST, .host = {fn, data}});
    return post_host_function(s, session_host_func(fn, data));
}

/* The synchronisation mode selects how the driver waits for the function; results are the same. */
CUresult impl_cuLaunchHostFunc_v2(CUstream stream, CUhostFn fn, void *data, unsigned int mode) {
    (void)mode;
    return impl_cuLaunchHostFunc(stream, fn, data);
}

CUresult impl_cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
    if (stream_captures(s)) return capture_forbidden(s);
    /* Both types take a pointer, an int and a pointer; the cast changes names only. */
    void (*plain)(void *, int, void *) = (void (*)(void *, int, void *))(void (*)(void))callback;
    return post_host_function(s, session_stream_callback(plain, stream, data));
}

/* ---- what it is ---------------------------------------------------------------------------------------------------- */

CUresult impl_cuStreamGetPriority(CUstream stream, int *priority) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    *priority = s->priority;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetFlags(CUstream stream, unsigned int *flags) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = s->flags;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetId(CUstream stream, unsigned long long *id) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = s->object.id;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetDevice(CUstream stream, CUdevice *device) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = s->context->device;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetCtx(CUstream stream, CUcontext *context) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    struct shim_context *green = atomic_load(&s->green);
    *context = (CUcontext)(green ? green : s->context);
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green_context) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    struct shim_context *green = atomic_load(&s->green);
    *context = (CUcontext)s->context;
    if (green_context) *green_context = green ? (CUgreenCtx)green->green : NULL;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *green_context) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if (!green_context) return CUDA_ERROR_INVALID_VALUE;
    struct shim_context *green = atomic_load(&s->green);
    *green_context = green ? (CUgreenCtx)green->green : NULL;
    return CUDA_SUCCESS;
}

/* ---- attributes ---------------------------------------------------------------------------------------------------- */

/* Index of an attribute in the stream; -1: streams do not have it. */
static int attribute_slot(CUstreamAttrID attribute) {
    switch ((int)attribute) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: return 0;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY: return 1;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: return 2;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: return 3;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: return 4;
    default: return -1;
    }
}

CUresult impl_cuStreamGetAttribute(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue *value) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    int slot = attribute_slot(attribute);
    if (!value || slot < 0) return CUDA_ERROR_INVALID_VALUE;
    *value = s->attributes[slot];
    if ((int)attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = s->priority;
    if ((int)attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY && !value->syncPolicy) value->syncPolicy = CU_SYNC_POLICY_AUTO;
    return CUDA_SUCCESS;
}

/* These attributes are hints about caches and scheduling: they are stored and returned, and do not change results. */
CUresult impl_cuStreamSetAttribute(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue *value) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    int slot = attribute_slot(attribute);
    if (!value || slot < 0) return CUDA_ERROR_INVALID_VALUE;
    s->attributes[slot] = *value;
    if ((int)attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) s->priority = value->priority;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamCopyAttributes(CUstream to, CUstream from) {
    struct shim_stream *d, *s;
    int rc = stream_require(to, &d);
    if (!rc) rc = stream_require(from, &s);
    if (rc) return rc;
    for (int i = 0; i < 8; i++) d->attributes[i] = s->attributes[i];
    d->priority = s->priority;
    return CUDA_SUCCESS;
}
