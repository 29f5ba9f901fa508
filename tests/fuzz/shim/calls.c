/* Calls of the driver, of all kinds. What they return is a hostile server's to say; what they do to memory is not. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

#define ALLOCATIONS 8
#define MODULES 3
#define SIZE (1u << 20) /* of an allocation */

static _Thread_local struct caller *me;
static _Thread_local struct {
    CUdevice device;
    CUcontext context;
    CUstream streams[BLOCK_STREAMS]; /* the first: the default one */
    CUevent events[BLOCK_EVENTS];
    CUdeviceptr memory[ALLOCATIONS];
    CUmodule modules[MODULES];
    CUfunction functions[MODULES];
    CUlibrary library;
    CUtexObject texture;
    CUarray array;
    CUmipmappedArray levels;
    uint8_t *source; /* pinned, as large as an allocation */
} own;

static uint64_t any(uint64_t below) { return roll(&me->dice, below); }

/* Whether the session is lost: what is asked next goes nowhere. */
static bool good(CUresult rc) {
    if (rc == CUDA_ERROR_DEVICE_UNAVAILABLE) me->lost = true;
    return rc == CUDA_SUCCESS;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static CUdeviceptr *some_memory(void) {
    CUdeviceptr *p = &own.memory[any(ALLOCATIONS)];
    if (*p) return p;
    size_t pitch;
    CUresult rc = any(8) == 0 ? CALL(cuMemAllocPitch, p, &pitch, 1024, SIZE / 1024, 4)
                  : any(4)    ? CALL(cuMemAlloc, p, SIZE)
                              : CALL(cuMemAllocAsync, p, SIZE, own.streams[0]);
    if (!good(rc)) *p = 0;
    return p;
}

static void free_memory(void) {
    CUdeviceptr *p = some_memory();
    if (!*p) return;
    good(any(4) ? CALL(cuMemFree, *p) : CALL(cuMemFreeAsync, *p, own.streams[0]));
    *p = 0;
}

static void copy_in(void) {
    CUdeviceptr dst = *some_memory();
    size_t size = any(3) ? any(5000) : any(SIZE - 4096), at = any(4096);
    if (!dst) return;
    switch (any(3)) {
    case 0: good(CALL(cuMemcpyHtoD, dst + at, own.source, size)); break;
    case 1: good(CALL(cuMemcpyHtoDAsync, dst + at, own.source, size, own.streams[any(BLOCK_STREAMS)])); break;
    default: {
        uint8_t *pageable = calloc(1, size + 1);
        good(CALL(cuMemcpyHtoDAsync, dst + at, pageable, size, own.streams[any(BLOCK_STREAMS)]));
        free(pageable);
    }
    }
}

/* A copy to the host: rows of a block, or a part of it; now, or by a stream (-1: any). */
static void copy_out(bool later, int on) {
    struct block *k = block_take(&me->blocks, later);
    CUdeviceptr src = *some_memory();
    if (!k || !src) return;
    bool rows = any(3) == 0;
    k->at = any(k->size / 4);
    k->depth = rows && any(2) ? 1 + any(3) : 1;
    k->height = rows ? 1 + any(12) : 1;
    size_t room = k->size - k->at - 8;
    k->pitch = room / k->depth / k->height;
    k->width = rows ? 1 + any(k->pitch) : 1 + any(room);
    if (!rows) k->pitch = k->width;
    k->slice = k->pitch * k->height;
    k->source = src + any(16);
    k->source_pitch = k->width + any(2) * 64;
    k->source_slice = k->source_pitch * k->height;
    if (k->source_slice * k->depth + 16 > SIZE || k->width > k->pitch) return;
    int stream = !later ? -1 : on >= 0 ? on : (int)any(BLOCK_STREAMS);
    CUstream s = later ? own.streams[stream] : NULL;
    block_expect(&me->blocks, k, stream);
    CUresult rc;
    if (!rows) {
        rc = later ? CALL(cuMemcpyDtoHAsync, k->memory + k->at, k->source, k->width, s) : CALL(cuMemcpyDtoH, k->memory + k->at, k->source, k->width);
    } else if (k->depth == 1) {
        CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = k->source,
                           .srcPitch = k->source_pitch,
                           .dstMemoryType = CU_MEMORYTYPE_HOST,
                           .dstHost = k->memory + k->at,
                           .dstPitch = k->pitch,
                           .WidthInBytes = k->width,
                           .Height = k->height};
        rc = later ? CALL(cuMemcpy2DAsync, &c, s) : CALL(cuMemcpy2D, &c);
    } else {
        CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = k->source,
                           .srcPitch = k->source_pitch,
                           .srcHeight = k->height,
                           .dstMemoryType = CU_MEMORYTYPE_HOST,
                           .dstHost = k->memory + k->at,
                           .dstPitch = k->pitch,
                           .dstHeight = k->height,
                           .WidthInBytes = k->width,
                           .Height = k->height,
                           .Depth = k->depth};
        rc = later ? CALL(cuMemcpy3DAsync, &c, s) : CALL(cuMemcpy3D, &c);
    }
    bool fine = good(rc);
    if (me->honest && !fine) violation("a copy failed with %d although the server is honest", (int)rc);
    if (!later || (!fine && !me->lost)) block_over(&me->blocks, k, fine);
}

