// Device resources, green contexts and events of whole contexts, by the driver and by the runtime; and every refusal. Prints "right".
#include "check.h"
#include <atomic>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>
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
#define DRIVER(name, symbol) static auto *const name = find<decltype(symbol)>(#symbol)
DRIVER(device_attribute, cuDeviceGetAttribute);
DRIVER(device_resource, cuDeviceGetDevResource);
DRIVER(context_resource, cuCtxGetDevResource);
DRIVER(green_resource, cuGreenCtxGetDevResource);
DRIVER(stream_resource, cuStreamGetDevResource);
DRIVER(split_by_count, cuDevSmResourceSplitByCount);
DRIVER(split, cuDevSmResourceSplit);
DRIVER(describe, cuDevResourceGenerateDesc);
DRIVER(green_create, cuGreenCtxCreate);
DRIVER(green_destroy, cuGreenCtxDestroy);
DRIVER(green_context, cuCtxFromGreenCtx);
DRIVER(green_stream, cuGreenCtxStreamCreate);
DRIVER(green_id, cuGreenCtxGetId);
DRIVER(green_record, cuGreenCtxRecordEvent);
DRIVER(green_wait, cuGreenCtxWaitEvent);
DRIVER(context_record, cuCtxRecordEvent);
DRIVER(context_wait, cuCtxWaitEvent);
DRIVER(context_id, cuCtxGetId);
DRIVER(context_synchronize, cuCtxSynchronize_v2);
static auto *const context_create = find<CUresult(CUcontext *, unsigned, CUdevice)>("cuCtxCreate_v2");
DRIVER(context_destroy, cuCtxDestroy_v2);
DRIVER(get_current, cuCtxGetCurrent);
DRIVER(push, cuCtxPushCurrent_v2);
DRIVER(pop, cuCtxPopCurrent_v2);
DRIVER(retain, cuDevicePrimaryCtxRetain);
DRIVER(release, cuDevicePrimaryCtxRelease_v2);
DRIVER(primary_state, cuDevicePrimaryCtxGetState);
DRIVER(primary_reset, cuDevicePrimaryCtxReset_v2);
DRIVER(stream_create, cuStreamCreate);
DRIVER(stream_destroy, cuStreamDestroy_v2);
DRIVER(stream_contexts, cuStreamGetCtx_v2);
DRIVER(stream_context, cuStreamGetCtx);
DRIVER(stream_green, cuStreamGetGreenCtx);
DRIVER(stream_flags, cuStreamGetFlags);
DRIVER(stream_query, cuStreamQuery);
DRIVER(stream_synchronize, cuStreamSynchronize);
DRIVER(begin_capture, cuStreamBeginCapture_v2);
DRIVER(end_capture, cuStreamEndCapture);
DRIVER(event_create, cuEventCreate);
DRIVER(event_destroy, cuEventDestroy_v2);
DRIVER(event_record, cuEventRecord);
DRIVER(event_query, cuEventQuery);
DRIVER(event_synchronize, cuEventSynchronize);
DRIVER(event_elapsed, cuEventElapsedTime);
DRIVER(stream_wait, cuStreamWaitEvent);
DRIVER(host_function, cuLaunchHostFunc);

static const CUresult INVALID = CUDA_ERROR_INVALID_VALUE, TYPE = CUDA_ERROR_INVALID_RESOURCE_TYPE, CONFIGURATION = CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
                      CONTEXT = CUDA_ERROR_INVALID_CONTEXT, HANDLE = CUDA_ERROR_INVALID_HANDLE, DETACHED = CUDA_ERROR_STREAM_DETACHED,
                      DESTROYED = CUDA_ERROR_CONTEXT_IS_DESTROYED, CAPTURED = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
static const CUdevResourceType SM = CU_DEV_RESOURCE_TYPE_SM, CONFIG = CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG, QUEUE = CU_DEV_RESOURCE_TYPE_WORKQUEUE;

static CUcontext primary;
static CUdevResource whole; // all multiprocessors of device 0
static unsigned unit;       // what a group has at least
static const int N = 1024, ROUNDS = 3000000;
static int *v, *w;

__global__ void add(int *a, int what) { a[threadIdx.x + blockIdx.x * blockDim.x] += what; }
// b = a, late.
__global__ void slowly(const volatile int *a, volatile int *b, int rounds) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    unsigned x = i;
    for (int r = 0; r < rounds; r++) x = x * 1664525 + 1013904223 + (r >> 30);
    b[i] = a[i] + (x == 12345u && rounds < 0);
}

// Holds a stream until it is released.
struct Hold {
    std::atomic<bool> released{false}, reached{false};
    static void CUDA_CB wait(void *p) {
        Hold *h = (Hold *)p;
        h->reached = true;
        while (!h->released) usleep(1000);
    }
    void reach(CUstream s) { // one at a time: host functions may have one thread
        EXPECT(host_function(s, wait, this) == 0);
        while (!reached) usleep(1000);
    }
};

