/* User objects: something of the program's that graphs keep alive, counted. */
#include <stdlib.h>

#include "gv_impl.h"
#include "objects/graph/graph.h"

struct user_object {
    struct object object;
    unsigned references;
    CUhostFn destroy;
    void *data;
    struct user_object *next; /* of those whose destructor is due */
};

_Static_assert(sizeof(struct user_object) <= 64, "a user object fits its slot");

/* A graph's references to one object. */
struct graph_keeps {
    struct graph_keeps *next;
    struct user_object *object;
    unsigned count;
};

static struct user_object *due; /* under graph_lock */

/* graph_lock held. */
static void release(struct user_object *u, unsigned count) {
    u->references -= count;
    if (u->references || !object_retire(u)) return;
    u->next = due;
    due = u;
}

/* Calls the destructors of what nobody keeps any more; graph_lock is not held. */
static void end(void) {
    for (;;) {
        pthread_mutex_lock(&graph_lock);
        struct user_object *u = due;
        if (u) due = u->next;
        pthread_mutex_unlock(&graph_lock);
        if (!u) return;
        u->destroy(u->data);
        object_free(u);
    }
}

/* ---- graphs ---- */

static void graph_ends(struct shim_graph *g) {
    while (g->keeps) {
        struct graph_keeps *k = g->keeps;
        g->keeps = k->next;
        release(k->object, k->count);
        free(k);
    }
}

static int keep(struct shim_graph *g, struct user_object *u, unsigned count) {
    struct graph_keeps *k = g->keeps;
    while (k && k->object != u) k = k->next;
    if (!k) {
        k = calloc(1, sizeof *k);
        if (!k) return CUDA_ERROR_OUT_OF_MEMORY;
        k->object = u;
        k->next = g->keeps;
        g->keeps = k;
    }
    k->count += count;
    return 0;
}

/* A copy, one that can be launched included, keeps the same objects. */
static int graph_is_copied(struct shim_graph *to, const struct shim_graph *from) {
    for (const struct graph_keeps *k = from->keeps; k; k = k->next) {
        if (keep(to, k->object, 1)) return CUDA_ERROR_OUT_OF_MEMORY;
        k->object->references++;
    }
    return 0;
}

__attribute__((constructor)) static void offer(void) { graph_keepers(graph_ends, graph_is_copied, end); }

/* ---- calls ---- */

static int find(CUuserObject handle, unsigned count, struct user_object **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(OBJECT_USER, handle);
    return *out && count && count <= INT32_MAX ? 0 : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuUserObjectCreate(CUuserObject *out, void *data, CUhostFn destroy, unsigned int references, unsigned int flags) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !destroy || !references || references > INT32_MAX || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
    struct user_object *u = object_new(OBJECT_USER);
    if (!u) return CUDA_ERROR_OUT_OF_MEMORY;
    u->references = references;
    u->destroy = destroy;
    u->data = data;
    object_publish(u);
    *out = (CUuserObject)u;
    return CUDA_SUCCESS;
}

CUresult impl_cuUserObjectRetain(CUuserObject handle, unsigned int count) {
    struct user_object *u;
    pthread_mutex_lock(&graph_lock);
    int rc = find(handle, count, &u);
    if (!rc) u->references += count;
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

CUresult impl_cuUserObjectRelease(CUuserObject handle, unsigned int count) {
    struct user_object *u;
    pthread_mutex_lock(&graph_lock);
    int rc = find(handle, count, &u);
    if (!rc && count > u->references) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) release(u, count);
    pthread_mutex_unlock(&graph_lock);
    end();
    return rc;
}

CUresult impl_cuGraphRetainUserObject(CUgraph graph, CUuserObject handle, unsigned int count, unsigned int flags) {
    struct shim_graph *g;
    struct user_object *u;
    pthread_mutex_lock(&graph_lock);
    int rc = find(handle, count, &u);
    if (!rc) rc = graph_find(graph, &g);
    if (!rc && flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) rc = keep(g, u, count);
    if (!rc && !(flags & CU_GRAPH_USER_OBJECT_MOVE)) u->references += count; /* else they were the caller's */
    pthread_mutex_unlock(&graph_lock);
    return rc;
}

/* graph_lock held. */
static int release_of_graph(struct shim_graph *g, struct user_object *u, unsigned count) {
    struct graph_keeps **at = &g->keeps;
    while (*at && (*at)->object != u) at = &(*at)->next;
    struct graph_keeps *k = *at;
    if (!k || k->count < count) return CUDA_ERROR_INVALID_VALUE;
    k->count -= count;
    if (!k->count) {
        *at = k->next;
        free(k);
    }
    release(u, count);
    return 0;
}

CUresult impl_cuGraphReleaseUserObject(CUgraph graph, CUuserObject handle, unsigned int count) {
    struct shim_graph *g;
    struct user_object *u;
    pthread_mutex_lock(&graph_lock);
    int rc = find(handle, count, &u);
    if (!rc) rc = graph_find(graph, &g);
    if (!rc) rc = release_of_graph(g, u, count);
    pthread_mutex_unlock(&graph_lock);
    end();
    return rc;
}
