/* One end of a tcp link: its row, its life, and its own thread, which sends what nobody flushes. Records are sent in tcp_send.c and received in
 * tcp_receive.c; payloads have sockets of their own, tcp_bulk.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "../redial.h"
#include "../seal/seal.h"
#include "../silence.h"
#include "tcp.h"

/* The writer thread naps between two looks at the ring: this short after it found something unsent, twice as long after every look in vain, for it
 * takes a core away from whoever spins. While it naps a sender need not wake it, and what gathers meanwhile goes out in one write. */
#define NAP_MIN_NS 20000
#define NAP_MAX_NS 320000
/* After so many looks at a ring that nobody wrote to it sleeps until it is woken. */
#define NAPS_BEFORE_SLEEP 20
#ifndef TCP_SLEEP_NS /* and looks again after so long at the latest; tests make it long, so that a wake-up that is lost is seen */
#define TCP_SLEEP_NS 1000000000
#endif
/* At the end, this long for what was sent to arrive. */
#define CLOSE_MS 300

/* ---- the link's own thread */

/* Whether the connection was cut, for the case that nobody reads it. Where a cut is the end, what came before it is still read: the reader has until the
 * next look. */
static void look_after(struct tcp *t) {
    gv_spin_lock(&t->receiving);
    struct pollfd p = {.fd = t->fd, .events = POLLRDHUP};
    bool cut = gv_resume_is_up(&t->resume) && poll(&p, 1, 0) > 0 && p.revents;
    if (cut && (t->cut_seen || !gv_resume_final(&t->resume))) gv_resume_cut(&t->resume, "the peer closed the connection", 0);
    t->cut_seen = cut && gv_resume_is_up(&t->resume);
    gv_spin_unlock(&t->receiving);
}

/* Sends what nobody flushes, and makes a connection that was cut again. */
static void *run_writer(void *arg) {
    struct tcp *t = arg;
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    uint64_t seen = 0;
    int64_t nap = NAP_MIN_NS;
    int in_vain = 0;
    struct gv_silence silence = {0};
    while (!atomic_load(&t->resume.stop) && !gv_link_dead(&t->link)) {
        if (!gv_resume_is_up(&t->resume)) {
            gv_resume_while_down(&t->resume);
            silence = (struct gv_silence){0};
            continue;
        }
        if (gv_host_silent(&silence, t->fd)) {
            gv_resume_cut(&t->resume, "", ETIMEDOUT);
            continue;
        }
        uint64_t tail = atomic_load(&t->control->tail);
        enum tcp_pushed pushed = atomic_load(&t->clogged) || atomic_load(&t->control->head) != tail ? gv_tcp_push(t) : TCP_NOTHING_LEFT;
        if (pushed == TCP_SOCKET_FULL) {
            struct pollfd p = {.fd = t->fd, .events = POLLOUT};
            poll(&p, 1, 200);
            continue;
        }
        nap = pushed == TCP_PUSHED_ALL ? NAP_MIN_NS : nap * 2 < NAP_MAX_NS ? nap * 2 : NAP_MAX_NS;
        in_vain = tail == seen ? in_vain + 1 : 0;
        seen = tail;
        if (in_vain < NAPS_BEFORE_SLEEP) {
            struct timespec pause = {.tv_nsec = nap};
            nanosleep(&pause, NULL);
            continue;
        }
        atomic_store(&t->control->reader_sleeps, 1);
        if (atomic_load(&t->control->tail) == seen && !atomic_load(&t->clogged) && !atomic_load(&t->resume.stop) && gv_resume_is_up(&t->resume) &&
            !gv_link_dead(&t->link)) {
            gv_futex_wait(&t->control->reader_sleeps, 1, TCP_SLEEP_NS);
            look_after(t);
        }
        atomic_store(&t->control->reader_sleeps, 0);
        in_vain = 0;
        nap = NAP_MIN_NS;
    }
    return NULL;
}

/* ---- life and death */

static void tcp_died(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    shutdown(t->fd, SHUT_RDWR); /* ends every poll, send and recv on it */
    gv_tcp_bulk_died(&t->bulk);
    gv_wake_sleeper(&t->control->reader_sleeps);
    atomic_store(&t->held_back, atomic_load(&t->held_back) + 2);
    gv_futex_wake(&t->held_back, INT_MAX);
    gv_resume_died(&t->resume);
    gv_tcp_wake(link);
}

static void close_all(struct tcp *t) {
    close(t->fd);
    close(t->wake_fd);
    gv_tcp_bulk_close_sockets(&t->bulk);
}

static void tcp_abandon(struct gv_link *link) { close_all((struct tcp *)link); }