// Whether a stream's work ends in a time in which it must, if it waits for nothing else.
static bool done(CUstream s) {
    for (int i = 0; i < 20000; i++) {
        if (stream_query(s) == CUDA_SUCCESS) return true;
        usleep(1000);
    }
    return false;
}

static int first(const int *a) {
    int x = -1;
    CHECK(cudaMemcpy(&x, a, 4, cudaMemcpyDeviceToHost));
    return x;
}

static CUdevResource of_device(CUdevResourceType type, int device = 0) {
    CUdevResource r;
    EXPECT(device_resource(device, &r, type) == 0 && r.type == type && !r.nextResource);
    return r;
}

static CUdevResourceDesc described(std::vector<CUdevResource> resources) {
    CUdevResourceDesc d = nullptr;
    EXPECT(describe(&d, resources.data(), (unsigned)resources.size()) == 0 && d);
    return d;
}

static CUgreenCtx made(const CUdevResource &r, unsigned flags = CU_GREEN_CTX_DEFAULT_STREAM) {
    CUgreenCtx g = nullptr;
    EXPECT(green_create(&g, described({r}), 0, flags) == 0 && g);
    return g;
}

static CUcontext of(CUgreenCtx g) {
    CUcontext c = nullptr;
    EXPECT(green_context(&c, g) == 0 && c && c != primary && c != (CUcontext)g);
    return c;
}

static CUstream stream_in(CUgreenCtx g) {
    CUstream s = nullptr;
    EXPECT(green_stream(&s, g, CU_STREAM_NON_BLOCKING, 0) == 0 && s);
    return s;
}

static CUevent event() {
    CUevent e = nullptr;
    EXPECT(event_create(&e, CU_EVENT_DEFAULT) == 0);
    return e;
}

static std::vector<CUdevResource> halves() {
    std::vector<CUdevResource> r(2);
    unsigned n = 2;
    EXPECT(split_by_count(r.data(), &n, &whole, nullptr, 0, whole.sm.smCount / 2 / unit * unit) == 0 && n == 2);
    return r;
}

static void resources() {
    int count = 0, major = 0;
    EXPECT(device_attribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0) == 0);
    EXPECT(device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0) == 0);
    whole = of_device(SM);
    unit = whole.sm.minSmPartitionSize;
    EXPECT(whole.sm.smCount == (unsigned)count && whole.sm.flags == 0);
    EXPECT(unit == (major >= 9 ? 8u : major == 8 ? 4u : 2u) && whole.sm.smCoscheduledAlignment == (major >= 9 ? 8u : 2u));
    EXPECT(whole.sm.smCount >= 2 * unit);
    CUdevResource config = of_device(CONFIG), r;
    EXPECT(config.wqConfig.device == 0 && config.wqConfig.wqConcurrencyLimit >= 1 && config.wqConfig.sharingScope == CU_WORKQUEUE_SCOPE_DEVICE_CTX);
    EXPECT(context_resource(primary, &r, SM) == 0 && r.sm.smCount == whole.sm.smCount);
    EXPECT(context_resource(primary, &r, CONFIG) == 0 && context_resource(primary, &r, QUEUE) == 0 && r.type == QUEUE);
    EXPECT(stream_resource(nullptr, &r, SM) == 0 && r.sm.smCount == whole.sm.smCount);
    EXPECT(device_resource(0, nullptr, SM) == INVALID && device_resource(0, &r, CU_DEV_RESOURCE_TYPE_INVALID) == TYPE);
    EXPECT(device_resource(0, &r, QUEUE) == TYPE && device_resource(0, &r, (CUdevResourceType)77) == TYPE);
    EXPECT(device_resource(-1, &r, SM) == CUDA_ERROR_INVALID_DEVICE && device_resource(99, &r, SM) == CUDA_ERROR_INVALID_DEVICE);
    EXPECT(context_resource(nullptr, &r, SM) == CONTEXT && context_resource((CUcontext)&r, &r, SM) == CONTEXT);
    EXPECT(context_resource(primary, nullptr, SM) == INVALID && context_resource(primary, &r, (CUdevResourceType)77) == TYPE);
    EXPECT(green_resource(nullptr, &r, SM) == CONTEXT && stream_resource((CUstream)&r, &r, SM) == HANDLE);
    EXPECT(stream_resource(nullptr, nullptr, SM) == INVALID);
    EXPECT(stream_resource(nullptr, &r, CONFIG) == TYPE && stream_resource(nullptr, &r, QUEUE) == TYPE);
}

