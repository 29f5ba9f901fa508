/* Events of whole contexts: recorded over all streams of one, or waited for by all of them, those that are made later included. One-way, as for one stream.
 *
 * Each context of which such calls are made has streams for them that no work is given to. What is asked of the legacy stream is asked of one beside it: a command of the
 * legacy stream itself would be ordered with all blocking streams, which the program has not asked for. */
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;

/* An internal stream of a context; made at its first use. */
static int need(struct shim_context *bound, unsigned flags, struct shim_stream **place) {
    pthread_mutex_lock(&streams_lock);
    struct shim_stream *s = *place;
    int rc = s ? 0 : stream_new(bound, STREAM_INTERNAL, flags, 0, &s);
    if (!rc && !*place) {
        pthread_mutex_lock(&bound->root->lock);
        *place = s;
        pthread_mutex_unlock(&bound->root->lock);
    }
    pthread_mutex_unlock(&streams_lock);
    return rc;
}

/* What both calls need: the streams, and an event to order them by. */
static int prepare(struct shim_context *bound, struct shim_stream **place) {
    struct shim_context *root = bound->root;
    int rc = capture_forbidden_in(bound);
    if (!rc) rc = stream_between(root);
    if (!rc && !bound->green) rc = need(root, CU_STREAM_DEFAULT, &root->beside_legacy);
    return rc ? rc : need(bound, CU_STREAM_NON_BLOCKING, place);
}

/* ---- recording ------------------------------------------------------------------------------------------------------- */

/* Waits for streams that were destroyed at work before the context had the stream that could wait for them: only before the first event of a context. */
static int wait_for_retired(struct shim_context *bound) {
    const unsigned by = bound->green ? 2 : 1;
    struct shim_stream *s;
    int rc = 0;
    do {
        pthread_mutex_lock(&bound->root->lock);
        for (s = bound->root->streams; s; s = s->next)
            if (s->retired && stream_works_in(s, bound) && stream_in_flight(s) && !(s->joined & by)) break;
        uint64_t upto = s ? atomic_load(&s->session.posted) : 0;
        pthread_mutex_unlock(&bound->root->lock);
        if (s) rc = session_wait_stream(&s->session, upto);
    } while (s && !rc);
    return rc;
}

/* The latest record of such an event is one of one stream, in whatever process. */
static int shared_refused(void) {
    shim_log_once("an event that processes share is recorded on one stream, and waited for by one; not by a whole context");
    return CUDA_ERROR_NOT_SUPPORTED;
}

static int record(struct shim_context *bound, CUevent event) {
    struct shim_context *root = bound->root;
    struct shim_event *e;
    int rc = event_find(event, &e);
    if (rc) return rc;
    if (e->context != root) return CUDA_ERROR_INVALID_HANDLE;
    rc = prepare(bound, &bound->joined);
    if (!rc) rc = wait_for_retired(bound);
    if (rc) return rc;
    if (atomic_load(&e->capture)) {
        pthread_mutex_lock(&graph_lock);
        capture_forget_event(e);
        pthread_mutex_unlock(&graph_lock);
    }
    if (e->shared) return shared_refused();
    struct shim_stream *joined = bound->joined;
    pthread_mutex_lock(&e->lock);
    pthread_mutex_lock(&root->lock);
    for (struct shim_stream *s = root->streams; s; s = s->next)
        if (stream_works_in(s, bound) && !s->retired && stream_in_flight(s)) stream_after(joined, s->kind == STREAM_LEGACY ? root->beside_legacy : s);
    uint64_t seq = post_event_record(e->ctx, GV_RECORD_MARK, &(struct gv_cmd_event_record){.event = e->object.id, .stream = stream_id(joined)});
    if (seq) {
        stream_posted(joined, seq, true);
        e->stream = joined;
        e->stream_id = joined->object.id;
        e->seq = seq;
    } else {
        rc = post_refused();
    }
    pthread_mutex_unlock(&root->lock);
    pthread_mutex_unlock(&e->lock);
    return rc;
}

/* ---- waiting --------------------------------------------------------------------------------------------------------- */

/* e->lock held. */
static int wait_on(struct shim_stream *s, const struct shim_event *e) {
    if (s == e->stream) return 0;
    uint64_t seq = post_event_wait(s->session.ctx, 0, &(struct gv_cmd_event_wait){.stream = stream_id(s), .event = e->object.id});
    if (!seq) return post_refused();
    session_stream_waits(&s->session, seq, e->stream->session.id, e->seq);
    stream_posted(s, seq, false);
    return 0;
}

static int wait(struct shim_context *bound, CUevent event) {
    struct shim_context *root = bound->root;
    struct shim_event *e = object_get(OBJECT_EVENT, event);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    if (atomic_load(&e->capture)) return capture_event_forbidden(e);
    if (e->shared) return shared_refused();
    int rc = prepare(bound, &bound->gate);
    if (rc) return rc;
    pthread_mutex_lock(&e->lock);
    if (e->stream && !stream_passed(e->stream, e->stream_id, e->seq)) {
        pthread_mutex_lock(&root->lock);
        rc = wait_on(bound->gate, e); /* for streams that are made later: see stream_new */
        for (struct shim_stream *s = root->streams; s && !rc; s = s->next)
            if (stream_works_in(s, bound) && !s->retired) rc = wait_on(s->kind == STREAM_LEGACY ? root->beside_legacy : s, e);
        pthread_mutex_unlock(&root->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}

/* ---- the driver's calls ---------------------------------------------------------------------------------------------- */

CUresult impl_cuCtxRecordEvent(CUcontext context, CUevent event) {
    struct shim_context *bound;
    int rc = context_check_bound(context, &bound);
    return rc ? rc : record(bound, event);
}

CUresult impl_cuCtxWaitEvent(CUcontext context, CUevent event) {
    struct shim_context *bound;
    int rc = context_check_bound(context, &bound);
    return rc ? rc : wait(bound, event);
}

CUresult impl_cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
    struct shim_green *g;
    int rc = green_usable(green, &g);
    return rc ? rc : record(g->context, event);
}

CUresult impl_cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
    struct shim_green *g;
    int rc = green_usable(green, &g);
    return rc ? rc : wait(g->context, event);
}
