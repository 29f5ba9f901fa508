/* Asks the libcuda.so.1 of ours through its public functions: the one this process has loaded, else the one that lies beside this library. */
#define _GNU_SOURCE
#include "devices.h"

#include <cuda.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The functions of the driver that are used here, by the names it exports. */
static struct {
    CUresult (*init)(unsigned);
    CUresult (*version)(int *);
    CUresult (*count)(int *);
    CUresult (*name)(char *, int, CUdevice);
    CUresult (*uuid)(CUuuid *, CUdevice);
    CUresult (*memory)(size_t *, CUdevice);
    CUresult (*attribute)(int *, CUdevice_attribute, CUdevice);
    CUresult (*primary_state)(CUdevice, unsigned *, int *);
    CUresult (*primary_retain)(CUcontext *, CUdevice);
    CUresult (*primary_release)(CUdevice);
    CUresult (*push)(CUcontext);
    CUresult (*pop)(CUcontext *);
    CUresult (*memory_info)(size_t *, size_t *);
    CUresult (*can_access_peer)(int *, CUdevice, CUdevice);
} driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device_table table;
static int have_table;
static _Atomic int users;

static void *open_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library) return library;
    Dl_info self;
    char path[PATH_MAX];
    if (!dladdr((void *)open_driver, &self) || !self.dli_fname) return NULL;
    const char *slash = strrchr(self.dli_fname, '/');
    int folder = slash ? (int)(slash - self.dli_fname) : 0;
    int n = snprintf(path, sizeof path, "%.*s%slibcuda.so.1", folder, self.dli_fname, slash ? "/" : "");
    return n < (int)sizeof path ? dlopen(path, RTLD_NOW) : NULL;
}

static int find_functions(void *library) {
    const struct {
        const char *name;
        void **place;
    } wanted[] = {
        {"cuInit", (void **)&driver.init},
        {"cuDriverGetVersion", (void **)&driver.version},
        {"cuDeviceGetCount", (void **)&driver.count},
        {"cuDeviceGetName", (void **)&driver.name},
        {"cuDeviceGetUuid_v2", (void **)&driver.uuid},
        {"cuDeviceTotalMem_v2", (void **)&driver.memory},
        {"cuDeviceGetAttribute", (void **)&driver.attribute},
        {"cuDevicePrimaryCtxGetState", (void **)&driver.primary_state},
        {"cuDevicePrimaryCtxRetain", (void **)&driver.primary_retain},
        {"cuDevicePrimaryCtxRelease_v2", (void **)&driver.primary_release},
        {"cuCtxPushCurrent_v2", (void **)&driver.push},
        {"cuCtxPopCurrent_v2", (void **)&driver.pop},
        {"cuMemGetInfo_v2", (void **)&driver.memory_info},
        {"cuDeviceCanAccessPeer", (void **)&driver.can_access_peer},
    };
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].place = dlsym(library, wanted[i].name);
        if (!*wanted[i].place) return -1;
    }
    return 0;
}

static int attribute(CUdevice device, CUdevice_attribute which) {
    int value = 0;
    return driver.attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

static int read_device(unsigned index, struct nvmlDevice_st *out) {
    CUuuid uuid;
    size_t memory;
    CUdevice device = (CUdevice)index;
    out->index = index;
    if (driver.name(out->name, sizeof out->name, device) || driver.uuid(&uuid, device) || driver.memory(&memory, device)) return -1;
    memcpy(out->uuid, uuid.bytes, sizeof out->uuid);
    out->memory = memory;
    out->domain = (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
    out->bus = (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
    out->device = (unsigned)attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
    out->major = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    out->minor = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    return 0;
}

static nvmlReturn_t read_table(void) {
    void *library = open_driver();
    if (!library || find_functions(library)) return NVML_ERROR_LIBRARY_NOT_FOUND;
    CUresult rc = driver.init(0);
    /* A program that hides all devices has a driver without devices; anything else is a missing server. */
    if (rc == CUDA_ERROR_NO_DEVICE && getenv("CUDA_VISIBLE_DEVICES"))
        return driver.version(&table.cuda_version) ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_SUCCESS;
    int count;
    if (rc || driver.version(&table.cuda_version) || driver.count(&count)) return NVML_ERROR_DRIVER_NOT_LOADED;
    for (int i = 0; i < count && i < MAX_DEVICES; i++) {
        if (read_device((unsigned)i, &table.devices[i])) return NVML_ERROR_UNKNOWN;
    }
    table.count = (unsigned)(count < MAX_DEVICES ? count : MAX_DEVICES);
    return NVML_SUCCESS;
}

nvmlReturn_t devices_read(void) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t rc = have_table ? NVML_SUCCESS : read_table();
    if (rc == NVML_SUCCESS) have_table = 1;
    pthread_mutex_unlock(&lock);
    return rc;
}

void devices_use(int change) { atomic_fetch_add(&users, change); }

int devices_in_use(void) { return atomic_load(&users); }

const struct device_table *devices(void) { return atomic_load(&users) > 0 ? &table : NULL; }

nvmlReturn_t device_of(nvmlDevice_t handle, const struct nvmlDevice_st **out) {
    if (!devices()) return NVML_ERROR_UNINITIALIZED;
    for (unsigned i = 0; i < table.count; i++) {
        if (handle == &table.devices[i]) {
            *out = handle;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t device_memory(const struct nvmlDevice_st *device, unsigned long long *free_bytes, unsigned long long *total_bytes) {
    /* Only a context can be asked; the primary one is shared with the program, or short-lived when the program has none. */
    CUcontext context, popped;
    CUdevice ordinal = (CUdevice)device->index;
    if (driver.primary_retain(&context, ordinal)) return NVML_ERROR_UNKNOWN;
    size_t free_now = 0, total = 0;
    CUresult rc = driver.push(context);
    if (!rc) {
        rc = driver.memory_info(&free_now, &total);
        driver.pop(&popped);
    }
    driver.primary_release(ordinal);
    if (rc) return NVML_ERROR_UNKNOWN;
    *free_bytes = free_now;
    *total_bytes = total;
    return NVML_SUCCESS;
}

int device_busy(const struct nvmlDevice_st *device) {
    unsigned flags;
    int active;
    return driver.primary_state((CUdevice)device->index, &flags, &active) == CUDA_SUCCESS && active;
}

int device_reaches(const struct nvmlDevice_st *device, const struct nvmlDevice_st *other) {
    int can = 0;
    if (device == other) return 1; /* the driver denies that a device is its own peer */
    return driver.can_access_peer(&can, (CUdevice)device->index, (CUdevice)other->index) == CUDA_SUCCESS && can;
}
