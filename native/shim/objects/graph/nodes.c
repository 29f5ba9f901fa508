/* Graphs that a program puts together node by node, and changes. */
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/array.h"
#include "objects/graph/graph.h"

/* ---- descriptions ---- */

/* The context that the program names, or the current one. */
static int context_of(CUcontext handle, struct shim_context **out) { return handle ? context_check(handle, out) : context_require(out); }

int graph_describe_kernel(const CUDA_KERNEL_NODE_PARAMS *p, struct graph_work *out) {
    struct shim_context *c;
    if (!p || (!p->func && !p->kern)) return CUDA_ERROR_INVALID_VALUE;
    int rc = context_of(p->func ? NULL : p->ctx, &c);
    *out = (struct graph_work){.type = CU_GRAPH_NODE_TYPE_KERNEL};
    return rc ? rc : launch_describe(c, p, &out->kernel);
}

int graph_describe_copy(const CUDA_MEMCPY3D *p, CUcontext context, struct graph_work *out) {
    struct shim_context *c;
    int rc = context_of(context, &c);
    if (!rc && (!p || p->srcLOD || p->dstLOD)) rc = CUDA_ERROR_INVALID_VALUE;
    *out = (struct graph_work){.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    return rc ? rc : copy_describe(p, &out->copy);
}

int graph_describe_fill(const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context, struct graph_work *out) {
    struct shim_context *c;
    struct range r;
    int rc = context_of(context, &c);
    if (rc) return rc;
    if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) || p->dst % p->elementSize || !p->width || !p->height)
        return CUDA_ERROR_INVALID_VALUE;
    if (!range_find(p->dst, &r) || (p->height > 1 && p->pitch < p->width * p->elementSize)) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct graph_work){
        .type = CU_GRAPH_NODE_TYPE_MEMSET,
        .fill = {.dst = p->dst, .pitch = p->pitch, .width = p->width, .height = p->height, .element = p->elementSize, .value = p->value}};
    return 0;
}

int graph_describe_host(const CUDA_HOST_NODE_PARAMS *p, struct graph_work *out) {
    if (!p || !p->fn) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct graph_work){.type = CU_GRAPH_NODE_TYPE_HOST, .host = {p->fn, p->userData}};
    return 0;
}

int graph_describe_event(CUgraphNodeType type, CUevent event, struct graph_work *out) {
    if (!object_get(OBJECT_EVENT, event)) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct graph_work){.type = type, .event = event};
    return 0;
}

int graph_describe_child(CUgraph child, struct graph_work *out) {
    struct shim_graph *g;
    int rc = graph_find(child, &g);
    if (!rc && (graph_has_memory(g) || graph_has_conditions(g))) rc = CUDA_ERROR_INVALID_VALUE;
    if (rc) return rc;
    *out = (struct graph_work){.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = graph_copied(g)};
    if (!out->child) return CUDA_ERROR_OUT_OF_MEMORY;
    out->child->owned = true;
    out->child->origin = out->child->object.id; /* a graph may be the child of several nodes */
    return 0;
}

int graph_describe(const CUgraphNodeParams *p, struct graph_work *out) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS k = {.func = p->kernel.func,
                                     .gridDimX = p->kernel.gridDimX,
                                     .gridDimY = p->kernel.gridDimY,
                                     .gridDimZ = p->kernel.gridDimZ,
                                     .blockDimX = p->kernel.blockDimX,
                                     .blockDimY = p->kernel.blockDimY,
                                     .blockDimZ = p->kernel.blockDimZ,
                                     .sharedMemBytes = p->kernel.sharedMemBytes,
                                     .kernelParams = p->kernel.kernelParams,
                                     .extra = p->kernel.extra,
                                     .kern = p->kernel.kern,
                                     .ctx = p->kernel.ctx};
        return graph_describe_kernel(&k, out);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: return graph_describe_copy(&p->memcpy.copyParams, p->memcpy.copyCtx, out);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS m;
        memcpy(&m, &p->memset, sizeof m); /* its beginning is the same */
        return graph_describe_fill(&m, p->memset.ctx, out);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
        CUDA_HOST_NODE_PARAMS h = {.fn = p->host.fn, .userData = p->host.userData};
        return graph_describe_host(&h, out);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: return graph_describe_child(p->graph.graph, out);
    case CU_GRAPH_NODE_TYPE_EMPTY: *out = (struct graph_work){.type = CU_GRAPH_NODE_TYPE_EMPTY}; return 0;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return graph_describe_event(p->type, p->eventWait.event, out);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return graph_describe_event(p->type, p->eventRecord.event, out);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return graph_describe_free(p->free.dptr, out);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
        CUDA_BATCH_MEM_OP_NODE_PARAMS b = {.ctx = p->memOp.ctx, .count = p->memOp.count, .paramArray = p->memOp.paramArray, .flags = p->memOp.flags};
        return graph_describe_batch(&b, out);
    }
    default: shim_log_once("graph nodes of type %d are not supported yet", (int)p->type); return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* ---- added ---- */

