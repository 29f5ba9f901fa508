/* How the two ends of a verbs link connect their queues, at the beginning and after each cut: over a TCP connection they tell each other where their memory
 * lies, what their queues are called, and what has come and was read; then each goes on with what the other lacks.
 *
 *     client -> worker   struct verbs_hello, with the rails that it has
 *     worker -> client   struct verbs_hello, with those of them that it has too
 *     each -> other      a word: my queues take what comes
 *     each -> other      over every queue, an empty write
 *     each -> other      a word: the rails over which it came
 *
 * and again, with the rails that are left, until all of these work. A rail that does not is left out for a while. Where none is left, what a session has begun
 * goes on over the TCP connection (verbs_fallback.c). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "verbs.h"

/* Until a queue's first write has come, and for each thing that is said; tests make them long. */
#ifndef VERBS_HELLO_NS
#define VERBS_HELLO_NS 4000000000ll
#endif
#define EXCHANGE_NS (VERBS_HELLO_NS + 4000000000ll)

/* ---- the queues */

static void lock_all(struct verbs *v) {
    gv_spin_lock(&v->queue.posting);
    gv_spin_lock(&v->queue.polling);
    gv_spin_lock(&v->bulk_posting);
    gv_spin_lock(&v->bulk_polling);
    for (uint32_t i = 0; i < GV_VERBS_RAILS_MAX; i++) gv_spin_lock(&v->bulk[i].posting);
    gv_spin_lock(&v->carrier.sending);
}

static void unlock_all(struct verbs *v) {
    gv_spin_unlock(&v->carrier.sending);
    for (uint32_t i = 0; i < GV_VERBS_RAILS_MAX; i++) gv_spin_unlock(&v->bulk[i].posting);
    gv_spin_unlock(&v->bulk_polling);
    gv_spin_unlock(&v->bulk_posting);
    gv_spin_unlock(&v->queue.polling);
    gv_spin_unlock(&v->queue.posting);
}

void gv_verbs_close_queues(struct verbs *v) {
    lock_all(v);
    gv_verbs_queue_stop(&v->queue);
    for (uint32_t i = 0; i < v->n_queues; i++) gv_verbs_queue_stop(&v->bulk[i]);
    /* What came before they stopped has come, whether somebody looked or not. */
    gv_verbs_take_in(v);
    gv_verbs_poll_bulk_locked(v);
    gv_verbs_queue_close(&v->queue);
    for (uint32_t i = 0; i < v->n_queues; i++) gv_verbs_queue_close(&v->bulk[i]);
    atomic_store(&v->over_tcp, false);
    gv_verbs_carrier_reset(v);
    v->n_queues = v->n_early = 0; /* what came behind a gap comes again with it */
    atomic_fetch_add(&v->queue_generation, 1);
    unlock_all(v);
}

static void set_up(struct verbs *v, struct verbs_queue *q, uint32_t rail, uint32_t number, struct ibv_comp_channel *channel) {
    q->library = v->library;
    q->rail = &v->rails[rail];
    q->pd = v->pd[rail];
    q->channel = channel;
    q->note = &v->in->notes[number];
    q->note_out = v->out->notes[number];
    q->out_key = v->out_mr[rail]->lkey;
    q->pulled = &v->pulled;
}

/* A queue for payloads on a rail, and for records if it is the first. number: what client and worker both call it, its place among the client's. All locks held. */
static bool open_on(struct verbs *v, uint32_t rail, uint32_t number, char why[GV_DEATH_TEXT]) {
    struct verbs_queue *q = &v->bulk[v->n_queues];
    v->numbers[v->n_queues] = (uint8_t)number;
    set_up(v, q, rail, 1 + v->n_queues, v->bulk_channel[rail]);
    if (!gv_verbs_queue_open(q, why)) return false;
    if (!v->n_queues) {
        atomic_store(&v->lead, rail);
        set_up(v, &v->queue, rail, 0, v->channel[rail]);
        if (!gv_verbs_queue_open(&v->queue, why)) {
            gv_verbs_queue_close(q);
            return false;
        }
    }
    v->n_queues++;
    return true;
}

