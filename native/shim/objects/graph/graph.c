/* Graphs and their nodes. */
#include "objects/graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"

_Static_assert(sizeof(struct graph_node) <= 1024, "a node fits its slot");
_Static_assert(sizeof(struct shim_graph) <= 256, "a graph fits its slot");

pthread_mutex_t graph_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- conditions ---- */

void graph_condition_drop(struct graph_condition *c) {
    if (!--c->holders) c->release(c);
}

int graph_condition_hold(struct shim_graph *g, struct graph_condition *c) {
    struct graph_condition **more = realloc(g->conditions, (g->n_conditions + 1) * sizeof *more);
    if (!more) return CUDA_ERROR_OUT_OF_MEMORY;
    g->conditions = more;
    more[g->n_conditions++] = c;
    c->holders++;
    return 0;
}

static int copy_conditions(struct shim_graph *to, const struct shim_graph *from) {
    int rc = 0;
    for (size_t i = 0; i < from->n_conditions && !rc; i++) rc = graph_condition_hold(to, from->conditions[i]);
    return rc;
}

static void free_conditions(struct shim_graph *g) {
    for (size_t i = 0; i < g->n_conditions; i++) graph_condition_drop(g->conditions[i]);
    free(g->conditions);
    g->conditions = NULL;
    g->n_conditions = 0;
}

