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

static void drop(struct graph_condition *c) {
    if (--c->holders) return;
    struct graph_condition **at = &all;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    memory_release_mapped(c->address);
    free(c);
}

/* ---- of graphs ---- */

/* The graph holds it from now on. */
static int hold(struct shim_graph *g, struct graph_condition *c) {
    struct graph_condition **more = realloc(g->conditions, (g->n_conditions + 1) * sizeof *more);
    if (!more) return CUDA_ERROR_OUT_OF_MEMORY;
    g->conditions = more;
    more[g->n_conditions++] = c;
    c->holders++;
    return 0;
}

int graph_conditions_copy(struct shim_graph *to, const struct shim_graph *from) {
    int rc = 0;
    for (size_t i = 0; i < from->n_conditions && !rc; i++) rc = hold(to, from->conditions[i]);
    return rc;
}

void graph_conditions_free(struct shim_graph *g) {
    for (size_t i = 0; i < g->n_conditions; i++) drop(g->conditions[i]);
    free(g->conditions);
    g->conditions = NULL;
    g->n_conditions = 0;
}

static int make(struct shim_context *context, struct graph_condition **out) {
    struct graph_condition *c = calloc(1, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    int rc = memory_allocate(context, sizeof(uint32_t), &c->address);
    if (rc) {
        free(c);
        return rc;
    }
    c->holders = 1;
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
    /* Until a kernel sets it: 0. */
    rc = copy_fill(context->legacy, c->address, sizeof(uint32_t), sizeof(uint32_t), 0, 1, 1, false);
    pthread_mutex_lock(&graph_lock);
    if (!rc) rc = graph_find(graph, &g);
    if (!rc) rc = hold(g, c);
    if (!rc) *out = c->address;
    drop(c);
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

static int new_bodies(struct graph_conditional *c, const struct graph_conditional *from) {
    c->bodies = calloc(c->n, sizeof(struct shim_graph *));
    for (unsigned i = 0; c->bodies && i < c->n; i++) {
        c->bodies[i] = from ? graph_copied(from->bodies[i]) : graph_new();
        if (!c->bodies[i]) {
            while (i) graph_free(c->bodies[--i]);
            free(c->bodies);
            c->bodies = NULL;
            break;
        }
        c->bodies[i]->owned = c->bodies[i]->body = true;
    }
    return c->bodies ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

int graph_describe_conditional(const CUDA_CONDITIONAL_NODE_PARAMS *p, struct graph_work *out) {
    struct graph_condition *condition = find(p->handle);
    if (!condition || condition->taken || !possible(p)) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct graph_work){.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {.condition = condition, .kind = p->type, .n = p->size}};
    int rc = new_bodies(&out->conditional, NULL);
    if (!rc) condition->holders++;
    return rc;
}

int graph_conditional_copy(struct graph_conditional *out, const struct graph_conditional *from) {
    int rc = new_bodies(out, from);
    if (!rc) out->condition->holders++;
    return rc;
}

void graph_conditional_free(struct graph_conditional *c) {
    for (unsigned i = 0; i < c->n; i++) graph_free(c->bodies[i]);
    free(c->bodies);
    drop(c->condition);
}

int graph_add_conditional(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, CUDA_CONDITIONAL_NODE_PARAMS *p) {
    struct graph_work work;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_describe_conditional(p, &work);
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
        const struct graph_condition *c = g->conditions[i];
        if (c->starts) rc = copy_fill(s, c->address, sizeof(uint32_t), sizeof(uint32_t), c->initial, 1, 1, false);
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
