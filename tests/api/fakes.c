/* The parts of the shim that the stubs and tables stand on, under the test's control. */
#include "fakes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gv_impl.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int fake_result, fake_broken, fake_initialized = 1, fake_forked, fake_version = 13000, fake_lost_text, fake_software;
EXPORT const char *fake_called = "";
EXPORT CUstream fake_stream, fake_default_stream;
EXPORT char fake_log[65536];
EXPORT struct gv_device_info fake_device[2];
EXPORT int fake_count = 2;

struct session_stats session_stats;
_Thread_local CUstream shim_default_stream = CU_STREAM_LEGACY;
static void (*on_end)(CUcontext context);
struct shim_context {
    uint32_t id;
};
struct shim_stream {
    struct session_stream session;
};
static struct shim_context primary[2] = {{7}, {8}}, current = {9};
static struct shim_stream a_stream = {{.id = 1234}};
static struct shim_server server;

EXPORT uint64_t fake_calls(void) { return session_stats.calls; }

CUresult fake_call(const char *name, CUstream stream) {
    fake_called = name;
    fake_stream = stream;
    fake_default_stream = shim_default_stream;
    return (CUresult)fake_result;
}

CUresult impl_cuMemAlloc(CUdeviceptr *address, size_t size) {
    *address = 0x7f0012345000;
    if (size > 4096) call_because("too much");
    return fake_call("impl_cuMemAlloc", NULL);
}

CUresult impl_cuDriverGetVersion(int *version) {
    *version = fake_version;
    return fake_call("impl_cuDriverGetVersion", NULL);
}

CUresult impl_cuDeviceGetName(char *name, int size, CUdevice device) {
    (void)device;
    snprintf(name, (size_t)size, "%s", fake_software ? "gpuvirt software GPU" : "a \"fake\"\ndevice");
    return fake_call("impl_cuDeviceGetName", NULL);
}

/* Enough of contexts for a runtime to start. */
static CUcontext bound;

CUresult impl_cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return fake_call("impl_cuDeviceGet", NULL);
}

CUresult impl_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)&primary[device];
    return fake_call("impl_cuDevicePrimaryCtxRetain", NULL);
}

void context_on_end(void (*call)(CUcontext context)) { on_end = call; }

CUresult impl_cuDevicePrimaryCtxReset(CUdevice device) {
    if (on_end) on_end((CUcontext)&primary[device]);
    return fake_call("impl_cuDevicePrimaryCtxReset", NULL);
}

CUresult impl_cuCtxGetCurrent(CUcontext *context) {
    *context = bound;
    return fake_call("impl_cuCtxGetCurrent", NULL);
}

CUresult impl_cuCtxSetCurrent(CUcontext context) {
    bound = context;
    return fake_call("impl_cuCtxSetCurrent", NULL);
}

CUresult impl_cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return fake_call("impl_cuCtxGetDevice", NULL);
}

CUresult impl_cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    *mode = CU_MODULE_LAZY_LOADING;
    return fake_call("impl_cuModuleGetLoadingMode", NULL);
}

/* Two devices, as NVML will ask for them. */
EXPORT int fake_init_result, fake_active;

CUresult impl_cuInit(unsigned flags) {
    (void)flags;
    fake_call("impl_cuInit", NULL);
    return (CUresult)fake_init_result;
}

__attribute__((constructor)) static void make_devices(void) {
    for (int d = 0; d < 2; d++) {
        struct gv_device_info *info = &fake_device[d];
        for (int i = 0; i < 16; i++) info->uuid[i] = (uint8_t)(16 * d + i);
        info->attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 4;
        info->attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
        info->attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32;
        info->attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] = 1;
        info->attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] = 0xa0 + d;
        info->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 13;
    }
}

CUresult impl_cuDeviceGetCount(int *count) {
    *count = fake_count;
    return fake_call("impl_cuDeviceGetCount", NULL);
}

CUresult impl_cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    memcpy(uuid->bytes, fake_device[device].uuid, 16);
    return fake_call("impl_cuDeviceGetUuid", NULL);
}

CUresult impl_cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    *bytes = (size_t)(device + 1) << 30;
    return fake_call("impl_cuDeviceTotalMem", NULL);
}

CUresult impl_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    *value = fake_device[device].attributes[attribute];
    return fake_call("impl_cuDeviceGetAttribute", NULL);
}

CUresult impl_cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = device == 0 && fake_active;
    return fake_call("impl_cuDevicePrimaryCtxGetState", NULL);
}

CUresult impl_cuMemGetInfo(size_t *free_bytes, size_t *total) {
    *free_bytes = 3 << 20;
    *total = 8 << 20;
    return fake_call("impl_cuMemGetInfo", NULL);
}

CUresult impl_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
    (void)f, (void)params, (void)extra;
    return fake_call("impl_cuLaunchKernelEx", config->hStream);
}

/* Device 1 reaches device 0, and not the other way round. */
CUresult impl_cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) { return *can = device > peer, CUDA_SUCCESS; }

static char reason[64];

void call_because(const char *format, ...) { snprintf(reason, sizeof reason, "%s", format ? format : ""); }
const char *call_reason(void) { return reason[0] ? reason : NULL; }

int session_broken(void) { return fake_broken; }

const struct shim_server *session_server(void) {
    server.driver_version = fake_version;
    return &server;
}

bool session_in_forked_child(void) { return fake_forked; }
bool session_begun(void) { return false; }

bool shim_initialized(void) { return fake_initialized; }

const char *session_error_text(int code) { return fake_lost_text && code == CUDA_ERROR_DEVICE_UNAVAILABLE ? "lost the GPU server" : NULL; }

const char *shim_setting(const char *name, const char *fallback) {
    char variable[64];
    snprintf(variable, sizeof variable, "GPUVIRT_%s", name);
    const char *value = getenv(variable);
    return value ? value : fallback;
}

void shim_log(const char *format, ...) {
    size_t n = strlen(fake_log);
    va_list args;
    va_start(args, format);
    vsnprintf(fake_log + n, sizeof fake_log - n - 1, format, args);
    va_end(args);
    strcat(fake_log, "\n");
}

struct shim_context *context_current(void) { return &current; }

__attribute__((visibility("default"))) int fake_groups; /* how many pairs of multiprocessors the device has; 0: it does not tell */

int processor_groups(uint8_t **order, uint8_t **groups) {
    *order = *groups = NULL;
    if (!fake_groups) return CUDA_ERROR_NOT_SUPPORTED;
    *order = calloc(256, 1), *groups = calloc(256, 1);
    for (int i = 0; i < fake_groups; i++) (*order)[i] = (uint8_t)(100 + i), (*groups)[i] = (uint8_t)i;
    return CUDA_SUCCESS;
}

struct shim_context *context_get(CUcontext handle) { return (struct shim_context *)handle; }

uint32_t context_id(const struct shim_context *c) { return c->id; }

struct shim_context *context_primary(CUdevice device) { return device >= 0 && device < 2 ? &primary[device] : NULL; }

int device_count(void) { return fake_count; }

const struct gv_device_info *device_info(CUdevice device) { return device >= 0 && device < fake_count ? &fake_device[device] : NULL; }

int stream_resolve(CUstream handle, struct shim_stream **out) {
    (void)handle;
    *out = &a_stream;
    return 0;
}

struct session_stream *stream_session(struct shim_stream *s) { return &s->session; }

int module_each_function(CUmodule module, void (*visit)(void *arg, CUfunction function), void *arg) {
    (void)module;
    for (uintptr_t f = 1; f <= 3; f++) visit(arg, (CUfunction)f);
    return 3;
}
