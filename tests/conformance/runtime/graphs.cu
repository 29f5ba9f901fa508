// Captures and graphs as programs of the runtime API use them.
#include "runtime.h"
#include <thread>

__global__ void add(int *p, int n, int amount) {
    for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += blockDim.x * gridDim.x) p[i] += amount;
}

const int N = 4096;

static cudaGraphExec_t instantiate(cudaGraph_t graph) {
    cudaGraphExec_t ready = garbage<cudaGraphExec_t>();
    CHECK(cudaGraphInstantiate(&ready, graph, 0));
    return ready;
}

CASE(captured) {
    int *memory = allocate<int>(N);
    CHECK(cudaMemset(memory, 0, N * 4));
    cudaStream_t stream = make_stream();
    cudaGraph_t graph = garbage<cudaGraph_t>();
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 1; i <= 10; i++) add<<<8, 128, 0, stream>>>(memory, N, i);
    CHECK(cudaStreamEndCapture(stream, &graph));
    EXPECT(download(memory, N) == std::vector<int>(N, 0)); // nothing ran
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT(nodes == 10);
    cudaGraphExec_t ready = instantiate(graph);
    CHECK(cudaGraphDestroy(graph));
    for (int i = 0; i < 100; i++) CHECK(cudaGraphLaunch(ready, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(download(memory, N) == std::vector<int>(N, 5500));
    CHECK(cudaGraphExecDestroy(ready));
}

CASE(forked_and_joined) {
    int *memory = allocate<int>(2 * N);
    CHECK(cudaMemset(memory, 0, 2 * N * 4));
    CHECK(cudaDeviceSynchronize()); // the streams do not wait for the legacy one
    cudaStream_t stream = make_stream(), side = make_stream();
    cudaEvent_t forked = make_event(cudaEventDisableTiming), joined = make_event(cudaEventDisableTiming);
    cudaGraph_t graph = garbage<cudaGraph_t>();
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    add<<<8, 128, 0, stream>>>(memory, 2 * N, 1);
    CHECK(cudaEventRecord(forked, stream));
    CHECK(cudaStreamWaitEvent(side, forked, 0));
    add<<<8, 128, 0, side>>>(memory + N, N, 10);
    CHECK(cudaEventRecord(joined, side));
    add<<<8, 128, 0, stream>>>(memory, N, 100);
    CHECK(cudaStreamWaitEvent(stream, joined, 0));
    add<<<8, 128, 0, stream>>>(memory, 2 * N, 1000);
    CHECK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t ready = instantiate(graph);
    CHECK(cudaGraphLaunch(ready, stream));
    CHECK(cudaStreamSynchronize(stream));
    std::vector<int> expected(2 * N, 1101);
    for (int i = N; i < 2 * N; i++) expected[i] = 1011;
    EXPECT(download(memory, 2 * N) == expected);
}

// Whether a stream captures is asked ten thousand times by some programs: no question goes anywhere.
CASE(questions_of_captures) {
    cudaStream_t stream = make_stream(), other = make_stream();
    cudaGraph_t graph = garbage<cudaGraph_t>();
    int *memory = allocate<int>(N);
    cudaStreamCaptureStatus status = garbage<cudaStreamCaptureStatus>();
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < 10000; i++) {
        CHECK(cudaStreamIsCapturing(stream, &status));
        EXPECT(status == cudaStreamCaptureStatusActive);
        CHECK(cudaStreamIsCapturing(other, &status));
        EXPECT(status == cudaStreamCaptureStatusNone);
    }
    add<<<8, 128, 0, stream>>>(memory, N, 1);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaStreamIsCapturing(stream, &status));
    EXPECT(status == cudaStreamCaptureStatusNone);
}