static void move_on_the_device(void) {
    CUdeviceptr a = *some_memory(), b = *some_memory();
    CUstream s = own.streams[any(BLOCK_STREAMS)];
    if (!a || !b) return;
    switch (any(4)) {
    case 0: good(CALL(cuMemcpyDtoDAsync, a, b, any(SIZE), s)); break;
    case 1: good(CALL(cuMemsetD8Async, a, 7, any(SIZE), s)); break;
    case 2: good(CALL(cuMemsetD32, a, 7, any(SIZE / 4))); break;
    default: good(CALL(cuStreamWriteValue32, s, a, 7, 0)); break;
    }
}

static void virtual_memory(void) {
    CUdeviceptr at = 0;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = own.device}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t size = 0;
    if (!good(CALL(cuMemGetAllocationGranularity, &size, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) || !size || size > 1ull << 32) return;
    if (!good(CALL(cuMemAddressReserve, &at, size, 0, 0, 0))) return;
    if (good(CALL(cuMemCreate, &handle, size, &prop, 0))) {
        if (good(CALL(cuMemMap, at, size, 0, handle, 0))) {
            good(CALL(cuMemSetAccess, at, size, &access, 1));
            if (any(2)) good(CALL(cuMemcpyHtoD, at, own.source, 1000));
            good(CALL(cuMemUnmap, at, size));
        }
        good(CALL(cuMemRelease, handle));
    }
    good(CALL(cuMemAddressFree, at, size));
}

/* ---- streams and events ----------------------------------------------------------------------------------------------- */

/* Waits for a stream; whatever it returns, the stream's copies are over. */
static void wait_for_stream(int i) {
    CUresult rc = CALL(cuStreamSynchronize, own.streams[i]);
    bool fine = good(rc);
    if (!me->lost) blocks_over(&me->blocks, me->blocks.stream_covers[i], fine);
}

/* A copy by one stream, and the wait for another one that comes after it. */
static void ordered(int i, int e) {
    int j = 1 + i % (BLOCK_STREAMS - 1);
    copy_out(true, i);
    if (me->lost || !good(CALL(cuEventRecord, own.events[e], own.streams[i])) || !good(CALL(cuStreamWaitEvent, own.streams[j], own.events[e], 0)))
        return;
    for (int b = 0; b < BLOCKS; b++)
        if (me->blocks.stream_covers[i][b] > me->blocks.stream_covers[j][b]) me->blocks.stream_covers[j][b] = me->blocks.stream_covers[i][b];
    memcpy(me->blocks.event_covers[e], me->blocks.stream_covers[i], sizeof me->blocks.event_covers[e]);
    wait_for_stream(j);
}

