// Graphs that allocate and free, by hand and captured; stream memory operations in graphs; user objects that graphs keep alive. Prints "right".
#include "check.h"

#include <cstdint>
#include <cuda.h>
#include <string>

#define DRIVER(call) EXPECT((call) == CUDA_SUCCESS)
/* The driver's functions, found as libraries find them. */
template <class F> static F *driver(const char *name) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
    EXPECT(found && result == cudaDriverEntryPointSuccess);
    return (F *)found;
}
#define USE(name) static decltype(name) *const p_##name = driver<decltype(name)>(#name)

static bool refused(cudaError_t error, cudaError_t as) {
    cudaGetLastError();
    if (error != as) std::printf("%s instead of %s\n", cudaGetErrorName(error), cudaGetErrorName(as));
    return error == as;
}

__global__ void fill(int *v, int what) { v[threadIdx.x] = what; }
__global__ void add(const int *a, int *to) { to[threadIdx.x] += a[threadIdx.x]; }

static const int N = 256;
static cudaStream_t stream;
static int *sum;

static int result() {
    int h[N];
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(h, sum, sizeof h, cudaMemcpyDeviceToHost));
    for (int i = 1; i < N; i++) EXPECT(h[i] == h[0]);
    return h[0];
}

static uint64_t figure(cudaGraphMemAttributeType which) {
    uint64_t bytes = 77;
    CHECK(cudaDeviceGetGraphMemAttribute(0, which, &bytes));
    return bytes;
}

// Memory that lives from one call of a graph to another.
static void captured() {
    CHECK(cudaMemset(sum, 0, N * 4));
    CHECK(cudaDeviceSynchronize());
    int *v;
    cudaGraph_t graph;
    cudaGraphExec_t x;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMallocAsync(&v, N * 4, stream));
    fill<<<1, N, 0, stream>>>(v, 5);
    add<<<1, N, 0, stream>>>(v, sum);
    CHECK(cudaFreeAsync(v, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&x, graph, 0));
    for (int i = 1; i <= 3; i++) {
        CHECK(cudaGraphLaunch(x, stream));
        EXPECT(result() == 5 * i);
    }
    // As long as something can be launched, or is a graph, its memory is in use.
    EXPECT(figure(cudaGraphMemAttrUsedMemCurrent) >= N * 4 && figure(cudaGraphMemAttrReservedMemCurrent) >= N * 4);
    cudaGraph_t other;
    EXPECT(refused(cudaGraphClone(&other, graph), cudaErrorNotSupported));
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaDeviceGraphMemTrim(0)); // a driver tells it as used until then
    EXPECT(figure(cudaGraphMemAttrUsedMemCurrent) == 0);
    EXPECT(figure(cudaGraphMemAttrReservedMemCurrent) == 0);
}

// A stream that captured is destroyed before the capture ends: what it was given stays, joined or not.
static void destroyed_streams() {
    cudaGraph_t graph;
    for (bool joined : {true, false}) {
        cudaStream_t side;
        cudaEvent_t fork, join;
        CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
        CHECK(cudaEventCreate(&fork));
        CHECK(cudaEventCreate(&join));
        CHECK(cudaMemset(sum, 0, N * 4));
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        CHECK(cudaEventRecord(fork, stream));
        CHECK(cudaStreamWaitEvent(side, fork, 0));
        fill<<<1, N, 0, side>>>(sum, 8);
        CHECK(cudaEventRecord(join, side));
        if (joined) CHECK(cudaStreamWaitEvent(stream, join, 0));
        CHECK(cudaStreamDestroy(side));
        CHECK(cudaEventDestroy(fork));
        CHECK(cudaEventDestroy(join));
        if (!joined) {
            EXPECT(refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined));
            continue;
        }
        CHECK(cudaStreamEndCapture(stream, &graph));
        cudaGraphExec_t x;
        CHECK(cudaGraphInstantiate(&x, graph, 0));
        CHECK(cudaGraphLaunch(x, stream));
        EXPECT(result() == 8);
        CHECK(cudaGraphExecDestroy(x));
        CHECK(cudaGraphDestroy(graph));
    }
}

