/* Turns: while a device's gate is closed its grids begin no block, and runners wait between two. A thread, the teller, says when the device has work,
 * has none, and stands still. */
#define _GNU_SOURCE
#include "../driver_constants.h"
#include "../../../wire/clock.h"
#include "exec_private.h"

#include <signal.h>
#include <time.h>

/* ---- runners, under the engine's lock ---- */

static void note_work(struct soft_engine *e, const struct soft_gate *gate) {
    if (gate->words.may != GV_MAY_ALWAYS && !gate->words.busy) pthread_cond_signal(&e->tell);
}

void soft_gate_enter(struct soft_engine *e, struct soft_gate *gate) {
    gate->inside++;
    gate->entered++;
    note_work(e, gate);
}

void soft_gate_leave(struct soft_engine *e, struct soft_gate *gate) {
    if (!--gate->inside && gate->words.stopping) pthread_cond_signal(&e->tell);
}

void soft_gate_await(struct soft_engine *e, struct soft_gate *gate, const _Atomic bool *stop) {
    if (!soft_gate_closed(gate)) return;
    gate->waiting++;
    note_work(e, gate);
    while (soft_gate_closed(gate) && !e->stopping && !atomic_load(stop)) pthread_cond_wait(&gate->opened, &e->lock);
    gate->waiting--;
}

void soft_gate_pause(struct grid *g) {
    struct soft_engine *e = g->engine;
    pthread_mutex_lock(&e->lock);
    soft_gate_leave(e, g->gate);
    soft_gate_await(e, g->gate, &g->stop);
    soft_gate_enter(e, g->gate);
    pthread_mutex_unlock(&e->lock);
}

/* ---- the teller ---- */

static void *teller(void *arg) {
    struct soft_engine *e = arg;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    pthread_setname_np(pthread_self(), "soft-turns");
    pthread_mutex_lock(&e->lock);
    while (!e->stopping) {
        bool said = false, watch = false;
        for (uint32_t device = 0; device < SOFT_TURN_DEVICES && !e->stopping; device++) {
            struct soft_gate *gate = &e->gates[device];
            if (gate->words.may == GV_MAY_ALWAYS) continue;
            uint32_t what = turn_words_next(&gate->words, gate->inside, gate->waiting, gate->entered, gv_now_ns()), number = gate->words.number;
            watch |= gate->words.busy;
            if (!what) continue;
            said = true;
            pthread_mutex_unlock(&e->lock);
            e->turn_said(e->turn_arg, device, what, number);
            pthread_mutex_lock(&e->lock);
        }
        if (said || e->stopping) continue;
        struct timespec until = gv_deadline(CLOCK_REALTIME, GV_TURN_LINGER_NS);
        if (watch)
            pthread_cond_timedwait(&e->tell, &e->lock, &until);
        else
            pthread_cond_wait(&e->tell, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- whose turn it is ---- */

static bool has_teller(struct soft_engine *e) {
    if (!e->teller_runs) e->teller_runs = !pthread_create(&e->teller, NULL, teller, e);
    return e->teller_runs;
}

int soft_engine_turn(struct soft_engine *e, uint32_t device, uint32_t may, uint32_t number, soft_turn_said *said, void *arg) {
    if (device >= SOFT_TURN_DEVICES || may > GV_MUST_WAIT) return CUDA_ERROR_INVALID_VALUE;
    struct soft_gate *gate = &e->gates[device];
    pthread_mutex_lock(&e->lock);
    e->turn_said = said;
    e->turn_arg = arg;
    if (e->stopping || (may != GV_MAY_ALWAYS && !has_teller(e))) {
        pthread_mutex_unlock(&e->lock);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    turn_words_heard(&gate->words, may, number, gv_now_ns());
    atomic_store(&gate->closed, gate->words.stopping);
    if (!gate->words.stopping) {
        pthread_cond_broadcast(&gate->opened);
        pthread_cond_broadcast(&e->work);
    }
    pthread_cond_signal(&e->tell);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

void soft_gates_open(struct soft_engine *e) {
    for (uint32_t device = 0; device < SOFT_TURN_DEVICES; device++) pthread_cond_init(&e->gates[device].opened, NULL);
    pthread_cond_init(&e->tell, NULL);
}

void soft_gates_stop(struct soft_engine *e) {
    for (uint32_t device = 0; device < SOFT_TURN_DEVICES; device++) pthread_cond_broadcast(&e->gates[device].opened);
    pthread_cond_broadcast(&e->tell);
}

void soft_gates_close(struct soft_engine *e) {
    if (e->teller_runs) pthread_join(e->teller, NULL);
    for (uint32_t device = 0; device < SOFT_TURN_DEVICES; device++) pthread_cond_destroy(&e->gates[device].opened);
    pthread_cond_destroy(&e->tell);
}
