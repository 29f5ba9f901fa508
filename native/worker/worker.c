/* One session: open, figures, close. executor.c runs it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../transport/link.h"
#include "../transport/seal/seal.h"
#include "state.h"

#define EXPORT __attribute__((visibility("default")))

static void console(void *arg, const char *text, size_t size) {
    struct worker *w = arg;
    while (size) {
        size_t piece = size < GV_INLINE_MAX ? size : GV_INLINE_MAX;
        struct gv_evt_console event = {.text = text, .text_size = (uint32_t)piece};
        struct gv_record *out = worker_event(w, GV_OP_CONSOLE, 0, gv_evt_console_size(&event));
        if (!out) return;
        gv_evt_console_encode(&event, out + 1);
        gv_send_commit(w->link);
        text += piece;
        size -= piece;
    }
}

static void turn_said(void *arg, uint32_t device, uint32_t what, uint32_t number) {
    struct worker *w = arg;
    w->turns_said(w->turns_arg, device, what, number);
}

static const struct gv_backend_ops *backend_named(const char *name) {
    static const struct gv_backend_ops *const all[] = {&gv_backend_soft, &gv_backend_cuda};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!strcmp(all[i]->name, name)) return all[i];
    }
    return NULL;
}

/* Closes the descriptors of a session that cannot begin. */
static void drop_descriptors(const struct worker_config *config) {
    if (config->fd >= 0) close(config->fd);
    for (uint32_t i = 0; i < config->n_descriptors; i++) close(config->descriptors[i]);
}

static struct gv_link *adopt(const struct worker_config *config, char *err) {
    struct gv_endpoint endpoint = {.fd = config->fd, .blob = config->blob, .blob_size = config->blob_size};
    char why[GV_DEATH_TEXT] = "too many descriptors";
    struct gv_link_secret secret;
    if (config->seal) {
        memcpy(secret.key, config->seal, sizeof secret.key);
        secret.cipher = config->seal[sizeof secret.key];
        endpoint.seal = &secret;
    }
    for (uint32_t i = 0; i < config->n_descriptors && i < GV_DESCRIPTORS_MAX; i++) endpoint.passed.fd[endpoint.passed.n++] = config->descriptors[i];
    struct gv_link *link = config->n_descriptors <= GV_DESCRIPTORS_MAX ? gv_link_adopt(config->transport, &endpoint, why) : NULL;
    explicit_bzero(&secret, sizeof secret);
    if (!link) snprintf(err, GV_ERR_SIZE, "the connection could not be taken over: %s", why);
    return link;
}

