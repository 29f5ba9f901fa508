// Work captured on streams, made to graphs, and launched again and again: kernels, copies, fills, host functions, forks and joins over events, graphs in graphs; what is
// changed by an update; what a capture must refuse. Prints "right".
#include "check.h"

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

static bool refused(cudaError_t error, cudaError_t as) {
    cudaGetLastError();
    if (error != as) std::printf("%s instead of %s\n", cudaGetErrorName(error), cudaGetErrorName(as));
    return error == as;
}

__global__ void add(int *v, int what) { v[threadIdx.x] += what; }
__global__ void sum(const int *a, const int *b, int *to) { to[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x]; }

static const int N = 256;
static cudaStream_t stream, other;
static int *a, *b, *c;

static std::vector<int> host(const int *from) {
    std::vector<int> v(N);
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(v.data(), from, N * 4, cudaMemcpyDeviceToHost));
    return v;
}

static void clear(int *v) {
    CHECK(cudaMemset(v, 0, N * 4));
    CHECK(cudaDeviceSynchronize()); // the streams are not ordered behind the legacy one
}

static cudaGraphExec_t ready(cudaGraph_t graph) {
    cudaGraphExec_t x;
    CHECK(cudaGraphInstantiate(&x, graph, 0));
    return x;
}

static cudaStreamCaptureStatus status(cudaStream_t s) {
    cudaStreamCaptureStatus status;
    CHECK(cudaStreamIsCapturing(s, &status));
    return status;
}

static std::atomic<int> called;
static void CUDART_CB call(void *what) { called += *(int *)what; }

// Nothing runs while it is captured; everything, in each launch.
static void replays() {
    cudaGraph_t graph;
    int one = 1, *pinned;
    CHECK(cudaMallocHost(&pinned, N * 4));
    clear(a);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT(status(stream) == cudaStreamCaptureStatusActive && status(other) == cudaStreamCaptureStatusNone);
    add<<<1, N, 0, stream>>>(a, 3);
    CHECK(cudaMemsetAsync(b, 1, N * 4, stream));
    sum<<<1, N, 0, stream>>>(a, b, c);
    CHECK(cudaMemcpyAsync(pinned, c, N * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaLaunchHostFunc(stream, call, &one));
    CHECK(cudaStreamEndCapture(stream, &graph));
    EXPECT(status(stream) == cudaStreamCaptureStatusNone && host(a)[5] == 0 && called == 0);
    size_t n = 0, edges = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &n));
    EXPECT(n == 5);
    std::vector<cudaGraphNode_t> nodes(n), roots(n);
    CHECK(cudaGraphGetNodes(graph, nodes.data(), &n));
    size_t n_roots = n;
    CHECK(cudaGraphGetRootNodes(graph, roots.data(), &n_roots));
    EXPECT(n_roots == 1 && roots[0] == nodes[0]);
    const cudaGraphNodeType types[] = {cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemset, cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeHost};
    for (size_t i = 0; i < n; i++) {
        cudaGraphNodeType type;
        CHECK(cudaGraphNodeGetType(nodes[i], &type));
        EXPECT(type == types[i]);
    }
#if CUDART_VERSION >= 13000
    CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
#else
    CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, &edges));
#endif
    EXPECT(edges == 4);
    cudaGraphExec_t x = ready(graph);
    CHECK(cudaGraphDestroy(graph)); // what can be launched is a copy
    for (int round = 1; round <= 5; round++) {
        CHECK(cudaGraphLaunch(x, round % 2 ? stream : other));
        CHECK(cudaStreamSynchronize(round % 2 ? stream : other));
        for (int i = 0; i < N; i++) EXPECT(pinned[i] == 3 * round + 0x01010101);
        EXPECT(called == round);
    }
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaFreeHost(pinned));
}