static CUDA_KERNEL_NODE_PARAMS today(const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    CUDA_KERNEL_NODE_PARAMS now = {0};
    memcpy(&now, p, sizeof *p); /* the newer one goes on where the older one ends */
    return now;
}

CUresult impl_cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, const CUDA_KERNEL_NODE_PARAMS *p) {
    struct graph_work work;
    return graph_add_node(out, graph, after, n, graph_describe_kernel(p, &work), &work);
}

CUresult impl_cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS now = today(p);
    return impl_cuGraphAddKernelNode_v2(out, graph, after, n, &now);
}

CUresult impl_cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, const CUDA_MEMCPY3D *p, CUcontext context) {
    struct graph_work work;
    return graph_add_node(out, graph, after, n, graph_describe_copy(p, context, &work), &work);
}

CUresult impl_cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, const CUDA_MEMSET_NODE_PARAMS *p,
                                   CUcontext context) {
    struct graph_work work;
    return graph_add_node(out, graph, after, n, graph_describe_fill(p, context, &work), &work);
}

CUresult impl_cuGraphAddHostNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, const CUDA_HOST_NODE_PARAMS *p) {
    struct graph_work work;
    return graph_add_node(out, graph, after, n, graph_describe_host(p, &work), &work);
}

CUresult impl_cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, CUgraph child) {
    struct graph_work work;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_describe_child(child, &work);
    if (!rc) rc = graph_add_described(out, graph, after, n, &work);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n) {
    return graph_add_node(out, graph, after, n, 0, &(struct graph_work){.type = CU_GRAPH_NODE_TYPE_EMPTY});
}

CUresult impl_cuGraphAddEventRecordNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, CUevent event) {
    struct graph_work work;
    return graph_add_node(out, graph, after, n, graph_describe_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, &work), &work);
}

CUresult impl_cuGraphAddEventWaitNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, CUevent event) {
    struct graph_work work;
    return graph_add_node(out, graph, after, n, graph_describe_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, &work), &work);
}

CUresult impl_cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *data, size_t n,
                                CUgraphNodeParams *p) {
    struct graph_work work;
    (void)data;
    if (p && p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) { /* which tells its address */
        CUDA_MEM_ALLOC_NODE_PARAMS m;
        memcpy(&m, &p->alloc, sizeof m); /* the two versions are alike */
        int failed = impl_cuGraphAddMemAllocNode(out, graph, after, n, &m);
        if (!failed) p->alloc.dptr = m.dptr;
        return failed;
    }
    if (p && p->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) return graph_add_conditional(out, graph, after, n, &p->conditional);
    pthread_mutex_lock(&graph_lock);
    int rc = graph_describe(p, &work);
    if (!rc) rc = graph_add_described(out, graph, after, n, &work);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, CUgraphNodeParams *p) {
    return impl_cuGraphAddNode_v2(out, graph, after, NULL, n, p);
}

/* ---- edges ---- */

static int position(const struct graph_node *of, const struct graph_node *on, size_t *at) {
    for (*at = 0; *at < of->n_after; ++*at)
        if (of->after[*at] == on) return 1;
    return 0;
}

