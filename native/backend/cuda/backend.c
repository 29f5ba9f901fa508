/* The cuda backend: devices, contexts, memory, streams and events by the real driver. Addresses are the driver's own (addresses=reply). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend_cuda.h"

/* ---- entering a context ----------------------------------------------------------------------------------------------- */

/* Not remembered on our side: a context that was destroyed by another thread could have given its handle to a new one. */
int cuda_enter(struct gv_context *c) { return c->b->driver.context_set(c->context); }

void cuda_note_error(struct gv_context *c, int status) {
    int none = 0;
    if (!atomic_compare_exchange_strong(&c->error, &none, -1)) return;
    const char *text = NULL;
    if (c->b->driver.error_string((CUresult)status, &text) || !text) text = "unknown error";
    snprintf(c->error_text, sizeof c->error_text, "%s", text);
    atomic_store(&c->error, status);
}

static const char *error_text(struct gv_context *c) { return atomic_load(&c->error) > 0 ? c->error_text : ""; }

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

static void backend_close(struct gv_backend *b) {
    /* The driver's library is not closed: its threads may still run, and the process ends soon. What they could look at stays then, too. */
    bool quiet = cuda_marks_stop(b);
    cuda_console_close(b);
    if (!quiet) return;
    pthread_cond_destroy(&b->progress);
    pthread_cond_destroy(&b->work);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static int backend_open(const struct gv_backend_config *config, struct gv_backend **out, char *err) {
    struct gv_backend *b = calloc(1, sizeof *b);
    if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
    int status = driver_open(&b->driver, config->driver, err, GV_ERR_SIZE);
    if (status) {
        free(b);
        return status;
    }
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->work, NULL);
    pthread_cond_init(&b->progress, NULL);
    b->memory = config->memory;
    b->console = config->console;
    b->console_arg = config->console_arg;
    b->console_file = b->console_saved = -1;
    b->n_devices = config->n_devices;
    status = b->driver.init(0);
    for (uint32_t i = 0; !status && i < b->n_devices; i++) status = b->driver.device_get(&b->devices[i], (int)config->devices[i]);
    if (!status) status = cuda_console_open(b);
    if (!status) status = cuda_marks_start(b);
    if (status) {
        const char *text = NULL;
        if (b->driver.error_string((CUresult)status, &text) || !text) text = "unknown error";
        snprintf(err, GV_ERR_SIZE, "the driver could not be started: %s (error %d)", text, status);
        backend_close(b);
        return status;
    }
    *out = b;
    return 0;
}

static int driver_version(struct gv_backend *b) {
    int version = 0;
    return b->driver.driver_version(&version) ? 0 : version;
}

/* What a remote program cannot have, whatever the device can: attributes must tell the truth about the GPU as the program sees it. */
static const int not_remote[] = {
    CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
    CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
    CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
};

static int device_info(struct gv_backend *b, uint32_t device, struct gv_device_info *out) {
    CUdevice d = b->devices[device];
    CUuuid uuid;
    size_t total = 0;
    memset(out, 0, sizeof *out);
    int status = b->driver.device_name(out->name, sizeof out->name, d);
    if (!status) status = b->driver.device_uuid(&uuid, d);
    if (!status) status = b->driver.device_memory(&total, d);
    if (status) return status;
    memcpy(out->uuid, uuid.bytes, sizeof out->uuid);
    out->total_memory = b->memory && b->memory < total ? b->memory : total;
    out->chunk = cuda_granularity(b, d);
    if (!out->chunk) out->chunk = 2 << 20;
    for (int i = 1; i < GV_MAX_ATTRIBUTES; i++) {
        int value = 0;
        if (b->driver.device_attribute(&value, (CUdevice_attribute)i, d)) continue;
        out->attributes[i] = value;
        out->has_attribute[i] = 1;
    }
    for (size_t i = 0; i < sizeof not_remote / sizeof *not_remote; i++) out->attributes[not_remote[i]] = 0;
    return 0;
}

static int reserve_window(struct gv_backend *b, uint64_t base, uint64_t size) {
    (void)b, (void)base, (void)size;
    return CUDA_ERROR_NOT_SUPPORTED; /* until a real driver has shown that it honours an address hint */
}

