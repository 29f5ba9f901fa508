/* Graphs that can be launched: a copy of the graph in an order of its nodes. A launch makes their calls one after the other on its stream. */
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"
#include "objects/memory/array_copy.h"

struct graph_exec {
    struct object object;
    struct shim_graph *graph; /* of its own */
    unsigned long long flags;
    bool memory; /* it allocates or frees */
};

/* ---- instantiation ---- */

static int append(struct shim_graph *to, const struct graph_work *call) {
    if (to->n_calls == to->room) {
        size_t room = 2 * to->room + 16;
        const struct graph_work **calls = realloc(to->calls, room * sizeof *calls);
        if (!calls) return CUDA_ERROR_OUT_OF_MEMORY;
        to->calls = calls;
        to->room = room;
    }
    to->calls[to->n_calls++] = call;
    return 0;
}

/* Adds a graph's calls to the list of `to`, the graph itself or one that it is a child in; what conditions choose from gets lists of its own. */
static int flatten(struct shim_graph *to, struct shim_graph *g) {
    int rc;
    struct graph_node **order = graph_order(g, &rc);
    for (size_t i = 0; i < g->n && !rc; i++) {
        const struct graph_work *w = &order[i]->work;
        rc = w->type == CU_GRAPH_NODE_TYPE_GRAPH ? flatten(to, w->child) : append(to, w);
        for (unsigned k = 0; w->type == CU_GRAPH_NODE_TYPE_CONDITIONAL && k < w->conditional.n && !rc; k++) {
            struct shim_graph *body = w->conditional.bodies[k];
            body->n_calls = 0;
            rc = graph_has_memory(body) ? (int)CUDA_ERROR_INVALID_VALUE : flatten(body, body);
        }
    }
    free(order);
    return rc;
}

static int prepare(struct graph_exec *x, const struct shim_graph *g) {
    struct shim_graph *made = graph_copied(g);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    made->owned = true;
    int rc = flatten(made, made);
    if (rc) {
        graph_free(made);
        return rc;
    }
    graph_free(x->graph);
    x->graph = made;
    x->memory = graph_has_memory(made);
    return 0;
}

static int instantiate(CUgraphExec *out, CUgraph handle, unsigned long long flags) {
    struct shim_context *c;
    struct shim_graph *g;
    const unsigned long long known =
        CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!out || flags & ~(known | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)) return CUDA_ERROR_INVALID_VALUE;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) {
        shim_log_once("cuGraphInstantiate: graphs that kernels launch are not supported");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct graph_exec *x = object_new(OBJECT_GRAPH_EXEC);
    if (!x) return CUDA_ERROR_OUT_OF_MEMORY;
    x->flags = flags;
    pthread_mutex_lock(&graph_lock);
    rc = graph_find(handle, &g);
    if (!rc) rc = prepare(x, g);
    pthread_mutex_unlock(&graph_lock);
    if (rc) {
        object_free(x);
        return rc;
    }
    object_publish(x);
    *out = (CUgraphExec)x;
    return 0;
}

CUresult impl_cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) { return instantiate(out, graph, flags); }

CUresult impl_cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *node, char *log, size_t size) {
    if (node) *node = NULL;
    if (log && size) *log = 0;
    return instantiate(out, graph, 0);
}

CUresult impl_cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    int rc = instantiate(out, graph, params->flags);
    params->hErrNode_out = NULL;
    params->result_out = rc ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return rc;
}

static int find(CUgraphExec handle, struct graph_exec **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(OBJECT_GRAPH_EXEC, handle);
    return *out ? 0 : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuGraphExecDestroy(CUgraphExec handle) {
    struct graph_exec *x;
    pthread_mutex_lock(&graph_lock);
    int rc = find(handle, &x);
    if (!rc && !object_retire(x)) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) {
        graph_free(x->graph);
        object_free(x);
    }
    pthread_mutex_unlock(&graph_lock);
    graph_settled();
    return rc;
}

CUresult impl_cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags) {
    struct graph_exec *x;
    int rc = find(handle, &x);
    if (!rc && !flags) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *flags = x->flags & ~(unsigned long long)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    return rc;
}

/* ---- update ---- */

