/* cuGetExportTable: tables of functions that NVIDIA's runtime and libraries ask the driver for by UUID. They are documented nowhere; what is here is what callers were seen to
 * need. A slot nobody was seen to call says so once and returns CUDA_ERROR_NOT_SUPPORTED; so does a table nobody was seen to need. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/context_storage.h"
#include "abi/entry.h"
#include "gv_impl.h"
#include "abi/integrity.h"

#define SLOTS 64

enum table_name { RUNTIME, TOOLS_BUFFERS, CURRENT_CONTEXT, LOCAL_STORAGE, CONTEXT_CHECKS, INTEGRITY, IDENTITIES, CUBLASLT, CUFFT, TOOLS, TABLES };

struct table {
    uint8_t uuid[16];
    unsigned slots; /* the size word included, where there is one */
    int sized;      /* slot 0 is the table's size in bytes */
    void *functions[SLOTS + 1];
};
static struct table tables[TABLES];

/* The calling thread's context; without one the first device's primary context, which is what a runtime would make current. */
static CUcontext current_or_primary(void) {
    struct shim_context *c = context_current();
    return (CUcontext)(c ? c : context_primary(0));
}

/* ---- 6bd5fb6c: the runtime's own ----------------------------------------------------------------------------------- */

static CUresult runtime_primary_context(CUcontext *out, CUdevice device) {
    int refused = entry_refuses(ENTRY_NEEDS_INIT | ENTRY_NEEDS_SERVER);
    if (refused) return (CUresult)refused;
    struct shim_context *c = out ? context_primary(device) : NULL;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUcontext)c;
    return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult runtime_load(CUmodule *out, const void *image) {
    int refused = entry_refuses(ENTRY_NEEDS_INIT | ENTRY_NEEDS_SERVER);
    return refused ? (CUresult)refused : impl_cuModuleLoadData(out, image);
}

static CUresult runtime_load_fatbin(const void *image, CUmodule *out) { return runtime_load(out, image); }

static CUresult nothing_to_do(void) { return CUDA_SUCCESS; }

/* ---- a094798c: buffers for tools ----------------------------------------------------------------------------------- */

/* The callers write here for tools that watch them; nobody reads it. More room than the sizes say, in case they count words. */
static uint64_t tools_first[1024], tools_second[64];

static CUresult tools_first_buffer(void **buffer, size_t *size) {
    *buffer = tools_first;
    *size = 1024;
    return CUDA_SUCCESS;
}

static CUresult tools_second_buffer(void **buffer, size_t *size) {
    *buffer = tools_second;
    *size = 14;
    return CUDA_SUCCESS;
}

/* ---- 42d85a81: current context ------------------------------------------------------------------------------------- */

static CUresult current_context(void **out) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = current_or_primary();
    return CUDA_SUCCESS;
}

/* Nothing but the thread's own: what a runtime finds here tells it whether it still has to make a context current in this thread. */
static CUcontext current_only(void) { return (CUcontext)context_current(); }

/* ---- c693336e: context-local storage ------------------------------------------------------------------------------- */

/* A green context has its primary context's: a runtime keeps there what it has loaded. */
static CUcontext root_of(CUcontext ctx) {
    struct shim_context *c = context_get(ctx);
    return c ? (CUcontext)c : ctx;
}

static CUresult local_put(CUcontext ctx, void *key, void *value, storage_destructor destructor) {
    if (!ctx && !(ctx = current_only())) return CUDA_ERROR_INVALID_CONTEXT;
    return (CUresult)storage_put(root_of(ctx), key, value, destructor);
}

static CUresult local_delete(CUcontext ctx, void *key) {
    if (!ctx && !(ctx = current_only())) return CUDA_ERROR_INVALID_CONTEXT;
    return (CUresult)storage_delete(root_of(ctx), key);
}

