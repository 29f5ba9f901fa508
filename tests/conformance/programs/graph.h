// What the programs about graphs share.
#pragma once
#include "kernels.h"

inline CUgraph make_graph() {
    CUgraph graph = garbage<CUgraph>();
    CHECK(cuGraphCreate(&graph, 0));
    return graph;
}

inline CUDA_MEMSET_NODE_PARAMS fill_of(CUdeviceptr memory, unsigned value, size_t count = 16) {
    CUDA_MEMSET_NODE_PARAMS fill = {};
    fill.dst = memory, fill.value = value, fill.elementSize = 4, fill.width = count, fill.height = 1;
    return fill;
}

inline CUgraphNode add_fill(CUgraph graph, CUdeviceptr memory, unsigned value, const std::vector<CUgraphNode> &after = {}) {
    CUDA_MEMSET_NODE_PARAMS fill = fill_of(memory, value);
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddMemsetNode(&node, graph, after.data(), after.size(), &fill, primary));
    return node;
}

inline CUgraphNode add_empty(CUgraph graph, const std::vector<CUgraphNode> &after = {}) {
    CUgraphNode node = garbage<CUgraphNode>();
    CHECK(cuGraphAddEmptyNode(&node, graph, after.data(), after.size()));
    return node;
}

inline CUDA_MEMCPY3D copy_of(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    CUDA_MEMCPY3D copy = {};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from, copy.dstDevice = to;
    copy.WidthInBytes = bytes, copy.Height = copy.Depth = 1;
    return copy;
}

inline CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = garbage<CUgraphExec>();
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

inline void launch_and_wait(CUgraphExec exec) {
    static CUstream stream = make_stream();
    CHECK(cuCtxSynchronize());
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
}

inline void run(CUgraph graph) {
    CUgraphExec exec = instantiate(graph);
    launch_and_wait(exec);
    CHECK(cuGraphExecDestroy(exec));
}

inline bool holds(CUdeviceptr memory, unsigned value) { return download<unsigned>(memory, 16) == filled(16, value); }
