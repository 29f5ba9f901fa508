/* The table of the software GPU's functions, the backend and its contexts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stream.h"
#include "../../wire/clock.h"
#include "virtual.h"

#define DRIVER_VERSION 13000      /* the lowest that the 13.x libraries take, and the 12.x ones as well */
#define CAPABILITY 130            /* for which nobody has machine code, so that libraries hand over PTX */
#define CLOSE_PATIENCE 1000000000 /* ns */

/* ---- backend ---- */

static int backend_open(const struct gv_backend_config *config, struct gv_backend **out, char *err) {
    if (!config->n_devices || config->n_devices > GV_MAX_DEVICES) {
        snprintf(err, GV_ERR_SIZE, "%u devices asked for; 1 to %d can be had", config->n_devices, GV_MAX_DEVICES);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    for (uint32_t i = 0; i < config->n_devices; i++)
        if (config->devices[i] >= GV_LEDGER_DEVICES) {
            snprintf(err, GV_ERR_SIZE, "device %u of the pool does not exist: a pool has at most %d", config->devices[i], GV_LEDGER_DEVICES);
            return CUDA_ERROR_INVALID_DEVICE;
        }
    struct gv_backend *b = calloc(1, sizeof *b);
    if (!b) goto no_memory;
    b->compiler = config->compiler;
    b->console = config->console;
    b->console_arg = config->console_arg;
    b->n_devices = config->n_devices;
    b->capability = config->capability ? config->capability : CAPABILITY;
    b->strict = config->strict;
    b->drop_launches = config->drop_launches;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->done, NULL);
    int rc = soft_memory_open(b, config, err);
    if (rc) {
        free(b);
        return rc;
    }
    if (!(b->engine = soft_engine_create(-1))) {
        soft_memory_close(b);
        free(b);
        goto no_memory;
    }
    *out = b;
    return 0;
no_memory:
    snprintf(err, GV_ERR_SIZE, "out of memory");
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void backend_close(struct gv_backend *b) {
    pthread_mutex_lock(&b->lock);
    b->closing = true;
    pthread_cond_broadcast(&b->done);
    soft_stream_wake_all(b);
    pthread_mutex_unlock(&b->lock);
    int quiet = soft_engine_stop(b->engine);
    struct timespec until = gv_deadline(CLOCK_REALTIME, CLOSE_PATIENCE);
    pthread_mutex_lock(&b->lock);
    int rc = 0;
    while (b->n_threads && !rc) rc = pthread_cond_timedwait(&b->done, &b->lock, &until);
    quiet = quiet && !b->n_threads;
    pthread_mutex_unlock(&b->lock);
    /* A gate that never returns, or a kernel beyond reach, keeps its thread; then everything stays where that thread may look at it, and the
     * process is about to end anyway. */
    if (!quiet) return;
    soft_engine_destroy(b->engine);
    soft_memory_close(b);
    pthread_cond_destroy(&b->done);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static int driver_version(struct gv_backend *b) {
    (void)b;
    return DRIVER_VERSION;
}

static int device_info(struct gv_backend *b, uint32_t device, struct gv_device_info *out) {
    if (device >= b->n_devices) return CUDA_ERROR_INVALID_DEVICE;
    soft_device_info(b, device, out);
    return 0;
}

/* ---- contexts ---- */

void soft_context_hold(struct gv_context *c) { atomic_fetch_add(&c->refs, 1); }

void soft_context_drop(struct gv_context *c) {
    if (atomic_fetch_sub(&c->refs, 1) > 1) return;
    struct gv_backend *b = c->backend;
    pthread_mutex_lock(&b->lock);
    if (c->next) c->next->previous = c->previous;
    if (c->previous)
        c->previous->next = c->next;
    else
        b->contexts = c->next;
    pthread_mutex_unlock(&b->lock);
    soft_heap_destroy(c->heap);
    soft_textures_free(c);
    free(c);
}

void soft_context_fail(struct gv_context *c, int error, const char *text) {
    pthread_mutex_lock(&c->backend->lock);
    if (!atomic_load(&c->error)) {
        snprintf(c->error_text, sizeof c->error_text, "%s", text && *text ? text : "error without a message");
        atomic_store(&c->error, error); /* after the text: whoever sees the error may read it */
    }
    pthread_mutex_unlock(&c->backend->lock);
}

static int context_create(struct gv_backend *b, uint32_t device, uint32_t flags, int primary, struct gv_context **out, char *err) {
    (void)flags, (void)primary;
    if (device >= b->n_devices) {
        snprintf(err, GV_ERR_SIZE, "no device %u", device);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    struct gv_context *c = calloc(1, sizeof *c);
    if (c) {
        c->backend = b;
        c->device = &b->devices[device];
        atomic_init(&c->refs, 1);
        c->heap = soft_heap_create(SOFT_HEAP);
        c->legacy = c->heap ? soft_stream_new(c, 0) : NULL;
    }
    if (!c || !c->legacy) {
        if (c) soft_heap_destroy(c->heap);
        free(c);
        snprintf(err, GV_ERR_SIZE, "out of memory");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->legacy->legacy = true;
    pthread_mutex_lock(&b->lock);
    c->next = b->contexts;
    if (c->next) c->next->previous = c;
    b->contexts = c;
    pthread_mutex_unlock(&b->lock);
    *out = c;
    return 0;
}

/* Streams, events and modules that are still there keep what they need of it. */
static void context_destroy(struct gv_context *c) {
    soft_stream_end_context(c);
    soft_context_drop(c);
}

/* malloc's heap grows and shrinks; the stack and printf's buffer are as large as they are. */
static int context_limit(struct gv_context *c, uint32_t limit, uint64_t *value) {
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) soft_heap_limit(c->heap, *value);
    return 0;
}

static const char *error_text(struct gv_context *c) { return atomic_load(&c->error) ? c->error_text : ""; }

const struct gv_backend_ops gv_backend_soft = {
    .name = "soft",
    .open = backend_open,
    .close = backend_close,
    .driver_version = driver_version,
    .device_info = device_info,
    .reserve_window = soft_reserve_window,
    .context_create = context_create,
    .context_destroy = context_destroy,
    .context_limit = context_limit,
    .memory_info = soft_memory_info,
    .error_text = error_text,
    .memory_back = soft_memory_back,
    .memory_unback = soft_memory_unback,
    .memory_alloc = soft_memory_alloc,
    .memory_free = soft_memory_free,
    .address_reserve = soft_address_reserve,
    .address_free = soft_address_free,
    .physical_create = soft_physical_create,
    .physical_destroy = soft_physical_destroy,
    .memory_map = soft_memory_map,
    .memory_unmap = soft_memory_unmap,
    .memory_access = soft_memory_access,
    .stream_create = soft_stream_create,
    .stream_destroy = soft_stream_destroy,
    .stream_legacy = soft_stream_legacy,
    .event_create = soft_event_create,
    .event_destroy = soft_event_destroy,
    .event_record = soft_event_record,
    .event_elapsed = soft_event_elapsed,
    .stream_wait_event = soft_stream_wait_event,
    .copy_to_device = soft_copy_to_device,
    .copy_to_host = soft_copy_to_host,
    .copy_device = soft_copy_device,
    .fill = soft_fill,
    .link = soft_link,
    .module_load = soft_module_load,
    .module_unload = soft_module_unload,
    .module_global = soft_module_global,
    .kernel_set_attribute = soft_kernel_set_attribute,
    .launch = soft_launch_kernel,
    .texture_create = soft_texture_create,
    .texture_destroy = soft_texture_destroy,
    .tensor_map = soft_tensor_map,
    .mark = soft_mark,
    .gate = soft_gate,
    .host_view = soft_host_view,
    .host_view_end = soft_host_view_end,
    .mark_follows = soft_mark_follows,
};
