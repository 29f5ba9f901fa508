/* The functions of NVML that programs start with. What a GPU server does not tell its clients (clocks, fans, power, other tenants' processes) is not supported. */
#include <ctype.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "devices.h"

#define API __attribute__((visibility("default")))

/* ---- start and end ------------------------------------------------------------------------------------------------- */

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    nvmlReturn_t rc = devices_read();
    if (rc == NVML_SUCCESS) devices_use(1);
    return rc;
}

API nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

API nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

API nvmlReturn_t nvmlShutdown(void) {
    if (devices_in_use() <= 0) return NVML_ERROR_UNINITIALIZED;
    devices_use(-1);
    return NVML_SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded: no GPU server could be reached";
    case NVML_ERROR_LIBRARY_NOT_FOUND: return "Library Not Found: no libcuda.so.1 of gpuvirt beside libnvidia-ml.so.1";
    default: return "Unknown Error";
    }
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t rc = devices_read();
    if (rc != NVML_SUCCESS) return rc;
    devices_use(1);
    *version = devices()->cuda_version;
    devices_use(-1);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

/* ---- finding devices ----------------------------------------------------------------------------------------------- */

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    if (!devices()) return NVML_ERROR_UNINITIALIZED;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = devices()->count;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

static nvmlReturn_t found(const struct nvmlDevice_st *device, nvmlDevice_t *out) {
    *out = (nvmlDevice_t)device;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out) {
    const struct device_table *table = devices();
    if (!table) return NVML_ERROR_UNINITIALIZED;
    return out && index < table->count ? found(&table->devices[index], out) : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }

/* "domain:bus:device.function" or without the domain, all hexadecimal. 0, or -1. */
static int parse_pci_id(const char *id, unsigned part[3]) {
    int n = 0;
    for (;;) {
        char *end;
        unsigned long value = isxdigit((unsigned char)*id) ? strtoul(id, &end, 16) : ULONG_MAX;
        if (value > UINT_MAX || n == 3) return -1;
        part[n++] = (unsigned)value;
        if (*end != ':') break;
        id = end + 1;
    }
    if (n == 2) {
        part[2] = part[1];
        part[1] = part[0];
        part[0] = 0;
    }
    return n >= 2 ? 0 : -1;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *out) {
    const struct device_table *table = devices();
    unsigned part[3];
    if (!table) return NVML_ERROR_UNINITIALIZED;
    if (!id || !out) return NVML_ERROR_INVALID_ARGUMENT;
    if (parse_pci_id(id, part)) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < table->count; i++) {
        const struct nvmlDevice_st *d = &table->devices[i];
        if (d->domain == part[0] && d->bus == part[1] && d->device == part[2]) return found(d, out);
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *out) { return nvmlDeviceGetHandleByPciBusId_v2(id, out); }

/* "GPU-01234567-89ab-...", 41 characters with the NUL. */
static void uuid_text(const struct nvmlDevice_st *d, char text[NVML_DEVICE_UUID_BUFFER_SIZE]) {
    char *at = text + snprintf(text, NVML_DEVICE_UUID_BUFFER_SIZE, "GPU-");
    for (unsigned i = 0; i < 16; i++) at += snprintf(at, 4, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", d->uuid[i]);
}

static int same_ignoring_case(const char *a, const char *b) {
    while (*a && tolower((unsigned char)*a) == tolower((unsigned char)*b)) a++, b++;
    return tolower((unsigned char)*a) == tolower((unsigned char)*b);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
    const struct device_table *table = devices();
    if (!table) return NVML_ERROR_UNINITIALIZED;
    if (!uuid || !out) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < table->count; i++) {
        char text[NVML_DEVICE_UUID_BUFFER_SIZE];
        uuid_text(&table->devices[i], text);
        if (same_ignoring_case(text, uuid)) return found(&table->devices[i], out);
    }
    return NVML_ERROR_NOT_FOUND;
}

/* ---- what a device is ---------------------------------------------------------------------------------------------- */

static nvmlReturn_t give_text(const char *text, char *out, unsigned size) {
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    size_t length = strlen(text);
    if (size <= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, length + 1);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int size) {
    const struct nvmlDevice_st *d;
    nvmlReturn_t rc = device_of(handle, &d);
    return rc == NVML_SUCCESS ? give_text(d->name, name, size) : rc;
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int size) {
    const struct nvmlDevice_st *d;
    nvmlReturn_t rc = device_of(handle, &d);
    if (rc != NVML_SUCCESS) return rc;
    char text[NVML_DEVICE_UUID_BUFFER_SIZE];
    uuid_text(d, text);
    return give_text(text, uuid, size);
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *index) {
    const struct nvmlDevice_st *d;
    nvmlReturn_t rc = device_of(handle, &d);
    if (rc != NVML_SUCCESS) return rc;
    if (!index) return NVML_ERROR_INVALID_ARGUMENT;
    *index = d->index;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned int *minor) { return nvmlDeviceGetIndex(handle, minor); }

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *pci) {
    const struct nvmlDevice_st *d;
    nvmlReturn_t rc = device_of(handle, &d);
    if (rc != NVML_SUCCESS) return rc;
    if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    pci->domain = d->domain;
    pci->bus = d->bus;
    pci->device = d->device;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", d->domain & 0xffffu, d->bus & 0xffu, d->device & 0xffu);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", d->domain, d->bus & 0xffu, d->device & 0xffu);
    return NVML_SUCCESS;
}

