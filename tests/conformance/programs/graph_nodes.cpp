// The kinds of nodes: each is added, told back, changed in its graph, and runs.
#include "graph.h"
#include <atomic>

static CUDA_KERNEL_NODE_PARAMS store_of(CUfunction store, void **arguments) {
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = store;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = 16, params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    return params;
}

CASE(kernel_node, "cuGraphAddKernelNode", "cuGraphKernelNodeGetParams", "cuGraphKernelNodeSetParams") {
    CUfunction store = kernel(load(), "store");
    CUdeviceptr out = allocate(64);
    unsigned value = 10;
    void *arguments[] = {&out, &value};
    CUDA_KERNEL_NODE_PARAMS params = store_of(store, arguments), told = garbage<CUDA_KERNEL_NODE_PARAMS>();
    CUgraph graph = make_graph();
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &params));
    value = 99; // the argument was copied
    run(graph);
    EXPECT(download<unsigned>(out, 16) == counting<unsigned>(16, 10));
    CHECK(cuGraphKernelNodeGetParams(node, &told));
    EXPECT(told.func == store && told.blockDimX == 16 && told.gridDimX == 1 && *static_cast<unsigned *>(told.kernelParams[1]) == 10);
    CHECK(cuGraphKernelNodeSetParams(node, &params));
    run(graph);
    EXPECT(download<unsigned>(out, 16) == counting<unsigned>(16, 99));
    REFUSED(cuGraphKernelNodeGetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphKernelNodeSetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    params.gridDimX = 0;
    REFUSED(cuGraphAddKernelNode(&node, graph, nullptr, 0, &params), CUDA_ERROR_INVALID_VALUE);
}

