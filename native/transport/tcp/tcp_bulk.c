#define _GNU_SOURCE
#include "tcp_bulk.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "../dial.h"
#include "../link.h"
#include "../redial.h"
#include "../resume.h"

#define TELL_BYTES (1u << 20) /* the peer is told each time so much has come */
#define PIECES 16             /* parts in one frame's write */
#define SMALL 64              /* bytes that a part holds itself */
#define ATTACH_NS 5000000000LL
#define PAUSE_MIN_NS 50000000LL
#define PAUSE_MAX_NS 1000000000LL

/* Bytes of the stream, [start, start + size), by reference. */
struct tcp_part {
    struct tcp_part *next;
    const uint8_t *data;
    uint64_t start, size;
    void (*done)(void *arg);
    void *arg;
    uint8_t own[SMALL];
};

static void wake_sender(struct tcp_bulk *b) {
    if (!atomic_exchange(&b->sleeping, false)) return;
    uint64_t one = 1;
    if (write(b->wake_fd, &one, sizeof one) < 0) return; /* its count is full: it wakes all the same */
}

/* ---- channels that go down and come up */

/* The caller uses the channel: no other connection takes the place of the one that broke before it leaves. lock not held. */
static void cut_channel(struct tcp_bulk *b, struct tcp_channel *c, const char *what, int error) {
    char reason[80], why[160];
    snprintf(why, sizeof why, "%s%s", what, error ? strerror_r(error, reason, sizeof reason) : "");
    if (gv_resume_final(b->link->resume)) {
        gv_link_kill(b->link, why);
        return;
    }
    pthread_mutex_lock(&b->lock);
    if (c->up) {
        c->up = false;
        c->since = gv_now_ns();
        snprintf(c->why, sizeof c->why, "%.99s", why);
        shutdown(c->fd, SHUT_RDWR);
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
}

/* The first byte at or after `position` that goes over this channel. */
static uint64_t first_of(uint64_t position, uint32_t channel, uint32_t n) {
    uint64_t stripe = position / TCP_STRIPE;
    uint32_t ahead = (channel + n - (uint32_t)(stripe % n)) % n;
    return ahead ? (stripe + ahead) * TCP_STRIPE : position;
}

/* Both ends say which byte they want next, and on how many channels. 0, or an errno. */
static int greet(int fd, const struct tcp_frame *ours, struct tcp_frame *theirs) {
    int64_t until = gv_now_ns() + ATTACH_NS;
    int error = gv_put(fd, ours, sizeof *ours, until);
    if (!error) error = gv_get(fd, theirs, sizeof *theirs, until, NULL);
    return error ? error : theirs->magic != TCP_CHANNEL_MAGIC || theirs->size > TCP_CHANNELS_MAX ? EPROTO : 0;
}

/* lock held, nobody uses the channel: the new socket is put in the place of the old one. NULL, or what is wrong. */
static const char *place(struct tcp_bulk *b, uint32_t channel, int fd, uint32_t epoch, const struct tcp_frame *theirs) {
    struct tcp_channel *c = &b->channels[channel];
    if (!b->n) b->n = theirs->size;
    if (!b->n || channel >= b->n || (theirs->size && theirs->size != b->n)) return "malformed: the two ends count their bulk channels differently";
    if (theirs->position > atomic_load(&b->handed_out)) return "malformed: the peer wants payloads that were never sent";
    /* Over other channels it may have got further since it said so. */
    uint64_t kept = b->first ? b->first->start : b->queued, wanted = theirs->position > kept ? theirs->position : kept;
    gv_tcp_tune(fd);
    gv_set_blocking(fd);
    if (c->fd < 0) {
        c->fd = fd;
    } else {
        if (dup3(fd, c->fd, O_CLOEXEC) < 0) return "the new bulk channel could not be used";
        close(fd);
    }
    uint64_t next = first_of(wanted, channel, b->n);
    if (epoch && c->next > next) atomic_fetch_add(&b->resent, c->next - next);
#ifdef GV_BREAK_BULK /* Defined by one test only, which shows that it would notice if a byte of what was lost in a cut were not sent again. */
    next += c->next > next;
#endif
    c->next = next;
    c->at = NULL;
    c->head_left = c->frame_left = c->unread = 0;
    c->epoch = epoch;
    c->up = true;
    return NULL;
}

int gv_tcp_bulk_attach(struct tcp_bulk *b, uint32_t channel, int fd, uint32_t epoch) {
    if (channel >= TCP_CHANNELS_MAX || fd < 0) return -1;
    struct tcp_channel *c = &b->channels[channel];
    pthread_mutex_lock(&b->attaching);
    pthread_mutex_lock(&b->lock);
    bool good = !gv_link_dead(b->link) && (!b->n || channel < b->n) && (c->fd < 0 || epoch > c->epoch);
    if (good && c->up) {
        c->up = false; /* the peer knows before us that it is of no use */
        c->since = gv_now_ns();
        if (c->fd >= 0) shutdown(c->fd, SHUT_RDWR);
    }
    while (good && c->users) pthread_cond_wait(&b->changed, &b->lock);
    struct tcp_frame ours = {TCP_CHANNEL_MAGIC, b->n, atomic_load(&b->received)}, theirs;
    pthread_mutex_unlock(&b->lock);
    int error = good ? greet(fd, &ours, &theirs) : ECANCELED;
    const char *wrong = NULL;
    if (!error) {
        pthread_mutex_lock(&b->lock);
        wrong = place(b, channel, fd, epoch, &theirs);
        pthread_cond_broadcast(&b->changed);
        pthread_mutex_unlock(&b->lock);
        if (!wrong && gv_link_dead(b->link)) shutdown(c->fd, SHUT_RDWR); /* it may have died before it could shut this one down */
        wake_sender(b);
    }
    pthread_mutex_unlock(&b->attaching);
    if (wrong) gv_link_kill(b->link, wrong);
    return error || wrong ? -1 : 0;
}

/* Done with a system call on it. */
static void leave(struct tcp_bulk *b, struct tcp_channel *c) {
    pthread_mutex_lock(&b->lock);
    if (--c->users == 0) pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* ---- the client dials */

static bool closing(struct tcp_bulk *b) { return gv_link_dead(b->link) || atomic_load(&b->link->resume->stop); }

/* A channel that is to be dialled, -1 when the link ends. */
static int channel_down(struct tcp_bulk *b) {
    int found = -1;
    pthread_mutex_lock(&b->lock);
    while (found < 0 && !closing(b)) {
        for (uint32_t i = 0; i < b->n && found < 0; i++)
            if (!b->channels[i].up) found = (int)i;
        if (found < 0) pthread_cond_wait(&b->changed, &b->lock);
    }
    pthread_mutex_unlock(&b->lock);
    return found;
}

static void *dial(void *arg) {
    struct tcp_bulk *b = arg;
    int64_t pause = PAUSE_MIN_NS;
    uint32_t epochs[TCP_CHANNELS_MAX] = {0};
    for (int channel; (channel = channel_down(b)) >= 0;) {
        struct tcp_channel *c = &b->channels[channel];
        char why[400], cause[sizeof c->why], text[GV_DEATH_TEXT];
        int64_t now = gv_now_ns();
        pthread_mutex_lock(&b->lock);
        int64_t since = c->since;
        memcpy(cause, c->why, sizeof cause);
        pthread_mutex_unlock(&b->lock);
        int fd = b->link->transport->redial(b->link->redial, channel, epochs[channel]++, now + ATTACH_NS, why, sizeof why);
        if (fd >= 0 && gv_tcp_bulk_attach(b, (uint32_t)channel, fd, epochs[channel] - 1) == 0) {
            pause = PAUSE_MIN_NS;
            continue;
        }
        if (fd >= 0) close(fd);
        if (fd == GV_REDIAL_FINAL || (fd < 0 && gv_resume_final(b->link->resume)) || gv_now_ns() - since > atomic_load(&b->link->resume->grace_ns)) {
            snprintf(text, sizeof text, "bulk channel: %.36s%s%.140s", cause, *cause ? "; then: " : "", fd < 0 ? why : "the server gave it up");
            gv_link_kill(b->link, text);
            break;
        }
        struct timespec until;
        int64_t end = gv_now_ns() + pause;
        until = (struct timespec){.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
        pthread_mutex_lock(&b->lock);
        while (!closing(b) && gv_now_ns() < end) pthread_cond_timedwait(&b->changed, &b->lock, &until);
        pthread_mutex_unlock(&b->lock);
        pause = pause * 2 < PAUSE_MAX_NS ? pause * 2 : PAUSE_MAX_NS;
    }
    return NULL;
}

/* ---- sending */

int gv_tcp_bulk_part(struct tcp_bulk *b, const void *data, uint64_t size, void (*done)(void *arg), void *arg) {
    struct tcp_part *p = gv_link_dead(b->link) ? NULL : malloc(sizeof *p);
    if (!p) {
        gv_link_kill(b->link, "out of memory");
        if (done) done(arg);
        return -1;
    }
    *p = (struct tcp_part){.data = data, .size = size, .done = done, .arg = arg};
    if (!done) p->data = memcpy(p->own, data, size);
    pthread_mutex_lock(&b->lock);
    if (b->ended) { /* the sending thread has let go of everything, and will not come by again */
        pthread_mutex_unlock(&b->lock);
        free(p);
        if (done) done(arg);
        return -1;
    }
    p->start = b->queued;
    b->queued += size;
    if (b->last)
        b->last->next = p;
    else
        b->first = p;
    b->last = p;
    pthread_mutex_unlock(&b->lock);
    wake_sender(b);
    return 0;
}

/* Lets go of the parts that the peer has, of all once the link is dead. The sending thread's alone: nobody else reads what they refer to. Returns how
 * many channels there are. */
static uint32_t let_go(struct tcp_bulk *b, bool all) {
    pthread_mutex_lock(&b->lock);
    b->ended = all;
    uint64_t has = atomic_load(&b->peer_has);
    struct tcp_part *gone = NULL, **end = &gone;
    while (b->first && (all || b->first->start + b->first->size <= has)) {
        struct tcp_part *p = b->first;
        for (uint32_t i = 0; i < b->n; i++)
            if (b->channels[i].at == p) b->channels[i].at = p->next;
        *end = p;
        end = &p->next;
        b->first = p->next;
    }
    *end = NULL;
    if (!b->first) b->last = NULL;
    uint32_t n = b->n;
    pthread_mutex_unlock(&b->lock);
    while (gone) {
        struct tcp_part *p = gone;
        gone = p->next;
        if (p->done) p->done(p->arg);
        free(p);
    }
    return n;
}

/* The bytes of the stream from `position` on, as pieces; how many. Begins to look where it found the channel's last ones. lock held. */
static int gather(const struct tcp_bulk *b, struct tcp_channel *c, uint64_t position, uint64_t size, struct iovec *pieces, int room) {
    int n = 0;
    struct tcp_part *from = c->at && c->at->start <= position ? c->at : b->first;
    for (struct tcp_part *p = from; p && size && n < room; p = p->next) {
        if (p->start + p->size <= position) continue;
        if (n == 0) c->at = p;
        uint64_t offset = position - p->start, part = p->size - offset;
        if (part > size) part = size;
        pieces[n++] = (struct iovec){(void *)(uintptr_t)(p->data + offset), part};
        position += part;
        size -= part;
    }
    return n;
}

enum { NOTHING, WENT, BLOCKED, DOWN };

/* Sends some of what the channel is to carry next. */
static int send_some(struct tcp_bulk *b, struct tcp_channel *c, uint32_t channel) {
    struct iovec pieces[PIECES + 1];
    pthread_mutex_lock(&b->lock);
    if (!c->up) {
        pthread_mutex_unlock(&b->lock);
        return DOWN;
    }
    if (!c->head_left && !c->frame_left) {
        uint64_t end = (c->next / TCP_STRIPE + 1) * TCP_STRIPE;
        if (end > b->queued) end = b->queued;
        if (c->next >= end) {
            pthread_mutex_unlock(&b->lock);
            return NOTHING;
        }
        c->frame = (struct tcp_frame){TCP_FRAME_MAGIC, (uint32_t)(end - c->next), c->next};
        c->head_left = sizeof c->frame;
        c->frame_left = c->frame.size;
        if (end > atomic_load(&b->handed_out)) atomic_store(&b->handed_out, end);
    }
    pieces[0] = (struct iovec){(uint8_t *)(&c->frame + 1) - c->head_left, c->head_left};
    int n = 1 + gather(b, c, c->next, c->frame_left, pieces + 1, PIECES);
    c->users++;
    atomic_store(&b->reading, c->next);
    pthread_mutex_unlock(&b->lock);

    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)n};
    ssize_t sent = sendmsg(c->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    int error = sent < 0 ? errno : 0;
    atomic_store(&b->reading, UINT64_MAX);

    pthread_mutex_lock(&b->lock);
    if (sent > 0) {
        uint32_t of_head = (uint32_t)sent < c->head_left ? (uint32_t)sent : c->head_left;
        c->head_left -= of_head;
        c->frame_left -= (uint32_t)sent - of_head;
        c->next += (uint64_t)sent - of_head;
        if (!c->head_left && !c->frame_left) c->next = first_of(c->next, channel, b->n);
    }
    pthread_mutex_unlock(&b->lock);
    bool blocked = error == EAGAIN || error == ENOBUFS, cut = error && !blocked && error != EINTR;
    if (cut) cut_channel(b, c, "bulk channel: ", error);
    leave(b, c);
    return cut ? DOWN : blocked ? BLOCKED : WENT;
}

/* Whether a channel on which nobody may be reading just now was cut: its peer waits for what was lost, and would for ever. */
static void look_after(struct tcp_bulk *b, struct tcp_channel *c) {
    pthread_mutex_lock(&b->lock);
    bool up = c->up;
    if (up) c->users++;
    pthread_mutex_unlock(&b->lock);
    if (!up) return;
    struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
    bool cut = poll(&p, 1, 0) > 0 && p.revents;
    if (cut && !gv_resume_final(b->link->resume)) cut_channel(b, c, "the peer closed the bulk channel", 0);
    leave(b, c);
}

static void *send_parts(void *arg) {
    struct tcp_bulk *b = arg;
    while (!gv_link_dead(b->link)) {
        struct pollfd fds[TCP_CHANNELS_MAX + 1] = {{.fd = b->wake_fd, .events = POLLIN}};
        struct tcp_channel *watched[TCP_CHANNELS_MAX + 1];
        nfds_t n = 1;
        bool went = false;
        atomic_store(&b->sleeping, true); /* before it is looked whether there is work: what comes later wakes us */
        uint32_t channels = let_go(b, false);
        for (uint32_t i = 0; i < channels; i++) {
            struct tcp_channel *c = &b->channels[i];
            int outcome = send_some(b, c, i);
            went = went || outcome == WENT;
            /* Where a cut is the end, whoever next sends or receives finds it: until then it would only keep us awake. */
            bool watch = !gv_resume_final(b->link->resume);
            if (outcome == DOWN || (outcome != BLOCKED && !watch)) continue;
            watched[n] = c;
            fds[n++] = (struct pollfd){.fd = c->fd, .events = (short)((outcome == BLOCKED ? POLLOUT : 0) | (watch ? POLLRDHUP : 0))};
        }
        if (went || poll(fds, n, 1000) <= 0) continue;
        if (fds[0].revents) {
            uint64_t count;
            if (read(b->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN) gv_link_kill_errno(b->link, "", errno);
        }
        for (nfds_t i = 1; i < n; i++)
            if (fds[i].revents & ~POLLOUT) look_after(b, watched[i]);
    }
    let_go(b, true);
    return NULL;
}

bool gv_tcp_bulk_peer_has(struct tcp_bulk *b, uint64_t position) {
    if (position <= atomic_load(&b->peer_has)) return true;
    if (position > atomic_load(&b->handed_out)) return false;
    /* What the peer has is its owner's again, and the peer may have it before the call that sent it has returned: that call never waits. */
    while (atomic_load(&b->reading) < position) sched_yield();
    atomic_store(&b->peer_has, position);
    wake_sender(b);
    return true;
}

/* ---- receiving */

uint64_t gv_tcp_bulk_received(struct tcp_bulk *b) { return atomic_load(&b->received); }

/* The channel that the next byte comes over, for one system call. NULL when the link died. */
static struct tcp_channel *enter(struct tcp_bulk *b) {
    struct tcp_channel *c = NULL;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        if (gv_link_dead(b->link)) break;
        if (b->n) {
            c = &b->channels[atomic_load(&b->received) / TCP_STRIPE % b->n];
            if (c->up) break;
        }
        c = NULL;
        pthread_cond_wait(&b->changed, &b->lock);
    }
    if (c) c->users++;
    pthread_mutex_unlock(&b->lock);
    return c;
}

/* Reads all of `size` bytes, or ends early with why: 1 the peer closed, else an errno in *error. */
static size_t receive(int fd, void *into, size_t size, int *error) {
    size_t got = 0;
    *error = 0;
    while (got < size) {
        ssize_t n = recv(fd, (uint8_t *)into + got, size - got, MSG_WAITALL);
        if (n > 0) {
            got += (size_t)n;
        } else if (n == 0) {
            *error = -1;
            break;
        } else if (errno != EINTR) {
            *error = errno;
            break;
        }
    }
    return got;
}

/* The next frame's header. 0, or what receive says; EPROTO: it makes no sense. */
static int read_frame(struct tcp_bulk *b, struct tcp_channel *c) {
    struct tcp_frame frame;
    int error;
    if (receive(c->fd, &frame, sizeof frame, &error) < sizeof frame) return error;
    uint64_t position = atomic_load(&b->received);
    if (frame.magic != TCP_FRAME_MAGIC || frame.position != position || !frame.size || frame.size > TCP_STRIPE - position % TCP_STRIPE) return EPROTO;
    c->unread = frame.size;
    return 0;
}

bool gv_tcp_bulk_read(struct tcp_bulk *b, void *data, uint64_t size) {
    uint8_t *p = data;
    while (size) {
        struct tcp_channel *c = enter(b);
        if (!c) return false;
        int error = c->unread ? 0 : read_frame(b, c);
        if (!error) {
            uint8_t nowhere[16384];
            size_t want = size < c->unread ? size : c->unread;
            if (!p && want > sizeof nowhere) want = sizeof nowhere;
            size_t got = receive(c->fd, p ? p : nowhere, want, &error);
            c->unread -= (uint32_t)got;
            atomic_store(&b->received, atomic_load(&b->received) + got);
            size -= got;
            if (p) p += got;
        }
        if (error == EPROTO)
            gv_link_kill(b->link, "malformed payload on the bulk channel");
        else if (error)
            cut_channel(b, c, error < 0 ? "the peer closed the bulk channel" : "bulk channel: ", error < 0 ? 0 : error);
        leave(b, c);
        uint64_t received = atomic_load(&b->received);
        if (received - b->told >= TELL_BYTES) {
            b->told = received;
            b->came(b->link);
        }
    }
    return true;
}

/* ---- life and death */

int gv_tcp_bulk_open(struct tcp_bulk *b, struct gv_link *link, void (*came)(struct gv_link *link), uint32_t channels) {
    b->link = link;
    b->came = came;
    pthread_mutex_init(&b->lock, NULL);
    pthread_mutex_init(&b->attaching, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&b->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (uint32_t i = 0; i < TCP_CHANNELS_MAX; i++) b->channels[i] = (struct tcp_channel){.fd = -1, .since = gv_now_ns()};
    b->n = channels;
    atomic_store(&b->reading, UINT64_MAX);
    b->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->wake_fd < 0) return errno;
    int error = gv_thread_start(&b->sender, send_parts, b, "gpuvirt-bulk");
    b->has_sender = !error;
    if (!error && b->link->redial) {
        error = gv_thread_start(&b->dialler, dial, b, "gpuvirt-dial");
        b->has_dialler = !error;
    }
    return error;
}

void gv_tcp_bulk_died(struct tcp_bulk *b) {
    pthread_mutex_lock(&b->lock);
    for (uint32_t i = 0; i < TCP_CHANNELS_MAX; i++)
        if (b->channels[i].fd >= 0) shutdown(b->channels[i].fd, SHUT_RDWR);
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    atomic_store(&b->sleeping, true);
    wake_sender(b);
}

void gv_tcp_bulk_end(struct tcp_bulk *b) {
    if (b->has_sender) pthread_join(b->sender, NULL);
    if (b->has_dialler) pthread_join(b->dialler, NULL);
    b->has_sender = b->has_dialler = false;
}

void gv_tcp_bulk_close_sockets(struct tcp_bulk *b) {
    for (uint32_t i = 0; i < TCP_CHANNELS_MAX; i++)
        if (b->channels[i].fd >= 0) close(b->channels[i].fd);
    close(b->wake_fd);
}

void gv_tcp_bulk_free(struct tcp_bulk *b) {
    pthread_mutex_destroy(&b->lock);
    pthread_mutex_destroy(&b->attaching);
    pthread_cond_destroy(&b->changed);
}
