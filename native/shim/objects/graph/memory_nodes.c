/* Nodes that allocate and free device memory. */
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"

static struct graph_memory *all; /* under graph_lock, as are the figures */
static uint64_t used_high[GV_MAX_DEVICES], reserved_high[GV_MAX_DEVICES];

static struct graph_memory *find(CUdeviceptr address) {
    struct graph_memory *m = all;
    while (m && m->address != address) m = m->next;
    return m;
}

/* ---- figures ---- */

/* As the driver counts it, what a launch has used once stays in use as long as a graph has it. */
static uint64_t sum(CUdevice device, bool used) {
    uint64_t bytes = 0;
    for (const struct graph_memory *m = all; m; m = m->next)
        if (m->device == device && (m->used || !used)) bytes += m->size;
    return bytes;
}

static void note(CUdevice device) {
    uint64_t used = sum(device, true), reserved = sum(device, false);
    if (used > used_high[device]) used_high[device] = used;
    if (reserved > reserved_high[device]) reserved_high[device] = reserved;
}

static int check(CUdevice device, const void *value) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!device_info(device)) return CUDA_ERROR_INVALID_DEVICE;
    return value ? 0 : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute which, void *value) {
    int rc = check(device, value);
    uint64_t bytes = 0;
    if (rc) return rc;
    pthread_mutex_lock(&graph_lock);
    switch ((int)which) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: bytes = sum(device, true); break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: bytes = used_high[device]; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: bytes = sum(device, false); break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: bytes = reserved_high[device]; break;
    default: rc = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&graph_lock);
    if (!rc) memcpy(value, &bytes, sizeof bytes);
    return rc;
}

/* The high-water marks begin anew. */
CUresult impl_cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute which, void *value) {
    int rc = check(device, value);
    uint64_t zero;
    if (rc) return rc;
    memcpy(&zero, value, sizeof zero);
    if (zero) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&graph_lock);
    switch ((int)which) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: used_high[device] = sum(device, true); break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: reserved_high[device] = sum(device, false); break;
    default: rc = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

/* Graphs keep no memory but what their nodes hold. */
CUresult impl_cuDeviceGraphMemTrim(CUdevice device) { return check(device, &all); }

/* ---- memory ---- */

static void forget(struct graph_memory *m) {
    struct graph_memory **at = &all;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    memory_release_mapped(m->address);
    free(m);
}

/* No node has it any more. What a launch allocated stays until the program frees it. */
static void release(struct graph_memory *m) {
    if (!m->live) forget(m);
}

static int new_memory(struct shim_context *c, size_t size, struct graph_memory **out) {
    struct graph_memory *m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    int rc = memory_allocate(c, size, &m->address);
    if (rc) {
        free(m);
        return rc;
    }
    range_set_graph(m->address);
    m->size = size;
    m->device = c->device;
    m->release = release;
    m->holders = 1;
    pthread_mutex_lock(&graph_lock);
    m->next = all;
    all = m;
    note(m->device);
    pthread_mutex_unlock(&graph_lock);
    *out = m;
    return 0;
}

int graph_may_allocate(const struct graph_memory *m, bool again) { return m->live && !again ? CUDA_ERROR_INVALID_VALUE : 0; }

void graph_allocate(struct graph_memory *m) {
    m->live = m->used = true;
    note(m->device);
}

int graph_free_memory(CUdeviceptr address) {
    struct graph_memory *m = find(address);
    if (!m || !m->live) return CUDA_ERROR_INVALID_VALUE;
    m->live = false;
    if (!m->holders) forget(m);
    return 0;
}

/* The program frees what a launch has allocated. */
static int freed(CUdeviceptr address) {
    pthread_mutex_lock(&graph_lock);
    int rc = graph_free_memory(address);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

__attribute__((constructor)) static void offer(void) { memory_on_graph_free(freed); }

/* ---- nodes ---- */

int graph_describe_memory(CUDA_MEM_ALLOC_NODE_PARAMS *p, struct graph_work *out) {
    if (!p || !p->bytesize || (p->accessDescCount && !p->accessDescs)) return CUDA_ERROR_INVALID_VALUE;
    const CUmemPoolProps *pool = &p->poolProps;
    if (pool->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || pool->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_INVALID_VALUE;
    if (pool->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!device_info(pool->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    struct shim_context *c = context_current();
    if (!c || c->device != pool->location.id) c = context_primary(pool->location.id);
    if (!c || !context_live(c)) return CUDA_ERROR_INVALID_CONTEXT;
    *out = (struct graph_work){.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    int rc = new_memory(c, p->bytesize, &out->memory);
    if (!rc) p->dptr = out->memory->address;
    return rc;
}

int graph_describe_free(CUdeviceptr address, struct graph_work *out) {
    *out = (struct graph_work){.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .freed = address};
    return find(address) ? 0 : CUDA_ERROR_INVALID_VALUE;
}

static int describe_free(CUdeviceptr address, struct graph_work *out) {
    pthread_mutex_lock(&graph_lock);
    int rc = graph_describe_free(address, out);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    struct graph_work work;
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    return graph_add_node(out, graph, after, n, graph_describe_memory(p, &work), &work);
}

CUresult impl_cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, CUdeviceptr address) {
    struct graph_work work;
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    return graph_add_node(out, graph, after, n, describe_free(address, &work), &work);
}

CUresult impl_cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    struct graph_work *w;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_node_work(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &w);
    if (!rc && !p) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc)
        *p = (CUDA_MEM_ALLOC_NODE_PARAMS){
            .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = w->memory->device}},
            .bytesize = w->memory->size,
            .dptr = w->memory->address};
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address) {
    struct graph_work *w;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_node_work(node, CU_GRAPH_NODE_TYPE_MEM_FREE, &w);
    if (!rc && !address) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *address = w->freed;
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

/* ---- captures ---- */

int graph_capture_allocation(struct shim_stream *s, size_t size, CUdeviceptr *out) {
    struct graph_work work = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    int rc = new_memory(s->context, size, &work.memory);
    if (rc) return rc;
    CUdeviceptr address = work.memory->address;
    rc = capture_work(s, &work);
    pthread_mutex_lock(&graph_lock);
    graph_work_free(&work); /* the node has a copy */
    pthread_mutex_unlock(&graph_lock);
    if (!rc) *out = address;
    return rc;
}

int graph_capture_free(struct shim_stream *s, CUdeviceptr address) {
    struct graph_work work;
    int rc = describe_free(address, &work);
    return rc ? rc : capture_work(s, &work);
}
