// Thread block clusters, on devices that have them: which a launch may name, what blocks are told, how they share memory.
#include "kernels.h"

#define NEEDS_CLUSTERS() NEEDS(attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH))

// Each block says how many its cluster has, and which of them it is.
static const char clustered[] = R"(.version 7.8
.target sm_90
.address_size 64
.visible .entry ranks(.param .u64 out) {
    .reg .b32 %r<4>; .reg .b64 %q<3>;
    ld.param.u64 %q0, [out]; mov.u32 %r0, %ctaid.x; mul.wide.u32 %q1, %r0, 8; add.u64 %q0, %q0, %q1;
    mov.u32 %r1, %cluster_nctarank; mov.u32 %r2, %cluster_ctarank; st.global.v2.u32 [%q0], {%r1, %r2}; ret;
}
.visible .entry pairs(.param .u64 out) .reqnctapercluster 2, 1, 1 {
    .reg .b32 %r<4>; .reg .b64 %q<3>;
    ld.param.u64 %q0, [out]; mov.u32 %r0, %ctaid.x; mul.wide.u32 %q1, %r0, 8; add.u64 %q0, %q0, %q1;
    mov.u32 %r1, %cluster_nctarank; mov.u32 %r2, %cluster_ctarank; st.global.v2.u32 [%q0], {%r1, %r2}; ret;
}
.visible .entry next(.param .u64 out) {
    .reg .b32 %r<8>; .reg .b64 %q<3>; .shared .align 8 .b8 left[8];
    ld.param.u64 %q0, [out]; mov.u32 %r0, %ctaid.x; mul.wide.u32 %q1, %r0, 8; add.u64 %q0, %q0, %q1;
    mov.u32 %r1, %cluster_nctarank; mov.u32 %r2, %cluster_ctarank; st.shared.v2.u32 [left], {%r0, %r2};
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    add.u32 %r3, %r2, 1; rem.u32 %r3, %r3, %r1; mov.u32 %r4, left; mapa.shared::cluster.u32 %r4, %r4, %r3;
    ld.shared::cluster.v2.u32 {%r5, %r6}, [%r4]; st.global.v2.u32 [%q0], {%r5, %r6};
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; ret;
})";

struct Clustered {
    CUmodule module = nullptr;
    CUdeviceptr out = allocate(64);
    CUlaunchAttribute attributes[1] = {};
    CUlaunchConfig config = {};
    void *arguments[1] = {&out};
    CUfunction ranks, pairs, next;

    Clustered() {
        CHECK(cuModuleLoadData(&module, clustered));
        ranks = kernel(module, "ranks"), pairs = kernel(module, "pairs"), next = kernel(module, "next");
        config.gridDimX = 8, config.gridDimY = config.gridDimZ = 1;
        config.blockDimX = 32, config.blockDimY = config.blockDimZ = 1;
        config.attrs = attributes;
    }
    void name(unsigned blocks) {
        attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[0].value.clusterDim = {blocks, 1, 1};
        config.numAttrs = 1;
    }
    CUresult launch(CUfunction f, unsigned blocks) {
        name(blocks);
        return cuLaunchKernelEx(&config, f, arguments, nullptr);
    }
    // Whether each of eight blocks saw a cluster of so many.
    bool saw(unsigned blocks) {
        CHECK(cuCtxSynchronize());
        std::vector<unsigned> wanted;
        for (unsigned i = 0; i < 8; i++) wanted.push_back(blocks), wanted.push_back(i % blocks);
        bool same = download<unsigned>(out, 16) == wanted;
        CHECK(cuMemsetD8(out, 0xff, 64));
        CHECK(cuCtxSynchronize()); // the next launch may be in a stream that does not wait for the legacy one
        return same;
    }
};

CASE(launches, "cuLaunchKernelEx", "cuFuncSetAttribute") {
    NEEDS_CLUSTERS();
    Clustered c;
    CHECK(c.launch(c.ranks, 4));
    EXPECT(c.saw(4));
    CHECK(c.launch(c.ranks, 1));
    EXPECT(c.saw(1));
    c.config.numAttrs = 0;
    CHECK(cuLaunchKernelEx(&c.config, c.pairs, c.arguments, nullptr)); // what the kernel was compiled for
    EXPECT(c.saw(2));
    int value = garbage<int>();
    CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, c.pairs));
    EXPECT(value == 2);
    CHECK(cuFuncSetAttribute(c.ranks, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 2)); // or the program has set
    CHECK(cuFuncSetAttribute(c.ranks, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, 1));
    CHECK(cuFuncSetAttribute(c.ranks, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, 1));
    CHECK(cuLaunchKernelEx(&c.config, c.ranks, c.arguments, nullptr));
    EXPECT(c.saw(2));
}

