// Conditional nodes: kernels set what they ask for, and the graphs that they choose from run, or do not.
#include "graph.h"

// The call: the condition %p0 is %r. The function's declaration has no semicolon, as XLA's.
#define SET_CONDITION                                \
    "{\n"                                            \
    ".param .b64 a; .param .b32 b;\n"                \
    "st.param.b64 [a], %p0; st.param.b32 [b], %r;\n" \
    "call.uni cudaGraphSetConditional, (a, b);\n"    \
    "}\n"                                            \
    "ret;\n}\n"

// set(handle, from): the condition is *from; count_down(handle, word): *word is one less, and so is the condition.
static const char *const SETTERS = R"(
.version 6.4
.target sm_50
.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value)

.visible .entry set(.param .u64 handle, .param .u64 from) {
    .reg .u64 %p<2>;
    .reg .u32 %r;
    ld.param.u64 %p0, [handle];
    ld.param.u64 %p1, [from];
    ld.global.u32 %r, [%p1];
)" SET_CONDITION R"(
.visible .entry count_down(.param .u64 handle, .param .u64 word) {
    .reg .u64 %p<2>;
    .reg .u32 %r;
    ld.param.u64 %p0, [handle];
    ld.param.u64 %p1, [word];
    ld.global.u32 %r, [%p1];
    sub.u32 %r, %r, 1;
    st.global.u32 [%p1], %r;
)" SET_CONDITION;

static bool conditions_can_be_set() {
    CUgraphConditionalHandle handle = garbage<CUgraphConditionalHandle>();
    return cuGraphConditionalHandleCreate(&handle, make_graph(), nullptr, 0, 0) != CUDA_ERROR_NOT_SUPPORTED;
}

static CUgraphConditionalHandle make_handle(CUgraph graph, unsigned first = 0, unsigned flags = 0) {
    CUgraphConditionalHandle handle = garbage<CUgraphConditionalHandle>();
    CHECK(cuGraphConditionalHandleCreate(&handle, graph, primary, first, flags));
    return handle;
}

static CUgraphNodeParams conditional(CUgraphConditionalHandle handle, CUgraphConditionalNodeType type, unsigned size) {
    CUgraphNodeParams params = {};
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = handle, params.conditional.type = type, params.conditional.size = size, params.conditional.ctx = primary;
    return params;
}

static CUresult add(CUgraphNode *node, CUgraph graph, const std::vector<CUgraphNode> &after, CUgraphNodeParams *params) {
    return cuGraphAddNode(node, graph, after.data(), nullptr, after.size(), params);
}

// The graphs that a new node chooses from.
static std::vector<CUgraph> add_conditional(CUgraph graph, const std::vector<CUgraphNode> &after, CUgraphConditionalHandle handle,
                                            CUgraphConditionalNodeType type, unsigned size) {
    CUgraphNodeParams params = conditional(handle, type, size);
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(add(&node, graph, after, &params));
    return std::vector<CUgraph>(params.conditional.phGraph_out, params.conditional.phGraph_out + size);
}

static CUgraphNode add_kernel(CUgraph graph, const std::vector<CUgraphNode> &after, const char *name, CUgraphConditionalHandle handle,
                              CUdeviceptr word) {
    static CUmodule module = nullptr;
    if (!module) CHECK(cuModuleLoadData(&module, SETTERS));
    void *arguments[] = {&handle, &word};
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = kernel(module, name);
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddKernelNode(&node, graph, after.data(), after.size(), &params));
    return node;
}

static void put(CUdeviceptr word, unsigned value) { CHECK(cuMemsetD32(word, value, 1)); }

CASE(if_and_else, "cuGraphConditionalHandleCreate", "cuGraphAddNode") {
    NEEDS(conditions_can_be_set());
    CUdeviceptr word = upload<unsigned>({0}), out = upload(filled(16, 9u));
    CUgraph graph = make_graph();
    CUgraphConditionalHandle handle = make_handle(graph);
    CUgraphNode set = add_kernel(graph, {}, "set", handle, word);
    std::vector<CUgraph> bodies = add_conditional(graph, {set}, handle, CU_GRAPH_COND_TYPE_IF, 2);
    CUgraphNode then = add_fill(bodies[0], out, 1);
    add_fill(bodies[1], out, 2);
    CUgraphExec exec = instantiate(graph);
    for (unsigned value : {0u, 7u, 0u}) {
        put(word, value);
        launch_and_wait(exec);
        EXPECT(holds(out, value ? 1 : 2));
    }
    CUDA_MEMSET_NODE_PARAMS other = fill_of(out, 3); // also what a condition chooses can be given other arguments
    CHECK(cuGraphExecMemsetNodeSetParams(exec, then, &other, primary));
    put(word, 1);
    launch_and_wait(exec);
    EXPECT(holds(out, 3));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
}

