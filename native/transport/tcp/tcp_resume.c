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

/* Keys for the notes of another connection. False: the link is dead of it. */
static bool renew(struct tcp *t, uint32_t epoch) {
    char why[GV_DEATH_TEXT];
    gv_seal_free(t->renewed_out);
    gv_seal_free(t->renewed_in);
    t->renewed_out = gv_seal_new(&t->secret, t->client, true, GV_SEAL_NOTES, 0, epoch, why);
    t->renewed_in = t->renewed_out ? gv_seal_new(&t->secret, t->client, false, GV_SEAL_NOTES, 0, epoch, why) : NULL;
    if (!t->renewed_in) gv_link_kill(&t->link, why);
    return t->renewed_in;
}

/* Puts ours into the stream and takes theirs out of it. 0, or what exchange says. */
static int say_and_hear(struct tcp *t, int fd, const struct tcp_note *ours, struct tcp_note *theirs) {
    int64_t until = gv_now_ns() + EXCHANGE_NS;
    struct gv_framing_out out = {.notes = t->renewed_out};
    struct gv_framing_in in = {.notes = t->renewed_in};
    uint8_t said[NOTE_ROOM], heard[NOTE_ROOM];
    size_t size = gv_framing_note(&out, ours, said);
    if (!size) {
        gv_link_kill(&t->link, "what we have could not be sealed");
        return -1;
    }
    int error = gv_put(fd, said, size, until);
    if (!error) error = gv_get(fd, heard, size, until, NULL);
    if (error || gv_framing_open_note(&in, heard, theirs)) return error;
    gv_spin_lock(&t->receiving);
    t->framing_in.altered[1]++;
    bool dead = gv_tcp_altered(t);
    gv_spin_unlock(&t->receiving);
    return dead ? -1 : EBADMSG;
}

static int exchange(struct gv_link *link, int fd, uint32_t epoch, struct gv_resume_point *peer) {
    struct tcp *t = (struct tcp *)link;
    /* What lies half received, or received and not looked at, comes again. */
    gv_spin_lock(&t->receiving);
    t->end = gv_framing_forget(&t->framing_in, t->at, t->current);
    uint64_t received = atomic_load(&t->received);
    t->framing_in.next_seq = received + 1;
    t->framing_in.comes_again = true;
    gv_spin_unlock(&t->receiving);
    if (t->sealed && !renew(t, epoch)) return -1;
    struct tcp_note ours = {.record = {.size = sizeof ours, .op = GV_RECORD_RESUME, .epoch = epoch, .seq = received},
                            .received = {gv_tcp_bulk_received(&t->bulk)}};
    struct tcp_note theirs;
    int error = say_and_hear(t, fd, &ours, &theirs);
    if (error) return error;
    if (theirs.record.size != sizeof theirs || theirs.record.op != GV_RECORD_RESUME || theirs.record.epoch != epoch) return EPROTO;
    *peer = (struct gv_resume_point){.seq = theirs.record.seq, .bulk = theirs.received.bulk};
    return 0;
}

/* pushing and receiving held. */
static void use_renewed(struct tcp *t) {
    gv_seal_free(t->framing_out.notes);
    gv_seal_free(t->framing_in.notes);
    t->framing_out.notes = t->renewed_out;
    t->framing_in.notes = t->renewed_in;
    t->framing_out.next_note = t->framing_in.next_note = 1; /* behind the RESUME */
    t->renewed_out = t->renewed_in = NULL;
}

static const char *replace(struct gv_link *link, int fd, const struct gv_resume_point *peer) {
    struct tcp *t = (struct tcp *)link;
    gv_tcp_tune(fd);
    gv_set_blocking(fd);
    gv_spin_lock(&t->pushing);
    gv_spin_lock(&t->receiving);
    bool sound = peer->seq >= t->unacked.dropped && gv_unacked_drop(&t->unacked, peer->seq) && gv_tcp_bulk_peer_has(&t->bulk, peer->bulk);
    bool placed = sound && !gv_link_dead(link) && dup3(fd, t->fd, O_CLOEXEC) >= 0;
    if (placed) {
        atomic_fetch_add(&t->records_resent, gv_unacked_rewind(&t->unacked));
#ifdef GV_BREAK_RESUME /* Defined by one test only, which shows that it would notice if nothing were sent again. */
        t->unacked.cursor = t->unacked.piece_end = t->unacked.end;
#endif
        t->note_left = 0;
        if (t->sealed) use_renewed(t);
        atomic_store(&t->peer_seq, peer->seq);
        atomic_store(&t->clogged, true); /* what goes out again is the link's thread's to send */
        gv_resume_up(&t->resume);
    }
    gv_spin_unlock(&t->receiving);
    gv_spin_unlock(&t->pushing);
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
