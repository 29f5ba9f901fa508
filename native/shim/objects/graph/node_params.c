/* What is asked of nodes: their parameters, as structures of the driver, and attributes of kernels. */
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"

/* ---- by type ---- */

/* The node's work if it is of this type; graph_lock is held when it returns 0. */
static int look(CUgraphNode handle, CUgraphNodeType type, const void *out, struct graph_work **work) {
    struct graph_node *node;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_node_find(handle, &node);
    if (!rc && (!out || node->work.type != type)) rc = CUDA_ERROR_INVALID_VALUE;
    if (rc)
        pthread_mutex_unlock(&graph_lock);
    else
        *work = &node->work;
    return rc;
}

/* Where each parameter lies, which stays so as long as the node has this work. */
static int point(struct graph_kernel *k, const struct shim_function *f) {
    if (k->pointers) return 0;
    k->pointers = malloc((f->meta->n_params + 1) * sizeof *k->pointers);
    if (!k->pointers) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < f->meta->n_params; i++) k->pointers[i] = k->params + f->params[i].offset;
    return 0;
}

CUresult impl_cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out) {
    struct shim_context *c;
    struct shim_function *f;
    struct graph_work *w;
    int rc = context_require(&c);
    if (!rc) rc = look(node, CU_GRAPH_NODE_TYPE_KERNEL, out, &w);
    if (rc) return rc;
    struct graph_kernel *k = &w->kernel;
    rc = function_resolve(k->function, c, &f);
    if (!rc) rc = point(k, f);
    bool library = object_get(OBJECT_KERNEL, k->function) != NULL;
    /* Of a function that came from a kernel of a library both are told: the runtime of CUDA 13.0 finds the program's kernel by `kern`. */
    if (!rc)
        *out = (CUDA_KERNEL_NODE_PARAMS){.func = library ? NULL : k->function,
                                         .kern = (CUkernel)f->kernel,
                                         .gridDimX = k->grid[0],
                                         .gridDimY = k->grid[1],
                                         .gridDimZ = k->grid[2],
                                         .blockDimX = k->block[0],
                                         .blockDimY = k->block[1],
                                         .blockDimZ = k->block[2],
                                         .sharedMemBytes = k->shared,
                                         .kernelParams = k->pointers};
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *out) {
    CUDA_KERNEL_NODE_PARAMS now;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    int rc = impl_cuGraphKernelNodeGetParams_v2(node, &now);
    if (!rc && !now.func) now.func = (CUfunction)now.kern; /* a kernel of a library is good for a function */
    if (!rc) memcpy(out, &now, sizeof *out);
    return rc;
}

CUresult impl_cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *out) {
    struct graph_work *w;
    int rc = look(node, CU_GRAPH_NODE_TYPE_MEMCPY, out, &w);
    if (rc) return rc;
    const struct copy_side *dst = &w->copy.dst, *src = &w->copy.src;
    const struct copy_box *box = &w->copy.box;
    *out = (CUDA_MEMCPY3D){.WidthInBytes = box->width, .Height = box->height, .Depth = box->depth};
    static const CUmemorytype types[] = {[COPY_HOST] = CU_MEMORYTYPE_HOST,
                                         [COPY_DEVICE] = CU_MEMORYTYPE_DEVICE,
                                         [COPY_ANYWHERE] = CU_MEMORYTYPE_UNIFIED,
                                         [COPY_ARRAY] = CU_MEMORYTYPE_ARRAY};
    out->dstMemoryType = types[dst->where];
    out->srcMemoryType = types[src->where];
    if (dst->where == COPY_ARRAY) {
        out->dstArray = (CUarray)dst->array;
        out->dstXInBytes = dst->at[0], out->dstY = dst->at[1], out->dstZ = dst->at[2];
    } else {
        out->dstHost = (void *)(uintptr_t)dst->address, out->dstDevice = dst->address;
        out->dstPitch = dst->pitch, out->dstHeight = dst->pitch ? dst->slice / dst->pitch : 0;
    }
    if (src->where == COPY_ARRAY) {
        out->srcArray = (CUarray)src->array;
        out->srcXInBytes = src->at[0], out->srcY = src->at[1], out->srcZ = src->at[2];
    } else {
        out->srcHost = (const void *)(uintptr_t)src->address, out->srcDevice = src->address;
        out->srcPitch = src->pitch, out->srcHeight = src->pitch ? src->slice / src->pitch : 0;
    }
    pthread_mutex_unlock(&graph_lock);
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *out) {
    struct graph_work *w;
    int rc = look(node, CU_GRAPH_NODE_TYPE_MEMSET, out, &w);
    if (rc) return rc;
    const struct graph_fill *f = &w->fill;
    *out = (CUDA_MEMSET_NODE_PARAMS){
        .dst = f->dst, .pitch = f->pitch, .value = f->value, .elementSize = f->element, .width = f->width, .height = f->height};
    pthread_mutex_unlock(&graph_lock);
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *out) {
    struct graph_work *w;
    int rc = look(node, CU_GRAPH_NODE_TYPE_HOST, out, &w);
    if (rc) return rc;
    *out = (CUDA_HOST_NODE_PARAMS){.fn = w->host.fn, .userData = w->host.data};
    pthread_mutex_unlock(&graph_lock);
    return CUDA_SUCCESS;
}

