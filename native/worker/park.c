/* An idle session is parked: between two records its device memory goes to a file, and the GPU is others'. Its objects, its connection and this process stay. The
 * next command asks the daemon for room, and is executed once there is some and the memory is back. */
#include <stdio.h>
#include <string.h>

#include "../wire/clock.h"
#include "state.h"

#define EXPORT __attribute__((visibility("default")))

#define SLEEP_NS 1000000000ll
#define LOOK_NS 100000000ll /* ns between two looks at whether the client is still there, while there is no room */

static bool over(struct worker *w) { return atomic_load(&w->stopping) || gv_link_dead(w->link); }

static const struct gv_record *next_record(struct worker *w) {
    const struct gv_record *record = gv_recv_peek(w->link);
    pthread_mutex_lock(&w->ahead_lock);
    if (w->aside_first) record = w->aside_first->record;
    pthread_mutex_unlock(&w->ahead_lock);
    return record;
}

static bool give_memory_back(struct worker *w, int fd, char *why) {
    const char *what = worker_unrest(w);
    if (!w->ops->park)
        snprintf(why, GV_ERR_SIZE, "only sessions on software GPUs can be parked");
    else if (!w->attached)
        snprintf(why, GV_ERR_SIZE, "the program has not begun to use its GPU");
    else if (*what || next_record(w))
        snprintf(why, GV_ERR_SIZE, "it is not idle: %s", *what ? what : "a call of the program's has come");
    else
        return w->ops->park(w->backend, fd, why) == 0;
    return false;
}

/* The session has work. Returns when its memory is back, or the session is over. */
static void bring_memory_back(struct worker *w, int fd) {
    char why[GV_ERR_SIZE] = "";
    int status = CUDA_ERROR_OUT_OF_MEMORY;
    while (status == CUDA_ERROR_OUT_OF_MEMORY && !over(w)) {
        w->park_said(w->park_arg, WORKER_PARK_WANTS);
        pthread_mutex_lock(&w->lock);
        while (!w->room_granted && !over(w)) {
            struct timespec look = gv_deadline(CLOCK_REALTIME, LOOK_NS);
            pthread_cond_timedwait(&w->changed, &w->lock, &look);
        }
        bool granted = w->room_granted;
        w->room_granted = false;
        pthread_mutex_unlock(&w->lock);
        if (granted) status = w->ops->unpark(w->backend, fd, why);
    }
    if (status) {
        if (!over(w)) gv_link_kill(w->link, why);
        return;
    }
    w->park_said(w->park_arg, WORKER_PARK_BACK);
    pthread_mutex_lock(&w->lock);
    w->parked = false;
    pthread_mutex_unlock(&w->lock);
}

/* A goodbye needs no memory. */
static void stay_parked(struct worker *w, int fd) {
    while (!over(w)) {
        const struct gv_record *record = next_record(w);
        if (record && record->op == GV_OP_BYE) return;
        if (record || atomic_load(&w->image_wanted)) {
            bring_memory_back(w, fd);
            return;
        }
        gv_recv_wait(w->link, SLEEP_NS, 0);
    }
}

void worker_park_here(struct worker *w) {
    char why[GV_ERR_SIZE] = "";
    pthread_mutex_lock(&w->lock);
    struct worker_parking *p = w->parking;
    if (p) p->taken = true;
    pthread_mutex_unlock(&w->lock);
    atomic_store(&w->park_wanted, false);
    if (!p) return;
    int fd = p->fd;
    bool parked = give_memory_back(w, fd, why);
    pthread_mutex_lock(&w->lock);
    memcpy(p->why, why, sizeof why);
    p->parked = w->parked = parked;
    p->done = true;
    w->parking = NULL;
    w->room_granted = false;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (!parked) return;
    w->park_said(w->park_arg, WORKER_PARKED);
    stay_parked(w, fd);
}

EXPORT int worker_park(struct worker *w, int32_t fd, void (*said)(void *arg, int32_t what), void *arg, char *err) {
    struct worker_parking parking = {.fd = fd};
    int64_t until = gv_now_ns() + WORKER_PARK_NS;
    err[0] = 0;
    pthread_mutex_lock(&w->lock);
    if (w->parking || w->parked) {
        pthread_mutex_unlock(&w->lock);
        snprintf(err, GV_ERR_SIZE, "it is parked already");
        return -1;
    }
    w->parking = &parking;
    w->park_said = said;
    w->park_arg = arg;
    pthread_mutex_unlock(&w->lock);
    atomic_store(&w->park_wanted, true);
    gv_recv_wake(w->link);
    pthread_mutex_lock(&w->lock);
    while (!parking.done && (parking.taken || (!atomic_load(&w->stopping) && gv_now_ns() < until))) {
        struct timespec look = gv_deadline(CLOCK_REALTIME, LOOK_NS);
        pthread_cond_timedwait(&w->changed, &w->lock, &look);
    }
    if (!parking.done) {
        snprintf(parking.why, sizeof parking.why, "it is not idle: a call of the program's takes long");
        w->parking = NULL;
        atomic_store(&w->park_wanted, false);
    }
    pthread_mutex_unlock(&w->lock);
    snprintf(err, GV_ERR_SIZE, "%s", parking.why);
    return parking.parked ? 0 : -1;
}

EXPORT void worker_unpark(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    w->room_granted = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}