// A graph reads host memory when it is launched, not when it was captured.
CASE(source_changes_between_launches) {
    int *pinned, *memory = allocate<int>(N);
    CHECK(cudaMallocHost(&pinned, N * 4));
    cudaStream_t stream = make_stream();
    cudaGraph_t graph = garbage<cudaGraph_t>();
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMemcpyAsync(memory, pinned, N * 4, cudaMemcpyHostToDevice, stream));
    add<<<8, 128, 0, stream>>>(memory, N, 5);
    CHECK(cudaMemcpyAsync(pinned, memory, N * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t ready = instantiate(graph);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < N; i++) pinned[i] = i * round;
        CHECK(cudaGraphLaunch(ready, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (int i = 0; i < N; i++) EXPECT(pinned[i] == i * round + 5);
    }
    for (int i = 0; i < N; i++) pinned[i] = 0;
    for (int round = 0; round < 10; round++) CHECK(cudaGraphLaunch(ready, stream)); // each reads what the one before it brought
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < N; i++) EXPECT(pinned[i] == 50);
}

CASE(built_by_hand_and_updated) {
    int *memory = allocate<int>(N), n = N, amount = 3;
    CHECK(cudaMemset(memory, 0, N * 4));
    cudaGraph_t graph = garbage<cudaGraph_t>();
    CHECK(cudaGraphCreate(&graph, 0));
    void *arguments[] = {&memory, &n, &amount};
    cudaKernelNodeParams params = {};
    params.func = reinterpret_cast<void *>(add), params.gridDim = dim3(8), params.blockDim = dim3(128), params.kernelParams = arguments;
    cudaGraphNode_t first = garbage<cudaGraphNode_t>(), second = garbage<cudaGraphNode_t>();
    CHECK(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &params));
    amount = 40;
    CHECK(cudaGraphAddKernelNode(&second, graph, &first, 1, &params));
    cudaGraphExec_t ready = instantiate(graph);
    CHECK(cudaGraphLaunch(ready, nullptr));
    EXPECT(download(memory, N) == std::vector<int>(N, 43));
    amount = 500;
    CHECK(cudaGraphExecKernelNodeSetParams(ready, second, &params));
    CHECK(cudaGraphLaunch(ready, nullptr));
    EXPECT(download(memory, N) == std::vector<int>(N, 43 + 503));
    REFUSED(cudaGraphAddKernelNode(&first, graph, &second, 1, nullptr), cudaErrorInvalidValue);
}

CASE(memory_of_graphs) {
    NEEDS(attribute(cudaDevAttrMemoryPoolsSupported));
    cudaStream_t stream = make_stream();
    cudaGraph_t graph = garbage<cudaGraph_t>();
    std::vector<int> back(N, -1);
    int *memory = nullptr, *out = allocate<int>(N);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMallocAsync(&memory, N * 4, stream));
    CHECK(cudaMemsetAsync(memory, 0, N * 4, stream));
    add<<<8, 128, 0, stream>>>(memory, N, 6);
    CHECK(cudaMemcpyAsync(out, memory, N * 4, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaFreeAsync(memory, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t ready = instantiate(graph);
    for (int i = 0; i < 5; i++) {
        CHECK(cudaMemsetAsync(out, 0, N * 4, stream));
        CHECK(cudaGraphLaunch(ready, stream));
        CHECK(cudaStreamSynchronize(stream));
        EXPECT(download(out, N) == std::vector<int>(N, 6));
    }
}

CASE(what_a_capture_forbids) {
    int *memory = allocate<int>(N);
    cudaStream_t stream = make_stream(cudaStreamDefault);
    cudaGraph_t graph = garbage<cudaGraph_t>();
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    REFUSED(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    REFUSED(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    REFUSED(cudaMemset(memory, 0, 4), cudaErrorStreamCaptureImplicit); // the legacy stream would wait for the capture's
    cudaStreamEndCapture(stream, &graph);
    cudaGetLastError();
    add<<<8, 128, 0, stream>>>(memory, N, 1);
    CHECK(cudaStreamSynchronize(stream)); // the stream is as before
}