CASE(kernel_attributes, "cuGraphKernelNodeSetAttribute", "cuGraphKernelNodeGetAttribute", "cuGraphKernelNodeCopyAttributes") {
    CUfunction store = kernel(load(), "store");
    CUdeviceptr out = allocate(64);
    unsigned number = 10;
    void *arguments[] = {&out, &number};
    CUDA_KERNEL_NODE_PARAMS params = store_of(store, arguments);
    CUgraph graph = make_graph();
    CUgraphNode one = garbage<CUgraphNode>(), two = garbage<CUgraphNode>();
    CHECK(cuGraphAddKernelNode(&one, graph, nullptr, 0, &params));
    CHECK(cuGraphAddKernelNode(&two, graph, nullptr, 0, &params));
    CUkernelNodeAttrValue value = {};
    value.cooperative = 1;
    CHECK(cuGraphKernelNodeSetAttribute(one, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value));
    value = garbage<CUkernelNodeAttrValue>();
    CHECK(cuGraphKernelNodeGetAttribute(one, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value));
    EXPECT(value.cooperative == 1);
    CHECK(cuGraphKernelNodeGetAttribute(two, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value));
    EXPECT(value.cooperative == 0);
    CHECK(cuGraphKernelNodeCopyAttributes(two, one)); // to the first from the second
    CHECK(cuGraphKernelNodeGetAttribute(two, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value));
    EXPECT(value.cooperative == 1);
    REFUSED(cuGraphKernelNodeCopyAttributes(two, add_empty(graph)), CUDA_ERROR_INVALID_VALUE);
    UNCHECKED_BY_THE_DRIVER(cuGraphKernelNodeSetAttribute(one, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, nullptr), CUDA_ERROR_INVALID_VALUE);
    UNCHECKED_BY_THE_DRIVER(cuGraphKernelNodeGetAttribute(one, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(copy_node, "cuGraphAddMemcpyNode", "cuGraphMemcpyNodeGetParams", "cuGraphMemcpyNodeSetParams") {
    CUdeviceptr from = upload(filled(16, 3u)), other = upload(filled(16, 4u)), to = allocate(64);
    CUDA_MEMCPY3D copy = copy_of(to, from, 64), told = garbage<CUDA_MEMCPY3D>();
    CUgraph graph = make_graph();
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, primary));
    run(graph);
    EXPECT(holds(to, 3));
    CHECK(cuGraphMemcpyNodeGetParams(node, &told));
    EXPECT(told.srcDevice == from && told.dstDevice == to && told.WidthInBytes == 64 && told.Depth == 1);
    copy.srcDevice = other;
    CHECK(cuGraphMemcpyNodeSetParams(node, &copy));
    run(graph);
    EXPECT(holds(to, 4));
    REFUSED(cuGraphAddMemcpyNode(nullptr, graph, nullptr, 0, &copy, primary), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphMemcpyNodeGetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphMemcpyNodeSetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(fill_node, "cuGraphAddMemsetNode", "cuGraphMemsetNodeGetParams", "cuGraphMemsetNodeSetParams") {
    CUdeviceptr memory = allocate(64);
    CUDA_MEMSET_NODE_PARAMS fill = fill_of(memory, 3), told = garbage<CUDA_MEMSET_NODE_PARAMS>();
    CUgraph graph = make_graph();
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, primary));
    run(graph);
    EXPECT(holds(memory, 3));
    CHECK(cuGraphMemsetNodeGetParams(node, &told));
    EXPECT(told.dst == memory && told.value == 3 && told.elementSize == 4 && told.width == 16 && told.height == 1);
    fill.value = 4;
    CHECK(cuGraphMemsetNodeSetParams(node, &fill));
    run(graph);
    EXPECT(holds(memory, 4));
    REFUSED(cuGraphMemsetNodeGetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphMemsetNodeSetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    fill.elementSize = 3;
    REFUSED(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, primary), CUDA_ERROR_INVALID_VALUE);
}

static void CUDA_CB add_one(void *number) { ++*static_cast<std::atomic<int> *>(number); }
static void CUDA_CB add_ten(void *number) { *static_cast<std::atomic<int> *>(number) += 10; }

CASE(host_node, "cuGraphAddHostNode", "cuGraphHostNodeGetParams", "cuGraphHostNodeSetParams") {
    std::atomic<int> number{0};
    CUDA_HOST_NODE_PARAMS params = {}, told = garbage<CUDA_HOST_NODE_PARAMS>();
    params.fn = add_one, params.userData = &number;
    CUgraph graph = make_graph();
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddHostNode(&node, graph, nullptr, 0, &params));
    run(graph);
    EXPECT(number == 1);
    CHECK(cuGraphHostNodeGetParams(node, &told));
    EXPECT(told.fn == add_one && told.userData == &number);
    params.fn = add_ten;
    CHECK(cuGraphHostNodeSetParams(node, &params));
    run(graph);
    EXPECT(number == 11);
    params.fn = nullptr;
    REFUSED(cuGraphAddHostNode(&node, graph, nullptr, 0, &params), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphHostNodeGetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphHostNodeSetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(child_node, "cuGraphAddChildGraphNode", "cuGraphChildGraphNodeGetGraph") {
    CUdeviceptr memory = allocate(64);
    CUgraph graph = make_graph(), child = make_graph(), embedded = garbage<CUgraph>();
    add_fill(child, memory, 3);
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
    run(graph);
    EXPECT(holds(memory, 3));
    CHECK(cuGraphChildGraphNodeGetGraph(node, &embedded)); // its copy, not the child
    size_t count = garbage<size_t>();
    CHECK(cuGraphGetNodes(embedded, nullptr, &count));
    EXPECT(embedded != child && count == 1);
    REFUSED(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphChildGraphNodeGetGraph(node, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(event_record_node, "cuGraphAddEventRecordNode", "cuGraphEventRecordNodeGetEvent", "cuGraphEventRecordNodeSetEvent") {
    CUevent first = make_event(), second = make_event(), told = garbage<CUevent>();
    CUgraph graph = make_graph();
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddEventRecordNode(&node, graph, nullptr, 0, first));
    CHECK(cuGraphEventRecordNodeGetEvent(node, &told));
    EXPECT(told == first);
    run(graph);
    float ms = garbage<float>();
    CHECK(cuEventElapsedTime(&ms, first, first)); // only of events that were recorded
    EXPECT(ms == 0);
    CHECK(cuGraphEventRecordNodeSetEvent(node, second));
    CHECK(cuGraphEventRecordNodeGetEvent(node, &told));
    EXPECT(told == second);
    run(graph);
    CHECK(cuEventElapsedTime(&ms, first, second));
    REFUSED(cuGraphEventRecordNodeGetEvent(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphEventRecordNodeSetEvent(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphAddEventRecordNode(nullptr, graph, nullptr, 0, first), CUDA_ERROR_INVALID_VALUE);
}

CASE(event_wait_node, "cuGraphAddEventWaitNode", "cuGraphEventWaitNodeGetEvent", "cuGraphEventWaitNodeSetEvent") {
    CUevent first = make_event(), second = make_event(), told = garbage<CUevent>();
    CUgraph graph = make_graph();
    CUgraphNode node = garbage<CUgraphNode>(), found = nullptr;
    CHECK(cuGraphAddEventWaitNode(&node, graph, nullptr, 0, first));
    size_t room = 1;
    CHECK(cuGraphGetNodes(graph, &found, &room));
    EXPECT(room == 1 && found == node);
    CHECK(cuGraphEventWaitNodeGetEvent(node, &told));
    EXPECT(told == first);
    CHECK(cuGraphEventWaitNodeSetEvent(node, second));
    CHECK(cuGraphEventWaitNodeGetEvent(node, &told));
    EXPECT(told == second);
    run(graph);
    REFUSED(cuGraphEventWaitNodeGetEvent(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphEventWaitNodeSetEvent(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphAddEventWaitNode(nullptr, graph, nullptr, 0, first), CUDA_ERROR_INVALID_VALUE);
}

CASE(node_of_any_kind, "cuGraphAddNode", "cuGraphNodeSetParams") {
    CUdeviceptr memory = allocate(64);
    CUgraphNodeParams params = {};
    params.type = CU_GRAPH_NODE_TYPE_MEMSET;
    params.memset.dst = memory, params.memset.value = 3, params.memset.elementSize = 4, params.memset.width = 16, params.memset.height = 1;
    params.memset.ctx = primary;
    CUgraph graph = make_graph();
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
    run(graph);
    EXPECT(holds(memory, 3));
    params.memset.value = 4;
    CHECK(cuGraphNodeSetParams(node, &params));
    run(graph);
    EXPECT(holds(memory, 4));
    REFUSED(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphNodeSetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    params.type = CU_GRAPH_NODE_TYPE_HOST; // not what the node is
    REFUSED(cuGraphNodeSetParams(node, &params), CUDA_ERROR_INVALID_VALUE);
}

// A graph that is made of what the nodes of another tell of themselves does the same.
CASE(told_of_any_kind, "cuGraphNodeGetParams") {
    NEEDS_FUNCTION(cuGraphNodeGetParams);
    CUdeviceptr filled_memory = allocate(64), copied = allocate(64), stored = allocate(64);
    CUgraph graph = make_graph(), again = make_graph(), child = make_graph();
    CUgraphNode fill = add_fill(graph, filled_memory, 9), node = garbage<CUgraphNode>(), last = nullptr;
    CUDA_MEMCPY3D copy = copy_of(copied, filled_memory, 64);
    CHECK(cuGraphAddMemcpyNode(&node, graph, &fill, 1, &copy, primary));
    unsigned value = 30;
    void *arguments[] = {&stored, &value};
    CUDA_KERNEL_NODE_PARAMS params = store_of(kernel(load(), "store"), arguments);
    CHECK(cuGraphAddKernelNode(&node, graph, &node, 1, &params));
    static std::atomic<int> called{0};
    CUDA_HOST_NODE_PARAMS host = {};
    host.fn = [](void *times) { called += *static_cast<int *>(times); };
    int times = 5;
    host.userData = &times;
    CHECK(cuGraphAddHostNode(&node, graph, &node, 1, &host));
    CUevent event = make_event();
    CHECK(cuGraphAddEventRecordNode(&node, graph, &node, 1, event));
    CHECK(cuGraphAddEventWaitNode(&node, graph, &node, 1, event));
    CHECK(cuGraphAddEmptyNode(&node, graph, &node, 1));
    CHECK(cuGraphAddChildGraphNode(&node, graph, &node, 1, child));
    CUgraphNode nodes[8];
    size_t n = 8;
    CHECK(cuGraphGetNodes(graph, nodes, &n));
    EXPECT(n == 8);
    for (CUgraphNode each : nodes) { // in the order in which they were added
        CUgraphNodeParams told = garbage<CUgraphNodeParams>();
        CHECK(cuGraphNodeGetParams(each, &told));
        CHECK(cuGraphAddNode(&last, again, last ? &last : nullptr, nullptr, last ? 1 : 0, &told));
    }
    run(again);
    EXPECT(holds(filled_memory, 9) && holds(copied, 9) && called == 5);
    EXPECT(download<unsigned>(stored, 16) == counting<unsigned>(16, 30));
    CHECK(cuEventQuery(event));
    float ms = garbage<float>();
    CHECK(cuEventElapsedTime(&ms, event, event)); // it was recorded
    REFUSED(cuGraphNodeGetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphNodeGetParams(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}