int graph_conditional_bodies(struct graph_conditional *c, const struct graph_conditional *from) {
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

static int copy_conditional(struct graph_conditional *out, const struct graph_conditional *from) {
    int rc = graph_conditional_bodies(out, from);
    if (!rc) out->condition->holders++;
    return rc;
}

static void free_conditional(struct graph_conditional *c) {
    for (unsigned i = 0; i < c->n; i++) graph_free(c->bodies[i]);
    free(c->bodies);
    graph_condition_drop(c->condition);
}

/* ---- work ---- */

int graph_work_copy(struct graph_work *out, const struct graph_work *from) {
    *out = *from;
    if (from->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        out->kernel.params = malloc(from->kernel.params_size + 1);
        out->kernel.pointers = NULL;
        if (!out->kernel.params) return CUDA_ERROR_OUT_OF_MEMORY;
        if (from->kernel.params_size) memcpy(out->kernel.params, from->kernel.params, from->kernel.params_size);
    }
    if (from->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        out->child = graph_copied(from->child);
        if (!out->child) return CUDA_ERROR_OUT_OF_MEMORY;
        out->child->owned = true;
    }
    if (from->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) return copy_conditional(&out->conditional, &from->conditional);
    if (from->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) from->memory->holders++;
    if (from->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
        size_t size = from->batch.count * sizeof *from->batch.operations;
        out->batch.operations = malloc(size + 1);
        if (!out->batch.operations) return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(out->batch.operations, from->batch.operations, size);
    }
    return 0;
}

void graph_work_free(struct graph_work *work) {
    if (work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !--work->memory->holders) work->memory->release(work->memory);
    if (work->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) free(work->batch.operations);
    if (work->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        free(work->kernel.params);
        free(work->kernel.pointers);
    }
    if (work->type == CU_GRAPH_NODE_TYPE_GRAPH) graph_free(work->child);
    if (work->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) free_conditional(&work->conditional);
}

void graph_kernel_attributes_copy(struct graph_kernel *to, const struct graph_kernel *from) {
    to->cooperative = from->cooperative;
    to->cluster = from->cluster;
    to->preferred_cluster = from->preferred_cluster;
    to->priority = from->priority;
}

/* ---- graphs ---- */

static void (*on_end)(struct shim_graph *g);
static int (*on_copy)(struct shim_graph *to, const struct shim_graph *from);
static void (*on_settled)(void);

void graph_keepers(void (*end)(struct shim_graph *g), int (*copy)(struct shim_graph *to, const struct shim_graph *from), void (*settled)(void)) {
    on_end = end;
    on_copy = copy;
    on_settled = settled;
}

void graph_settled(void) { on_settled(); }

struct shim_graph *graph_new(void) {
    struct shim_graph *g = object_new(OBJECT_GRAPH);
    if (!g) return NULL;
    g->origin = g->object.id;
    object_publish(g);
    return g;
}

static void node_free(struct graph_node *node) {
    graph_work_free(&node->work);
    free(node->after);
    object_free(node);
}

void graph_free(struct shim_graph *g) {
    if (!g) return;
    while (g->first) {
        struct graph_node *node = g->first;
        g->first = node->next;
        node_free(node);
    }
    if (g->keeps) on_end(g);
    free_conditions(g);
    free(g->calls);
    object_free(g);
}

struct graph_node *graph_add(struct shim_graph *g, const struct graph_work *work, struct graph_node *const *after, size_t n) {
    struct graph_node *node = object_new(OBJECT_GRAPH_NODE);
    struct graph_node **list = n ? malloc(n * sizeof *list) : NULL;
    if (!node || (n && !list)) {
        struct graph_work gone = *work;
        graph_work_free(&gone);
        free(list);
        if (node) object_free(node);
        return NULL;
    }
    if (n) memcpy(list, after, n * sizeof *list);
    node->graph = g;
    node->number = g->next++;
    node->work = *work;
    node->after = list;
    node->n_after = n;
    node->previous = g->last;
    *(g->last ? &g->last->next : &g->first) = node;
    g->last = node;
    g->n++;
    object_publish(node);
    return node;
}

void graph_remove(struct graph_node *node) {
    struct shim_graph *g = node->graph;
    for (struct graph_node *other = g->first; other; other = other->next) {
        size_t kept = 0;
        for (size_t i = 0; i < other->n_after; i++)
            if (other->after[i] != node) other->after[kept++] = other->after[i];
        other->n_after = kept;
    }
    *(node->previous ? &node->previous->next : &g->first) = node->next;
    *(node->next ? &node->next->previous : &g->last) = node->previous;
    g->n--;
    node_free(node);
}

/* Nodes depend on nodes that were added later, too: copies are made first, and joined then. */
struct shim_graph *graph_copied(const struct shim_graph *g) {
    struct shim_graph *copy = graph_new();
    for (struct graph_node *node = copy ? g->first : NULL; node; node = node->next) {
        struct graph_work work;
        node->copy = graph_work_copy(&work, &node->work) ? NULL : graph_add(copy, &work, node->after, node->n_after);
        if (!node->copy) {
            graph_free(copy);
            return NULL;
        }
        node->copy->number = node->number;
    }
    for (struct graph_node *node = copy ? g->first : NULL; node; node = node->next)
        for (size_t i = 0; i < node->n_after; i++) node->copy->after[i] = node->after[i]->copy;
    if (copy) copy->next = g->next;
    if (copy) copy->origin = g->origin;
    if (copy && (copy_conditions(copy, g) || (g->keeps && on_copy(copy, g)))) {
        graph_free(copy);
        return NULL;
    }
    return copy;
}

static bool place(struct graph_node *node, struct graph_node **order, size_t *n) {
    if (node->waiting || node->place) return false;
    order[(*n)++] = node;
    node->place = *n;
    return true;
}

struct graph_node **graph_order(struct shim_graph *g, int *rc) {
    struct graph_node **order = malloc((g->n + 1) * sizeof *order);
    size_t n = 0;
    *rc = order ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    for (struct graph_node *node = order ? g->first : NULL; node; node = node->next) {
        node->place = 0;
        node->waiting = node->n_after;
    }
    /* Nearly always nodes were added behind what they depend on: one round places all. */
    for (bool more = order != NULL; more;) {
        more = false;
        for (struct graph_node *node = g->first; node; node = node->next) {
            if (node->place) continue;
            node->waiting = 0;
            for (size_t i = 0; i < node->n_after; i++) node->waiting += !node->after[i]->place;
            more |= place(node, order, &n);
        }
    }
    if (order && n < g->n) {
        free(order);
        *rc = CUDA_ERROR_INVALID_VALUE;
        return NULL;
    }
    return order;
}

bool graph_has_memory(const struct shim_graph *g) {
    const struct graph_node *node = g->first;
    while (node && !graph_is_memory(&node->work)) node = node->next;
    return node != NULL;
}

bool graph_has_conditions(const struct shim_graph *g) {
    const struct graph_node *node = g->first;
    while (node && node->work.type != CU_GRAPH_NODE_TYPE_CONDITIONAL) node = node->next;
    return node != NULL;
}

/* ---- handles ---- */

int graph_find(CUgraph handle, struct shim_graph **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(OBJECT_GRAPH, handle);
    return *out ? 0 : CUDA_ERROR_INVALID_VALUE;
}

int graph_node_find(CUgraphNode handle, struct graph_node **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(OBJECT_GRAPH_NODE, handle);
    return *out ? 0 : CUDA_ERROR_INVALID_VALUE;
}

int graph_node_work(CUgraphNode handle, CUgraphNodeType type, struct graph_work **out) {
    struct graph_node *node;
    int rc = graph_node_find(handle, &node);
    if (rc || node->work.type != type) return rc ? rc : (int)CUDA_ERROR_INVALID_VALUE;
    *out = &node->work;
    return 0;
}

int graph_add_described(CUgraphNode *out, CUgraph handle, const CUgraphNode *after, size_t n, const struct graph_work *work) {
    struct shim_graph *g;
    int rc = graph_find(handle, &g);
    if (!rc && (!out || (n && !after))) rc = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n && !rc; i++) {
        struct graph_node *node;
        rc = graph_node_find(after[i], &node);
        if (!rc && node->graph != g) rc = CUDA_ERROR_INVALID_VALUE;
    }
    if (rc) {
        struct graph_work gone = *work;
        graph_work_free(&gone);
        return rc;
    }
    struct graph_node *node = graph_add(g, work, (struct graph_node *const *)after, n);
    if (!node) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUgraphNode)node;
    return 0;
}

