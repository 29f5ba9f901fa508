/* Graphs: what was captured on streams, or put together node by node. They live in the client library alone: an instantiated graph is a list of calls, which each launch
 * makes anew on its stream. So a launch waits for nothing, host memory is read when it is launched, and a session that moves or parks knows nothing of graphs.
 *
 * graph.c      graphs and nodes, and what is asked of them
 * nodes.c      nodes that the program adds and changes
 * node_params.c   what is asked of them
 * capture.c    streams that capture
 * memory_nodes.c, batch_nodes.c   nodes that allocate and free, and those of stream memory operations
 * user_object.c   what graphs keep for the program
 * condition.c  conditional nodes, and the conditions that kernels set
 * execute.c    graphs that can be launched */
#ifndef SHIM_GRAPH_H
#define SHIM_GRAPH_H

#include "objects/memory/copy_side.h"
#include "objects/objects.h"

struct graph_kernel {
    CUfunction function;
    unsigned grid[3], block[3], shared;
    bool cooperative;
    uint32_t cluster, preferred_cluster; /* wire/cluster_dims.h */
    char *params;                        /* packed */
    size_t params_size;
    void **pointers; /* to each of them, for the program that asks; NULL: it has not */
    int priority;    /* as the program set it; one stream carries out all */
};

struct graph_copy {
    struct copy_side dst, src;
    struct copy_box box;
};

struct graph_fill {
    uint64_t dst, pitch, width, height;
    unsigned element;
    uint32_t value;
};

struct graph_host {
    CUhostFn fn;
    void *data;
};

/* Memory that a node allocates. Its address is known from the beginning, so it has its memory as long as a node or the program has it; between a free and the next launch it is the graphs' alone. */
struct graph_memory {
    unsigned holders; /* nodes, of graphs and of what can be launched */
    bool live;        /* allocated by a launch, and not freed since */
    bool used;        /* a launch has allocated it once */
    CUdeviceptr address;
    size_t size;
    CUdevice device;
    void (*release)(struct graph_memory *m); /* with graph_lock held: nobody holds it any more */
    struct graph_memory *next;
};

struct graph_batch {
    CUcontext context;
    unsigned count, flags;
    CUstreamBatchMemOpParams *operations; /* its own */
};

/* A value that kernels set, in device memory. */
struct graph_condition {
    unsigned holders; /* graphs and nodes */
    bool taken;       /* a node asks for it */
    bool starts;      /* as `initial`, whenever its graph does */
    bool begun;       /* its graph did, once: until then it is 0 */
    uint32_t initial;
    CUdeviceptr address;
    void (*release)(struct graph_condition *c); /* with graph_lock held: nobody holds it any more */
    struct graph_condition *next;
};

struct graph_conditional {
    struct graph_condition *condition;
    CUgraphConditionalNodeType kind;
    unsigned n;
    struct shim_graph **bodies; /* of the node's own */
};

/* What a node does: a union by type. EVENT_RECORD and WAIT_EVENT have the event. */
struct graph_work {
    CUgraphNodeType type;
    bool disabled; /* of what can be launched */
    union {
        struct graph_kernel kernel;
        struct graph_copy copy;
        struct graph_fill fill;
        struct graph_host host;
        struct graph_memory *memory; /* MEM_ALLOC */
        CUdeviceptr freed;           /* MEM_FREE */
        struct graph_batch batch;
        CUevent event;
        struct shim_graph *child; /* of the node's own */
        struct graph_conditional conditional;
    };
};

struct graph_node {
    struct object object;
    struct shim_graph *graph;
    struct graph_node *next, *previous; /* in the graph, in the order in which they were added */
    struct graph_node **after;          /* what it depends on */
    size_t n_after;
    unsigned number;         /* in its graph, and the same in copies of it */
    struct graph_node *copy; /* while graphs are copied or compared: the other one's */
    size_t waiting, place;   /* while an order is sought: nodes before it that are not placed yet; its place in the order */
    struct graph_work work;
};

