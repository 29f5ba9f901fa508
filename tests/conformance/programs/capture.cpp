// Capture: what a stream is given becomes a graph and is not done.
#include "graph.h"

static CUstreamCaptureStatus status_of(CUstream stream) {
    CUstreamCaptureStatus status = garbage<CUstreamCaptureStatus>();
    CHECK(cuStreamIsCapturing(stream, &status));
    return status;
}

CASE(capture, "cuStreamBeginCapture", "cuStreamEndCapture", "cuStreamIsCapturing") {
    CUdeviceptr memory = allocate(64);
    CHECK(cuMemsetD8(memory, 0, 64));
    CHECK(cuCtxSynchronize());
    CUstream stream = make_stream();
    EXPECT(status_of(stream) == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(status_of(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK(cuMemsetD32Async(memory, 5, 16, stream));
    CHECK(cuMemsetD32Async(memory + 4, 6, 1, stream));
    CUgraph graph = garbage<CUgraph>();
    REFUSED(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_ILLEGAL_STATE);
    CHECK(cuStreamEndCapture(stream, &graph));
    EXPECT(status_of(stream) == CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT(holds(memory, 0));
    size_t nodes = garbage<size_t>(), edges = garbage<size_t>();
    CHECK(cuGraphGetNodes(graph, nullptr, &nodes));
    CHECK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    EXPECT(nodes == 2 && edges == 1);
    run(graph);
    EXPECT(download<unsigned>(memory, 3) == (std::vector<unsigned>{5, 6, 5}));
    REFUSED(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); // the legacy stream
    REFUSED(cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(17)), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    REFUSED(cuStreamIsCapturing(stream, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(to_a_graph, "cuStreamBeginCaptureToGraph") {
    CUdeviceptr memory = allocate(64);
    CUstream stream = make_stream();
    CUgraph graph = make_graph(), ended = garbage<CUgraph>();
    CUgraphNode first = add_empty(graph), second = garbage<CUgraphNode>();
    CHECK(cuStreamBeginCaptureToGraph(stream, graph, &first, nullptr, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuMemsetD32Async(memory, 5, 16, stream));
    CHECK(cuStreamEndCapture(stream, &ended));
    EXPECT(ended == graph);
    size_t count = 1;
    CHECK(cuGraphNodeGetDependentNodes(first, &second, nullptr, &count));
    CUgraphNodeType type = garbage<CUgraphNodeType>();
    CHECK(cuGraphNodeGetType(second, &type));
    EXPECT(count == 1 && type == CU_GRAPH_NODE_TYPE_MEMSET);
    run(graph);
    EXPECT(holds(memory, 5));
    REFUSED(cuStreamBeginCaptureToGraph(stream, nullptr, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_INVALID_VALUE);
}

CASE(info, "cuStreamGetCaptureInfo", "cuStreamUpdateCaptureDependencies") {
    CUdeviceptr memory = allocate(64);
    CUstream stream = make_stream();
    CUstreamCaptureStatus status = garbage<CUstreamCaptureStatus>();
    cuuint64_t id = garbage<cuuint64_t>();
    CUgraph graph = garbage<CUgraph>(), ended = garbage<CUgraph>();
    const CUgraphNode *nodes = garbage<const CUgraphNode *>();
    size_t count = garbage<size_t>();
    CHECK(cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuMemsetD32Async(memory, 5, 16, stream));
    CHECK(cuStreamGetCaptureInfo(stream, &status, &id, &graph, &nodes, nullptr, &count));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != garbage<cuuint64_t>() && count == 1);
    CUgraphNode fill = nodes[0];
    CUgraphNodeType type = garbage<CUgraphNodeType>();
    CHECK(cuGraphNodeGetType(fill, &type));
    EXPECT(type == CU_GRAPH_NODE_TYPE_MEMSET);
    CUgraphNode added = add_empty(graph); // what comes next is ordered after it, too
    CHECK(cuStreamUpdateCaptureDependencies(stream, &added, nullptr, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    CHECK(cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, nullptr, &count));
    EXPECT(count == 2 && (nodes[0] == added || nodes[1] == added) && (nodes[0] == fill || nodes[1] == fill));
    CHECK(cuStreamUpdateCaptureDependencies(stream, &added, nullptr, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    CHECK(cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, nullptr, &count));
    EXPECT(count == 1 && nodes[0] == added);
    REFUSED(cuStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuStreamUpdateCaptureDependencies(stream, &fill, nullptr, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    CHECK(cuStreamEndCapture(stream, &ended));
    EXPECT(ended == graph);
    REFUSED(cuStreamUpdateCaptureDependencies(stream, &added, nullptr, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES), CUDA_ERROR_ILLEGAL_STATE);
    REFUSED(cuStreamGetCaptureInfo(stream, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(the_legacy_stream_is_asked, "cuStreamIsCapturing", "cuStreamGetCaptureInfo") {
    CUdeviceptr memory = allocate(64);
    CUstream blocking = garbage<CUstream>();
    CUstreamCaptureStatus status = garbage<CUstreamCaptureStatus>();
    CUgraph graph = garbage<CUgraph>();
    CHECK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CHECK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuMemsetD32Async(memory, 5, 16, blocking));
    // It would have to wait for what is captured; to ask does no harm to the capture.
    REFUSED(cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    REFUSED(cuStreamGetCaptureInfo(nullptr, &status, nullptr, nullptr, nullptr, nullptr, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT(status_of(blocking) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK(cuStreamEndCapture(blocking, &graph));
    EXPECT(status_of(nullptr) == CU_STREAM_CAPTURE_STATUS_NONE);
    run(graph);
    EXPECT(holds(memory, 5));
    CHECK(cuStreamDestroy(blocking));
}

CASE(mode_of_the_thread, "cuThreadExchangeStreamCaptureMode") {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CHECK(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == CU_STREAM_CAPTURE_MODE_GLOBAL); // every thread's first
    mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    CHECK(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    mode = static_cast<CUstreamCaptureMode>(17); // no mode is looked at
    CHECK(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    UNCHECKED_BY_THE_DRIVER(cuThreadExchangeStreamCaptureMode(nullptr), CUDA_ERROR_INVALID_VALUE);
}
