// Work for a stream: copies, fills, kernels and host functions, queued, or made nodes of a graph. Where a parameter is `a`, it is the step's numbers.
#pragma once
#include "objects.h"
#include <unistd.h>

inline bool of_host(const Block &block) { return block.kind >= PAGEABLE; }

inline void run_host_work(void *data) {
    const HostWork &work = *static_cast<HostWork *>(data);
    switch (work.what) {
    case HostWork::FILL:
        for (size_t i = 0; i < work.size; i++) work.to[i] = static_cast<unsigned char>(work.value + i * 7 + (i >> 8));
        break;
    case HostWork::ADD:
        for (size_t i = 0; i < work.size; i++) work.to[i] = static_cast<unsigned char>(work.to[i] + work.value);
        break;
    case HostWork::XOR:
        for (size_t i = 0; i < work.size; i++) work.to[i] ^= work.from[i];
        break;
    case HostWork::SLEEP: usleep(work.value); break;
    case HostWork::SIGNAL: work.signal->store(1, std::memory_order_release); break;
    }
}

inline void callback(CUstream, CUresult, void *data) { run_host_work(data); }

struct Copy { // to, offset, pitch, from, offset, pitch, bytes of a row, rows
    const Block &to, &from;
    CUdeviceptr to_address, from_address;
    unsigned char *to_host, *from_host;
    size_t to_pitch, from_pitch, size, rows;
    Copy(Objects &o, const int64_t *a)
        : to(o.blocks[a[0]]), from(o.blocks[a[3]]), to_address(to.address + a[1]), from_address(from.address + a[4]), to_host(to.host + a[1]),
          from_host(from.host + a[4]), to_pitch(a[2]), from_pitch(a[5]), size(a[6]), rows(a[7]) {}
    // What copies that are not told of two kinds of memory take: any pointer.
    CUdeviceptr to_any() const { return of_host(to) ? reinterpret_cast<CUdeviceptr>(to_host) : to_address; }
    CUdeviceptr from_any() const { return of_host(from) ? reinterpret_cast<CUdeviceptr>(from_host) : from_address; }
};

template <typename Shape> Shape shape(const Copy &copy) {
    Shape shape = {};
    shape.srcMemoryType = of_host(copy.from) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    shape.srcHost = copy.from_host;
    shape.srcDevice = copy.from_address;
    shape.srcPitch = copy.from_pitch;
    shape.dstMemoryType = of_host(copy.to) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    shape.dstHost = copy.to_host;
    shape.dstDevice = copy.to_address;
    shape.dstPitch = copy.to_pitch;
    shape.WidthInBytes = copy.size;
    shape.Height = copy.rows;
    return shape;
}

inline CUDA_MEMCPY3D shape_3d(const Copy &copy) {
    auto shape = ::shape<CUDA_MEMCPY3D>(copy);
    shape.Depth = 1;
    shape.srcHeight = shape.dstHeight = copy.rows;
    return shape;
}

inline void copy_batch(const Copy &copy, CUstream stream) {
    std::vector<CUdeviceptr> to, from;
    std::vector<size_t> sizes(copy.rows, copy.size);
    for (size_t i = 0; i < copy.rows; i++) {
        to.push_back(copy.to_any() + i * copy.to_pitch);
        from.push_back(copy.from_any() + i * copy.from_pitch);
    }
    CUmemcpyAttributes attributes = {};
    attributes.srcAccessOrder = copy.from.kind == PAGEABLE ? CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL : CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    size_t first = 0;
    CHECK(cuMemcpyBatchAsync(to.data(), from.data(), sizes.data(), copy.rows, &attributes, &first, 1, stream));
}

enum Way { TYPED, TYPED_SYNC, ANY, ANY_SYNC, ROWS, ROWS_SYNC, ROWS_3D, BATCH };

inline void copy(Objects &o, Way way, const int64_t *a, CUstream stream) {
    Copy copy(o, a);
    switch (way) {
    case TYPED:
        if (of_host(copy.from))
            CHECK(cuMemcpyHtoDAsync(copy.to_address, copy.from_host, copy.size, stream));
        else if (of_host(copy.to))
            CHECK(cuMemcpyDtoHAsync(copy.to_host, copy.from_address, copy.size, stream));
        else
            CHECK(cuMemcpyDtoDAsync(copy.to_address, copy.from_address, copy.size, stream));
        break;
    case TYPED_SYNC:
        if (of_host(copy.from))
            CHECK(cuMemcpyHtoD(copy.to_address, copy.from_host, copy.size));
        else if (of_host(copy.to))
            CHECK(cuMemcpyDtoH(copy.to_host, copy.from_address, copy.size));
        else
            CHECK(cuMemcpyDtoD(copy.to_address, copy.from_address, copy.size));
        break;
    case ANY: CHECK(cuMemcpyAsync(copy.to_any(), copy.from_any(), copy.size, stream)); break;
    case ANY_SYNC: CHECK(cuMemcpy(copy.to_any(), copy.from_any(), copy.size)); break;
    case ROWS: {
        auto rows = shape<CUDA_MEMCPY2D>(copy);
        CHECK(cuMemcpy2DAsync(&rows, stream));
        break;
    }
    case ROWS_SYNC: {
        auto rows = shape<CUDA_MEMCPY2D>(copy);
        CHECK(cuMemcpy2D(&rows));
        break;
    }
    case ROWS_3D: {
        auto rows = shape_3d(copy);
        CHECK(cuMemcpy3DAsync(&rows, stream));
        break;
    }
    case BATCH: copy_batch(copy, stream); break;
    }
}