/* Those of ours that are not left out just now. */
static uint32_t rails_to_try(const struct verbs *v) {
    int64_t now = gv_now_ns();
    uint32_t rails = 0;
    for (uint32_t i = 0; i < v->n_rails; i++)
        if (v->left_out_until[i] <= now) rails |= 1u << i;
    return rails;
}

/* The client's: on the rails of these numbers, as far as that can be. A link that is dead opens none: whoever saw it die has closed them, or is about to (let_go,
 * gv_verbs_pull), and from then on no device may touch what was lent. All that a connection does with the queues afterwards finds under a lock whether they are still
 * open. */
static void open_queues(struct verbs *v, uint32_t rails, char why[GV_DEATH_TEXT]) {
    lock_all(v);
    for (uint32_t i = 0; i < v->n_rails && !gv_link_dead(&v->link); i++)
        if (rails & 1u << i && !open_on(v, i, i, why)) v->left_out_until[i] = gv_now_ns() + VERBS_LEFT_OUT_NS;
    unlock_all(v);
}

/* The worker's: for each of the client's rails one of its own that reaches it. */
static void open_queues_for(struct verbs *v, const struct verbs_hello *theirs, char why[GV_DEATH_TEXT]) {
    uint32_t taken = 0, left_out = ~rails_to_try(v);
    lock_all(v);
    for (uint32_t i = 0; i < theirs->n && !gv_link_dead(&v->link); i++) {
        const struct verbs_peer_rail *peer = &theirs->rails[i];
        uint32_t rail = gv_verbs_rail_for(v->rails, v->n_rails, taken | left_out, peer->link_layer, peer->gids);
        if (rail == GV_VERBS_RAILS_MAX) rail = gv_verbs_rail_for(v->rails, v->n_rails, taken, peer->link_layer, peer->gids);
        if (rail == GV_VERBS_RAILS_MAX)
            snprintf(why, GV_DEATH_TEXT, "no RDMA port of the server is in the network of the client's");
        else if (peer->number < GV_VERBS_RAILS_MAX && open_on(v, rail, peer->number, why))
            taken |= 1u << rail;
    }
    unlock_all(v);
}

static uint32_t rails_in_use(const struct verbs *v) {
    uint32_t rails = 0;
    for (uint32_t i = 0; i < v->n_queues; i++) rails |= 1u << v->numbers[i];
    return rails;
}

/* ---- what is said */

static struct verbs_hello our_hello(struct verbs *v, uint32_t epoch) {
    lock_all(v);
    struct verbs_hello h = {.record = {.size = sizeof h, .op = GV_RECORD_RESUME, .epoch = epoch, .seq = atomic_load(&v->received)},
                            .inbox = (uintptr_t)v->in,
                            .arrived = v->arrived,
                            .read = atomic_load(&v->in_control->head),
                            .bulk_arrived = v->bulk_arrived,
                            .bulk_read = atomic_load(&v->bulk_in_control->head),
                            .pulled = atomic_load(&v->pulled),
                            .n = v->n_queues};
    if (h.n) h.records = gv_verbs_queue_self(&v->queue);
    for (uint32_t i = 0; i < v->n_queues; i++) {
        const struct verbs_rail *r = v->bulk[i].rail;
        h.rails[i] = (struct verbs_peer_rail){.lid = r->lid,
                                              .mtu = r->mtu,
                                              .index = (uint8_t)(r - v->rails),
                                              .key = v->in_mr[r - v->rails]->rkey,
                                              .reads = r->reads_in,
                                              .link_layer = r->link_layer,
                                              .number = v->numbers[i]};
        for (uint32_t k = 0; k < (v->client ? r->n_gids : 1); k++)
            memcpy(h.rails[i].gids[k], r->gids[v->client ? k : r->gid].gid.raw, sizeof h.rails[i].gids[k]);
        h.payloads[i] = gv_verbs_queue_self(&v->bulk[i]);
    }
    unlock_all(v);
    return h;
}

