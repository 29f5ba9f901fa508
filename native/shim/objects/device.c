/* The device table, and the calls that it answers. It holds the devices that the server granted, filtered by CUDA_VISIBLE_DEVICES. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gv_impl.h"
#include "objects/objects.h"

/* The highest driver version that this library implements; returned when no server can be asked. */
#define OWN_DRIVER_VERSION 13000

static struct {
    int count;
    uint32_t server[GV_MAX_DEVICES]; /* index in shim_server.devices */
} table;

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int initialized;

bool shim_initialized(void) { return atomic_load_explicit(&initialized, memory_order_acquire); }

/* ---- CUDA_VISIBLE_DEVICES ------------------------------------------------------------------------------------------ */

static void uuid_text(const uint8_t uuid[16], char out[48]) {
    char *p = out + sprintf(out, "GPU-");
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *p++ = '-';
        p += sprintf(p, "%02x", uuid[i]);
    }
}

/* The device that one word of the list names; -1: none. */
static int device_of_word(const struct shim_server *server, const char *word) {
    if (!strncasecmp(word, "GPU-", 4)) {
        int found = -1;
        for (uint32_t i = 0; i < server->n_devices; i++) {
            char text[48];
            uuid_text(server->devices[i].uuid, text);
            if (strncasecmp(text, word, strlen(word)) != 0) continue;
            if (found >= 0) return -1; /* not unique */
            found = (int)i;
        }
        return found;
    }
    char *end;
    long ordinal = strtol(word, &end, 10);
    if (end == word || *end || ordinal < 0 || ordinal >= (long)server->n_devices) return -1;
    return (int)ordinal;
}

/* The list holds ordinals and UUID prefixes. The first invalid entry ends it; a device named twice hides all devices. */
static void read_visible(const struct shim_server *server) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    table.count = 0;
    if (!list) {
        for (uint32_t i = 0; i < server->n_devices && i < GV_MAX_DEVICES; i++) table.server[table.count++] = i;
        return;
    }
    char copy[2048], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", list);
    uint32_t seen = 0;
    while (table.count < GV_MAX_DEVICES) {
        word = strsep(&rest, ",");
        if (!word) break;
        word += strspn(word, " \t");
        word[strcspn(word, " \t")] = 0;
        int device = device_of_word(server, word);
        if (device < 0 || device >= GV_MAX_DEVICES) break;
        if (seen & 1u << device) {
            table.count = 0;
            shim_log("CUDA_VISIBLE_DEVICES names device %s twice: no device is visible", word);
            return;
        }
        seen |= 1u << device;
        table.server[table.count++] = (uint32_t)device;
    }
}

/* ---- start --------------------------------------------------------------------------------------------------------- */

CUresult impl_cuInit(unsigned int flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (shim_initialized()) return CUDA_SUCCESS;
    pthread_mutex_lock(&init_lock);
    int rc = 0;
    if (!atomic_load(&initialized)) {
        rc = session_attach();
        if (!rc) {
            read_visible(session_server());
            if (!table.count) rc = CUDA_ERROR_NO_DEVICE;
        }
        if (!rc) atomic_store_explicit(&initialized, 1, memory_order_release);
    }
    pthread_mutex_unlock(&init_lock);
    return rc;
}

