/* Takes a session over from its image: a worker that has run nothing makes every object again, and puts memory where it was. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../wire/clock.h"
#include "../../wire/image_stream.h"
#include "../../wire/window.h"
#include "../state.h"
#include "format.h"

#define EXPORT __attribute__((visibility("default")))

#define PCI_BUS_ID 33 /* attributes of a device, which tell two of a kind apart */
#define MULTI_GPU_BOARD_GROUP_ID 85
#define RECORDS_MOST (1u << 24)

static bool section(struct gv_image_in *in, enum image_section which) {
    if (gv_image_get(in, UINT64_MAX) != (IMAGE_SECTION << 32 | which))
        gv_image_in_fail(in, "the image is damaged: one of its parts does not begin where it should");
    return !in->failed;
}

/* What CUresult says, for whoever moves the session. */
static void refuse(struct gv_image_in *in, const char *what, int status, const char *err) {
    char why[GV_IMAGE_WHY];
    snprintf(why, sizeof why, "%s (error %d)%s%.120s", what, status, *err ? ": " : "", err);
    gv_image_in_fail(in, why);
}

/* Whether a program that has seen the one device will not notice that it is another. */
static bool alike(const struct gv_device_info *a, const struct gv_device_info *b) {
    struct gv_device_info x = *a, y = *b;
    memset(x.uuid, 0, sizeof x.uuid);
    memset(y.uuid, 0, sizeof y.uuid);
    const int own[] = {PCI_BUS_ID, MULTI_GPU_BOARD_GROUP_ID};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) x.attributes[own[i]] = y.attributes[own[i]] = 0;
    return memcmp(&x, &y, sizeof x) == 0;
}

static void expect_name(struct gv_image_in *in, const char *name, const char *what) {
    char padded[IMAGE_NAME];
    gv_image_get_bytes(in, padded, sizeof padded);
    padded[sizeof padded - 1] = 0;
    if (strcmp(padded, name) != 0) gv_image_in_fail(in, what);
}

static void restore_head(struct worker *w, struct gv_image_in *in) {
    if (gv_image_get(in, UINT64_MAX) != IMAGE_MAGIC) gv_image_in_fail(in, "that is no session's image");
    if (gv_image_get(in, UINT64_MAX) != IMAGE_VERSION) gv_image_in_fail(in, "the image is of another version than this server's");
    expect_name(in, w->ops->name, "the image is of another backend");
    expect_name(in, gv_link_transport(w->link), "the image is of a session over another link");
    if (gv_image_get(in, GV_MAX_DEVICES) != w->n_devices) gv_image_in_fail(in, "the session has another number of GPUs");
    gv_image_get_bytes(in, w->infos, w->n_devices * sizeof w->infos[0]);
    uint64_t base = gv_image_get(in, UINT64_MAX), size = gv_image_get(in, UINT64_MAX);
    if (!in->failed && w->ops->reserve_window(w->backend, base, size))
        gv_image_in_fail(in, "the session's addresses are not free in the new worker; try again");
    w->window_base = base;
    w->window_size = size;
    w->addresses = GV_ADDRESSES_FIXED;
    for (uint32_t i = 0; i < w->n_devices && !in->failed; i++) {
        struct gv_device_info info;
        char err[GV_ERR_SIZE] = "";
        int status = w->ops->device_info(w->backend, i, &info);
        if (!status && !info.chunk) info.chunk = GV_WINDOW_ALIGN;
        if (!status && !alike(&info, &w->infos[i]))
            return gv_image_in_fail(in, "the GPU has other properties, or less memory, than the one that the session was on");
        if (!status) status = w->ops->context_create(w->backend, i, 0, 1, &w->device_contexts[i], err);
        if (status) refuse(in, "the GPU could not be opened", status, err);
    }
}

static void restore_counters(struct worker *w, struct gv_image_in *in) {
    atomic_store(&w->commands, gv_image_get(in, UINT64_MAX));
    atomic_store(&w->launches, gv_image_get(in, UINT64_MAX));
    atomic_store(&w->memory_used, gv_image_get(in, UINT64_MAX));
    atomic_store(&w->bulk_received, gv_image_get(in, UINT64_MAX));
    w->outgoing_number = gv_image_get(in, UINT64_MAX);
    w->worker_tags = gv_image_get(in, UINT64_MAX);
    w->map_failed = (int)gv_image_get(in, INT32_MAX);
}

