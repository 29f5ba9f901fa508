/* Payloads: one thread receives them into the memory that commands have named, another sends those that copies have produced.
 *
 * The reader never waits for the device: a payload that arrives before its command goes to staging memory, up to WORKER_MAX_EARLY bytes. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "../wire/clock.h"
#include "../wire/image_stream.h"
#include "state.h"

#define COMMAND_NS 100000         /* ns that the reader polls for the command of a payload that has arrived */
#define PARTS_PATIENCE 1000000000 /* ns to wait at the end of the session until the link has released all parts */

/* ---- in: what commands expect, and what came before them --------------------------------------------------------------- */

void worker_piece_drop(struct worker *w, struct worker_piece *p) {
    staging_give_either(&w->staging, p->data, p->size, p->heap);
    free(p);
    worker_room_again(w);
}

static void *block_of(struct worker_expected *e, uint64_t size) {
    if (!e->data && size <= WORKER_MAX_IMAGE) { /* only the payload knows its size */
        e->data = malloc(size ? size : 1);
        e->size = size;
    }
    return e->size == size ? e->data : NULL;
}

/* Copies the pieces of an early payload into one block. No lock is needed: the caller owns the pieces. */
static bool gather(struct worker *w, struct worker_early *early, struct worker_expected *e) {
    char *data = e->discard ? NULL : block_of(e, early->size);
    for (struct worker_piece *p; (p = early->first);) {
        early->first = p->next;
        if (data) memcpy(data + p->at, p->data, p->size);
        worker_piece_drop(w, p);
    }
    return data || e->discard;
}

/* lock held. */
static void arrive(struct worker *w, struct worker_expected *e, bool failed) {
    if (e->discard) {
        w->n_discards--;
        free(e);
        return;
    }
    e->failed = failed;
    e->arrived = true;
    pthread_cond_broadcast(&w->changed);
}

static void wrong_payload(struct worker *w) { gv_link_kill(w->link, "a payload is not the one that its command announced, or too large"); }

static void early_free(struct worker *w, struct worker_early *early) {
    for (struct worker_piece *p; (p = early->first);) {
        early->first = p->next;
        staging_give_either(&w->staging, p->data, p->size, p->heap);
        free(p);
    }
    free(early);
}

/* lock held. */
static void early_unlist(struct worker *w, struct worker_early *early) {
    struct worker_early **at = &w->early_first, *last = NULL;
    for (; *at != early; at = &(*at)->next) last = *at;
    *at = early->next;
    w->n_early--;
    if (w->early_last == early) w->early_last = last;
    atomic_store(&w->early_bytes, atomic_load(&w->early_bytes) - early->staged);
}

/* The command of a payload that has arrived or is arriving. lock held. False: the two do not match. */
static bool claim(struct worker *w, struct worker_early *early, struct worker_expected *e) {
    early_unlist(w, early);
    bool right = early->number == e->number && (!e->to || e->to->size == early->size);
    if (right && e->to) e->to->claim(e->to, early);
    if (!early->whole) {
        early->claimed = e; /* the reader continues with it */
        return right;
    }
    if (right && !e->to) {
        pthread_mutex_unlock(&w->lock);
        right = gather(w, early, e);
        pthread_mutex_lock(&w->lock);
    }
    arrive(w, e, !right);
    early_free(w, early);
    return right;
}

