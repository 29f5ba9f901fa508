// Streams: how they are made, what they say of themselves, and that they keep an order.
#include "gate.h"
#include "kernels.h"

CASE(create_and_destroy, "cuStreamCreate", "cuStreamDestroy", "cuStreamGetFlags") {
    CUstream blocking = garbage<CUstream>(), free_running = garbage<CUstream>();
    CHECK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CHECK(cuStreamCreate(&free_running, CU_STREAM_NON_BLOCKING));
    EXPECT(blocking != free_running);
    unsigned flags = garbage<unsigned>();
    CHECK(cuStreamGetFlags(blocking, &flags));
    EXPECT(flags == CU_STREAM_DEFAULT);
    CHECK(cuStreamGetFlags(free_running, &flags));
    EXPECT(flags == CU_STREAM_NON_BLOCKING);
    CUdeviceptr memory = allocate(64);
    CHECK(cuMemsetD32Async(memory, 5, 16, free_running));
    CHECK(cuStreamDestroy(free_running)); // what was given to it is still done
    CHECK(cuCtxSynchronize());
    EXPECT(download<unsigned>(memory, 16) == filled(16, 5u));
    REFUSED(cuStreamCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamCreate(&blocking, 0x80), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamGetFlags(blocking, nullptr), CUDA_ERROR_INVALID_VALUE);
    GONE(cuStreamQuery(free_running));
    GONE(cuStreamDestroy(free_running));
}

CASE(priorities, "cuStreamCreateWithPriority", "cuStreamGetPriority") {
    int least = garbage<int>(), greatest = garbage<int>(), priority = garbage<int>();
    CHECK(cuCtxGetStreamPriorityRange(&least, &greatest));
    CUstream urgent = garbage<CUstream>(), beyond = garbage<CUstream>();
    CHECK(cuStreamCreateWithPriority(&urgent, CU_STREAM_NON_BLOCKING, greatest));
    CHECK(cuStreamGetPriority(urgent, &priority));
    EXPECT(priority == greatest);
    CHECK(cuStreamCreateWithPriority(&beyond, CU_STREAM_NON_BLOCKING, greatest - 100)); // clamped
    CHECK(cuStreamGetPriority(beyond, &priority));
    EXPECT(priority == greatest);
    unsigned flags = garbage<unsigned>();
    CHECK(cuStreamGetFlags(urgent, &flags));
    EXPECT(flags == CU_STREAM_NON_BLOCKING);
    REFUSED(cuStreamCreateWithPriority(nullptr, 0, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamCreateWithPriority(&beyond, 0x80, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamGetPriority(urgent, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(query_and_synchronize, "cuStreamQuery", "cuStreamSynchronize", "cuLaunchHostFunc") {
    CUstream stream = make_stream();
    CHECK(cuStreamQuery(stream));
    Gate gate;
    CHECK(cuLaunchHostFunc(stream, Gate::wait, &gate));
    EVENTUALLY(gate.reached.load());
    EXPECT(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    static std::atomic<int> later{0};
    auto slow = [](void *) {
        timespec pause = {0, 200000000};
        nanosleep(&pause, nullptr);
        later = 1;
    };
    CHECK(cuLaunchHostFunc(stream, slow, nullptr));
    gate.open = true;
    CHECK(cuStreamSynchronize(stream));
    EXPECT(later == 1);
    CHECK(cuStreamQuery(stream));
    REFUSED(cuLaunchHostFunc(stream, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuStreamDestroy(stream));
    GONE(cuStreamSynchronize(stream));
}

CASE(wait_event, "cuStreamWaitEvent") {
    CUstream first = make_stream(), second = make_stream();
    CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
    CUdeviceptr memory = allocate(64); // not by a host function: a driver may call those of all streams one after the other
    Gate gate;
    gate.put(first);
    CHECK(cuEventRecord(event, first));
    CHECK(cuStreamWaitEvent(second, event, CU_EVENT_WAIT_DEFAULT));
    CHECK(cuMemsetD32Async(memory, 3, 16, second));
    EVENTUALLY(gate.reached.load());
    EXPECT(stays_behind(second, make_stream()));
    gate.open = true;
    CHECK(cuStreamSynchronize(second));
    EXPECT(download<unsigned>(memory, 16) == filled(16, 3u));
    REFUSED(cuStreamWaitEvent(second, event, 0x80), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamWaitEvent(second, nullptr, 0), CUDA_ERROR_INVALID_HANDLE);
}

CASE(identity, "cuStreamGetId", "cuStreamGetDevice", "cuStreamGetCtx", "cuStreamGetGreenCtx") {
    CUstream one = make_stream(), two = make_stream();
    unsigned long long id1 = garbage<unsigned long long>(), id2 = garbage<unsigned long long>();
    CHECK(cuStreamGetId(one, &id1));
    CHECK(cuStreamGetId(two, &id2));
    EXPECT(id1 != id2 && id1 != garbage<unsigned long long>() && id2 != garbage<unsigned long long>());
    CUdevice of = garbage<CUdevice>();
    CHECK(cuStreamGetDevice(one, &of));
    EXPECT(of == device);
    CUcontext context = garbage<CUcontext>();
    CHECK(cuStreamGetCtx(one, &context));
    EXPECT(context == primary);
    CUgreenCtx green = garbage<CUgreenCtx>();
    CHECK(cuStreamGetGreenCtx(one, &green));
    EXPECT(green == nullptr); // a stream of no green context
    REFUSED(cuStreamGetId(one, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamGetDevice(one, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamGetCtx(one, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamGetGreenCtx(one, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(attributes, "cuStreamGetAttribute", "cuStreamSetAttribute", "cuStreamCopyAttributes") {
    CUstream one = make_stream(), two = make_stream();
    CUstreamAttrValue value = garbage<CUstreamAttrValue>();
    CHECK(cuStreamGetAttribute(one, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    EXPECT(value.syncPolicy != garbage<CUsynchronizationPolicy>()); // which one a stream begins with is the driver's choice
    value.syncPolicy = CU_SYNC_POLICY_YIELD;
    CHECK(cuStreamSetAttribute(one, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    value = garbage<CUstreamAttrValue>();
    CHECK(cuStreamGetAttribute(one, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    EXPECT(value.syncPolicy == CU_SYNC_POLICY_YIELD);
    CHECK(cuStreamCopyAttributes(two, one));
    value = garbage<CUstreamAttrValue>();
    CHECK(cuStreamGetAttribute(two, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    EXPECT(value.syncPolicy == CU_SYNC_POLICY_YIELD);
    UNCHECKED_BY_THE_DRIVER(cuStreamGetAttribute(one, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, nullptr), CUDA_ERROR_INVALID_VALUE);
    UNCHECKED_BY_THE_DRIVER(cuStreamSetAttribute(one, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, nullptr), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuStreamDestroy(one));
    GONE(cuStreamCopyAttributes(two, one));
}

struct Called {
    std::atomic<int> times{0};
    CUstream stream{};
    CUresult status = CUDA_ERROR_UNKNOWN;
};

CASE(callback, "cuStreamAddCallback") {
    CUstream stream = make_stream();
    Called called;
    auto callback = [](CUstream of, CUresult status, void *data) {
        auto *self = static_cast<Called *>(data);
        self->stream = of;
        self->status = status;
        self->times++;
    };
    CHECK(cuStreamAddCallback(stream, callback, &called, 0));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(called.times == 1 && called.stream == stream && called.status == CUDA_SUCCESS);
    REFUSED(cuStreamAddCallback(stream, nullptr, &called, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamAddCallback(stream, callback, &called, 1), CUDA_ERROR_INVALID_VALUE);
}