// Memory that outlives its graph, and is freed by the program; a launch that would allocate it again.
static void by_hand() {
    cudaGraph_t graph;
    cudaGraphExec_t x;
    cudaGraphNode_t node, kernel;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaMemAllocNodeParams p = {};
    p.poolProps.allocType = cudaMemAllocationTypePinned;
    p.poolProps.location = {cudaMemLocationTypeDevice, 0};
    p.bytesize = N * 4;
    CHECK(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &p));
    EXPECT(p.dptr);
    int *v = (int *)p.dptr, seven = 7;
    void *args[] = {&v, &seven};
    cudaKernelNodeParams k = {};
    k.func = (void *)fill;
    k.gridDim = dim3(1), k.blockDim = dim3(N);
    k.kernelParams = args;
    CHECK(cudaGraphAddKernelNode(&kernel, graph, &node, 1, &k));
    cudaMemAllocNodeParams told = {};
    CHECK(cudaGraphMemAllocNodeGetParams(node, &told));
    EXPECT(told.dptr == p.dptr && told.bytesize == N * 4 && told.poolProps.location.id == 0);
    EXPECT(refused(cudaGraphDestroyNode(node), cudaErrorNotSupported));
    p.bytesize = 0;
    EXPECT(refused(cudaGraphAddMemAllocNode(&kernel, graph, nullptr, 0, &p), cudaErrorInvalidValue));
    EXPECT(refused(cudaGraphAddMemFreeNode(&kernel, graph, nullptr, 0, sum), cudaErrorInvalidValue));
    EXPECT(refused(cudaFree(v), cudaErrorInvalidValue)); // no launch has allocated it
    CHECK(cudaGraphInstantiate(&x, graph, 0));
    CHECK(cudaGraphLaunch(x, stream));
    EXPECT(refused(cudaGraphLaunch(x, stream), cudaErrorInvalidValue));
    EXPECT(figure(cudaGraphMemAttrUsedMemCurrent) >= N * 4);
    CHECK(cudaMemset(sum, 0, N * 4));
    CHECK(cudaDeviceSynchronize());
    add<<<1, N, 0, stream>>>(v, sum);
    EXPECT(result() == 7);
    CHECK(cudaFreeAsync(v, stream));
    CHECK(cudaGraphLaunch(x, stream));
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphDestroy(graph));
    add<<<1, N, 0, stream>>>(v, sum); // still the program's
    EXPECT(result() == 14);
    CHECK(cudaFree(v));
    EXPECT(refused(cudaFree(v), cudaErrorInvalidValue));
    uint64_t zero = 0;
    EXPECT(figure(cudaGraphMemAttrUsedMemHigh) >= N * 4);
    CHECK(cudaDeviceGraphMemTrim(0));
    CHECK(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &zero));
    EXPECT(figure(cudaGraphMemAttrUsedMemHigh) == 0);
}

