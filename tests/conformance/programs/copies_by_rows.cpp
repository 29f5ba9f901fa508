// Copies of rectangles and boxes of linear memory: the rows at their pitches, and nothing between them.
#include "conformance.h"

using Bytes = std::vector<unsigned char>;

// What is compared: 5 rows of 6 bytes out of a source of pitch 8, at (1, 2) of a destination of pitch 10.
struct Rectangle {
    Bytes source = counting<unsigned char>(8 * 9);
    CUdeviceptr from = upload(source), to = allocate(10 * 9);
    CUDA_MEMCPY2D copy = {};

    Rectangle() {
        CHECK(cuMemsetD8(to, 0xcc, 10 * 9));
        CHECK(cuCtxSynchronize());
        copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.srcDevice = from, copy.srcPitch = 8, copy.srcXInBytes = 2, copy.srcY = 1;
        copy.dstDevice = to, copy.dstPitch = 10, copy.dstXInBytes = 1, copy.dstY = 2;
        copy.WidthInBytes = 6, copy.Height = 5;
    }

    bool arrived() const {
        Bytes expected(10 * 9, 0xcc), found = download<unsigned char>(to, 10 * 9);
        for (int row = 0; row < 5; row++)
            for (int i = 0; i < 6; i++) expected[(row + 2) * 10 + 1 + i] = source[(row + 1) * 8 + 2 + i];
        return found == expected;
    }
};

CASE(rectangle, "cuMemcpy2D") {
    Rectangle r;
    CHECK(cuMemcpy2D(&r.copy));
    EXPECT(r.arrived());
    Bytes host(12 * 7, 0xa5); // and to the host
    r.copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    r.copy.dstHost = host.data(), r.copy.dstPitch = 12;
    CHECK(cuMemcpy2D(&r.copy));
    EXPECT(host[2 * 12] == 0xa5 && host[2 * 12 + 1] == r.source[8 + 2] && host[6 * 12 + 6] == r.source[5 * 8 + 7] && host[6 * 12 + 7] == 0xa5);
    REFUSED(cuMemcpy2D(nullptr), CUDA_ERROR_INVALID_VALUE);
    r.copy.srcPitch = 5; // less than the width
    REFUSED(cuMemcpy2D(&r.copy), CUDA_ERROR_INVALID_VALUE);
}

CASE(rectangle_unaligned, "cuMemcpy2DUnaligned") {
    Rectangle r;
    CHECK(cuMemcpy2DUnaligned(&r.copy));
    EXPECT(r.arrived());
    r.copy.srcPitch = 5;
    REFUSED(cuMemcpy2DUnaligned(&r.copy), CUDA_ERROR_INVALID_VALUE);
}