static int add_edge(struct graph_node *from, struct graph_node *to) {
    size_t at;
    if (from == to || position(to, from, &at)) return CUDA_ERROR_INVALID_VALUE;
    struct graph_node **list = realloc(to->after, (to->n_after + 1) * sizeof *list);
    if (!list) return CUDA_ERROR_OUT_OF_MEMORY;
    to->after = list;
    list[to->n_after++] = from;
    return 0;
}

static int remove_edge(const struct graph_node *from, struct graph_node *to) {
    size_t at;
    if (!position(to, from, &at)) return CUDA_ERROR_INVALID_VALUE;
    memmove(&to->after[at], &to->after[at + 1], (--to->n_after - at) * sizeof to->after[0]);
    return 0;
}

static int edges(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to, size_t n, bool more) {
    struct shim_graph *g;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_find(handle, &g);
    if (!rc && n && (!from || !to)) rc = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n && !rc; i++) {
        struct graph_node *a, *b;
        rc = graph_node_find(from[i], &a);
        if (!rc) rc = graph_node_find(to[i], &b);
        if (!rc && (a->graph != g || b->graph != g)) rc = CUDA_ERROR_INVALID_VALUE;
        if (!rc) rc = more ? add_edge(a, b) : remove_edge(a, b);
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t n) {
    return edges(graph, from, to, n, true);
}
CUresult impl_cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t n) {
    return (void)data, edges(graph, from, to, n, true);
}
CUresult impl_cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t n) {
    return edges(graph, from, to, n, false);
}
CUresult impl_cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t n) {
    return (void)data, edges(graph, from, to, n, false);
}

CUresult impl_cuGraphDestroyNode(CUgraphNode handle) {
    struct graph_node *node;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_node_find(handle, &node);
    if (!rc && node->graph->owned && !node->graph->body) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc && graph_is_memory(&node->work)) rc = CUDA_ERROR_NOT_SUPPORTED;
    if (!rc) graph_remove(node);
    pthread_mutex_unlock(&graph_lock);
    graph_settled();
    return rc;
}

/* ---- changed ---- */

/* Programs go on using the array of pointers that they were given, to set other arguments: it stays where it is, and so do the parameters that it points to. */
static void keep_pointers(struct graph_kernel *old, struct graph_kernel *new) {
    if (!old->pointers || old->params_size != new->params_size) return;
    char *params = new->params;
    memcpy(old->params, params, new->params_size);
    new->params = old->params;
    new->pointers = old->pointers;
    old->params = params;
    old->pointers = NULL;
}

/* Gives a node other work of its type; takes the work over. */
static int replace(CUgraphNode handle, int rc, struct graph_work *work) {
    struct graph_node *node;
    if (rc) return rc;
    pthread_mutex_lock(&graph_lock);
    rc = graph_node_find(handle, &node);
    if (!rc && node->work.type != work->type) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc && work->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        keep_pointers(&node->work.kernel, &work->kernel);
        graph_kernel_attributes_copy(&work->kernel, &node->work.kernel);
    }
    if (rc) {
        graph_work_free(work);
    } else {
        graph_work_free(&node->work);
        node->work = *work;
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p) {
    struct graph_work work;
    return replace(node, graph_describe_kernel(p, &work), &work);
}
CUresult impl_cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS now = today(p);
    return impl_cuGraphKernelNodeSetParams_v2(node, &now);
}
CUresult impl_cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *p) {
    struct graph_work work;
    return replace(node, graph_describe_copy(p, NULL, &work), &work);
}
CUresult impl_cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p) {
    struct graph_work work;
    return replace(node, graph_describe_fill(p, NULL, &work), &work);
}
CUresult impl_cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p) {
    struct graph_work work;
    return replace(node, graph_describe_host(p, &work), &work);
}
CUresult impl_cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
    struct graph_work work;
    return replace(node, graph_describe_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, &work), &work);
}
CUresult impl_cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
    struct graph_work work;
    return replace(node, graph_describe_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, &work), &work);
}
CUresult impl_cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *p) {
    struct graph_work work;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_describe(p, &work);
    pthread_mutex_unlock(&graph_lock);
    return replace(node, rc, &work);
}