struct shim_graph {
    struct object object;
    struct graph_node *first, *last;
    size_t n;
    unsigned next;             /* number of a node */
    struct graph_keeps *keeps; /* user objects */
    bool owned;                /* by a node, or by what can be launched: the program does not destroy it */
    bool body;                 /* of a conditional node, which the program fills */
    uint64_t origin;           /* its id, or that of the graph that it was copied from, where one copy of that lies in the same graph at most */
    struct graph_condition **conditions;
    size_t n_conditions;
    /* In what can be launched: the nodes' calls in their order, those of children in the place of their nodes. */
    const struct graph_work **calls;
    size_t n_calls, room;
};

/* Guards graphs, nodes and captures. */
extern pthread_mutex_t graph_lock;

/* All with graph_lock held. NULL: out of memory. graph_add takes the work over, also when it fails. */
struct shim_graph *graph_new(void);
void graph_free(struct shim_graph *g);
struct graph_node *graph_add(struct shim_graph *g, const struct graph_work *work, struct graph_node *const *after, size_t n);
struct shim_graph *graph_copied(const struct shim_graph *g);
/* Whether it allocates or frees: such a graph is neither copied nor a child, and its nodes stay. */
bool graph_has_memory(const struct shim_graph *g);
/* Whether it has conditional nodes: such a graph is neither copied nor a child. */
bool graph_has_conditions(const struct shim_graph *g);
static inline bool graph_is_memory(const struct graph_work *w) {
    return w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || w->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
}
/* The graph holds the condition from now on, 0 or CUDA_ERROR_OUT_OF_MEMORY; a holder lets it go. */
int graph_condition_hold(struct shim_graph *g, struct graph_condition *c);
void graph_condition_drop(struct graph_condition *c);
/* Gives the node that many graphs, empty ones or copies of another's. 0 or CUDA_ERROR_OUT_OF_MEMORY. */
int graph_conditional_bodies(struct graph_conditional *c, const struct graph_conditional *from);
/* Takes a node out, and what depends on it. */
void graph_remove(struct graph_node *node);
/* Deep: 0 or CUDA_ERROR_OUT_OF_MEMORY. */
int graph_work_copy(struct graph_work *out, const struct graph_work *from);
void graph_work_free(struct graph_work *work);
/* A kernel's attributes stay the node's when it is given other parameters. */
void graph_kernel_attributes_copy(struct graph_kernel *to, const struct graph_kernel *from);
/* The nodes in an order in which each comes after those it depends on; NULL: out of memory, or (*rc CUDA_ERROR_INVALID_VALUE) they depend on each other in a circle. */
struct graph_node **graph_order(struct shim_graph *g, int *rc);
/* The live graph or node behind a handle. 0 or a CUresult. */
int graph_find(CUgraph handle, struct shim_graph **out);
int graph_node_find(CUgraphNode handle, struct graph_node **out);
/* The node of a number; NULL: there is none. */
struct graph_node *graph_numbered(const struct shim_graph *g, unsigned number);

/* ---- nodes.c: descriptions in the driver's structures, as work. 0 or a CUresult; the work is then the caller's ---- */
int graph_describe_kernel(const CUDA_KERNEL_NODE_PARAMS *p, struct graph_work *out);
int graph_describe_copy(const CUDA_MEMCPY3D *p, CUcontext context, struct graph_work *out);
int graph_describe_fill(const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context, struct graph_work *out);
int graph_describe_host(const CUDA_HOST_NODE_PARAMS *p, struct graph_work *out);
int graph_describe_event(CUgraphNodeType type, CUevent event, struct graph_work *out);
int graph_describe_child(CUgraph child, struct graph_work *out);        /* graph_lock held */
int graph_describe(const CUgraphNodeParams *p, struct graph_work *out); /* graph_lock held */

