#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_driver.h"

struct op {
    struct op *next;
    CUevent event;
    uint64_t number; /* of the event's record */
    CUhostFn fn;
    bool work; /* fn is what the device does: several streams at a time */
    void *arg;
    _Atomic uint32_t *word; /* of host memory, which is written or awaited */
    uint32_t value;
    bool awaits;
};

struct CUstream_st {
    struct op *first, *last;
    bool ending, busy;
};
struct CUevent_st {
    uint64_t recorded, done;
};

struct fake_launch fake_launch;
const char *_Atomic fake_driver_print;
_Atomic int fake_events, fake_streams;

/* Of the calls: held by one that waits for room. Taken before the other. */
static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, host_functions = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int broken;
static bool held;
static int n_allocated;
static struct CUstream_st legacy;
static bool legacy_runs;
bool fake_driver_words = true;
static struct {
    char *at;
    size_t size;
} host_memory[64];

void fake_driver_break(int error) {
    pthread_mutex_lock(&lock);
    broken = error;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static unsigned room;
void fake_driver_room(unsigned operations) {
    pthread_mutex_lock(&lock);
    room = operations;
    pthread_mutex_unlock(&lock);
}

static void enter(void) {
    pthread_mutex_lock(&calls);
    pthread_mutex_unlock(&calls);
}

void fake_driver_hold(bool hold) {
    pthread_mutex_lock(&lock);
    held = hold;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

int fake_driver_state(void) {
    pthread_mutex_lock(&lock);
    int error = broken;
    pthread_mutex_unlock(&lock);
    return error;
}

static int state(void) { return fake_driver_state(); }

static void *run(void *arg) {
    struct CUstream_st *s = arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        while ((!s->first || (held && !broken)) && !s->ending) pthread_cond_wait(&changed, &lock);
        struct op *o = s->first;
        if (!o) break;
        s->first = o->next;
        if (!s->first) s->last = NULL;
        if (o->event && !broken) o->event->done = o->number;
        if (o->word && !o->awaits && !broken) atomic_store(o->word, o->value);
        while (o->word && o->awaits && !broken && !s->ending && (int32_t)(atomic_load(o->word) - o->value) < 0) {
            s->busy = true;
            pthread_mutex_unlock(&lock);
            nanosleep(&(struct timespec){0, 100000}, NULL);
            pthread_mutex_lock(&lock);
            s->busy = false;
        }
        if (o->fn && !broken) {
            s->busy = true;
            pthread_mutex_unlock(&lock);
            if (!o->work) pthread_mutex_lock(&host_functions);
            if (!state()) o->fn(o->arg);
            if (!o->work) pthread_mutex_unlock(&host_functions);
            pthread_mutex_lock(&lock);
            s->busy = false;
        }
        free(o);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    if (s != &legacy) free(s);
    return NULL;
}

static void begin(struct CUstream_st *s) {
    pthread_t thread;
    pthread_create(&thread, NULL, run, s);
    pthread_detach(thread);
}

static CUresult queue(CUstream stream, struct op op) {
    struct CUstream_st *s = stream == CU_STREAM_LEGACY ? &legacy : stream;
    struct op *o = malloc(sizeof *o);
    *o = op;
    pthread_mutex_lock(&calls);
    pthread_mutex_lock(&lock);
    for (;;) {
        unsigned queued = 0;
        for (const struct op *before = s->first; before; before = before->next) queued++;
        if (!room || queued < room || broken) break;
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&calls);
    int error = broken;
    if (error) {
        free(o);
    } else {
        if (s == &legacy && !legacy_runs) {
            legacy_runs = true;
            begin(s);
        }
        if (o->event) o->number = ++o->event->recorded;
        if (s->last)
            s->last->next = o;
        else
            s->first = o;
        s->last = o;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

int fake_driver_work(CUstream stream, void (*fn)(void *arg), void *arg) { return queue(stream, (struct op){.fn = fn, .arg = arg, .work = true}); }

CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == 700 ? "an illegal memory access was encountered" : "unknown error";
    return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int *version) { return *version = 13010, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, ordinal < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; }
CUresult cuDeviceTotalMem_v2(size_t *total, CUdevice device) { return (void)device, *total = 64 << 20, CUDA_SUCCESS; }
struct fake_rdma fake_rdma;
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    if (fake_rdma.asked) {
        switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: return *value = fake_rdma.dma_buf, CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED: return *value = fake_rdma.peer, CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: return *value = fake_rdma.vmm, CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING: return *value = fake_rdma.ordering, CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: return *value = fake_rdma.flush, CUDA_SUCCESS;
        default: break;
        }
    }
    if (attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) return *value = fake_driver_words, CUDA_SUCCESS;
    *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? !fake_virtual.none : (int)attribute;
    return attribute < 150 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope) {
    bool right = target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX && scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
    fake_rdma.flushes += right;
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { return *context = (CUcontext)(intptr_t)(device + 1), CUDA_SUCCESS; }
struct fake_memory fake_memory;
CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    if (fake_memory.asks && !--fake_memory.asks) fake_memory.free += fake_memory.later;
    *available = fake_memory.free;
    *total = 64 << 20;
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
    bool global = address >= FAKE_GLOBAL && address < FAKE_GLOBAL + FAKE_GLOBAL_SIZE;
    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) return *(unsigned *)data = global ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST, CUDA_SUCCESS;
    if (!global) return CUDA_ERROR_INVALID_VALUE;
    *(uint64_t *)data = attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ? FAKE_GLOBAL : FAKE_GLOBAL_SIZE;
    return CUDA_SUCCESS;
}
static size_t fake_limits[8] = {1024, 1 << 20, 8 << 20};
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { return *value = fake_limits[limit], CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return fake_limits[limit] = value, CUDA_SUCCESS; }
CUresult cuCtxDestroy_v2(CUcontext context) { return (void)context, fake_memory.free += fake_memory.context, CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule module) { return (void)module, fake_memory.free += fake_memory.module, CUDA_SUCCESS; }
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    fake_memory.free -= fake_memory.context;
    return (void)flags, *context = (CUcontext)(intptr_t)(device + 11), CUDA_SUCCESS;
}
CUresult cuCtxSynchronize(void) { return state(); }
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    if (size > 0x1000000 || n_allocated == 16) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = 0x10000000ull + 0x1000000ull * (unsigned)n_allocated++;
    return state();
}
bool fake_driver_no_host_memory;

