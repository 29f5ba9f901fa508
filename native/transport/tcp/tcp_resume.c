/* What a tcp link does with a connection that takes the place of one that was cut (resume.c): both ends say what they have, and each goes on with what the
 * other lacks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "tcp.h"

/* So long for saying to each other what one has. */
#define EXCHANGE_NS 5000000000LL

static void disconnect(struct gv_link *link) { shutdown(((struct tcp *)link)->fd, SHUT_RDWR); }

static void went_down(struct gv_link *link) { gv_wake_sleeper(&((struct tcp *)link)->control->reader_sleeps); }

static int exchange(struct gv_link *link, int fd, uint32_t epoch, struct gv_resume_point *peer) {
    struct tcp *t = (struct tcp *)link;
    int64_t until = gv_now_ns() + EXCHANGE_NS;
    /* What lies half received, or received and not looked at, comes again. */
    gv_tcp_spin_lock(&t->receiving);
    t->end = t->at + t->current;
    uint64_t received = atomic_load(&t->received);
    gv_tcp_spin_unlock(&t->receiving);
    struct tcp_note ours = {.record = {.size = sizeof ours, .op = GV_RECORD_RESUME, .epoch = epoch, .seq = received},
                            .received = {gv_tcp_bulk_received(&t->bulk)}};
    struct tcp_note theirs;
    int error = gv_put(fd, &ours, sizeof ours, until);
    if (!error) error = gv_get(fd, &theirs, sizeof theirs, until, NULL);
    if (error) return error;
    if (theirs.record.size != sizeof theirs || theirs.record.op != GV_RECORD_RESUME || theirs.record.epoch != epoch) return EPROTO;
    *peer = (struct gv_resume_point){.seq = theirs.record.seq, .bulk = theirs.received.bulk};
    return 0;
}

static const char *replace(struct gv_link *link, int fd, const struct gv_resume_point *peer) {
    struct tcp *t = (struct tcp *)link;
    gv_tcp_tune(fd);
    gv_set_blocking(fd);
    gv_tcp_spin_lock(&t->pushing);
    gv_tcp_spin_lock(&t->receiving);
    bool sound = peer->seq >= t->unacked.dropped && gv_unacked_drop(&t->unacked, peer->seq) && gv_tcp_bulk_peer_has(&t->bulk, peer->bulk);
    bool placed = sound && !gv_link_dead(link) && dup3(fd, t->fd, O_CLOEXEC) >= 0;
    if (placed) {
        atomic_fetch_add(&t->records_resent, gv_unacked_rewind(&t->unacked));
#ifdef GV_BREAK_RESUME /* Defined by one test only, which shows that it would notice if nothing were sent again. */
        t->unacked.cursor = t->unacked.piece_end = t->unacked.end;
#endif
        t->note_left = 0;
        atomic_store(&t->peer_seq, peer->seq);
        atomic_store(&t->clogged, true); /* what goes out again is the link's thread's to send */
        gv_resume_up(&t->resume);
    }
    gv_tcp_spin_unlock(&t->receiving);
    gv_tcp_spin_unlock(&t->pushing);
    if (!sound) return "malformed: the peer lacks what it had acknowledged, or has what was never sent";
    return placed ? NULL : "the new connection could not be used";
}

static void came_up(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    gv_tcp_push(t);
    gv_tcp_wake(link);
    gv_wake_sleeper(&t->control->reader_sleeps);
}

const struct gv_resume_ops gv_tcp_resume_ops = {disconnect, went_down, exchange, replace, came_up};
