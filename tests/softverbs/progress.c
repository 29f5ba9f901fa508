/* The thread of an open device: it does what a device does by itself. */
#include "softverbs.h"

#include <signal.h>
#include <sys/prctl.h>

#define SPIN_NS 30000u           /* before a time that is awaited: a sleep is not more exact than this */
#define LOOK_NS 20000000u        /* between two looks at the timers */
#define POLLED_NS 200000u        /* while others poll the thread looks no more often than this: it would only be in their way */
#define IDLE_AFTER_NS 1000000000 /* without anything under way: then it sleeps until it is called */

static void sleep_until(struct sv_station *station, uint32_t seen, uint64_t wake) {
    uint64_t now = sv_now();
    while (wake > now && wake - now <= SPIN_NS && atomic_load(&station->bell) == seen) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        now = sv_now();
    }
    if (wake <= now) return;
    uint64_t span = wake - now - SPIN_NS;
    struct timespec t = {.tv_sec = (time_t)(span / 1000000000), .tv_nsec = (long)(span % 1000000000)};
    atomic_store(&station->sleeping, 1);
    if (atomic_load(&station->bell) == seen) sv_futex(&station->bell, FUTEX_WAIT, seen, wake == UINT64_MAX ? NULL : &t);
    atomic_store(&station->sleeping, 0);
}

/* One look at everything; `list` is held. *under_way: something is unanswered. */
static bool look(struct sv_context *context, uint64_t *wake, bool *under_way) {
    bool some = false;
    uint64_t now = sv_now();
    for (struct sv_qp *qp = context->qps; qp; qp = qp->next) {
        pthread_mutex_lock(&qp->lock);
        some |= sv_responder(qp, now, wake);
        some |= sv_requester(qp, now, wake);
        *under_way |= qp->timer_from != 0;
        pthread_mutex_unlock(&qp->lock);
    }
    for (struct sv_cq *cq = context->cqs; cq; cq = cq->next) *wake = sv_min(*wake, sv_cq_ripen(cq, now));
    atomic_store(&context->next_look, *wake);
    return some;
}

/* Whoever polls in vain does the thread's work, if there is any: so two programs that poll need no others' turns on a machine of few cores. */
int sv_poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *wc) {
    struct sv_context *context = sv_of(cq->context);
    int taken = sv_cq_poll((struct sv_cq *)cq, room, wc);
    uint64_t next = atomic_load(&context->next_look), wake = UINT64_MAX;
    uint32_t bell = atomic_load(&context->station->bell);
    bool under_way = false;
    SV_COUNT(context->rail, polls, 1);
    if (taken || (bell == atomic_load(&context->looked_at) && (next == UINT64_MAX || sv_now() < next))) return taken;
    if (pthread_mutex_trylock(&context->list) != 0) return taken;
    atomic_store(&context->looked_at, bell);
    atomic_store(&context->polled_at, sv_now());
    if (look(context, &wake, &under_way)) atomic_store(&context->looked_at, bell - 1);
    pthread_mutex_unlock(&context->list);
    return sv_cq_poll((struct sv_cq *)cq, room, wc);
}

static void *run(void *argument) {
    struct sv_context *context = argument;
    struct sv_station *station = context->station;
    uint64_t busy_at = sv_now();
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    pthread_mutex_lock(&station->alive);
    atomic_store(&station->used, 2);
    sv_futex(&station->used, FUTEX_WAKE, 1, NULL);
    while (!atomic_load(&context->stop)) {
        uint32_t seen = atomic_load(&station->bell);
        uint64_t wake = UINT64_MAX;
        bool under_way = false;
        pthread_mutex_lock(&context->list);
        bool some = look(context, &wake, &under_way);
        pthread_mutex_unlock(&context->list);
        uint32_t wanted = atomic_load(&context->list_wanted);
        if (wanted) sv_futex(&context->list_wanted, FUTEX_WAIT, wanted, &(struct timespec){.tv_nsec = 50000});
        uint64_t now = sv_now();
        if (some || under_way) busy_at = now;
        if (some) continue;
        if (now - atomic_load(&context->polled_at) < POLLED_NS) {
            nanosleep(&(struct timespec){.tv_nsec = POLLED_NS}, NULL);
            continue;
        }
        bool idle = now - busy_at > IDLE_AFTER_NS;
        if (atomic_exchange(&station->sleeps_long, idle) < idle) continue; /* whoever posts after this look calls */
        sleep_until(station, seen, idle ? wake : sv_min(wake, now + LOOK_NS));
    }
    pthread_mutex_unlock(&station->alive);
    atomic_store(&station->used, 0);
    return NULL;
}

static bool start(struct sv_context *context) {
    sigset_t all, before;
    struct sv_station *station = sv_station_take(context->fabric);
    if (!station) return false;
    context->station = station;
    context->keys_made = 37 * sv_station_index(context->fabric, station) + 1; /* no two contexts' keys are the same */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&context->thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        atomic_store(&station->used, 0);
        return false;
    }
    while (atomic_load(&station->used) == 1) sv_futex(&station->used, FUTEX_WAIT, 1, NULL);
    return true;
}

bool sv_progress_start(struct sv_context *context) {
    pthread_mutex_lock(&context->ibv.mutex);
    bool started = context->started = context->started || start(context);
    pthread_mutex_unlock(&context->ibv.mutex);
    return started;
}

void sv_progress_stop(struct sv_context *context) {
    if (!context->started) return;
    atomic_store(&context->stop, 1);
    sv_ring_bell(context->station);
    pthread_join(context->thread, NULL);
}
