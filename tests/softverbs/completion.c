/* Completion queues, and the channels that tell of them. */
#include "softverbs.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    struct sv_channel *channel = calloc(1, sizeof *channel);
    int fd = channel ? eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC) : -1;
    if (fd < 0) {
        free(channel);
        return NULL;
    }
    channel->ibv = (struct ibv_comp_channel){.context = context, .fd = fd};
    pthread_mutex_init(&channel->lock, NULL);
    atomic_fetch_add(&sv_of(context)->objects, 1);
    return &channel->ibv;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    if (((struct sv_channel *)channel)->cqs) return EBUSY;
    atomic_fetch_sub(&sv_of(channel->context)->objects, 1);
    close(channel->fd);
    free(channel);
    return 0;
}

/* The queue is locked. The first completion that can be seen once the user has asked to be told. */
static void notify(struct sv_cq *cq) {
    const uint64_t one = 1;
    struct sv_channel *channel = (struct sv_channel *)cq->ibv.channel;
    if (!cq->armed || !channel) return;
    cq->armed = false;
    SV_COUNT(sv_of(cq->ibv.context)->rail, notifications, 1);
    pthread_mutex_lock(&channel->lock);
    cq->untaken++;
    cq->told_at = ++channel->told;
    pthread_mutex_unlock(&channel->lock);
    if (write(channel->ibv.fd, &one, sizeof one) != sizeof one) abort();
}

/* -1 with errno EAGAIN when the descriptor is O_NONBLOCK and has none. */
int ibv_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **cq_context) {
    struct sv_channel *channel = (struct sv_channel *)ibv;
    struct sv_cq *first = NULL;
    uint64_t one;
    while (!first) {
        if (read(ibv->fd, &one, sizeof one) != sizeof one) return -1;
        pthread_mutex_lock(&channel->lock);
        for (struct sv_cq *each = channel->cqs; each; each = each->next_of_channel) {
            if (each->untaken && (!first || each->told_at < first->told_at)) first = each;
        }
        if (first) first->untaken--, first->taken++; /* before it can be destroyed, which waits until it is acknowledged */
        pthread_mutex_unlock(&channel->lock);
    }
    *cq = &first->ibv;
    *cq_context = first->ibv.cq_context;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents) {
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += nevents;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}

/* By the rail's fault; completions of one queue pair stay in order. */
static uint64_t ripe_at(struct sv_rail *rail, struct sv_qp *qp) {
    uint64_t delay = atomic_load(&rail->completion_delay_ns);
    if (delay && atomic_load(&rail->completion_reorder)) delay *= qp->ibv.qp_num % 4;
    if (!delay && !qp->last_ripe) return 0;
    uint64_t now = sv_now(), ripe = now + delay;
#ifdef SOFTVERBS_BREAK_ORDER
    qp->last_ripe = 0;
#endif
    if (ripe < qp->last_ripe) ripe = qp->last_ripe;
    qp->last_ripe = ripe > now ? ripe : 0;
    return qp->last_ripe;
}

bool sv_complete(struct sv_cq *cq, struct sv_completion completion) {
    struct sv_context *context = sv_of(cq->ibv.context);
    bool overrun = sv_nth(&context->rail->cq_overrun_at);
    completion.ripe_at = ripe_at(context->rail, completion.qp);
    pthread_mutex_lock(&cq->lock);
    bool sound = !(cq->failed = cq->failed || overrun || cq->count == cq->room);
    if (sound) {
        struct sv_completion *slot = &cq->ring[(cq->first + cq->count++) % cq->room];
        *slot = completion;
        SV_COUNT(context->rail, completions, 1);
        if (!slot->ripe_at) notify(cq);
    }
    pthread_mutex_unlock(&cq->lock);
    if (completion.ripe_at) sv_ring_bell(context->station);
    return sound;
}

uint64_t sv_cq_ripen(struct sv_cq *cq, uint64_t now) {
    uint64_t next = UINT64_MAX;
    pthread_mutex_lock(&cq->lock);
    for (uint32_t i = 0; i < cq->count && cq->armed; i++) {
        struct sv_completion *slot = &cq->ring[(cq->first + i) % cq->room];
        if (slot->ripe_at > now)
            next = sv_min(next, slot->ripe_at);
        else if (slot->ripe_at)
            notify(cq);
    }
    pthread_mutex_unlock(&cq->lock);
    return next;
}

/* The queue is locked: takes entry i out. */
static void take_out(struct sv_cq *cq, uint32_t i) {
    for (; i > 0; i--) cq->ring[(cq->first + i) % cq->room] = cq->ring[(cq->first + i - 1) % cq->room];
    cq->first = (cq->first + 1) % cq->room;
    cq->count--;
}

