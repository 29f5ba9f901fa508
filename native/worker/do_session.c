/* Attaching, saying goodbye, acknowledgements. */
#include <stdlib.h>
#include <string.h>

#include "../wire/window.h"
#include "state.h"

#define INITIAL_CREDIT (32ull << 20) /* bytes backed on each device before the client asks for any */

static uint64_t choose_window(struct worker *w, const struct gv_cmd_attach *c) {
    const uint8_t *offers = c->windows;
    for (uint32_t at = 0; at + 16 <= c->windows_size; at += 16) {
        uint64_t base, size;
        memcpy(&base, offers + at, 8);
        memcpy(&size, offers + at + 8, 8);
        int status = w->ops->reserve_window(w->backend, base, size);
        if (status == 0) {
            w->window_base = base;
            w->window_size = size;
            w->addresses = GV_ADDRESSES_FIXED;
            return size;
        }
        if (status == 801) break; /* this backend places memory itself */
    }
    w->addresses = GV_ADDRESSES_REPLY;
    return 0;
}

int worker_do_attach(void *worker, const struct gv_record *record, const struct gv_cmd_attach *c) {
    struct worker *w = worker;
    if (w->attached) return -1;
    char err[GV_ERR_SIZE] = "";
    int version = w->ops->driver_version(w->backend), status;
    choose_window(w, c);
    uint64_t initial = w->addresses == GV_ADDRESSES_FIXED ? INITIAL_CREDIT : 0;
    for (uint32_t i = 0; i < w->n_devices; i++) {
        status = w->ops->device_info(w->backend, i, &w->infos[i]);
        if (!status) status = w->ops->context_create(w->backend, i, 0, 1, &w->device_contexts[i], err);
        if (status) return worker_reply(w, record, status, err[0] ? err : "a device could not be opened", NULL, 0);
    }
    for (uint32_t i = 0; initial && i < w->n_devices; i++) {
        struct gv_window_part part = gv_window_part(w->window_base, w->window_size, w->n_devices, i);
        if (w->ops->memory_back(w->device_contexts[i], part.base, initial)) {
            /* A device too full for that: nobody gets an advance, all memory is asked for. */
            for (uint32_t j = 0; j < i; j++) {
                part = gv_window_part(w->window_base, w->window_size, w->n_devices, j);
                w->ops->memory_unback(w->device_contexts[j], part.base, initial);
            }
            initial = 0;
        }
    }
    struct gv_reply_attach reply = {.driver_version = (uint32_t)version,
                                    .addresses = w->addresses,
                                    .window_base = w->window_base,
                                    .window_size = w->window_size,
                                    .initial = initial,
                                    .devices = w->infos,
                                    .devices_size = (uint32_t)(w->n_devices * sizeof w->infos[0]),
                                    .backend = w->ops->name,
                                    .server = w->name};
    uint64_t size = gv_reply_attach_size(&reply);
    void *body = malloc(size);
    if (!body) return worker_reply(w, record, 2, "the server is out of memory", NULL, 0);
    gv_reply_attach_encode(&reply, body);
    w->attached = true;
    int sent = worker_reply(w, record, 0, NULL, body, (uint32_t)size);
    free(body);
    return sent;
}

int worker_do_bye(void *worker, const struct gv_record *record, const struct gv_cmd_bye *c) {
    (void)c;
    struct worker *w = worker;
    struct gv_reply_bye reply = {.launches = atomic_load(&w->launches), .commands = atomic_load(&w->commands)};
    uint8_t body[sizeof reply + 16];
    gv_reply_bye_encode(&reply, body);
    w->said_bye = true;
    return worker_reply(w, record, 0, NULL, body, (uint32_t)gv_reply_bye_size(&reply));
}

/* What the client has received: kept for reconnecting, which does not exist yet. */
int worker_do_ack(void *worker, const struct gv_record *record, const struct gv_cmd_ack *c) { return (void)worker, (void)record, (void)c, 0; }
int worker_do_credit(void *worker, const struct gv_record *record, const struct gv_cmd_credit *c) { return (void)worker, (void)record, (void)c, 0; }