/* Whether nodes in the same places do the same kind of thing after the same nodes: then calls may have other arguments. */
static CUgraphExecUpdateResult alike(const struct shim_graph *a, const struct shim_graph *b, struct graph_node **where) {
    struct graph_node *x = a->first, *y = b->first;
    for (; x && y; x = x->next, y = y->next) x->copy = y, y->copy = x;
    *where = y;
    if (x || y) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (x = a->first, y = b->first; x; x = x->next, y = y->next) {
        *where = y;
        if (x->work.type != y->work.type) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (x->n_after != y->n_after) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        for (size_t i = 0; i < x->n_after; i++)
            if (x->after[i]->copy != y->after[i]) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    for (x = a->first, y = b->first; x; x = x->next, y = y->next) {
        const struct graph_conditional *c = &x->work.conditional, *d = &y->work.conditional;
        if (x->work.type != CU_GRAPH_NODE_TYPE_CONDITIONAL) continue;
        *where = y;
        if (c->kind != d->kind || c->n != d->n) return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
        for (unsigned i = 0; i < c->n; i++) {
            CUgraphExecUpdateResult result = alike(c->bodies[i], d->bodies[i], where);
            if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return result;
        }
    }
    *where = NULL;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

CUresult impl_cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    struct graph_exec *x;
    struct shim_graph *g;
    struct graph_node *where = NULL;
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_ERROR;
    pthread_mutex_lock(&graph_lock);
    int rc = find(handle, &x);
    if (!rc) rc = graph_find(graph, &g);
    if (!rc && !info) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) {
        result = alike(x->graph, g, &where);
        rc = result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? prepare(x, g) : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
        *info = (CUgraphExecUpdateResultInfo){.result = result, .errorNode = (CUgraphNode)where};
    }
    pthread_mutex_unlock(&graph_lock);
    graph_settled();
    return rc;
}

CUresult impl_cuGraphExecUpdate(CUgraphExec handle, CUgraph graph, CUgraphNode *where, CUgraphExecUpdateResult *result) {
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    if (!result) return CUDA_ERROR_INVALID_VALUE;
    int rc = impl_cuGraphExecUpdate_v2(handle, graph, &info);
    *result = info.result;
    if (where) *where = info.errorNode;
    return rc;
}

/* ---- single nodes ---- */

/* The copy of a graph in what can be launched: all of that, or what a condition chooses there. NULL: there is none. */
static struct shim_graph *own_graph(struct shim_graph *g, uint64_t origin) {
    struct shim_graph *found = g->origin == origin ? g : NULL;
    for (struct graph_node *node = g->first; node && !found; node = node->next)
        for (unsigned i = 0; node->work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL && i < node->work.conditional.n && !found; i++)
            found = own_graph(node->work.conditional.bodies[i], origin);
    return found;
}

/* What can be launched has the node of the same number, in the graph's own copy or in that of a graph like it. graph_lock held. */
static int own_node(CUgraphExec handle, CUgraphNode node, struct graph_exec **x, struct graph_node **own) {
    struct graph_node *theirs;
    int rc = find(handle, x);
    if (!rc) rc = graph_node_find(node, &theirs);
    if (rc) return rc;
    struct shim_graph *in = own_graph((*x)->graph, theirs->graph->origin);
    *own = graph_numbered(in ? in : (*x)->graph, theirs->number);
    return *own && (*own)->work.type == theirs->work.type ? 0 : CUDA_ERROR_INVALID_VALUE;
}

/* Takes the work over. graph_lock held. */
static int change(CUgraphExec handle, CUgraphNode node, struct graph_work *work) {
    struct graph_exec *x;
    struct graph_node *own;
    int rc = own_node(handle, node, &x, &own);
    if (!rc && own->work.type != work->type) rc = CUDA_ERROR_INVALID_VALUE;
    if (rc) {
        graph_work_free(work);
        return rc;
    }
    work->disabled = own->work.disabled;
    if (work->type == CU_GRAPH_NODE_TYPE_KERNEL) graph_kernel_attributes_copy(&work->kernel, &own->work.kernel);
    graph_work_free(&own->work);
    own->work = *work;
    if (work->type != CU_GRAPH_NODE_TYPE_GRAPH) return 0;
    x->graph->n_calls = 0; /* a child's calls are others now */
    return flatten(x->graph, x->graph);
}

