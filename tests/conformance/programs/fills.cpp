// Fills: the elements, and no others, of rows at a pitch, too.
#include "gate.h"

// Device memory of 0x11 bytes.
static CUdeviceptr prepared(size_t bytes) {
    CUdeviceptr memory = upload(filled<unsigned char>(bytes, 0x11));
    CHECK(cuCtxSynchronize());
    return memory;
}

// Elements 1..8 of ten are `value`, the first and the last are not.
template <typename T> static bool filled_between(CUdeviceptr memory, T value) {
    std::vector<T> found = download<T>(memory, 10), expected(10);
    std::memset(expected.data(), 0x11, 10 * sizeof(T));
    for (int i = 1; i < 9; i++) expected[i] = value;
    return found == expected;
}

// Of four rows of eight elements, elements 1..5 of rows 1 and 2.
template <typename T> static bool filled_rows(CUdeviceptr memory, T value) {
    std::vector<T> found = download<T>(memory, 32), expected(32);
    std::memset(expected.data(), 0x11, 32 * sizeof(T));
    for (int row = 1; row < 3; row++)
        for (int i = 1; i < 6; i++) expected[row * 8 + i] = value;
    return found == expected;
}

CASE(bytes, "cuMemsetD8", "cuMemsetD8Async") {
    CUdeviceptr one = prepared(10), two = prepared(10);
    CHECK(cuMemsetD8(one + 1, 0xab, 8));
    EXPECT(filled_between<unsigned char>(one, 0xab));
    CUstream stream = make_stream();
    Gate gate;
    gate.put(stream);
    CHECK(cuMemsetD8Async(two + 1, 0xcd, 8, stream));
    EXPECT(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    gate.open = true;
    CHECK(cuStreamSynchronize(stream));
    EXPECT(filled_between<unsigned char>(two, 0xcd));
    REFUSED(cuMemsetD8(one + 1, 0, 10), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemsetD8Async(one + 1, 0, 10, stream), CUDA_ERROR_INVALID_VALUE);
}

CASE(words_of_16_bits, "cuMemsetD16", "cuMemsetD16Async") {
    CUdeviceptr one = prepared(20), two = prepared(20);
    CHECK(cuMemsetD16(one + 2, 0xabcd, 8));
    EXPECT(filled_between<unsigned short>(one, 0xabcd));
    CUstream stream = make_stream();
    CHECK(cuMemsetD16Async(two + 2, 0x1234, 8, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(filled_between<unsigned short>(two, 0x1234));
    REFUSED(cuMemsetD16(one + 1, 0, 1), CUDA_ERROR_INVALID_VALUE); // not aligned
    REFUSED(cuMemsetD16Async(one + 1, 0, 1, stream), CUDA_ERROR_INVALID_VALUE);
}

CASE(words_of_32_bits, "cuMemsetD32", "cuMemsetD32Async") {
    CUdeviceptr one = prepared(40), two = prepared(40);
    CHECK(cuMemsetD32(one + 4, 0xabcdef01, 8));
    EXPECT(filled_between<unsigned>(one, 0xabcdef01));
    CUstream stream = make_stream();
    CHECK(cuMemsetD32Async(two + 4, 0x12345678, 8, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(filled_between<unsigned>(two, 0x12345678));
    REFUSED(cuMemsetD32(one + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemsetD32Async(one + 2, 0, 1, stream), CUDA_ERROR_INVALID_VALUE);
}

CASE(rows_of_bytes, "cuMemsetD2D8", "cuMemsetD2D8Async") {
    CUdeviceptr one = prepared(32), two = prepared(32);
    CHECK(cuMemsetD2D8(one + 9, 8, 0xab, 5, 2));
    EXPECT(filled_rows<unsigned char>(one, 0xab));
    CUstream stream = make_stream();
    CHECK(cuMemsetD2D8Async(two + 9, 8, 0xcd, 5, 2, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(filled_rows<unsigned char>(two, 0xcd));
    REFUSED(cuMemsetD2D8(one, 8, 0, 8, 5), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemsetD2D8Async(one, 8, 0, 8, 5, stream), CUDA_ERROR_INVALID_VALUE);
}

CASE(rows_of_16_bits, "cuMemsetD2D16", "cuMemsetD2D16Async") {
    CUdeviceptr one = prepared(64), two = prepared(64);
    CHECK(cuMemsetD2D16(one + 18, 16, 0xabcd, 5, 2));
    EXPECT(filled_rows<unsigned short>(one, 0xabcd));
    CUstream stream = make_stream();
    CHECK(cuMemsetD2D16Async(two + 18, 16, 0x1234, 5, 2, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(filled_rows<unsigned short>(two, 0x1234));
    REFUSED(cuMemsetD2D16(one + 1, 16, 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemsetD2D16Async(one + 1, 16, 0, 1, 1, stream), CUDA_ERROR_INVALID_VALUE);
}

CASE(rows_of_32_bits, "cuMemsetD2D32", "cuMemsetD2D32Async") {
    CUdeviceptr one = prepared(128), two = prepared(128);
    CHECK(cuMemsetD2D32(one + 36, 32, 0xabcdef01, 5, 2));
    EXPECT(filled_rows<unsigned>(one, 0xabcdef01));
    CUstream stream = make_stream();
    CHECK(cuMemsetD2D32Async(two + 36, 32, 0x12345678, 5, 2, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(filled_rows<unsigned>(two, 0x12345678));
    REFUSED(cuMemsetD2D32(one + 2, 32, 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemsetD2D32Async(one + 2, 32, 0, 1, 1, stream), CUDA_ERROR_INVALID_VALUE);
}
