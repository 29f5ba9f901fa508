/* Payloads: one thread receives them into the memory that commands have named, one sends those that copies have made ready. */
#include <stdlib.h>

#include "state.h"

static struct worker_expected *next_expected(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    /* A payload may overtake the command that names it: records and payloads travel on different sockets. */
    while (!w->expected_first && !atomic_load(&w->stopping)) pthread_cond_wait(&w->changed, &w->lock);
    struct worker_expected *e = w->expected_first;
    if (e) {
        w->expected_first = e->next;
        if (!e->next) w->expected_last = NULL;
    }
    pthread_mutex_unlock(&w->lock);
    return e;
}

static void *read_payloads(void *arg) {
    struct worker *w = arg;
    struct gv_bulk_header header;
    while (gv_bulk_recv_header(w->link, &header) == 0) {
        struct worker_expected *e = next_expected(w);
        if (!e) break;
        if (!e->data && header.size <= WORKER_MAX_IMAGE) { /* only the payload knows its size */
            e->data = malloc(header.size ? header.size : 1);
            e->size = header.size;
        }
        bool failed = !e->data || e->number != header.number || e->size != header.size;
        if (failed)
            gv_link_kill(w->link, "a payload is not the one that its command announced, or too large");
        else
            failed = gv_bulk_recv(w->link, e->data, e->size) != 0;
        if (!failed) atomic_store(&w->bulk_received, header.number);
        pthread_mutex_lock(&w->lock);
        e->failed = failed;
        e->arrived = true;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
        if (failed) break;
    }
    gv_recv_wake(w->link);
    return NULL;
}

void worker_expect(struct worker *w, struct worker_expected *e, uint64_t number, void *data, uint64_t size) {
    *e = (struct worker_expected){.number = number, .size = size, .data = data};
    pthread_mutex_lock(&w->lock);
    if (w->expected_last)
        w->expected_last->next = e;
    else
        w->expected_first = e;
    w->expected_last = e;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* Takes the expectation back, if the reader has not begun with it. lock held. */
static bool withdraw(struct worker *w, struct worker_expected *e) {
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
    while (!e->arrived && !(atomic_load(&w->stopping) && withdraw(w, e))) pthread_cond_wait(&w->changed, &w->lock);
    bool good = e->arrived && !e->failed;
    pthread_mutex_unlock(&w->lock);
    return good;
}

static void drop_outgoing(struct worker *w, struct worker_outgoing *o) {
    if (o->staged) {
        staging_give(&w->staging, o->data, o->size);
        worker_room_again(w);
    } else {
        free(o->data);
    }
    free(o);
}

static void *send_payloads(void *arg) {
    struct worker *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->outgoing_first && !atomic_load(&w->stopping)) pthread_cond_wait(&w->sendable, &w->lock);
        struct worker_outgoing *o = w->outgoing_first;
        if (atomic_load(&w->stopping)) break; /* nobody wants the rest */
        w->outgoing_first = o->next;
        if (!o->next) w->outgoing_last = NULL;
        pthread_mutex_unlock(&w->lock);
        gv_bulk_send(w->link, o->tag, o->data, o->size); /* a dead link is noticed by the executor */
        drop_outgoing(w, o);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

uint64_t worker_send_payload(struct worker *w, uint64_t tag, void *data, uint64_t size, bool staged) {
    struct worker_outgoing *o = malloc(sizeof *o);
    if (!o) {
        gv_link_kill(w->link, "out of memory");
        return 0;
    }
    *o = (struct worker_outgoing){.tag = tag, .size = size, .data = data, .staged = staged};
    pthread_mutex_lock(&w->lock);
    if (w->outgoing_last)
        w->outgoing_last->next = o;
    else
        w->outgoing_first = o;
    w->outgoing_last = o;
    uint64_t number = ++w->outgoing_number;
    pthread_cond_signal(&w->sendable);
    pthread_mutex_unlock(&w->lock);
    return number;
}

int worker_bulk_start(struct worker *w) {
    w->has_reader = pthread_create(&w->reader, NULL, read_payloads, w) == 0;
    w->has_sender = pthread_create(&w->sender, NULL, send_payloads, w) == 0;
    return w->has_reader && w->has_sender ? 0 : -1;
}

void worker_bulk_stop(struct worker *w) {
    if (w->link) gv_link_kill(w->link, "the session has ended"); /* both threads may be in it */
    if (w->has_sender) pthread_join(w->sender, NULL);
    if (w->has_reader) pthread_join(w->reader, NULL);
    w->has_reader = w->has_sender = false;
    while (w->outgoing_first) {
        struct worker_outgoing *o = w->outgoing_first;
        w->outgoing_first = o->next;
        drop_outgoing(w, o);
    }
}