static CUresult local_get(void **value, CUcontext ctx, void *key) {
    if (!ctx && !(ctx = current_only())) {
        *value = NULL;
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return (CUresult)storage_get(root_of(ctx), key, value);
}

/* ---- 263e8860: checks of a context --------------------------------------------------------------------------------- */

/* 1: the context is a green one's, and `root`, where asked for, its primary context, for which a runtime makes calls that are for the whole device. */
static CUresult check_context(CUcontext ctx, uint32_t *result, CUcontext *root) {
    CUcontext primary = root_of(ctx);
    *result = primary != ctx;
    if (*result && root) *root = primary;
    return CUDA_SUCCESS;
}

/* ---- d4082055: the driver-integrity query -------------------------------------------------------------------------- */

static CUresult integrity(uint32_t version, uint64_t time, uint64_t result[2]) {
    int driver_version = 0;
    CUresult rc = impl_cuDriverGetVersion(&driver_version);
    if (rc) return rc;
    const struct gv_device_info *devices[GV_MAX_DEVICES];
    unsigned n = 0;
    for (int i = 0; i < device_count() && n < GV_MAX_DEVICES; i++) devices[n++] = device_info(i);
    const struct integrity_query query = {
        .driver_version = (uint32_t)driver_version,
        .version = version,
        .pid = (uint32_t)getpid(),
        .thread = (uint32_t)(uintptr_t)pthread_self(),
        .runtime_table = (uint64_t)(uintptr_t)tables[RUNTIME].functions,
        .own_table = (uint64_t)(uintptr_t)tables[INTEGRITY].functions,
        .function = (uint64_t)(uintptr_t)tables[INTEGRITY].functions[1],
        .time = time,
    };
    integrity_answer(&query, devices, n, result);
    return CUDA_SUCCESS;
}

/* ---- 21318c60: identities of contexts and streams ------------------------------------------------------------------ */

static CUresult identity_of_context(CUcontext ctx, uint64_t *out) {
    struct shim_context *c = ctx ? context_get(ctx) : context_current();
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    *out = context_id(c);
    return CUDA_SUCCESS;
}

/* Slot 51 turns a stream's handle into what the driver knows it by, slot 39 turns that into a number. A legacy stream travels as 0 in every context; the
 * number its completions go by tells them apart, and serves as both. */
static CUresult inner_of_stream(CUcontext ctx, CUstream stream, uint64_t *out) {
    (void)ctx;
    struct shim_stream *s;
    int rc = stream_resolve(stream, &s);
    if (rc) return (CUresult)rc;
    *out = stream_session(s)->id;
    return CUDA_SUCCESS;
}

static CUresult identity_of_inner(CUcontext ctx, uint64_t inner, uint64_t *out) {
    (void)ctx;
    *out = inner;
    return CUDA_SUCCESS;
}

/* ---- 1734dc26: how multiprocessors are grouped (cuBLASLt) ----------------------------------------------------------- */

/* Callers leave what they like in the registers of further arguments. */
static CUresult tell_groups(uint8_t **order, uint8_t **groups) {
    int refused = entry_refuses(ENTRY_NEEDS_INIT | ENTRY_NEEDS_SERVER);
    if (refused) return (CUresult)refused;
    return order && groups ? (CUresult)processor_groups(order, groups) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult free_groups(uint8_t *order, uint8_t *groups) {
    free(order);
    free(groups);
    return CUDA_SUCCESS;
}

/* ---- 6e163fbe: functions of a module (cuFFT) ----------------------------------------------------------------------- */

typedef void (*function_callback)(void *opaque, CUfunction function, const void *owner);

struct each {
    function_callback callback;
    void *opaque;
};

/* The third argument points into the driver's own record of the function. */
static const uint8_t no_record[4096];

static void each_function(void *arg, CUfunction function) {
    struct each *each = arg;
    each->callback(each->opaque, function, no_record);
}

static int functions_of_module(CUcontext ctx, CUmodule module, function_callback callback, void *opaque) {
    (void)ctx;
    if (!callback || entry_refuses(ENTRY_NEEDS_INIT | ENTRY_NEEDS_SERVER)) return 0;
    struct each each = {callback, opaque};
    return module_each_function(module, each_function, &each);
}

/* 7cb63f9b, hooks for tools: CUPTI of CUDA 13.5 tells its version, which JAX asks for, only where the driver has it. It calls none of it then; to watch a program it wants another
 * table, which is refused. */

/* ---- slots that nothing fills -------------------------------------------------------------------------------------- */

static CUresult missing(unsigned table, unsigned slot) {
    static _Atomic uint8_t told[TABLES][SLOTS];
    const uint8_t *u = tables[table].uuid;
    if (!atomic_exchange(&told[table][slot], 1))
        shim_log("slot %u of the private table %02x%02x%02x%02x-... was called, which is not supported: it returned CUDA_ERROR_NOT_SUPPORTED", slot,
                 u[0], u[1], u[2], u[3]);
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define SLOT(table, slot) \
    static CUresult missing_##table##_##slot(void) { return missing(table, slot); }
/* clang-format never settles on where these lines end. */
/* clang-format off */
#define EACH_4(each, table, a, b, c, d) each(table, a) each(table, b) each(table, c) each(table, d)
#define EACH_16(each, table) \
    EACH_4(each, table, 0, 1, 2, 3) EACH_4(each, table, 4, 5, 6, 7) EACH_4(each, table, 8, 9, 10, 11) EACH_4(each, table, 12, 13, 14, 15)
#define EACH_64(each, table) EACH_16(each, table) \
    EACH_4(each, table, 16, 17, 18, 19) EACH_4(each, table, 20, 21, 22, 23) EACH_4(each, table, 24, 25, 26, 27) \
    EACH_4(each, table, 28, 29, 30, 31) EACH_4(each, table, 32, 33, 34, 35) EACH_4(each, table, 36, 37, 38, 39) \
    EACH_4(each, table, 40, 41, 42, 43) EACH_4(each, table, 44, 45, 46, 47) EACH_4(each, table, 48, 49, 50, 51) \
    EACH_4(each, table, 52, 53, 54, 55) EACH_4(each, table, 56, 57, 58, 59) EACH_4(each, table, 60, 61, 62, 63)
/* clang-format on */

EACH_16(SLOT, RUNTIME)
EACH_16(SLOT, TOOLS_BUFFERS)
EACH_16(SLOT, CURRENT_CONTEXT)
EACH_16(SLOT, LOCAL_STORAGE)
EACH_16(SLOT, CONTEXT_CHECKS)
EACH_16(SLOT, INTEGRITY)
EACH_64(SLOT, IDENTITIES)
EACH_64(SLOT, CUBLASLT)
EACH_64(SLOT, CUFFT)
EACH_64(SLOT, TOOLS)

#define FILL(table, slot) tables[table].functions[slot] = (void *)missing_##table##_##slot;

/* ---- the tables ---------------------------------------------------------------------------------------------------- */

static struct table tables[TABLES] = {
    [RUNTIME] = {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, 13, 1, {0}},
    [TOOLS_BUFFERS] = {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, 7, 1, {0}},
    [CURRENT_CONTEXT] = {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, 4, 1, {0}},
    [LOCAL_STORAGE] = {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, 3, 0, {0}},
    [CONTEXT_CHECKS] = {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e}, 4, 1, {0}},
    [INTEGRITY] = {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2}, 3, 1, {0}},
    [IDENTITIES] = {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2}, 64, 1, {0}},
    [CUBLASLT] = {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca}, 17, 1, {0}},
    [CUFFT] = {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e}, 64, 1, {0}},
    [TOOLS] = {{0x7c, 0xb6, 0x3f, 0x9b, 0x9c, 0xa4, 0x8e, 0x42, 0xa4, 0x84, 0xbe, 0xb6, 0x6e, 0x6a, 0xed, 0x7f}, 64, 1, {0}},
};