static int event_of(CUgraphNode node, CUgraphNodeType type, CUevent *out) {
    struct graph_work *w;
    int rc = look(node, type, out, &w);
    if (rc) return rc;
    *out = w->event;
    pthread_mutex_unlock(&graph_lock);
    return 0;
}

CUresult impl_cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *out) { return event_of(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, out); }
CUresult impl_cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *out) { return event_of(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, out); }

CUresult impl_cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *out) {
    struct graph_work *w;
    int rc = look(node, CU_GRAPH_NODE_TYPE_GRAPH, out, &w);
    if (rc) return rc;
    *out = (CUgraph)w->child;
    pthread_mutex_unlock(&graph_lock);
    return CUDA_SUCCESS;
}

/* ---- of a node of any type ---- */

CUresult impl_cuGraphNodeGetParams(CUgraphNode node, CUgraphNodeParams *out) {
    CUgraphNodeType type;
    int rc = impl_cuGraphNodeGetType(node, &type);
    if (rc) return rc;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams p = {.type = type};
    switch ((int)type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS k = {0}; /* it is the same as the node's */
        rc = impl_cuGraphKernelNodeGetParams_v2(node, &k);
        memcpy(&p.kernel, &k, sizeof k);
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: rc = impl_cuGraphMemcpyNodeGetParams(node, &p.memcpy.copyParams); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS m = {0}; /* the node's goes on behind it */
        rc = impl_cuGraphMemsetNodeGetParams(node, &m);
        memcpy(&p.memset, &m, sizeof m);
        break;
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
        CUDA_HOST_NODE_PARAMS h = {0};
        rc = impl_cuGraphHostNodeGetParams(node, &h);
        p.host.fn = h.fn, p.host.userData = h.userData;
        break;
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: rc = impl_cuGraphChildGraphNodeGetGraph(node, &p.graph.graph); break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: rc = impl_cuGraphEventWaitNodeGetEvent(node, &p.eventWait.event); break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: rc = impl_cuGraphEventRecordNodeGetEvent(node, &p.eventRecord.event); break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
        CUDA_MEM_ALLOC_NODE_PARAMS a = {0}; /* it is the same as the node's */
        rc = impl_cuGraphMemAllocNodeGetParams(node, &a);
        memcpy(&p.alloc, &a, sizeof a);
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE: rc = impl_cuGraphMemFreeNodeGetParams(node, &p.free.dptr); break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
        CUDA_BATCH_MEM_OP_NODE_PARAMS b = {0};
        rc = impl_cuGraphBatchMemOpNodeGetParams(node, &b);
        if (!rc) p.memOp = (CUDA_BATCH_MEM_OP_NODE_PARAMS_v2){.ctx = b.ctx, .count = b.count, .paramArray = b.paramArray, .flags = b.flags};
        break;
    }
    default: break; /* an empty node has none */
    }
    if (!rc) *out = p;
    return rc;
}

/* ---- attributes of kernels: those that change something ---- */

CUresult impl_cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute, const CUkernelNodeAttrValue *value) {
    struct graph_work *w;
    int rc = look(node, CU_GRAPH_NODE_TYPE_KERNEL, value, &w);
    if (rc) return rc;
    switch ((int)attribute) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: w->kernel.cooperative = value->cooperative != 0; break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: w->kernel.priority = value->priority; break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        if (!cluster_attribute_set((int)attribute, value, &w->kernel.cluster, &w->kernel.preferred_cluster)) rc = CUDA_ERROR_INVALID_VALUE;
        break;
    default: rc = CUDA_ERROR_NOT_SUPPORTED; break;
    }
    pthread_mutex_unlock(&graph_lock);
    if (rc == CUDA_ERROR_NOT_SUPPORTED) shim_log_once("cuGraphKernelNodeSetAttribute: attribute %d is not supported", (int)attribute);
    return rc;
}

CUresult impl_cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute, CUkernelNodeAttrValue *out) {
    struct graph_work *w;
    int rc = look(node, CU_GRAPH_NODE_TYPE_KERNEL, out, &w);
    if (rc) return rc;
    memset(out, 0, sizeof *out);
    if ((int)attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) out->cooperative = w->kernel.cooperative;
    if ((int)attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) out->priority = w->kernel.priority;
    cluster_attribute_get((int)attribute, w->kernel.cluster, w->kernel.preferred_cluster, out);
    pthread_mutex_unlock(&graph_lock);
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
    struct graph_node *a, *b;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_node_find(to, &a);
    if (!rc) rc = graph_node_find(from, &b);
    if (!rc && (a->work.type != CU_GRAPH_NODE_TYPE_KERNEL || b->work.type != CU_GRAPH_NODE_TYPE_KERNEL)) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) graph_kernel_attributes_copy(&a->work.kernel, &b->work.kernel);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}