static int change_locked(CUgraphExec handle, CUgraphNode node, int rc, struct graph_work *work) {
    if (rc) return rc;
    pthread_mutex_lock(&graph_lock);
    rc = change(handle, node, work);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphExecKernelNodeSetParams_v2(CUgraphExec x, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p) {
    struct graph_work work;
    return change_locked(x, node, graph_describe_kernel(p, &work), &work);
}

CUresult impl_cuGraphExecKernelNodeSetParams(CUgraphExec x, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    CUDA_KERNEL_NODE_PARAMS now = {0};
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&now, p, sizeof *p); /* the newer one goes on where the older one ends */
    return impl_cuGraphExecKernelNodeSetParams_v2(x, node, &now);
}

CUresult impl_cuGraphExecMemcpyNodeSetParams(CUgraphExec x, CUgraphNode node, const CUDA_MEMCPY3D *p, CUcontext context) {
    struct graph_work work;
    return change_locked(x, node, graph_describe_copy(p, context, &work), &work);
}

CUresult impl_cuGraphExecMemsetNodeSetParams(CUgraphExec x, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context) {
    struct graph_work work;
    return change_locked(x, node, graph_describe_fill(p, context, &work), &work);
}

CUresult impl_cuGraphExecHostNodeSetParams(CUgraphExec x, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p) {
    struct graph_work work;
    return change_locked(x, node, graph_describe_host(p, &work), &work);
}

CUresult impl_cuGraphExecBatchMemOpNodeSetParams(CUgraphExec x, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    struct graph_work work;
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    return change_locked(x, node, graph_describe_batch(p, &work), &work);
}

CUresult impl_cuGraphExecEventRecordNodeSetEvent(CUgraphExec x, CUgraphNode node, CUevent event) {
    struct graph_work work;
    return change_locked(x, node, graph_describe_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, &work), &work);
}

CUresult impl_cuGraphExecEventWaitNodeSetEvent(CUgraphExec x, CUgraphNode node, CUevent event) {
    struct graph_work work;
    return change_locked(x, node, graph_describe_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, &work), &work);
}

