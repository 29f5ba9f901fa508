#define _GNU_SOURCE
#include "redial.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../wire/clock.h"
#include "attempt.h"

static struct gv_address address_of(struct gv_redial_target *target) {
    pthread_mutex_lock(&target->lock);
    struct gv_address address = target->address;
    pthread_mutex_unlock(&target->lock);
    return address;
}

static void moved_to(struct gv_redial_target *target, const struct gv_address *address) {
    pthread_mutex_lock(&target->lock);
    target->address = *address;
    pthread_mutex_unlock(&target->lock);
}

/* Nobody listens. True: whoever listened there is gone, and the session with it. */
static bool gone(struct gv_redial_target *target, bool refused) {
    int64_t now = gv_now_ns();
    pthread_mutex_lock(&target->lock);
    if (!refused)
        target->refused_since = 0;
    else if (!target->refused_since)
        target->refused_since = now;
    bool gone = refused && now - target->refused_since > RESTART_NS;
    pthread_mutex_unlock(&target->lock);
    return gone;
}

/* One connection, to the address that is known. True: it is the session's, or says where that is. */
static bool dial_once(struct gv_redial_target *target, struct gv_attempt *a, int channel, uint32_t epoch, bool *final) {
    struct gv_hello hello = {.purpose = channel < 0 ? GV_HELLO_RESUME : GV_HELLO_CHANNEL,
                             .channel = channel < 0 ? 0 : (uint16_t)channel,
                             .session = target->session,
                             .epoch = epoch};
    if (!gv_attempt_dial(a)) {
        *final = gone(target, errno == ECONNREFUSED) || a->err->status == (int)GV_WELCOME_VERSION;
        return false;
    }
    gone(target, false);
    if ((target->needs & GV_NEEDS_DESCRIPTORS) && !gv_attempt_change_to_unix(a, target->spec.transport)) {
        *final = a->err->status == GV_OPEN_USAGE; /* it moved to another host, or to a server that does not offer this */
        return false;
    }
    if (gv_attempt_shake(a, &hello, target->program, target->key)) return true;
    int status = a->err->status;
    *final = status == (int)GV_WELCOME_UNKNOWN || status == (int)GV_WELCOME_DENIED || status == (int)GV_WELCOME_VERSION;
    return false;
}

int gv_redial(struct gv_redial_target *target, int channel, uint32_t epoch, int64_t until, char *why, size_t why_size) {
    struct gv_open_error err = {0};
    struct gv_attempt a = {.err = &err,
                           .address = address_of(target),
                           .spec = target->spec,
                           .until = until,
                           .notice = target->notice,
                           .notice_arg = target->notice_arg,
                           .fd = -1};
    int moves = 0;
    bool final = false;
    while (dial_once(target, &a, channel, epoch, &final)) {
        gv_passed_close(&a.passed);
        if (a.welcome.status == GV_WELCOME_OK) {
            if (moves) moved_to(target, &a.address);
            gv_set_blocking(a.fd);
            return a.fd;
        }
        if (!gv_attempt_follow(&a, &moves)) {
            final = true;
            break;
        }
    }
    gv_attempt_close(&a);
    snprintf(why, why_size, "%s", err.text);
    return final ? GV_REDIAL_FINAL : GV_REDIAL_AGAIN;
}

void gv_redial_target_free(struct gv_redial_target *target) {
    if (!target) return;
    pthread_mutex_destroy(&target->lock);
    free(target);
}
