/* A connection that was cut, and its end: the client makes it again, the worker is given a new one; both say what they have, and each goes on with what
 * the other lacks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "tcp.h"

/* Between two attempts: this long at first, twice as long after each. */
#define PAUSE_MIN_NS 50000000LL
#define PAUSE_MAX_NS 1000000000LL
/* One attempt, and saying to each other what one has. */
#define ATTEMPT_NS 5000000000LL
/* A cut that lasts longer is told of at once, not only when it is over. */
#define PATIENCE_NS 1000000000LL

/* ---- going down */

static double seconds(int64_t ns) { return (double)ns / 1e9; }

void gv_tcp_cut(struct tcp *t, const char *what, int error) {
    char reason[100], why[GV_DEATH_TEXT];
    snprintf(why, sizeof why, "%s%s", what, error ? strerror_r(error, reason, sizeof reason) : "");
    pthread_mutex_lock(&t->state_lock);
    bool final = atomic_load(&t->last) || atomic_load(&t->client_gone) || atomic_load(&t->grace_ns) <= 0;
    bool first = atomic_load(&t->state) == TCP_UP;
    if (first && !final && !gv_link_dead(&t->link)) {
        atomic_store(&t->state, TCP_DOWN);
        t->cut_at = gv_now_ns();
        snprintf(t->cut_why, sizeof t->cut_why, "%s", why);
        atomic_fetch_add(&t->cuts, 1);
        shutdown(t->fd, SHUT_RDWR);
        pthread_cond_broadcast(&t->state_changed);
    }
    pthread_mutex_unlock(&t->state_lock);
    if (final)
        gv_link_kill(&t->link, why);
    else if (first)
        gv_wake_sleeper(&t->control->reader_sleeps); /* the link's own thread sees to it */
}

/* ---- coming back */

/* Says what we have and hears what the peer has, on a connection that nobody else uses yet. 0, or an errno. */
static int exchange(struct tcp *t, int fd, uint32_t epoch, uint64_t *peer_seq, uint64_t *peer_bulk) {
    int64_t until = gv_now_ns() + ATTEMPT_NS;
    /* What lies half received, or received and not looked at, comes again. */
    gv_tcp_spin_lock(&t->receiving);
    t->end = t->at + t->current;
    uint64_t received = atomic_load(&t->received);
    gv_tcp_spin_unlock(&t->receiving);
    struct tcp_note ours = {.record = {.size = sizeof ours, .op = GV_RECORD_RESUME, .epoch = epoch, .seq = received},
                            .received = {gv_tcp_bulk_received(t)}};
    struct tcp_note theirs;
    int error = gv_put(fd, &ours, sizeof ours, until);
    if (!error) error = gv_get(fd, &theirs, sizeof theirs, until, NULL);
    if (error) return error;
    if (theirs.record.size != sizeof theirs || theirs.record.op != GV_RECORD_RESUME || theirs.record.epoch != epoch) return EPROTO;
    *peer_seq = theirs.record.seq;
    *peer_bulk = theirs.received.bulk;
    return 0;
}

