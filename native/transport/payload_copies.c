#define _GNU_SOURCE
#include "payload_copies.h"

#include <stdlib.h>
#include <string.h>

#include "../wire/clock.h"

#define COPIES_KEPT 16 /* pieces kept for the next payload, the last used first */

void gv_copies_init(struct gv_copies *copies) {
    pthread_condattr_t monotonic;
    memset(copies, 0, sizeof *copies);
    copies->limit = COPIES_LIMIT;
    pthread_mutex_init(&copies->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&copies->fewer, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static struct gv_copy *make(struct gv_copies *copies) {
    struct gv_copy *c = malloc(sizeof *c + GV_COPY_PIECE);
    if (c && copies->heard) copies->heard(copies->arg, c->data, true);
    return c;
}

static void unmake(struct gv_copies *copies, struct gv_copy *c) {
    if (copies->heard) copies->heard(copies->arg, c->data, false);
    free(c);
}

void gv_copies_free(struct gv_copies *copies) {
    for (struct gv_copy *c; (c = copies->spare);) {
        copies->spare = c->next;
        unmake(copies, c);
    }
    pthread_mutex_destroy(&copies->lock);
    pthread_cond_destroy(&copies->fewer);
}

bool gv_copies_full(struct gv_copies *copies, uint64_t *oldest) {
    pthread_mutex_lock(&copies->lock);
    bool full = copies->out >= copies->limit;
    if (full) *oldest = copies->oldest->end;
    pthread_mutex_unlock(&copies->lock);
    return full;
}

void gv_copies_wait(struct gv_copies *copies, int64_t timeout_ns) {
    struct timespec until = gv_deadline(CLOCK_MONOTONIC, timeout_ns);
    pthread_mutex_lock(&copies->lock);
    if (copies->out >= copies->limit) pthread_cond_timedwait(&copies->fewer, &copies->lock, &until);
    pthread_mutex_unlock(&copies->lock);
}

struct gv_copy *gv_copies_take(struct gv_copies *copies, uint64_t end) {
    pthread_mutex_lock(&copies->lock);
    struct gv_copy *c = copies->spare;
    if (c) {
        copies->spare = c->next;
        copies->n_spare--;
    } else {
        c = make(copies);
    }
    if (c) {
        c->next = NULL;
        c->owner = copies;
        c->end = end;
        if (copies->newest)
            copies->newest->next = c;
        else
            copies->oldest = c;
        copies->newest = c;
        copies->out += GV_COPY_PIECE;
    }
    pthread_mutex_unlock(&copies->lock);
    return c;
}

void gv_copy_done(void *copy) {
    struct gv_copy *c = copy;
    struct gv_copies *copies = c->owner;
    pthread_mutex_lock(&copies->lock);
    struct gv_copy **at = &copies->oldest, *before = NULL;
    while (*at != c) { /* they end in the stream's order, but for one that a dead link did not take */
        before = *at;
        at = &before->next;
    }
    *at = c->next;
    if (copies->newest == c) copies->newest = before;
    copies->out -= GV_COPY_PIECE;
    bool keep = copies->n_spare < COPIES_KEPT;
    if (keep) {
        c->next = copies->spare;
        copies->spare = c;
        copies->n_spare++;
    }
    pthread_cond_broadcast(&copies->fewer);
    pthread_mutex_unlock(&copies->lock);
    if (!keep) unmake(copies, c);
}
