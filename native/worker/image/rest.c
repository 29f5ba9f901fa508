/* A session comes to rest between two records, so that its image can be written: nothing is queued on the device, no host function is pending, payloads have
 * landed on both sides, and the connection is cut. What the client sends meanwhile waits in the link, or goes with the image (records that were read ahead,
 * payloads that came before their commands). A session that waits for its host is not at rest before the host has answered. Where its device waits for a value in
 * memory, that may be written by a command which has not been carried out yet: then the executor carries out one more, and tries again. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../../wire/clock.h"
#include "../../wire/image_stream.h"
#include "../state.h"

#define EXPORT __attribute__((visibility("default")))

#define LOOK_NS 200000      /* ns between two looks at whether it is at rest */
#define VALUE_LOOKS 3       /* in turn, that find its device waiting for a value: one may fall between the value and who notices it */
#define PARK_NS 100000000ll /* ns that the reader of payloads has once the connection is cut */
#define LONGEST_LOOK_NS 100000000ll
#define WRITE_NS 600000000000ll /* ns for writing the image */

static const char *const NO_VALUE = "its GPU waits for a value that the program does not write";

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL); }

static bool over(struct worker *w) { return atomic_load(&w->stopping) || gv_link_dead(w->link); }

const char *worker_unrest(struct worker *w) {
    const char *what = "";
    pthread_mutex_lock(&w->copies.lock);
    bool copies = w->copies.first;
    pthread_mutex_unlock(&w->copies.lock);
    pthread_mutex_lock(&w->lock);
    if (w->n_host_calls)
        what = "a host function has not returned";
    else if (w->expected_first || w->late || w->n_discards)
        what = "it waits for data of the program's";
    else if (atomic_load(&w->pending) || copies)
        what = "its GPU is at work";
    else if (w->n_outgoing || w->n_in_place || gv_bulk_acked(w->link) != gv_bulk_position(w->link))
        what = "the program has not taken all data";
    pthread_mutex_unlock(&w->lock);
    return *what || w->ops->at_rest(w->backend) ? what : "its GPU is at work";
}

static bool parked(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    bool there = w->reader_parked;
    pthread_mutex_unlock(&w->lock);
    return there;
}

static void pause_session(struct worker *w, bool pause) {
    if (pause) gv_link_pause(w->link);
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->paused, pause);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (!pause) gv_link_unpause(w->link);
}

/* A record that was looked at and not taken waits in the link: it goes with those that were read ahead. */
static bool take_peeked(struct worker *w) {
    const struct gv_record *record = gv_recv_peek(w->link);
    if (!record) return true;
    if (!worker_aside_put(w, record, false)) return false;
    gv_recv_consume(w->link);
    return true;
}

static bool parks(struct worker *w, int64_t until) {
    while (!parked(w) && gv_now_ns() < until && !over(w)) nap();
    return parked(w);
}

/* Paused, held, and with no payload halfway in. False: the last one is halfway in, and the time is over. */
static bool stand_still(struct worker *w, int64_t until) {
    pause_session(w, true);
    while (atomic_load(&w->receiving) && gv_now_ns() < until && !over(w)) nap();
    gv_link_hold(w->link, "the session moves");
    if (!parks(w, gv_now_ns() + PARK_NS)) { /* it has the beginning of a payload: the rest comes when the client has connected again */
        gv_link_release(w->link);
        if (parks(w, until)) gv_link_hold(w->link, "the session moves");
    }
    if (parked(w) && take_peeked(w)) return true;
    pause_session(w, false);
    return false;
}

/* Read-ahead reads the link meanwhile: answers of the client's come with its commands. */
const char *worker_settle(struct worker *w, int64_t until, bool *needs_command) {
    const char *what;
    int looks = 0;
    worker_ahead_begin(w);
    while (*(what = worker_unrest(w)) && !over(w)) {
        looks = w->ops->awaits_value && w->ops->awaits_value(w->backend) ? looks + 1 : 0;
        if (looks == VALUE_LOOKS || gv_now_ns() >= until) break;
        nap();
    }
    worker_ahead_end(w);
    *needs_command = looks == VALUE_LOOKS && gv_now_ns() < until;
    return *what && looks ? NO_VALUE : what;
}

