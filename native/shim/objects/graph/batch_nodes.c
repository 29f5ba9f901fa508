/* Nodes of stream memory operations. */
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"

CUresult impl_cuGraphAddBatchMemOpNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    struct graph_work work;
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    return graph_add_node(out, graph, after, n, graph_describe_batch(p, &work), &work);
}

/* The array is the node's own, as the driver's documentation has it. */
CUresult impl_cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    struct graph_work *w;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_node_work(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &w);
    if (!rc && !p) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc)
        *p = (CUDA_BATCH_MEM_OP_NODE_PARAMS){
            .ctx = w->batch.context, .count = w->batch.count, .paramArray = w->batch.operations, .flags = w->batch.flags};
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    struct graph_work *w, work;
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    int rc = graph_describe_batch(p, &work);
    if (rc) return rc;
    pthread_mutex_lock(&graph_lock);
    rc = graph_node_work(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &w);
    if (!rc) {
        struct graph_work old = *w;
        *w = work;
        work = old;
    }
    graph_work_free(&work);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}
