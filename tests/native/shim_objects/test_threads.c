/* Many threads on one context: allocations never overlap, data stays each thread's own, a library is loaded once. For the thread sanitizer. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fake_session.h"
#include "gv_impl.h"
#include "objects/objects.h"

#define THREADS 8
#define ROUNDS 150

static CUcontext context;
static CUlibrary library;

static void *work(void *arg) {
    int me = (int)(intptr_t)arg;
    CUstream stream;
    CUevent event;
    CUkernel kernel;
    char out[3000], back[3000];
    memset(out, me + 1, sizeof out);
    EQUAL(impl_cuCtxSetCurrent(context), 0);
    EQUAL(impl_cuStreamCreate(&stream, me % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT), 0);
    EQUAL(impl_cuEventCreate(&event, 0), 0);
    EQUAL(impl_cuLibraryGetKernel(&kernel, library, "add"), 0);
    uint64_t a = 1, c = 2;
    uint32_t b = 3;
    void *params[] = {&a, &b, &c};
    for (int i = 0; i < ROUNDS; i++) {
        CUdeviceptr p, base;
        size_t size;
        CUstream extra;
        EQUAL(impl_cuMemAlloc(&p, sizeof out), 0);
        EQUAL(impl_cuMemGetAddressRange(&base, &size, p + 2999), 0);
        CHECK(base == p && size == sizeof out);
        EQUAL(impl_cuMemcpyHtoDAsync(p, out, sizeof out, stream), 0);
        EQUAL(impl_cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL), 0);
        EQUAL(impl_cuEventRecord(event, stream), 0);
        EQUAL(impl_cuStreamCreate(&extra, CU_STREAM_NON_BLOCKING), 0);
        EQUAL(impl_cuStreamWaitEvent(extra, event, 0), 0);
        EQUAL(impl_cuMemcpyDtoHAsync(back, p, sizeof back, extra), 0);
        EQUAL(impl_cuStreamDestroy(extra), 0);
        CHECK(!memcmp(out, back, sizeof out));
        EQUAL(impl_cuEventSynchronize(event), 0);
        EQUAL(impl_cuMemsetD8Async(p, 0, 16, CU_STREAM_PER_THREAD), 0);
        if (i % 10 == 0) EQUAL(impl_cuCtxSynchronize(), 0);
        EQUAL(impl_cuMemFree(p), 0);
    }
    EQUAL(impl_cuEventDestroy(event), 0);
    EQUAL(impl_cuStreamDestroy(stream), 0);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    EQUAL(impl_cuInit(0), 0);
    EQUAL(impl_cuDevicePrimaryCtxRetain(&context, 0), 0);
    EQUAL(impl_cuLibraryLoadData(&library, FAKE_PTX, NULL, NULL, 0, NULL, NULL, 0), 0);
    fake.hold = true;
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    EQUAL(fake.count[GV_OP_MODULE_LOAD], 1);
    EQUAL(fake.count[GV_OP_STREAM_CREATE], fake.count[GV_OP_STREAM_DESTROY]); /* the threads' own streams went with them */
    EQUAL(impl_cuLibraryUnload(library), 0);
    EQUAL(impl_cuDevicePrimaryCtxRelease(0), 0);
    return check_result("threads");
}