/* Puts the new connection in the place of the old one. False: the link is dead. Takes fd. */
static bool come_up(struct tcp *t, int fd, uint32_t epoch, uint64_t peer_seq, uint64_t peer_bulk) {
    gv_tcp_tune(fd);
    gv_set_blocking(fd);
    gv_tcp_spin_lock(&t->pushing);
    gv_tcp_spin_lock(&t->receiving);
    bool sound = peer_seq >= t->unacked.dropped && gv_unacked_drop(&t->unacked, peer_seq) && gv_tcp_bulk_peer_has(t, peer_bulk);
    bool placed = sound && !gv_link_dead(&t->link) && dup3(fd, t->fd, O_CLOEXEC) >= 0;
    int error = errno;
    if (placed) {
        atomic_fetch_add(&t->records_resent, gv_unacked_rewind(&t->unacked));
#ifdef GV_BREAK_RESUME /* Defined by one test only, which shows that it would notice if nothing were sent again. */
        t->unacked.cursor = t->unacked.piece_end = t->unacked.end;
#endif
        t->note_left = 0;
        atomic_store(&t->peer_seq, peer_seq);
        atomic_store(&t->clogged, true); /* what goes out again is the link's thread's to send */
        t->link.epoch = epoch;
        atomic_fetch_add(&t->resumes, 1);
        pthread_mutex_lock(&t->state_lock);
        atomic_store(&t->state, TCP_UP);
        pthread_cond_broadcast(&t->state_changed);
        pthread_mutex_unlock(&t->state_lock);
    }
    gv_tcp_spin_unlock(&t->receiving);
    gv_tcp_spin_unlock(&t->pushing);
    close(fd);
    if (!sound) {
        gv_link_kill(&t->link, "malformed: the peer lacks what it had acknowledged, or has what was never sent");
    } else if (!placed) {
        gv_link_kill_errno(&t->link, "the new connection could not be used: ", error);
    } else {
        if (gv_link_dead(&t->link)) shutdown(t->fd, SHUT_RDWR); /* it may have died before the new socket was there to be shut down */
        gv_tcp_push(t);
        gv_recv_wake(&t->link);
        gv_wake_sleeper(&t->control->reader_sleeps);
    }
    return placed;
}

/* ---- the worker's end: it is given a connection */

int gv_tcp_resume(struct gv_link *link, int channel, int fd, uint32_t epoch) {
    struct tcp *t = (struct tcp *)link;
    if (channel >= 0) {
        if (gv_tcp_bulk_attach(t, (uint32_t)channel, fd, epoch) == 0) return 0;
        close(fd);
        return -1;
    }
    pthread_mutex_lock(&t->resume_lock);
    bool good = !gv_link_dead(link) && epoch > t->link.epoch;
    if (good) gv_tcp_cut(t, "the client came with another connection", 0); /* it knows before us that the old one is of no use */
    uint64_t peer_seq, peer_bulk;
    int error = good && !gv_link_dead(link) ? exchange(t, fd, epoch, &peer_seq, &peer_bulk) : ECANCELED;
    if (error)
        close(fd);
    else
        good = come_up(t, fd, epoch, peer_seq, peer_bulk);
    pthread_mutex_unlock(&t->resume_lock);
    return good && !error ? 0 : -1;
}

/* ---- the client's end: it makes one */

/* When the link went down, and why. */
static int64_t went_down(struct tcp *t, char why[GV_DEATH_TEXT]) {
    pthread_mutex_lock(&t->state_lock);
    int64_t at = t->cut_at;
    if (why) memcpy(why, t->cut_why, GV_DEATH_TEXT);
    pthread_mutex_unlock(&t->state_lock);
    return at;
}

static void notice(struct tcp *t, const char *text) {
    if (t->link.redial->notice && !atomic_load(&t->last)) t->link.redial->notice(t->link.redial->notice_arg, text);
}

/* Sleeps, unless the link is closed or dies. */
static void pause_for(struct tcp *t, int64_t ns) {
    int64_t until = gv_now_ns() + ns;
    struct timespec deadline = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    pthread_mutex_lock(&t->state_lock);
    while (!atomic_load(&t->stop) && !gv_link_dead(&t->link) && atomic_load(&t->state) == TCP_DOWN && gv_now_ns() < until)
        pthread_cond_timedwait(&t->state_changed, &t->state_lock, &deadline);
    pthread_mutex_unlock(&t->state_lock);
}

static void too_long(struct tcp *t, const char *why) {
    char text[GV_DEATH_TEXT];
    snprintf(text, sizeof text, "the connection did not come back within the grace period of %.0f s: %.100s", seconds(atomic_load(&t->grace_ns)),
             why);
    gv_link_kill(&t->link, text);
}

