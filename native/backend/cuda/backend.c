/* The cuda backend: the real driver opened and closed, and what its devices are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend_cuda.h"

void cuda_close(struct gv_backend *b) {
    /* The driver's library is not closed, because its threads may still run; the process ends soon. Memory that they may access is not freed
     * either. */
    bool quiet = cuda_marks_stop(b);
    cuda_console_close(b);
    if (!quiet) return;
    pthread_mutex_destroy(&b->gone_lock);
    free(b->gone);
    event_files_close(&b->event_files);
    pthread_mutex_destroy(&b->commands);
    pthread_cond_destroy(&b->gate_due);
    pthread_cond_destroy(&b->progress);
    pthread_cond_destroy(&b->work);
    pthread_mutex_destroy(&b->lock);
    address_ranges_free(&b->owned);
    address_ranges_free(&b->space);
    for (uint32_t i = 0; i < b->n_devices; i++) {
        address_ranges_free(&b->accounts[i].holes);
        address_ranges_free(&b->accounts[i].tails);
    }
    mappings_free(&b->mappings);
    memory_room_close(&b->room);
    free(b);
}

int cuda_open(const struct gv_backend_config *config, struct gv_backend **out, char *err) {
    struct gv_backend *b = calloc(1, sizeof *b);
    if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
    int status = memory_room_open(&b->room, config, err);
    if (!status) status = driver_open(&b->driver, config->driver, err, GV_ERR_SIZE);
    if (status) {
        memory_room_close(&b->room);
        free(b);
        return status;
    }
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->work, NULL);
    pthread_cond_init(&b->progress, NULL);
    pthread_cond_init(&b->gate_due, NULL);
    pthread_mutex_init(&b->commands, NULL);
    pthread_mutex_init(&b->gone_lock, NULL);
    file_source_open(&b->source, config);
    b->event_files = (struct event_files){.lock = &b->lock, .source = &b->source};
    b->console = config->console;
    b->console_arg = config->console_arg;
    b->console_file = b->console_saved = -1;
    b->n_devices = config->n_devices;
    b->rdma = config->rdma;
    status = b->driver.init(0);
    for (uint32_t i = 0; !status && i < b->n_devices; i++) status = b->driver.device_get(&b->devices[i], (int)config->devices[i]);
    for (uint32_t i = 0; !status && i < b->n_devices; i++) {
        size_t total = 0;
        status = b->driver.device_memory(&total, b->devices[i]);
        memory_share_open(&b->room, &b->accounts[i].share, config, i, total);
        b->accounts[i].chunk = cuda_granularity(b, b->devices[i]);
    }
    if (!status) status = cuda_console_open(b);
    if (!status) status = cuda_marks_start(b);
    if (status) {
        const char *text = NULL;
        if (b->driver.error_string((CUresult)status, &text) || !text) text = "unknown error";
        snprintf(err, GV_ERR_SIZE, "the driver could not be started: %s (error %d)", text, status);
        cuda_close(b);
        return status;
    }
    *out = b;
    return 0;
}

int cuda_driver_version(struct gv_backend *b) {
    int version = 0;
    return b->driver.driver_version(&version) ? 0 : version;
}

/* Features that a remote program cannot use, whatever the device supports: attributes must describe the GPU as the program sees it. */
static const int not_remote[] = {
    CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
    CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_ATOMIC_REDUCTION_SUPPORTED,
};

int cuda_device_info(struct gv_backend *b, uint32_t device, struct gv_device_info *out) {
    CUdevice d = b->devices[device];
    CUuuid uuid;
    size_t total = 0;
    memset(out, 0, sizeof *out);
    int status = b->driver.device_name(out->name, sizeof out->name, d);
    if (!status) status = b->driver.device_uuid(&uuid, d);
    if (!status) status = b->driver.device_memory(&total, d);
    if (status) return status;
    memcpy(out->uuid, uuid.bytes, sizeof out->uuid);
    const struct cuda_device *mine = &b->accounts[device];
    out->total_memory = mine->share.limit < total ? mine->share.limit : total;
    out->chunk = mine->chunk ? mine->chunk : 2 << 20;
    for (int i = 1; i < GV_MAX_ATTRIBUTES; i++) {
        int value = 0;
        if (b->driver.device_attribute(&value, (CUdevice_attribute)i, d)) continue;
        out->attributes[i] = value;
        out->has_attribute[i] = 1;
    }
    for (size_t i = 0; i < sizeof not_remote / sizeof *not_remote; i++) out->attributes[not_remote[i]] = 0;
    /* The client keeps pools at addresses of its own choice, and exports their memory like other memory. */
    if (!b->has_window) out->attributes[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 0;
    int exports = out->attributes[CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] != 0;
    out->attributes[CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED] = exports;
    out->attributes[CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] = exports && b->has_window ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
    return 0;
}

const struct gv_backend_ops gv_backend_cuda = {.name = "cuda", GV_BACKEND_ENTRIES(cuda)};