// A stream forks by an event, and joins again; the graph has the shape of it.
static void forks() {
    cudaEvent_t forked, joined;
    cudaGraph_t graph;
    CHECK(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    clear(a);
    clear(b);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    add<<<1, N, 0, stream>>>(a, 1);
    CHECK(cudaEventRecord(forked, stream));
    CHECK(cudaStreamWaitEvent(other, forked, 0));
    EXPECT(status(other) == cudaStreamCaptureStatusActive);
    add<<<1, N, 0, other>>>(b, 10);
    add<<<1, N, 0, stream>>>(a, 2);
    CHECK(cudaEventRecord(joined, other));
    CHECK(cudaStreamWaitEvent(stream, joined, 0));
    sum<<<1, N, 0, stream>>>(a, b, c);
    CHECK(cudaStreamEndCapture(stream, &graph));
    EXPECT(status(other) == cudaStreamCaptureStatusNone);
    size_t n = 4, n_after = 0;
    std::vector<cudaGraphNode_t> nodes(n);
    CHECK(cudaGraphGetNodes(graph, nodes.data(), &n));
    EXPECT(n == 4);
#if CUDART_VERSION >= 13000
    CHECK(cudaGraphNodeGetDependencies(nodes[3], nullptr, nullptr, &n_after));
#else
    CHECK(cudaGraphNodeGetDependencies(nodes[3], nullptr, &n_after));
#endif
    EXPECT(n_after == 2);
    cudaGraphExec_t x = ready(graph);
    for (int round = 1; round <= 3; round++) {
        CHECK(cudaGraphLaunch(x, stream));
        EXPECT(host(c)[7] == 13 * round);
    }
    // An event that is recorded anew outside of a capture is an event again.
    CHECK(cudaEventRecord(joined, other));
    CHECK(cudaEventSynchronize(joined));
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventDestroy(forked));
    CHECK(cudaEventDestroy(joined));
}

static void CUDART_CB fill(void *v) {
    static int next = 100;
    for (int i = 0; i < N; i++) ((int *)v)[i] = next;
    next++;
}

// Host memory is read when the graph is launched, and behind a host function that writes it.
static void sources() {
    std::vector<int> source(N), out(N);
    int *made; // page-locked: what is not, a driver may read before the host function
    cudaGraph_t graph;
    CHECK(cudaMallocHost(&made, N * 4));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CHECK(cudaMemcpyAsync(a, source.data(), N * 4, cudaMemcpyHostToDevice, stream));
    CHECK(cudaLaunchHostFunc(stream, fill, made));
    CHECK(cudaMemcpyAsync(b, made, N * 4, cudaMemcpyHostToDevice, stream));
    sum<<<1, N, 0, stream>>>(a, b, c);
    CHECK(cudaMemcpyAsync(out.data(), c, N * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t x = ready(graph);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < N; i++) source[i] = round * 1000 + i;
        CHECK(cudaGraphLaunch(x, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (int i = 0; i < N; i++) EXPECT(out[i] == round * 1000 + i + 100 + round);
    }
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphDestroy(graph));
}

// The same by hand, of memory that is the host's as only its address says.
static void unified_sources() {
    std::vector<int> out(N);
    int *made;
    cudaGraph_t graph;
    cudaGraphNode_t host, in, back;
    CHECK(cudaMallocHost(&made, N * 4));
    cudaHostNodeParams p = {fill, made};
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddHostNode(&host, graph, nullptr, 0, &p));
    CHECK(cudaGraphAddMemcpyNode1D(&in, graph, &host, 1, a, made, N * 4, cudaMemcpyDefault));
    CHECK(cudaGraphAddMemcpyNode1D(&back, graph, &in, 1, out.data(), a, N * 4, cudaMemcpyDefault));
    cudaGraphExec_t x = ready(graph);
    int before = 0;
    for (int round = 0; round < 10; round++) {
        CHECK(cudaGraphLaunch(x, stream));
        CHECK(cudaStreamSynchronize(stream));
        EXPECT(out[0] == made[0] && out[N - 1] == made[0] && out[0] > before);
        before = out[0];
    }
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphDestroy(graph));
}

