/* Streams that capture: what they are given becomes nodes of a graph, and nothing of it is sent. A stream that waits for an event of a capturing stream captures, too. */
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"

struct capture {
    uint64_t id;
    struct capture *next;
    struct shim_graph *graph;
    CUstreamCaptureMode mode;
    struct shim_stream *origin;
    struct shim_stream **streams; /* all that capture, the origin first */
    size_t n_streams;
    struct graph_node **left; /* where streams were that were destroyed meanwhile */
    size_t n_left;
    pthread_t thread;
    bool own_graph; /* the program gets it at the end; else it was the program's */
    bool broken;    /* it is worth nothing any more */
};

static struct capture *captures;         /* under graph_lock */
static _Atomic uint32_t strict_captures; /* that are not relaxed */
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static struct capture *capture_of(const struct shim_stream *s) { return atomic_load(&s->capture); }

static struct capture *find(uint64_t id) {
    struct capture *c = captures;
    while (c && c->id != id) c = c->next;
    return c;
}

/* ---- what a stream's next node depends on ---- */

static int set_ends(struct shim_stream *s, struct graph_node *const *ends, size_t n) {
    struct graph_node **list = n ? malloc(n * sizeof *list) : NULL;
    if (n && !list) return CUDA_ERROR_OUT_OF_MEMORY;
    if (n) memcpy(list, ends, n * sizeof *list);
    free(s->ends);
    s->ends = list;
    s->n_ends = n;
    return 0;
}

static int add_ends(struct shim_stream *s, struct graph_node *const *more, size_t n_more) {
    struct graph_node **list = malloc((s->n_ends + n_more + 1) * sizeof *list);
    if (!list) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t n = s->n_ends;
    if (n) memcpy(list, s->ends, n * sizeof *list);
    for (size_t i = 0; i < n_more; i++) {
        size_t at = 0;
        while (at < n && list[at] != more[i]) at++;
        if (at == n) list[n++] = more[i];
    }
    free(s->ends);
    s->ends = list;
    s->n_ends = n;
    return 0;
}

static int join(struct capture *c, struct shim_stream *s) {
    struct shim_stream **streams = realloc(c->streams, (c->n_streams + 1) * sizeof *streams);
    if (!streams) return CUDA_ERROR_OUT_OF_MEMORY;
    c->streams = streams;
    streams[c->n_streams++] = s;
    atomic_store(&s->capture, c);
    atomic_fetch_add(&s->context->capturing, 1);
    if (s->blocking) atomic_fetch_add(&s->context->capturing_blocking, 1);
    return 0;
}

static void part(struct shim_stream *s) {
    atomic_store(&s->capture, NULL);
    atomic_fetch_sub(&s->context->capturing, 1);
    if (s->blocking) atomic_fetch_sub(&s->context->capturing_blocking, 1);
    set_ends(s, NULL, 0);
}

/* ---- what becomes of calls ---- */

static int broken(struct capture *c) {
    if (atomic_load(&c->origin->context->capture_broken)) c->broken = true;
    return c->broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : 0;
}