/* Lets the peer have what we sent: closing a socket with unread bytes in it would throw that away. */
static void linger(struct tcp *t) {
    int64_t until = gv_now_ns() + CLOSE_MS * 1000000LL;
    while (gv_tcp_push(t) > TCP_PUSHED_ALL && !gv_link_dead(&t->link) && gv_now_ns() < until) {
        struct pollfd p = {.fd = t->fd, .events = POLLOUT};
        poll(&p, 1, 10);
    }
    shutdown(t->fd, SHUT_WR);
    int unsent = 0;
    while (!gv_link_dead(&t->link) && gv_now_ns() < until && ioctl(t->fd, SIOCOUTQ, &unsent) == 0 && unsent > 0) {
        struct pollfd p = {.fd = t->fd, .events = POLLIN};
        gv_spin_lock(&t->receiving);
        t->at = t->end = 0;
        if (poll(&p, 1, 1) > 0) gv_tcp_fill(t);
        gv_spin_unlock(&t->receiving);
    }
}

static void free_framing(struct tcp *t) {
    struct gv_seal *const seals[] = {t->framing_out.records, t->framing_out.notes, t->framing_in.records,
                                     t->framing_in.notes,    t->renewed_out,       t->renewed_in};
    for (size_t i = 0; i < sizeof seals / sizeof *seals; i++) gv_seal_free(seals[i]);
    explicit_bzero(&t->secret, sizeof t->secret);
}

static void free_tcp(struct tcp *t) {
    free_framing(t);
    gv_unacked_free(&t->unacked);
    gv_tcp_bulk_free(&t->bulk);
    gv_link_fini(&t->link);
    gv_resume_fini(&t->resume);
    free(t->buffer);
    free(t->ring);
    free(t->control);
    free(t);
}

static void tcp_close(struct gv_link *link) {
    struct tcp *t = (struct tcp *)link;
    gv_resume_stop(&t->resume);
    gv_wake_sleeper(&t->control->reader_sleeps);
    pthread_join(t->thread, NULL);
    if (!gv_link_dead(link) && gv_resume_is_up(&t->resume)) linger(t);
    gv_link_kill(link, "closed");
    gv_tcp_bulk_end(&t->bulk);
    close_all(t);
    free_tcp(t);
}

/* ---- what the row calls */

static int tcp_bulk_part(struct gv_link *link, const void *data, uint64_t size, void (*done)(void *arg), void *arg) {
    return gv_tcp_bulk_part(&((struct tcp *)link)->bulk, data, size, done, arg);
}

static bool tcp_bulk_read(struct gv_link *link, void *data, uint64_t size) { return gv_tcp_bulk_read(&((struct tcp *)link)->bulk, data, size); }
static uint64_t tcp_bulk_acked(const struct gv_link *link) { return atomic_load(&((const struct tcp *)link)->bulk.peer_has); }
static void tcp_bulk_whole(struct gv_link *link) { gv_tcp_ack_now((struct tcp *)link); }

static int tcp_resume(struct gv_link *link, int channel, int fd, uint32_t epoch) {
    if (channel < 0) return gv_resume_take(link, fd, epoch);
    if (gv_tcp_bulk_attach(&((struct tcp *)link)->bulk, (uint32_t)channel, fd, epoch) == 0) return 0;
    close(fd);
    return -1;
}

static void tcp_counts(const struct gv_link *link, struct gv_link_counts *counts) {
    const struct tcp *t = (const struct tcp *)link;
    *counts = (struct gv_link_counts){.cuts = atomic_load(&t->resume.cuts),
                                      .resumes = atomic_load(&t->resume.resumes),
                                      .down_ns = (uint64_t)gv_resume_down_ns(link->resume),
                                      .records_resent = atomic_load(&t->records_resent),
                                      .unacked_bytes = atomic_load(&t->n_unacked),
                                      .unacked_peak = atomic_load(&t->unacked_peak),
                                      .altered = atomic_load(&t->altered) + atomic_load(&t->bulk.altered),
                                      .bulk_resent = atomic_load(&t->bulk.resent)};
}

static int tcp_add_channel(struct gv_link *link, int channel, int fd) {
    struct tcp *t = (struct tcp *)link;
    if (channel < 0 || fd < 0) return -1;
    return gv_tcp_bulk_attach(&t->bulk, (uint32_t)channel, fd, 0);
}

static struct gv_link *tcp_connect(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]);
static struct gv_link *tcp_adopt(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]);

const struct gv_transport gv_tcp_transport = {
    .name = "tcp",
    .needs = GV_NEEDS_NETWORK,
    .connections = TCP_CHANNELS_MAX,
    .seals = GV_TCP_SEALS,
    .connect = tcp_connect,
    .adopt = tcp_adopt,
    .redial = gv_redial,
    .admit = gv_tcp_admit,
    .reserve = gv_tcp_reserve,
    .publish = gv_tcp_publish,
    .flush = gv_tcp_flush,
    .next = gv_tcp_next,
    .release = gv_tcp_release,
    .wait = gv_tcp_wait,
    .wake = gv_tcp_wake,
    .bulk_part = tcp_bulk_part,
    .bulk_acked = tcp_bulk_acked,
    .bulk_read = tcp_bulk_read,
    .bulk_whole = tcp_bulk_whole,
    .add_channel = tcp_add_channel,
    .resume = tcp_resume,
    .set_grace = gv_resume_set_grace,
    .last = gv_resume_last,
    .client_gone = gv_resume_client_gone,
    .down = gv_resume_down,
    .counts = tcp_counts,
    .pause = gv_tcp_pause,
    .cut = gv_tcp_cut,
    .save = gv_tcp_save,
    .restore = gv_tcp_restore,
    .died = tcp_died,
    .abandon = tcp_abandon,
    .close = tcp_close,
};

