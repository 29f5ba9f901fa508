/* A session whose rails all failed goes on over the TCP connection that connects its queues: the same bytes of the same rings, in frames. Slower, and until a
 * rail works again. What is lent, which no device reads now, the borrower asks for. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "verbs.h"

#define PIECE (64u << 10) /* bytes of payloads in one frame at most; of records it has as many as there are, for it ends behind a whole one */

/* ---- sending */

static bool is_due(const struct verbs *v) {
    const struct verbs_carrier *c = &v->carrier;
    return atomic_load(&v->in_control->head) - atomic_load(&c->told_read) >= VERBS_RECORD_RING / 8 ||
           atomic_load(&v->bulk_in_control->head) - atomic_load(&c->told_bulk_read) >= VERBS_BULK_RING / 8 ||
           atomic_load(&v->pulled) != atomic_load(&c->told_pulled);
}

bool gv_verbs_carrier_owes(const struct verbs *v) { return atomic_load(&v->over_tcp) && is_due(v); }

static void begin(struct verbs *v, struct verbs_frame frame, const uint8_t *body) {
    struct verbs_carrier *c = &v->carrier;
    frame.read = atomic_load(&v->in_control->head);
    frame.bulk_read = atomic_load(&v->bulk_in_control->head);
    frame.pulled = atomic_load(&v->pulled);
    c->out = frame;
    c->out_head_left = sizeof frame;
    c->out_body = body;
    c->out_left = frame.size;
    atomic_store(&c->told_read, frame.read);
    atomic_store(&c->told_bulk_read, frame.bulk_read);
    atomic_store(&c->told_pulled, frame.pulled);
}

/* Some of a ring's bytes that are to go next, in one piece. */
static bool begin_with(struct verbs *v, enum verbs_frame_kind kind, const uint8_t *ring, uint64_t size, uint64_t tail,
                       _Atomic uint64_t *handed_over) {
    uint64_t from = atomic_load(handed_over), offset = from & (size - 1), n = tail - from;
    if (!n) return false;
    if (n > size - offset) n = size - offset;
    if (kind == VERBS_OF_PAYLOADS && n > PIECE) n = PIECE;
    begin(v, (struct verbs_frame){.kind = kind, .size = (uint32_t)n, .start = from}, ring + offset);
    atomic_store(handed_over, from + n);
    return true;
}

/* Where this process finds bytes that are lent. NULL: nowhere. sending held. */
static const uint8_t *reachable(struct verbs *v, const uint8_t *at, uint32_t size) {
    struct verbs_carrier *c = &v->carrier;
    struct verbs_region *region = gv_verbs_memory_of_device(&v->memory, at, size);
    if (!region) return at;
    if (!c->lent_piece) c->lent_piece = malloc(PIECE);
    bool good = c->lent_piece && gv_verbs_memory_move(region, at, c->lent_piece, size, false);
    gv_verbs_memory_used(&v->memory, region);
    c->lent_lost = !good;
    return good ? c->lent_piece : NULL;
}

/* A question, or the next bytes of an answer. */
static bool begin_of_loans(struct verbs *v) {
    struct verbs_carrier *c = &v->carrier;
    if (c->ask_length) {
        begin(v, (struct verbs_frame){.kind = VERBS_ASKS, .start = c->ask_at, .length = c->ask_length}, NULL);
        c->ask_length = 0;
        return true;
    }
    uint32_t n = c->lent_left < PIECE ? (uint32_t)c->lent_left : PIECE;
    const uint8_t *from = n ? reachable(v, c->lent_at, n) : NULL;
    if (!from) return false;
    begin(v, (struct verbs_frame){.kind = VERBS_OF_A_LOAN, .size = n, .start = (uintptr_t)c->lent_at}, from);
    c->lent_at += n;
    c->lent_left -= n;
    return true;
}

/* Records before payloads. sending held. False: there is nothing to send. */
static bool next_frame(struct verbs *v) {
    const struct verbs_carrier *c = &v->carrier;
    if (c->out_head_left || c->out_left) return true;
    if (begin_with(v, VERBS_OF_RECORDS, v->out->records, VERBS_RECORD_RING, atomic_load(&v->out_control->tail), &v->handed_over)) return true;
    if (begin_with(v, VERBS_OF_PAYLOADS, v->out->payloads, VERBS_BULK_RING, atomic_load(&v->bulk_out_control->tail), &v->bulk_handed_over))
        return true;
    if (begin_of_loans(v)) return true;
    if (!is_due(v)) return false;
    begin(v, (struct verbs_frame){.size = 0}, NULL);
    return true;
}