CASE(loop, "cuGraphConditionalHandleCreate") {
    NEEDS(conditions_can_be_set());
    CUdeviceptr word = upload<unsigned>({5}), out = upload(filled(16, 1u));
    CUgraph graph = make_graph();
    CUgraphConditionalHandle handle = make_handle(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    CUgraph body = add_conditional(graph, {}, handle, CU_GRAPH_COND_TYPE_WHILE, 1)[0];
    CUgraphNode counted = add_kernel(body, {}, "count_down", handle, word);
    // In each round: out[i] += word of the module, which is 7
    CUfunction add_word = kernel(load(), "add_word");
    void *arguments[] = {&out};
    CUDA_KERNEL_NODE_PARAMS adds = {};
    adds.func = add_word, adds.kernelParams = arguments;
    adds.gridDimX = adds.gridDimY = adds.gridDimZ = adds.blockDimY = adds.blockDimZ = 1, adds.blockDimX = 16;
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddKernelNode(&node, body, &counted, 1, &adds));
    CUgraphExec exec = instantiate(graph);
    launch_and_wait(exec);
    EXPECT(holds(out, 1 + 5 * 7) && download<unsigned>(word, 1)[0] == 0);
    put(word, 2); // the condition begins anew
    launch_and_wait(exec);
    EXPECT(holds(out, 1 + 7 * 7));
}

CASE(switch_in_a_loop, "cuGraphConditionalHandleCreate") {
    NEEDS(conditions_can_be_set());
    CUdeviceptr word = upload<unsigned>({3}), outs[3];
    for (CUdeviceptr &out : outs) out = upload(filled(16, 0u));
    CUgraph graph = make_graph();
    CUgraphConditionalHandle goes_on = make_handle(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    CUgraph body = add_conditional(graph, {}, goes_on, CU_GRAPH_COND_TYPE_WHILE, 1)[0];
    CUgraphConditionalHandle which = make_handle(body);
    CUgraphNode set = add_kernel(body, {}, "set", which, word);
    std::vector<CUgraph> choices = add_conditional(body, {set}, which, CU_GRAPH_COND_TYPE_SWITCH, 3);
    for (unsigned i = 0; i < 3; i++) add_fill(choices[i], outs[i], 10 + i);
    size_t n = garbage<size_t>();
    CHECK(cuGraphGetNodes(body, nullptr, &n));
    EXPECT(n == 2);
    std::vector<CUgraphNode> nodes(n);
    CHECK(cuGraphGetNodes(body, nodes.data(), &n));
    add_kernel(body, nodes, "count_down", goes_on, word);
    CUgraphExec exec = instantiate(graph);
    launch_and_wait(exec); // 3: none of them; 2, 1
    EXPECT(holds(outs[0], 0) && holds(outs[1], 11) && holds(outs[2], 12));
}

CASE(captured_bodies, "cuStreamBeginCaptureToGraph", "cuStreamEndCapture") {
    NEEDS(conditions_can_be_set());
    CUdeviceptr out = upload(filled(16, 0u));
    CUgraph graph = make_graph();
    CUgraph body = add_conditional(graph, {}, make_handle(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT), CU_GRAPH_COND_TYPE_IF, 1)[0];
    CUstream stream = make_stream();
    CHECK(cuStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuMemsetD32Async(out, 4, 16, stream));
    CHECK(cuStreamEndCapture(stream, nullptr)); // the program has the graph
    run(graph);
    EXPECT(holds(out, 4));
}

CASE(conditions_refused, "cuGraphConditionalHandleCreate") {
    NEEDS(conditions_can_be_set());
    CUgraph graph = make_graph(), copy = garbage<CUgraph>();
    CUgraphNode node = garbage<CUgraphNode>();
    CUgraphConditionalHandle handle = make_handle(graph);
    REFUSED(cuGraphConditionalHandleCreate(nullptr, graph, primary, 0, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphConditionalHandleCreate(&handle, graph, primary, 0, 2), CUDA_ERROR_INVALID_VALUE);
    CUgraphNodeParams params = conditional(handle, CU_GRAPH_COND_TYPE_WHILE, 2);
    REFUSED(add(&node, graph, {}, &params), CUDA_ERROR_INVALID_VALUE);
    params = conditional(handle, CU_GRAPH_COND_TYPE_IF, 3);
    REFUSED(add(&node, graph, {}, &params), CUDA_ERROR_INVALID_VALUE);
    params = conditional(handle, CU_GRAPH_COND_TYPE_SWITCH, 0);
    REFUSED(add(&node, graph, {}, &params), CUDA_ERROR_INVALID_VALUE);
    CUgraph body = add_conditional(graph, {}, handle, CU_GRAPH_COND_TYPE_IF, 1)[0];
    params = conditional(handle, CU_GRAPH_COND_TYPE_IF, 1);
    REFUSED(add(&node, graph, {}, &params), CUDA_ERROR_INVALID_VALUE); // another node has it
    REFUSED(cuGraphDestroy(body), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphClone(&copy, graph), CUDA_ERROR_NOT_SUPPORTED);
    CUgraph parent = make_graph();
    REFUSED(cuGraphAddChildGraphNode(&node, parent, nullptr, 0, graph), CUDA_ERROR_INVALID_VALUE);
}