/* ---- contexts and memory ---------------------------------------------------------------------------------------------- */

static int context_create(struct gv_backend *b, uint32_t device, uint32_t flags, int primary, struct gv_context **out, char *err) {
    /* What a device's contexts have allocated together is limited together. */
    static _Atomic uint64_t used[GV_MAX_DEVICES];
    struct gv_context *c = calloc(1, sizeof *c);
    struct gv_stream *legacy = calloc(1, sizeof *legacy);
    int status = CUDA_ERROR_OUT_OF_MEMORY;
    if (c && legacy) {
        *c = (struct gv_context){.b = b, .device = b->devices[device], .primary = primary, .legacy = legacy, .used = &used[device]};
        status = primary ? b->driver.primary_retain(&c->context, c->device) : b->driver.context_create(&c->context, flags, c->device);
        if (!status) status = cuda_enter(c);
    }
    if (status) {
        snprintf(err, GV_ERR_SIZE, "the driver could not make a context (error %d)", status);
        free(c);
        free(legacy);
        return status;
    }
    *legacy = (struct gv_stream){.context = c, .stream = CU_STREAM_LEGACY};
    if (!b->first) b->first = c; /* the worker's own context of its first device: it lives as long as the backend */
    *out = c;
    return 0;
}

static int context_limit(struct gv_context *c, uint32_t limit, uint64_t *value) {
    int status = cuda_enter(c);
    size_t now = 0;
    if (!status) status = c->b->driver.context_set_limit((CUlimit)limit, *value);
    if (!status) status = c->b->driver.context_get_limit(&now, (CUlimit)limit);
    if (!status) *value = now;
    return status;
}

static void context_destroy(struct gv_context *c) {
    struct gv_backend *b = c->b;
    /* Marks and gates must not outlive the context: they are due as soon as the device has drained. */
    if (cuda_enter(c) == 0) b->driver.context_synchronize();
    cuda_marks_await(c);
    if (c->primary)
        b->driver.primary_release(c->device);
    else
        b->driver.context_destroy(c->context);
    free(c->legacy);
    free(c);
}

static int memory_info(struct gv_context *c, uint64_t *free_bytes, uint64_t *total_bytes) {
    size_t available = 0, total = 0;
    int status = cuda_enter(c);
    if (!status) status = c->b->driver.memory_info(&available, &total);
    uint64_t limit = c->b->memory;
    if (limit && limit < total) {
        uint64_t left = limit > atomic_load(c->used) ? limit - atomic_load(c->used) : 0;
        total = limit;
        if (left < available) available = left;
    }
    *free_bytes = available;
    *total_bytes = total;
    return status;
}

static int memory_back(struct gv_context *c, uint64_t address, uint64_t size) { return (void)c, (void)address, (void)size, CUDA_ERROR_NOT_SUPPORTED; }

/* Sizes by address, to know what a free gives back. */
static struct allocation {
    struct allocation *next;
    uint64_t address, size;
} *allocations[4096];

static struct allocation **allocation_at(uint64_t address) { return &allocations[(address >> 9) * 0x9e3779b1u >> 20 & 4095]; }

static int memory_alloc(struct gv_context *c, uint64_t size, uint64_t *address) {
    uint64_t limit = c->b->memory;
    if (limit && (size > limit || atomic_load(c->used) > limit - size)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *a = malloc(sizeof *a);
    CUdeviceptr p = 0;
    int status = a ? cuda_enter(c) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) status = c->b->driver.memory_alloc(&p, size);
    if (status) {
        free(a);
        return status;
    }
    struct allocation **at = allocation_at(p);
    *a = (struct allocation){*at, p, size};
    *at = a;
    atomic_fetch_add(c->used, size);
    *address = p;
    return 0;
}

static int memory_free(struct gv_context *c, uint64_t address) {
    int status = cuda_enter(c);
    if (!status) status = c->b->driver.memory_free(address);
    if (status) return status;
    struct allocation **at = allocation_at(address);
    while (*at && (*at)->address != address) at = &(*at)->next;
    struct allocation *a = *at;
    if (!a) return 0;
    *at = a->next;
    atomic_fetch_sub(c->used, a->size);
    free(a);
    return 0;
}

/* ---- streams and events ----------------------------------------------------------------------------------------------- */