int graph_add_node(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, int rc, const struct graph_work *work) {
    if (rc) return rc;
    pthread_mutex_lock(&graph_lock);
    rc = graph_add_described(out, graph, after, n, work);
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

struct graph_node *graph_numbered(const struct shim_graph *g, unsigned number) {
    struct graph_node *node = g->first;
    while (node && node->number != number) node = node->next;
    return node;
}

CUresult impl_cuGraphCreate(CUgraph *out, unsigned int flags) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    struct shim_graph *g = graph_new();
    *out = (CUgraph)g;
    return g ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult impl_cuGraphDestroy(CUgraph handle) {
    struct shim_graph *g;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_find(handle, &g);
    if (!rc && g->owned) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) graph_free(g);
    pthread_mutex_unlock(&graph_lock);
    graph_settled();
    return rc;
}

CUresult impl_cuGraphClone(CUgraph *out, CUgraph handle) {
    struct shim_graph *g;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_find(handle, &g);
    if (!rc && !out) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc && (graph_has_memory(g) || graph_has_conditions(g))) rc = CUDA_ERROR_NOT_SUPPORTED;
    struct shim_graph *copy = rc ? NULL : graph_copied(g);
    pthread_mutex_unlock(&graph_lock);
    if (!rc && !copy) rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (!rc) *out = (CUgraph)copy;
    return rc;
}

/* ---- what is asked of them: the first *n of a list, or (without a place for them) how many there are ---- */

struct answer {
    void **to;
    size_t room, n;
};

static void say(struct answer *a, void *what) {
    if (a->to && a->n < a->room) a->to[a->n] = what;
    a->n++;
}

/* What the list has no room for is not counted; places that are left over are NULL. */
static void said(const struct answer *a, size_t *n) {
    for (size_t i = a->n; a->to && i < a->room; i++) a->to[i] = NULL;
    *n = a->to && a->n > a->room ? a->room : a->n;
}

