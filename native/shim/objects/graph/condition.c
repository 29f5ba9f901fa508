/* Conditional nodes. A condition is a word in device memory, and its handle is the word's address: a kernel's cudaGraphSetConditional stores there. A launch reads it where a
 * conditional node is reached, which waits for what comes before, and makes the calls of the graph that it chooses. */
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/graph/graph.h"
#include "objects/memory/copy.h"

static struct graph_condition *all; /* under graph_lock */

static struct graph_condition *find(CUgraphConditionalHandle handle) {
    struct graph_condition *c = all;
    while (c && c->address != handle) c = c->next;
    return c;
}

/* Nobody holds it any more. */
static void release(struct graph_condition *c) {
    struct graph_condition **at = &all;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    memory_release_mapped(c->address);
    free(c);
}

/* ---- made ---- */

static int make(struct shim_context *context, struct graph_condition **out) {
    struct graph_condition *c = calloc(1, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    int rc = memory_allocate(context, sizeof(uint32_t), &c->address);
    if (rc) {
        free(c);
        return rc;
    }
    c->holders = 1;
    c->release = release;
    pthread_mutex_lock(&graph_lock);
    c->next = all;
    all = c;
    pthread_mutex_unlock(&graph_lock);
    *out = c;
    return 0;
}

CUresult impl_cuGraphConditionalHandleCreate(CUgraphConditionalHandle *out, CUgraph graph, CUcontext handle, unsigned int initial,
                                             unsigned int flags) {
    struct shim_context *context;
    struct shim_graph *g;
    struct graph_condition *c;
    int rc = context_require(&context);
    if (!rc && handle) {
        context = object_get(OBJECT_CONTEXT, handle);
        if (!context) rc = CUDA_ERROR_INVALID_VALUE;
    }
    if (!rc && (!out || flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT)) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = graph_find(graph, &g);
    if (rc) return rc;
    if (!(context->info->flags & GV_DEVICE_SOFTWARE)) {
        shim_log_once("cuGraphConditionalHandleCreate: conditional nodes of graphs need a software GPU: kernels in machine code find the condition "
                      "in the driver");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    rc = make(context, &c);
    if (rc) return rc;
    c->initial = initial;
    c->starts = flags & CU_GRAPH_COND_ASSIGN_DEFAULT;
    pthread_mutex_lock(&graph_lock);
    rc = graph_find(graph, &g);
    if (!rc) rc = graph_condition_hold(g, c);
    if (!rc) *out = c->address;
    graph_condition_drop(c);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

/* ---- of nodes ---- */

static bool possible(const CUDA_CONDITIONAL_NODE_PARAMS *p) {
    switch ((int)p->type) {
    case CU_GRAPH_COND_TYPE_IF: return p->size == 1 || p->size == 2;
    case CU_GRAPH_COND_TYPE_WHILE: return p->size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH: return p->size > 0;
    default: return false;
    }
}

static int describe(const CUDA_CONDITIONAL_NODE_PARAMS *p, struct graph_work *out) {
    struct graph_condition *condition = find(p->handle);
    if (!condition || condition->taken || !possible(p)) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct graph_work){.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {.condition = condition, .kind = p->type, .n = p->size}};
    int rc = graph_conditional_bodies(&out->conditional, NULL);
    if (!rc) condition->holders++;
    return rc;
}

int graph_add_conditional(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, CUDA_CONDITIONAL_NODE_PARAMS *p) {
    struct graph_work work;
    pthread_mutex_lock(&graph_lock);
    int rc = describe(p, &work);
    if (!rc) rc = graph_add_described(out, graph, after, n, &work);
    if (!rc) {
        work.conditional.condition->taken = true;
        p->phGraph_out = (CUgraph *)work.conditional.bodies;
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

/* ---- of launches ---- */

int graph_conditions_start(struct shim_stream *s, const struct shim_graph *g) {
    int rc = 0;
    for (size_t i = 0; i < g->n_conditions && !rc; i++) {
        struct graph_condition *c = g->conditions[i];
        if (c->starts || !c->begun) rc = copy_fill(s, c->address, sizeof(uint32_t), sizeof(uint32_t), c->starts ? c->initial : 0, 1, 1, false);
        c->begun = true;
    }
    return rc;
}

/* The graph that the condition chooses now; NULL: none. Waits for what comes before it on the stream. */
static int choose(CUstream stream, const struct graph_conditional *c, const struct shim_graph **out) {
    uint32_t value = 0;
    int rc = impl_cuMemcpyDtoHAsync(&value, c->condition->address, sizeof value, stream);
    uint64_t which = c->kind == CU_GRAPH_COND_TYPE_SWITCH ? value : !value;
    *out = which < c->n ? c->bodies[which] : NULL;
    return rc;
}

int graph_conditional_run(CUstream stream, const struct graph_conditional *c, int (*run)(CUstream stream, const struct shim_graph *g)) {
    const struct shim_graph *chosen;
    int rc;
    do {
        rc = choose(stream, c, &chosen);
        if (!rc && chosen) rc = run(stream, chosen);
    } while (!rc && chosen && c->kind == CU_GRAPH_COND_TYPE_WHILE);
    return rc;
}