CASE(rectangle_in_a_stream, "cuMemcpy2DAsync") {
    Rectangle r;
    CUstream stream = make_stream();
    CHECK(cuMemcpy2DAsync(&r.copy, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(r.arrived());
    r.copy.dstPitch = 5;
    REFUSED(cuMemcpy2DAsync(&r.copy, stream), CUDA_ERROR_INVALID_VALUE);
}

// 3 layers of 2 rows of 4 bytes, out of layers of 4 rows, at (1, 1, 1) of layers of 5 rows.
template <typename Copy> struct Box {
    Bytes source = counting<unsigned char>(8 * 4 * 4);
    CUdeviceptr from = upload(source), to = allocate(10 * 5 * 4);
    Copy copy = {};

    Box() {
        CHECK(cuMemsetD8(to, 0xcc, 10 * 5 * 4));
        CHECK(cuCtxSynchronize());
        copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.srcDevice = from, copy.srcPitch = 8, copy.srcHeight = 4, copy.srcXInBytes = 2, copy.srcY = 1, copy.srcZ = 1;
        copy.dstDevice = to, copy.dstPitch = 10, copy.dstHeight = 5, copy.dstXInBytes = copy.dstY = copy.dstZ = 1;
        copy.WidthInBytes = 4, copy.Height = 2, copy.Depth = 3;
    }

    bool arrived() const {
        Bytes expected(10 * 5 * 4, 0xcc), found = download<unsigned char>(to, 10 * 5 * 4);
        for (int layer = 0; layer < 3; layer++)
            for (int row = 0; row < 2; row++)
                for (int i = 0; i < 4; i++) expected[((layer + 1) * 5 + row + 1) * 10 + 1 + i] = source[((layer + 1) * 4 + row + 1) * 8 + 2 + i];
        return found == expected;
    }
};

CASE(box, "cuMemcpy3D", "cuMemcpy3DAsync") {
    Box<CUDA_MEMCPY3D> at_once, in_stream;
    CHECK(cuMemcpy3D(&at_once.copy));
    EXPECT(at_once.arrived());
    CUstream stream = make_stream();
    CHECK(cuMemcpy3DAsync(&in_stream.copy, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(in_stream.arrived());
    at_once.copy.srcPitch = in_stream.copy.srcPitch = 3;
    REFUSED(cuMemcpy3D(&at_once.copy), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpy3D(nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpy3DAsync(&in_stream.copy, stream), CUDA_ERROR_INVALID_VALUE);
}

CASE(box_between_contexts, "cuMemcpy3DPeer", "cuMemcpy3DPeerAsync") {
    Box<CUDA_MEMCPY3D_PEER> at_once, in_stream;
    at_once.copy.srcContext = at_once.copy.dstContext = in_stream.copy.srcContext = in_stream.copy.dstContext = primary;
    CHECK(cuMemcpy3DPeer(&at_once.copy));
    CHECK(cuCtxSynchronize());
    EXPECT(at_once.arrived());
    CUstream stream = make_stream();
    CHECK(cuMemcpy3DPeerAsync(&in_stream.copy, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(in_stream.arrived());
    at_once.copy.srcPitch = in_stream.copy.srcPitch = 3;
    REFUSED(cuMemcpy3DPeer(&at_once.copy), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpy3DPeerAsync(&in_stream.copy, stream), CUDA_ERROR_INVALID_VALUE);
}

// Two layers of two rows of 4 bytes, closely packed, to rows 6 bytes apart.
static CUDA_MEMCPY3D_BATCH_OP operation(CUdeviceptr from, CUdeviceptr to) {
    CUDA_MEMCPY3D_BATCH_OP op = {};
    op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr = from, op.src.op.ptr.rowLength = 4, op.src.op.ptr.layerHeight = 2;
    op.dst.op.ptr.ptr = to, op.dst.op.ptr.rowLength = 6, op.dst.op.ptr.layerHeight = 2;
    op.src.op.ptr.locHint = op.dst.op.ptr.locHint = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    op.extent = {4, 2, 2};
    op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return op;
}

static bool has_rows(CUdeviceptr to) {
    Bytes found = download<unsigned char>(to, 24), expected(24, 0xcc);
    for (int row = 0; row < 4; row++)
        for (int i = 0; i < 4; i++) expected[row * 6 + i] = static_cast<unsigned char>(row * 4 + i);
    return found == expected;
}

CASE(boxes, "cuMemcpy3DBatchAsync", "cuMemcpy3DWithAttributesAsync") {
    NEEDS_FUNCTION(cuMemcpy3DWithAttributesAsync);
    CUstream stream = make_stream();
    CUdeviceptr from = upload(counting<unsigned char>(16)), first = allocate(24), second = allocate(24), third = allocate(24);
    for (CUdeviceptr memory : {first, second, third}) CHECK(cuMemsetD8(memory, 0xcc, 24));
    CHECK(cuCtxSynchronize());
    CUDA_MEMCPY3D_BATCH_OP both[] = {operation(from, first), operation(from, second)}, one = operation(from, third);
    CHECK(cuMemcpy3DBatchAsync(2, both, 0, stream));
    CHECK(cuMemcpy3DWithAttributesAsync(&one, 0, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(has_rows(first) && has_rows(second) && has_rows(third));
    REFUSED(cuMemcpy3DBatchAsync(2, both, 1, stream), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemcpy3DWithAttributesAsync(&one, 1, stream), CUDA_ERROR_INVALID_VALUE);
}