CUresult impl_cuDriverGetVersion(int *version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = session_attach() ? OWN_DRIVER_VERSION : session_server()->driver_version;
    return CUDA_SUCCESS;
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

int device_count(void) { return shim_initialized() ? table.count : 0; }

const struct gv_device_info *device_info(CUdevice device) {
    if (device < 0 || device >= device_count()) return NULL;
    return &session_server()->devices[table.server[device]];
}

uint32_t device_server_index(CUdevice device) { return table.server[device]; }

int device_attribute(const struct gv_device_info *info, int attribute) {
    if (attribute < 0 || attribute >= GV_MAX_ATTRIBUTES || !info->has_attribute[attribute]) return 0;
    return info->attributes[attribute];
}

int device_capability(const struct gv_device_info *info) {
    return 10 * device_attribute(info, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
           device_attribute(info, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
}

/* Finds the device that a call names: 0 and *out, or the call's error. */
static int find(CUdevice device, const struct gv_device_info **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = device_info(device);
    return *out ? 0 : CUDA_ERROR_INVALID_DEVICE;
}

CUresult impl_cuDeviceGetCount(int *count) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = table.count;
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGet(CUdevice *device, int ordinal) {
    const struct gv_device_info *info;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    int rc = find(ordinal, &info);
    if (!rc) *device = ordinal;
    return rc;
}

CUresult impl_cuDeviceGetName(char *name, int length, CUdevice device) {
    const struct gv_device_info *info;
    int rc = find(device, &info);
    if (rc) return rc;
    if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%.255s", info->name);
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    const struct gv_device_info *info;
    int rc = find(device, &info);
    if (rc) return rc;
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, info->uuid, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    const struct gv_device_info *info;
    int rc = find(device, &info);
    if (rc) return rc;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = info->total_memory;
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    const struct gv_device_info *info;
    int rc = find(device, &info);
    if (rc) return rc;
    if (!value || (int)attribute <= 0 || (int)attribute >= GV_MAX_ATTRIBUTES || !info->has_attribute[attribute]) return CUDA_ERROR_INVALID_VALUE;
    *value = info->attributes[attribute];
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    const struct gv_device_info *info;
    int rc = find(device, &info);
    if (rc) return rc;
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    *major = device_attribute(info, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    *minor = device_attribute(info, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetProperties(CUdevprop *prop, CUdevice device) {
    const struct gv_device_info *info;
    int rc = find(device, &info);
    if (rc) return rc;
    if (!prop) return CUDA_ERROR_INVALID_VALUE;
    prop->maxThreadsPerBlock = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    for (int i = 0; i < 3; i++) {
        prop->maxThreadsDim[i] = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i);
        prop->maxGridSize[i] = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i);
    }
    prop->sharedMemPerBlock = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    prop->totalConstantMemory = device_attribute(info, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    prop->SIMDWidth = device_attribute(info, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    prop->memPitch = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    prop->regsPerBlock = device_attribute(info, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    prop->clockRate = device_attribute(info, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    prop->textureAlign = device_attribute(info, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    return CUDA_SUCCESS;
}

/* ---- PCI ----------------------------------------------------------------------------------------------------------- */

CUresult impl_cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    const struct gv_device_info *info;
    int rc = find(device, &info);
    if (rc) return rc;
    if (!text || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(text, (size_t)length, "%04x:%02x:%02x.0", (unsigned)device_attribute(info, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
             (unsigned)device_attribute(info, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID), (unsigned)device_attribute(info, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
    return CUDA_SUCCESS;
}

/* [domain]:[bus]:[device].[function], [domain]:[bus]:[device] or [bus]:[device].[function], hexadecimal, without trailing characters. */
static bool parse_pci(const char *text, unsigned long fields[3]) {
    unsigned long number[4] = {0};
    char separator[4] = {0};
    int n = 0;
    for (const char *at = text; n < 4; at++) {
        char *end;
        if (!isxdigit((unsigned char)*at)) return false;
        number[n] = strtoul(at, &end, 16);
        separator[n++] = *end;
        at = end;
        if (!*end) break;
    }
    if (separator[n - 1]) return false;
    bool dotted = n >= 3 && separator[n - 2] == '.';
    int colons = n - 1 - dotted;
    for (int i = 0; i < colons; i++) {
        if (separator[i] != ':') return false;
    }
    if (colons == 2) {
        for (int i = 0; i < 3; i++) fields[i] = number[i];
        return true;
    }
    if (colons != 1 || !dotted) return false;
    fields[0] = 0;
    fields[1] = number[0];
    fields[2] = number[1];
    return true;
}

CUresult impl_cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    unsigned long pci[3];
    if (!device || !text || !parse_pci(text, pci)) return CUDA_ERROR_INVALID_VALUE;
    static const int attributes[] = {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID};
    for (int i = 0; i < table.count; i++) {
        int same = 0;
        while (same < 3 && (unsigned long)device_attribute(device_info(i), attributes[same]) == pci[same]) same++;
        if (same == 3) {
            *device = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

/* ---- between devices ----------------------------------------------------------------------------------------------- */

/* The devices of a session can access each other: the worker maps them into one address space. */
CUresult impl_cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    const struct gv_device_info *info;
    int rc = find(device, &info);
    if (!rc) rc = find(peer, &info);
    if (rc) return rc;
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice target) {
    const struct gv_device_info *info;
    if (shim_initialized() && !value) return CUDA_ERROR_INVALID_VALUE;
    int rc = find(source, &info);
    if (!rc) rc = find(target, &info);
    if (rc) return rc;
    if (source == target) return CUDA_ERROR_INVALID_DEVICE;
    switch ((int)attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: *value = 0; return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED: *value = 1; return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = 0; return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: *value = 0; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Native atomics need hardware support, which neither the connection to the host nor that between devices has. */
static int no_atomics(unsigned *capabilities, const CUatomicOperation *operations, unsigned count) {
    if (!capabilities || !operations || !count) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if ((unsigned)operations[i] >= CU_ATOMIC_OPERATION_MAX) return CUDA_ERROR_INVALID_VALUE;
    memset(capabilities, 0, count * sizeof *capabilities);
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetHostAtomicCapabilities(unsigned *capabilities, const CUatomicOperation *operations, unsigned count, CUdevice device) {
    const struct gv_device_info *info;
    int rc = find(device, &info);
    return rc ? rc : no_atomics(capabilities, operations, count);
}

CUresult impl_cuDeviceGetP2PAtomicCapabilities(unsigned *capabilities, const CUatomicOperation *operations, unsigned count, CUdevice source,
                                               CUdevice target) {
    const struct gv_device_info *info;
    int rc = find(source, &info);
    if (!rc) rc = find(target, &info);
    if (!rc && source == target) rc = CUDA_ERROR_INVALID_DEVICE;
    return rc ? rc : no_atomics(capabilities, operations, count);
}

CUresult impl_cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice device) {
    const struct gv_device_info *info;
    int rc = find(device, &info);
    if (rc) return rc;
    if (!supported || (int)type < 0 || (int)type >= CU_EXEC_AFFINITY_TYPE_MAX) return CUDA_ERROR_INVALID_VALUE;
    *supported = 0;
    return CUDA_SUCCESS;
}

/* ---- what this machine has not ---- */

/* A device without a fabric is part of no clique. */
CUresult impl_cuDeviceGetCliqueCount(size_t *count, CUdevice device) {
    const struct gv_device_info *info;
    int rc = find(device, &info);
    if (!rc && !count) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *count = 0;
    return rc;
}

CUresult impl_cuDeviceGetCliqueInfo(CUcliqueInfo *cliques, size_t *count, CUdevice device) {
    const struct gv_device_info *info;
    int rc = find(device, &info);
    if (!rc && (!count || (*count && !cliques))) rc = CUDA_ERROR_INVALID_VALUE;
    if (!rc) *count = 0;
    return rc;
}