static bool come_to_rest(struct worker *w, int64_t until, bool *needs_command, char *why) {
    const char *what = worker_settle(w, until, needs_command);
    if (*what) {
        snprintf(why, GV_ERR_SIZE, "the session does not come to rest: %s", what);
        return false;
    }
    if (stand_still(w, until)) return true;
    snprintf(why, GV_ERR_SIZE, "the session does not come to rest: its connection is lost, or data of the program's never end");
    return false;
}

static const char *cannot(const struct worker *w) {
    if (!w->attached) return "the program has not begun to use its GPU";
    if (!w->ops->save_memory) return "only sessions on software GPUs can move";
    if (w->addresses != GV_ADDRESSES_FIXED) return "the driver chose the addresses of its memory, which another one may not have (addresses=reply)";
    if (!gv_link_movable(w->link)) return "its link does not come back after a cut (--grace 0)";
    return NULL;
}

static bool write_image(struct worker *w, const struct worker_saving *saving, bool *needs_command, char *why) {
    const char *never = cannot(w);
    if (never) {
        snprintf(why, GV_ERR_SIZE, "%s", never);
        return false;
    }
    if (!come_to_rest(w, saving->until, needs_command, why)) return false;
    saving->at_rest(saving->arg);
    struct gv_image_out out;
    bool good = gv_image_out_open(&out, saving->fd, gv_now_ns() + WRITE_NS);
    if (good) {
        worker_save_all(w, &out);
        good = gv_image_out_close(&out);
    }
    if (!good) snprintf(why, GV_ERR_SIZE, "%s", out.why[0] ? out.why : "the server is out of memory");
    return good;
}

void worker_write_image(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    struct worker_saving *saving = w->saving;
    if (saving) saving->taken = true;
    pthread_mutex_unlock(&w->lock);
    if (!saving) return;
    char why[GV_ERR_SIZE] = "";
    bool needs_command = false, good = write_image(w, saving, &needs_command, why);
    pthread_mutex_lock(&w->lock);
    if (needs_command) {
        saving->needs_command = true;
        saving->taken = false;
        pthread_mutex_unlock(&w->lock);
        return;
    }
    memcpy(saving->why, why, sizeof why);
    saving->good = good;
    saving->done = true;
    w->saving = NULL;
    atomic_store(&w->image_wanted, false);
    pthread_cond_broadcast(&w->changed);
    while (good && !w->go_on && !atomic_load(&w->stopping)) pthread_cond_wait(&w->changed, &w->lock);
    w->go_on = false;
    pthread_mutex_unlock(&w->lock);
    if (atomic_load(&w->paused)) pause_session(w, false);
}

EXPORT int worker_save(struct worker *w, int32_t fd, uint32_t limit_ms, void (*at_rest)(void *arg), void *arg, char *err) {
    struct worker_saving saving = {.fd = fd, .until = gv_now_ns() + (int64_t)limit_ms * 1000000, .at_rest = at_rest, .arg = arg};
    err[0] = 0;
    pthread_mutex_lock(&w->lock);
    if (w->saving) {
        pthread_mutex_unlock(&w->lock);
        snprintf(err, GV_ERR_SIZE, "the session moves already");
        return -1;
    }
    w->saving = &saving;
    w->go_on = false;
    atomic_store(&w->image_wanted, true);
    pthread_mutex_unlock(&w->lock);
    gv_recv_wake(w->link);
    pthread_mutex_lock(&w->lock);
    /* The executor may be in a command that takes long; once it has begun it says how it went. */
    while (!saving.done && (saving.taken || !atomic_load(&w->stopping))) {
        struct timespec look = gv_deadline(CLOCK_REALTIME, LONGEST_LOOK_NS);
        pthread_cond_timedwait(&w->changed, &w->lock, &look);
        if (saving.done || saving.taken || gv_now_ns() < saving.until) continue;
        atomic_store(&w->image_wanted, false);
        snprintf(saving.why, sizeof saving.why, "the session does not come to rest: %s",
                 saving.needs_command ? NO_VALUE : "a call of the program's takes long");
        break;
    }
    bool good = saving.done && saving.good;
    if (w->saving == &saving) w->saving = NULL;
    pthread_mutex_unlock(&w->lock);
    if (!good) snprintf(err, GV_ERR_SIZE, "%s", saving.why[0] ? saving.why : "the session has ended");
    return good ? 0 : -1;
}

EXPORT void worker_continue(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    w->go_on = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}
