/* The driver's calls on the objects of the shim, with a fake worker: what each costs (commands and waits), what it refuses, what it computes. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fake_session.h"
#include "gv_impl.h"
#include "memory_calls.h"
#include "cluster_calls.h"
#include "green_calls.h"
#include "pool_calls.h"
#include "tensor_map_calls.h"
#include "objects/objects.h"
#include "wire/session_limits.h"

CUcontext context;

/* ---- devices and contexts ------------------------------------------------------------------------------------------ */

static void devices(void) {
    int n, value;
    char text[64];
    EQUAL(impl_cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
    EQUAL(impl_cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED);
    EQUAL(impl_cuInit(1), CUDA_ERROR_INVALID_VALUE);
    setenv("CUDA_VISIBLE_DEVICES", " 1 ,0,7,1", 1); /* the 7 ends the list */
    EQUAL(impl_cuInit(0), 0);
    EQUAL(impl_cuDeviceGetCount(&n), 0);
    EQUAL(n, 2);
    EQUAL(impl_cuDeviceGetName(text, sizeof text, 0), 0);
    CHECK(!strcmp(text, "Fake 1"));
    EQUAL(impl_cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0), 0);
    EQUAL(value, 2);
    EQUAL(impl_cuDeviceGetPCIBusId(text, sizeof text, 0), 0);
    CHECK(!strcmp(text, "0000:02:00.0"));
    CUdevice device = -1;
    EQUAL(impl_cuDeviceGetByPCIBusId(&device, "0000:02:00.0"), 0);
    EQUAL(device, 0);
    EQUAL(impl_cuDeviceGetByPCIBusId(&device, "1:00.0"), 0);
    EQUAL(device, 1);
    EQUAL(impl_cuDeviceGetByPCIBusId(&device, "9:00.0"), CUDA_ERROR_INVALID_DEVICE);
    EQUAL(impl_cuDeviceGetByPCIBusId(&device, "0000:01:00"), 0);
    EQUAL(device, 1);
    static const char *const wrong[] = {"", "1", "1:0", "1:0.", "0000:01:00.0.0", "0000.01:00", "x:1.0", "1:0.0 "};
    for (int i = 0; i < 8; i++) EQUAL(impl_cuDeviceGetByPCIBusId(&device, wrong[i]), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuDeviceGetAttribute(&value, (CUdevice_attribute)0, 0), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuDeviceGetAttribute(&value, (CUdevice_attribute)100000, 0), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 2), CUDA_ERROR_INVALID_DEVICE);
    unsigned atomics[2] = {7, 7};
    CUatomicOperation operations[2] = {CU_ATOMIC_OPERATION_CAS, CU_ATOMIC_OPERATION_FLOAT_MAX};
    EQUAL(impl_cuDeviceGetHostAtomicCapabilities(atomics, operations, 1, 0), 0);
    CHECK(atomics[0] == 0 && atomics[1] == 7);
    EQUAL(impl_cuDeviceGetP2PAtomicCapabilities(atomics, operations, 2, 0, 1), 0);
    CHECK(atomics[0] == 0 && atomics[1] == 0);
    EQUAL(impl_cuDeviceGetHostAtomicCapabilities(atomics, operations, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuDeviceGetHostAtomicCapabilities(atomics, NULL, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuDeviceGetHostAtomicCapabilities(atomics, operations, 1, 2), CUDA_ERROR_INVALID_DEVICE);
    EQUAL(impl_cuDeviceGetP2PAtomicCapabilities(atomics, operations, 2, 1, 1), CUDA_ERROR_INVALID_DEVICE);
    operations[1] = CU_ATOMIC_OPERATION_MAX;
    EQUAL(impl_cuDeviceGetP2PAtomicCapabilities(atomics, operations, 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuDeviceCanAccessPeer(&value, 0, 1), 0);
    EQUAL(value, 1);
    EQUAL(impl_cuDeviceCanAccessPeer(&value, 1, 1), 0);
    EQUAL(value, 0);
}

static void contexts(void) {
    CUcontext a, b, c;
    CUdevice device;
    unsigned flags;
    int active;
    EQUAL(impl_cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    EQUAL(impl_cuDevicePrimaryCtxGetState(0, &flags, &active), 0);
    EQUAL(active, 0);
    EQUAL(impl_cuDevicePrimaryCtxRetain(&a, 0), 0);
    EQUAL(impl_cuDevicePrimaryCtxRetain(&b, 0), 0);
    CHECK(a == b);
    EQUAL(fake.count[GV_OP_CONTEXT_CREATE], 1);
    EQUAL(impl_cuDevicePrimaryCtxRelease(0), 0);
    EQUAL(impl_cuDevicePrimaryCtxGetState(0, &flags, &active), 0);
    EQUAL(active, 1);
    EQUAL(impl_cuCtxSetCurrent(a), 0);
    EQUAL(impl_cuCtxGetDevice(&device), 0);
    EQUAL(device, 0);
    EQUAL(impl_cuCtxSynchronize(), 0);
    EQUAL(fake.waits, 0); /* nothing was posted to any stream */
    EQUAL(impl_cuCtxDestroy(a), CUDA_ERROR_INVALID_CONTEXT);

    /* A created one goes on top of the stack; destroying it uncovers the other. */
    EQUAL(impl_cuCtxCreate_v2(&c, 0, 1), 0);
    EQUAL(impl_cuCtxGetCurrent(&b), 0);
    CHECK(b == c);
    EQUAL(impl_cuCtxGetDevice(&device), 0);
    EQUAL(device, 1);
    EQUAL(impl_cuCtxEnablePeerAccess(a, 0), 0);
    EQUAL(impl_cuCtxEnablePeerAccess(a, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    EQUAL(impl_cuCtxDisablePeerAccess(a), 0);
    EQUAL(impl_cuCtxDisablePeerAccess(a), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    EQUAL(impl_cuCtxPushCurrent(a), 0);
    EQUAL(impl_cuCtxDestroy(c), 0); /* not on top: it stays in the stack, dead */
    EQUAL(impl_cuCtxPopCurrent(&b), 0);
    CHECK(a == b);
    EQUAL(impl_cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EQUAL(impl_cuCtxDestroy(c), CUDA_ERROR_INVALID_CONTEXT);
    EQUAL(impl_cuCtxPushCurrent(c), CUDA_ERROR_INVALID_CONTEXT);
    EQUAL(impl_cuCtxPopCurrent(&b), 0);
    EQUAL(impl_cuCtxPushCurrent((CUcontext)0x1234), CUDA_ERROR_INVALID_CONTEXT);
    EQUAL(impl_cuCtxPushCurrent((CUcontext)((char *)a + 8)), CUDA_ERROR_INVALID_CONTEXT);
    EQUAL(impl_cuCtxSynchronize(), 0);

    size_t limit;
    EQUAL(impl_cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE), 0);
    EQUAL(limit, 1024);
    EQUAL(impl_cuCtxGetLimit(&limit, (CUlimit)8), 0);
    EQUAL(limit, 0);
    EQUAL(impl_cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 << 20), 0);
    EQUAL(impl_cuCtxGetLimit(&limit, CU_LIMIT_MALLOC_HEAP_SIZE), 0);
    EQUAL(limit, 16 << 20);
    EQUAL(impl_cuCtxSetLimit((CUlimit)99, 1), CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 40; i++) EQUAL(impl_cuCtxPushCurrent(a), 0);
    for (int i = 0; i < 40; i++) EQUAL(impl_cuCtxPopCurrent(NULL), 0);
    context = a;
}

/* ---- streams and events -------------------------------------------------------------------------------------------- */

static void streams_and_events(void) {
    CUstream s, t;
    CUevent e, f;
    CUdeviceptr d;
    float ms;
    fake.hold = true;
    EQUAL(impl_cuCtxSynchronize(), 0);
    EQUAL(impl_cuMemAlloc(&d, 4096), 0);
    EQUAL(impl_cuStreamCreate(&s, CU_STREAM_DEFAULT), 0);
    EQUAL(impl_cuStreamCreateWithPriority(&t, CU_STREAM_NON_BLOCKING, -99), 0);
    int priority;
    EQUAL(impl_cuStreamGetPriority(t, &priority), 0);
    EQUAL(priority, -5);
    EQUAL(impl_cuEventCreate(&e, 0), 0);
    EQUAL(impl_cuEventCreate(&f, CU_EVENT_DISABLE_TIMING), 0);
    fake_reset();
    EQUAL(impl_cuEventQuery(e), 0); /* never recorded */
    EQUAL(impl_cuEventElapsedTime(&ms, e, e), CUDA_ERROR_INVALID_HANDLE);
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, s), 0);
    EQUAL(impl_cuEventRecord(e, s), 0);
    EQUAL(impl_cuEventQuery(e), CUDA_ERROR_NOT_READY);
    EQUAL(impl_cuEventElapsedTime(&ms, e, e), CUDA_ERROR_NOT_READY);
    EQUAL(impl_cuStreamWaitEvent(t, e, 0), 0);
    EQUAL(impl_cuStreamWaitEvent(s, e, 0), 0); /* its own stream: nothing to send */
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 1);
    EQUAL(fake.waits, 0);
    EQUAL(impl_cuStreamQuery(t), CUDA_ERROR_NOT_READY);
    EQUAL(impl_cuStreamQuery(t), CUDA_ERROR_NOT_READY);
    EQUAL(fake.count[GV_OP_FENCE], 1); /* one is enough */
    fake_complete();
    EQUAL(impl_cuEventQuery(e), 0);
    EQUAL(impl_cuStreamQuery(t), 0);
    EQUAL(impl_cuEventElapsedTime(&ms, e, e), 0);
    CHECK(ms == 1.5f);
    EQUAL(impl_cuEventElapsedTime(&ms, e, f), CUDA_ERROR_INVALID_HANDLE);
    EQUAL(impl_cuStreamWaitEvent(t, e, 0), 0); /* done: nothing to send */
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 1);
    fake_reset();
    EQUAL(impl_cuStreamSynchronize(s), 0);
    EQUAL(impl_cuEventSynchronize(e), 0);
    EQUAL(fake.waits, 0);

    /* The legacy stream stands for the blocking streams too, not for the others. */
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, s), 0);
    EQUAL(impl_cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    fake_complete();
    EQUAL(impl_cuStreamQuery(NULL), 0);
    EQUAL(impl_cuStreamSynchronize(s), 0);
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, t), 0);
    EQUAL(impl_cuStreamQuery(NULL), 0);
    EQUAL(impl_cuStreamQuery(t), CUDA_ERROR_NOT_READY);
    fake_reset();
    EQUAL(impl_cuCtxSynchronize(), 0);
    EQUAL(fake.waits, 1);

    /* A destroyed stream's last work counts: its events come true, and the context waits for it. */
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, t), 0);
    EQUAL(impl_cuEventRecord(f, t), 0);
    EQUAL(impl_cuStreamDestroy(t), 0);
    EQUAL(impl_cuStreamDestroy(t), CUDA_ERROR_INVALID_HANDLE);
    EQUAL(impl_cuStreamSynchronize(t), CUDA_ERROR_INVALID_HANDLE);
    EQUAL(impl_cuEventQuery(f), CUDA_ERROR_NOT_READY);
    fake_complete();
    EQUAL(impl_cuEventQuery(f), 0);
    EQUAL(impl_cuCtxSynchronize(), 0);
    EQUAL(impl_cuEventQuery(f), 0);

    /* The thread's own stream is one per thread and context, and an ordinary blocking one on the wire. */
    fake_reset();
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, CU_STREAM_PER_THREAD), 0);
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, CU_STREAM_PER_THREAD), 0);
    EQUAL(fake.count[GV_OP_STREAM_CREATE], 1);
    EQUAL(impl_cuStreamSynchronize(CU_STREAM_PER_THREAD), 0);
    EQUAL(impl_cuStreamDestroy(CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_HANDLE);

    CUstreamCaptureStatus status = (CUstreamCaptureStatus)99;
    EQUAL(impl_cuStreamIsCapturing(s, &status), 0);
    EQUAL(status, CU_STREAM_CAPTURE_STATUS_NONE);
    EQUAL(impl_cuEventDestroy(e), 0);
    EQUAL(impl_cuEventDestroy(e), CUDA_ERROR_INVALID_HANDLE);
    EQUAL(impl_cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
    EQUAL(impl_cuEventQuery((CUevent)s), CUDA_ERROR_INVALID_HANDLE);
    EQUAL(impl_cuEventDestroy(f), 0);
    EQUAL(impl_cuStreamDestroy(s), 0);
    EQUAL(impl_cuMemFree(d), 0);
    fake.hold = false;
}

static void handles_are_not_reused_soon(void) {
    CUevent first, other;
    EQUAL(impl_cuEventCreate(&first, 0), 0);
    EQUAL(impl_cuEventDestroy(first), 0);
    for (int i = 0; i < 900; i++) {
        EQUAL(impl_cuEventCreate(&other, 0), 0);
        CHECK(other != first);
        EQUAL(impl_cuEventDestroy(other), 0);
    }
    EQUAL(impl_cuEventQuery(first), CUDA_ERROR_INVALID_HANDLE);
    for (int i = 0; i < 4000; i++) { /* but memory does not grow without end */
        EQUAL(impl_cuEventCreate(&other, 0), 0);
        EQUAL(impl_cuEventDestroy(other), 0);
    }
    CHECK(object_spaces[OBJECT_EVENT].used < 2000 * 256);
}

/* ---- modules and launches ------------------------------------------------------------------------------------------ */

static void modules(void) {
    CUmodule m;
    CUfunction add, empty, exact, none;
    CUdeviceptr table;
    size_t size;
    int value;
    EQUAL(impl_cuModuleLoadData(&m, "garbage"), CUDA_ERROR_INVALID_IMAGE);
    fake.load_status = CUDA_ERROR_INVALID_PTX;
    char error[64] = "", info[64] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {error, (void *)10, info, (void *)64};
    EQUAL(impl_cuModuleLoadDataEx(&m, FAKE_PTX, 4, options, values), CUDA_ERROR_INVALID_PTX);
    CHECK(!strcmp(error, "line 3: n") && values[1] == (void *)10 && !info[0] && !values[3]);
    fake.load_status = 0;
    values[1] = (void *)64, values[3] = (void *)64;
    EQUAL(impl_cuModuleLoadDataEx(&m, FAKE_PTX, 4, options, values), 0);
    CHECK(!strcmp(info, "all is well") && values[3] == (void *)12 && !error[0]);
    EQUAL(impl_cuModuleUnload(m), 0);
    EQUAL(impl_cuModuleUnload(m), CUDA_ERROR_INVALID_HANDLE);

    char *large = malloc(200000); /* on the bulk channel */
    memset(large, ' ', 199999);
    memcpy(large, FAKE_PTX, strlen(FAKE_PTX));
    large[199999] = 0;
    EQUAL(impl_cuModuleLoadData(&m, large), 0);
    EQUAL(fake.load_size, 199999);
    free(large);
    EQUAL(impl_cuModuleGetFunction(&add, m, "add"), 0);
    EQUAL(impl_cuModuleGetFunction(&empty, m, "empty"), 0);
    EQUAL(impl_cuModuleGetFunction(&exact, m, "exact"), 0);
    EQUAL(impl_cuModuleGetFunction(&none, m, "ad"), CUDA_ERROR_NOT_FOUND);
    fake_reset();
    EQUAL(impl_cuModuleGetGlobal(&table, &size, m, "table"), 0);
    EQUAL(size, 256);
    EQUAL(impl_cuModuleGetGlobal(&table, &size, m, "chair"), CUDA_ERROR_NOT_FOUND);
    EQUAL(fake.waits, 0);
    EQUAL(impl_cuMemcpyHtoD(table, "hello", 6), 0); /* the map knows it */
    EQUAL(impl_cuMemcpyHtoD(table + 255, "hello", 6), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuMemFree(table), CUDA_ERROR_INVALID_VALUE);

    EQUAL(impl_cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, add), 0);
    EQUAL(value, 512);
    EQUAL(impl_cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, add), 0);
    EQUAL(value, 49152 - 1024);
    uint64_t a = 0x1122334455667788ull, c = 42;
    uint32_t b = 7;
    void *params[] = {&a, &b, &c};
    EQUAL(impl_cuLaunchKernel(add, 3, 2, 1, 32, 4, 2, 100, NULL, params, NULL), 0);
    CHECK(fake.launch.grid[0] == 3 && fake.launch.grid[1] == 2 && fake.launch.block[1] == 4 && fake.launch.shared == 100 && fake.launch.stream == 0);
    EQUAL(fake.launch.params_size, 24);
    CHECK(!memcmp(fake.params, &a, 8) && !memcmp(fake.params + 8, &b, 4) && !memcmp(fake.params + 12, "\0\0\0\0", 4) &&
          !memcmp(fake.params + 16, &c, 8));
    size_t packed = 24;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, fake.params, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed, CU_LAUNCH_PARAM_END};
    EQUAL(impl_cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra), 0);
    CHECK(!memcmp(fake.params, &a, 8));
    packed = 23;
    EQUAL(impl_cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra), CUDA_ERROR_INVALID_VALUE);
    fake_reset();
    EQUAL(impl_cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuLaunchKernel(add, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuLaunchKernel(add, 1, 65536, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuLaunchKernel(add, 1, 1, 1, 1, 1, 65, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuLaunchKernel(add, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuLaunchKernel(add, 1, 1, 1, 513, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES); /* 32 registers a thread */
    EQUAL(impl_cuLaunchKernel(exact, 1, 1, 1, 65, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);            /* compiled for 64 */
    EQUAL(impl_cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 48129, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuLaunchKernel(exact, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuLaunchKernel((CUfunction)m, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_HANDLE);
    EQUAL(impl_cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, (CUstream)add, params, NULL), CUDA_ERROR_INVALID_HANDLE);
    EQUAL(fake.count[GV_OP_LAUNCH], 0);
    EQUAL(impl_cuLaunchKernel(exact, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL), 0);
    EQUAL(impl_cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 101376 - 1023), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 101376 - 1024), 0);
    EQUAL(fake.kernel_attribute_value, 101376 - 1024);
    EQUAL(impl_cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 48129, NULL, params, NULL), 0);

    /* Cooperative: no more blocks than fit at once (2 multiprocessors, 4 blocks of 512 threads on each). */
    EQUAL(impl_cuLaunchCooperativeKernel(add, 8, 1, 1, 512, 1, 1, 0, NULL, params), 0);
    EQUAL(fake.launch.cooperative, 1);
    EQUAL(impl_cuLaunchCooperativeKernel(add, 9, 1, 1, 512, 1, 1, 0, NULL, params), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {2, 1, 1}};
    CUlaunchConfig config = {
        .gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1, .attrs = &attribute, .numAttrs = 1};
    EQUAL(impl_cuLaunchKernelEx(&config, add, params, NULL), CUDA_ERROR_NOT_SUPPORTED);
    attribute.value.clusterDim.x = 1;
    EQUAL(impl_cuLaunchKernelEx(&config, add, params, NULL), 0);

    int blocks, grid, block;
    EQUAL(impl_cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 512, 0), 0);
    EQUAL(blocks, 4); /* threads; registers would allow 4, shared memory 50 */
    EQUAL(impl_cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 32, 0), 0);
    EQUAL(blocks, 32); /* the block limit */
    EQUAL(impl_cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 32, 48 << 10), 0);
    EQUAL(blocks, 2); /* 50 KiB each of 100 */
    EQUAL(impl_cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 513, 0), 0);
    EQUAL(blocks, 0);
    EQUAL(impl_cuOccupancyMaxPotentialBlockSize(&grid, &block, add, NULL, 0, 0), 0);
    CHECK(block == 512 && grid == 8);
    EQUAL(impl_cuOccupancyMaxPotentialBlockSize(&grid, &block, add, NULL, 0, 100), 0);
    CHECK(block == 64 && grid == 64); /* 100 threads take four warps each: fewer threads at once */
    EQUAL(impl_cuOccupancyAvailableDynamicSMemPerBlock(&size, add, 2, 128), 0);
    EQUAL(size, 51200 - 1024 - 1024);

    EQUAL(impl_cuModuleUnload(m), 0);
    EQUAL(impl_cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_HANDLE);
    EQUAL(impl_cuMemcpyHtoD(table, "hello", 6), CUDA_ERROR_INVALID_VALUE);
}