static void split_equally() {
    unsigned all = whole.sm.smCount, most = all / unit, n = 0;
    CUdevResource rest;
    EXPECT(split_by_count(nullptr, &n, &whole, nullptr, 0, 0) == 0 && n == most);
    EXPECT(split_by_count(nullptr, &n, &whole, &rest, 0, unit + 1) == 0 && n == all / (unit + whole.sm.smCoscheduledAlignment));
    std::vector<CUdevResource> r(most + 3);
    n = most + 3;
    EXPECT(split_by_count(r.data(), &n, &whole, &rest, 0, 1) == 0 && n == most);
    for (unsigned i = 0; i < n; i++) EXPECT(r[i].type == SM && r[i].sm.smCount == unit && r[i].sm.smCoscheduledAlignment == whole.sm.smCoscheduledAlignment);
    EXPECT(all % unit ? rest.type == SM && rest.sm.smCount == all % unit : rest.type == CU_DEV_RESOURCE_TYPE_INVALID);
    n = 1;
    EXPECT(split_by_count(r.data(), &n, &whole, &rest, 0, unit) == 0 && n == 1 && rest.sm.smCount == all - unit);
    CUdevResource again = rest;
    n = 1;
    EXPECT(split_by_count(r.data(), &n, &again, &again, 0, unit) == 0 && n == 1); // what remains may be split, and be replaced
    n = 1;
    EXPECT(split_by_count(r.data(), &n, &whole, &rest, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, 3) == 0 && r[0].sm.smCount == 4);
    EXPECT(rest.sm.smCount == all - 4 && r[0].sm.smCoscheduledAlignment == 2);
    CUresult large = split_by_count(nullptr, &n, &whole, nullptr, CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE, 0);
    EXPECT(unit == 8 ? large == (all < 16 ? CONFIGURATION : CUDA_SUCCESS) : large == INVALID);
    n = 1;
    EXPECT(split_by_count(r.data(), nullptr, &whole, nullptr, 0, 0) == INVALID && split_by_count(r.data(), &n, nullptr, nullptr, 0, 0) == INVALID);
    EXPECT(split_by_count(r.data(), &n, &whole, nullptr, 4, 0) == INVALID && split_by_count(r.data(), &n, &whole, nullptr, 0, all + 1) == CONFIGURATION);
    EXPECT(split_by_count(r.data(), &n, &r[0], nullptr, 0, 0) == CONFIGURATION); // a group: not before a green context has it
    CUdevResource config = of_device(CONFIG), changed = whole, zero;
    std::memset(&zero, 0, sizeof zero);
    EXPECT(split_by_count(r.data(), &n, &config, nullptr, 0, 0) == TYPE && split_by_count(r.data(), &n, &zero, nullptr, 0, 0) == TYPE);
    changed.sm.smCount--;
    EXPECT(split_by_count(r.data(), &n, &changed, nullptr, 0, 0) == INVALID);
    zero.type = SM;
    zero.sm.smCount = all;
    EXPECT(split_by_count(r.data(), &n, &zero, nullptr, 0, 0) == INVALID); // one that no call has made
    n = 0;
    EXPECT(split_by_count(r.data(), &n, &whole, nullptr, 0, 0) == INVALID);
}

typedef CU_DEV_SM_RESOURCE_GROUP_PARAMS Group;

static Group group(unsigned count, unsigned together = 0, unsigned flags = 0, unsigned preferred = 0) {
    Group p;
    std::memset(&p, 0, sizeof p);
    p.smCount = count;
    p.coscheduledSmCount = together;
    p.preferredCoscheduledSmCount = preferred;
    p.flags = flags;
    return p;
}

static void split_unequally() {
    unsigned all = whole.sm.smCount, usual = unit == 8 ? 8 : 2;
    CUdevResource r[3], rest;
    Group one[] = {group(0)};
    EXPECT(split(nullptr, 1, &whole, &rest, 0, one) == 0 && one[0].smCount == all / usual * usual && one[0].coscheduledSmCount == 0);
    Group three[] = {group(4, 2), group(usual), group(0, 2, CU_DEV_SM_RESOURCE_GROUP_BACKFILL)};
    EXPECT(split(r, 3, &whole, &rest, 0, three) == 0);
    EXPECT(r[0].sm.smCount == 4 && r[0].sm.smCoscheduledAlignment == 2 && r[0].sm.flags == 0 && r[1].sm.smCount == usual);
    EXPECT(r[2].sm.smCount == (all - 4 - usual) / 2 * 2 && three[2].smCount == r[2].sm.smCount && r[2].sm.flags == CU_DEV_SM_RESOURCE_GROUP_BACKFILL);
    EXPECT(all % 2 ? rest.sm.smCount == 1 : rest.type == CU_DEV_RESOURCE_TYPE_INVALID);
    Group single[] = {group(2, 2)};
    EXPECT(split(r, 1, &whole, &rest, 0, single) == 0 && rest.sm.smCount == all - 2);
    single[0] = group(0, 2);
    EXPECT(split(r, 1, &rest, nullptr, 0, single) == 0 && r[0].sm.smCount == (all - 2) / 2 * 2);
    struct {
        Group p;
        CUresult as;
    } refused[] = {
        {group(3), CONFIGURATION},
        {group(2), usual == 8 ? CONFIGURATION : CUDA_SUCCESS},
        {group(all + 2), CONFIGURATION},
        {group(4, 3), CONFIGURATION},
        {group(64, 64), CONFIGURATION},
        {group(usual, 0, 8), INVALID},
        {group(usual, 0, CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID), CONFIGURATION},
        {group(usual, 0, CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS), INVALID},
        {group(usual, 0, 0, usual + 1), CONFIGURATION},
    };
    for (auto &x : refused) EXPECT(split(r, 1, &whole, nullptr, 0, &x.p) == x.as);
    Group wrong = group(usual);
    EXPECT(split(nullptr, 1, &whole, nullptr, 0, &wrong) == CONFIGURATION); // only what is to be found out needs no result
    wrong.reserved[3] = 1;
    EXPECT(split(r, 1, &whole, nullptr, 0, &wrong) == INVALID);
    Group two[] = {group(all / usual * usual), group(0)};
    EXPECT(split(r, 2, &whole, nullptr, 0, two) == CONFIGURATION && two[1].smCount == 0); // nothing is left for the second
    EXPECT(split(r, 0, &whole, nullptr, 0, one) == INVALID && split(r, 1, &whole, nullptr, 0, nullptr) == INVALID);
    EXPECT(split(r, 1, nullptr, nullptr, 0, one) == INVALID && split(r, 1, &whole, nullptr, 1, one) == INVALID);
    CUdevResource config = of_device(CONFIG);
    EXPECT(split(r, 1, &config, nullptr, 0, one) == TYPE);
}

