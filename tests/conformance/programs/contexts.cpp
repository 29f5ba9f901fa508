// Contexts: the primary one, those of the program's own, the stack of each thread, and what a context keeps.
#include "conformance.h"
#include <thread>

static CUcontext current() {
    CUcontext context = garbage<CUcontext>();
    CHECK(cuCtxGetCurrent(&context));
    return context;
}

static CUcontext create(unsigned flags = 0) {
    CUcontext context = garbage<CUcontext>();
    CHECK(cuCtxCreate(&context, nullptr, flags, device));
    return context;
}

static unsigned context_flags() {
    unsigned flags = garbage<unsigned>();
    CHECK(cuCtxGetFlags(&flags));
    return flags & CU_CTX_SCHED_MASK;
}

COLD_CASE(primary_context, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxGetState") {
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    unsigned flags = garbage<unsigned>();
    int active = garbage<int>();
    CHECK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    EXPECT(flags == 0 && active == 0);
    CUcontext first = garbage<CUcontext>(), second = garbage<CUcontext>();
    CHECK(cuDevicePrimaryCtxRetain(&first, device));
    CHECK(cuDevicePrimaryCtxRetain(&second, device));
    EXPECT(first == second && first);
    CHECK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    EXPECT(active == 1);
    EXPECT(current() == nullptr); // not put on the stack
    CHECK(cuDevicePrimaryCtxRelease(device));
    CHECK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    EXPECT(active == 1); // retained once more
    CHECK(cuDevicePrimaryCtxRelease(device));
    CHECK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    EXPECT(active == 0);
    REFUSED(cuDevicePrimaryCtxRelease(device), CUDA_ERROR_INVALID_CONTEXT);
    REFUSED(cuDevicePrimaryCtxRetain(&first, device_count()), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuDevicePrimaryCtxRetain(nullptr, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDevicePrimaryCtxGetState(device_count(), &flags, &active), CUDA_ERROR_INVALID_DEVICE);
}

CASE(primary_flags, "cuDevicePrimaryCtxSetFlags") {
    unsigned flags = garbage<unsigned>();
    int active = garbage<int>();
    CHECK(cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_BLOCKING_SYNC));
    CHECK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    EXPECT((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC);
    CHECK(cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_YIELD));
    CHECK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    EXPECT((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_YIELD);
    REFUSED(cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDevicePrimaryCtxSetFlags(device_count(), 0), CUDA_ERROR_INVALID_DEVICE);
}

CASE(primary_reset, "cuDevicePrimaryCtxReset") {
    CUdeviceptr address = allocate(100), base = garbage<CUdeviceptr>();
    size_t size = garbage<size_t>();
    CHECK(cuMemGetAddressRange(&base, &size, address));
    CHECK(cuDevicePrimaryCtxReset(device));
    CHECK(cuDevicePrimaryCtxRetain(&primary, device));
    CHECK(cuCtxSetCurrent(primary));
    EXPECT(cuMemGetAddressRange(&base, &size, address) != CUDA_SUCCESS); // what it held is gone
    REFUSED(cuDevicePrimaryCtxReset(device_count()), CUDA_ERROR_INVALID_DEVICE);
}

CASE(create_and_destroy, "cuCtxCreate", "cuCtxDestroy") {
    CUcontext own = create(CU_CTX_SCHED_YIELD);
    EXPECT(own != primary && current() == own); // pushed
    EXPECT(context_flags() == CU_CTX_SCHED_YIELD);
    CUdevice of = garbage<CUdevice>();
    CHECK(cuCtxGetDevice(&of));
    EXPECT(of == device);
    CHECK(cuCtxDestroy(own)); // popped, for it was current
    EXPECT(current() == primary);
    unsigned version = garbage<unsigned>();
    REFUSED(cuCtxCreate(nullptr, nullptr, 0, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCtxCreate(&own, nullptr, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCtxCreate(&own, nullptr, 0, device_count()), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuCtxDestroy(nullptr), CUDA_ERROR_INVALID_VALUE);
    GONE(cuCtxGetApiVersion(own, &version));
}

CASE(stack, "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxSetCurrent", "cuCtxGetCurrent") {
    CUcontext own = create(), popped = garbage<CUcontext>();
    CHECK(cuCtxPopCurrent(&popped));
    EXPECT(popped == own && current() == primary);
    CHECK(cuCtxPushCurrent(own));
    EXPECT(current() == own);
    CHECK(cuCtxPopCurrent(&popped));
    EXPECT(popped == own && current() == primary);
    CHECK(cuCtxSetCurrent(own)); // in the place of the topmost
    EXPECT(current() == own);
    CHECK(cuCtxSetCurrent(nullptr));
    EXPECT(current() == nullptr);
    CUcontext elsewhere = garbage<CUcontext>();
    CHECK(cuCtxSetCurrent(own));
    std::thread([&] { elsewhere = current(); }).join();
    EXPECT(elsewhere == nullptr); // each thread has its own
    REFUSED(cuCtxPushCurrent(nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCtxGetCurrent(nullptr), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuCtxSetCurrent(nullptr));
    REFUSED(cuCtxPopCurrent(&popped), CUDA_ERROR_INVALID_CONTEXT);
    REFUSED(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuCtxDestroy(own));
    UNCHECKED_BY_THE_DRIVER(cuCtxSetCurrent(own), CUDA_ERROR_INVALID_CONTEXT);
}

CASE(attach_and_detach, "cuCtxAttach", "cuCtxDetach") {
    CUcontext own = create(), attached = garbage<CUcontext>();
    CHECK(cuCtxAttach(&attached, 0));
    EXPECT(attached == own);
    CHECK(cuCtxDetach(own));
    unsigned long long id = garbage<unsigned long long>();
    CHECK(cuCtxGetId(own, &id)); // it was attached once more
    CHECK(cuCtxDetach(own));
    REFUSED(cuCtxAttach(&attached, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCtxDetach(nullptr), CUDA_ERROR_INVALID_CONTEXT);
    GONE(cuCtxGetId(own, &id));
}

CASE(device_of_the_context, "cuCtxGetDevice") {
    for (int i = 0; i < device_count(); i++) {
        CUcontext own = garbage<CUcontext>();
        CUdevice found = garbage<CUdevice>();
        CHECK(cuCtxCreate(&own, nullptr, 0, i));
        CHECK(cuCtxGetDevice(&found));
        EXPECT(found == i);
        CHECK(cuCtxDestroy(own));
    }
    CUdevice found;
    REFUSED(cuCtxGetDevice(nullptr), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuCtxSetCurrent(nullptr));
    REFUSED(cuCtxGetDevice(&found), CUDA_ERROR_INVALID_CONTEXT);
}

CASE(flags, "cuCtxGetFlags", "cuCtxSetFlags") {
    create(CU_CTX_SCHED_SPIN);
    EXPECT(context_flags() == CU_CTX_SCHED_SPIN);
    CHECK(cuCtxSetFlags(CU_CTX_SCHED_BLOCKING_SYNC));
    EXPECT(context_flags() == CU_CTX_SCHED_BLOCKING_SYNC);
    REFUSED(cuCtxSetFlags(CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCtxGetFlags(nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(ids, "cuCtxGetId", "cuCtxGetApiVersion") {
    unsigned long long of_primary = garbage<unsigned long long>(), of_own = garbage<unsigned long long>(), of_current = garbage<unsigned long long>();
    CUcontext own = create();
    CHECK(cuCtxGetId(primary, &of_primary));
    CHECK(cuCtxGetId(own, &of_own));
    CHECK(cuCtxGetId(nullptr, &of_current));
    EXPECT(of_primary != of_own && of_own == of_current);
    unsigned version = garbage<unsigned>();
    CHECK(cuCtxGetApiVersion(own, &version));
    EXPECT(version >= 3010 && version <= 14000);
    REFUSED(cuCtxGetId(own, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCtxGetApiVersion(own, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(synchronize, "cuCtxSynchronize") {
    static volatile int done = 0;
    CUstream stream = make_stream();
    auto slow = [](void *) {
        timespec pause = {0, 200000000};
        nanosleep(&pause, nullptr);
        done = 1;
    };
    CHECK(cuLaunchHostFunc(stream, slow, nullptr));
    CHECK(cuCtxSynchronize());
    EXPECT(done == 1);
    CHECK(cuCtxSetCurrent(nullptr));
    REFUSED(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
}

CASE(limits, "cuCtxGetLimit", "cuCtxSetLimit") {
    size_t value = garbage<size_t>();
    CHECK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    EXPECT(value >= 256 && value < 1 << 20);
    size_t more = value + 1024;
    CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, more));
    CHECK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    EXPECT(value >= more); // a driver may round up
    CHECK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 4 << 20));
    CHECK(cuCtxGetLimit(&value, CU_LIMIT_PRINTF_FIFO_SIZE));
    EXPECT(value >= 4 << 20);
    REFUSED(cuCtxGetLimit(nullptr, CU_LIMIT_STACK_SIZE), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCtxGetLimit(&value, static_cast<CUlimit>(1000)), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCtxSetLimit(static_cast<CUlimit>(1000), 1), CUDA_ERROR_INVALID_VALUE);
}

CASE(caches, "cuCtxGetCacheConfig", "cuCtxSetCacheConfig", "cuCtxGetSharedMemConfig") {
    CUfunc_cache cache = garbage<CUfunc_cache>();
    CHECK(cuCtxGetCacheConfig(&cache));
    EXPECT(cache == CU_FUNC_CACHE_PREFER_NONE);
    CHECK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
    CHECK(cuCtxGetCacheConfig(&cache));
    EXPECT(cache == CU_FUNC_CACHE_PREFER_L1);
    CUsharedconfig banks = garbage<CUsharedconfig>();
    CHECK(cuCtxGetSharedMemConfig(&banks));
    EXPECT(banks == CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE || banks == CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE);
    REFUSED(cuCtxGetCacheConfig(nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCtxSetCacheConfig(static_cast<CUfunc_cache>(17)), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCtxGetSharedMemConfig(nullptr), CUDA_ERROR_INVALID_VALUE);
}

// Devices of a fixed bank size keep theirs.
HINT_CASE(shared_memory_banks, "cuCtxSetSharedMemConfig") {
    CHECK(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
    REFUSED(cuCtxSetSharedMemConfig(static_cast<CUsharedconfig>(17)), CUDA_ERROR_INVALID_VALUE);
}

CASE(priorities, "cuCtxGetStreamPriorityRange") {
    int least = garbage<int>(), greatest = garbage<int>();
    CHECK(cuCtxGetStreamPriorityRange(&least, &greatest));
    EXPECT(least == 0 && greatest <= least && greatest > -100);
    greatest = garbage<int>();
    CHECK(cuCtxGetStreamPriorityRange(nullptr, &greatest)); // "a NULL may be passed"
    EXPECT(greatest <= 0 && greatest > -100);
    CHECK(cuCtxSetCurrent(nullptr));
    REFUSED(cuCtxGetStreamPriorityRange(&least, &greatest), CUDA_ERROR_INVALID_CONTEXT);
}

HINT_CASE(persisting_cache, "cuCtxResetPersistingL2Cache") {
    CHECK(cuCtxResetPersistingL2Cache());
    CHECK(cuCtxSetCurrent(nullptr));
    REFUSED(cuCtxResetPersistingL2Cache(), CUDA_ERROR_INVALID_CONTEXT);
}

CASE(affinity, "cuCtxGetExecAffinity") {
    CUexecAffinityParam affinity = garbage<CUexecAffinityParam>();
    CHECK(cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
    EXPECT(affinity.type == CU_EXEC_AFFINITY_TYPE_SM_COUNT);
    EXPECT(static_cast<int>(affinity.param.smCount.val) == attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    REFUSED(cuCtxGetExecAffinity(nullptr, CU_EXEC_AFFINITY_TYPE_SM_COUNT), CUDA_ERROR_INVALID_VALUE);
}

CASE(peer_access, "cuCtxEnablePeerAccess", "cuCtxDisablePeerAccess") {
    int can = 0;
    if (device_count() > 1) CHECK(cuDeviceCanAccessPeer(&can, 0, 1));
    NEEDS(can);
    CUcontext other = garbage<CUcontext>();
    CHECK(cuDevicePrimaryCtxRetain(&other, 1));
    CHECK(cuCtxEnablePeerAccess(other, 0));
    REFUSED(cuCtxEnablePeerAccess(other, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    CHECK(cuCtxDisablePeerAccess(other)); // as it was on
    REFUSED(cuCtxDisablePeerAccess(other), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    CHECK(cuCtxEnablePeerAccess(other, 0)); // as it was off again
    REFUSED(cuCtxEnablePeerAccess(other, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCtxEnablePeerAccess(nullptr, 0), CUDA_ERROR_INVALID_CONTEXT);
    REFUSED(cuCtxDisablePeerAccess(nullptr), CUDA_ERROR_INVALID_CONTEXT);
}