// One graph allocates, another frees; and one whose launches free what the last one left.
static void across() {
    cudaGraph_t first, second;
    cudaGraphExec_t x, y;
    int *v;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMallocAsync(&v, N * 4, stream));
    fill<<<1, N, 0, stream>>>(v, 3);
    CHECK(cudaStreamEndCapture(stream, &first));
    CHECK(cudaGraphCreate(&second, 0));
    cudaGraphNode_t node;
    CHECK(cudaGraphAddMemFreeNode(&node, second, nullptr, 0, v));
    void *told;
    CHECK(cudaGraphMemFreeNodeGetParams(node, &told));
    EXPECT(told == v);
    CHECK(cudaGraphInstantiate(&x, first, 0));
    CHECK(cudaGraphInstantiate(&y, second, 0));
    for (int i = 0; i < 3; i++) {
        CHECK(cudaGraphLaunch(x, stream));
        CHECK(cudaGraphLaunch(y, stream));
    }
    EXPECT(refused(cudaGraphLaunch(y, stream), cudaErrorInvalidValue));
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphExecDestroy(y));
    CHECK(cudaGraphDestroy(second));
    CHECK(cudaGraphInstantiate(&x, first, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(x, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphDestroy(first));
    CHECK(cudaFree(v));
}

// Writes and waits of words, captured and as a node.
static void words() {
    USE(cuCtxGetCurrent);
    USE(cuGraphAddBatchMemOpNode);
    USE(cuGraphBatchMemOpNodeGetParams);
    USE(cuGraphBatchMemOpNodeSetParams);
    USE(cuGraphCreate);
    USE(cuGraphDestroy);
    USE(cuGraphExecBatchMemOpNodeSetParams);
    USE(cuGraphExecDestroy);
    USE(cuGraphInstantiateWithFlags);
    USE(cuGraphLaunch);
    USE(cuMemAlloc);
    USE(cuMemFree);
    USE(cuMemcpyDtoH);
    USE(cuMemsetD32);
    USE(cuStreamBeginCapture);
    USE(cuStreamEndCapture);
    USE(cuStreamSynchronize);
    USE(cuStreamWaitValue32);
    USE(cuStreamWriteValue32);
    CUdeviceptr word;
    DRIVER(p_cuMemAlloc(&word, 8));
    DRIVER(p_cuMemsetD32(word, 0, 2));
    CUgraph graph;
    CUgraphExec x;
    DRIVER(p_cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    DRIVER(p_cuStreamWriteValue32(stream, word, 5, 0));
    DRIVER(p_cuStreamWaitValue32(stream, word, 5, CU_STREAM_WAIT_VALUE_EQ));
    DRIVER(p_cuStreamEndCapture(stream, &graph));
    DRIVER(p_cuGraphInstantiateWithFlags(&x, graph, 0));
    unsigned seen[2];
    DRIVER(p_cuMemcpyDtoH(seen, word, 8));
    EXPECT(seen[0] == 0);
    DRIVER(p_cuGraphLaunch(x, stream));
    DRIVER(p_cuStreamSynchronize(stream));
    DRIVER(p_cuMemcpyDtoH(seen, word, 8));
    EXPECT(seen[0] == 5);
    DRIVER(p_cuGraphExecDestroy(x));
    DRIVER(p_cuGraphDestroy(graph));

    DRIVER(p_cuGraphCreate(&graph, 0));
    CUstreamBatchMemOpParams ops[2] = {};
    ops[0].operation = ops[1].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[0].writeValue.address = word, ops[0].writeValue.value = 11;
    ops[1].writeValue.address = word + 4, ops[1].writeValue.value = 12;
    CUcontext c;
    DRIVER(p_cuCtxGetCurrent(&c));
    CUDA_BATCH_MEM_OP_NODE_PARAMS p = {c, 2, ops, 0}, told;
    CUgraphNode node;
    DRIVER(p_cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &p));
    ops[0].writeValue.value = 99; // the node has its own
    DRIVER(p_cuGraphBatchMemOpNodeGetParams(node, &told));
    EXPECT(told.count == 2 && told.paramArray != ops && told.paramArray[0].writeValue.value == 11);
    DRIVER(p_cuGraphInstantiateWithFlags(&x, graph, 0));
    DRIVER(p_cuGraphLaunch(x, stream));
    DRIVER(p_cuStreamSynchronize(stream));
    DRIVER(p_cuMemcpyDtoH(seen, word, 8));
    EXPECT(seen[0] == 11 && seen[1] == 12);
    ops[1].writeValue.value = 13;
    DRIVER(p_cuGraphExecBatchMemOpNodeSetParams(x, node, &p));
    DRIVER(p_cuGraphLaunch(x, stream));
    DRIVER(p_cuStreamSynchronize(stream));
    DRIVER(p_cuMemcpyDtoH(seen, word, 8));
    EXPECT(seen[0] == 99 && seen[1] == 13);
    DRIVER(p_cuGraphBatchMemOpNodeSetParams(node, &p));
    DRIVER(p_cuGraphBatchMemOpNodeGetParams(node, &told));
    EXPECT(told.paramArray[1].writeValue.value == 13);
    p.count = 0;
    EXPECT(p_cuGraphBatchMemOpNodeSetParams(node, &p) == CUDA_SUCCESS); // none is a number of operations, too
    p.count = 300;
    EXPECT(p_cuGraphBatchMemOpNodeSetParams(node, &p) == CUDA_ERROR_INVALID_VALUE);
    DRIVER(p_cuGraphExecDestroy(x));
    DRIVER(p_cuGraphDestroy(graph));
    DRIVER(p_cuMemFree(word));
}

static int ended;
static void CUDART_CB end(void *by) { ended += *(int *)by; }

static void objects() {
    int one = 1;
    cudaUserObject_t u;
    cudaGraph_t graph, copy;
    cudaGraphExec_t x;
    EXPECT(refused(cudaUserObjectCreate(&u, &one, end, 0, cudaUserObjectNoDestructorSync), cudaErrorInvalidValue));
    EXPECT(refused(cudaUserObjectCreate(&u, &one, end, 1, 0), cudaErrorInvalidValue));
    CHECK(cudaUserObjectCreate(&u, &one, end, 1, cudaUserObjectNoDestructorSync));
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphRetainUserObject(graph, u, 1, cudaGraphUserObjectMove)); // the program has none any more
    CHECK(cudaGraphClone(&copy, graph));
    CHECK(cudaGraphInstantiate(&x, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphDestroy(copy));
    EXPECT(ended == 0);
    CHECK(cudaGraphExecDestroy(x));
    EXPECT(ended == 1);
    CHECK(cudaUserObjectCreate(&u, &one, end, 2, cudaUserObjectNoDestructorSync));
    CHECK(cudaUserObjectRetain(u, 3));
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphRetainUserObject(graph, u, 2));
    EXPECT_OF_OURS(refused(cudaGraphReleaseUserObject(graph, u, 3), cudaErrorInvalidValue));
    CHECK(cudaGraphReleaseUserObject(graph, u, 1));
    CHECK(cudaUserObjectRelease(u, 5));
    EXPECT(ended == 1);
    CHECK(cudaGraphDestroy(graph));
    EXPECT(ended == 2);
    EXPECT_OF_OURS(refused(cudaUserObjectRelease(u, 1), cudaErrorInvalidValue));
}

int main(int argc, char **argv) {
    struct {
        const char *name;
        void (*run)();
    } cases[] = {{"captured", captured}, {"destroyed_streams", destroyed_streams}, {"by_hand", by_hand}, {"across", across}, {"words", words}, {"objects", objects}};
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&sum, N * 4));
    for (auto &c : cases)
        if (argc < 2 || c.name == std::string(argv[1])) c.run();
    std::printf("right\n");
}