static void reconnect(struct tcp *t) {
    struct gv_redial_target *redial = t->link.redial;
    char cause[GV_DEATH_TEXT], why[400], text[1200];
    int64_t began = went_down(t, cause), end = began + redial->grace_ns, pause = PAUSE_MIN_NS;
    bool told = false;
    uint32_t epoch = t->link.epoch;
    snprintf(why, sizeof why, "%s", cause);
    while (!atomic_load(&t->stop) && !gv_link_dead(&t->link)) {
        int64_t now = gv_now_ns();
        if (now >= end) {
            too_long(t, why);
            return;
        }
        epoch++; /* also after an attempt that failed: the server may have seen more of it than we know */
        int fd = t->link.transport->redial(redial, -1, epoch, now + ATTEMPT_NS < end ? now + ATTEMPT_NS : end, why, sizeof why);
        if (fd == GV_REDIAL_FINAL) {
            snprintf(text, GV_DEATH_TEXT, "%.40s; then: %.150s", cause, why);
            gv_link_kill(&t->link, text);
            return;
        }
        uint64_t peer_seq, peer_bulk;
        int error = fd >= 0 ? exchange(t, fd, epoch, &peer_seq, &peer_bulk) : 0;
        if (fd >= 0 && !error) {
            if (!come_up(t, fd, epoch, peer_seq, peer_bulk) || told) return;
            snprintf(text, sizeof text, "the connection to %s was lost (%s) and is back after %.1f s", t->link.server, cause,
                     seconds(gv_now_ns() - began));
            notice(t, text);
            return;
        }
        if (error) {
            close(fd);
            snprintf(why, sizeof why, "the server gave up the new connection (%s)", strerror_r(error, text, sizeof text));
        }
        int64_t patience = began + PATIENCE_NS - gv_now_ns();
        if (!told && patience < pause) {
            if (patience > 0) pause_for(t, patience);
            told = true;
            snprintf(text, sizeof text, "the connection to %s is lost (%s): trying again for up to %.0f s", t->link.server, cause,
                     seconds(redial->grace_ns));
            if (!atomic_load(&t->stop) && !gv_link_dead(&t->link)) notice(t, text);
        } else {
            pause_for(t, pause);
        }
        pause = pause * 2 < PAUSE_MAX_NS ? pause * 2 : PAUSE_MAX_NS;
    }
}

void gv_tcp_while_down(struct tcp *t) {
    if (t->link.redial) {
        reconnect(t);
        return;
    }
    char cause[GV_DEATH_TEXT];
    int64_t left = went_down(t, cause) + atomic_load(&t->grace_ns) - gv_now_ns();
    if (left > 0)
        pause_for(t, left < 1000000000 ? left : 1000000000);
    else if (atomic_load(&t->state) == TCP_DOWN)
        too_long(t, cause);
}

/* ---- the rest */

void gv_tcp_set_grace(struct gv_link *link, int64_t grace_ns) { atomic_store(&((struct tcp *)link)->grace_ns, grace_ns); }

bool gv_tcp_down(const struct gv_link *link) { return atomic_load(&((const struct tcp *)link)->state) == TCP_DOWN; }

/* A cut is the end from now on; one that happened already is it now. */
static void no_more_cuts(struct tcp *t, _Atomic bool *which, const char *why) {
    pthread_mutex_lock(&t->state_lock);
    atomic_store(which, true);
    bool down = atomic_load(&t->state) == TCP_DOWN;
    char cause[GV_DEATH_TEXT];
    memcpy(cause, t->cut_why, sizeof cause);
    pthread_mutex_unlock(&t->state_lock);
    if (down) gv_link_kill(&t->link, why ? why : cause);
}

void gv_tcp_last(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    no_more_cuts(t, &t->last, NULL);
}

void gv_tcp_client_gone(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    no_more_cuts(t, &t->client_gone, "the client's program has ended");
}

void gv_tcp_counts(const struct gv_link *link, struct gv_link_counts *counts) {
    const struct tcp *t = (const struct tcp *)link;
    *counts = (struct gv_link_counts){.cuts = atomic_load(&t->cuts),
                                      .resumes = atomic_load(&t->resumes),
                                      .records_resent = atomic_load(&t->records_resent),
                                      .unacked_bytes = atomic_load(&t->n_unacked),
                                      .unacked_peak = atomic_load(&t->unacked_peak),
                                      .bulk_resent = atomic_load(&t->bulk_resent)};
}