static void descriptors() {
    auto half = halves();
    CUdevResourceDesc d;
    CUdevResource pair[] = {half[0], half[1]}, config = of_device(CONFIG), mine, queue, zero;
    std::memset(&mine, 0, sizeof mine);
    std::memset(&zero, 0, sizeof zero);
    mine.type = CONFIG; // one that the program writes
    mine.wqConfig.wqConcurrencyLimit = 2;
    mine.wqConfig.sharingScope = CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED;
    EXPECT(context_resource(primary, &queue, QUEUE) == 0);
    CUgreenCtx g = nullptr;
    CUdevResource r;
    EXPECT(green_create(&g, described({half[0], half[1], mine}), 0, CU_GREEN_CTX_NONE) == 0);
    EXPECT(green_resource(g, &r, SM) == 0 && r.sm.smCount == half[0].sm.smCount + half[1].sm.smCount);
    EXPECT(green_resource(g, &r, CONFIG) == 0 && r.wqConfig.wqConcurrencyLimit == 2);
    EXPECT(green_resource(g, &r, QUEUE) == 0 && green_destroy(g) == 0);
    EXPECT(green_create(&g, described({queue}), 0, CU_GREEN_CTX_NONE) == 0); // it may use all multiprocessors
    EXPECT(green_resource(g, &r, SM) == 0 && r.sm.smCount == whole.sm.smCount && green_destroy(g) == 0);
    EXPECT(describe(nullptr, pair, 1) == INVALID && describe(&d, nullptr, 1) == INVALID && describe(&d, pair, 0) == INVALID);
    EXPECT(describe(&d, &zero, 1) == TYPE);
    CUdevResource twice[] = {half[0], half[0]}, others[] = {half[0], halves()[1]}, same[] = {whole, whole}, configs[] = {config, mine};
    EXPECT(describe(&d, twice, 2) == CONFIGURATION && describe(&d, others, 2) == CONFIGURATION && describe(&d, same, 2) == CONFIGURATION);
    EXPECT(describe(&d, configs, 2) == CONFIGURATION);
    mine.wqConfig.sharingScope = (CUdevWorkqueueConfigScope)5;
    EXPECT(describe(&d, &mine, 1) == INVALID);
    mine.wqConfig = {99, 1, CU_WORKQUEUE_SCOPE_DEVICE_CTX};
    EXPECT(describe(&d, &mine, 1) == INVALID);
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices));
    EXPECT(devices >= 2);
    CUdevResource mixed[] = {half[0], of_device(CONFIG, 1)};
    EXPECT(describe(&d, mixed, 2) == CONFIGURATION);
    EXPECT(green_create(&g, described({half[0]}), 1, 0) == CUDA_ERROR_INVALID_DEVICE && green_create(&g, described({half[0]}), 99, 0) == CUDA_ERROR_INVALID_DEVICE);
    EXPECT(green_create(nullptr, described({half[0]}), 0, 0) == INVALID && green_create(&g, described({half[0]}), 0, 2) == INVALID);
    EXPECT(green_create(&g, nullptr, 0, 0) == INVALID && green_create(&g, (CUdevResourceDesc)pair, 0, 0) == INVALID);
}

