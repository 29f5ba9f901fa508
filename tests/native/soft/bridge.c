/* The backend as a handful of plain calls, for the Python test that puts the real compiler under it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "window.h"

#define EXPORT __attribute__((visibility("default")))
#define WINDOW 0x320000000000ull
#define WINDOW_SIZE (64ull << 30)

static const struct gv_backend_ops *ops = &gv_backend_soft;
static struct gv_backend *backend;
static struct gv_context *context;
static char text[GV_ERR_SIZE], printed[4096];
static size_t printed_size;

static void console(void *arg, const char *data, size_t size) {
    (void)arg;
    if (size > sizeof printed - 1 - printed_size) size = sizeof printed - 1 - printed_size;
    memcpy(printed + printed_size, data, size);
    printed_size += size;
}

/* The address of 2 MiB of device memory, or 0. */
EXPORT uint64_t bridge_open(void *compiler) {
    static const uint32_t devices[] = {0};
    struct gv_backend_config config = {
        .devices = devices, .n_devices = 1, .device_memory = 64u << 20, .memory_usage_fd = -1, .compiler = compiler, .console = console};
    if (ops->open(&config, &backend, text) || ops->reserve_window(backend, WINDOW, WINDOW_SIZE)) return 0;
    if (ops->context_create(backend, 0, 0, 1, &context, text)) return 0;
    uint64_t memory = gv_window_part(WINDOW, WINDOW_SIZE, 1, 0).base;
    return ops->memory_back(context, memory, 2u << 20, true) ? 0 : memory;
}

EXPORT int bridge_load(const char *image, struct gv_module **out) {
    void *meta;
    size_t size;
    int rc = ops->module_load(context, image, strlen(image) + 1, out, &meta, &size, text);
    if (!rc) free(meta);
    return rc;
}

EXPORT uint64_t bridge_global(struct gv_module *m, const char *name) {
    uint64_t address, size;
    return ops->module_global(m, name, &address, &size) ? 0 : address;
}

EXPORT int bridge_launch(struct gv_module *m, uint32_t kernel, uint32_t blocks, uint32_t threads, const void *params, uint32_t size) {
    struct gv_launch launch = {
        .module = m, .kernel = kernel, .grid = {blocks, 1, 1}, .block = {threads, 1, 1}, .params = params, .params_size = size};
    return ops->launch(ops->stream_legacy(context), &launch);
}

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int done, status;
};

static void told(void *arg, int status) {
    struct waiter *w = arg;
    pthread_mutex_lock(&w->lock);
    w->status = status;
    w->done = 1;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

EXPORT int bridge_sync(void) {
    struct waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    int rc = ops->mark(ops->stream_legacy(context), told, &w);
    if (rc) return rc;
    pthread_mutex_lock(&w.lock);
    while (!w.done) pthread_cond_wait(&w.changed, &w.lock);
    pthread_mutex_unlock(&w.lock);
    return w.status;
}

EXPORT const char *bridge_error(void) { return *text ? text : ops->error_text(context); }

EXPORT const char *bridge_printed(void) {
    printed[printed_size] = 0;
    return printed;
}

EXPORT void bridge_close(void) { ops->close(backend); }
