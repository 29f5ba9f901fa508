/* Bulk channels that go down and come up: both ends greet each other on a new connection, and the client's end dials. */
#define _GNU_SOURCE
#include "tcp_channels.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../dial.h"
#include "../link.h"
#include "../redial.h"
#include "../resume.h"
#include "../seal/seal.h"
#include "framing.h"

#define ATTACH_NS 5000000000LL
#define PAUSE_MIN_NS 50000000LL
#define PAUSE_MAX_NS 1000000000LL

void gv_tcp_wake_sender(struct tcp_bulk *b) {
    if (!atomic_exchange(&b->sleeping, false)) return;
    uint64_t one = 1;
    if (write(b->wake_fd, &one, sizeof one) < 0) return; /* its count is full: it wakes all the same */
}

void gv_tcp_channel_cut(struct tcp_bulk *b, struct tcp_channel *c, const char *what, int error) {
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

uint64_t gv_tcp_first_of(uint64_t position, uint32_t channel, uint32_t n) {
    uint64_t stripe = position / TCP_STRIPE;
    uint32_t ahead = (channel + n - (uint32_t)(stripe % n)) % n;
    return ahead ? (stripe + ahead) * TCP_STRIPE : position;
}

bool gv_tcp_channel_altered(struct tcp_bulk *b, struct tcp_channel *c) {
    atomic_fetch_add(&b->altered, 1);
    if (atomic_fetch_add(&c->altered, 1) + 1 < GV_ALTERED_MOST) return false;
    gv_link_kill(b->link, "frames were altered on their way, again and again: find out what lies between the client and the server");
    return true;
}

/* ---- keys */

void gv_tcp_keys_free(struct tcp_keys *keys) {
    gv_seal_free(keys->out);
    gv_seal_free(keys->in);
    *keys = (struct tcp_keys){0};
}

/* False: the link is dead of it. */
static bool make_keys(struct tcp_bulk *b, uint32_t channel, uint32_t epoch, struct tcp_keys *keys) {
    char why[GV_DEATH_TEXT];
    *keys = (struct tcp_keys){0};
    if (!b->secret) return true;
#ifdef GV_BREAK_BULK_NONCE /* a test's fault: nonces come again with the next connection */
    epoch = 0;
#endif
    keys->out = gv_seal_new(b->secret, b->client, true, GV_SEAL_BULK, channel, epoch, why);
    if (keys->out) keys->in = gv_seal_new(b->secret, b->client, false, GV_SEAL_BULK, channel, epoch, why);
    if (keys->in) return true;
    gv_tcp_keys_free(keys);
    gv_link_kill(b->link, why);
    return false;
}

/* ---- a new connection */

/* Both ends say which byte they want next, and on how many channels. 0, or an errno; EBADMSG: what the peer said was altered on its way. */
static int greet(int fd, struct tcp_keys *keys, const struct tcp_frame *ours, struct tcp_frame *theirs) {
    struct {
        struct tcp_frame frame;
        uint8_t tag[GV_SEAL_TAG];
    } said = {.frame = *ours}, heard;
    size_t size = keys->out ? sizeof said : sizeof said.frame;
    int64_t until = gv_now_ns() + ATTACH_NS;
    if (keys->out && !gv_seal_seal(keys->out, keys->next_out++, &said.frame, sizeof said.frame, NULL, 0, NULL, said.tag)) return EIO;
    int error = gv_put(fd, &said, size, until);
    if (!error) error = gv_get(fd, &heard, size, until, NULL);
    if (error) return error;
    if (keys->in && !gv_seal_open(keys->in, keys->next_in++, &heard.frame, sizeof heard.frame, heard.tag, 0, heard.tag, heard.tag)) return EBADMSG;
    *theirs = heard.frame;
    return theirs->magic != TCP_CHANNEL_MAGIC || theirs->size > TCP_CHANNELS_MAX ? EPROTO : 0;
}

/* lock held, nobody uses the channel: the new socket is put in the place of the old one. NULL, or what is wrong. */
static const char *place(struct tcp_bulk *b, uint32_t channel, int fd, uint32_t epoch, struct tcp_keys *keys, const struct tcp_frame *theirs) {
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
    uint64_t next = gv_tcp_first_of(wanted, channel, b->n);
    if (epoch && c->next > next) atomic_fetch_add(&b->resent, c->next - next);
#ifdef GV_BREAK_BULK /* Defined by one test only, which shows that it would notice if a byte of what was lost in a cut were not sent again. */
    next += c->next > next;
#endif
    c->next = next;
    c->at = NULL;
    c->head_left = c->frame_left = c->sealed_left = c->unread = 0;
    c->silence = (struct gv_silence){0};
    gv_tcp_keys_free(&c->keys);
    c->keys = *keys;
    *keys = (struct tcp_keys){0};
    c->epoch = epoch;
    c->up = true;
    return NULL;
}

int gv_tcp_bulk_attach(struct tcp_bulk *b, uint32_t channel, int fd, uint32_t epoch) {
    if (channel >= TCP_CHANNELS_MAX || fd < 0) return -1;
    struct tcp_channel *c = &b->channels[channel];
    pthread_mutex_lock(&b->attaching);
    pthread_mutex_lock(&b->lock);
    bool good =
        !gv_link_dead(b->link) && !atomic_load(&b->link->held) && (!b->n || channel < b->n) && (c->fd < 0 || epoch > c->epoch) && epoch >= c->fresh;
    if (good) c->fresh = epoch + 1; /* what is said under an epoch's key is said once */
    if (good && c->up) {
        c->up = false; /* the peer knows before us that it is of no use */
        c->since = gv_now_ns();
        if (c->fd >= 0) shutdown(c->fd, SHUT_RDWR);
    }
    while (good && c->users) pthread_cond_wait(&b->changed, &b->lock);
    struct tcp_frame ours = {TCP_CHANNEL_MAGIC, b->n, atomic_load(&b->received)}, theirs;
    pthread_mutex_unlock(&b->lock);
    struct tcp_keys keys = {0};
    int error = good && make_keys(b, channel, epoch, &keys) ? greet(fd, &keys, &ours, &theirs) : ECANCELED;
    if (error == EBADMSG) gv_tcp_channel_altered(b, c);
    const char *wrong = NULL;
    if (!error) {
        pthread_mutex_lock(&b->lock);
        wrong = place(b, channel, fd, epoch, &keys, &theirs);
        pthread_cond_broadcast(&b->changed);
        pthread_mutex_unlock(&b->lock);
        if (!wrong && gv_link_dead(b->link)) shutdown(c->fd, SHUT_RDWR); /* it may have died before it could shut this one down */
        gv_tcp_wake_sender(b);
    }
    gv_tcp_keys_free(&keys);
    pthread_mutex_unlock(&b->attaching);
    if (wrong) gv_link_kill(b->link, wrong);
    return error || wrong ? -1 : 0;
}

void gv_tcp_channel_leave(struct tcp_bulk *b, struct tcp_channel *c) {
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

void *gv_tcp_dial_channels(void *arg) {
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
        bool final = fd == GV_REDIAL_FINAL || (fd < 0 && gv_resume_final(b->link->resume));
        if (final || gv_now_ns() - since > atomic_load(&b->link->resume->grace_ns)) {
            snprintf(text, sizeof text, "bulk channel: %.36s%s%.140s", cause, *cause ? "; then: " : "", fd < 0 ? why : "the server gave it up");
            if (final)
                gv_link_kill(b->link, text);
            else
                gv_resume_too_long(b->link->resume, text);
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