static void contexts() {
    auto half = halves();
    CUgreenCtx a = made(half[0]), b = made(half[1]), g;
    CUcontext ca = of(a), cb = of(b), c;
    unsigned long long ia, ib, ip, id;
    EXPECT(of(a) == ca && ca != cb);
    EXPECT(green_id(a, &ia) == 0 && green_id(b, &ib) == 0 && context_id(primary, &ip) == 0 && ia != ib && ia != ip && ib != ip);
    EXPECT(context_id(ca, &id) == 0 && id == ia && green_id(nullptr, &id) == CONTEXT && green_id(a, nullptr) == INVALID);
    EXPECT(green_context(nullptr, a) == INVALID && green_context(&c, nullptr) == CONTEXT && green_context(&c, (CUgreenCtx)&c) == CONTEXT);
    EXPECT(push((CUcontext)a) == CONTEXT && context_destroy(ca) == CONTEXT); // not converted; not the program's to destroy
    CUdevResource r;
    EXPECT(green_resource(a, &r, SM) == 0 && r.sm.smCount == half[0].sm.smCount && context_resource(ca, &r, SM) == 0 && r.sm.smCount == half[0].sm.smCount);
    if (half[0].sm.smCount >= unit) { // a green context's can be split again
        unsigned n = 1;
        EXPECT(split_by_count(&r, &n, &half[0], nullptr, 0, unit) == CONFIGURATION);
        EXPECT(green_resource(a, &r, SM) == 0);
        CUdevResource part, rest;
        EXPECT(split_by_count(&part, &n, &r, &rest, 0, unit) == 0 && part.sm.smCount == unit);
    }
    EXPECT(green_resource(a, nullptr, SM) == INVALID && green_resource(a, &r, (CUdevResourceType)77) == TYPE);

    CUstream s = stream_in(a), none;
    unsigned flags;
    EXPECT(green_stream(&none, a, 0, 0) == INVALID && green_stream(nullptr, a, 1, 0) == INVALID && green_stream(&none, nullptr, 1, 0) == CONTEXT);
    EXPECT(stream_flags(s, &flags) == 0 && flags == CU_STREAM_NON_BLOCKING);
    EXPECT(stream_contexts(s, &c, &g) == 0 && c == primary && g == a && stream_context(s, &c) == 0 && c == ca && stream_green(s, &g) == 0 && g == a);
    EXPECT(stream_contexts(nullptr, &c, &g) == 0 && c == primary && g == nullptr && stream_green(nullptr, &g) == 0 && g == nullptr);
    EXPECT(stream_resource(s, &r, SM) == 0 && r.sm.smCount == half[0].sm.smCount);

    // Memory, modules and events are the primary context's, whatever is current.
    CHECK(cudaMemset(v, 0, N * 4));
    CHECK(cudaDeviceSynchronize());
    add<<<N / 128, 128, 0, s>>>(v, 3);
    CHECK(cudaGetLastError());
    EXPECT(stream_synchronize(s) == 0 && first(v) == 3);
    EXPECT(push(cb) == 0 && get_current(&c) == 0 && c == cb && green_id(nullptr, &id) == 0 && id == ib);
    EXPECT(stream_contexts(nullptr, &c, &g) == 0 && c == primary && g == b && stream_context(nullptr, &c) == 0 && c == cb);
    EXPECT(stream_contexts(CU_STREAM_PER_THREAD, &c, &g) == HANDLE);
    EXPECT(stream_resource(nullptr, &r, SM) == 0 && r.sm.smCount == half[1].sm.smCount && context_id(nullptr, &id) == 0 && id == ib);
    add<<<N / 128, 128>>>(v, 4); // the runtime, on the default stream of the green context
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    EXPECT(first(v) == 7);
    int *own;
    CHECK(cudaMalloc(&own, 512));
    // The default stream is ordered with blocking streams, and only with those of its own context.
    CUstream blocking;
    EXPECT(stream_create(&blocking, CU_STREAM_DEFAULT) == 0 && stream_green(blocking, &g) == 0 && g == b && stream_flags(blocking, &flags) == 0 && flags == 0);
    Hold hold;
    hold.reach(blocking);
    add<<<N / 128, 128, 0, blocking>>>(v, 5);
    CHECK(cudaGetLastError());
    EXPECT(stream_query(nullptr) == CUDA_ERROR_NOT_READY);
    EXPECT(pop(&c) == 0 && c == cb && get_current(&c) == 0 && c == primary);
    EXPECT(first(w) == first(w) && stream_query(nullptr) == 0); // the primary context's legacy stream waits for nothing
    EXPECT(push(ca) == 0 && first(w) == first(w) && stream_query(nullptr) == 0 && pop(nullptr) == 0);
    EXPECT(context_synchronize(ca) == 0);
    EXPECT(push(cb) == 0);
    hold.released = true;
    EXPECT(first(v) == 12);
    add<<<N / 128, 128>>>(v, 1);
    slowly<<<1, 128>>>(v, w, ROUNDS);
    slowly<<<1, 128, 0, blocking>>>(w, own, ROUNDS);
    EXPECT(stream_destroy(blocking) == 0 && first(own) == 13); // at work: the default stream still comes after it
    EXPECT(pop(nullptr) == 0);
    EXPECT(first(own) == 13);

    EXPECT(green_destroy(b) == 0 && green_destroy(b) == DESTROYED && green_destroy(nullptr) == CONTEXT && push(cb) == CONTEXT);
    EXPECT(green_id(b, &id) == DESTROYED && green_stream(&none, b, 1, 0) == CONTEXT && context_record(cb, nullptr) == CONTEXT);
    EXPECT(first(own) == 13); // what was made in it stays
    CHECK(cudaFree(own));
    // Its streams may only be destroyed.
    Hold last;
    CUevent e = event();
    last.reach(s);
    add<<<N / 128, 128, 0, s>>>(v, 100);
    EXPECT(push(ca) == 0 && green_destroy(a) == 0 && get_current(&c) == 0 && c == ca && stream_query(nullptr) == DESTROYED && pop(nullptr) == 0);
    EXPECT(stream_query(s) == DETACHED && stream_synchronize(s) == DETACHED && event_record(e, s) == DETACHED && stream_green(s, &g) == DETACHED);
    last.released = true;
    EXPECT(stream_destroy(s) == 0 && stream_destroy(s) == HANDLE);
    CHECK(cudaDeviceSynchronize());
    EXPECT(first(v) == 113 && event_destroy(e) == 0);
}

