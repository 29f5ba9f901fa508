// Operations of streams on words of memory: to wait for a value, to write one.
#include "conformance.h"

static bool done(CUstream stream) { return cuStreamQuery(stream) == CUDA_SUCCESS; }

template <typename T> static T word_at(CUdeviceptr address) {
    T value = garbage<T>();
    CUstream reader = make_stream(); // the default stream could wait for one that waits
    CHECK(cuMemcpyDtoHAsync(&value, address, sizeof value, reader));
    CHECK(cuStreamSynchronize(reader));
    return value;
}

CASE(words_of_32_bits, "cuStreamWaitValue32", "cuStreamWriteValue32") {
    CUdeviceptr word = upload(filled(4, 5u));
    CHECK(cuCtxSynchronize());
    CUstream waiting = make_stream(), writing = make_stream();
    CHECK(cuStreamWaitValue32(waiting, word, 7, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(cuStreamWriteValue32(waiting, word + 4, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    EXPECT(stays_behind(waiting, make_stream()));
    EXPECT(word_at<unsigned>(word + 4) == 5);
    CHECK(cuStreamWriteValue32(writing, word, 7, CU_STREAM_WRITE_VALUE_DEFAULT));
    EVENTUALLY(done(writing) && done(waiting));
    EXPECT(word_at<unsigned>(word) == 7 && word_at<unsigned>(word + 4) == 1 && word_at<unsigned>(word + 8) == 5);
    CHECK(cuStreamWaitValue32(waiting, word, 6, CU_STREAM_WAIT_VALUE_GEQ)); // is so already
    EVENTUALLY(done(waiting));
    REFUSED(cuStreamWaitValue32(waiting, word + 1, 7, CU_STREAM_WAIT_VALUE_EQ), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamWaitValue32(waiting, word, 7, 0x80), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamWriteValue32(waiting, word, 7, 0x80), CUDA_ERROR_INVALID_VALUE);
}

CASE(words_of_64_bits, "cuStreamWaitValue64", "cuStreamWriteValue64") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
    CUdeviceptr word = upload(filled<cuuint64_t>(4, 5));
    CHECK(cuCtxSynchronize());
    CUstream waiting = make_stream(), writing = make_stream();
    const cuuint64_t large = cuuint64_t{1} << 40;
    CHECK(cuStreamWaitValue64(waiting, word, large, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(cuStreamWriteValue64(waiting, word + 8, large + 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    EXPECT(stays_behind(waiting, make_stream()));
    EXPECT(word_at<cuuint64_t>(word + 8) == 5);
    CHECK(cuStreamWriteValue64(writing, word, large + 2, CU_STREAM_WRITE_VALUE_DEFAULT));
    EVENTUALLY(done(writing) && done(waiting));
    EXPECT(word_at<cuuint64_t>(word) == large + 2 && word_at<cuuint64_t>(word + 8) == large + 1);
    REFUSED(cuStreamWaitValue64(waiting, word + 4, 7, CU_STREAM_WAIT_VALUE_EQ), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamWriteValue64(waiting, word + 4, 7, CU_STREAM_WRITE_VALUE_DEFAULT), CUDA_ERROR_INVALID_VALUE);
}

CASE(batch, "cuStreamBatchMemOp") {
    CUdeviceptr word = upload(filled(4, 5u));
    CHECK(cuCtxSynchronize());
    CUstream waiting = make_stream(), writing = make_stream();
    CUstreamBatchMemOpParams operations[2] = {};
    operations[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    operations[0].waitValue.address = word, operations[0].waitValue.value = 9, operations[0].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    operations[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations[1].writeValue.address = word + 4, operations[1].writeValue.value = 10;
    CHECK(cuStreamBatchMemOp(waiting, 2, operations, 0));
    EXPECT(stays_behind(waiting, make_stream()));
    CHECK(cuStreamWriteValue32(writing, word, 9, CU_STREAM_WRITE_VALUE_DEFAULT));
    EVENTUALLY(done(waiting));
    EXPECT(word_at<unsigned>(word + 4) == 10);
    REFUSED(cuStreamBatchMemOp(waiting, 257, operations, 0), CUDA_ERROR_INVALID_VALUE); // at most 256
    REFUSED(cuStreamBatchMemOp(waiting, 2, operations, 1), CUDA_ERROR_INVALID_VALUE);
    UNCHECKED_BY_THE_DRIVER(cuStreamBatchMemOp(waiting, 2, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}