static void streams(void) {
    int i = 1 + (int)any(BLOCK_STREAMS - 1), e = (int)any(BLOCK_EVENTS);
    switch (any(9)) {
    case 8: ordered(i, e); break;
    case 0:
        wait_for_stream(i);
        if (me->lost) return;
        good(CALL(cuStreamDestroy, own.streams[i]));
        if (!good(CALL(cuStreamCreate, &own.streams[i], any(2) ? CU_STREAM_NON_BLOCKING : 0))) own.streams[i] = NULL;
        break;
    case 1:
        if (!good(CALL(cuEventRecord, own.events[e], own.streams[i]))) return;
        memcpy(me->blocks.event_covers[e], me->blocks.stream_covers[i], sizeof me->blocks.event_covers[e]);
        break;
    case 2:
        if (!good(CALL(cuStreamWaitEvent, own.streams[i], own.events[e], 0))) return;
        for (int b = 0; b < BLOCKS; b++)
            if (me->blocks.event_covers[e][b] > me->blocks.stream_covers[i][b]) me->blocks.stream_covers[i][b] = me->blocks.event_covers[e][b];
        break;
    case 3: {
        bool fine = good(CALL(cuEventSynchronize, own.events[e]));
        if (!me->lost) blocks_over(&me->blocks, me->blocks.event_covers[e], fine);
        break;
    }
    case 4:
        if (good(CALL(cuEventQuery, own.events[e]))) blocks_over(&me->blocks, me->blocks.event_covers[e], true);
        break;
    case 5:
        if (good(CALL(cuStreamQuery, own.streams[i]))) blocks_over(&me->blocks, me->blocks.stream_covers[i], true);
        break;
    case 6: {
        float ms;
        good(CALL(cuEventElapsedTime, &ms, own.events[e], own.events[(e + 1) % BLOCK_EVENTS]));
        break;
    }
    default: wait_for_stream((int)any(BLOCK_STREAMS)); break;
    }
}

struct behind {
    struct blocks *blocks;
    uint64_t covers[BLOCKS];
};

static void CUDA_CB host_function(void *arg) {
    struct behind *b = arg;
    for (int i = 0; i < BLOCKS; i++)
        if (b->covers[i]) block_seen(&b->blocks->of[i], b->covers[i]);
    atomic_fetch_add(&shared->host_functions, 1);
    free(b);
}

static void CUDA_CB stream_callback(CUstream s, CUresult status, void *arg) {
    (void)s;
    if (status == CUDA_SUCCESS)
        host_function(arg);
    else
        free(arg);
}

static void host_functions(void) {
    int i = (int)any(BLOCK_STREAMS);
    struct behind *b = malloc(sizeof *b);
    b->blocks = &me->blocks;
    memcpy(b->covers, me->blocks.stream_covers[i], sizeof b->covers);
    if (!good(any(3) ? CALL(cuLaunchHostFunc, own.streams[i], host_function, b) : CALL(cuStreamAddCallback, own.streams[i], stream_callback, b, 0)))
        free(b);
}

/* ---- modules ---------------------------------------------------------------------------------------------------------- */

static char *image_text(size_t more) {
    char *text = malloc(200 + more);
    snprintf(text, 200, ".version 8.0\n.target sm_50\n.address_size 64\n// %llu\n", (unsigned long long)any(me->honest ? 1 << 20 : 40));
    size_t n = strlen(text);
    memset(text + n, ' ', more);
    text[n + more] = 0;
    return text;
}

static void load(CUmodule *m) {
    char *text = image_text(any(4) ? 0 : any(150000));
    char info[100], error[100];
    memset(info, 0x5a, sizeof info);
    CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {info, (void *)50ul, error, (void *)50ul};
    *m = NULL;
    if (!good(CALL(cuModuleLoadDataEx, m, text, any(3) ? 0 : 4, options, values))) *m = NULL;
    for (size_t i = 50; i < sizeof info; i++)
        if (info[i] != 0x5a) violation("a log went past its buffer");
    free(text);
}

static void use_function(CUfunction f) {
    static uint8_t values[1 << 17];
    static void *params[1 << 16];
    /* As many and as large as a server may claim: how many a kernel has is for it to say. */
    if (!params[0]) {
        for (size_t i = 1; i < sizeof params / sizeof *params; i++) params[i] = values;
        params[0] = values;
    }
    int n;
    size_t offset, size;
    CUstream s = own.streams[any(BLOCK_STREAMS)];
    switch (any(9)) {
    case 0: good(CALL(cuFuncGetAttribute, &n, (CUfunction_attribute)any(16), f)); break;
    case 1: good(CALL(cuFuncSetAttribute, f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)any(100000))); break;
    case 2: good(CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, &n, f, 1 + (int)any(1024), any(50000))); break;
    case 3: {
        int block;
        good(CALL(cuOccupancyMaxPotentialBlockSize, &n, &block, f, NULL, any(5000), 0));
        break;
    }
    case 4: good(CALL(cuFuncGetParamInfo, f, any(8), &offset, &size)); break;
    default: good(CALL(cuLaunchKernel, f, 1 + (unsigned)any(4), 1, 1, 1 + (unsigned)any(64), 1, 1, (unsigned)any(1000), s, params, NULL)); break;
    }
}

