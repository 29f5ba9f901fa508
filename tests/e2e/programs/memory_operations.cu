// Stream memory operations: two streams that hand values to one another, a kernel that waits for a word that a stream writes, a batch, and every refusal. Prints "right".
// With the argument "meaning": only what any driver does, not which calls are refused, nor the first versions of the functions.
#include "check.h"
#include <cstdint>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>
#include <vector>

template <typename F> static F *find(const char *name) {
    static void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    F *f = driver ? (F *)dlsym(driver, name) : nullptr;
    if (!f) {
        std::printf("no %s\n", name);
        std::_Exit(5);
    }
    return f;
}
typedef CUresult Word32(CUstream, CUdeviceptr, cuuint32_t, unsigned);
typedef CUresult Word64(CUstream, CUdeviceptr, cuuint64_t, unsigned);
static auto *const wait32 = find<Word32>("cuStreamWaitValue32_v2");
static auto *const write32 = find<Word32>("cuStreamWriteValue32_v2");
static auto *const wait64 = find<Word64>("cuStreamWaitValue64_v2");
static auto *const write64 = find<Word64>("cuStreamWriteValue64_v2");
static auto *const old_write32 = find<Word32>("cuStreamWriteValue32");
static auto *const batch = find<CUresult(CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned)>("cuStreamBatchMemOp_v2");
static auto *const attribute = find<decltype(cuDeviceGetAttribute)>("cuDeviceGetAttribute");
static auto *const proc_address = find<CUresult(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *)>("cuGetProcAddress_v2");

static const CUresult INVALID = CUDA_ERROR_INVALID_VALUE;
enum { GEQ = CU_STREAM_WAIT_VALUE_GEQ, EQ = CU_STREAM_WAIT_VALUE_EQ, AND = CU_STREAM_WAIT_VALUE_AND, NOR = CU_STREAM_WAIT_VALUE_NOR };

struct Words {
    uint32_t ping, pong, flag, count;
    uint64_t wide;
    uint32_t seen[64];
};

__global__ void note(Words *w, unsigned round) { w->seen[w->count++] = round; }

__global__ void waits(volatile Words *w, unsigned value) {
    while (w->flag != value) {
    }
    w->wide = 7 * value;
}

static CUdeviceptr at(const void *p) { return (CUdeviceptr)(uintptr_t)p; }

static Words read(const Words *w) {
    Words host;
    CHECK(cudaMemcpy(&host, w, sizeof host, cudaMemcpyDeviceToHost));
    return host;
}

static void hand_over(cudaStream_t a, cudaStream_t b, Words *w) {
    for (unsigned i = 1; i <= 32; i++) {
        EXPECT(wait32(a, at(&w->ping), i, EQ) == 0);
        note<<<1, 1, 0, a>>>(w, 2 * i);
        EXPECT(write32(a, at(&w->pong), i, 0) == 0);
    }
    EXPECT(cudaStreamQuery(a) == cudaErrorNotReady);
    for (unsigned i = 1; i <= 32; i++) {
        note<<<1, 1, 0, b>>>(w, 2 * i - 1);
        EXPECT(write32(b, at(&w->ping), i, 0) == 0);
        EXPECT(wait32(b, at(&w->pong), i, GEQ) == 0);
    }
    CHECK(cudaStreamSynchronize(a));
    CHECK(cudaStreamSynchronize(b));
    Words host = read(w);
    EXPECT(host.count == 64 && host.ping == 32 && host.pong == 32);
    for (unsigned i = 0; i < 64; i++) EXPECT(host.seen[i] == i + 1);
}

// The kernel runs when the word is written; a host's copy ends a stream's wait as well.
static void kernel_and_copy(cudaStream_t a, cudaStream_t b, Words *w, bool all) {
    waits<<<1, 1, 0, a>>>(w, 99);
    if (all) EXPECT(old_write32(b, at(&w->flag), 99, 0) == CUDA_ERROR_NOT_SUPPORTED);
    EXPECT(write32(b, at(&w->flag), 99, 0) == 0);
    CHECK(cudaStreamSynchronize(a));
    EXPECT(read(w).wide == 693);
    EXPECT(wait64(a, at(&w->wide), 1ull << 40, AND) == 0);
    CHECK(cudaStreamSynchronize(b));
    EXPECT(cudaStreamQuery(a) == cudaErrorNotReady);
    uint64_t value = 3ull << 40;
    CHECK(cudaMemcpyAsync(&w->wide, &value, sizeof value, cudaMemcpyHostToDevice, b));
    CHECK(cudaStreamSynchronize(a));
}