enum verbs_pushed gv_verbs_carry_out(struct verbs *v) {
    struct verbs_carrier *c = &v->carrier;
    enum verbs_pushed result = VERBS_NOTHING_LEFT;
    if (!gv_spin_try(&c->sending)) return VERBS_BUSY;
    int error = 0;
    while (gv_resume_is_up(&v->resume) && atomic_load(&v->over_tcp) && next_frame(v)) {
        struct iovec parts[2] = {{(uint8_t *)(&c->out + 1) - c->out_head_left, c->out_head_left}, {(void *)(uintptr_t)c->out_body, c->out_left}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t n = sendmsg(v->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        error = n < 0 ? errno : 0;
        if (error == EINTR) continue;
        if (error) break;
        uint32_t sent = (uint32_t)n, of_head = sent < c->out_head_left ? sent : c->out_head_left;
        c->out_head_left -= of_head;
        c->out_body += sent - of_head;
        c->out_left -= sent - of_head;
        result = VERBS_PUSHED;
    }
    bool lost = c->lent_lost;
    gv_spin_unlock(&c->sending);
    if (lost) gv_link_kill(&v->link, GV_VERBS_NO_MOVE);
    if (error == EAGAIN || error == ENOBUFS) return VERBS_NO_ROOM;
    if (error) gv_resume_cut(&v->resume, "", error);
    return result;
}

void gv_verbs_carrier_ask(struct verbs *v, uint32_t generation, uint64_t from, uint8_t *to, uint64_t size) {
    struct verbs_carrier *c = &v->carrier;
    gv_spin_lock(&v->bulk_polling);
    gv_spin_lock(&c->sending);
    bool usable = generation == atomic_load(&v->queue_generation);
    c->pull_to = to;
    c->pull_from = c->ask_at = from;
    c->pull_left = c->ask_length = usable ? size : 0;
    c->pull_came = 0;
    gv_spin_unlock(&c->sending);
    gv_spin_unlock(&v->bulk_polling);
}

/* ---- receiving */

/* Where the frame's bytes belong. NULL: it is none. */
static uint8_t *place(struct verbs *v, const struct verbs_frame *f) {
    struct verbs_carrier *c = &v->carrier;
    if (f->kind == VERBS_OF_A_LOAN) return f->start == c->pull_from && f->size <= c->pull_left ? c->pull_to : NULL;
    bool of_payloads = f->kind == VERBS_OF_PAYLOADS;
    uint64_t size = of_payloads ? VERBS_BULK_RING : VERBS_RECORD_RING, next = of_payloads ? v->bulk_arrived : v->arrived;
    uint64_t read = atomic_load(of_payloads ? &v->bulk_in_control->head : &v->in_control->head), offset = f->start & (size - 1);
    if (f->kind > VERBS_OF_PAYLOADS || f->start != next || f->size > size - offset || f->start + f->size - read > size) return NULL;
    return (of_payloads ? v->in->payloads : v->in->records) + offset;
}

/* The peer wants to have bytes that are lent to it. */
static void take_question(struct verbs *v, const struct verbs_frame *f) {
    struct verbs_carrier *c = &v->carrier;
    const uint8_t *at = (const uint8_t *)(uintptr_t)f->start;
    if (f->size || !gv_verbs_is_lent(v, at, f->length)) {
        gv_link_kill(&v->link, "malformed frame: the peer asks for what it was not lent");
        return;
    }
    gv_spin_lock(&c->sending);
    c->lent_at = at;
    c->lent_left = f->length;
    gv_spin_unlock(&c->sending);
    gv_verbs_kick(v);
}

/* What the peer has read or fetched so far is its owner's to write again, once whoever sent the last of it is back from sendmsg. */
static void take_back(struct verbs *v, const struct verbs_frame *f) {
    bool some = f->read != atomic_load(&v->out_control->head) || f->bulk_read != atomic_load(&v->bulk_out_control->head) ||
                f->pulled > atomic_load(&v->loans.pulled);
    if (!some) return;
    gv_spin_lock(&v->carrier.sending);
    gv_spin_unlock(&v->carrier.sending);
    gv_verbs_peer_has_read(v->out_control, f->read);
    gv_verbs_peer_has_read(v->bulk_out_control, f->bulk_read);
    gv_verbs_loans_said(v, f->pulled);
}

/* A whole frame is there. */
static void take(struct verbs *v, const struct verbs_frame *f) {
    struct verbs_carrier *c = &v->carrier;
    take_back(v, f);
    if (f->kind == VERBS_ASKS) take_question(v, f);
    if (!f->size || f->kind == VERBS_ASKS) return;
    if (f->kind == VERBS_OF_A_LOAN) {
        c->pull_to += f->size;
        c->pull_from += f->size;
        c->pull_left -= f->size;
        c->pull_came += f->size;
        gv_verbs_wake_reader(&v->bulk_in_control->reader_sleeps, v->bulk_wake_fd);
        return;
    }
    bool of_payloads = f->kind == VERBS_OF_PAYLOADS;
    uint64_t *arrived = of_payloads ? &v->bulk_arrived : &v->arrived;
    *arrived += f->size;
    atomic_store(of_payloads ? &v->bulk_in_control->tail : &v->in_control->tail, *arrived);
    if (of_payloads)
        gv_verbs_wake_reader(&v->bulk_in_control->reader_sleeps, v->bulk_wake_fd);
    else
        gv_verbs_wake_reader(&v->in_control->reader_sleeps, v->wake_fd);
}

/* queue.polling and bulk_polling held. */
static enum verbs_carried carry_in(struct verbs *v) {
    struct verbs_carrier *c = &v->carrier;
    enum verbs_carried result = VERBS_CAME_NOTHING;
    while (gv_resume_is_up(&v->resume) && atomic_load(&v->over_tcp) && !gv_link_dead(&v->link)) {
        bool head = c->in_head < sizeof c->in;
        void *at = head ? (uint8_t *)&c->in + c->in_head : c->in_at;
        ssize_t n = head || c->in_left ? recv(v->fd, at, head ? sizeof c->in - c->in_head : c->in_left, MSG_DONTWAIT) : 0;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return result;
        if (n <= 0 && (head || c->in_left)) return VERBS_CAME_TO_AN_END;
        result = VERBS_CAME_SOME;
        if (head) {
            c->in_head += (uint32_t)n;
            if (c->in_head < sizeof c->in) continue;
            c->in_left = c->in.size;
            c->in_at = place(v, &c->in);
            if (!c->in_at && c->in.size) gv_link_kill(&v->link, "malformed frame: bytes that were not to come");
        } else {
            c->in_at += n;
            c->in_left -= (uint32_t)n;
        }
        if (c->in_left || gv_link_dead(&v->link)) continue;
        take(v, &c->in);
        c->in_head = 0;
    }
    return result;
}

enum verbs_carried gv_verbs_carry_in(struct verbs *v) {
    if (!gv_spin_try(&v->queue.polling)) return VERBS_CAME_NOTHING;
    gv_spin_lock(&v->bulk_polling);
    enum verbs_carried result = carry_in(v);
    gv_spin_unlock(&v->bulk_polling);
    gv_spin_unlock(&v->queue.polling);
    gv_verbs_loans_settle(v);
    return result;
}

bool gv_verbs_carrier_idle(struct verbs *v) {
    struct verbs_carrier *c = &v->carrier;
    gv_spin_lock(&c->sending);
    bool idle = !c->out_head_left && !c->out_left;
    gv_spin_unlock(&c->sending);
    return idle;
}

void gv_verbs_carrier_reset(struct verbs *v) {
    struct verbs_carrier *c = &v->carrier;
    c->out_head_left = c->out_left = c->in_head = c->in_left = 0;
    c->ask_length = c->lent_left = c->pull_left = 0;
    atomic_store(&c->told_pulled, UINT64_MAX); /* it may not know */
    atomic_store(&c->told_read, atomic_load(&v->in_control->head));
    atomic_store(&c->told_bulk_read, atomic_load(&v->bulk_in_control->head));
}