CUresult cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
    enter();
    if (fake_driver_no_host_memory) return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; flags & CU_MEMHOSTALLOC_DEVICEMAP; i++) {
        if (host_memory[i].at) continue;
        host_memory[i].at = *memory;
        host_memory[i].size = size;
        break;
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory, unsigned flags) {
    return (void)flags, *address = (CUdeviceptr)memory, CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void *memory) { return free(memory), CUDA_SUCCESS; }

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    (void)flags, (void)priority;
    atomic_fetch_add(&fake_streams, 1);
    begin(*stream = calloc(1, sizeof **stream));
    return CUDA_SUCCESS;
}
CUresult cuStreamDestroy_v2(CUstream stream) {
    atomic_fetch_sub(&fake_streams, 1);
    pthread_mutex_lock(&lock);
    stream->ending = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    enter();
    int error = state();
    if (error) return error;
    atomic_fetch_add(&fake_events, 1);
    *event = calloc(1, sizeof **event);
    return CUDA_SUCCESS;
}
/* An event may still be named by what is queued: its memory stays. */
CUresult cuEventDestroy_v2(CUevent event) { return (void)event, enter(), atomic_fetch_sub(&fake_events, 1), CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent event, CUstream stream) { return queue(stream, (struct op){.event = event}); }
CUresult cuEventSynchronize(CUevent event) {
    (void)event;
    const char *text = atomic_exchange(&fake_driver_print, NULL);
    if (text) fputs(text, stdout);
    return CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent event) {
    enter();
    pthread_mutex_lock(&lock);
    int error = broken ? broken : event->done < event->recorded ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    return error;
}
CUresult cuStreamQuery(CUstream stream) {
    enter();
    struct CUstream_st *s = stream == CU_STREAM_LEGACY ? &legacy : stream;
    pthread_mutex_lock(&lock);
    int error = broken ? broken : s->first || s->busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    return error;
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *arg) { return queue(stream, (struct op){.fn = fn, .arg = arg}); }