static void batches(cudaStream_t a, cudaStream_t b, Words *w, bool all) {
    CUstreamBatchMemOpParams p[5] = {};
    p[0].operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    p[0].waitValue.address = at(&w->wide);
    p[0].waitValue.value64 = ~0ull << 1;
    p[0].waitValue.flags = NOR;
    p[1].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    p[1].writeValue.address = at(&w->ping);
    p[1].writeValue.value = 1234;
    p[2].operation = CU_STREAM_MEM_OP_BARRIER;
    p[3].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    p[3].writeValue.address = at(&w->seen[2]);
    p[3].writeValue.value64 = 0x1111111122222222ull;
    p[4].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    p[4].waitValue.address = at(&w->ping);
    p[4].waitValue.value = 1234;
    p[4].waitValue.flags = EQ;
    EXPECT(write64(b, at(&w->wide), 1, 0) == 0); // its lowest bit is all that NOR looks at here
    CHECK(cudaStreamSynchronize(b));
    EXPECT(batch(a, 5, p, 0) == 0);
    EXPECT(cudaStreamQuery(a) == cudaErrorNotReady);
    EXPECT(write64(b, at(&w->wide), 2, 0) == 0);
    CHECK(cudaStreamSynchronize(a));
    Words host = read(w);
    EXPECT(host.ping == 1234 && host.seen[2] == 0x22222222 && host.seen[3] == 0x11111111);
    if (!all) return;
    EXPECT(batch(a, 0, nullptr, 0) == 0);
    // All or nothing.
    p[1].writeValue.value = 1;
    p[3].writeValue.address += 4;
    EXPECT(batch(a, 5, p, 0) == INVALID && batch(a, 1, nullptr, 0) == INVALID && batch(a, 1, p, 1) == INVALID);
    std::vector<CUstreamBatchMemOpParams> many(256, p[2]);
    EXPECT(batch(a, 256, many.data(), 0) == INVALID && batch(a, 255, many.data(), 0) == 0);
    p[0].operation = (CUstreamBatchMemOpType)8; // CU_STREAM_MEM_OP_ATOMIC_REDUCTION, which the headers of CUDA 12 lack
    EXPECT(batch(a, 1, p, 0) == CUDA_ERROR_NOT_SUPPORTED);
    p[0].operation = (CUstreamBatchMemOpType)77;
    EXPECT(batch(a, 1, p, 0) == INVALID);
    CHECK(cudaStreamSynchronize(a));
    EXPECT(read(w).ping == 1234);
}

static void refusals(cudaStream_t a, Words *w, void *end) {
    uint32_t here = 0;
    EXPECT(write32(a, at(&w->ping) + 2, 1, 0) == INVALID && wait64(a, at(&w->wide) + 4, 1, 0) == INVALID);
    EXPECT(write32(a, at(&here), 1, 0) == INVALID && write32(a, 0, 1, 0) == INVALID && write64(a, at(end), 1, 0) == INVALID);
    EXPECT(wait32(a, at(&w->ping), 1, 4) == INVALID && write32(a, at(&w->ping), 1, 2) == INVALID);
    EXPECT(write32((CUstream)(uintptr_t)0x1234567, at(&w->ping), 1, 0) != 0);
}

// The entries of programs that are compiled with a default stream a thread.
static void per_thread(Words *w) {
    void *wait = nullptr, *write = nullptr;
    EXPECT(proc_address("cuStreamWaitValue32", &wait, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr) == 0 && wait);
    EXPECT(proc_address("cuStreamWriteValue32", &write, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr) == 0 && write);
    EXPECT(wait != (void *)wait32 && write != (void *)write32);
    EXPECT(((Word32 *)wait)(nullptr, at(&w->flag), 5, EQ) == 0);
    EXPECT(cudaStreamQuery(cudaStreamPerThread) == cudaErrorNotReady);
    EXPECT(cudaStreamQuery(cudaStreamLegacy) == cudaErrorNotReady); // behind the other, which blocks
    cudaStream_t free_one;
    CHECK(cudaStreamCreateWithFlags(&free_one, cudaStreamNonBlocking));
    EXPECT(write32(free_one, at(&w->flag), 5, 0) == 0);
    CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    EXPECT(((Word32 *)write)(nullptr, at(&w->flag), 6, 0) == 0);
    CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    EXPECT(read(w).flag == 6);
    CHECK(cudaStreamDestroy(free_one));
}

int main(int argc, char **argv) {
    bool all = argc < 2 || std::strcmp(argv[1], "meaning");
    Words *w;
    cudaStream_t a, b;
    CHECK(cudaMalloc(&w, sizeof *w));
    CHECK(cudaMemset(w, 0, sizeof *w));
    note<<<1, 1>>>(w, 0); // a driver that loads kernels when they are first launched waits for all that runs, and for streams that wait
    waits<<<1, 1>>>(w, 0);
    CHECK(cudaMemset(w, 0, sizeof *w));
    CHECK(cudaDeviceSynchronize());
    for (int known : {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR}) {
        int value = 0;
        EXPECT(attribute(&value, (CUdevice_attribute)known, 0) == 0 && value == 1);
    }
    CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    hand_over(a, b, w);
    kernel_and_copy(a, b, w, all);
    batches(a, b, w, all);
    if (all) refusals(a, w, w + 1);
    per_thread(w);
    CHECK(cudaStreamDestroy(a));
    CHECK(cudaStreamDestroy(b));
    CHECK(cudaFree(w));
    std::puts("right");
    return 0;
}
