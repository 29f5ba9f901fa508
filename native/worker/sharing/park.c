/* An idle session is parked: between two records its device memory goes to a file, and the GPU is others'. Its objects, its connection and this process stay. The
 * next command asks the daemon for room, and is executed once there is some and the memory is back. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../../wire/clock.h"
#include "../state.h"

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

/* in_command: the program waits for one that waits for room. */
static bool give_memory_back(struct worker *w, const struct worker_parking *p, bool in_command, bool *needs_command, char *why) {
    const char *what = p->until && !in_command ? worker_settle(w, p->until, needs_command) : worker_unrest(w);
    if (!w->ops->park)
        snprintf(why, GV_ERR_SIZE, "its GPU gives no memory back");
    else if (!w->attached)
        snprintf(why, GV_ERR_SIZE, "the program has not begun to use its GPU");
    else if (*what || (!p->until && !in_command && next_record(w)))
        snprintf(why, GV_ERR_SIZE, "it is not idle: %s", *what ? what : "a call of the program's has come");
    else
        return w->ops->park(w->backend, p->fd, why) == 0;
    return false;
}

/* False: it keeps its memory, and whoever asked has been told why. */
static bool park_for(struct worker *w, bool in_command, int *fd) {
    char why[GV_ERR_SIZE] = "";
    pthread_mutex_lock(&w->lock);
    struct worker_parking *p = w->parking;
    if (p) p->taken = true;
    pthread_mutex_unlock(&w->lock);
    atomic_store(&w->park_wanted, false);
    if (!p) return false;
    *fd = p->fd;
    bool needs_command = false, parked = give_memory_back(w, p, in_command, &needs_command, why);
    pthread_mutex_lock(&w->lock);
    if (needs_command) {
        p->taken = false;
        atomic_store(&w->park_wanted, true);
        pthread_mutex_unlock(&w->lock);
        return false;
    }
    memcpy(p->why, why, sizeof why);
    p->parked = w->parked = parked;
    p->done = true;
    w->parking = NULL;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (parked) w->park_said(w->park_arg, WORKER_PARKED);
    return parked;
}

/* ---- room ---- */

/* What the daemon says; ROOM_NO_ANSWER: the session is over, or somebody wants it parked. */
static int await_room(struct worker *w, bool may_park) {
    pthread_mutex_lock(&w->lock);
    while (w->room_answer == ROOM_NO_ANSWER && !over(w) && !(may_park && atomic_load(&w->park_wanted))) {
        struct timespec look = gv_deadline(CLOCK_REALTIME, LOOK_NS);
        pthread_cond_timedwait(&w->changed, &w->lock, &look);
    }
    int answer = w->room_answer;
    w->room_answer = ROOM_NO_ANSWER;
    pthread_mutex_unlock(&w->lock);
    return answer;
}

/* CUDA_ERROR_OUT_OF_MEMORY: others were faster. */
static int take_memory_back(struct worker *w, int fd) {
    char why[GV_ERR_SIZE] = "";
    int status = w->ops->unpark(w->backend, fd, why);
    if (status == CUDA_ERROR_OUT_OF_MEMORY) return status;
    if (status) {
        gv_link_kill(w->link, why);
        return status;
    }
    w->park_said(w->park_arg, WORKER_PARK_BACK);
    pthread_mutex_lock(&w->lock);
    w->parked = false;
    pthread_mutex_unlock(&w->lock);
    return 0;
}

/* The session has work. Returns when its memory is back, or the session is over. */
static void bring_memory_back(struct worker *w, int fd) {
    int status = CUDA_ERROR_OUT_OF_MEMORY;
    while (status == CUDA_ERROR_OUT_OF_MEMORY && !over(w)) {
        w->park_said(w->park_arg, WORKER_PARK_WANTS);
        if (await_room(w, false) == ROOM_GRANTED) status = take_memory_back(w, fd);
    }
}

bool worker_make_room(void *arg, uint32_t device, uint64_t bytes) {
    struct worker *w = arg;
    if (!w->room_asked) return false;
    worker_rest(w);
    bool parked = false, granted = false, refused = false;
    int fd = -1;
    w->room_asked(w->room_arg, device, bytes);
    while (!granted && !refused && !over(w)) {
        int answer = await_room(w, !parked);
        if (answer == ROOM_NO_ANSWER && !parked && atomic_load(&w->park_wanted)) parked = park_for(w, true, &fd);
        refused = answer == ROOM_REFUSED;
        if (answer != ROOM_GRANTED) continue;
        int status = parked ? take_memory_back(w, fd) : 0;
        granted = status == 0;
        if (status == CUDA_ERROR_OUT_OF_MEMORY) w->room_asked(w->room_arg, device, bytes);
    }
    if (parked && refused) bring_memory_back(w, fd);
    return granted;
}

EXPORT void worker_ask_room(struct worker *w, void (*asked)(void *arg, uint32_t device, uint64_t bytes), void *arg) {
    w->room_asked = asked;
    w->room_arg = arg;
}

EXPORT void worker_answer_room(struct worker *w, int32_t granted) {
    pthread_mutex_lock(&w->lock);
    w->room_answer = granted ? ROOM_GRANTED : ROOM_REFUSED;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* ---- between two records ---- */

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
    int fd;
    if (park_for(w, false, &fd)) stay_parked(w, fd);
}

/* ---- what the daemon wants ---- */

EXPORT int worker_park(struct worker *w, int32_t fd, uint32_t finish_ms, void (*said)(void *arg, int32_t what), void *arg, char *err) {
    int64_t now = gv_now_ns(), finish = (int64_t)finish_ms * 1000000, until = now + (finish > WORKER_PARK_NS ? finish : WORKER_PARK_NS);
    struct worker_parking parking = {.fd = fd, .until = finish_ms ? now + finish : 0};
    err[0] = 0;
    pthread_mutex_lock(&w->lock);
    if (w->parking || w->parked) {
        pthread_mutex_unlock(&w->lock);
        snprintf(err, GV_ERR_SIZE, "it is not idle: it is being parked, or is parked");
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