static bool within(uint64_t position, uint64_t from, uint64_t to) { return position - from <= to - from; }

/* Whether the peer can be where it says. */
static bool sound(const struct verbs *v, const struct verbs_hello *theirs) {
    uint64_t head = atomic_load(&v->out_control->head), tail = atomic_load(&v->out_control->tail),
             bulk_head = atomic_load(&v->bulk_out_control->head), bulk_tail = atomic_load(&v->bulk_out_control->tail);
    return within(theirs->arrived, head, tail) && within(theirs->read, head, theirs->arrived) && theirs->arrived % 8 == 0 &&
           within(theirs->bulk_arrived, bulk_head, bulk_tail) && within(theirs->bulk_read, bulk_head, theirs->bulk_arrived);
}

static void meet(struct verbs_queue *q, const struct verbs_hello *theirs, uint32_t number, uint32_t key) {
    q->remote_key = key;
    q->note_address = theirs->inbox + offsetof(struct verbs_inbox, notes) + number * sizeof(struct verbs_note);
}

/* Connects them with the peer's; a queue that this fails for is broken. */
static void connect_queues(struct verbs *v, const struct verbs_hello *theirs) {
    lock_all(v);
    if (v->n_queues) {
        meet(&v->queue, theirs, 0, theirs->rails[0].key);
        atomic_store(&v->queue.note->read, theirs->read);
        gv_verbs_queue_connect(&v->queue, &theirs->rails[0], &theirs->records);
    }
    for (uint32_t i = 0; i < v->n_queues; i++) {
        struct verbs_queue *q = &v->bulk[i];
        meet(q, theirs, 1 + i, theirs->rails[i].key);
        atomic_store(&q->note->read, theirs->bulk_read);
        gv_verbs_queue_connect(q, &theirs->rails[i], &theirs->payloads[i]);
    }
    v->peer_records = theirs->inbox + offsetof(struct verbs_inbox, records);
    v->peer_payloads = theirs->inbox + offsetof(struct verbs_inbox, payloads);
    unlock_all(v);
}

static void say_hello(struct verbs_queue *q) {
    struct verbs_write hello = {.to = q->note_address, .tells = true, .news = verbs_news(VERBS_HELLO, 0)};
    gv_spin_lock(&q->posting);
    if (q->qp && !gv_verbs_queue_broken(q)) gv_verbs_queue_post(q, &hello, 1, false, 0);
    gv_spin_unlock(&q->posting);
}

/* Ours has come, and theirs. */
static bool works(struct verbs_queue *q) {
    gv_spin_lock(&q->posting);
    bool gone = q->qp && gv_verbs_queue_idle(q) && !gv_verbs_queue_broken(q);
    gv_spin_unlock(&q->posting);
    return gone && atomic_load(&q->hello);
}