/* A library belongs to no context: it is loaded where and when it is needed, and its kernels launch in the current context. */
static void libraries(void) {
    CUlibrary l;
    CUkernel add, none;
    CUfunction f, g;
    CUcontext other;
    unsigned count;
    char image[] = FAKE_PTX;
    fake_reset();
    EQUAL(impl_cuLibraryLoadData(&l, "garbage", NULL, NULL, 0, NULL, NULL, 0), CUDA_ERROR_INVALID_IMAGE);
    EQUAL(impl_cuLibraryLoadData(&l, image, NULL, NULL, 0, NULL, NULL, 0), 0);
    memset(image, 0, sizeof image); /* it was not promised to stay */
    EQUAL(fake.count[GV_OP_MODULE_LOAD], 0);
    EQUAL(impl_cuLibraryGetKernel(&add, l, "add"), 0);
    EQUAL(fake.count[GV_OP_MODULE_LOAD], 1);
    EQUAL(fake.load_size, strlen(FAKE_PTX));
    EQUAL(impl_cuLibraryGetKernel(&none, l, "sub"), CUDA_ERROR_NOT_FOUND);
    EQUAL(impl_cuLibraryGetKernelCount(&count, l), 0);
    EQUAL(count, 4);
    uint64_t a = 1, c = 2;
    uint32_t b = 3;
    void *params[] = {&a, &b, &c};
    EQUAL(impl_cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000, add, 1), 0);
    EQUAL(impl_cuLaunchKernel((CUfunction)add, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), 0);
    uint32_t first = fake.launch_ctx;
    EQUAL(impl_cuLaunchKernel((CUfunction)add, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuKernelGetFunction(&f, add), 0);
    EQUAL(impl_cuCtxCreate_v2(&other, 0, 1), 0);
    EQUAL(impl_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_HANDLE); /* a function of another context */
    EQUAL(impl_cuLaunchKernel((CUfunction)add, 1, 1, 1, 1, 1, 1, 60000, NULL, params, NULL),
          0); /* with what was set before this context knew the kernel */
    EQUAL(fake.count[GV_OP_MODULE_LOAD], 2);
    CHECK(fake.launch_ctx != first);
    EQUAL(impl_cuKernelGetFunction(&g, add), 0);
    CHECK(f != g);
    EQUAL(impl_cuCtxDestroy(other), 0);
    EQUAL(impl_cuLaunchKernel((CUfunction)add, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), 0);
    EQUAL(fake.launch_ctx, first);
    CUmodule m;
    EQUAL(impl_cuLibraryGetModule(&m, l), 0);
    EQUAL(impl_cuModuleUnload(m), CUDA_ERROR_NOT_PERMITTED);
    EQUAL(impl_cuLibraryUnload(l), 0);
    EQUAL(impl_cuLibraryUnload(l), CUDA_ERROR_INVALID_HANDLE);
    EQUAL(impl_cuLaunchKernel((CUfunction)add, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_HANDLE);
}

/* What nvcc puts into a program, and the runtime loads. */
static void wrapped_library(void) {
    struct {
        uint32_t magic;
        uint16_t version, header;
        uint64_t size;
        uint16_t kind, entry_version;
        uint32_t entry_header;
        uint64_t payload;
        uint32_t compressed, options;
        uint16_t minor, major;
        uint32_t arch, name_offset, name_size;
        uint64_t flags, zero, full_size;
        char text[(sizeof(FAKE_PTX) + 7) / 8 * 8];
    } fatbin = {.magic = 0xba55ed50, .version = 1, .header = 16, .kind = 1, .entry_version = 0x101, .entry_header = 64, .arch = 50, .flags = 0x2000};
    fatbin.size = sizeof fatbin - 16;
    fatbin.payload = sizeof fatbin.text;
    memcpy(fatbin.text, FAKE_PTX, sizeof(FAKE_PTX));
    const struct {
        uint32_t magic, version;
        const void *data, *list;
    } wrapper = {0x466243b1, 1, &fatbin, NULL};
    CUlibrary l;
    CUkernel add;
    uint64_t a = 1;
    uint32_t b = 3;
    void *params[] = {&a, &b, &a};
    EQUAL(impl_cuLibraryLoadData(&l, &wrapper, NULL, NULL, 0, NULL, NULL, 0), 0);
    EQUAL(impl_cuLibraryGetKernel(&add, l, "add"), 0);
    EQUAL(impl_cuLaunchKernel((CUfunction)add, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuLaunchKernel((CUfunction)add, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuLaunchKernel((CUfunction)add, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), 0);
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {1, 1, 1}};
    CUlaunchConfig config = {
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .attrs = &cluster, .numAttrs = 1};
    EQUAL(impl_cuLaunchKernelEx(&config, (CUfunction)add, params, NULL), 0);
    cluster.value.clusterDim.y = 0;
    EQUAL(impl_cuLaunchKernelEx(&config, (CUfunction)add, params, NULL), CUDA_ERROR_INVALID_CLUSTER_SIZE);
    EQUAL(impl_cuLibraryUnload(l), 0);
}

/* ---- ends ---------------------------------------------------------------------------------------------------------- */

static void faults(void) {
    CUcontext c;
    CUdeviceptr d;
    CUstream s;
    EQUAL(impl_cuCtxCreate_v2(&c, 0, 1), 0);
    EQUAL(impl_cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), 0);
    EQUAL(impl_cuMemAlloc(&d, 4096), 0);
    EQUAL(impl_cuMemsetD8Async(d, 0, 16, s), 0);
    fake_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
    EQUAL(impl_cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    fake_fault(0);
    EQUAL(impl_cuMemAlloc(&d, 4096), CUDA_ERROR_ILLEGAL_ADDRESS);
    EQUAL(impl_cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EQUAL(impl_cuMemsetD8(d, 0, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
    EQUAL(impl_cuCtxDestroy(c), 0);
    EQUAL(impl_cuCtxSynchronize(), 0); /* the other context is well */
}

static void resets(void) {
    CUcontext again;
    CUdeviceptr d;
    CUevent e;
    size_t free_bytes, total;
    EQUAL(impl_cuMemAlloc(&d, 8 << 20), 0);
    EQUAL(impl_cuEventCreate(&e, 0), 0);
    EQUAL(impl_cuDevicePrimaryCtxReset(0), 0);
    EQUAL(impl_cuMemAlloc(&d, 4096), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EQUAL(impl_cuEventQuery(e), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EQUAL(impl_cuDevicePrimaryCtxRetain(&again, 0), 0);
    CHECK(again == context); /* the handle stays, and is current again */
    EQUAL(impl_cuEventQuery(e), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EQUAL(impl_cuMemGetInfo(&free_bytes, &total), 0);
    EQUAL(free_bytes, total);
    EQUAL(impl_cuMemAlloc(&d, 4096), 0);
    EQUAL(impl_cuMemFree(d), 0);
}

static void lost(void) {
    CUdeviceptr d;
    CUstream s;
    EQUAL(impl_cuMemAlloc(&d, 4096), 0);
    EQUAL(impl_cuStreamCreate(&s, 0), 0);
    EQUAL(impl_cuMemsetD8Async(d, 0, 16, s), 0);
    fake.lost = true;
    EQUAL(impl_cuMemsetD8Async(d, 0, 16, s), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EQUAL(impl_cuStreamSynchronize(s), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EQUAL(impl_cuMemAlloc(&d, 4096), CUDA_ERROR_DEVICE_UNAVAILABLE);
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    EQUAL(impl_cuMemCreate(&h, 2 << 20, &prop, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EQUAL(impl_cuMemAddressReserve(&d, 2 << 20, 0, 0, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EQUAL(impl_cuStreamDestroy(s), 0);
    EQUAL(impl_cuDevicePrimaryCtxRelease(0), 0); /* taking down what is left does not hang */
    EQUAL(impl_cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

int main(void) {
    devices();
    contexts();
    memory();
    quarantine();
    copies();
    pinned();
    lending();
    streams_and_events();
    handles_are_not_reused_soon();
    memory_is_asked_for_ahead();
    modules();
    libraries();
    wrapped_library();
    clusters();
    tensor_maps();
    faults();
    resets();
    pools();
    green_contexts();
    virtual_memory();
    as_many_as_a_session_may_have();
    lost();
    return check_result("calls");
}