static int nodes(CUgraph handle, CUgraphNode *to, size_t *n, bool roots) {
    struct shim_graph *g;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_find(handle, &g);
    if (!rc && (!n || (to && !*n))) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) {
        struct answer a = {(void **)to, *n, 0};
        for (struct graph_node *node = g->first; node; node = node->next)
            if (!roots || !node->n_after) say(&a, node);
        said(&a, n);
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphGetNodes(CUgraph graph, CUgraphNode *to, size_t *n) { return nodes(graph, to, n, false); }
CUresult impl_cuGraphGetRootNodes(CUgraph graph, CUgraphNode *to, size_t *n) { return nodes(graph, to, n, true); }

CUresult impl_cuGraphGetEdges_v2(CUgraph handle, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *n) {
    struct shim_graph *g;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_find(handle, &g);
    if (!rc && (!n || !from != !to || (from && !*n))) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) {
        struct answer a = {(void **)from, *n, 0}, b = {(void **)to, *n, 0};
        for (struct graph_node *node = g->first; node; node = node->next) {
            for (size_t i = 0; i < node->n_after; i++) {
                if (data && a.n < *n) memset(&data[a.n], 0, sizeof data[a.n]);
                say(&a, node->after[i]);
                say(&b, node);
            }
        }
        size_t both;
        said(&b, &both);
        said(&a, n);
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *n) {
    return impl_cuGraphGetEdges_v2(graph, from, to, NULL, n);
}

/* `dependent`: those that depend on it. */
static int neighbours(CUgraphNode handle, CUgraphNode *to, CUgraphEdgeData *data, size_t *n, bool dependent) {
    struct graph_node *node;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_node_find(handle, &node);
    if (!rc && (!n || (to && !*n))) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) {
        struct answer a = {(void **)to, *n, 0};
        for (size_t i = 0; !dependent && i < node->n_after; i++) say(&a, node->after[i]);
        for (struct graph_node *other = dependent ? node->graph->first : NULL; other; other = other->next)
            for (size_t i = 0; i < other->n_after; i++)
                if (other->after[i] == node) say(&a, other);
        said(&a, n);
        if (data) memset(data, 0, *n * sizeof *data);
    }
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *to, size_t *n) { return neighbours(node, to, NULL, n, false); }
CUresult impl_cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *to, CUgraphEdgeData *data, size_t *n) {
    return neighbours(node, to, data, n, false);
}
CUresult impl_cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *to, size_t *n) { return neighbours(node, to, NULL, n, true); }
CUresult impl_cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *to, CUgraphEdgeData *data, size_t *n) {
    return neighbours(node, to, data, n, true);
}

CUresult impl_cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type) {
    struct graph_node *node;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_node_find(handle, &node);
    if (!rc && !type) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *type = node->work.type;
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode handle, CUgraph clone) {
    struct graph_node *node, *found = NULL;
    struct shim_graph *g;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_node_find(handle, &node);
    if (!rc) rc = graph_find(clone, &g);
    if (!rc) found = graph_numbered(g, node->number);
    if (!rc && (!out || !found)) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *out = (CUgraphNode)found;
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

/* ---- numbers ---- */

CUresult impl_cuGraphNodeGetContainingGraph(CUgraphNode handle, CUgraph *graph) {
    struct graph_node *node;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_node_find(handle, &node);
    if (!rc && !graph) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *graph = (CUgraph)node->graph;
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphNodeGetLocalId(CUgraphNode handle, unsigned int *id) {
    struct graph_node *node;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_node_find(handle, &node);
    if (!rc && !id) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *id = node->number;
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphNodeGetToolsId(CUgraphNode handle, unsigned long long *id) {
    struct graph_node *node;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_node_find(handle, &node);
    if (!rc && !id) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *id = node->object.id;
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuGraphGetId(CUgraph handle, unsigned int *id) {
    struct shim_graph *g;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_find(handle, &g);
    if (!rc && !id) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *id = (unsigned)g->object.id;
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

static const char *name_of(CUgraphNodeType type) {
    switch ((int)type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY: return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET: return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST: return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH: return "GRAPH";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return "WAIT_EVENT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return "CONDITIONAL";
    default: return "EMPTY";
    }
}

CUresult impl_cuGraphDebugDotPrint(CUgraph handle, const char *path, unsigned int flags) {
    struct shim_graph *g;
    (void)flags;
    pthread_mutex_lock(&graph_lock);
    int rc = graph_find(handle, &g);
    FILE *file = !rc && path ? fopen(path, "w") : NULL;
    if (!rc && !file) rc = CUDA_ERROR_OPERATING_SYSTEM;
    if (!rc) {
        fprintf(file, "digraph dot {\n");
        for (struct graph_node *node = g->first; node; node = node->next) {
            fprintf(file, "    \"node_%llu\" [label=\"%s\"];\n", (unsigned long long)node->object.id, name_of(node->work.type));
            for (size_t i = 0; i < node->n_after; i++)
                fprintf(file, "    \"node_%llu\" -> \"node_%llu\";\n", (unsigned long long)node->after[i]->object.id,
                        (unsigned long long)node->object.id);
        }
        fprintf(file, "}\n");
    }
    if (file && fclose(file)) rc = CUDA_ERROR_OPERATING_SYSTEM;
    pthread_mutex_unlock(&graph_lock);
    return rc;
}
