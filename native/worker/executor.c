/* The executor: the one thread that takes records in order and executes each by queuing work on the backend. It waits for the device in two cases
 * only: when too much is in flight, and in driver calls that wait by themselves, freeing pinned memory among them. */
#include <stdio.h>
#include <stdlib.h>

#include "state.h"

#define IDLE_SPIN_NS 20000 /* ns of polling for a record before it sleeps */
#define SLEEP_NS 1000000000ll
#define LINGER_NS 20000000ll /* ns of each wait after the client's last command */
#define LINGER_TURNS 25

#define EXPORT __attribute__((visibility("default")))

enum { CARRY_ON, CLIENT_LOST, PROTOCOL_ERROR };

/* The one command that needs no room and releases some: held back until there is room, it would wait for itself. */
static bool gives_room(uint16_t op) { return op == GV_OP_HOST_DONE; }

static int carry_out(struct worker *w, const struct gv_record *record, char *err) {
    w->current = NULL;
    struct gv_backend *entered = w->ops->command_begin ? w->backend : NULL;
    if (entered) w->ops->command_begin(entered);
    bool known = w->attached || record->op == GV_OP_ATTACH || record->op == GV_OP_BYE;
    int bad = known ? gv_dispatch(w, record) : -1;
    if (!bad && record->op == GV_OP_STREAM_CREATE) worker_order_stream_created(w, record);
    if (!bad && w->current) bad = record->flags & GV_RECORD_MARK ? worker_mark(w, w->current, record) : worker_count(w, w->current, record);
    if (entered) w->ops->command_end(entered);
    if (bad && !gv_link_dead(w->link)) {
        snprintf(err, GV_ERR_SIZE, "record %llu (%s, operation %u) %s", (unsigned long long)record->seq, gv_op_name(record->op), record->op,
                 known ? "is malformed or cannot be carried out" : "comes before the session has been attached");
        struct gv_record copy = *record;
        worker_failed(w, &copy, CUDA_ERROR_UNKNOWN, err);
        return PROTOCOL_ERROR;
    }
    atomic_fetch_add_explicit(&w->commands, 1, memory_order_relaxed);
    if (record->flags & GV_RECORD_SYNC) atomic_fetch_add_explicit(&w->answers, 1, memory_order_relaxed);
    return CARRY_ON;
}

/* Whether pinned memory is freed before this record. Not while the device waits for the client, who may take long, unless there is much of it. */
static bool frees_spare(struct worker *w, uint16_t op) {
    uint64_t spare = atomic_load_explicit(&w->staging.spare_bytes, memory_order_relaxed);
    return spare && !gives_room(op) && (spare > STAGING_KEPT || !worker_waits_for_client(w));
}

/* Executes one record, from those that read-ahead queued or from the link. */
static int step(struct worker *w, char *err) {
    /* Also when read-ahead has queued some: the last thread to peek is the link's reader and is exempt from back-pressure. */
    const struct gv_record *record = gv_recv_peek(w->link);
    if (gv_link_dead(w->link)) {
        snprintf(err, GV_ERR_SIZE, "%s", gv_link_death(w->link));
        return CLIENT_LOST; /* what it has not committed is discarded */
    }
    struct worker_aside *aside = worker_aside_take(w);
    if (aside) record = aside->record;
    if (!record) {
        worker_rest(w);
        gv_recv_wait(w->link, SLEEP_NS, IDLE_SPIN_NS);
        return CARRY_ON;
    }
    /* While it waits for room, read-ahead reads the link: acknowledgements release room, and they come with the commands. */
    bool turn = worker_has_turn(w, record), room = turn && (gives_room(record->op) || worker_has_room(w)), frees = frees_spare(w, record->op),
         waits = frees || gv_may_wait(record->op);
    /* Any call of a driver waits when its queues are full, for what only the client's answer lets go on: that is rare. */
    bool client = (waits || w->ops->command_begin) && worker_waits_for_client(w), ahead = !room || (waits && client), offers = client && !ahead;
    if (ahead || offers || waits)
        worker_rest(w);
    else if (!atomic_load_explicit(&w->busy, memory_order_relaxed))
        atomic_store_explicit(&w->busy, true, memory_order_relaxed);
    if (ahead || offers) {
        if (!aside) {
            if (!worker_aside_put(w, record, true)) {
                snprintf(err, GV_ERR_SIZE, "out of memory");
                return PROTOCOL_ERROR;
            }
            gv_recv_consume(w->link);
            aside = worker_aside_take(w);
            record = aside->record;
        }
        if (ahead)
            worker_ahead_begin(w);
        else
            worker_ahead_offer(w);
    }
    if (!room) worker_await_room(w);
    if (!turn) worker_await_turn(w, record);
    if (frees) staging_free_spare(&w->staging);
    int outcome = carry_out(w, record, err);
    worker_turn_unused(w);
    if (ahead) worker_ahead_end(w);
    if (offers) worker_ahead_retract(w);
    if (aside)
        free(aside);
    else
        gv_recv_consume(w->link);
    return outcome;
}

/* The client closes the link first. If the worker closed it, one of the client's threads could see the end before another has read the reply to its
 * last command. */
static void linger(struct worker *w) {
    for (int i = 0; i < LINGER_TURNS && !gv_link_dead(w->link); i++) {
        if (gv_recv_peek(w->link))
            gv_recv_consume(w->link);
        else
            gv_recv_wait(w->link, LINGER_NS, 0);
    }
}

EXPORT int worker_run(struct worker *w, char *err) {
    err[0] = 0;
    int outcome = CARRY_ON;
    while (outcome == CARRY_ON && !w->said_bye) {
        if (atomic_load_explicit(&w->image_wanted, memory_order_acquire)) {
            worker_rest(w);
            worker_write_image(w);
        }
        if (atomic_load_explicit(&w->park_wanted, memory_order_acquire)) {
            worker_rest(w);
            worker_park_here(w);
        }
        if (atomic_load_explicit(&w->turns.mark_wanted, memory_order_acquire)) worker_turns_here(w);
        outcome = step(w, err);
    }
    worker_rest(w);
    gv_link_last(w->link);
    if (w->said_bye) linger(w);
    worker_stop(w);
    return outcome;
}