int capture_work(struct shim_stream *s, const struct graph_work *work) {
    struct graph_work own;
    pthread_mutex_lock(&graph_lock);
    struct capture *c = capture_of(s);
    int rc = c ? broken(c) : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!rc) rc = graph_work_copy(&own, work);
    if (!rc) {
        struct graph_node *node = graph_add(c->graph, &own, s->ends, s->n_ends);
        rc = node ? set_ends(s, &node, 1) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

int capture_forbidden(struct shim_stream *s) {
    pthread_mutex_lock(&graph_lock);
    struct capture *c = capture_of(s);
    if (c) c->broken = true;
    pthread_mutex_unlock(&graph_lock);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

int capture_forbidden_in(const struct shim_context *bound) {
    if (!atomic_load_explicit(&bound->root->capturing, memory_order_relaxed)) return 0;
    int rc = 0;
    pthread_mutex_lock(&graph_lock);
    for (struct capture *c = captures; c; c = c->next) {
        for (size_t i = 0; i < c->n_streams; i++) {
            const struct shim_stream *s = c->streams[i];
            if (!s || s->context != bound->root || !stream_works_in(s, bound)) continue;
            c->broken = true;
            rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

/* As CUDA has it: a capture forbids such calls to its own thread, a global one to all threads that are in the global mode. */
int capture_unsafe(void) {
    if (!atomic_load_explicit(&strict_captures, memory_order_relaxed) || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return 0;
    int rc = 0;
    pthread_mutex_lock(&graph_lock);
    for (struct capture *c = captures; c; c = c->next) {
        bool mine = pthread_equal(c->thread, pthread_self()) && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        if (!mine && (c->mode != CU_STREAM_CAPTURE_MODE_GLOBAL || thread_mode != CU_STREAM_CAPTURE_MODE_GLOBAL)) continue;
        c->broken = true;
        rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

/* ---- events ---- */

void capture_forget_event(struct shim_event *e) {
    free(e->ends);
    e->ends = NULL;
    e->n_ends = 0;
    e->capture = 0;
}

int capture_record(struct shim_stream *s, struct shim_event *e) {
    pthread_mutex_lock(&graph_lock);
    struct capture *c = capture_of(s);
    int rc = c ? broken(c) : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct graph_node **ends = malloc((s->n_ends + 1) * sizeof *ends);
    if (!rc && !ends) rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (!rc) {
        if (s->n_ends) memcpy(ends, s->ends, s->n_ends * sizeof *ends);
        capture_forget_event(e);
        e->ends = ends;
        e->n_ends = s->n_ends;
        e->capture = c->id;
    } else {
        free(ends);
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

int capture_wait(struct shim_stream *s, struct shim_event *e) {
    pthread_mutex_lock(&graph_lock);
    uint64_t id = atomic_load(&e->capture);
    struct capture *of_event = id ? find(id) : NULL, *own = capture_of(s);
    int rc = 0;
    if (!of_event)
        rc = id ? CUDA_ERROR_CAPTURED_EVENT : CUDA_ERROR_STREAM_CAPTURE_ISOLATION; /* that capture is over; work outside of the capture */
    else if (own && own != of_event)
        rc = CUDA_ERROR_STREAM_CAPTURE_MERGE;
    else if (stream_is_default(s))
        rc = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    else
        rc = broken(of_event);
    if (rc && own && !own->broken && rc != CUDA_ERROR_OUT_OF_MEMORY) own->broken = true;
    if (!rc && !own) rc = join(of_event, s);
    if (!rc) rc = add_ends(s, e->ends, e->n_ends);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

int capture_event_forbidden(struct shim_event *e) {
    pthread_mutex_lock(&graph_lock);
    struct capture *c = find(atomic_load(&e->capture));
    if (c) c->broken = true;
    pthread_mutex_unlock(&graph_lock);
    return c ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_CAPTURED_EVENT;
}

int capture_event_asked(struct shim_event *e) {
    pthread_mutex_lock(&graph_lock);
    struct capture *c = find(atomic_load(&e->capture));
    if (c) c->broken = true;
    pthread_mutex_unlock(&graph_lock);
    return CUDA_ERROR_CAPTURED_EVENT;
}

static void end(struct capture *c) {
    struct capture **at = &captures;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    for (size_t i = 0; i < c->n_streams; i++)
        if (c->streams[i]) part(c->streams[i]);
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED) atomic_fetch_sub(&strict_captures, 1);
    free(c->left);
    free(c->streams);
    free(c);
}

/* Its origin goes: nobody can end it any more. */
static void give_up(struct capture *c) {
    if (c->own_graph) graph_free(c->graph);
    end(c);
}

void capture_forget_stream(struct shim_stream *s) {
    pthread_mutex_lock(&graph_lock);
    struct capture *c = capture_of(s);
    if (c && c->origin == s) {
        give_up(c);
    } else if (c) {
        struct graph_node **left = realloc(c->left, (c->n_left + s->n_ends + 1) * sizeof *left);
        if (left) c->left = left;
        if (left && s->n_ends) memcpy(left + c->n_left, s->ends, s->n_ends * sizeof *left);
        if (left) c->n_left += s->n_ends;
        if (!left) c->broken = true;
        for (size_t i = 0; i < c->n_streams; i++)
            if (c->streams[i] == s) c->streams[i] = NULL;
        part(s);
    }
    pthread_mutex_unlock(&graph_lock);
}

void capture_context_gone(struct shim_context *context) {
    pthread_mutex_lock(&graph_lock);
    for (struct capture *c = captures, *next; c; c = next) {
        next = c->next;
        if (c->origin->context == context) give_up(c);
    }
    pthread_mutex_unlock(&graph_lock);
}

/* ---- begin and end ---- */

static int begin(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, const CUgraphNode *after, size_t n) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED || (n && !after)) return CUDA_ERROR_INVALID_VALUE;
    if (stream_is_default(s)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct capture *c = calloc(1, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&graph_lock);
    if (capture_of(s)) rc = CUDA_ERROR_ILLEGAL_STATE;
    if (!rc && graph) rc = graph_find(graph, &c->graph);
    for (size_t i = 0; i < n && !rc; i++) {
        const struct graph_node *node = object_get(OBJECT_GRAPH_NODE, after[i]);
        if (!node || node->graph != c->graph) rc = CUDA_ERROR_INVALID_VALUE;
    }
    if (!rc && !graph && !(c->graph = graph_new())) rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (!rc) {
        *c = (struct capture){.id = object_next_id(), .graph = c->graph, .mode = mode, .origin = s, .thread = pthread_self(), .own_graph = !graph};
        rc = join(c, s);
        if (!rc) rc = set_ends(s, (struct graph_node *const *)after, n);
    }
    if (!rc) {
        if (atomic_load(&s->context->capturing) <= 1) atomic_store(&s->context->capture_broken, false);
        c->next = captures;
        captures = c;
        if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) atomic_fetch_add(&strict_captures, 1);
    } else {
        if (c->n_streams) part(s);
        if (!graph) graph_free(c->graph);
        free(c->streams);
        free(c);
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) { return begin(stream, mode, NULL, NULL, 0); }

CUresult impl_cuStreamBeginCapture(CUstream stream) { return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0); }

CUresult impl_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *data, size_t n,
                                          CUstreamCaptureMode mode) {
    (void)data;
    return graph ? begin(stream, mode, graph, after, n) : CUDA_ERROR_INVALID_VALUE;
}

/* Marks nodes; true if one was not marked. */
static bool mark(struct graph_node *const *nodes, size_t n) {
    bool more = false;
    for (size_t i = 0; i < n; i++) {
        more |= !nodes[i]->place;
        nodes[i]->place = 1;
    }
    return more;
}

/* Whether all that other streams have captured lies before where the origin has come to. */
static bool joined(const struct capture *c) {
    for (struct graph_node *node = c->graph->first; node; node = node->next) node->place = 0;
    mark(c->origin->ends, c->origin->n_ends);
    /* Nodes come behind those they depend on, unless the program has added edges: one round finds all. */
    for (bool more = true; more;) {
        more = false;
        for (const struct graph_node *node = c->graph->last, *previous; node; node = previous) {
            previous = node->previous;
            if (node->place) more |= mark(node->after, node->n_after);
        }
    }
    for (size_t i = 1; i < c->n_streams; i++)
        for (size_t k = 0; c->streams[i] && k < c->streams[i]->n_ends; k++)
            if (!c->streams[i]->ends[k]->place) return false;
    for (size_t i = 0; i < c->n_left; i++)
        if (!c->left[i]->place) return false;
    return true;
}

CUresult impl_cuStreamEndCapture(CUstream stream, CUgraph *out) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    pthread_mutex_lock(&graph_lock);
    struct capture *c = capture_of(s);
    bool here = c && pthread_equal(c->thread, pthread_self());
    if (!out && (!c || c->own_graph)) { /* else the program has the graph */
        rc = CUDA_ERROR_INVALID_VALUE;
    } else if (!c) {
        rc = CUDA_ERROR_ILLEGAL_STATE;
    } else if (c->origin != s) {
        rc = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
        c->broken = true;
    } else { /* the capture is over, whatever comes */
        rc = c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !here ? (int)CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD : broken(c);
        if (!rc && !joined(c)) rc = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        if (out) *out = rc ? NULL : (CUgraph)c->graph;
        if (rc && c->own_graph) graph_free(c->graph);
        end(c);
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

/* ---- what is asked of them ---- */

struct told {
    CUstreamCaptureStatus *status;
    cuuint64_t *id;
    CUgraph *graph;
    const CUgraphNode **after;
    const CUgraphEdgeData **data;
    size_t *n;
};

static int tell(CUstream stream, const struct told *to) {
    struct shim_stream *s;
    int rc = stream_asked(stream, &s);
    if (rc) return rc;
    if (!to->status) return CUDA_ERROR_INVALID_VALUE;
    *to->status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!stream_captures(s)) return 0; /* libraries ask at each call of theirs */
    pthread_mutex_lock(&graph_lock);
    struct capture *c = capture_of(s);
    *to->status = !c ? CU_STREAM_CAPTURE_STATUS_NONE : broken(c) ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (*to->status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        if (to->id) *to->id = c->id;
        if (to->graph) *to->graph = (CUgraph)c->graph;
        if (to->after) *to->after = (const CUgraphNode *)s->ends;
        if (to->data) *to->data = NULL;
        if (to->n) *to->n = s->n_ends;
    }
    pthread_mutex_unlock(&graph_lock);
    return 0;
}

CUresult impl_cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) { return tell(stream, &(struct told){.status = status}); }

CUresult impl_cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
    return tell(stream, &(struct told){.status = status, .id = id});
}

CUresult impl_cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after,
                                        size_t *n) {
    return tell(stream, &(struct told){status, id, graph, after, NULL, n});
}

CUresult impl_cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after,
                                        const CUgraphEdgeData **data, size_t *n) {
    return tell(stream, &(struct told){status, id, graph, after, data, n});
}

CUresult impl_cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t n, unsigned int flags) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (rc) return rc;
    if ((n && !nodes) || flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&graph_lock);
    struct capture *c = capture_of(s);
    rc = c ? broken(c) : CUDA_ERROR_ILLEGAL_STATE;
    for (size_t i = 0; i < n && !rc; i++) {
        const struct graph_node *node = object_get(OBJECT_GRAPH_NODE, nodes[i]);
        if (!node || node->graph != c->graph) rc = CUDA_ERROR_INVALID_VALUE;
    }
    struct graph_node *const *list = (struct graph_node *const *)nodes;
    if (!rc) rc = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES ? set_ends(s, list, n) : add_ends(s, list, n);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *data, size_t n, unsigned int flags) {
    (void)data;
    return impl_cuStreamUpdateCaptureDependencies(stream, nodes, n, flags);
}

CUresult impl_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}
