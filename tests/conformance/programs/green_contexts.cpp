// Green contexts: a part of a device's multiprocessors, with streams of its own; and events of whole contexts.
#include "gate.h"

static CUdevResource whole() {
    CUdevResource resource = garbage<CUdevResource>();
    CHECK(cuDeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM));
    return resource;
}

// The first of as many groups as the device has of its least size.
static CUdevResource part() {
    CUdevResource all = whole(), group = garbage<CUdevResource>();
    unsigned groups = 1;
    CHECK(cuDevSmResourceSplitByCount(&group, &groups, &all, nullptr, 0, 1));
    return group;
}

static CUgreenCtx make_green() {
    CUdevResource group = part();
    CUdevResourceDesc description = garbage<CUdevResourceDesc>();
    CHECK(cuDevResourceGenerateDesc(&description, &group, 1));
    CUgreenCtx green = garbage<CUgreenCtx>();
    CHECK(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
}

static CUstream make_green_stream(CUgreenCtx green) {
    CUstream stream = garbage<CUstream>();
    CHECK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    return stream;
}

CASE(resources, "cuDeviceGetDevResource", "cuCtxGetDevResource", "cuDevSmResourceSplitByCount") {
    CUdevResource all = whole(), of_context = garbage<CUdevResource>();
    EXPECT(all.type == CU_DEV_RESOURCE_TYPE_SM && static_cast<int>(all.sm.smCount) == attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    CHECK(cuCtxGetDevResource(primary, &of_context, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT(of_context.sm.smCount == all.sm.smCount);
    unsigned groups = 1;
    CUdevResource group = garbage<CUdevResource>(), rest = garbage<CUdevResource>();
    CHECK(cuDevSmResourceSplitByCount(&group, &groups, &all, &rest, 0, 1));
    EXPECT(groups == 1 && group.sm.smCount >= 1 && group.sm.smCount + rest.sm.smCount == all.sm.smCount);
    REFUSED(cuDeviceGetDevResource(device, nullptr, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetDevResource(device_count(), &all, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuCtxGetDevResource(primary, nullptr, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDevSmResourceSplitByCount(&group, nullptr, &all, &rest, 0, 1), CUDA_ERROR_INVALID_VALUE);
}

CASE(structured_split, "cuDevSmResourceSplit") {
    NEEDS_FUNCTION(cuDevSmResourceSplit);
    CUdevResource all = whole(), group = garbage<CUdevResource>(), rest = garbage<CUdevResource>();
    CU_DEV_SM_RESOURCE_GROUP_PARAMS wanted = {};
    wanted.smCount = part().sm.smCount;
    CHECK(cuDevSmResourceSplit(&group, 1, &all, &rest, 0, &wanted));
    EXPECT(group.sm.smCount == wanted.smCount && group.sm.smCount + rest.sm.smCount == all.sm.smCount);
    REFUSED(cuDevSmResourceSplit(&group, 1, nullptr, &rest, 0, &wanted), CUDA_ERROR_INVALID_VALUE);
}

CASE(a_part_of_a_device, "cuDevResourceGenerateDesc", "cuGreenCtxCreate", "cuGreenCtxGetDevResource", "cuGreenCtxGetId") {
    CUgreenCtx green = make_green(), other = make_green();
    EXPECT(green != other);
    CUdevResource told = garbage<CUdevResource>();
    CHECK(cuGreenCtxGetDevResource(green, &told, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT(told.sm.smCount == part().sm.smCount);
    unsigned long long id = garbage<unsigned long long>(), other_id = garbage<unsigned long long>();
    CHECK(cuGreenCtxGetId(green, &id));
    CHECK(cuGreenCtxGetId(other, &other_id));
    EXPECT(id != other_id);
    CUdevResource group = part();
    CUdevResourceDesc description = garbage<CUdevResourceDesc>();
    REFUSED(cuDevResourceGenerateDesc(nullptr, &group, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuDevResourceGenerateDesc(&description, &group, 1));
    REFUSED(cuGreenCtxCreate(nullptr, description, device, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGreenCtxCreate(&green, description, device_count(), CU_GREEN_CTX_DEFAULT_STREAM), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuGreenCtxGetId(green, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGreenCtxGetDevResource(green, nullptr, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_VALUE);
}

CASE(streams, "cuGreenCtxStreamCreate", "cuStreamGetDevResource") {
    NEEDS_FUNCTION(cuStreamGetDevResource);
    CUgreenCtx green = make_green(), told = garbage<CUgreenCtx>();
    CUstream stream = make_green_stream(green);
    CHECK(cuStreamGetGreenCtx(stream, &told));
    EXPECT(told == green);
    CUdevResource resource = garbage<CUdevResource>();
    CHECK(cuStreamGetDevResource(stream, &resource, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT(resource.sm.smCount == part().sm.smCount);
    CUdeviceptr memory = allocate(64); // of the primary context, and usable here
    CHECK(cuMemsetD32Async(memory, 9, 16, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(download<unsigned>(memory, 16) == filled(16, 9u));
    REFUSED(cuGreenCtxStreamCreate(nullptr, green, CU_STREAM_NON_BLOCKING, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamGetDevResource(stream, nullptr, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_VALUE);
}

CASE(as_a_context, "cuCtxFromGreenCtx") {
    CUcontext context = garbage<CUcontext>(), current = garbage<CUcontext>();
    CHECK(cuCtxFromGreenCtx(&context, make_green()));
    EXPECT(context != primary);
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuCtxGetCurrent(&current));
    EXPECT(current == context);
    CUdeviceptr memory = allocate(64);
    CHECK(cuMemsetD32(memory, 4, 16));
    EXPECT(download<unsigned>(memory, 16) == filled(16, 4u));
    REFUSED(cuCtxFromGreenCtx(nullptr, make_green()), CUDA_ERROR_INVALID_VALUE);
}

CASE(destroyed, "cuGreenCtxDestroy") {
    CUgreenCtx green = make_green();
    CUstream stream = make_green_stream(green);
    CHECK(cuGreenCtxDestroy(green));
    if (conformance::has("cuStreamGetDevResource")) EXPECT_NUMBER(cuStreamQuery(stream), CUDA_ERROR_STREAM_DETACHED); // not so before CUDA 13.1
    GONE(cuGreenCtxDestroy(green));
}

// All that was given to the streams of a context lies before its event.
CASE(recorded_in_a_context, "cuCtxRecordEvent", "cuGreenCtxRecordEvent") {
    for (bool in_green : {false, true}) {
        CUgreenCtx green = make_green();
        CUstream stream = in_green ? make_green_stream(green) : make_stream();
        CUevent event = make_event();
        Gate gate;
        gate.put(stream);
        if (in_green)
            CHECK(cuGreenCtxRecordEvent(green, event));
        else
            CHECK(cuCtxRecordEvent(primary, event));
        EXPECT(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
        gate.open = true;
        CHECK(cuEventSynchronize(event));
        EVENTUALLY(cuStreamQuery(stream) == CUDA_SUCCESS); // what one stream has come to may be told before another's
        REFUSED(cuCtxRecordEvent(primary, nullptr), CUDA_ERROR_INVALID_HANDLE);
        REFUSED(cuGreenCtxRecordEvent(green, nullptr), CUDA_ERROR_INVALID_HANDLE);
    }
}

// All that streams of a context are given later lies behind the event.
CASE(awaited_in_a_context, "cuCtxWaitEvent", "cuGreenCtxWaitEvent") {
    CUcontext elsewhere = garbage<CUcontext>();
    CHECK(cuCtxCreate(&elsewhere, nullptr, 0, device));
    CUstream witness = make_stream();
    CHECK(cuCtxPopCurrent(&elsewhere));
    for (bool in_green : {false, true}) {
        CUgreenCtx green = make_green(), outside = make_green();
        CUstream stream = in_green ? make_green_stream(green) : make_stream(), other = make_green_stream(outside);
        CUevent event = make_event();
        CUdeviceptr memory = allocate(64);
        Gate gate;
        gate.put(other);
        CHECK(cuEventRecord(event, other));
        if (in_green)
            CHECK(cuGreenCtxWaitEvent(green, event));
        else
            CHECK(cuCtxWaitEvent(primary, event));
        CHECK(cuMemsetD32Async(memory, 1, 16, stream));
        EXPECT(stays_behind(stream, witness, elsewhere));
        gate.open = true;
        CHECK(cuStreamSynchronize(stream));
        REFUSED(cuCtxWaitEvent(primary, nullptr), CUDA_ERROR_INVALID_HANDLE);
        REFUSED(cuGreenCtxWaitEvent(green, nullptr), CUDA_ERROR_INVALID_HANDLE);
    }
}