/* The library's threads take no signals, which belong to the process that hosts it. */
static int start_threads(struct worker *w) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = worker_bulk_start(w) || worker_read_ahead_start(w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

EXPORT struct worker *worker_open(const struct worker_config *config, char *err) {
    err[0] = 0;
    if (config->struct_size != sizeof *config) {
        snprintf(err, GV_ERR_SIZE, "the worker library is of another version than the program that loads it");
        return NULL;
    }
    const struct gv_backend_ops *ops = backend_named(config->backend);
    if (!ops || !config->n_devices || config->n_devices > GV_MAX_DEVICES) {
        snprintf(err, GV_ERR_SIZE, ops ? "%u is no number of devices" : "there is no backend for this", config->n_devices);
        drop_descriptors(config);
        return NULL;
    }
    struct worker *w = calloc(1, sizeof *w);
    if (!w) {
        snprintf(err, GV_ERR_SIZE, "out of memory");
        drop_descriptors(config);
        return NULL;
    }
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->copies.lock, NULL);
    pthread_mutex_init(&w->ahead_lock, NULL);
    pthread_mutex_init(&w->turns.lock, NULL);
    pthread_cond_init(&w->turns.changed, NULL);
    pthread_cond_init(&w->turns.tell, NULL);
    pthread_cond_init(&w->changed, NULL);
    pthread_cond_init(&w->sendable, NULL);
    pthread_cond_init(&w->room, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->ahead_changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&w->exports_lock, NULL);
    pthread_cond_init(&w->exports_changed, NULL);
    w->session = config->session;
    staging_init(&w->staging);
    w->ops = ops;
    w->n_devices = config->n_devices;
    for (uint32_t i = 0; i < w->n_devices && i < GV_MAX_DEVICES; i++) w->ordinals[i] = config->devices[i];
    snprintf(w->name, sizeof w->name, "%s", config->server_name ? config->server_name : "");
    w->link = adopt(config, err);
    if (!w->link) {
        drop_descriptors(config);
        worker_close(w);
        return NULL;
    }
    staging_set_link(&w->staging, w->link);
    gv_link_set_grace(w->link, (int64_t)config->grace * 1000000000);
    struct gv_backend_config backend = {.devices = config->devices,
                                        .n_devices = config->n_devices,
                                        .memory = config->memory,
                                        .driver = config->driver,
                                        .rdma = gv_link_takes_device_memory(w->link),
                                        .capability = config->capability,
                                        .device_memory = config->device_memory,
                                        .strict = (int)config->strict,
                                        .memory_usage_fd = config->memory_usage_fd,
                                        .memory_usage_slot = config->memory_usage_slot,
                                        .memory_row = config->memory_row,
                                        .memory_file = config->memory_file,
                                        .compiler = config->compiler,
                                        .console = console,
                                        .console_arg = w,
                                        .make_room = worker_make_room,
                                        .make_room_arg = w,
                                        .new_memory_file = worker_export_file,
                                        .memory_file_over = worker_export_file_over,
                                        .memory_file_arg = w,
                                        .turn_said = turn_said,
                                        .turn_arg = w};
    int status = ops->open(&backend, &w->backend, err);
    if (!status) {
        staging_set_backend(&w->staging, ops, w->backend);
        if (!config->restored && start_threads(w)) {
            snprintf(err, GV_ERR_SIZE, "no threads to be had");
            status = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (status) {
        if (!err[0]) snprintf(err, GV_ERR_SIZE, "the backend %s could not be opened (error %d)", ops->name, status);
        worker_close(w);
        return NULL;
    }
    return w;
}

EXPORT int worker_begin(struct worker *w) { return w->has_reader ? 0 : start_threads(w); }

EXPORT void worker_prepare_link(const char *transport) { gv_link_prepare(transport); }

EXPORT struct module_cache *worker_open_cache(const char *folder) { return module_cache_open(folder); }

EXPORT void worker_close_cache(struct module_cache *cache) { module_cache_close(cache); }

EXPORT void worker_refresh_cache(struct module_cache *cache) { module_cache_refresh(cache); }

EXPORT void worker_use_cache(struct worker *w, struct module_cache *cache, const char *build) {
    w->cache = cache;
    w->cache_build = strdup(build);
}

EXPORT int worker_add_channel(struct worker *w, int32_t channel, int32_t fd) {
    int refused = gv_link_add_channel(w->link, channel, fd);
    if (refused) close(fd);
    return refused;
}

EXPORT int worker_resume(struct worker *w, int32_t channel, int32_t fd, uint32_t epoch) { return gv_link_resume(w->link, channel, fd, epoch); }

EXPORT void worker_client_gone(struct worker *w) { gv_link_client_gone(w->link); }

EXPORT void worker_watch_turns(struct worker *w, void (*said)(void *arg, uint32_t device, uint32_t what, uint32_t number), void *arg) {
    w->turns_said = said;
    w->turns_arg = arg;
}

EXPORT int worker_turn(struct worker *w, uint32_t device, uint32_t may, uint32_t number) {
    if (!w->turns_said) return -1;
    if (!w->ops->compute_turn) return worker_turns_hear(w, device, may, number);
    return w->ops->compute_turn(w->backend, device, may, number) ? -1 : 0;
}

EXPORT void worker_notice(struct worker *w, const char *text) {
    struct gv_evt_notice notice = {.text = text};
    struct gv_record *out = worker_event(w, GV_OP_NOTICE, 0, gv_evt_notice_size(&notice));
    if (!out) return;
    gv_evt_notice_encode(&notice, out + 1);
    worker_event_done(w);
}

EXPORT void worker_get_figures(struct worker *w, struct worker_figures *out) {
    struct gv_link_counts counts;
    gv_link_get_counts(w->link, &counts);
    *out = (struct worker_figures){.commands = atomic_load(&w->commands),
                                   .launches = atomic_load(&w->launches),
                                   .bytes_in = gv_link_bytes_in(w->link),
                                   .bytes_out = gv_link_bytes_out(w->link),
                                   .memory_used = atomic_load(&w->memory_used),
                                   .answers = atomic_load(&w->answers),
                                   .cut_ns = counts.down_ns,
                                   .rtt_ns = (uint64_t)atomic_load(&w->rtt_ns)};
}

EXPORT void worker_close(struct worker *w) {
    worker_stop(w);
    worker_read_ahead_stop(w);
    worker_bulk_stop(w);
    worker_turns_stop(w);
    staging_end(&w->staging); /* what is still in use ends with the process */
    /* The backend is closed before the memory that its callbacks use is freed. */
    if (w->backend) w->ops->close(w->backend);
    gv_link_close(w->link);
    for (void *o; (o = handles_pop(&w->contexts));) {
        struct worker_context *c = o;
        free(c->legacy);
        free(c);
    }
    for (void *o; (o = handles_pop(&w->streams));) {
        worker_host_forget(o);
        free(o);
    }
    gv_objects_free(w);
    for (struct worker_aside *a; (a = worker_aside_take(w));) free(a);
    handles_free(&w->contexts);
    handles_free(&w->streams);
    handles_free(&w->allocations);
    worker_host_end(w);
    module_cache_close(w->cache);
    free(w->cache_build);
    worker_exports_close(w);
    free(w);
}