static cudaGraph_t adding(int what, int times = 1) {
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < times; i++) add<<<1, N, 0, stream>>>(a, what);
    CHECK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

static void children_and_updates() {
    clear(a);
    cudaGraph_t inner = adding(5), outer = adding(1), changed = adding(7), longer = adding(7, 2), clone, broken;
    cudaGraphExec_t x = ready(inner);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT(refused(cudaGraphLaunch(x, stream), cudaErrorStreamCaptureUnsupported));
    EXPECT(refused(cudaStreamEndCapture(stream, &broken), cudaErrorStreamCaptureInvalidated));
    cudaGraphNode_t first, child, next;
    size_t one = 1;
    CHECK(cudaGraphGetNodes(outer, &first, &one));
    CHECK(cudaGraphAddChildGraphNode(&child, outer, &first, 1, inner));
    CHECK(cudaGraphAddChildGraphNode(&next, outer, &child, 1, inner));
    CHECK(cudaGraphClone(&clone, outer));
    CHECK(cudaGraphDestroy(outer));
    cudaGraphExec_t both = ready(clone);
    CHECK(cudaGraphLaunch(both, stream));
    EXPECT(host(a)[0] == 11);
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(x, changed, &info));
    CHECK(cudaGraphLaunch(x, stream));
    EXPECT(host(a)[0] == 18 && info.result == cudaGraphExecUpdateSuccess);
    EXPECT(refused(cudaGraphExecUpdate(x, longer, &info), cudaErrorGraphExecUpdateFailure) && info.result == cudaGraphExecUpdateErrorTopologyChanged);
    CHECK(cudaGraphLaunch(x, stream));
    CHECK(cudaGraphLaunch(both, stream)); // has a child of its own
    EXPECT(host(a)[0] == 36);
    for (cudaGraph_t g : {inner, changed, longer, clone}) CHECK(cudaGraphDestroy(g));
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphExecDestroy(both));
}

static cudaGraphNode_t kernel(cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after, void *function, std::vector<void *> arguments) {
    cudaKernelNodeParams p = {};
    cudaGraphNode_t node;
    p.func = function;
    p.gridDim = dim3(1);
    p.blockDim = dim3(N);
    p.kernelParams = arguments.data();
    CHECK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &p));
    return node;
}

// Put together by hand, in an order that is not that of the edges, and changed: before it is made ready, and after.
static void by_hand() {
    cudaGraph_t graph;
    cudaGraphNode_t set, first, second, in, out, last, child, record, nothing;
    std::vector<int> source(N, 1000), result(N);
    int three = 3, four = 4, nine = 9, one = 1;
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaGraphCreate(&graph, 0));
    last = kernel(graph, {}, (void *)sum, {&a, &b, &c});
    cudaMemsetParams m = {};
    m.dst = a, m.elementSize = 4, m.width = N, m.height = 1, m.value = 7;
    CHECK(cudaGraphAddMemsetNode(&set, graph, nullptr, 0, &m));
    first = kernel(graph, {set}, (void *)add, {&a, &three});
    CHECK(cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, b, source.data(), N * 4, cudaMemcpyHostToDevice));
    second = kernel(graph, {in}, (void *)add, {&b, &four});
    cudaGraphNode_t from[] = {first, second}, to[] = {last, last};
#if CUDART_VERSION >= 13000
    CHECK(cudaGraphAddDependencies(graph, from, to, nullptr, 2));
    EXPECT(refused(cudaGraphAddDependencies(graph, from, to, nullptr, 1), cudaErrorInvalidValue)); // there is such an edge
#else
    CHECK(cudaGraphAddDependencies(graph, from, to, 2));
    EXPECT(refused(cudaGraphAddDependencies(graph, from, to, 1), cudaErrorInvalidValue));