static void restore_promises(struct worker *w, struct gv_image_in *in) {
    worker_choose_cache(w, w->ops->driver_version(w->backend));
    uint8_t (*hashes)[GV_SHA256_SIZE] = malloc(MODULE_CACHE_PROMISES * sizeof *hashes);
    uint32_t n = (uint32_t)gv_image_get(in, MODULE_CACHE_PROMISES);
    if (!hashes) gv_image_in_fail(in, "the server is out of memory");
    if (hashes && n && gv_image_get_bytes(in, hashes, n * sizeof *hashes) && !module_cache_take_over(w->cache, hashes, n))
        gv_image_in_fail(in, "an image of a module that the program was promised is no longer kept");
    free(hashes);
}

static void restore_contexts(struct worker *w, struct gv_image_in *in) {
    for (uint64_t n = gv_image_get(in, GV_CONTEXTS_MAX); n && !in->failed; n--) {
        char err[GV_ERR_SIZE] = "";
        struct gv_context *made = NULL;
        uint32_t id = (uint32_t)gv_image_get(in, UINT32_MAX);
        uint32_t device = (uint32_t)gv_image_get(in, w->n_devices - 1), flags = (uint32_t)gv_image_get(in, UINT32_MAX);
        struct gv_cmd_context_create c = {.device = device, .flags = flags, .primary = (uint32_t)gv_image_get(in, UINT32_MAX)};
        bool told = gv_image_get(in, 1);
        if (in->failed) return;
        int status = w->ops->context_create(w->backend, c.device, c.flags, (int)c.primary, &made, err);
        if (!status && (status = worker_keep_context(w, id, &c, made))) w->ops->context_destroy(made);
        if (status) return refuse(in, "a context could not be made again", status, err);
        atomic_store(&worker_context(w, id)->failure_told, told);
        w->ops->restore_context(made, in);
    }
}

static void restore_streams(struct worker *w, struct gv_image_in *in) {
    for (uint64_t n = gv_image_get(in, GV_STREAMS_MAX); n && !in->failed; n--) {
        uint64_t id = gv_image_get(in, UINT64_MAX);
        struct worker_context *context = worker_context(w, (uint32_t)gv_image_get(in, UINT32_MAX));
        uint32_t flags = (uint32_t)gv_image_get(in, UINT32_MAX);
        int32_t priority = (int32_t)gv_image_get(in, UINT64_MAX);
        struct gv_stream *made = NULL;
        if (in->failed) return;
        int status = context && id > 1 ? w->ops->stream_create(context->context, flags, priority, &made) : CUDA_ERROR_INVALID_VALUE;
        if (!status && (status = worker_keep_stream(w, context, id, made))) w->ops->stream_destroy(made);
        if (status) return refuse(in, "a stream could not be made again", status, "");
        worker_order_stream_made(handles_get(&w->streams, id), flags, priority);
    }
}

static void restore_events(struct worker *w, struct gv_image_in *in) {
    for (uint64_t n = gv_image_get(in, GV_EVENTS_MAX); n && !in->failed; n--) {
        uint64_t id = gv_image_get(in, UINT64_MAX);
        struct worker_context *context = worker_context(w, (uint32_t)gv_image_get(in, UINT32_MAX));
        struct gv_event *made = NULL;
        int status = context && !in->failed ? w->ops->restore_event(context->context, in, &made) : CUDA_ERROR_INVALID_VALUE;
        if (!status && (status = worker_keep_event(w, context, id, made))) w->ops->event_destroy(made);
        if (status) return refuse(in, "an event could not be made again", status, "");
    }
}

static void restore_memory(struct worker *w, struct gv_image_in *in) {
    w->ops->restore_memory(w->backend, w->device_contexts, in);
    uint64_t used = atomic_load(&w->memory_used); /* those of physical memory among them, which are counted as it is kept */
    for (uint64_t n = gv_image_get(in, GV_PHYSICALS_MAX); n && !in->failed; n--) {
        uint64_t id = gv_image_get(in, UINT64_MAX), bytes = gv_image_get(in, UINT64_MAX);
        struct gv_physical *p = w->ops->restore_physical(w->backend, in);
        if (!in->failed && (!p || worker_keep_physical(w, id, p, bytes))) gv_image_in_fail(in, "a handle of physical memory could not be made again");
    }
    atomic_store(&w->memory_used, used);
}