/* The link is never killed with the lock held: it then releases its parts, and their `done` takes the lock. */
void worker_expect_it(struct worker *w, struct worker_expected *e) {
    bool right = true, late = e->number & GV_BULK_LATE;
    pthread_mutex_lock(&w->lock);
    struct worker_early *early = w->early_first;
    while (early && (late ? early->number != e->number : early->number & GV_BULK_LATE)) early = early->next;
    if (early) {
        right = claim(w, early, e);
    } else if (late) {
        e->next = w->late;
        w->late = e;
    } else {
        if (w->expected_last)
            w->expected_last->next = e;
        else
            w->expected_first = e;
        w->expected_last = e;
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (!right) wrong_payload(w);
}

void worker_expect(struct worker *w, struct worker_expected *e, uint64_t number, void *data, uint64_t size) {
    *e = (struct worker_expected){.number = number, .size = size, .data = data};
    worker_expect_it(w, e);
}

int worker_bytes_take(struct worker *w, uint64_t number, const void *inline_data, uint64_t inline_size, struct worker_bytes *out) {
    *out = (struct worker_bytes){inline_data, inline_size, NULL};
    if (!number) return 0;
    if (number & GV_BULK_LATE) return -1; /* late are only bytes that a copy's stream waits for */
    struct worker_expected e;
    worker_expect(w, &e, number, NULL, 0);
    bool good = worker_await_payload(w, &e);
    *out = (struct worker_bytes){e.data, e.size, e.data};
    if (good) return 0;
    free(e.data);
    return -1;
}

int worker_discard_payload(struct worker *w, uint64_t number) {
    if (!number) return 0;
    pthread_mutex_lock(&w->lock);
    bool room = w->n_discards < WORKER_MAX_DISCARDS;
    if (room) w->n_discards++;
    pthread_mutex_unlock(&w->lock);
    struct worker_expected *e = room ? malloc(sizeof *e) : NULL;
    if (!e) return -1;
    *e = (struct worker_expected){.number = number, .discard = true};
    worker_expect_it(w, e);
    return 0;
}

static bool take_late(struct worker_expected **at, const struct worker_expected *e) {
    while (*at && *at != e) at = &(*at)->next;
    if (!*at) return false;
    *at = e->next;
    return true;
}

bool worker_withdraw(struct worker *w, struct worker_expected *e) {
    if (e->number & GV_BULK_LATE) return take_late(&w->late, e);
    struct worker_expected **at = &w->expected_first, *last = NULL;
    while (*at && *at != e) {
        last = *at;
        at = &(*at)->next;
    }
    if (!*at) return false;
    *at = e->next;
    if (w->expected_last == e) w->expected_last = last;
    return true;
}

bool worker_wait_payload(struct worker *w, struct worker_expected *e) {
    pthread_mutex_lock(&w->lock);
    /* When the session ends while the reader is filling e->data, the dead link makes it stop soon. */
    while (!e->arrived && !(atomic_load(&w->stopping) && worker_withdraw(w, e))) pthread_cond_wait(&w->changed, &w->lock);
    bool good = e->arrived && !e->failed;
    pthread_mutex_unlock(&w->lock);
    return good;
}

bool worker_await_payload(struct worker *w, struct worker_expected *e) {
    pthread_mutex_lock(&w->lock);
    w->awaited = e;
    if (w->reader_waits) pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    bool good = worker_wait_payload(w, e);
    pthread_mutex_lock(&w->lock);
    w->awaited = NULL;
    pthread_mutex_unlock(&w->lock);
    return good;
}

/* ---- the reader -------------------------------------------------------------------------------------------------------- */

/* The key under which a payload is expected: its number, or the tag of a late one. */
static uint64_t name_of(const struct gv_bulk_header *header) { return header->tag & GV_BULK_LATE ? header->tag : header->number; }

static struct worker_expected *take_expected(struct worker *w, const struct gv_bulk_header *header) {
    if (header->tag & GV_BULK_LATE) {
        struct worker_expected *late = w->late;
        while (late && late->number != header->tag) late = late->next;
        if (late) take_late(&w->late, late);
        return late;
    }
    struct worker_expected *e = w->expected_first;
    if (e) {
        w->expected_first = e->next;
        if (!e->next) w->expected_last = NULL;
    }
    return e;
}

/* A reader that waited now would deadlock: the executor waits for a later payload, and only its next commands would make room for the one that is being
 * read. The client library sends no payloads in such an order. lock held. */
static bool would_deadlock(const struct worker *w) { return w->awaited && !w->awaited->arrived; }

/* Whether the bounds of what comes early end nothing: the session ends, or is paused, which the one payload that is under way must not hold up. */
static bool unbounded(const struct worker *w) { return atomic_load(&w->stopping) || atomic_load(&w->paused); }

/* The expectation of the next payload. lock held; released for a moment when there is none, because its command may be next on the link, and for as
 * long as there are WORKER_MAX_EARLY_PAYLOADS without commands: each costs memory, however small it is. */
static struct worker_expected *look_for_command(struct worker *w, const struct gv_bulk_header *header) {
    struct worker_expected *e = take_expected(w, header);
    if (e || atomic_load(&w->stopping)) return e;
    struct timespec until = gv_deadline(CLOCK_REALTIME, COMMAND_NS);
    pthread_cond_timedwait(&w->changed, &w->lock, &until);
    w->reader_waits = true;
    while (!(e = take_expected(w, header)) && w->n_early >= WORKER_MAX_EARLY_PAYLOADS && !unbounded(w) && !would_deadlock(w))
        pthread_cond_wait(&w->changed, &w->lock);
    w->reader_waits = false;
    return e;
}

static struct worker_early *early_new(struct worker *w, uint64_t size, uint64_t number) {
    struct worker_early *early = calloc(1, sizeof *early);
    if (!early) return NULL;
    early->number = number;
    early->size = size;
    w->n_early++;
    if (w->early_last)
        w->early_last->next = early;
    else
        w->early_first = early;
    w->early_last = early;
    return early;
}

/* The next piece of an early payload, in staging memory or, as the driver must not be asked for more by this thread, on the heap, and in *n its size; 0 and NULL: no memory. lock held. */
static void *add_piece(struct worker *w, struct worker_early *early, uint64_t at, uint64_t *n) {
    *n = early->size - at < WORKER_PIECE ? early->size - at : WORKER_PIECE;
    struct worker_piece *p = malloc(sizeof *p);
    bool heap = false;
    void *data = p ? staging_take_at_hand(&w->staging, *n, &heap) : NULL;
    if (!data) {
        free(p);
        *n = 0;
        return NULL;
    }
    *p = (struct worker_piece){.at = at, .size = *n, .data = data, .heap = heap};
    if (early->last)
        early->last->next = p;
    else
        early->first = p;
    early->last = p;
    early->staged += *n;
    atomic_store(&w->early_bytes, atomic_load(&w->early_bytes) + *n);
    return data;
}

/* Room for the next bytes of an early payload; lock held, released while there are WORKER_MAX_EARLY bytes of early payloads. NULL: its command has
 * arrived meanwhile, the session ends, or it would deadlock. */
static void *early_place(struct worker *w, struct worker_early *early, uint64_t at, uint64_t *n) {
    w->reader_waits = true;
    while (!early->claimed && !unbounded(w) && atomic_load(&w->early_bytes) >= WORKER_MAX_EARLY && !would_deadlock(w))
        pthread_cond_wait(&w->changed, &w->lock);
    w->reader_waits = false;
    if (early->claimed || atomic_load(&w->stopping) || (!unbounded(w) && atomic_load(&w->early_bytes) >= WORKER_MAX_EARLY)) return NULL;
    return add_piece(w, early, at, n);
}

/* Destination of the bytes from `at` on; *n: their number. lock held. NULL with *n 0: there is no memory; NULL with *n set: the bytes are discarded. */
static void *place(struct worker_expected *e, uint64_t at, uint64_t size, uint64_t *n) {
    *n = size - at;
    if (e->discard) return NULL;
    if (e->to) return e->to->place(e->to, at, n);
    char *data = block_of(e, size);
    if (!data) *n = 0;
    return data ? data + at : NULL;
}

/* The command of an early payload has arrived while the payload was being received: continues at the command's destination. lock held, released
 * meanwhile. */
static struct worker_expected *go_over(struct worker *w, struct worker_early *early, uint64_t at, bool *good) {
    struct worker_expected *e = early->claimed;
    *good = early->number == e->number && (!e->to || e->to->size == early->size);
    if (*good && e->to) {
        e->to->received(e->to, at);
    } else if (*good) {
        pthread_mutex_unlock(&w->lock);
        *good = gather(w, early, e);
        pthread_mutex_lock(&w->lock);
    }
    early_free(w, early);
    return e;
}

/* Receives one payload; false: the link is dead or the payload is invalid. */
static bool receive(struct worker *w, const struct gv_bulk_header *header) {
    struct worker_early *early = NULL;
    uint64_t at = 0;
    bool good = true;
    pthread_mutex_lock(&w->lock);
    struct worker_expected *e = look_for_command(w, header);
    if (e) good = e->number == name_of(header) && (!e->to || e->to->size == header->size);
    if (!e)
        good = !atomic_load(&w->stopping) && (unbounded(w) || w->n_early < WORKER_MAX_EARLY_PAYLOADS) &&
               (early = early_new(w, header->size, name_of(header)));
    while (good) {
        if (early && early->claimed) {
            e = go_over(w, early, at, &good);
            early = NULL;
            continue;
        }
        if (at == header->size) break;
        uint64_t n = 0;
        void *data = e ? place(e, at, header->size, &n) : early_place(w, early, at, &n);
        if (!n) {
            good = early && early->claimed;
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        good = gv_bulk_recv(w->link, data, n) == 0;
        pthread_mutex_lock(&w->lock);
        if (!good) break;
        at += n;
        if (early) early->received = at;
        if (e && e->to) e->to->received(e->to, at);
    }
    if (good) atomic_store(&w->bulk_received, header->number);
    if (good && e && !e->discard && !e->to && !block_of(e, header->size)) good = false; /* an empty one */
    if (early && good) {
        early->whole = true;
    } else if (early) { /* its bytes will never arrive, and the reader ends, also if the command should still arrive */
        e = early->claimed;
        if (!e) early_unlist(w, early);
        early_free(w, early);
    }
    if (e) arrive(w, e, !good);
    pthread_mutex_unlock(&w->lock);
    if (!good) wrong_payload(w); /* unless the link is dead for another reason */
    return good;
}

/* Waits for the next payload to begin. While the session is paused none does. False: the link is dead. */
static bool next_payload(struct worker *w, struct gv_bulk_header *header) {
    while (gv_bulk_recv_header(w->link, header)) {
        if (gv_link_dead(w->link)) return false;
        pthread_mutex_lock(&w->lock);
        w->reader_parked = true;
        pthread_cond_broadcast(&w->changed);
        while (atomic_load(&w->paused) && !atomic_load(&w->stopping)) pthread_cond_wait(&w->changed, &w->lock);
        w->reader_parked = false;
        pthread_mutex_unlock(&w->lock);
        if (atomic_load(&w->stopping)) return false;
    }
    atomic_store(&w->receiving, true);
    return true;
}

static void *read_payloads(void *arg) {
    struct worker *w = arg;
    struct gv_bulk_header header;
    while (next_payload(w, &header) && receive(w, &header)) atomic_store(&w->receiving, false);
    gv_recv_wake(w->link);
    return NULL;
}

/* ---- out --------------------------------------------------------------------------------------------------------------- */

/* The link has released the bytes. Any thread. */
static void part_done(void *arg) {
    struct worker_outgoing *o = arg;
    struct worker *w = o->w;
    if (o->done)
        o->done(o->arg);
    else if (o->staged)
        staging_give(&w->staging, o->data, o->size);
    else
        free(o->data);
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->outgoing_bytes, atomic_load(&w->outgoing_bytes) - o->size);
    if (--w->n_outgoing == 0 && atomic_load(&w->stopping)) pthread_cond_broadcast(&w->sendable);
    if (w->held_up) pthread_cond_signal(&w->room);
    if (w->reader_waits) pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    free(o);
}

/* ---- what came early, in a session's image ------------------------------------------------------------------------------ */

void worker_save_early(struct worker *w, struct gv_image_out *out) {
    pthread_mutex_lock(&w->lock);
    gv_image_put(out, w->n_early);
    for (const struct worker_early *early = w->early_first; early; early = early->next) {
        gv_image_put(out, early->number);
        gv_image_put(out, early->size);
        for (const struct worker_piece *p = early->first; p; p = p->next) gv_image_put_bytes(out, p->data, p->size);
        if (!early->whole) gv_image_out_fail(out, "a payload is under way");
    }
    pthread_mutex_unlock(&w->lock);
}

void worker_restore_early(struct worker *w, struct gv_image_in *in) {
    pthread_mutex_lock(&w->lock);
    for (uint64_t n = gv_image_get(in, WORKER_MAX_EARLY_PAYLOADS + 1), left = WORKER_MAX_EARLY + WORKER_MAX_IMAGE; n && !in->failed; n--) {
        uint64_t number = gv_image_get(in, UINT64_MAX), size = gv_image_get(in, left);
        struct worker_early *early = in->failed ? NULL : early_new(w, size, number);
        for (uint64_t at = 0, piece = 1; early && piece && at < size && !in->failed; at += piece) {
            void *to = add_piece(w, early, at, &piece);
            if (to) gv_image_get_bytes(in, to, piece);
            if (!to) gv_image_in_fail(in, "the server is out of memory");
        }
        if (!early)
            gv_image_in_fail(in, "the server is out of memory");
        else
            early->received = size, early->whole = true;
        left -= size;
    }
    pthread_mutex_unlock(&w->lock);
}

static void *send_payloads(void *arg) {
    struct worker *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->outgoing_first && !atomic_load(&w->stopping)) pthread_cond_wait(&w->sendable, &w->lock);
        struct worker_outgoing *o = w->outgoing_first;
        if (atomic_load(&w->stopping)) break; /* the rest is not needed */
        w->outgoing_first = o->next;
        if (!o->next) w->outgoing_last = NULL;
        pthread_mutex_unlock(&w->lock);
        /* A dead link is noticed by the executor. */
        if (gv_bulk_open(w->link, o->tag, o->size))
            gv_bulk_part(w->link, o->data, o->size, part_done, o);
        else
            part_done(o);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static uint64_t send_outgoing(struct worker *w, struct worker_outgoing outgoing) {
    struct worker_outgoing *o = malloc(sizeof *o);
    if (!o) {
        gv_link_kill(w->link, "out of memory");
        if (outgoing.done) outgoing.done(outgoing.arg);
        return 0;
    }
    *o = outgoing;
    o->w = w;
    pthread_mutex_lock(&w->lock);
    bool ended = w->outgoing_ended;
    if (!ended && w->outgoing_last)
        w->outgoing_last->next = o;
    else if (!ended)
        w->outgoing_first = o;
    if (!ended) w->outgoing_last = o;
    w->n_outgoing++;
    atomic_store(&w->outgoing_bytes, atomic_load(&w->outgoing_bytes) + o->size);
    uint64_t number = ++w->outgoing_number;
    pthread_cond_broadcast(&w->sendable);
    pthread_mutex_unlock(&w->lock);
    if (ended) part_done(o); /* the backend, which is closed later, finishes copies still */
    return number;
}

uint64_t worker_send_payload(struct worker *w, uint64_t tag, void *data, uint64_t size, bool staged) {
    return send_outgoing(w, (struct worker_outgoing){.tag = tag, .size = size, .data = data, .staged = staged});
}

uint64_t worker_send_in_place(struct worker *w, uint64_t tag, void *data, uint64_t size, void (*done)(void *arg), void *arg) {
    return send_outgoing(w, (struct worker_outgoing){.tag = tag, .size = size, .data = data, .done = done, .arg = arg});
}

int worker_bulk_start(struct worker *w) {
    w->has_reader = pthread_create(&w->reader, NULL, read_payloads, w) == 0;
    w->has_sender = pthread_create(&w->sender, NULL, send_payloads, w) == 0;
    return w->has_reader && w->has_sender ? 0 : -1;
}

/* Frees the members of a list that no thread waits for; returns the last one left. */
static struct worker_expected *free_discarded(struct worker_expected **at) {
    struct worker_expected *last = NULL;
    while (*at) {
        struct worker_expected *e = *at;
        if (e->discard) {
            *at = e->next;
            free(e);
        } else {
            last = e;
            at = &e->next;
        }
    }
    return last;
}

void worker_bulk_stop(struct worker *w) {
    if (w->link) gv_link_kill(w->link, "the session has ended"); /* both threads may be in it */
    if (w->has_sender) pthread_join(w->sender, NULL);
    if (w->has_reader) pthread_join(w->reader, NULL);
    w->has_reader = w->has_sender = false;
    pthread_mutex_lock(&w->lock);
    w->outgoing_ended = true;
    w->outgoing_last = NULL;
    while (w->outgoing_first) {
        struct worker_outgoing *o = w->outgoing_first;
        w->outgoing_first = o->next;
        pthread_mutex_unlock(&w->lock);
        part_done(o);
        pthread_mutex_lock(&w->lock);
    }
    /* A dead link releases the parts that it holds, the last ones when it is closed. */
    struct timespec until = gv_deadline(CLOCK_REALTIME, PARTS_PATIENCE);
    while (w->n_outgoing && pthread_cond_timedwait(&w->sendable, &w->lock, &until) == 0) continue;
    for (struct worker_early *early; (early = w->early_first);) {
        w->early_first = early->next;
        early_free(w, early);
    }
    w->early_last = NULL;
    /* Gates may still wait for other expected payloads. */
    w->expected_last = free_discarded(&w->expected_first);
    free_discarded(&w->late);
    pthread_mutex_unlock(&w->lock);
}