static void modules(void) {
    static const char *const names[] = {"k0", "k1", "k2", "k3", "none"}, *const globals[] = {"g0", "g1", "g2", "none"};
    size_t i = any(MODULES), size;
    CUdeviceptr at;
    if (!own.modules[i]) {
        load(&own.modules[i]);
        own.functions[i] = NULL;
        return;
    }
    switch (own.functions[i] ? any(8) : 1) {
    case 0:
        good(CALL(cuModuleUnload, own.modules[i]));
        own.modules[i] = NULL;
        break;
    case 1:
    case 2:
        if (!good(CALL(cuModuleGetFunction, &own.functions[i], own.modules[i], names[any(5)]))) own.functions[i] = NULL;
        if (own.functions[i] || any(3)) break;
        good(CALL(cuModuleUnload, own.modules[i]));
        own.modules[i] = NULL;
        break;
    case 3:
        if (!good(CALL(cuModuleGetGlobal, &at, &size, own.modules[i], globals[any(4)]))) break;
        /* What the server says that there is may be copied from, and then goes where it is asked to. */
        if (size && size <= 4096) {
            struct block *k = block_take(&me->blocks, false);
            if (!k || k->size < size) break;
            k->at = 8, k->width = k->pitch = k->slice = any(size < k->size - 8 ? size : k->size - 8), k->height = k->depth = 1;
            k->source = at, k->source_pitch = k->source_slice = 0;
            if (!k->width) break;
            block_expect(&me->blocks, k, -1);
            bool fine = good(CALL(cuMemcpyDtoH, k->memory + k->at, at, k->width));
            block_over(&me->blocks, k, fine);
        }
        break;
    default: use_function(own.functions[i]);
    }
}

static void libraries(void) {
    if (own.library) {
        CUkernel kernel;
        unsigned n;
        if (good(CALL(cuLibraryGetKernel, &kernel, own.library, "k1")))
            good(CALL(cuLaunchKernel, (CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&n, &n, &n, &n}, (void *[]){CU_LAUNCH_PARAM_END}));
        good(CALL(cuLibraryGetKernelCount, &n, own.library));
        good(CALL(cuLibraryUnload, own.library));
        own.library = NULL;
        return;
    }
    char *text = image_text(0);
    if (!good(CALL(cuLibraryLoadData, &own.library, text, NULL, NULL, 0, NULL, NULL, 0))) own.library = NULL;
    free(text);
}

static void link_modules(void) {
    CUlinkState state;
    char *text = image_text(any(3) ? 0 : any(150000));
    void *image;
    size_t size;
    if (good(CALL(cuLinkCreate, 0, NULL, NULL, &state))) {
        if (good(CALL(cuLinkAddData, state, CU_JIT_INPUT_PTX, text, strlen(text) + 1, "one", 0, NULL, NULL)) &&
            good(CALL(cuLinkComplete, state, &image, &size))) {
            CUmodule m;
            if (any(2) && good(CALL(cuModuleLoadData, &m, image))) good(CALL(cuModuleUnload, m));
        }
        good(CALL(cuLinkDestroy, state));
    }
    free(text);
}

/* ---- the rest --------------------------------------------------------------------------------------------------------- */

static void textures(void) {
    if (own.texture) {
        good(CALL(cuTexObjectDestroy, own.texture));
        own.texture = 0;
        return;
    }
    CUDA_RESOURCE_DESC r = {.resType = CU_RESOURCE_TYPE_LINEAR,
                            .res.linear = {.devPtr = *some_memory(), .format = CU_AD_FORMAT_FLOAT, .numChannels = 1, .sizeInBytes = 4096}};
    CUDA_TEXTURE_DESC t = {0};
    if (r.res.linear.devPtr && !good(CALL(cuTexObjectCreate, &own.texture, &r, &t, NULL))) own.texture = 0;
}