int sv_cq_poll(struct sv_cq *cq, int room, struct ibv_wc *wc) {
    int taken = 0;
    uint64_t now = 0;
    pthread_mutex_lock(&cq->lock);
    for (uint32_t i = 0; i < cq->count && taken < room;) {
        struct sv_completion *slot = &cq->ring[(cq->first + i) % cq->room];
        if (slot->ripe_at && !now) now = sv_now();
        if (slot->ripe_at > now) {
            i++;
            continue;
        }
        wc[taken++] = slot->wc;
        if (slot->frees)
            atomic_store(&slot->qp->sq_freed, slot->frees);
        else
            atomic_fetch_add(&slot->qp->rq_freed, 1);
        take_out(cq, i);
    }
    pthread_mutex_unlock(&cq->lock);
    return taken;
}

/* Of any completion: solicited ones are nothing of their own here. */
int sv_req_notify_cq(struct ibv_cq *ibv, int solicited_only) {
    struct sv_cq *cq = (struct sv_cq *)ibv;
    if (solicited_only) return EOPNOTSUPP;
    SV_COUNT(sv_of(ibv->context)->rail, arms, 1);
    pthread_mutex_lock(&cq->lock);
    cq->armed = true;
    bool delayed = false;
    for (uint32_t i = 0; i < cq->count && !delayed; i++) delayed = cq->ring[(cq->first + i) % cq->room].ripe_at;
    pthread_mutex_unlock(&cq->lock);
    if (delayed) sv_ring_bell(sv_of(ibv->context)->station);
    return 0;
}

void sv_cq_forget(struct sv_cq *cq, const struct sv_qp *qp) {
    pthread_mutex_lock(&cq->lock);
    for (uint32_t i = 0; i < cq->count;) {
        if (cq->ring[(cq->first + i) % cq->room].qp == qp)
            take_out(cq, i);
        else
            i++;
    }
    pthread_mutex_unlock(&cq->lock);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ibv, int cqe, void *cq_context, struct ibv_comp_channel *channel, int comp_vector) {
    struct sv_context *context = sv_of(ibv);
    struct sv_cq *cq = cqe > 0 && comp_vector >= 0 && comp_vector < ibv->num_comp_vectors ? calloc(1, sizeof *cq) : NULL;
    if (!cq || !(cq->ring = calloc((size_t)cqe, sizeof *cq->ring))) {
        errno = cq ? ENOMEM : EINVAL;
        free(cq);
        return NULL;
    }
    cq->ibv = (struct ibv_cq){.context = ibv, .channel = channel, .cq_context = cq_context, .cqe = cqe};
    cq->room = (uint32_t)cqe;
    pthread_mutex_init(&cq->ibv.mutex, NULL);
    pthread_cond_init(&cq->ibv.cond, NULL);
    pthread_mutex_init(&cq->lock, NULL);
    atomic_fetch_add(&context->objects, 1);
    if (channel) {
        struct sv_channel *of = (struct sv_channel *)channel;
        pthread_mutex_lock(&of->lock);
        cq->next_of_channel = of->cqs;
        of->cqs = cq;
        pthread_mutex_unlock(&of->lock);
    }
    sv_list_lock(context);
    cq->next = context->cqs;
    context->cqs = cq;
    sv_list_unlock(context);
    return &cq->ibv;
}

int ibv_destroy_cq(struct ibv_cq *ibv) {
    struct sv_cq *cq = (struct sv_cq *)ibv;
    struct sv_context *context = sv_of(ibv->context);
    struct sv_channel *channel = (struct sv_channel *)ibv->channel;
    if (atomic_load(&cq->users)) return EBUSY;
    sv_list_lock(context);
    struct sv_cq **link = &context->cqs;
    while (*link != cq) link = &(*link)->next;
    *link = cq->next;
    sv_list_unlock(context);
    if (channel) {
        pthread_mutex_lock(&channel->lock);
        for (link = &channel->cqs; *link != cq;) link = &(*link)->next_of_channel;
        *link = cq->next_of_channel;
        pthread_mutex_unlock(&channel->lock);
    }
    pthread_mutex_lock(&ibv->mutex);
    while (ibv->comp_events_completed != cq->taken) pthread_cond_wait(&ibv->cond, &ibv->mutex);
    pthread_mutex_unlock(&ibv->mutex);
    atomic_fetch_sub(&context->objects, 1);
    free(cq->ring);
    free(cq);
    return 0;
}