static void build(void) {
    context_on_end(storage_drop);
    EACH_16(FILL, RUNTIME)
    EACH_16(FILL, TOOLS_BUFFERS)
    EACH_16(FILL, CURRENT_CONTEXT)
    EACH_16(FILL, LOCAL_STORAGE)
    EACH_16(FILL, CONTEXT_CHECKS)
    EACH_16(FILL, INTEGRITY)
    EACH_64(FILL, IDENTITIES)
    EACH_64(FILL, CUBLASLT)
    EACH_64(FILL, CUFFT)
    EACH_64(FILL, TOOLS)
    tables[RUNTIME].functions[1] = (void *)runtime_load;
    tables[RUNTIME].functions[2] = (void *)runtime_primary_context;
    tables[RUNTIME].functions[6] = (void *)runtime_load;
    tables[RUNTIME].functions[7] = (void *)nothing_to_do;
    tables[RUNTIME].functions[8] = (void *)runtime_load_fatbin;
    tables[RUNTIME].functions[12] = (void *)nothing_to_do;
    tables[TOOLS_BUFFERS].functions[2] = (void *)tools_first_buffer;
    tables[TOOLS_BUFFERS].functions[6] = (void *)tools_second_buffer;
    tables[CURRENT_CONTEXT].functions[2] = (void *)current_context;
    tables[LOCAL_STORAGE].functions[0] = (void *)local_put;
    tables[LOCAL_STORAGE].functions[1] = (void *)local_delete;
    tables[LOCAL_STORAGE].functions[2] = (void *)local_get;
    tables[CONTEXT_CHECKS].functions[2] = (void *)check_context;
    tables[CONTEXT_CHECKS].functions[3] = (void *)nothing_to_do;
    tables[INTEGRITY].functions[1] = (void *)integrity;
    tables[IDENTITIES].functions[4] = (void *)identity_of_context;
    tables[IDENTITIES].functions[39] = (void *)identity_of_inner;
    tables[IDENTITIES].functions[51] = (void *)inner_of_stream;
    tables[CUBLASLT].functions[4] = (void *)tell_groups;
    tables[CUBLASLT].functions[13] = (void *)free_groups;
    tables[CUFFT].functions[7] = (void *)functions_of_module;
    for (unsigned t = 0; t < TABLES; t++) {
        if (tables[t].sized) tables[t].functions[0] = (void *)(uintptr_t)(tables[t].slots * sizeof(void *));
        tables[t].functions[tables[t].slots] = NULL;
    }
}

/* Tables that callers were seen to do without: not worth a line to the user. */
static const uint8_t tolerated[][16] = {
    {0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9},
    {0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3, 0x28},
};

CUresult impl_cuGetExportTable(const void **out, const CUuuid *id) {
    static pthread_once_t built = PTHREAD_ONCE_INIT;
    if (!out || !id) return CUDA_ERROR_INVALID_VALUE;
    pthread_once(&built, build);
    for (unsigned t = 0; t < TABLES; t++) {
        if (memcmp(tables[t].uuid, id->bytes, sizeof tables[t].uuid) != 0) continue;
        *out = tables[t].functions;
        return CUDA_SUCCESS;
    }
    *out = NULL;
    const unsigned char *u = (const unsigned char *)id->bytes;
    for (unsigned i = 0; i < sizeof tolerated / sizeof *tolerated; i++) {
        if (memcmp(tolerated[i], u, sizeof tolerated[i]) == 0) return CUDA_ERROR_NOT_FOUND;
    }
    shim_log_once("the private table %02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x was asked for, which is not supported "
                  "(said for the first one only)",
                  u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    return CUDA_ERROR_NOT_FOUND;
}
