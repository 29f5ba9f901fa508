// Events: marks in a stream that the program and other streams wait for.
#include "gate.h"

CASE(create_record_query, "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventDestroy") {
    CUstream stream = make_stream();
    CUevent event = garbage<CUevent>(), other = garbage<CUevent>();
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&other, CU_EVENT_DISABLE_TIMING));
    EXPECT(event != other);
    CHECK(cuEventQuery(event)); // never recorded: nothing to wait for
    Gate gate;
    gate.put(stream);
    CHECK(cuEventRecord(event, stream));
    EXPECT(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    gate.open = true;
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuEventQuery(event));
    CHECK(cuEventDestroy(other));
    REFUSED(cuEventCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuEventCreate(&other, 0x80), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuEventQuery(nullptr), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuEventRecord(nullptr, stream), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuEventDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
    GONE(cuEventQuery(other));
}

CASE(synchronize, "cuEventSynchronize") {
    static std::atomic<int> done{0};
    CUstream stream = make_stream();
    CUevent event = make_event(CU_EVENT_BLOCKING_SYNC);
    auto slow = [](void *) {
        timespec pause = {0, 200000000};
        nanosleep(&pause, nullptr);
        done = 1;
    };
    CHECK(cuLaunchHostFunc(stream, slow, nullptr));
    CHECK(cuEventRecord(event, stream));
    CHECK(cuEventSynchronize(event));
    EXPECT(done == 1);
    REFUSED(cuEventSynchronize(nullptr), CUDA_ERROR_INVALID_HANDLE);
}

CASE(elapsed_time, "cuEventElapsedTime") {
    CUstream stream = make_stream();
    CUevent first = make_event(), second = make_event(), untimed = make_event(CU_EVENT_DISABLE_TIMING), never = make_event();
    auto slow = [](void *) {
        timespec pause = {0, 100000000};
        nanosleep(&pause, nullptr);
    };
    CHECK(cuEventRecord(first, stream));
    CHECK(cuLaunchHostFunc(stream, slow, nullptr));
    CHECK(cuEventRecord(second, stream));
    CHECK(cuEventRecord(untimed, stream));
    CHECK(cuStreamSynchronize(stream));
    float ms = garbage<float>();
    CHECK(cuEventElapsedTime(&ms, first, second));
    EXPECT(ms > 50 && ms < 60000);
    CHECK(cuEventElapsedTime(&ms, second, first));
    EXPECT(ms < -50 && ms > -60000);
    REFUSED(cuEventElapsedTime(&ms, first, untimed), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuEventElapsedTime(&ms, first, never), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuEventElapsedTime(nullptr, first, second), CUDA_ERROR_INVALID_HANDLE);
}

CASE(record_with_flags, "cuEventRecordWithFlags") {
    CUstream stream = make_stream();
    CUevent event = make_event();
    Gate gate;
    gate.put(stream);
    CHECK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_DEFAULT));
    EXPECT(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    gate.open = true;
    CHECK(cuEventSynchronize(event));
    REFUSED(cuEventRecordWithFlags(event, stream, 0x80), CUDA_ERROR_INVALID_VALUE);
}