/* A module of two kernels: "first" takes (8 bytes, 4 bytes), "second" nothing. */
struct fake_arrays fake_arrays;
static CUresult array_state(void) {
    CUresult fail = (CUresult)fake_arrays.fail;
    fake_arrays.fail = 0;
    return fail ? fail : (CUresult)fake_driver_state();
}
CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    CUresult status = shape->Width ? array_state() : CUDA_ERROR_INVALID_VALUE;
    if (status) return status;
    *array = (CUarray)(uintptr_t)(0x1000 + ++fake_arrays.alive);
    fake_memory.free -= fake_arrays.each;
    return CUDA_SUCCESS;
}
CUresult cuArrayDestroy(CUarray array) {
    CUresult status = array_state();
    if (status) return status;
    (void)array, fake_arrays.alive--;
    fake_memory.free += fake_arrays.each;
    return CUDA_SUCCESS;
}
CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels) {
    (void)shape, (void)levels;
    *array = (CUmipmappedArray)(uintptr_t)0x2000;
    fake_arrays.mipmapped++;
    fake_memory.free -= fake_arrays.each;
    return array_state();
}
CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray all, unsigned level) {
    *array = (CUarray)((uintptr_t)all + 1 + level);
    return array_state();
}
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    (void)array, fake_arrays.mipmapped--;
    fake_memory.free += fake_arrays.each;
    return array_state();
}
__attribute__((weak)) CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream) {
    return (void)stream, fake_arrays.copy = *copy, array_state();
}
CUresult cuTexObjectCreate(CUtexObject *object, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *sampling,
                           const CUDA_RESOURCE_VIEW_DESC *view) {
    fake_arrays.resource = *resource, fake_arrays.sampling = *sampling;
    *object = 0x3000 + (CUtexObject)++fake_arrays.textures;
    return view ? CUDA_ERROR_INVALID_VALUE : array_state();
}
CUresult cuTexObjectDestroy(CUtexObject object) { return (void)object, fake_arrays.textures--, array_state(); }
CUresult cuSurfObjectCreate(CUsurfObject *object, const CUDA_RESOURCE_DESC *resource) {
    fake_arrays.resource = *resource;
    *object = 0x4000 + (CUsurfObject)++fake_arrays.textures;
    return array_state();
}
CUresult cuSurfObjectDestroy(CUsurfObject object) { return (void)object, fake_arrays.textures--, array_state(); }
struct fake_reference fake_reference;
CUresult cuModuleGetTexRef(CUtexref *out, CUmodule module, const char *name) {
    *out = (CUtexref)(uintptr_t)0x5000;
    return module && !strcmp(name, "picture") ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuModuleGetSurfRef(CUsurfref *out, CUmodule module, const char *name) {
    *out = (CUsurfref)(uintptr_t)0x6000;
    return module && !strcmp(name, "canvas") ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuTexRefSetArray(CUtexref r, CUarray array, unsigned flags) {
    return (void)r, fake_reference.array = array, fake_reference.how = flags, CUDA_SUCCESS;
}
CUresult cuTexRefSetMipmappedArray(CUtexref r, CUmipmappedArray levels, unsigned flags) {
    return (void)r, fake_reference.levels = levels, fake_reference.how = flags, CUDA_SUCCESS;
}
CUresult cuTexRefSetAddress_v2(size_t *offset, CUtexref r, CUdeviceptr address, size_t bytes) {
    return (void)r, *offset = fake_reference.offset, fake_reference.address = address, fake_reference.bytes = bytes, CUDA_SUCCESS;
}
CUresult cuTexRefSetAddress2D_v3(CUtexref r, const CUDA_ARRAY_DESCRIPTOR *shape, CUdeviceptr address, size_t pitch) {
    return (void)r, fake_reference.shape = *shape, fake_reference.address = address, fake_reference.pitch = pitch, CUDA_SUCCESS;
}
CUresult cuTexRefSetFormat(CUtexref r, CUarray_format format, int channels) {
    return (void)r, fake_reference.format = format, fake_reference.channels = channels, CUDA_SUCCESS;
}
CUresult cuTexRefSetAddressMode(CUtexref r, int dimension, CUaddress_mode mode) {
    return (void)r, fake_reference.modes[dimension] = mode, CUDA_SUCCESS;
}
CUresult cuTexRefSetFilterMode(CUtexref r, CUfilter_mode mode) { return (void)r, fake_reference.filter = mode, CUDA_SUCCESS; }
CUresult cuTexRefSetMipmapFilterMode(CUtexref r, CUfilter_mode mode) { return (void)r, fake_reference.mip_filter = mode, CUDA_SUCCESS; }
CUresult cuTexRefSetMipmapLevelBias(CUtexref r, float bias) { return (void)r, fake_reference.bias = bias, CUDA_SUCCESS; }
CUresult cuTexRefSetMipmapLevelClamp(CUtexref r, float least, float most) {
    return (void)r, fake_reference.least = least, fake_reference.most = most, CUDA_SUCCESS;
}
CUresult cuTexRefSetMaxAnisotropy(CUtexref r, unsigned most) { return (void)r, fake_reference.anisotropy = most, CUDA_SUCCESS; }
CUresult cuTexRefSetBorderColor(CUtexref r, float *color) { return (void)r, memcpy(fake_reference.border, color, 16), CUDA_SUCCESS; }
CUresult cuTexRefSetFlags(CUtexref r, unsigned flags) { return (void)r, fake_reference.flags = flags, CUDA_SUCCESS; }
CUresult cuSurfRefSetArray(CUsurfref r, CUarray array, unsigned flags) { return (void)r, (void)flags, fake_reference.drawn = array, CUDA_SUCCESS; }
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, CUjit_option *options, void **values) {
    if (strcmp(image, "good") && !strstr(image, "vprintf")) { /* terminated, whatever came */
        for (unsigned i = 0; i < n; i++) {
            if (options[i] == CU_JIT_ERROR_LOG_BUFFER) strcpy(values[i], "line 1: not good");
        }
        return CUDA_ERROR_INVALID_PTX;
    }
    *module = (CUmodule)0x77;
    fake_memory.free -= fake_memory.module;
    return CUDA_SUCCESS;
}
/* A linker that notes what it is given, and links anything but what is called "bad". */
struct fake_link fake_link;
static char linked[64], *link_error;
CUresult cuLinkCreate_v2(unsigned n, CUjit_option *options, void **values, CUlinkState *state) {
    fake_link = (struct fake_link){.created = 1};
    linked[0] = 0;
    for (unsigned i = 0; i < n; i++) {
        if (options[i] == CU_JIT_INFO_LOG_BUFFER) strcpy(values[i], "all is well");
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) link_error = values[i];
        if (options[i] == CU_JIT_OPTIMIZATION_LEVEL) fake_link.level = (unsigned)(uintptr_t)values[i];
        if (options[i] == CU_JIT_GLOBAL_SYMBOL_ADDRESSES) fake_link.addresses = true;
    }
    *state = (CUlinkState)&fake_link;
    return CUDA_SUCCESS;
}
CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned n, CUjit_option *options,
                          void **values) {
    (void)state, (void)type, (void)options, (void)values;
    if (!strcmp(name, "bad")) return strcpy(link_error, "bad is bad"), CUDA_ERROR_INVALID_PTX;
    size_t room = sizeof linked - 1 - strlen(linked);
    strncat(linked, data, size < room ? size : room);
    fake_link.own_options += n;
    return CUDA_SUCCESS;
}
CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size) {
    (void)state;
    *image = linked;
    *size = strlen(linked);
    return CUDA_SUCCESS;
}
CUresult cuLinkDestroy(CUlinkState state) { return (void)state, memset(linked, '?', sizeof linked - 1), fake_link.created = 0, CUDA_SUCCESS; }
CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module) { return (void)module, *count = 2, CUDA_SUCCESS; }
CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned n, CUmodule module) {
    (void)module;
    for (unsigned i = 0; i < n; i++) functions[i] = (CUfunction)(uintptr_t)(i + 1);
    return CUDA_SUCCESS;
}
CUresult cuFuncGetName(const char **name, CUfunction f) { return *name = f == (CUfunction)1 ? "first" : "second", CUDA_SUCCESS; }
CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size) {
    if (f != (CUfunction)1 || index > 1) return CUDA_ERROR_INVALID_VALUE;
    *offset = index * 8;
    *size = index ? 4 : 8;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f) {
    (void)f;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    /* "second" is compiled for clusters of 4 x 2 blocks. */
    if (f == (CUfunction)2 && attribute == CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET) *value = 1;
    if (f == (CUfunction)2 && attribute == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH) *value = 4;
    if (f == (CUfunction)2 && attribute == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT) *value = 2;
    if (f == (CUfunction)2 && attribute == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH) *value = 1;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
                        void **params, void **extra) {
    (void)stream, (void)params;
    fake_launch = (struct fake_launch){.function = f, .grid = gx * gy * gz, .block = bx * by * bz, .shared = shared};
    /* A driver reads as much as the function's parameters take, if there is so much. */
    if (extra && extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER && *(const size_t *)extra[3] >= 8) memcpy(&fake_launch.first, extra[1], 8);
    return state();
}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                   CUstream stream, void **params) {
    (void)stream;
    fake_launch = (struct fake_launch){.function = f, .grid = gx * gy * gz, .block = bx * by * bz, .shared = shared, .cooperative = true};
    if (f == (CUfunction)1) memcpy(&fake_launch.first, params[0], 8);
    return state();
}