CASE(graphs, "cuGraphKernelNodeSetAttribute", "cuGraphKernelNodeGetAttribute") {
    NEEDS_CLUSTERS();
    CUkernelNodeAttrValue none = {};
    none.clusterDim = {1, 1, 1};
    REFUSED(cuGraphKernelNodeSetAttribute(nullptr, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &none), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGraphKernelNodeGetAttribute(nullptr, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &none), CUDA_ERROR_INVALID_VALUE);
    Clustered c;
    CUstream stream = c.config.hStream = make_stream();
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node;
    size_t n = 1;
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK(c.launch(c.ranks, 4));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphGetNodes(graph, &node, &n));
    CUkernelNodeAttrValue value = garbage<CUkernelNodeAttrValue>();
    CHECK(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value));
    EXPECT(value.clusterDim.x == 4 && value.clusterDim.y == 1 && value.clusterDim.z == 1);
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, stream));
    EXPECT(c.saw(4));
    value.clusterDim = {2, 1, 1};
    CHECK(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, stream));
    EXPECT(c.saw(2));
}

// What a driver refuses, each in a case of its own, so that one answer does not hide the next.
HINT_CASE(not_whole, "cuLaunchKernelEx") {
    NEEDS_CLUSTERS();
    Clustered c;
    REFUSED(c.launch(c.ranks, 3), CUDA_ERROR_INVALID_CLUSTER_SIZE); // of eight blocks
}
HINT_CASE(not_portable, "cuLaunchKernelEx") {
    NEEDS_CLUSTERS();
    Clustered c;
    c.config.gridDimX = 16;
    REFUSED(c.launch(c.ranks, 16), CUDA_ERROR_INVALID_CLUSTER_SIZE);
}
HINT_CASE(too_large, "cuLaunchKernelEx") {
    NEEDS_CLUSTERS();
    Clustered c;
    c.config.gridDimX = 64;
    CHECK(cuFuncSetAttribute(c.ranks, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    REFUSED(c.launch(c.ranks, 64), CUDA_ERROR_INVALID_CLUSTER_SIZE);
}
HINT_CASE(of_none, "cuLaunchKernelEx") {
    NEEDS_CLUSTERS();
    Clustered c;
    REFUSED(c.launch(c.ranks, 0), CUDA_ERROR_INVALID_CLUSTER_SIZE);
}
HINT_CASE(others_than_compiled, "cuLaunchKernelEx", "cuFuncSetAttribute") {
    NEEDS_CLUSTERS();
    Clustered c;
    REFUSED(cuFuncSetAttribute(nullptr, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(c.launch(c.pairs, 4), CUDA_ERROR_INVALID_CLUSTER_SIZE);
    REFUSED(cuFuncSetAttribute(c.pairs, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4), CUDA_ERROR_INVALID_VALUE);
}

CASE(occupancy, "cuOccupancyMaxPotentialClusterSize", "cuOccupancyMaxActiveClusters") {
    NEEDS_CLUSTERS();
    Clustered c;
    c.config.gridDimX = 16;
    int size = garbage<int>(), active = garbage<int>(), fewer = garbage<int>();
    CHECK(cuOccupancyMaxPotentialClusterSize(&size, c.ranks, &c.config));
    EXPECT(size >= 1 && size <= 8); // portable ones
    REFUSED(cuOccupancyMaxPotentialClusterSize(nullptr, c.ranks, &c.config), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuOccupancyMaxPotentialClusterSize(&size, nullptr, &c.config), CUDA_ERROR_INVALID_VALUE);
    c.name(2);
    CHECK(cuOccupancyMaxActiveClusters(&active, c.ranks, &c.config));
    c.name(8);
    CHECK(cuOccupancyMaxActiveClusters(&fewer, c.ranks, &c.config));
    EXPECT(fewer >= 1 && active >= 2 * fewer && active < 1 << 20);
    REFUSED(cuOccupancyMaxActiveClusters(nullptr, c.ranks, &c.config), CUDA_ERROR_INVALID_VALUE);
}

// Every block leaves its number in its shared memory, and reads what the next one of its cluster has left, by mapa; the barrier is the cluster's.
CASE(share_memory, "cuLaunchKernelEx") {
    NEEDS_CLUSTERS();
    Clustered c;
    for (unsigned blocks : {1u, 2u, 4u, 8u}) {
        CHECK(c.launch(c.next, blocks));
        CHECK(cuCtxSynchronize());
        std::vector<unsigned> wanted;
        for (unsigned i = 0; i < 8; i++) wanted.push_back(i / blocks * blocks + (i + 1) % blocks), wanted.push_back((i + 1) % blocks);
        EXPECT(download<unsigned>(c.out, 16) == wanted);
    }
}
