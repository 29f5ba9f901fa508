/* The commands that begin and end a session. */
#include <stdlib.h>
#include <string.h>

#include "../wire/window.h"
#include "state.h"

#define INITIAL_CREDIT (32ull << 20) /* bytes backed on each device before the client asks for any */

static void choose_window(struct worker *w, const struct gv_cmd_attach *c) {
    const uint8_t *offers = c->windows;
    w->addresses = GV_ADDRESSES_REPLY;
    for (uint32_t at = 0; at + 16 <= c->windows_size; at += 16) {
        uint64_t base, size;
        memcpy(&base, offers + at, 8);
        memcpy(&size, offers + at + 8, 8);
        int status = w->ops->reserve_window(w->backend, base, size);
        if (status == CUDA_ERROR_NOT_SUPPORTED) return; /* this backend places memory itself */
        if (status) continue;
        w->window_base = base;
        w->window_size = size;
        w->addresses = GV_ADDRESSES_FIXED;
        return;
    }
}

/* Backs the first bytes of every device's part: INITIAL_CREDIT, or the half, the quarter, ... that all devices have free. */
static uint64_t advance(struct worker *w) {
    for (uint64_t size = INITIAL_CREDIT; size >= GV_WINDOW_ALIGN; size /= 2) {
        uint32_t backed = 0;
        for (; backed < w->n_devices; backed++) {
            struct gv_window_part part = gv_window_part(w->window_base, w->window_size, w->n_devices, backed);
            if (size > part.client_size || size > w->infos[backed].total_memory || size % w->infos[backed].chunk) break;
            if (w->ops->memory_back(w->device_contexts[backed], part.base, size, false)) break;
        }
        if (backed == w->n_devices) {
            atomic_fetch_add(&w->memory_used, size * backed);
            return size;
        }
        while (backed--) {
            struct gv_window_part part = gv_window_part(w->window_base, w->window_size, w->n_devices, backed);
            w->ops->memory_unback(w->device_contexts[backed], part.base, size);
        }
    }
    return 0; /* not enough free memory: the client asks for all of it */
}

int worker_do_attach(struct worker *w, const struct gv_record *record, const struct gv_cmd_attach *c) {
    if (w->attached) return -1;
    atomic_store(&w->rtt_ns, (int64_t)c->rtt_us * 1000);
    gv_link_set_rtt(w->link, (int64_t)c->rtt_us * 1000);
    char err[GV_ERR_SIZE] = "";
    int version = w->ops->driver_version(w->backend), status;
    choose_window(w, c);
    for (uint32_t i = 0; i < w->n_devices; i++) {
        status = w->ops->device_info(w->backend, i, &w->infos[i]);
        if (!status && !w->device_contexts[i]) status = w->ops->context_create(w->backend, i, 0, 1, &w->device_contexts[i], err);
        if (status) return worker_reply(w, record, status, err[0] ? err : "a device could not be opened", NULL, 0);
        if (!w->infos[i].chunk) w->infos[i].chunk = GV_WINDOW_ALIGN;
    }
    uint64_t initial = w->addresses == GV_ADDRESSES_FIXED ? advance(w) : 0;
    worker_choose_cache(w, version);
    static struct gv_module_known known[GV_MODULES_KNOWN_MAX];
    uint32_t n_known = module_cache_list(w->cache, known, GV_MODULES_KNOWN_MAX);
    struct gv_reply_attach reply = {.driver_version = (uint32_t)version,
                                    .addresses = w->addresses,
                                    .window_base = w->window_base,
                                    .window_size = w->window_size,
                                    .initial = initial,
                                    .devices = w->infos,
                                    .devices_size = (uint32_t)(w->n_devices * sizeof w->infos[0]),
                                    .modules = known,
                                    .modules_size = (uint32_t)(n_known * sizeof known[0]),
                                    .backend = w->ops->name,
                                    .server = w->name};
    uint64_t size = gv_reply_attach_size(&reply);
    void *body = malloc(size);
    if (!body) return worker_reply(w, record, CUDA_ERROR_OUT_OF_MEMORY, "the server is out of memory", NULL, 0);
    gv_reply_attach_encode(&reply, body);
    w->attached = true;
    int sent = worker_reply(w, record, 0, NULL, body, (uint32_t)size);
    free(body);
    return sent;
}

int worker_do_bye(struct worker *w, const struct gv_record *record, const struct gv_cmd_bye *c) {
    (void)c;
    struct gv_reply_bye reply = {.launches = atomic_load(&w->launches), .commands = atomic_load(&w->commands)};
    uint8_t body[sizeof reply + 16];
    gv_reply_bye_encode(&reply, body);
    w->said_bye = true;
    return worker_reply(w, record, 0, NULL, body, (uint32_t)gv_reply_bye_size(&reply));
}
