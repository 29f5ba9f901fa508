// Nodes that allocate, free and write words, and what graphs keep for the program.
#include "graph.h"

static CUDA_MEM_ALLOC_NODE_PARAMS allocation_of(size_t bytes) {
    CUDA_MEM_ALLOC_NODE_PARAMS p = {};
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.poolProps.location.id = device;
    p.bytesize = bytes;
    p.dptr = garbage<CUdeviceptr>();
    return p;
}

static CUgraphNode add_allocation(CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, p));
    return node;
}

static uint64_t figure(CUgraphMem_attribute which) {
    uint64_t bytes = garbage<uint64_t>();
    CHECK(cuDeviceGetGraphMemAttribute(device, which, &bytes));
    return bytes;
}

CASE(allocated, "cuGraphAddMemAllocNode", "cuGraphMemAllocNodeGetParams") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
    CUgraph graph = make_graph();
    CUDA_MEM_ALLOC_NODE_PARAMS p = allocation_of(64), told = garbage<CUDA_MEM_ALLOC_NODE_PARAMS>();
    CUgraphNode node = add_allocation(graph, &p);
    CHECK(cuGraphMemAllocNodeGetParams(node, &told));
    EXPECT(told.dptr == p.dptr && told.bytesize == 64 && told.poolProps.location.id == device);
    add_fill(graph, p.dptr, 6, {node});
    run(graph);
    EXPECT(holds(p.dptr, 6)); // it stays until the program frees it
    CHECK(cuMemFree(p.dptr));
    CUDA_MEM_ALLOC_NODE_PARAMS none = allocation_of(0);
    REFUSED(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &none), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphMemAllocNodeGetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphMemAllocNodeGetParams(add_empty(graph), &told), CUDA_ERROR_INVALID_VALUE);
}

CASE(freed, "cuGraphAddMemFreeNode", "cuGraphMemFreeNodeGetParams", "cuDeviceGetGraphMemAttribute", "cuDeviceSetGraphMemAttribute") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
    CUgraph graph = make_graph();
    CUDA_MEM_ALLOC_NODE_PARAMS p = allocation_of(1 << 16);
    CUgraphNode node = add_allocation(graph, &p), end = garbage<CUgraphNode>();
    CHECK(cuGraphAddMemFreeNode(&end, graph, &node, 1, p.dptr));
    CUdeviceptr told = garbage<CUdeviceptr>();
    CHECK(cuGraphMemFreeNodeGetParams(end, &told));
    EXPECT(told == p.dptr);
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 3; i++) launch_and_wait(exec); // a second launch is refused where the first's memory is still there
    // In use is what a graph has: also after it was freed, until the graph and what can be launched of it are gone; on a driver until it is trimmed.
    EXPECT(figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) >= 1 << 16 && figure(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= 1 << 16);
    EXPECT(figure(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) >= 1 << 16);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuDeviceGraphMemTrim(device));
    EXPECT_NUMBER(figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    uint64_t zero = 0;
    CHECK(cuDeviceSetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
    EXPECT_NUMBER(figure(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 0);
    graph = make_graph();
    node = add_empty(graph);
    REFUSED(cuGraphAddMemFreeNode(&end, graph, nullptr, 0, allocate(64)), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphMemFreeNodeGetParams(node, &told), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetGraphMemAttribute(device_count(), CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceSetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &zero), CUDA_ERROR_INVALID_VALUE);
}

// What a graph gave back is given to the system; nothing of it can be told from what the graph needs.
HINT_CASE(trimmed, "cuDeviceGraphMemTrim") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
    CHECK(cuDeviceGraphMemTrim(device));
    REFUSED(cuDeviceGraphMemTrim(device_count()), CUDA_ERROR_INVALID_DEVICE);
}

CASE(words, "cuGraphAddBatchMemOpNode", "cuGraphBatchMemOpNodeGetParams", "cuGraphBatchMemOpNodeSetParams", "cuGraphExecBatchMemOpNodeSetParams") {
    CUgraph graph = make_graph();
    CUdeviceptr memory = upload(filled(16, 0u));
    CUstreamBatchMemOpParams write = {};
    write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address = memory;
    write.writeValue.value = 5;
    CUDA_BATCH_MEM_OP_NODE_PARAMS p = {primary, 1, &write, 0}, told = garbage<CUDA_BATCH_MEM_OP_NODE_PARAMS>();
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &p));
    CUgraphExec exec = instantiate(graph);
    launch_and_wait(exec);
    EXPECT(download<unsigned>(memory, 1)[0] == 5);
    write.writeValue.value = 6;
    CHECK(cuGraphExecBatchMemOpNodeSetParams(exec, node, &p));
    launch_and_wait(exec);
    EXPECT(download<unsigned>(memory, 1)[0] == 6);
    write.writeValue.value = 7;
    CHECK(cuGraphBatchMemOpNodeSetParams(node, &p));
    CHECK(cuGraphBatchMemOpNodeGetParams(node, &told));
    EXPECT(told.count == 1 && told.paramArray != &write && told.paramArray[0].writeValue.value == 7);
    run(graph);
    EXPECT(download<unsigned>(memory, 1)[0] == 7);
    REFUSED(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphBatchMemOpNodeGetParams(node, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphBatchMemOpNodeSetParams(add_empty(graph), &p), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphExecBatchMemOpNodeSetParams(exec, add_empty(graph), &p), CUDA_ERROR_INVALID_VALUE);
}

static int ended;
static void CUDA_CB end(void *by) { ended += *static_cast<int *>(by); }

static CUuserObject make_object(unsigned references) {
    static int one = 1;
    CUuserObject object = garbage<CUuserObject>();
    CHECK(cuUserObjectCreate(&object, &one, end, references, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    return object;
}

CASE(references, "cuUserObjectCreate", "cuUserObjectRetain", "cuUserObjectRelease") {
    CUuserObject object = make_object(1);
    CHECK(cuUserObjectRetain(object, 2));
    CHECK(cuUserObjectRelease(object, 2));
    EXPECT(ended == 0);
    CHECK(cuUserObjectRelease(object, 1));
    EVENTUALLY(ended == 1);
    REFUSED(cuUserObjectCreate(&object, nullptr, nullptr, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuUserObjectCreate(&object, nullptr, end, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuUserObjectRetain(make_object(1), 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuUserObjectRelease(make_object(1), 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(kept_by_graphs, "cuGraphRetainUserObject", "cuGraphReleaseUserObject") {
    CUgraph graph = make_graph();
    CUuserObject object = make_object(1);
    CHECK(cuGraphRetainUserObject(graph, object, 2, 0));
    CHECK(cuUserObjectRelease(object, 1));
    CHECK(cuGraphReleaseUserObject(graph, object, 1));
    EXPECT(ended == 0); // the graph still has one
    CHECK(cuGraphReleaseUserObject(graph, object, 1));
    EVENTUALLY(ended == 1);
    CUuserObject moved = make_object(1);
    CHECK(cuGraphRetainUserObject(graph, moved, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CHECK(cuGraphDestroy(graph));
    EVENTUALLY(ended == 2);
    REFUSED(cuGraphRetainUserObject(make_graph(), make_object(1), 0, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphReleaseUserObject(make_graph(), make_object(1), 0), CUDA_ERROR_INVALID_VALUE);
}