/* The peer has given up. */
static bool hung_up(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static bool comes_to_work(struct verbs *v, int fd, struct verbs_queue *q, int64_t until, char why[GV_DEATH_TEXT]) {
    while (!works(q) && !gv_verbs_queue_broken(q) && gv_now_ns() < until && !gv_link_dead(&v->link) && !hung_up(fd)) {
        lock_all(v);
        gv_verbs_take_in(v);
        gv_verbs_poll_bulk_locked(v);
        unlock_all(v);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    if (works(q)) return true;
    if (gv_verbs_queue_broken(q))
        snprintf(why, GV_DEATH_TEXT, "%s", q->why);
    else
        snprintf(why, GV_DEATH_TEXT, "nothing passes over the RDMA device %.60s", q->rail->name);
    return false;
}

/* The rails that work, by their numbers. */
static uint32_t rails_that_work(struct verbs *v, int fd, char why[GV_DEATH_TEXT]) {
    int64_t until = gv_now_ns() + VERBS_HELLO_NS;
    uint32_t rails = 0;
    if (v->n_queues) say_hello(&v->queue);
    for (uint32_t i = 0; i < v->n_queues; i++) say_hello(&v->bulk[i]);
    for (uint32_t i = 0; i < v->n_queues; i++)
        if (comes_to_work(v, fd, &v->bulk[i], until, why) && (i || comes_to_work(v, fd, &v->queue, until, why))) rails |= 1u << v->numbers[i];
    return rails;
}

/* A word each way. 0 or an errno. */
static int swap_words(int fd, uint32_t ours, uint32_t *theirs) {
    int64_t until = gv_now_ns() + EXCHANGE_NS;
    int error = gv_put(fd, &ours, sizeof ours, until);
    return error ? error : gv_get(fd, theirs, sizeof *theirs, until, NULL);
}

/* Both say what they have. 0; an errno; -1: the peer cannot be what it was. */
static int swap_hellos(struct verbs *v, int fd, uint32_t epoch, uint32_t rails, struct verbs_hello *theirs, uint32_t *of_theirs,
                       char why[GV_DEATH_TEXT]) {
    int64_t until = gv_now_ns() + EXCHANGE_NS;
    struct verbs_hello ours;
    int error = 0;
    gv_verbs_close_queues(v);
    if (v->client) {
        open_queues(v, rails, why);
        ours = our_hello(v, epoch);
        error = gv_put(fd, &ours, sizeof ours, until);
    }
    if (!error) error = gv_get(fd, theirs, sizeof *theirs, until, NULL);
    if (error) return error;
    if (theirs->record.size != sizeof *theirs || theirs->record.op != GV_RECORD_RESUME || theirs->record.epoch != epoch ||
        theirs->n > GV_VERBS_RAILS_MAX)
        return EPROTO;
    if (!sound(v, theirs)) return -1;
    *of_theirs = 0;
    for (uint32_t i = 0; i < theirs->n; i++) *of_theirs |= 1u << theirs->rails[i].number % 32;
    if (v->client) return 0;
    open_queues_for(v, theirs, why);
    ours = our_hello(v, epoch);
    return gv_put(fd, &ours, sizeof ours, until);
}

/* In rounds: with fewer rails each time, until those that are left have been found to work at both ends. */
static int meet_peer(struct verbs *v, int fd, uint32_t epoch, struct verbs_hello *theirs, char why[GV_DEATH_TEXT]) {
    uint32_t of_theirs, working, rails = rails_to_try(v);
    for (uint32_t round = 0; round <= 2 * GV_VERBS_RAILS_MAX; round++) {
        if (gv_link_dead(&v->link)) return ECONNABORTED;
        int error = swap_hellos(v, fd, epoch, rails, theirs, &of_theirs, why);
        if (error) return error;
        rails = rails_in_use(v) & of_theirs;
        if (rails_in_use(v) != of_theirs) continue; /* one of the two could not use them all */
        connect_queues(v, theirs);
        error = swap_words(fd, rails, &of_theirs); /* nothing is sent before the peer's queues take it */
        if (error) return error;
        uint32_t ours = rails_that_work(v, fd, why);
        error = swap_words(fd, ours, &working);
        if (error) return error;
        working &= ours;
        if (working == rails) {
            v->rails_again_at = gv_now_ns() + VERBS_LEFT_OUT_NS;
            atomic_store(&v->over_tcp, !rails);
            return !rails && !epoch ? EHOSTUNREACH : 0; /* a link over no rail at all is for those that have seen better days */
        }
        for (uint32_t i = 0; i < v->n_queues; i++)
            if (rails & ~working & 1u << v->numbers[i]) v->left_out_until[v->bulk[i].rail - v->rails] = gv_now_ns() + VERBS_LEFT_OUT_NS;
        rails = working;
    }
    return EPROTO;
}

static uint64_t records_between(const struct verbs *v, uint64_t from, uint64_t to) {
    uint64_t n = 0;
    while (from < to) {
        struct gv_record head;
        memcpy(&head, v->out->records + (from & (VERBS_RECORD_RING - 1)), 8); /* a pad is no more */
        if (head.size < 8) break;                                             /* the peer said that a part of a record came: its harm, not ours */
        n += head.op != GV_RING_PAD;
        from += head.size;
    }
    return n;
}

/* The peer has all records up to `arrived`, and all bytes of payloads up to bulk_arrived: the rest goes out again. */
static void go_on(struct verbs *v, const struct verbs_hello *theirs) {
    lock_all(v);
    uint64_t bulk_before = atomic_load(&v->bulk_handed_over);
    atomic_fetch_add(&v->records_resent, records_between(v, theirs->arrived, atomic_load(&v->handed_over)));
    if (bulk_before > theirs->bulk_arrived) atomic_fetch_add(&v->bulk_resent, bulk_before - theirs->bulk_arrived);
    atomic_store(&v->handed_over, theirs->arrived);
    gv_verbs_peer_has_read(v->out_control, theirs->read);
    atomic_store(&v->bulk_handed_over, theirs->bulk_arrived);
    gv_verbs_peer_has_read(v->bulk_out_control, theirs->bulk_read);
    gv_verbs_loans_said(v, theirs->pulled);
#ifdef GV_BREAK_RESUME /* Defined by one test only, which shows that it would notice if nothing were sent again. */
    atomic_store(&v->handed_over, atomic_load(&v->out_control->tail));
#endif
    unlock_all(v);
}

/* ---- the first connection */

bool gv_verbs_begin(struct verbs *v, char why[GV_DEATH_TEXT]) {
    struct verbs_hello theirs;
    *why = 0;
    int error = meet_peer(v, v->fd, 0, &theirs, why);
    if (error == EHOSTUNREACH && !*why) snprintf(why, GV_DEATH_TEXT, "none of this host's RDMA ports meets one of the server's");
    if (error && !*why) snprintf(why, GV_DEATH_TEXT, "%s", error < 0 ? "the peer makes no sense" : strerror(error));
    if (error) return false;
    go_on(v, &theirs);
    return true;
}

/* ---- another connection takes the place of the one that was cut */

static void disconnect(struct gv_link *link) {
    struct verbs *v = (struct verbs *)link;
    shutdown(v->fd, SHUT_RDWR);
    lock_all(v);
    gv_verbs_queue_stop(&v->queue);
    for (uint32_t i = 0; i < v->n_queues; i++) gv_verbs_queue_stop(&v->bulk[i]);
    unlock_all(v);
}

static void went_down(struct gv_link *link) { gv_verbs_wake_all((struct verbs *)link); }

static int exchange(struct gv_link *link, int fd, uint32_t epoch, struct gv_resume_point *peer) {
    struct verbs *v = (struct verbs *)link;
    char why[GV_DEATH_TEXT] = "";
    int error = meet_peer(v, fd, epoch, &v->theirs, why);
    if (error < 0) gv_link_kill(link, "malformed: the peer lacks what it had, or has what was never sent");
    if (error) return error;
    *peer = (struct gv_resume_point){.seq = v->theirs.record.seq, .bulk = v->theirs.bulk_arrived};
    return 0;
}

static const char *replace(struct gv_link *link, int fd, const struct gv_resume_point *peer) {
    struct verbs *v = (struct verbs *)link;
    (void)peer;
    gv_tcp_tune(fd);
    gv_set_blocking(fd);
    if (gv_link_dead(link) || dup3(fd, v->fd, O_CLOEXEC) < 0) return "the new connection could not be used";
    go_on(v, &v->theirs);
    atomic_store(&v->connected, true);
    gv_resume_up(&v->resume);
    return NULL;
}

static void came_up(struct gv_link *link) {
    struct verbs *v = (struct verbs *)link;
    gv_verbs_push(v);
    gv_verbs_push_bulk(v);
    gv_verbs_loans_settle(v);
    gv_verbs_wake_all(v);
}

const struct gv_resume_ops gv_verbs_resume_ops = {disconnect, went_down, exchange, replace, came_up};
