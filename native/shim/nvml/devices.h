/* What NVML knows here: the devices as the CUDA driver beside it shows them. Read once, kept for good (a child of fork may go on asking). */
#ifndef NVML_DEVICES_H
#define NVML_DEVICES_H

#include "gv_nvml.h"

#define MAX_DEVICES 16

/* nvmlDevice_t points to one. */
struct nvmlDevice_st {
    unsigned index;
    char name[96];
    unsigned char uuid[16];
    unsigned domain, bus, device; /* PCI */
    int major, minor;             /* compute capability */
    unsigned long long memory;    /* bytes */
};

struct device_table {
    unsigned count;
    int cuda_version;
    struct nvmlDevice_st devices[MAX_DEVICES];
};

/* Reads the table if that has not happened. NVML_SUCCESS, NVML_ERROR_DRIVER_NOT_LOADED when no server can be had. */
nvmlReturn_t devices_read(void);
/* Between nvmlInit and nvmlShutdown; else NULL. */
const struct device_table *devices(void);
void devices_use(int change); /* +1: init, -1: shutdown */
int devices_in_use(void);
/* The device behind a handle. NVML_SUCCESS, NVML_ERROR_UNINITIALIZED, NVML_ERROR_INVALID_ARGUMENT. */
nvmlReturn_t device_of(nvmlDevice_t handle, const struct nvmlDevice_st **out);
/* Free and total bytes now. */
nvmlReturn_t device_memory(const struct nvmlDevice_st *device, unsigned long long *free_bytes, unsigned long long *total_bytes);
/* 1 when this process has a context on the device. */
int device_busy(const struct nvmlDevice_st *device);
/* 1 when kernels of the device can read and write the other one's memory. */
int device_reaches(const struct nvmlDevice_st *device, const struct nvmlDevice_st *other);

#endif