/* An array of 32 rows of 128 bytes, read and written by all calls. */
static void arrays(void) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 32, .Height = 32, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1, .Flags = CUDA_ARRAY3D_SURFACE_LDST},
                            asked;
    CUarray level;
    if (!own.array) {
        if (!good(CALL(cuArray3DCreate, &own.array, &shape))) own.array = NULL;
        if (!own.levels && !good(CALL(cuMipmappedArrayCreate, &own.levels, &shape, 3))) own.levels = NULL;
        return;
    }
    uint8_t there[4096];
    CUDA_MEMCPY2D copy = {.WidthInBytes = 128, .Height = 32, .srcPitch = 128, .dstPitch = 128};
    CUdeviceptr memory = *some_memory();
    switch (any(6)) {
    case 0:
        good(CALL(cuArrayDestroy, own.array));
        if (own.levels) good(CALL(cuMipmappedArrayDestroy, own.levels));
        own.array = NULL, own.levels = NULL;
        return;
    case 1:
        copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = own.source;
        copy.dstMemoryType = CU_MEMORYTYPE_ARRAY, copy.dstArray = own.array;
        good(any(2) ? CALL(cuMemcpy2D, &copy) : CALL(cuMemcpy2DAsync, &copy, own.streams[any(BLOCK_STREAMS)]));
        return;
    case 2:
        copy.srcMemoryType = CU_MEMORYTYPE_ARRAY, copy.srcArray = own.array;
        copy.dstMemoryType = CU_MEMORYTYPE_HOST, copy.dstHost = there;
        good(CALL(cuMemcpy2D, &copy));
        return;
    case 3:
        copy.srcMemoryType = CU_MEMORYTYPE_ARRAY, copy.srcArray = own.array;
        copy.dstMemoryType = CU_MEMORYTYPE_DEVICE, copy.dstDevice = memory;
        if (memory) good(CALL(cuMemcpy2D, &copy));
        return;
    case 4: {
        CUDA_RESOURCE_DESC r = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = own.array};
        CUDA_TEXTURE_DESC t = {0};
        CUsurfObject surface;
        CUtexObject texture;
        if (good(CALL(cuSurfObjectCreate, &surface, &r))) good(CALL(cuSurfObjectDestroy, surface));
        if (good(CALL(cuTexObjectCreate, &texture, &r, &t, NULL))) good(CALL(cuTexObjectDestroy, texture));
        return;
    }
    default:
        good(CALL(cuArray3DGetDescriptor, &asked, own.array));
        if (own.levels) good(CALL(cuMipmappedArrayGetLevel, &level, own.levels, (unsigned)any(4)));
        return;
    }
}

/* Captured, made ready and launched twice. The stream is not ordered with the legacy stream: that one refuses what the other
 * threads ask of it (906) while a stream ordered with it captures, and those count on their copies. */