static void take_dims(const CUlaunchAttribute *a, unsigned *out) {
    out[0] = a->value.clusterDim.x, out[1] = a->value.clusterDim.y, out[2] = a->value.clusterDim.z;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {
    cuLaunchKernel(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes, c->hStream, params, extra);
    fake_launch.attributes = c->numAttrs;
    for (unsigned i = 0; i < c->numAttrs; i++) {
        const CUlaunchAttribute *a = &c->attrs[i];
        if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) take_dims(a, fake_launch.cluster);
        if (a->id == CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION) take_dims(a, fake_launch.preferred);
        if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE) fake_launch.policy = a->value.clusterSchedulingPolicyPreference;
        if (a->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) fake_launch.cooperative = a->value.cooperative;
    }
    return state();
}

struct fake_clusters fake_clusters;

static CUresult count_clusters(int *count, const CUlaunchConfig *c, bool potential) {
    fake_clusters.grid = c->gridDimX * c->gridDimY * c->gridDimZ;
    fake_clusters.block = c->blockDimX * c->blockDimY * c->blockDimZ;
    fake_clusters.shared = c->sharedMemBytes;
    fake_clusters.attributes = c->numAttrs;
    fake_clusters.potential = potential;
    if (c->numAttrs) take_dims(c->attrs, fake_clusters.cluster);
    *count = fake_clusters.count;
    return (CUresult)fake_clusters.fail;
}
CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction f, const CUlaunchConfig *c) { return (void)f, count_clusters(count, c, false); }
CUresult cuOccupancyMaxPotentialClusterSize(int *count, CUfunction f, const CUlaunchConfig *c) { return (void)f, count_clusters(count, c, true); }