#endif
    CHECK(cudaGraphAddMemcpyNode1D(&out, graph, &last, 1, result.data(), c, N * 4, cudaMemcpyDeviceToHost));
    cudaHostNodeParams h = {call, &one};
    cudaGraphNode_t hosts;
    CHECK(cudaGraphAddHostNode(&hosts, graph, &out, 1, &h));
    CHECK(cudaGraphAddEventRecordNode(&record, graph, &hosts, 1, event));
    CHECK(cudaGraphAddEmptyNode(&nothing, graph, &record, 1));
    const int before = called;
    cudaGraphExec_t x = ready(graph);
    CHECK(cudaGraphLaunch(x, stream));
    CHECK(cudaEventSynchronize(event));
    for (int i = 0; i < N; i++) EXPECT(result[i] == 7 + 3 + 1000 + 4);
    EXPECT(called == before + 1);
    // The program's own copy of a node's arguments, and others in their place.
    cudaKernelNodeParams p;
    CHECK(cudaGraphKernelNodeGetParams(first, &p));
    EXPECT(p.func && p.blockDim.x == (unsigned)N && *(int **)p.kernelParams[0] == a && *(int *)p.kernelParams[1] == 3);
    p.kernelParams[1] = &nine;
    CHECK(cudaGraphExecKernelNodeSetParams(x, first, &p));
    m.value = 100;
    CHECK(cudaGraphExecMemsetNodeSetParams(x, set, &m));
    CHECK(cudaGraphLaunch(x, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(result[0] == 100 + 9 + 1000 + 4);
    cudaMemsetParams asked;
    CHECK(cudaGraphMemsetNodeGetParams(set, &asked));
    EXPECT(asked.value == 7); // the graph's own node is as it was
    unsigned enabled;
    CHECK(cudaGraphNodeSetEnabled(x, first, 0));
    CHECK(cudaGraphNodeGetEnabled(x, first, &enabled));
    CHECK(cudaGraphLaunch(x, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(result[0] == 100 + 1000 + 4 && enabled == 0);
    CHECK(cudaGraphExecDestroy(x));
    // A node goes, a graph comes.
    CHECK(cudaGraphDestroyNode(first));
    clear(a);
    cudaGraph_t inner = adding(50), owned;
    CHECK(cudaGraphAddChildGraphNode(&child, graph, &set, 1, inner));
    CHECK(cudaGraphChildGraphNodeGetGraph(child, &owned));
    EXPECT(owned != inner && refused(cudaGraphDestroy(owned), cudaErrorInvalidValue));
#if CUDART_VERSION >= 13000
    CHECK(cudaGraphAddDependencies(graph, &child, &last, nullptr, 1));
#else
    CHECK(cudaGraphAddDependencies(graph, &child, &last, 1));
#endif
    x = ready(graph);
    CHECK(cudaGraphLaunch(x, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(result[0] == 7 + 50 + 1000 + 4);
    cudaGraph_t clone;
    cudaGraphNode_t same;
    cudaGraphNodeType type;
    CHECK(cudaGraphClone(&clone, graph));
    CHECK(cudaGraphNodeFindInClone(&same, child, clone));
    CHECK(cudaGraphNodeGetType(same, &type));
    EXPECT(type == cudaGraphNodeTypeGraph && same != child);
    // Nodes that wait for each other are no order.
#if CUDART_VERSION >= 13000
    CHECK(cudaGraphAddDependencies(clone, &same, &same, nullptr, 0));
    cudaGraphNode_t sets, lasts;
    CHECK(cudaGraphNodeFindInClone(&sets, set, clone));
    CHECK(cudaGraphNodeFindInClone(&lasts, last, clone));
    CHECK(cudaGraphAddDependencies(clone, &lasts, &sets, nullptr, 1));
    cudaGraphExec_t none;
    EXPECT(refused(cudaGraphInstantiate(&none, clone, 0), cudaErrorInvalidValue));
    CHECK(cudaGraphRemoveDependencies(clone, &lasts, &sets, nullptr, 1));
    CHECK(cudaGraphInstantiate(&none, clone, 0));
    CHECK(cudaGraphExecDestroy(none));
#endif
    CHECK(cudaGraphExecDestroy(x));
    for (cudaGraph_t g : {graph, inner, clone}) CHECK(cudaGraphDestroy(g));
    CHECK(cudaEventDestroy(event));
}

static void refusals() {
    cudaGraph_t graph;
    cudaEvent_t event;
    int *memory;
    CHECK(cudaEventCreate(&event));
    EXPECT(refused(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported));
    EXPECT(refused(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState));
    // A call that waits ends the capture, whatever comes.
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT(refused(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported));
    EXPECT(status(stream) == cudaStreamCaptureStatusInvalidated);
    EXPECT(refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated) && graph == nullptr);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT(refused(cudaMalloc(&memory, 64), cudaErrorStreamCaptureUnsupported));
    EXPECT(refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated));
    // To ask for an event that is captured ends it, too.
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaEventRecord(event, stream));
    EXPECT(refused(cudaEventQuery(event), cudaErrorCapturedEvent));
    EXPECT(status(stream) == cudaStreamCaptureStatusInvalidated);
    EXPECT(refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaEventRecord(event, stream));
    EXPECT(refused(cudaEventSynchronize(event), cudaErrorCapturedEvent));
    EXPECT(refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated));
    // Not so in a relaxed one.
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CHECK(cudaMalloc(&memory, 64));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFree(memory));
    // An event of outside; a stream that does not come back; the legacy stream beside a blocking one.
    CHECK(cudaEventRecord(event, other));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT(refused(cudaStreamWaitEvent(stream, event, 0), cudaErrorStreamCaptureIsolation));
    EXPECT(refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaEventRecord(event, stream));
    CHECK(cudaStreamWaitEvent(other, event, 0));
    add<<<1, N, 0, other>>>(a, 1);
    EXPECT(refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined));
    EXPECT(status(other) == cudaStreamCaptureStatusNone);
    // A stream that did not begin it breaks it.
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaEventRecord(event, stream));
    CHECK(cudaStreamWaitEvent(other, event, 0));
    EXPECT(refused(cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureUnmatched));
    EXPECT(status(stream) == cudaStreamCaptureStatusInvalidated && status(other) == cudaStreamCaptureStatusInvalidated);
    EXPECT(refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated));
    cudaStream_t blocking;
    CHECK(cudaStreamCreate(&blocking));
    CHECK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    add<<<1, N>>>(a, 1);
    EXPECT(refused(cudaGetLastError(), cudaErrorStreamCaptureImplicit));
    EXPECT(refused(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated));
    add<<<1, N>>>(a, 1);
    CHECK(cudaGetLastError());
    // Another thread ends it without a graph, a relaxed one with it.
    CHECK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeThreadLocal));
    std::thread([&] { EXPECT(cudaStreamEndCapture(blocking, &graph) == cudaErrorStreamCaptureWrongThread); }).join();
    EXPECT(status(blocking) == cudaStreamCaptureStatusNone);
    EXPECT(refused(cudaStreamEndCapture(blocking, &graph), cudaErrorIllegalState));
    CHECK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    std::thread([&] { CHECK(cudaStreamEndCapture(blocking, &graph)); }).join();
    CHECK(cudaGraphDestroy(graph));
    EXPECT(refused(cudaGraphDestroy(graph), cudaErrorInvalidValue));
    // A stream that is destroyed meanwhile takes its capture along: calls that it forbade are allowed.
    CHECK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal));
    add<<<1, N, 0, blocking>>>(a, 1);
    CHECK(cudaStreamDestroy(blocking));
    CHECK(cudaMalloc(&memory, 64));
    CHECK(cudaFree(memory));
    CHECK(cudaEventDestroy(event));
    CHECK(cudaDeviceSynchronize());
}

int main() {
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&a, N * 4));
    CHECK(cudaMalloc(&b, N * 4));
    CHECK(cudaMalloc(&c, N * 4));
    replays();
    forks();
    sources();
    unified_sources();
    children_and_updates();
    by_hand();
    refusals();
    std::printf("right\n");
    return 0;
}