static void lifetimes() { // on the second device, of which nothing else uses the primary context
    unsigned flags, n = 1;
    int active;
    CUdevResource all = of_device(SM, 1), r;
    CUgreenCtx g;
    EXPECT(primary_state(1, &flags, &active) == 0 && !active);
    EXPECT(split_by_count(&r, &n, &all, nullptr, 0, 0) == 0 && green_create(&g, described({r}), 1, CU_GREEN_CTX_DEFAULT_STREAM) == 0);
    EXPECT(primary_state(1, &flags, &active) == 0 && active && green_destroy(g) == 0);
    EXPECT(primary_state(1, &flags, &active) == 0 && !active);
    CUcontext c, k;
    EXPECT(green_create(&g, described({r}), 1, 0) == 0 && green_context(&c, g) == 0 && retain(&k, 1) == 0 && release(1) == 0 && push(c) == 0);
    EXPECT(primary_reset(1) == 0 && stream_query(nullptr) == DESTROYED && pop(nullptr) == 0);
    EXPECT(green_destroy(g) == DESTROYED && push(c) == CONTEXT);
}

// An event of a context comes after all that its streams have been given, and before nothing else.
static void events() {
    auto half = halves();
    CUgreenCtx a = made(half[0]), b = made(half[1]);
    CUcontext ca = of(a);
    CUstream a1 = stream_in(a), a2 = stream_in(a), b1 = stream_in(b), later;
    CUevent e = event(), f = event(), all = event();
    EXPECT(green_record(a, e) == 0 && event_synchronize(e) == 0 && green_wait(a, e) == 0); // of nothing
    Hold hold;
    CHECK(cudaMemset(v, 0, N * 4));
    CHECK(cudaMemset(w, 0, N * 4));
    CHECK(cudaDeviceSynchronize());
    hold.reach(a1);
    add<<<N / 128, 128, 0, a1>>>(v, 7);
    slowly<<<N / 128, 128, 0, a1>>>(v, w, ROUNDS);
    add<<<N / 128, 128, 0, a2>>>(v + N, 1);
    EXPECT(green_record(a, e) == 0 && event_query(e) == CUDA_ERROR_NOT_READY);
    EXPECT(context_record(primary, all) == 0 && event_query(all) == CUDA_ERROR_NOT_READY);
    EXPECT(stream_synchronize(a2) == 0); // the streams themselves wait for nothing
    EXPECT(green_record(b, f) == 0 && event_synchronize(f) == 0 && context_synchronize(of(b)) == 0);
    EXPECT(green_wait(b, e) == 0 && stream_query(b1) == CUDA_ERROR_NOT_READY); // b's streams wait for a's
    later = stream_in(b);                                                        // and those that are made later
    add<<<N / 128, 128, 0, b1>>>(w, 1);
    CHECK(cudaMemcpyAsync(w + N, w, 4, cudaMemcpyDeviceToDevice, later));
    EXPECT(stream_query(later) == CUDA_ERROR_NOT_READY && stream_query(nullptr) == 0); // the primary context's own do not
    CUstream busy = stream_in(a);
    Hold hold_busy;
    EXPECT(host_function(busy, Hold::wait, &hold_busy) == 0);
    slowly<<<N / 128, 128, 0, busy>>>(v + N, w + 2 * N, ROUNDS);
    EXPECT(stream_destroy(busy) == 0 && green_record(a, f) == 0); // the work of a stream that was destroyed counts
    hold.released = true;
    EXPECT(event_synchronize(e) == 0 && event_query(f) == CUDA_ERROR_NOT_READY);
    hold_busy.released = true;
    EXPECT(event_synchronize(f) == 0);
    CHECK(cudaMemcpy(w + 3 * N, w + 2 * N, 4, cudaMemcpyDeviceToDevice));
    EXPECT(first(w + 3 * N) == first(v + N));
    EXPECT(event_synchronize(all) == 0 && event_synchronize(e) == 0 && stream_synchronize(b1) == 0 && stream_synchronize(later) == 0);
    EXPECT(first(w) == 8 && (first(w + N) == 7 || first(w + N) == 8) && first(v + N) == 1);
    float ms;
    EXPECT(event_elapsed(&ms, e, f) == 0 && ms >= 0);

    // All streams of the primary context: its legacy one, per-thread ones, blocking ones and those of green contexts; a wait of all of them.
    Hold again, other;
    CUstream plain;
    EXPECT(stream_create(&plain, CU_STREAM_DEFAULT) == 0);
    CHECK(cudaMemset(v, 0, N * 4));
    CHECK(cudaDeviceSynchronize());
    add<<<N / 128, 128>>>(v, 1); // the legacy stream
    again.reach(a1);
    EXPECT(event_record(all, nullptr) == 0 && stream_wait(a1, all, 0) == 0); // what slowly reads: a1 is not behind the legacy stream by itself
    EXPECT(host_function(plain, Hold::wait, &other) == 0);
    slowly<<<N / 128, 128, 0, a1>>>(v, w, ROUNDS);
    EXPECT(context_record(primary, e) == 0 && context_record(ca, f) == 0);
    EXPECT(context_wait(primary, f) == 0);
    add<<<N / 128, 128>>>(w, 10); // behind a1, by the wait; behind `plain`, as it blocks
    add<<<N / 128, 128, 0, b1>>>(w + N, 10);
    EXPECT(stream_query(b1) == CUDA_ERROR_NOT_READY && event_query(e) == CUDA_ERROR_NOT_READY);
    other.released = true;
    EXPECT(stream_query(plain) == CUDA_ERROR_NOT_READY); // it, too, waits
    again.released = true;
    EXPECT(event_synchronize(e) == 0 && event_synchronize(f) == 0);
    CHECK(cudaDeviceSynchronize());
    EXPECT(first(w) == 11 && first(v) == 1);

    // Neither call orders the legacy stream with blocking ones: one of them goes on while another is held.
    Hold held, held_again;
    CUstream free;
    EXPECT(stream_create(&free, CU_STREAM_DEFAULT) == 0);
    held.reach(plain);
    slowly<<<N / 128, 128, 0, b1>>>(v, w, ROUNDS);
    EXPECT(event_record(f, b1) == 0 && context_wait(primary, f) == 0);
    EXPECT(done(free) && stream_query(plain) == CUDA_ERROR_NOT_READY);
    held.released = true;
    CHECK(cudaDeviceSynchronize());
    slowly<<<N / 128, 128>>>(v, w, ROUNDS);
    EXPECT(host_function(plain, Hold::wait, &held_again) == 0 && context_record(primary, e) == 0);
    add<<<N / 128, 128, 0, free>>>(v, 0);
    EXPECT(done(free) && stream_query(plain) == CUDA_ERROR_NOT_READY && event_query(e) == CUDA_ERROR_NOT_READY);
    held_again.released = true;
    EXPECT(event_synchronize(e) == 0 && stream_destroy(free) == 0);

    // Refusals.
    EXPECT(context_record(nullptr, e) == CONTEXT && context_record((CUcontext)a, e) == CONTEXT && green_record(nullptr, e) == CONTEXT);
    EXPECT(context_record(primary, nullptr) == HANDLE && green_record(a, (CUevent)a) == HANDLE && green_wait(a, nullptr) == HANDLE);
    EXPECT(context_wait(nullptr, e) == CONTEXT && green_wait((CUgreenCtx)primary, e) == CONTEXT && context_wait(ca, nullptr) == HANDLE);
    CUcontext foreign;
    EXPECT(context_create(&foreign, 0, 0) == 0);
    CUevent strange = event();
    EXPECT(context_record(primary, strange) == HANDLE && green_record(a, strange) == HANDLE && context_record(foreign, e) == HANDLE);
    EXPECT(context_record(foreign, strange) == 0 && context_wait(primary, strange) == 0 && context_wait(foreign, e) == 0);
    EXPECT(event_synchronize(strange) == 0 && context_destroy(foreign) == 0);
    CUevent gone = event();
    EXPECT(event_destroy(gone) == 0 && green_record(a, gone) == HANDLE && green_wait(a, gone) == HANDLE);

    // Captures.
    CUgraph graph = nullptr;
    EXPECT(begin_capture(a1, CU_STREAM_CAPTURE_MODE_RELAXED) == 0);
    EXPECT(green_record(b, e) == 0 && green_wait(b, e) == 0); // not its streams
    add<<<N / 128, 128, 0, a1>>>(v, 1);
    EXPECT(end_capture(a1, &graph) == 0 && graph);
    CHECK(cudaGraphDestroy((cudaGraph_t)graph));
    for (int i = 0; i < 5; i++) {
        EXPECT(begin_capture(a1, CU_STREAM_CAPTURE_MODE_RELAXED) == 0);
        if (i == 0) EXPECT(green_record(a, e) == CAPTURED);
        if (i == 1) EXPECT(green_wait(a, e) == CAPTURED);
        if (i == 2) EXPECT(context_record(primary, e) == CAPTURED);
        if (i == 3) EXPECT(context_wait(ca, e) == CAPTURED);
        if (i == 4) EXPECT(event_record(f, a1) == 0 && green_wait(b, f) == CAPTURED);
        EXPECT(end_capture(a1, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED && !graph);
    }
    EXPECT(green_wait(b, f) == CUDA_ERROR_CAPTURED_EVENT && green_record(b, f) == 0 && event_synchronize(f) == 0);
    EXPECT(begin_capture(a1, CU_STREAM_CAPTURE_MODE_RELAXED) == 0 && begin_capture(plain, CU_STREAM_CAPTURE_MODE_RELAXED) == 0);
    EXPECT(event_record(e, plain) == 0 && stream_wait(a2, e, 0) == 0 && event_record(e, a2) == 0 && stream_wait(plain, e, 0) == 0);
    EXPECT(green_destroy(a) == 0 && end_capture(a1, &graph) == DETACHED && end_capture(plain, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT(green_destroy(b) == 0);
    for (CUstream s : {a1, a2, b1, later, plain}) EXPECT(stream_destroy(s) == 0);
    for (CUevent x : {e, f, all}) EXPECT(event_destroy(x) == 0);
    CHECK(cudaDeviceSynchronize());
}

#if CUDART_VERSION >= 13010
// The runtime's names for all of it.
static void by_the_runtime() {
    cudaDevResource all, half[2];
    unsigned n = 2;
    CHECK(cudaDeviceGetDevResource(0, &all, cudaDevResourceTypeSm));
    CHECK(cudaDevSmResourceSplitByCount(half, &n, &all, nullptr, 0, all.sm.smCount / 2 / unit * unit));
    cudaDevResourceDesc_t d;
    CHECK(cudaDevResourceGenerateDesc(&d, half, 1));
    cudaExecutionContext_t x, device;
    CHECK(cudaGreenCtxCreate(&x, d, 0, 0));
    CHECK(cudaDeviceGetExecutionCtx(&device, 0));
    EXPECT(x != device);
    cudaStream_t s, t;
    CHECK(cudaExecutionCtxStreamCreate(&s, x, cudaStreamNonBlocking, 0));
    CHECK(cudaExecutionCtxStreamCreate(&t, device, cudaStreamNonBlocking, 0));
    int number = -1;
    unsigned long long id = 0, other = 0;
    CHECK(cudaExecutionCtxGetDevice(&number, x));
    CHECK(cudaExecutionCtxGetId(x, &id));
    CHECK(cudaExecutionCtxGetId(device, &other));
    EXPECT(number == 0 && id && id != other);
    cudaDevResource r;
    CHECK(cudaExecutionCtxGetDevResource(x, &r, cudaDevResourceTypeSm));
    EXPECT(r.sm.smCount == half[0].sm.smCount);
    CHECK(cudaStreamGetDevResource(s, &r, cudaDevResourceTypeSm));
    EXPECT(r.sm.smCount == half[0].sm.smCount);
    cudaEvent_t e;
    CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    Hold hold;
    CHECK(cudaMemset(v, 0, N * 4));
    CHECK(cudaMemset(w, 0, N * 4));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaLaunchHostFunc(s, Hold::wait, &hold));
    add<<<N / 128, 128, 0, s>>>(v, 2);
    slowly<<<N / 128, 128, 0, s>>>(v, w, ROUNDS);
    CHECK(cudaExecutionCtxRecordEvent(x, e));
    CHECK(cudaExecutionCtxWaitEvent(device, e));
    add<<<N / 128, 128, 0, t>>>(w, 1);
    EXPECT(cudaStreamQuery(t) == cudaErrorNotReady);
    hold.released = true;
    CHECK(cudaExecutionCtxSynchronize(x));
    CHECK(cudaStreamSynchronize(t));
    EXPECT(first(w) == 3);
    CHECK(cudaEventDestroy(e));
    CHECK(cudaStreamDestroy(t));
    CHECK(cudaExecutionCtxDestroy(x));
    EXPECT(cudaStreamQuery(s) == cudaErrorStreamDetached);
    CHECK(cudaStreamDestroy(s));
}
#endif

int main() {
    CHECK(cudaMalloc(&v, 4 * N * 4));
    CHECK(cudaMalloc(&w, 4 * N * 4));
    CHECK(cudaMemset(v, 0, 4 * N * 4));
    CHECK(cudaMemset(w, 0, 4 * N * 4));
    EXPECT(get_current(&primary) == 0 && primary);
    resources();
    split_equally();
    split_unequally();
    descriptors();
    contexts();
    lifetimes();
    events();
#if CUDART_VERSION >= 13010
    by_the_runtime();
#endif
    std::printf("right\n");
    return 0;
}
