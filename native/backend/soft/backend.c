/* The software GPU: opened and closed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stream.h"
#include "../../wire/clock.h"

#define DRIVER_VERSION 13040      /* of the newest toolkit: a program that was built by a newer one than the driver makes machine code by itself */
#define CAPABILITY 130            /* no library has machine code for it, so all of them load PTX */
#define CLOSE_PATIENCE 1000000000 /* ns */

int soft_open(const struct gv_backend_config *config, struct gv_backend **out, char *err) {
    if (!config->n_devices || config->n_devices > GV_MAX_DEVICES) {
        snprintf(err, GV_ERR_SIZE, "%u devices asked for; 1 to %d can be had", config->n_devices, GV_MAX_DEVICES);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    for (uint32_t i = 0; i < config->n_devices; i++)
        if (config->devices[i] >= GV_MEMORY_USAGE_DEVICES) {
            snprintf(err, GV_ERR_SIZE, "device %u of the pool does not exist: a pool has at most %d", config->devices[i], GV_MEMORY_USAGE_DEVICES);
            return CUDA_ERROR_INVALID_DEVICE;
        }
    if (!soft_engine_settings_known(err, GV_ERR_SIZE)) return CUDA_ERROR_INVALID_VALUE;
    struct gv_backend *b = calloc(1, sizeof *b);
    if (!b) goto no_memory;
    b->compiler = config->compiler;
    b->console = config->console;
    b->console_arg = config->console_arg;
    b->turn_said = config->turn_said;
    b->turn_arg = config->turn_arg;
    b->n_devices = config->n_devices;
    b->capability = config->capability ? config->capability : CAPABILITY;
    b->strict = config->strict;
    b->day_offset = (uint64_t)(gv_clock_ns(CLOCK_REALTIME) - gv_now_ns());
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

void soft_close(struct gv_backend *b) {
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
    /* A gate that never returns, or a kernel that cannot be stopped, keeps its thread; then memory that the thread may access is not freed. The
     * process ends soon. */
    if (!quiet) return;
    soft_engine_destroy(b->engine);
    soft_restoring_free(b);
    soft_virtual_close(b);
    soft_memory_close(b);
    pthread_cond_destroy(&b->done);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static void turn_said(void *arg, uint32_t device, uint32_t what, uint32_t number) {
    struct gv_backend *b = arg;
    b->turn_said(b->turn_arg, b->devices[device].share.ordinal, what, number);
}

int soft_compute_turn(struct gv_backend *b, uint32_t device, uint32_t may, uint32_t number) {
    if (!b->turn_said) return CUDA_ERROR_NOT_SUPPORTED;
    for (uint32_t i = 0; i < b->n_devices; i++)
        if (b->devices[i].share.ordinal == device) return soft_engine_turn(b->engine, i, may, number, turn_said, b);
    return CUDA_ERROR_INVALID_DEVICE;
}

int soft_driver_version(struct gv_backend *b) {
    (void)b;
    return DRIVER_VERSION;
}

const struct gv_backend_ops gv_backend_soft = {.name = "soft", GV_BACKEND_ENTRIES(soft)};
