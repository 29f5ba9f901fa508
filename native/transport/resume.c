#define _GNU_SOURCE
#include "resume.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "redial.h"

/* Between two attempts: this long at first, twice as long after each. */
#define PAUSE_MIN_NS 50000000LL
#define PAUSE_MAX_NS 1000000000LL
/* One attempt. */
#define ATTEMPT_NS 5000000000LL
/* A cut that lasts longer is told of at once, not only when it is over. */
#define PATIENCE_NS 1000000000LL
/* The worker's end looks so often whether the grace period is over. */
#define LOOK_NS 1000000000LL

static double seconds(int64_t ns) { return (double)ns / 1e9; }

void gv_resume_init(struct gv_resume *r, struct gv_link *link, const struct gv_resume_ops *ops) {
    memset(r, 0, sizeof *r);
    r->link = link;
    r->ops = ops;
    link->resume = r;
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->one, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (link->redial) atomic_store(&r->grace_ns, link->redial->grace_ns);
}

void gv_resume_fini(struct gv_resume *r) {
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->one);
    pthread_cond_destroy(&r->changed);
}

static void tell(struct gv_resume *r) {
    pthread_mutex_lock(&r->lock);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void gv_resume_died(struct gv_resume *r) { tell(r); }

void gv_resume_stop(struct gv_resume *r) {
    atomic_store(&r->stop, true);
    tell(r);
}

static bool over(const struct gv_resume *r) { return atomic_load(&r->stop) || gv_link_dead(r->link); }

/* ---- down and up */

bool gv_resume_final(const struct gv_resume *r) { return atomic_load(&r->last) || atomic_load(&r->client_gone) || atomic_load(&r->grace_ns) <= 0; }

void gv_resume_cut(struct gv_resume *r, const char *what, int error) {
    char reason[100], why[GV_DEATH_TEXT];
    snprintf(why, sizeof why, "%s%s", what, error ? strerror_r(error, reason, sizeof reason) : "");
    pthread_mutex_lock(&r->lock);
    bool final = gv_resume_final(r), first = gv_resume_is_up(r);
    if (first && !final && !gv_link_dead(r->link)) {
        atomic_store(&r->down, true);
        r->cut_at = gv_now_ns();
        snprintf(r->cut_why, sizeof r->cut_why, "%s", why);
        atomic_fetch_add(&r->cuts, 1);
        r->ops->disconnect(r->link);
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    if (final)
        gv_link_kill(r->link, why);
    else if (first)
        r->ops->went_down(r->link);
}

void gv_resume_up(struct gv_resume *r) {
    atomic_fetch_add(&r->resumes, 1);
    pthread_mutex_lock(&r->lock);
    if (!gv_resume_is_up(r)) r->down_ns += gv_now_ns() - r->cut_at;
    atomic_store(&r->down, false);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void gv_resume_begin_down(struct gv_resume *r) {
    r->cut_at = gv_now_ns();
    snprintf(r->cut_why, sizeof r->cut_why, "the link has not begun");
    atomic_store(&r->down, true);
}

void gv_resume_start(struct gv_resume *r) {
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->down, false);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int64_t gv_resume_down_ns(struct gv_resume *r) {
    pthread_mutex_lock(&r->lock);
    int64_t ns = r->down_ns + (gv_resume_is_up(r) ? 0 : gv_now_ns() - r->cut_at);
    pthread_mutex_unlock(&r->lock);
    return ns;
}

/* Takes fd. False: the link is dead. */
static bool come_up(struct gv_resume *r, int fd, uint32_t epoch, const struct gv_resume_point *theirs) {
    r->link->epoch = epoch; /* the peer has said it, too: it takes records of it */
    const char *wrong = r->ops->replace(r->link, fd, theirs);
    close(fd);
    if (wrong) {
        gv_link_kill(r->link, wrong);
        return false;
    }
    if (gv_link_dead(r->link)) r->ops->disconnect(r->link); /* it may have died before the new connection was there to be ended */
    r->ops->came_up(r->link);
    return true;
}

/* ---- the worker's end: it is given a connection */

int gv_resume_take(struct gv_link *link, int fd, uint32_t epoch) {
    struct gv_resume *r = link->resume;
    struct gv_resume_point theirs;
    pthread_mutex_lock(&r->one);
    bool good = !gv_link_dead(link) && !atomic_load(&link->held) && epoch > link->epoch_limit;
    if (good) gv_resume_cut(r, "the client came with another connection", 0); /* it knows before us that the old one is of no use */
    good = good && !gv_link_dead(link);
    if (good) link->epoch_limit = epoch; /* before the client can be up and send records of it */
    if (!good || r->ops->exchange(link, fd, epoch, &theirs)) {
        close(fd);
        good = false;
    } else {
        good = come_up(r, fd, epoch, &theirs);
    }
    pthread_mutex_unlock(&r->one);
    return good ? 0 : -1;
}

/* ---- the client's end: it makes one */

/* When the link went down, and why. */
static int64_t went_down(struct gv_resume *r, char why[GV_DEATH_TEXT]) {
    pthread_mutex_lock(&r->lock);
    int64_t at = r->cut_at;
    memcpy(why, r->cut_why, GV_DEATH_TEXT);
    pthread_mutex_unlock(&r->lock);
    return at;
}

static void notice(struct gv_resume *r, const char *text) {
    struct gv_redial_target *redial = r->link->redial;
    if (redial->notice && !atomic_load(&r->last)) redial->notice(redial->notice_arg, text);
}

/* Sleeps, unless the link is closed, dies or is up. */
static void pause_for(struct gv_resume *r, int64_t ns) {
    int64_t until = gv_now_ns() + ns;
    struct timespec deadline = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    pthread_mutex_lock(&r->lock);
    while (!over(r) && atomic_load(&r->down) && gv_now_ns() < until) pthread_cond_timedwait(&r->changed, &r->lock, &deadline);
    pthread_mutex_unlock(&r->lock);
}

void gv_resume_too_long(struct gv_resume *r, const char *why) {
    char text[GV_DEATH_TEXT];
    snprintf(text, sizeof text, "the connection did not come back within the grace period of %.0f s: %.100s", seconds(atomic_load(&r->grace_ns)),
             why);
    gv_link_kill(r->link, text);
}

static void reconnect(struct gv_resume *r) {
    struct gv_link *link = r->link;
    struct gv_redial_target *redial = link->redial;
    char cause[GV_DEATH_TEXT], why[400], text[1200];
    int64_t began = went_down(r, cause), end = began + redial->grace_ns, pause = PAUSE_MIN_NS;
    bool told = false;
    snprintf(why, sizeof why, "%s", cause);
    while (!over(r)) {
        int64_t now = gv_now_ns();
        if (now >= end) {
            gv_resume_too_long(r, why);
            return;
        }
        /* Higher also after an attempt that failed: the server may have seen more of it than we know. */
        uint32_t epoch = ++link->epoch_limit;
        int fd = link->transport->redial(redial, -1, epoch, now + ATTEMPT_NS < end ? now + ATTEMPT_NS : end, why, sizeof why);
        if (fd == GV_REDIAL_FINAL) {
            snprintf(text, GV_DEATH_TEXT, "%.40s; then: %.150s", cause, why);
            gv_link_kill(link, text);
            return;
        }
        struct gv_resume_point theirs;
        int error = fd >= 0 ? r->ops->exchange(link, fd, epoch, &theirs) : 0;
        if (fd >= 0 && !error) {
            if (!come_up(r, fd, epoch, &theirs) || told) return;
            snprintf(text, sizeof text, "the connection to %s was lost (%s) and is back after %.1f s", link->server, cause,
                     seconds(gv_now_ns() - began));
            notice(r, text);
            return;
        }
        if (error) {
            close(fd);
            snprintf(why, sizeof why, "the server gave up the new connection (%s)", strerror_r(error, text, sizeof text));
        }
        int64_t patience = began + PATIENCE_NS - gv_now_ns();
        if (!told && patience < pause) {
            if (patience > 0) pause_for(r, patience);
            told = true;
            snprintf(text, sizeof text, "the connection to %s is lost (%s): trying again for up to %.0f s", link->server, cause,
                     seconds(redial->grace_ns));
            if (!over(r)) notice(r, text);
        } else {
            pause_for(r, pause);
        }
        pause = pause * 2 < PAUSE_MAX_NS ? pause * 2 : PAUSE_MAX_NS;
    }
}

int64_t gv_resume_patience(struct gv_resume *r) {
    char cause[GV_DEATH_TEXT];
    int64_t left = went_down(r, cause) + atomic_load(&r->grace_ns) - gv_now_ns();
    if (left > 0) return left < LOOK_NS ? left : LOOK_NS;
    if (atomic_load(&r->down)) gv_resume_too_long(r, cause);
    return 0;
}

void gv_resume_while_down(struct gv_resume *r) {
    if (r->link->redial) {
        reconnect(r);
    } else {
        int64_t left = gv_resume_patience(r);
        if (left > 0) pause_for(r, left);
    }
}

/* ---- the rest of what a row needs */

void gv_resume_set_grace(struct gv_link *link, int64_t grace_ns) { atomic_store(&link->resume->grace_ns, grace_ns); }

bool gv_resume_down(const struct gv_link *link) { return atomic_load(&link->resume->down); }

/* A cut is the end from now on; one that happened already is it now. */
static void no_more_cuts(struct gv_resume *r, _Atomic bool *which, const char *why) {
    char cause[GV_DEATH_TEXT];
    pthread_mutex_lock(&r->lock);
    atomic_store(which, true);
    bool down = atomic_load(&r->down);
    memcpy(cause, r->cut_why, sizeof cause);
    pthread_mutex_unlock(&r->lock);
    if (down) gv_link_kill(r->link, why ? why : cause);
}

void gv_resume_last(struct gv_link *link) { no_more_cuts(link->resume, &link->resume->last, NULL); }

void gv_resume_client_gone(struct gv_link *link) { no_more_cuts(link->resume, &link->resume->client_gone, "the client's program has ended"); }