/* ---- the private table ---- */

struct fake_groups fake_groups;
#define FAKE_PAIRS (CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT / 2) /* each attribute's value is its number */

static CUresult tell_groups(uint8_t **order, uint8_t **groups) {
    if (fake_groups.fail) return (CUresult)fake_groups.fail;
    *order = malloc(FAKE_PAIRS), *groups = malloc(FAKE_PAIRS); /* and not a byte more */
    for (int i = 0; i < FAKE_PAIRS; i++) (*order)[i] = (uint8_t)(100 + i), (*groups)[i] = (uint8_t)i;
    fake_groups.alive++;
    return CUDA_SUCCESS;
}
static CUresult free_groups(uint8_t *order, uint8_t *groups) { return free(order), free(groups), fake_groups.alive--, CUDA_SUCCESS; }

CUresult cuGetExportTable(const void **out, const CUuuid *id) {
    static void *table[64];
    if (!fake_groups.slots || memcmp(id->bytes, "\x17\x34\xdc\x26\x80\x0d\x47\x45\x87\x26\xc0\xf1\xe7\xdd\x8b\xca", 16) != 0)
        return CUDA_ERROR_NOT_FOUND;
    table[0] = (void *)(uintptr_t)(fake_groups.slots * sizeof(void *));
    table[4] = (void *)tell_groups;
    table[13] = fake_groups.hollow ? NULL : (void *)free_groups;
    *out = table;
    return CUDA_SUCCESS;
}

/* ---- stream memory operations ---- */

struct fake_batch fake_batch;

CUresult cuStreamBatchMemOp_v2(CUstream s, unsigned n, CUstreamBatchMemOpParams *operations, unsigned flags) {
    if (n > 8) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++) {
        char *at = (char *)operations[i].writeValue.address;
        bool host = false;
        pthread_mutex_lock(&lock);
        for (unsigned k = 0; k < 64 && host_memory[k].at; k++) host |= at >= host_memory[k].at && at < host_memory[k].at + host_memory[k].size;
        pthread_mutex_unlock(&lock);
        if (!host) break;
        bool awaits = operations[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
        CUresult error = queue(s, (struct op){.word = (_Atomic uint32_t *)(void *)at, .value = operations[i].writeValue.value, .awaits = awaits});
        if (error || i + 1 == n) return error;
    }
    fake_batch.n = n;
    fake_batch.flags = flags;
    memcpy(fake_batch.operations, operations, n * sizeof *operations);
    return CUDA_SUCCESS;
}