// to, offset, bytes of an element, value, pitch, elements of a row, rows
inline void fill(Objects &o, bool sync, const int64_t *a, CUstream stream) {
    CUdeviceptr to = o.blocks[a[0]].address + a[1];
    auto value = static_cast<unsigned>(a[3]);
    size_t pitch = a[4], count = a[5], rows = a[6];
    auto value8 = static_cast<unsigned char>(value);
    auto value16 = static_cast<unsigned short>(value);
    if (rows == 1 && sync) {
        if (a[2] == 1) CHECK(cuMemsetD8(to, value8, count));
        if (a[2] == 2) CHECK(cuMemsetD16(to, value16, count));
        if (a[2] == 4) CHECK(cuMemsetD32(to, value, count));
    } else if (rows == 1) {
        if (a[2] == 1) CHECK(cuMemsetD8Async(to, value8, count, stream));
        if (a[2] == 2) CHECK(cuMemsetD16Async(to, value16, count, stream));
        if (a[2] == 4) CHECK(cuMemsetD32Async(to, value, count, stream));
    } else if (sync) {
        if (a[2] == 1) CHECK(cuMemsetD2D8(to, pitch, value8, count, rows));
        if (a[2] == 2) CHECK(cuMemsetD2D16(to, pitch, value16, count, rows));
        if (a[2] == 4) CHECK(cuMemsetD2D32(to, pitch, value, count, rows));
    } else {
        if (a[2] == 1) CHECK(cuMemsetD2D8Async(to, pitch, value8, count, rows, stream));
        if (a[2] == 2) CHECK(cuMemsetD2D16Async(to, pitch, value16, count, rows, stream));
        if (a[2] == 4) CHECK(cuMemsetD2D32Async(to, pitch, value, count, rows, stream));
    }
}

struct Launch { // which, to, offset, from, offset, n, k, c, m, threads of a block
    CUdeviceptr out, in;
    unsigned n, k, c, m, threads, blocks;
    CUfunction function;
    void *parameters[6] = {&out, &in, &n, &k, &c, &m};
    Launch(Objects &o, const int64_t *a)
        : out(o.blocks[a[1]].address + a[2]), in(o.blocks[a[3]].address + a[4]), n(a[5]), k(a[6]), c(a[7]), m(a[8]), threads(a[9]),
          blocks((n + threads - 1) / threads), function(o.functions[a[0]]) {}
    Launch(const Launch &) = delete;
    CUDA_KERNEL_NODE_PARAMS node() {
        CUDA_KERNEL_NODE_PARAMS node = {};
        node.func = function;
        node.gridDimX = blocks;
        node.blockDimX = threads;
        node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1;
        node.kernelParams = parameters;
        return node;
    }
};

inline void launch(Objects &o, const int64_t *a, CUstream stream) {
    Launch l(o, a);
    CHECK(cuLaunchKernel(l.function, l.blocks, 1, 1, l.threads, 1, 1, 0, stream, l.parameters, nullptr));
}

// what, to, offset, from, offset, bytes, value; of SLEEP the value are microseconds, of SIGNAL it is the signal's number
inline HostWork *host_work(Objects &o, const int64_t *a) {
    auto *work = new HostWork{static_cast<HostWork::What>(a[0]), nullptr, nullptr, static_cast<size_t>(a[5]), static_cast<uint32_t>(a[6]), nullptr};
    if (a[1] >= 0) work->to = o.blocks[a[1]].host + a[2];
    if (a[3] >= 0) work->from = o.blocks[a[3]].host + a[4];
    if (work->what == HostWork::SIGNAL) work->signal = &o.signals[a[6]];
    std::lock_guard<std::mutex> held(o.work_lock);
    o.work.emplace_back(work);
    return work;
}

enum NodeKind { KERNEL_NODE, FILL_NODE, COPY_NODE, HOST_NODE };

// graph, number of dependencies, these (numbers of nodes), kind, and what a step of that kind has but for the stream
inline void add_node(Objects &o, const int64_t *a) {
    auto &nodes = o.nodes[a[0]];
    CUgraph graph = o.graphs[a[0]];
    size_t count = a[1];
    std::vector<CUgraphNode> before;
    for (size_t i = 0; i < count; i++) before.push_back(nodes[a[2 + i]]);
    const int64_t *of = a + 2 + count + 1;
    CUgraphNode node = nullptr;
    switch (static_cast<NodeKind>(a[2 + count])) {
    case KERNEL_NODE: {
        Launch l(o, of);
        CUDA_KERNEL_NODE_PARAMS params = l.node();
        CHECK(cuGraphAddKernelNode(&node, graph, before.data(), count, &params));
        break;
    }
    case FILL_NODE: {
        CUDA_MEMSET_NODE_PARAMS params = {};
        params.dst = o.blocks[of[0]].address + of[1];
        params.elementSize = of[2];
        params.value = of[3];
        params.pitch = of[4];
        params.width = of[5];
        params.height = of[6];
        CHECK(cuGraphAddMemsetNode(&node, graph, before.data(), count, &params, o.context));
        break;
    }
    case COPY_NODE: {
        CUDA_MEMCPY3D params = shape_3d(Copy(o, of));
        CHECK(cuGraphAddMemcpyNode(&node, graph, before.data(), count, &params, o.context));
        break;
    }
    case HOST_NODE: {
        CUDA_HOST_NODE_PARAMS params = {};
        params.fn = run_host_work;
        params.userData = host_work(o, of);
        CHECK(cuGraphAddHostNode(&node, graph, before.data(), count, &params));
        break;
    }
    }
    nodes.push_back(node);
}
