// Graphs: their nodes and edges, what is made of them, and launches.
#include "graph.h"
#include <unistd.h>

extern "C" CUresult cuGraphInstantiate_v2(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t); // CUDA 11's form

static size_t count_of(CUgraph graph) {
    size_t count = garbage<size_t>();
    CHECK(cuGraphGetNodes(graph, nullptr, &count));
    return count;
}

static size_t edges_of(CUgraph graph) {
    size_t count = garbage<size_t>();
    CHECK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
    return count;
}

CASE(create_and_destroy, "cuGraphCreate", "cuGraphDestroy", "cuGraphAddEmptyNode", "cuGraphGetNodes") {
    CUgraph graph = garbage<CUgraph>(), other = garbage<CUgraph>();
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphCreate(&other, 0));
    EXPECT(graph != other && count_of(graph) == 0);
    CUgraphNode node = garbage<CUgraphNode>(), found[2] = {};
    CHECK(cuGraphAddEmptyNode(&node, graph, nullptr, 0));
    size_t room = 2;
    CHECK(cuGraphGetNodes(graph, found, &room));
    EXPECT(room == 1 && found[0] == node && found[1] == nullptr && count_of(other) == 0);
    CHECK(cuGraphDestroy(other));
    REFUSED(cuGraphCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphCreate(&other, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphAddEmptyNode(nullptr, graph, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphAddEmptyNode(&node, graph, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphGetNodes(graph, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphDestroy(nullptr), CUDA_ERROR_INVALID_VALUE);
    GONE(cuGraphGetNodes(other, nullptr, &room));
}

CASE(edges, "cuGraphGetEdges", "cuGraphGetRootNodes", "cuGraphNodeGetDependencies", "cuGraphNodeGetDependentNodes") {
    CUgraph graph = make_graph();
    CUgraphNode first = add_empty(graph), second = add_empty(graph, {first}), third = add_empty(graph, {first});
    CUgraphNode from[3] = {}, to[3] = {}, roots[3] = {}, before[2] = {}, after[3] = {};
    size_t count = 3;
    CHECK(cuGraphGetEdges(graph, from, to, nullptr, &count));
    EXPECT(count == 2 && from[0] == first && from[1] == first && to[0] != to[1]);
    EXPECT((to[0] == second || to[0] == third) && (to[1] == second || to[1] == third));
    count = 3;
    CHECK(cuGraphGetRootNodes(graph, roots, &count));
    EXPECT(count == 1 && roots[0] == first);
    count = 2;
    CHECK(cuGraphNodeGetDependencies(third, before, nullptr, &count));
    EXPECT(count == 1 && before[0] == first);
    count = 3;
    CHECK(cuGraphNodeGetDependentNodes(first, after, nullptr, &count));
    EXPECT(count == 2 && after[0] != after[1] && (after[0] == second || after[1] == second));
    REFUSED(cuGraphGetEdges(graph, from, to, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphGetRootNodes(graph, roots, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphNodeGetDependencies(third, before, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphNodeGetDependentNodes(first, after, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(change_edges, "cuGraphAddDependencies", "cuGraphRemoveDependencies", "cuGraphDestroyNode") {
    CUgraph graph = make_graph(), other = make_graph();
    CUgraphNode first = add_empty(graph), second = add_empty(graph), stranger = add_empty(other);
    CHECK(cuGraphAddDependencies(graph, &first, &second, nullptr, 1));
    EXPECT(edges_of(graph) == 1);
    REFUSED(cuGraphAddDependencies(graph, &first, &second, nullptr, 1), CUDA_ERROR_INVALID_VALUE); // there is one
    REFUSED(cuGraphAddDependencies(graph, &first, &stranger, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphRemoveDependencies(graph, &first, &second, nullptr, 1));
    EXPECT(edges_of(graph) == 0);
    REFUSED(cuGraphRemoveDependencies(graph, &first, &second, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphDestroyNode(second));
    EXPECT(count_of(graph) == 1);
    REFUSED(cuGraphDestroyNode(nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(clones, "cuGraphClone", "cuGraphNodeFindInClone") {
    CUdeviceptr memory = allocate(64);
    CUgraph graph = make_graph(), clone = garbage<CUgraph>();
    CUgraphNode node = add_fill(graph, memory, 5), twin = garbage<CUgraphNode>();
    CHECK(cuGraphClone(&clone, graph));
    EXPECT(clone != graph && count_of(clone) == 1);
    CHECK(cuGraphNodeFindInClone(&twin, node, clone));
    EXPECT(twin != node);
    CUgraphNode found = nullptr;
    size_t room = 1;
    CHECK(cuGraphGetNodes(clone, &found, &room));
    EXPECT(found == twin);
    CUDA_MEMSET_NODE_PARAMS fill = fill_of(memory, 6);
    CHECK(cuGraphMemsetNodeSetParams(twin, &fill)); // and the original keeps its own
    run(graph);
    EXPECT(holds(memory, 5));
    run(clone);
    EXPECT(holds(memory, 6));
    REFUSED(cuGraphClone(nullptr, graph), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphNodeFindInClone(nullptr, node, clone), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphNodeFindInClone(&twin, node, make_graph()), CUDA_ERROR_INVALID_VALUE);
}

CASE(what_a_node_is, "cuGraphNodeGetType", "cuGraphNodeGetContainingGraph", "cuGraphNodeGetLocalId", "cuGraphNodeGetToolsId") {
    NEEDS_FUNCTION(cuGraphNodeGetContainingGraph);
    CUgraph graph = make_graph(), told = garbage<CUgraph>();
    CUgraphNode empty = add_empty(graph), fill = add_fill(graph, allocate(64), 1);
    CUgraphNodeType type = garbage<CUgraphNodeType>();
    CHECK(cuGraphNodeGetType(empty, &type));
    EXPECT(type == CU_GRAPH_NODE_TYPE_EMPTY);
    CHECK(cuGraphNodeGetType(fill, &type));
    EXPECT(type == CU_GRAPH_NODE_TYPE_MEMSET);
    CHECK(cuGraphNodeGetContainingGraph(fill, &told));
    EXPECT(told == graph);
    unsigned id1 = garbage<unsigned>(), id2 = garbage<unsigned>();
    CHECK(cuGraphNodeGetLocalId(empty, &id1));
    CHECK(cuGraphNodeGetLocalId(fill, &id2));
    EXPECT(id1 != id2 && id1 != garbage<unsigned>() && id2 != garbage<unsigned>());
    unsigned long long tool1 = garbage<unsigned long long>(), tool2 = garbage<unsigned long long>();
    CHECK(cuGraphNodeGetToolsId(empty, &tool1));
    CHECK(cuGraphNodeGetToolsId(fill, &tool2));
    EXPECT(tool1 != tool2);
    REFUSED(cuGraphNodeGetType(empty, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphNodeGetContainingGraph(empty, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphNodeGetLocalId(empty, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphNodeGetToolsId(empty, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(ids, "cuGraphGetId", "cuGraphExecGetId") {
    NEEDS_FUNCTION(cuGraphGetId);
    CUgraph one = make_graph(), two = make_graph();
    unsigned id1 = garbage<unsigned>(), id2 = garbage<unsigned>(), exec1 = garbage<unsigned>(), exec2 = garbage<unsigned>();
    CHECK(cuGraphGetId(one, &id1));
    CHECK(cuGraphGetId(two, &id2));
    EXPECT(id1 != id2);
    CHECK(cuGraphExecGetId(instantiate(one), &exec1));
    CHECK(cuGraphExecGetId(instantiate(one), &exec2));
    EXPECT(exec1 != exec2);
    REFUSED(cuGraphGetId(one, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphExecGetId(instantiate(one), nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(dot, "cuGraphDebugDotPrint") {
    CUgraph graph = make_graph();
    add_empty(graph, {add_empty(graph)});
    char path[64] = "/tmp/conformance-XXXXXX", text[4096] = {};
    int file = mkstemp(path);
    CUresult result = cuGraphDebugDotPrint(graph, path, 0);
    FILE *written = std::fopen(path, "r");
    size_t length = written ? std::fread(text, 1, sizeof text - 1, written) : 0;
    unlink(path);
    CHECK(result);
    EXPECT(file >= 0 && length > 0 && std::strstr(text, "digraph") && std::strstr(text, "->"));
    REFUSED(cuGraphDebugDotPrint(graph, "/no/such/folder/file", 0), CUDA_ERROR_OPERATING_SYSTEM);
}

CASE(launch, "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphExecGetFlags") {
    CUdeviceptr memory = allocate(64);
    CHECK(cuMemsetD8(memory, 0, 64));
    CUgraph graph = make_graph();
    add_fill(graph, memory, 9);
    CUgraphExec exec = garbage<CUgraphExec>();
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    EXPECT(holds(memory, 0));
    CUstream stream = make_stream();
    CHECK(cuCtxSynchronize());
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(holds(memory, 9));
    cuuint64_t flags = garbage<cuuint64_t>();
    CHECK(cuGraphExecGetFlags(exec, &flags));
    EXPECT_NUMBER(flags, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    REFUSED(cuGraphExecGetFlags(exec, nullptr), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphExecDestroy(exec));
    REFUSED(cuGraphInstantiateWithFlags(nullptr, graph, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphInstantiateWithFlags(&exec, graph, 1 << 20), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphLaunch(nullptr, stream), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphExecDestroy(nullptr), CUDA_ERROR_INVALID_VALUE);
    GONE(cuGraphLaunch(exec, stream));
}

CASE(instantiate_otherwise, "cuGraphInstantiate", "cuGraphInstantiateWithParams") {
    CUdeviceptr memory = allocate(64);
    CUgraph graph = make_graph();
    add_fill(graph, memory, 9);
    CUgraphExec old = garbage<CUgraphExec>(), with_params = garbage<CUgraphExec>();
    CHECK(cuGraphInstantiate_v2(&old, graph, nullptr, nullptr, 0));
    launch_and_wait(old);
    EXPECT(holds(memory, 9));
    CHECK(cuMemsetD8(memory, 0, 64));
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {};
    params.result_out = garbage<CUgraphInstantiateResult>();
    CHECK(cuGraphInstantiateWithParams(&with_params, graph, &params));
    EXPECT(params.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
    launch_and_wait(with_params);
    EXPECT(holds(memory, 9));
    REFUSED(cuGraphInstantiate_v2(nullptr, graph, nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphInstantiateWithParams(&with_params, graph, nullptr), CUDA_ERROR_INVALID_VALUE);
}

HINT_CASE(upload, "cuGraphUpload") {
    CUdeviceptr memory = allocate(64);
    CUgraph graph = make_graph();
    add_fill(graph, memory, 9);
    CUgraphExec exec = instantiate(graph);
    CHECK(cuGraphUpload(exec, make_stream()));
    CHECK(cuCtxSynchronize());
    launch_and_wait(exec);
    EXPECT(holds(memory, 9));
    REFUSED(cuGraphUpload(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}