CUresult impl_cuGraphExecChildGraphNodeSetParams(CUgraphExec x, CUgraphNode node, CUgraph child) {
    struct graph_work work;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_describe_child(child, &work);
    if (!rc) rc = change(x, node, &work);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphExecNodeSetParams(CUgraphExec x, CUgraphNode node, CUgraphNodeParams *p) {
    struct graph_work work;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_describe(p, &work);
    if (!rc) rc = change(x, node, &work);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

static bool can_be_disabled(const struct graph_node *node) {
    return node->work.type == CU_GRAPH_NODE_TYPE_KERNEL || node->work.type == CU_GRAPH_NODE_TYPE_MEMCPY ||
           node->work.type == CU_GRAPH_NODE_TYPE_MEMSET;
}

CUresult impl_cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int enabled) {
    struct graph_exec *x;
    struct graph_node *own;
    pthread_mutex_lock(&graph_lock);
    int rc = own_node(handle, node, &x, &own);
    if (!rc && !can_be_disabled(own)) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) own->work.disabled = !enabled;
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int *enabled) {
    struct graph_exec *x;
    struct graph_node *own;
    pthread_mutex_lock(&graph_lock);
    int rc = own_node(handle, node, &x, &own);
    if (!rc && (!enabled || !can_be_disabled(own))) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *enabled = !own->work.disabled;
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphExecGetId(CUgraphExec handle, unsigned int *id) {
    struct graph_exec *x;
    int rc = find(handle, &x);
    if (!rc && !id) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *id = (unsigned)x->object.id;
    return rc;
}

/* ---- launch ---- */

static int launch_kernel(CUstream stream, const struct graph_kernel *k) {
    size_t size = k->params_size;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, k->params, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    static const CUlaunchAttributeID of_clusters[] = {CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION,
                                                      CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE};
    CUlaunchAttribute attrs[4] = {{.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = k->cooperative}};
    unsigned n = k->cooperative;
    for (int i = 0; i < 3; i++) {
        CUlaunchAttribute a = {.id = of_clusters[i]};
        if (cluster_attribute_get((int)a.id, k->cluster, k->preferred_cluster, &a.value)) attrs[n++] = a;
    }
    CUlaunchConfig config = {.gridDimX = k->grid[0],
                             .gridDimY = k->grid[1],
                             .gridDimZ = k->grid[2],
                             .blockDimX = k->block[0],
                             .blockDimY = k->block[1],
                             .blockDimZ = k->block[2],
                             .sharedMemBytes = k->shared,
                             .hStream = stream,
                             .attrs = attrs,
                             .numAttrs = n};
    return impl_cuLaunchKernelEx(&config, k->function, NULL, extra);
}

/* Host memory is the program's until the graph has run: what comes out goes there when it comes. What goes in is read now, unless something before may still write it. */
static int launch_copy(struct shim_stream *s, const struct graph_copy *c) {
    struct copy_side dst = c->dst, src = c->src;
    const struct copy_box *b = &c->box;
    dst.pinned = true;
    if (src.where == COPY_HOST || src.where == COPY_ANYWHERE) {
        uint64_t size = (b->depth - 1) * src.slice + (b->height - 1) * src.pitch + b->width;
        src.pinned = host_writes_pending(src.address, src.address + size);
    }
    return array_copy_box(s, &dst, &src, b, false);
}

static int launch_memory(const struct graph_work *w) {
    int rc = 0;
    pthread_mutex_lock(&graph_lock);
    if (w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        graph_allocate(w->memory);
    else
        rc = graph_free_memory(w->freed);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

/* Before anything is sent: memory that the last launch allocated, and nobody freed, is not allocated again. */
static int check_memory(const struct graph_exec *x) {
    int rc = 0;
    bool again = x->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    pthread_mutex_lock(&graph_lock);
    for (size_t i = 0; i < x->graph->n_calls && !rc; i++)
        if (x->graph->calls[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) rc = graph_may_allocate(x->graph->calls[i]->memory, again);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

static int run(CUstream stream, const struct shim_graph *g);

static int carry_out(struct shim_stream *s, CUstream stream, const struct graph_work *w) {
    switch ((int)w->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return launch_kernel(stream, &w->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return launch_copy(s, &w->copy);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return copy_fill(s, w->fill.dst, w->fill.pitch, w->fill.element, w->fill.value, w->fill.width, w->fill.height, false);
    case CU_GRAPH_NODE_TYPE_HOST: return impl_cuLaunchHostFunc(stream, w->host.fn, w->host.data);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return impl_cuEventRecord(w->event, stream);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return impl_cuStreamWaitEvent(stream, w->event, 0);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return launch_memory(w);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return impl_cuStreamBatchMemOp_v2(stream, w->batch.count, w->batch.operations, w->batch.flags);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return graph_conditional_run(stream, &w->conditional, run);
    default: return 0; /* CU_GRAPH_NODE_TYPE_EMPTY */
    }
}

static int run(CUstream stream, const struct shim_graph *g) {
    struct shim_stream *s;
    int rc = stream_require(stream, &s);
    if (!rc) rc = graph_conditions_start(s, g);
    for (size_t i = 0; i < g->n_calls && !rc; i++)
        if (!g->calls[i]->disabled) rc = carry_out(s, stream, g->calls[i]);
    return rc;
}

CUresult impl_cuGraphLaunch(CUgraphExec handle, CUstream stream) {
    struct shim_stream *s;
    struct graph_exec *x;
    int rc = stream_require(stream, &s);
    if (!rc) rc = find(handle, &x);
    if (rc) return rc;
    if (stream_captures(s)) return capture_forbidden(s); /* as by a driver: a capture has no launches of graphs in it */
    rc = x->memory ? check_memory(x) : 0;
    return rc ? rc : run(stream, x->graph);
}

/* There is nothing to be brought to the device before it is launched. */
CUresult impl_cuGraphUpload(CUgraphExec handle, CUstream stream) {
    struct shim_stream *s;
    struct graph_exec *x;
    int rc = stream_require(stream, &s);
    return rc ? rc : find(handle, &x);
}