/* False with a reason in `why`, if there is another one than a lack of memory. */
static bool init_framing(struct tcp *t, const struct gv_link_secret *seal, char why[GV_DEATH_TEXT]) {
    t->sealed = seal;
    gv_unacked_init(&t->unacked);
    if (!seal) return true;
    t->secret = *seal;
    gv_unacked_init_frames(&t->unacked, offsetof(struct gv_sealed_head, counter));
    t->framing_in.next_seq = t->framing_in.next_note = t->framing_out.next_seq = t->framing_out.next_note = 1;
    return (t->framing_out.records = gv_seal_new(seal, t->client, true, GV_SEAL_RECORDS, 0, 0, why)) &&
           (t->framing_in.records = gv_seal_new(seal, t->client, false, GV_SEAL_RECORDS, 0, 0, why)) &&
           (t->framing_out.notes = gv_seal_new(seal, t->client, true, GV_SEAL_NOTES, 0, 0, why)) &&
           (t->framing_in.notes = gv_seal_new(seal, t->client, false, GV_SEAL_NOTES, 0, 0, why));
}

struct gv_link *gv_tcp_new(const struct gv_endpoint *endpoint, bool client, char why[GV_DEATH_TEXT]) {
    struct gv_redial_target *redial = endpoint->redial;
    int fd = endpoint->fd;
    struct tcp *t = NULL;
    if (posix_memalign((void **)&t, 128, sizeof *t) != 0) {
        snprintf(why, GV_DEATH_TEXT, "out of memory");
        return NULL;
    }
    memset(t, 0, sizeof *t);
    gv_link_init(&t->link, &gv_tcp_transport);
    t->fd = fd;
    t->makes_way = !client;
    t->client = client;
    t->link.redial = redial;
    gv_resume_init(&t->resume, &t->link, &gv_tcp_resume_ops);
    if (redial) {
        atomic_store(&t->link.rtt_ns, redial->rtt_ns);
        t->link.session = redial->session;
        snprintf(t->link.server, sizeof t->link.server, "%s", redial->address.url);
    }
    t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int error = t->wake_fd < 0 ? errno : 0;
    *why = 0;
    if (!error && !init_framing(t, endpoint->seal, why)) error = ENOTSUP;
    if (!error) error = posix_memalign((void **)&t->control, GV_RING_LINE, sizeof *t->control);
    if (!error) error = posix_memalign(&t->ring, 4096, GV_COMMAND_RING);
    if (!error) error = posix_memalign((void **)&t->buffer, 4096, TCP_BUFFER_SIZE);
    bool opened = false;
    if (!error) {
        memset(t->control, 0, sizeof *t->control);
        gv_ring_writer_init(&t->tx, t->control, t->ring, GV_COMMAND_RING);
        gv_ring_reader_init(&t->unsent, t->control, t->ring, GV_COMMAND_RING);
        gv_tcp_tune(fd);
        opened = true;
        error = gv_tcp_bulk_open(&t->bulk, &t->link, tcp_bulk_whole, redial ? redial->channels : 0, t->sealed ? &t->secret : NULL, client);
        if (!error) error = gv_thread_start(&t->thread, run_writer, t, "gpuvirt-link");
    }
    if (!error) return &t->link;
    if (opened) {
        atomic_store(&t->link.dead, 2);
        gv_tcp_bulk_died(&t->bulk);
        gv_tcp_bulk_end(&t->bulk);
        gv_tcp_bulk_free(&t->bulk);
        if (t->bulk.wake_fd >= 0) close(t->bulk.wake_fd);
    }
    if (t->wake_fd >= 0) close(t->wake_fd);
    if (!*why) snprintf(why, GV_DEATH_TEXT, "it could not be set up: %s", strerror_r(error, (char[100]){0}, 100));
    free_framing(t);
    gv_resume_fini(&t->resume);
    gv_link_fini(&t->link);
    free(t->buffer);
    free(t->ring);
    free(t->control);
    free(t);
    return NULL;
}

static struct gv_link *tcp_connect(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]) {
    if (!endpoint->connections) {
        snprintf(why, GV_DEATH_TEXT, "it offers no bulk channel");
        return NULL;
    }
    return gv_tcp_new(endpoint, true, why);
}

static struct gv_link *tcp_adopt(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]) { return gv_tcp_new(endpoint, false, why); }