static void restore_arrays(struct worker *w, struct gv_image_in *in) {
    for (uint64_t n = gv_image_get(in, GV_ARRAYS_MAX); n && !in->failed; n--) {
        uint64_t id = gv_image_get(in, UINT64_MAX);
        struct worker_context *context = worker_context(w, (uint32_t)gv_image_get(in, UINT32_MAX));
        struct gv_array *made = NULL;
        int status = context && !in->failed ? w->ops->restore_array(context->context, in, &made) : CUDA_ERROR_INVALID_VALUE;
        if (!status && (status = worker_keep_array(w, context, id, made))) w->ops->array_destroy(made);
        if (status) return refuse(in, "an array could not be made again", status, "");
    }
}

static void restore_modules(struct worker *w, struct gv_image_in *in) {
    for (uint64_t n = gv_image_get(in, GV_MODULES_MAX); n && !in->failed; n--) {
        uint64_t id = gv_image_get(in, UINT64_MAX);
        struct worker_context *context = worker_context(w, (uint32_t)gv_image_get(in, UINT32_MAX));
        uint32_t n_kernels = 0;
        uint64_t size = gv_image_get(in, WORKER_MAX_IMAGE), weight = size + WORKER_MODULE_BYTES;
        char err[GV_ERR_SIZE] = "";
        uint8_t hash[GV_SHA256_SIZE];
        struct gv_module *made = NULL;
        gv_image_get_bytes(in, hash, sizeof hash);
        void *image = in->failed ? NULL : gv_image_get_block(in, size);
        bool good = context && image && weight <= WORKER_MAX_IMAGES - w->image_bytes;
        int status = good ? w->ops->restore_module(context->context, image, size, in, &made, &n_kernels, err) : CUDA_ERROR_INVALID_VALUE;
        free(image);
        if (!status && (status = worker_keep_module(w, context, id, made))) w->ops->module_unload(made);
        if (status) return refuse(in, "a module could not be loaded again", status, err);
        struct worker_module *m = handles_get(&w->objects.modules, id);
        m->n_kernels = n_kernels;
        m->host_bytes = weight;
        m->kept = 1;
        memcpy(m->hash, hash, sizeof hash);
        w->image_bytes += weight;
    }
}

static void restore_records(struct worker *w, struct gv_image_in *in) {
    for (uint64_t n = gv_image_get(in, RECORDS_MOST), left = 2ull * WORKER_MAX_AHEAD; n && !in->failed; n--) {
        uint64_t size = gv_image_get(in, GV_RECORD_MAX < left ? GV_RECORD_MAX : left);
        struct gv_record *record = size >= sizeof *record && size % 8 == 0 ? malloc(size) : NULL;
        bool good = record && gv_image_get_bytes(in, record, size) && record->size == size && worker_aside_put(w, record, false);
        free(record);
        left -= size;
        if (!good) gv_image_in_fail(in, "a record that was read ahead is damaged");
    }
    worker_restore_early(w, in);
}

void worker_restore_all(struct worker *w, struct gv_image_in *in) {
    restore_head(w, in);
    if (section(in, IMAGE_LINK)) gv_link_restore(w->link, in);
    if (section(in, IMAGE_COUNTERS)) restore_counters(w, in);
    if (section(in, IMAGE_PROMISES)) restore_promises(w, in);
    if (section(in, IMAGE_CONTEXTS)) restore_contexts(w, in);
    if (section(in, IMAGE_STREAMS)) restore_streams(w, in);
    if (section(in, IMAGE_EVENTS)) restore_events(w, in);
    if (section(in, IMAGE_MEMORY)) restore_memory(w, in);
    if (section(in, IMAGE_ARRAYS)) restore_arrays(w, in);
    if (section(in, IMAGE_MODULES)) restore_modules(w, in);
    if (section(in, IMAGE_PAGES)) w->ops->restore_pages(w->backend, in);
    if (section(in, IMAGE_RECORDS)) restore_records(w, in);
}

EXPORT int worker_restore(struct worker *w, int32_t fd, uint32_t limit_ms, char *err) {
    struct gv_image_in in;
    err[0] = 0;
    bool good = w->ops->restore_memory && gv_link_movable(w->link);
    if (!good) {
        snprintf(err, GV_ERR_SIZE, "this backend, or this link, takes no session over");
    } else if (!gv_image_in_open(&in, fd, gv_now_ns() + (int64_t)limit_ms * 1000000)) {
        good = false;
        snprintf(err, GV_ERR_SIZE, "the server is out of memory");
    } else {
        worker_restore_all(w, &in);
        good = gv_image_in_close(&in);
        if (!good) snprintf(err, GV_ERR_SIZE, "%s", in.why);
    }
    if (good) gv_link_cut(w->link, "the session has come from another worker");
    w->attached = good;
    return good ? 0 : -1;
}
