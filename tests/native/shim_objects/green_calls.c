/* Green contexts and events of contexts: what each call costs, which is never a wait. What they compute and refuse is in tests/e2e/programs/green_contexts.cu. */
#include "green_calls.h"

#include "check.h"
#include "fake_session.h"
#include "gv_impl.h"
#include "memory_calls.h"

static CUgreenCtx green(CUdevice device) {
    CUdevResource all;
    CUdevResourceDesc desc;
    CUgreenCtx g = NULL;
    EQUAL(impl_cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM), 0);
    EQUAL(all.sm.smCount, 2);
    EQUAL(impl_cuDevResourceGenerateDesc(&desc, &all, 1), 0);
    EQUAL(impl_cuGreenCtxCreate(&g, desc, device, CU_GREEN_CTX_DEFAULT_STREAM), 0);
    return g;
}

static CUstream stream(CUgreenCtx g) {
    CUstream s = NULL;
    EQUAL(impl_cuGreenCtxStreamCreate(&s, g, CU_STREAM_NON_BLOCKING, 0), 0);
    return s;
}

/* A green context's default stream is ordered with its blocking streams, by a record and a wait where they have been given something since. */
static void order_within(CUgreenCtx g, CUdeviceptr d) {
    CUcontext context;
    CUstream blocking;
    EQUAL(impl_cuCtxFromGreenCtx(&context, g), 0);
    EQUAL(impl_cuCtxPushCurrent(context), 0);
    EQUAL(impl_cuStreamCreate(&blocking, CU_STREAM_DEFAULT), 0);
    fake_reset();
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, blocking), 0);
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 0);
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, NULL), 0);
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 1);
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, NULL), 0);
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 1);
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, blocking), 0);
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 2);
    EQUAL(impl_cuStreamDestroy(blocking), 0); /* at work: the default stream waits for it now, and what both contexts' events are recorded on */
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 5);
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, NULL), 0);
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 5);
    EQUAL(fake.waits, 0);
    EQUAL(impl_cuCtxPopCurrent(NULL), 0);
}

void green_contexts(void) {
    CUcontext primary;
    CUdeviceptr d;
    CUevent e, f;
    EQUAL(impl_cuDevicePrimaryCtxRetain(&primary, 1), 0);
    EQUAL(impl_cuCtxPushCurrent(primary), 0);
    EQUAL(impl_cuMemAlloc(&d, 4096), 0);
    EQUAL(impl_cuEventCreate(&e, 0), 0);
    EQUAL(impl_cuEventCreate(&f, 0), 0);
    EQUAL(impl_cuCtxSynchronize(), 0);
    fake.hold = true;
    fake_reset();
    CUgreenCtx a = green(1), b = green(1);
    EQUAL(fake.count[GV_OP_CONTEXT_CREATE], 0);
    CUstream s = stream(a), t = stream(a), u = stream(b);
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, s), 0);
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, t), 0);
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, u), 0);
    EQUAL(impl_cuGreenCtxRecordEvent(a, e), 0);
    EQUAL(fake.count[GV_OP_EVENT_RECORD], 3);
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 2);
    EQUAL(impl_cuEventQuery(e), CUDA_ERROR_NOT_READY);
    fake_reset();
    EQUAL(impl_cuGreenCtxWaitEvent(b, e), 0); /* its stream, and what later ones wait for */
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 2);
    CUstream later = stream(b);
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 3);
    EQUAL(stream(a) != NULL, 1);
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 3);
    fake_reset();
    EQUAL(impl_cuCtxRecordEvent(primary, f), 0); /* s, t, u and later; not what only serves the order */
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 4);
    EQUAL(impl_cuStreamDestroy(later), 0); /* its work is waited for by the context's stream, as long as there is something to wait for it with */
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 5);
    EQUAL(fake.waits, 0);
    fake_complete();
    EQUAL(impl_cuEventQuery(e), 0);
    EQUAL(impl_cuEventQuery(f), 0);
    EQUAL(impl_cuCtxSynchronize(), 0);
    fake_reset();
    EQUAL(impl_cuGreenCtxRecordEvent(a, e), 0); /* nothing is in flight */
    EQUAL(fake.count[GV_OP_EVENT_RECORD], 1);
    EQUAL(fake.count[GV_OP_EVENT_WAIT], 0);
    order_within(a, d);
    /* The first event of a context after a stream was destroyed at work is the one thing that waits. */
    EQUAL(impl_cuMemsetD8Async(d, 1, 16, u), 0);
    EQUAL(impl_cuStreamDestroy(u), 0);
    fake_reset();
    EQUAL(impl_cuGreenCtxRecordEvent(b, e), 0);
    EQUAL(fake.waits, 1);
    fake.hold = false;
    EQUAL(impl_cuGreenCtxDestroy(a), 0);
    EQUAL(impl_cuStreamQuery(s), CUDA_ERROR_STREAM_DETACHED);
    EQUAL(impl_cuDevicePrimaryCtxRelease(1), 0);
    EQUAL(impl_cuCtxSynchronize(), 0); /* the other green context keeps it */
    EQUAL(impl_cuGreenCtxDestroy(b), 0);
    EQUAL(impl_cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EQUAL(impl_cuCtxPopCurrent(NULL), 0);
}
