// Executable graphs that are changed after they were instantiated; the graphs themselves stay as they are.
#include "graph.h"
#include <atomic>

CASE(whole, "cuGraphExecUpdate") {
    CUdeviceptr memory = allocate(64);
    CUgraph graph = make_graph(), same_shape = make_graph(), other_shape = make_graph();
    add_fill(graph, memory, 1);
    add_fill(same_shape, memory, 2);
    add_fill(other_shape, memory, 3, {add_empty(other_shape)});
    CUgraphExec exec = instantiate(graph);
    CUgraphExecUpdateResultInfo info = garbage<CUgraphExecUpdateResultInfo>();
    CHECK(cuGraphExecUpdate(exec, same_shape, &info));
    EXPECT(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    launch_and_wait(exec);
    EXPECT(holds(memory, 2));
    REFUSED(cuGraphExecUpdate(exec, other_shape, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    if (!conformance::effects_only) EXPECT(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    REFUSED(cuGraphExecUpdate(nullptr, same_shape, &info), CUDA_ERROR_INVALID_VALUE);
}

CASE(kernel_node, "cuGraphExecKernelNodeSetParams") {
    CUdeviceptr out = allocate(64);
    unsigned value = 10;
    void *arguments[] = {&out, &value};
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = kernel(load(), "store");
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = 16, params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    CUgraph graph = make_graph();
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &params));
    CUgraphExec exec = instantiate(graph);
    value = 20;
    CHECK(cuGraphExecKernelNodeSetParams(exec, node, &params));
    launch_and_wait(exec);
    EXPECT(download<unsigned>(out, 16) == counting<unsigned>(16, 20));
    REFUSED(cuGraphExecKernelNodeSetParams(exec, node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphExecKernelNodeSetParams(nullptr, node, &params), CUDA_ERROR_INVALID_VALUE);
}

CASE(copy_node, "cuGraphExecMemcpyNodeSetParams") {
    CUdeviceptr from = upload(filled(16, 3u)), other = upload(filled(16, 4u)), to = allocate(64);
    CUDA_MEMCPY3D copy = copy_of(to, from, 64);
    CUgraph graph = make_graph();
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, primary));
    CUgraphExec exec = instantiate(graph);
    copy.srcDevice = other;
    CHECK(cuGraphExecMemcpyNodeSetParams(exec, node, &copy, primary));
    launch_and_wait(exec);
    EXPECT(holds(to, 4));
    REFUSED(cuGraphExecMemcpyNodeSetParams(exec, node, nullptr, primary), CUDA_ERROR_INVALID_VALUE);
}

CASE(fill_node, "cuGraphExecMemsetNodeSetParams") {
    CUdeviceptr memory = allocate(64);
    CUgraph graph = make_graph();
    CUgraphNode node = add_fill(graph, memory, 3);
    CUgraphExec exec = instantiate(graph);
    CUDA_MEMSET_NODE_PARAMS fill = fill_of(memory, 4);
    CHECK(cuGraphExecMemsetNodeSetParams(exec, node, &fill, primary));
    launch_and_wait(exec);
    EXPECT(holds(memory, 4));
    REFUSED(cuGraphExecMemsetNodeSetParams(exec, node, nullptr, primary), CUDA_ERROR_INVALID_VALUE);
    fill.elementSize = 3;
    REFUSED(cuGraphExecMemsetNodeSetParams(exec, node, &fill, primary), CUDA_ERROR_INVALID_VALUE);
}

CASE(node_of_any_kind, "cuGraphExecNodeSetParams") {
    CUdeviceptr memory = allocate(64);
    CUgraph graph = make_graph();
    CUgraphNode node = add_fill(graph, memory, 3);
    CUgraphExec exec = instantiate(graph);
    CUgraphNodeParams params = {};
    params.type = CU_GRAPH_NODE_TYPE_MEMSET;
    params.memset.dst = memory, params.memset.value = 4, params.memset.elementSize = 4, params.memset.width = 16, params.memset.height = 1;
    params.memset.ctx = primary;
    CHECK(cuGraphExecNodeSetParams(exec, node, &params));
    launch_and_wait(exec);
    EXPECT(holds(memory, 4));
    REFUSED(cuGraphExecNodeSetParams(exec, node, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(host_node, "cuGraphExecHostNodeSetParams") {
    std::atomic<int> number{0};
    CUDA_HOST_NODE_PARAMS params = {};
    params.fn = [](void *to) { ++*static_cast<std::atomic<int> *>(to); }, params.userData = &number;
    CUgraph graph = make_graph();
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddHostNode(&node, graph, nullptr, 0, &params));
    CUgraphExec exec = instantiate(graph);
    params.fn = [](void *to) { *static_cast<std::atomic<int> *>(to) += 10; };
    CHECK(cuGraphExecHostNodeSetParams(exec, node, &params));
    launch_and_wait(exec);
    EXPECT(number == 10);
    REFUSED(cuGraphExecHostNodeSetParams(exec, node, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(child_node, "cuGraphExecChildGraphNodeSetParams") {
    CUdeviceptr memory = allocate(64);
    CUgraph graph = make_graph(), child = make_graph(), other = make_graph();
    add_fill(child, memory, 3);
    add_fill(other, memory, 4);
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
    CUgraphExec exec = instantiate(graph);
    CHECK(cuGraphExecChildGraphNodeSetParams(exec, node, other));
    launch_and_wait(exec);
    EXPECT(holds(memory, 4));
    REFUSED(cuGraphExecChildGraphNodeSetParams(exec, node, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(event_nodes, "cuGraphExecEventRecordNodeSetEvent") {
    CUevent first = make_event(), second = make_event();
    CUgraph graph = make_graph();
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddEventRecordNode(&node, graph, nullptr, 0, first));
    CUgraphExec exec = instantiate(graph);
    CHECK(cuGraphExecEventRecordNodeSetEvent(exec, node, second));
    launch_and_wait(exec);
    float ms = garbage<float>();
    CHECK(cuEventElapsedTime(&ms, second, second)); // recorded, and the first was not
    EXPECT(cuEventElapsedTime(&ms, first, first) == CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuGraphExecEventRecordNodeSetEvent(nullptr, node, second), CUDA_ERROR_INVALID_VALUE);
}

CASE(event_wait_node, "cuGraphExecEventWaitNodeSetEvent") {
    CUdeviceptr word = upload(filled(2, 0u));
    CHECK(cuCtxSynchronize());
    CUevent never = make_event(), late = make_event();
    CUstream stream = make_stream(), behind = make_stream();
    CHECK(cuStreamWaitValue32(behind, word, 1, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(cuEventRecord(late, behind));
    CUgraph graph = make_graph();
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddEventWaitNode(&node, graph, nullptr, 0, never));
    CUgraphExec exec = instantiate(graph);
    CHECK(cuGraphExecEventWaitNodeSetEvent(exec, node, late));
    CHECK(cuGraphLaunch(exec, stream));
    EXPECT(stays_behind(stream, make_stream()));
    CHECK(cuStreamWriteValue32(make_stream(), word, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    EVENTUALLY(cuStreamQuery(stream) == CUDA_SUCCESS);
    REFUSED(cuGraphExecEventWaitNodeSetEvent(nullptr, node, late), CUDA_ERROR_INVALID_VALUE);
}

CASE(enabled, "cuGraphNodeSetEnabled", "cuGraphNodeGetEnabled") {
    CUdeviceptr memory = allocate(64);
    CHECK(cuMemsetD8(memory, 0, 64));
    CUgraph graph = make_graph();
    CUgraphNode node = add_fill(graph, memory, 3);
    CUgraphExec exec = instantiate(graph);
    unsigned on = garbage<unsigned>();
    CHECK(cuGraphNodeGetEnabled(exec, node, &on));
    EXPECT(on == 1);
    CHECK(cuGraphNodeSetEnabled(exec, node, 0));
    CHECK(cuGraphNodeGetEnabled(exec, node, &on));
    EXPECT(on == 0);
    launch_and_wait(exec);
    EXPECT(holds(memory, 0));
    CHECK(cuGraphNodeSetEnabled(exec, node, 1));
    launch_and_wait(exec);
    EXPECT(holds(memory, 3));
    REFUSED(cuGraphNodeGetEnabled(exec, node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphNodeSetEnabled(nullptr, node, 1), CUDA_ERROR_INVALID_VALUE);
}