/* The older forms fill less of the same structure: `size` bytes of it exist. */
static nvmlReturn_t older_pci_info(nvmlDevice_t handle, nvmlPciInfo_t *pci, size_t size) {
    nvmlPciInfo_t whole;
    nvmlReturn_t rc = pci ? nvmlDeviceGetPciInfo_v3(handle, &whole) : NVML_ERROR_INVALID_ARGUMENT;
    if (rc == NVML_SUCCESS) memcpy(pci, &whole, size);
    return rc;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_t *pci) {
    return older_pci_info(handle, pci, offsetof(nvmlPciInfo_t, busId));
}

API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t handle, nvmlPciInfo_t *pci) {
    return older_pci_info(handle, pci, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor) {
    const struct nvmlDevice_st *d;
    nvmlReturn_t rc = device_of(handle, &d);
    if (rc != NVML_SUCCESS) return rc;
    if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
    *major = d->major;
    *minor = d->minor;
    return NVML_SUCCESS;
}

/* NCCL asks this of each pair of devices, a device with itself included, and gives up where it is not answered. By which wires they reach each other is not known here. */
API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t handle, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t *status) {
    const struct nvmlDevice_st *d, *peer;
    nvmlReturn_t rc = device_of(handle, &d);
    if (rc == NVML_SUCCESS) rc = device_of(other, &peer);
    if (rc != NVML_SUCCESS) return rc;
    if (!status || (unsigned)index >= NVML_P2P_CAPS_INDEX_UNKNOWN) return NVML_ERROR_INVALID_ARGUMENT;
    bool memory = index == NVML_P2P_CAPS_INDEX_READ || index == NVML_P2P_CAPS_INDEX_WRITE;
    *status = memory && device_reaches(d, peer) ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* A software GPU has no PCIe link, and a real one's is not known here. XLA asks for each device many times, prints an error for each answer that is none, and
 * assumes generation 3 with 16 lanes: for software GPUs that is the answer. */
static nvmlReturn_t pcie_link(nvmlDevice_t handle, unsigned int *value, unsigned int answer) {
    const struct nvmlDevice_st *d;
    nvmlReturn_t rc = device_of(handle, &d);
    if (rc != NVML_SUCCESS) return rc;
    if (!value) return NVML_ERROR_INVALID_ARGUMENT;
    if (!strstr(d->name, "software GPU")) return NVML_ERROR_NOT_SUPPORTED;
    *value = answer;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t handle, unsigned int *generation) { return pcie_link(handle, generation, 3); }
API nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t handle, unsigned int *generation) { return pcie_link(handle, generation, 3); }
API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t handle, unsigned int *width) { return pcie_link(handle, width, 16); }
API nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t handle, unsigned int *width) { return pcie_link(handle, width, 16); }

/* ---- what it does now ---------------------------------------------------------------------------------------------- */

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
    const struct nvmlDevice_st *d;
    nvmlReturn_t rc = device_of(handle, &d);
    if (rc != NVML_SUCCESS) return rc;
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    rc = device_memory(d, &memory->free, &memory->total);
    if (rc == NVML_SUCCESS) memory->used = memory->total - memory->free;
    return rc;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory) {
    nvmlMemory_t now;
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    /* NOLINTNEXTLINE(bugprone-signed-bitwise): the macro is NVML's. */
    if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t rc = nvmlDeviceGetMemoryInfo(handle, &now);
    if (rc != NVML_SUCCESS) return rc;
    memory->total = now.total;
    memory->free = now.free;
    memory->used = now.used;
    memory->reserved = 0;
    return NVML_SUCCESS;
}

/* Of the processes on the GPU this one alone is known here. */
API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count, nvmlProcessInfo_t *infos) {
    const struct nvmlDevice_st *d;
    nvmlReturn_t rc = device_of(handle, &d);
    if (rc != NVML_SUCCESS) return rc;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *count;
    *count = device_busy(d) ? 1 : 0;
    if (!*count) return NVML_SUCCESS;
    if (!room) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (!infos) return NVML_ERROR_INVALID_ARGUMENT;
    infos[0] = (nvmlProcessInfo_t){
        .pid = (unsigned)getpid(),
        .usedGpuMemory = (unsigned long long)NVML_VALUE_NOT_AVAILABLE,
        .gpuInstanceId = 0xffffffffu,
        .computeInstanceId = 0xffffffffu,
    };
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, infos);
}