/* The work of a node of that type in a graph or in what can be launched; graph_lock held. 0 or a CUresult. */
int graph_node_work(CUgraphNode handle, CUgraphNodeType type, struct graph_work **out);
/* Adds a node with this work, which is taken over. graph_lock held. 0 or a CUresult. */
int graph_add_described(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, const struct graph_work *work);
/* The same without the lock; `rc`: what describing it gave. */
int graph_add_node(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, int rc, const struct graph_work *work);

/* ---- memory_nodes.c ---- */
int graph_describe_memory(CUDA_MEM_ALLOC_NODE_PARAMS *p, struct graph_work *out);
int graph_describe_free(CUdeviceptr address, struct graph_work *out); /* graph_lock held */
/* An allocation on a stream that captures, and a free. */
int graph_capture_allocation(struct shim_stream *s, size_t size, CUdeviceptr *out);
int graph_capture_free(struct shim_stream *s, CUdeviceptr address);
/* What a launch does: whether it may allocate (`again`: also what is still allocated), and allocating and freeing itself. */
int graph_may_allocate(const struct graph_memory *m, bool again);
void graph_allocate(struct graph_memory *m);
int graph_free_memory(CUdeviceptr address);

/* ---- condition.c: 0 or a CUresult ---- */
/* Adds the node, without the lock, and tells the graphs that it chooses from. */
int graph_add_conditional(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, CUDA_CONDITIONAL_NODE_PARAMS *p);
/* What a launch does, without the lock: gives the graph's conditions their first values; runs what a node's condition chooses. */
int graph_conditions_start(struct shim_stream *s, const struct shim_graph *g);
int graph_conditional_run(CUstream stream, const struct graph_conditional *c, int (*run)(CUstream stream, const struct shim_graph *g));

/* ---- memory_operations.c ---- */
int graph_describe_batch(const CUDA_BATCH_MEM_OP_NODE_PARAMS *p, struct graph_work *out);

/* ---- user_object.c ---- */
/* Registers what happens to a graph's user objects when it ends or is copied, with graph_lock held, and afterwards, without it. To be set at start. */
void graph_keepers(void (*end)(struct shim_graph *g), int (*copy)(struct shim_graph *to, const struct shim_graph *from), void (*settled)(void));
/* A graph may have ended: user objects that nobody keeps any more do, too. graph_lock is not held. */
void graph_settled(void);

/* ---- launch.c, memory/copy_calls.c: the same for what they know ---- */
int launch_describe(struct shim_context *c, const CUDA_KERNEL_NODE_PARAMS *p, struct graph_kernel *out);
int copy_describe(const CUDA_MEMCPY3D *p, struct graph_copy *out);

/* ---- capture.c ---- */

struct capture;

/* What a capturing stream is given becomes a node, with a copy of the work: 0 or a CUresult. */
int capture_work(struct shim_stream *s, const struct graph_work *work);
/* A call that a capturing stream does not allow: the capture is worth nothing any more. Returns the call's error. */
int capture_forbidden(struct shim_stream *s);
/* The same for a call on a context, or a green one, of which streams may capture; 0: none does. */
int capture_forbidden_in(const struct shim_context *bound);
/* Of an event that is recorded on a capturing stream, or waited for. */
int capture_record(struct shim_stream *s, struct shim_event *e);
int capture_wait(struct shim_stream *s, struct shim_event *e);
/* A context is to wait for an event that was recorded on a capturing stream, which breaks the capture. Returns the call's error. */
int capture_event_forbidden(struct shim_event *e);
/* A captured event is queried or waited for, which breaks the capture, if it is not over. Returns the call's error. */
int capture_event_asked(struct shim_event *e);
/* The capture's part of an event ends: it is recorded anew, or destroyed. */
void capture_forget_event(struct shim_event *e);
/* A stream that captures is destroyed. */
void capture_forget_stream(struct shim_stream *s);
/* A context ends, with all that its streams capture. */
void capture_context_gone(struct shim_context *c);
/* 0, or the error of a call that may have the device wait while a thread captures. */
int capture_unsafe(void);

static inline bool stream_captures(const struct shim_stream *s) { return atomic_load_explicit(&s->capture, memory_order_relaxed) != NULL; }

#endif
