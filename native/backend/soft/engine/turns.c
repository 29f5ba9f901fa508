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
    if (gate->may != GV_MAY_ALWAYS && !gate->busy) pthread_cond_signal(&e->tell);
}

void soft_gate_enter(struct soft_engine *e, struct soft_gate *gate) {
    gate->inside++;
    gate->entered++;
    note_work(e, gate);
}

void soft_gate_leave(struct soft_engine *e, struct soft_gate *gate) {
    if (!--gate->inside && gate->stopping) pthread_cond_signal(&e->tell);
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

/* The next thing to say of a device, 0: nothing. */
static uint32_t next_word(struct soft_gate *gate, int64_t now) {
    bool works = gate->inside || gate->waiting;
    if (gate->stopping) {
        if (gate->inside) return 0;
        gate->stopping = false;
        gate->busy = works;
        return works ? GV_TURN_STOPPED_WANTS : GV_TURN_STOPPED;
    }
    if (works || gate->seen != gate->entered) {
        gate->seen = gate->entered;
        gate->quiet_since = now;
        if (gate->busy || !works) return 0;
        gate->busy = true;
        return GV_TURN_WANTS;
    }
    if (!gate->busy || now - gate->quiet_since < GV_TURN_LINGER_NS) return 0;
    gate->busy = false;
    return GV_TURN_IDLE;
}

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
            if (gate->may == GV_MAY_ALWAYS) continue;
            uint32_t what = next_word(gate, gv_now_ns()), number = gate->number;
            watch |= gate->busy;
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
    gate->may = may;
    gate->number = number;
    gate->stopping = may == GV_MUST_WAIT;
    gate->busy = may == GV_MAY_NOW; /* it was asked for: that nothing has come of it is said, too */
    gate->quiet_since = gv_now_ns();
    atomic_store(&gate->closed, gate->stopping);
    if (!gate->stopping) {
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