static void graphs(void) {
    CUstream s;
    CUdeviceptr memory = *some_memory();
    CUgraph graph;
    CUgraphExec ready;
    if (!memory || !good(CALL(cuStreamCreate, &s, CU_STREAM_NON_BLOCKING))) return;
    bool captured = good(CALL(cuStreamBeginCapture, s, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (captured) {
        good(CALL(cuMemsetD8Async, memory, 1, 4096, s));
        good(CALL(cuMemcpyHtoDAsync, memory, own.source, 4096, s));
        if (any(2)) good(CALL(cuMemcpyDtoHAsync, own.source, memory, 4096, s));
        captured = good(CALL(cuStreamEndCapture, s, &graph));
    }
    if (captured && good(CALL(cuGraphInstantiate, &ready, graph, 0))) {
        for (int i = 0; i < 2; i++) good(CALL(cuGraphLaunch, ready, s));
        good(CALL(cuGraphExecDestroy, ready));
    }
    if (captured) good(CALL(cuGraphDestroy, graph));
    good(CALL(cuStreamDestroy, s));
}

static void tensor_map(void) {
    struct {
        CUtensorMap map;
        uint8_t canary[64];
    } place;
    memset(&place, 0x33, sizeof place);
    cuuint64_t dims[] = {64, 64}, strides[] = {256};
    cuuint32_t box[] = {16, 16}, steps[] = {1, 1};
    void *at = (void *)(uintptr_t)(*some_memory() & ~15ull);
    good(CALL(cuTensorMapEncodeTiled, &place.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, at, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
              CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    cuuint64_t images[] = {16, 8, 8, 2}, pitches[] = {64, 512, 4096};
    cuuint32_t one[] = {1, 1, 1, 1};
    const int corner[] = {0, 0};
    good(CALL(cuTensorMapEncodeIm2col, &place.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, at, images, pitches, corner, corner, 8, 16, one,
              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    for (size_t i = 0; i < sizeof place.canary; i++)
        if (place.canary[i] != 0x33) violation("a tensor map went past its 128 bytes");
}

static void queries(void) {
    char name[80];
    int value;
    size_t a, b;
    CUuuid uuid;
    CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    (void)which;
    switch (any(10)) {
    case 0:
        memset(name, 0x44, sizeof name);
        good(CALL(cuDeviceGetName, name, 40, own.device));
        for (size_t i = 40; i < sizeof name; i++)
            if (name[i] != 0x44) violation("a device's name went past its buffer");
        break;
    case 1: good(CALL(cuDeviceGetAttribute, &value, (CUdevice_attribute)any(200), own.device)); break;
    case 2: good(CALL(cuMemGetInfo, &a, &b)); break;
    case 3: good(CALL(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 1024 + any(4096))); break;
    case 4: good(CALL(cuDeviceGetUuid, &uuid, own.device)); break;
    case 5: good(CALL(cuDeviceTotalMem, &a, own.device)); break;
    case 6: {
        CUcontext other;
        if (!good(CALL(cuCtxCreate, &other, NULL, 0, own.device))) break;
        good(CALL(cuCtxSynchronize));
        good(CALL(cuCtxDestroy, other));
        good(CALL(cuCtxSetCurrent, own.context));
        break;
    }
    case 7: {
        CUdeviceptr base;
        good(CALL(cuMemGetAddressRange, &base, &a, *some_memory() + any(SIZE)));
        break;
    }
    case 8: {
        unsigned type;
        good(CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, *some_memory() + any(SIZE)));
        break;
    }
    default: {
        size_t free_now;
        good(CALL(cuCtxGetLimit, &free_now, CU_LIMIT_PRINTF_FIFO_SIZE));
        break;
    }
    }
}

static void one(void) {
    switch (any(24)) {
    case 0: free_memory(); break;
    case 1:
    case 2:
    case 3: copy_in(); break;
    case 4:
    case 5:
    case 6: copy_out(false, -1); break;
    case 7:
    case 8:
    case 9:
    case 10: copy_out(true, -1); break;
    case 11: move_on_the_device(); break;
    case 12:
    case 13:
    case 14:
    case 15: streams(); break;
    case 16: host_functions(); break;
    case 17:
    case 18:
    case 19: modules(); break;
    case 20: any(2) ? libraries() : link_modules(); break;
    case 21: any(3) ? any(2) ? textures() : tensor_map() : arrays(); break;
    case 22: any(4) ? virtual_memory() : graphs(); break;
    default: queries(); break;
    }
}

static bool begin(void) {
    void *pinned = NULL;
    int n = 0;
    if (!good(CALL(cuDeviceGetCount, &n)) || !n) return false;
    if (!good(CALL(cuDeviceGet, &own.device, (int)any((uint64_t)n)))) return false;
    if (!good(CALL(cuDevicePrimaryCtxRetain, &own.context, own.device)) || !good(CALL(cuCtxSetCurrent, own.context))) return false;
    for (int i = 1; i < BLOCK_STREAMS; i++)
        if (!good(CALL(cuStreamCreate, &own.streams[i], any(2) ? CU_STREAM_NON_BLOCKING : 0))) own.streams[i] = NULL;
    for (int i = 0; i < BLOCK_EVENTS; i++)
        if (!good(CALL(cuEventCreate, &own.events[i], any(2) ? CU_EVENT_DISABLE_TIMING : 0))) return false;
    if (!good(CALL(cuMemHostAlloc, &pinned, SIZE, 0))) return false;
    own.source = pinned;
    memset(own.source, 0x11, SIZE);
    return true;
}

void calls_make(struct caller *c) {
    me = c;
    blocks_begin(&c->blocks, &c->dice, c->honest);
    if (!begin()) {
        if (c->honest) violation("nothing could be made although the server is honest");
        return;
    }
    for (uint64_t loads = any(3) ? 0 : 4; loads && !c->lost; loads--) modules(); /* several threads at the same time */
    for (uint64_t i = 0, after = 0; i < c->calls && after < 6; i++, after += c->lost) {
        one();
        block_look(&c->blocks.of[any(BLOCKS)]);
    }
    /* A wait that returns, with whatever: nobody writes any more. */
    bool fine = good(CALL(cuCtxSynchronize));
    if (c->honest && !fine) violation("the last wait failed although the server is honest");
    if (fine && !c->lost)
        for (int i = 0; i < BLOCK_STREAMS; i++) blocks_over(&c->blocks, c->blocks.stream_covers[i], true);
    if (c->lost) usleep(3000);
    blocks_all_over(&c->blocks);
}
