/* One session: open, run until the client says goodbye or is lost, close. The thread that runs it is the executor: it takes records in order, carries each out by
 * queuing work on the backend, and never waits for the device. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../wire/handshake.h"
#include "state.h"

#define ACK_EVERY 1024     /* records between acknowledgements */
#define IDLE_SPIN_NS 20000 /* how long the executor looks for a record before it sleeps */
#define SLEEP_NS 1000000000ll

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

static const struct gv_backend_ops *backend_named(const char *name) {
    static const struct gv_backend_ops *const all[] = {&gv_backend_soft, &gv_backend_cuda};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!strcmp(all[i]->name, name)) return all[i];
    }
    return NULL;
}

/* The descriptors of a session that cannot begin are still ours to close. */
static void drop_descriptors(const struct worker_config *config) {
    if (config->fd >= 0) close(config->fd);
    if (config->memfd >= 0) close(config->memfd);
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
    pthread_cond_init(&w->changed, NULL);
    w->ops = ops;
    w->n_devices = config->n_devices;
    snprintf(w->name, sizeof w->name, "%s", config->server_name ? config->server_name : "");
    if (config->link == GV_LINK_SHM)
        w->link = gv_link_adopt_shm(config->fd, config->memfd, config->command_ring, config->reply_ring, config->bulk_out_ring, config->bulk_in_ring);
    else
        w->link = gv_link_adopt_tcp(config->fd);
    if (!w->link) {
        snprintf(err, GV_ERR_SIZE, "the connection could not be taken over");
        worker_close(w);
        return NULL;
    }
    struct gv_backend_config backend = {.devices = config->devices,
                                        .n_devices = config->n_devices,
                                        .memory = config->memory,
                                        .driver = config->driver,
                                        .capability = config->capability,
                                        .device_memory = config->device_memory,
                                        .strict = (int)config->strict,
                                        .drop_launches = (int)config->drop_launches,
                                        .ledger_fd = config->ledger_fd,
                                        .ledger_slot = config->ledger_slot,
                                        .compiler = config->compiler,
                                        .console = console,
                                        .console_arg = w};
    int status = ops->open(&backend, &w->backend, err);
    if (!status && worker_bulk_start(w)) {
        snprintf(err, GV_ERR_SIZE, "no threads to be had");
        status = 2;
    }
    if (status) {
        if (!err[0]) snprintf(err, GV_ERR_SIZE, "the backend %s could not be opened (error %d)", ops->name, status);
        worker_close(w);
        return NULL;
    }
    return w;
}

EXPORT int worker_add_channel(struct worker *w, int32_t channel, int32_t fd) { return gv_link_add_channel(w->link, channel, fd); }

static void acknowledge(struct worker *w, uint64_t seq) {
    struct gv_evt_worker_ack ack = {.received = seq, .executed = seq};
    struct gv_record *out = worker_event(w, GV_OP_WORKER_ACK, 0, gv_evt_worker_ack_size(&ack));
    if (!out) return;
    gv_evt_worker_ack_encode(&ack, out + 1);
    gv_send_commit(w->link);
}

/* From here on nobody waits any more: not in gates, not for staging, not for payloads. */
static void stop(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->stopping, true);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* Anything that keeps the executor waiting must end when the client is gone, and the executor then cannot look: so somebody else does. */
static void *watch(void *arg) {
    struct worker *w = arg;
    while (!atomic_load(&w->stopping)) {
        if (gv_link_dead(w->link)) stop(w);
        usleep(20000);
    }
    return NULL;
}

EXPORT int worker_run(struct worker *w, char *err) {
    err[0] = 0;
    pthread_t watcher;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int watched = pthread_create(&watcher, NULL, watch, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    int result = 0;
    while (!w->said_bye) {
        const struct gv_record *record = gv_recv_peek(w->link);
        if (!record) {
            if (gv_link_dead(w->link)) {
                result = 1;
                snprintf(err, GV_ERR_SIZE, "%s", gv_link_death(w->link));
                break;
            }
            gv_send_flush(w->link);
            gv_recv_wait(w->link, SLEEP_NS, IDLE_SPIN_NS);
            continue;
        }
        uint64_t seq = record->seq;
        w->current = NULL;
        if ((!w->attached && record->op != GV_OP_ATTACH && record->op != GV_OP_BYE) || gv_dispatch(w, record)) {
            if (gv_link_dead(w->link)) continue;
            result = 2;
            snprintf(err, GV_ERR_SIZE, "record %llu (operation %u) is malformed or out of place", (unsigned long long)seq, record->op);
            break;
        }
        if (record->flags & GV_RECORD_MARK && w->current && worker_mark(w, w->current, seq)) result = 2;
        gv_recv_consume(w->link);
        atomic_fetch_add_explicit(&w->commands, 1, memory_order_relaxed);
        if (seq % ACK_EVERY == 0) acknowledge(w, seq);
    }
    gv_send_flush(w->link);
    stop(w);
    if (watched) pthread_join(watcher, NULL);
    return result;
}

EXPORT void worker_get_figures(struct worker *w, struct worker_figures *out) {
    *out = (struct worker_figures){.commands = atomic_load(&w->commands),
                                   .launches = atomic_load(&w->launches),
                                   .bytes_in = gv_link_bytes_in(w->link),
                                   .bytes_out = gv_link_bytes_out(w->link)};
}

EXPORT void worker_close(struct worker *w) {
    stop(w);
    worker_bulk_stop(w);
    /* The backend goes first: nothing of its may call back into what is freed below. */
    if (w->backend) w->ops->close(w->backend);
    gv_link_close(w->link);
    for (void *o; (o = handles_pop(&w->contexts));) {
        free(((struct worker_context *)o)->legacy);
        free(o);
    }
    for (void *o; (o = handles_pop(&w->streams));) free(o);
    for (void *o; (o = handles_pop(&w->modules));) free(o);
    handles_free(&w->contexts);
    handles_free(&w->streams);
    handles_free(&w->events);
    handles_free(&w->modules);
    handles_free(&w->host_calls);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
