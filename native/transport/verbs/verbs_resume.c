/* How the two ends of a verbs link connect their queues, at the beginning and after each cut: over a TCP connection they tell each other where their memory
 * lies, what their queues are called, and what has come and was read; then each goes on with what the other lacks.
 *
 *     client -> worker   struct verbs_hello
 *     worker -> client   struct verbs_hello: as many rails as both have
 *     each -> other      a byte: my queues take what comes
 *     each -> other      over every queue, an empty write: it works
 *
 * A rail over which nothing comes is left out at the next attempt. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "verbs.h"

#define EXCHANGE_NS 5000000000ll /* for saying to each other what one has */
#define HELLO_NS 2000000000ll    /* until a queue's first write has come */

static void wake(int fd) {
    uint64_t one = 1;
    if (write(fd, &one, sizeof one) < 0) return; /* its count is full: it wakes all the same */
}

void gv_verbs_wake_all(struct verbs *v) {
    wake(v->wake_fd);
    wake(v->bulk_wake_fd);
    wake(v->kick_fd);
    gv_wake_sleeper(&v->out_control->writer_sleeps);
    gv_wake_sleeper(&v->bulk_out_control->writer_sleeps);
}

void gv_verbs_broke(struct verbs *v, const struct verbs_queue *q) {
    if (gv_resume_is_up(&v->resume)) gv_resume_cut(&v->resume, q->why, 0);
}

/* ---- the queues */

static void lock_all(struct verbs *v) {
    gv_verbs_spin_lock(&v->queue.posting);
    gv_verbs_spin_lock(&v->queue.polling);
    gv_verbs_spin_lock(&v->bulk_posting);
    gv_verbs_spin_lock(&v->bulk_polling);
    for (uint32_t i = 0; i < GV_VERBS_RAILS_MAX; i++) gv_verbs_spin_lock(&v->bulk[i].posting);
}

static void unlock_all(struct verbs *v) {
    for (uint32_t i = 0; i < GV_VERBS_RAILS_MAX; i++) gv_verbs_spin_unlock(&v->bulk[i].posting);
    gv_verbs_spin_unlock(&v->bulk_polling);
    gv_verbs_spin_unlock(&v->bulk_posting);
    gv_verbs_spin_unlock(&v->queue.polling);
    gv_verbs_spin_unlock(&v->queue.posting);
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
    v->n_queues = v->n_early = 0; /* what came behind a gap comes again with it */
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
}

/* One for records, and one for payloads on each of the rails that are not left out. False with `why`. */
static bool open_queues(struct verbs *v, uint32_t most, char why[GV_DEATH_TEXT]) {
    bool good = true;
    int64_t now = gv_now_ns();
    snprintf(why, GV_DEATH_TEXT, "no rail works");
    lock_all(v);
    for (uint32_t i = 0; i < v->n_rails && v->n_queues < most && good; i++) {
        if (v->left_out_until[i] > now) continue;
        if (!v->n_queues) {
            atomic_store(&v->lead, i);
            set_up(v, &v->queue, i, 0, v->channel[i]);
            good = gv_verbs_queue_open(&v->queue, why);
        }
        struct verbs_queue *q = &v->bulk[v->n_queues];
        set_up(v, q, i, 1 + v->n_queues, v->bulk_channel[i]);
        good = good && gv_verbs_queue_open(q, why);
        if (good) v->n_queues++;
    }
    unlock_all(v);
    return good && v->n_queues;
}

static void leave_out(struct verbs *v, const struct verbs_queue *q) { v->left_out_until[q->rail - v->rails] = gv_now_ns() + VERBS_LEFT_OUT_NS; }

/* ---- what is said */