static int stream_create(struct gv_context *c, uint32_t flags, int32_t priority, struct gv_stream **out) {
    struct gv_stream *s = calloc(1, sizeof *s);
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    s->context = c;
    int status = cuda_enter(c);
    if (!status) status = c->b->driver.stream_create(&s->stream, flags, priority);
    if (status)
        free(s);
    else
        *out = s;
    return status;
}

static void stream_destroy(struct gv_stream *s) {
    struct gv_backend *b = s->context->b;
    pthread_mutex_lock(&b->lock);
    s->dying = true;
    bool later = s->is_watched;
    pthread_mutex_unlock(&b->lock);
    if (later) return; /* the watcher does it after the last mark */
    if (cuda_enter(s->context) == 0) b->driver.stream_destroy(s->stream);
    free(s);
}

static struct gv_stream *stream_legacy(struct gv_context *c) { return c->legacy; }

static int event_create(struct gv_context *c, uint32_t flags, struct gv_event **out) {
    struct gv_event *e = calloc(1, sizeof *e);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    e->context = c;
    int status = cuda_enter(c);
    if (!status) status = c->b->driver.event_create(&e->event, flags & ~(unsigned)CU_EVENT_INTERPROCESS);
    if (status)
        free(e);
    else
        *out = e;
    return status;
}

static void event_destroy(struct gv_event *e) {
    if (cuda_enter(e->context) == 0) e->context->b->driver.event_destroy(e->event);
    free(e);
}

static int event_record(struct gv_event *e, struct gv_stream *s) {
    int status = cuda_enter(s->context);
    return status ? status : (int)s->context->b->driver.event_record(e->event, s->stream);
}

static int event_elapsed(struct gv_event *start, struct gv_event *end, float *ms) {
    int status = cuda_enter(start->context);
    return status ? status : (int)start->context->b->driver.event_elapsed(ms, start->event, end->event);
}

static int stream_wait_event(struct gv_stream *s, struct gv_event *e) {
    int status = cuda_enter(s->context);
    return status ? status : (int)s->context->b->driver.stream_wait_event(s->stream, e->event, 0);
}

/* Pageable memory will not do for staging: the driver reads it at the call, before a gated payload has come, and waits for the device before it
 * writes it. */
static void *host_alloc(struct gv_backend *b, size_t size) {
    void *memory = NULL;
    if (!b->first || cuda_enter(b->first) || b->driver.host_alloc(&memory, size, CU_MEMHOSTALLOC_PORTABLE)) return NULL;
    return memory;
}

static void host_free(struct gv_backend *b, void *memory) {
    if (cuda_enter(b->first) == 0) b->driver.host_free(memory);
}

const struct gv_backend_ops gv_backend_cuda = {
    .name = "cuda",
    .open = backend_open,
    .close = backend_close,
    .driver_version = driver_version,
    .device_info = device_info,
    .reserve_window = reserve_window,
    .context_create = context_create,
    .context_destroy = context_destroy,
    .context_limit = context_limit,
    .memory_info = memory_info,
    .error_text = error_text,
    .memory_back = memory_back,
    .memory_unback = memory_back,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .address_reserve = cuda_address_reserve,
    .address_free = cuda_address_free,
    .physical_create = cuda_physical_create,
    .physical_destroy = cuda_physical_destroy,
    .memory_map = cuda_memory_map,
    .memory_unmap = cuda_memory_unmap,
    .memory_access = cuda_memory_access,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_legacy = stream_legacy,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_elapsed = event_elapsed,
    .stream_wait_event = stream_wait_event,
    .copy_to_device = cuda_copy_to_device,
    .copy_to_host = cuda_copy_to_host,
    .copy_device = cuda_copy_device,
    .fill = cuda_fill,
    .link = cuda_link,
    .module_load = cuda_module_load,
    .module_unload = cuda_module_unload,
    .module_global = cuda_module_global,
    .kernel_set_attribute = cuda_kernel_set_attribute,
    .launch = cuda_launch,
    .texture_create = cuda_texture_create,
    .texture_destroy = cuda_texture_destroy,
    .tensor_map = cuda_tensor_map,
    .mark = cuda_mark,
    .gate = cuda_gate,
    .host_alloc = host_alloc,
    .host_free = host_free,
};