static struct verbs_hello our_hello(const struct verbs *v, uint32_t epoch) {
    struct verbs_hello h = {.record = {.size = sizeof h, .op = GV_RECORD_RESUME, .epoch = epoch, .seq = atomic_load(&v->received)},
                            .inbox = (uintptr_t)v->in,
                            .arrived = v->arrived,
                            .read = atomic_load(&v->in_control->head),
                            .bulk_arrived = v->bulk_arrived,
                            .bulk_read = atomic_load(&v->bulk_in_control->head),
                            .n = v->n_queues,
                            .records = gv_verbs_queue_self(&v->queue)};
    for (uint32_t i = 0; i < v->n_queues; i++) {
        const struct verbs_rail *r = v->bulk[i].rail;
        h.rails[i] = (struct verbs_peer_rail){.lid = r->lid, .mtu = r->mtu, .link_layer = r->link_layer, .key = v->in_mr[r - v->rails]->rkey};
        memcpy(h.rails[i].gid, r->gid.raw, sizeof h.rails[i].gid);
        h.payloads[i] = gv_verbs_queue_self(&v->bulk[i]);
    }
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

/* Connects them with the peer's. False with `why`. */
static bool connect_queues(struct verbs *v, const struct verbs_hello *theirs, char why[GV_DEATH_TEXT]) {
    lock_all(v);
    meet(&v->queue, theirs, 0, theirs->rails[0].key);
    bool good = gv_verbs_queue_connect(&v->queue, &theirs->rails[0], &theirs->records, why);
    atomic_store(&v->queue.note->read, theirs->read);
    if (!good) leave_out(v, &v->queue);
    for (uint32_t i = 0; i < v->n_queues && good; i++) {
        struct verbs_queue *q = &v->bulk[i];
        meet(q, theirs, 1 + i, theirs->rails[i].key);
        atomic_store(&q->note->read, theirs->bulk_read);
        good = gv_verbs_queue_connect(q, &theirs->rails[i], &theirs->payloads[i], why);
        if (!good) leave_out(v, q);
    }
    v->peer_records = theirs->inbox + offsetof(struct verbs_inbox, records);
    v->peer_payloads = theirs->inbox + offsetof(struct verbs_inbox, payloads);
    unlock_all(v);
    return good;
}

static void say_hello(struct verbs_queue *q) {
    gv_verbs_spin_lock(&q->posting);
    gv_verbs_queue_post(q, &(struct verbs_write){.to = q->note_address, .tells = true, .news = verbs_news(VERBS_HELLO, 0)}, 1, false, 0);
    gv_verbs_spin_unlock(&q->posting);
}

/* Ours has come, and theirs. */
static bool works(struct verbs_queue *q) {
    gv_verbs_spin_lock(&q->posting);
    bool gone = gv_verbs_queue_idle(q) && !gv_verbs_queue_broken(q);
    gv_verbs_spin_unlock(&q->posting);
    return gone && atomic_load(&q->hello);
}

static bool all_work(struct verbs *v, char why[GV_DEATH_TEXT]) {
    struct verbs_queue *queues[VERBS_QUEUES] = {&v->queue};
    for (uint32_t i = 0; i < v->n_queues; i++) queues[1 + i] = &v->bulk[i];
    for (uint32_t i = 0; i <= v->n_queues; i++) say_hello(queues[i]);
    int64_t until = gv_now_ns() + HELLO_NS;
    for (uint32_t i = 0; i <= v->n_queues; i++) {
        while (!works(queues[i]) && !gv_verbs_queue_broken(queues[i]) && gv_now_ns() < until && !gv_link_dead(&v->link)) {
            lock_all(v);
            gv_verbs_take_in(v);
            gv_verbs_poll_bulk_locked(v);
            unlock_all(v);
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        }
        if (works(queues[i])) continue;
        leave_out(v, queues[i]);
        snprintf(why, GV_DEATH_TEXT, "nothing passes over the RDMA device %.60s%s%.80s", queues[i]->rail->name,
                 gv_verbs_queue_broken(queues[i]) ? ": " : "", gv_verbs_queue_broken(queues[i]) ? queues[i]->why : "");
        return false;
    }
    return true;
}

/* 0; an errno, with `why` where the network did not say it; -1: the peer cannot be what it was. */
static int meet_peer(struct verbs *v, int fd, uint32_t epoch, struct verbs_hello *theirs, char why[GV_DEATH_TEXT]) {
    int64_t until = gv_now_ns() + EXCHANGE_NS;
    uint8_t ready = 1;
    gv_verbs_close_queues(v);
    if (v->client && !open_queues(v, v->rails_wanted, why)) return ENODEV;
    struct verbs_hello ours = {0};
    if (v->client) ours = our_hello(v, epoch);
    int error = v->client ? gv_put(fd, &ours, sizeof ours, until) : 0;
    if (!error) error = gv_get(fd, theirs, sizeof *theirs, until, NULL);
    if (error) return error;
    if (theirs->record.size != sizeof *theirs || theirs->record.op != GV_RECORD_RESUME || theirs->record.epoch != epoch || !theirs->n ||
        theirs->n > GV_VERBS_RAILS_MAX)
        return EPROTO;
    if (!sound(v, theirs)) return -1;
    if (!v->client) {
        if (!open_queues(v, theirs->n < v->rails_wanted ? theirs->n : v->rails_wanted, why)) return ENODEV;
        ours = our_hello(v, epoch);
        error = gv_put(fd, &ours, sizeof ours, until);
        if (error) return error;
    }
    lock_all(v);
    for (; v->n_queues > theirs->n; v->n_queues--) gv_verbs_queue_close(&v->bulk[v->n_queues - 1]);
    unlock_all(v);
    if (!connect_queues(v, theirs, why)) return EHOSTUNREACH;
    error = gv_put(fd, &ready, 1, until);
    if (!error) error = gv_get(fd, &ready, 1, until, NULL);
    if (error) return error;
    return all_work(v, why) ? 0 : EHOSTUNREACH;
}

static uint64_t records_between(const struct verbs *v, uint64_t from, uint64_t to) {
    uint64_t n = 0;
    while (from < to) {
        struct gv_record head;
        memcpy(&head, v->out->records + (from & (VERBS_RECORD_RING - 1)), 8); /* a pad is no more */
        n += head.op != GV_RING_PAD;
        from += head.size;
    }
    return n;
}

/* The peer may be up already, and have told more since. */
static void raise_head(_Atomic uint64_t *head, uint64_t read) {
    if (read > atomic_load(head)) atomic_store(head, read);
}

/* The peer has all records up to `arrived`, and all bytes of payloads up to bulk_arrived: the rest goes out again. */
static void go_on(struct verbs *v, const struct verbs_hello *theirs) {
    lock_all(v);
    uint64_t bulk_before = atomic_load(&v->bulk_handed_over);
    atomic_fetch_add(&v->records_resent, records_between(v, theirs->arrived, atomic_load(&v->handed_over)));
    if (bulk_before > theirs->bulk_arrived) atomic_fetch_add(&v->bulk_resent, bulk_before - theirs->bulk_arrived);
    atomic_store(&v->handed_over, theirs->arrived);
    raise_head(&v->out_control->head, theirs->read);
    atomic_store(&v->bulk_handed_over, theirs->bulk_arrived);
    raise_head(&v->bulk_out_control->head, theirs->bulk_read);
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
    gv_resume_up(&v->resume);
    return NULL;
}

static void came_up(struct gv_link *link) {
    struct verbs *v = (struct verbs *)link;
    gv_verbs_push(v);
    gv_verbs_push_bulk(v);
    gv_verbs_wake_all(v);
}

const struct gv_resume_ops gv_verbs_resume_ops = {disconnect, went_down, exchange, replace, came_up};
