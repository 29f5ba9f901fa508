/* Completion queues, their channels, and events. */
#include "softverbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

bool sv_events_make(struct sv_events *events) {
    pthread_mutex_init(&events->lock, NULL);
    events->fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
    return events->fd >= 0;
}

void sv_events_end(struct sv_events *events) {
    if (events->fd >= 0) close(events->fd);
    pthread_mutex_destroy(&events->lock);
    free(events->items);
}

void sv_events_put(struct sv_events *events, struct ibv_async_event event) {
    const uint64_t one = 1;
    pthread_mutex_lock(&events->lock);
    if (events->first + events->count == events->room) {
        if (events->first) memmove(events->items, events->items + events->first, events->count * sizeof event);
        events->first = 0;
        if (events->count * 2 >= events->room) {
            events->room = events->room * 2 + 16;
            struct ibv_async_event *items = realloc(events->items, events->room * sizeof event);
            if (!items) abort();
            events->items = items;
        }
    }
    events->items[events->first + events->count++] = event;
    pthread_mutex_unlock(&events->lock);
    if (write(events->fd, &one, sizeof one) != sizeof one) abort();
}

/* -1 with errno EAGAIN when the descriptor is O_NONBLOCK and has none. */
int sv_events_take(struct sv_events *events, struct ibv_async_event *event, void (*reported)(const struct ibv_async_event *event)) {
    uint64_t one;
    do {
        if (read(events->fd, &one, sizeof one) != sizeof one) return -1;
        pthread_mutex_lock(&events->lock);
        *event = events->items[events->first++];
        events->count--;
        if (event->element.cq) reported(event);
        pthread_mutex_unlock(&events->lock);
    } while (!event->element.cq);
    return 0;
}

void sv_events_forget(struct sv_events *events, const void *object) {
    pthread_mutex_lock(&events->lock);
    for (size_t i = events->first; i < events->first + events->count; i++) {
        if (events->items[i].element.cq == object) events->items[i].element.cq = NULL;
    }
    pthread_mutex_unlock(&events->lock);
}

void sv_async(struct sv_context *context, enum ibv_event_type type, void *object) {
    struct ibv_async_event event = {.event_type = type, .element.cq = object};
    if (!object) event.element.port_num = 1;
    sv_events_put(&context->events, event);
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    struct sv_channel *channel = calloc(1, sizeof *channel);
    if (channel && sv_events_make(&channel->events)) {
        channel->ibv = (struct ibv_comp_channel){.context = context, .fd = channel->events.fd};
        atomic_fetch_add(&sv_of(context)->objects, 1);
        return &channel->ibv;
    }
    free(channel);
    return NULL;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    if (__atomic_load_n(&channel->refcnt, __ATOMIC_ACQUIRE)) return EBUSY;
    atomic_fetch_sub(&sv_of(channel->context)->objects, 1);
    sv_events_end(&((struct sv_channel *)channel)->events);
    free(channel);
    return 0;
}

/* The queue is locked. The first completion that can be seen and that the user has asked to be told of. */
static void notify(struct sv_cq *cq, const struct sv_completion *completion) {
    if (!cq->armed || !cq->ibv.channel || (cq->armed == 2 && !completion->solicited && completion->wc.status == IBV_WC_SUCCESS)) return;
    cq->armed = 0;
    SV_COUNT(sv_of(cq->ibv.context)->rail, notifications, 1);
    sv_events_put(&((struct sv_channel *)cq->ibv.channel)->events, (struct ibv_async_event){.element.cq = &cq->ibv});
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
    if (!cq->failed && (overrun || cq->count == cq->room)) {
        cq->failed = true;
        sv_async(context, IBV_EVENT_CQ_ERR, &cq->ibv);
    }
    bool sound = !cq->failed;
    if (sound) {
        struct sv_completion *slot = &cq->ring[(cq->first + cq->count++) % cq->room];
        *slot = completion;
        SV_COUNT(context->rail, completions, 1);
        if (!slot->ripe_at) notify(cq, slot);
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
            notify(cq, slot);
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
            atomic_fetch_add(&slot->qp->receives->freed, 1);
        take_out(cq, i);
    }
    pthread_mutex_unlock(&cq->lock);
    return taken;
}

int sv_req_notify_cq(struct ibv_cq *ibv, int solicited_only) {
    struct sv_cq *cq = (struct sv_cq *)ibv;
    SV_COUNT(sv_of(ibv->context)->rail, arms, 1);
    pthread_mutex_lock(&cq->lock);
    if (cq->armed != 1) cq->armed = solicited_only ? 2 : 1;
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
    if (channel) __atomic_fetch_add(&channel->refcnt, 1, __ATOMIC_ACQ_REL);
    atomic_fetch_add(&context->objects, 1);
    sv_list_lock(context);
    cq->next = context->cqs;
    context->cqs = cq;
    sv_list_unlock(context);
    return &cq->ibv;
}

int ibv_resize_cq(struct ibv_cq *ibv, int cqe) {
    struct sv_cq *cq = (struct sv_cq *)ibv;
    struct sv_completion *ring = cqe > 0 ? calloc((size_t)cqe, sizeof *ring) : NULL;
    pthread_mutex_lock(&cq->lock);
    bool fits = ring && cq->count <= (uint32_t)cqe;
    if (fits) {
        for (uint32_t i = 0; i < cq->count; i++) ring[i] = cq->ring[(cq->first + i) % cq->room];
        free(cq->ring);
        cq->ring = ring;
        cq->first = 0;
        cq->room = (uint32_t)(ibv->cqe = cqe);
    }
    pthread_mutex_unlock(&cq->lock);
    if (!fits) free(ring);
    return fits ? 0 : EINVAL;
}

int ibv_destroy_cq(struct ibv_cq *ibv) {
    struct sv_cq *cq = (struct sv_cq *)ibv;
    struct sv_context *context = sv_of(ibv->context);
    if (atomic_load(&cq->users)) return EBUSY;
    sv_list_lock(context);
    struct sv_cq **link = &context->cqs;
    while (*link != cq) link = &(*link)->next;
    *link = cq->next;
    sv_list_unlock(context);
    sv_events_forget(&context->events, ibv);
    if (ibv->channel) {
        sv_events_forget(&((struct sv_channel *)ibv->channel)->events, ibv);
        __atomic_fetch_sub(&ibv->channel->refcnt, 1, __ATOMIC_ACQ_REL);
    }
    pthread_mutex_lock(&ibv->mutex);
    while (ibv->comp_events_completed != cq->completion_events || ibv->async_events_completed != cq->async_events) {
        pthread_cond_wait(&ibv->cond, &ibv->mutex);
    }
    pthread_mutex_unlock(&ibv->mutex);
    atomic_fetch_sub(&context->objects, 1);
    free(cq->ring);
    free(cq);
    return 0;
}

static void completion_reported(const struct ibv_async_event *event) {
    struct ibv_cq *cq = event->element.cq;
    pthread_mutex_lock(&cq->mutex);
    ((struct sv_cq *)cq)->completion_events++;
    pthread_mutex_unlock(&cq->mutex);
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context) {
    struct ibv_async_event event;
    if (sv_events_take(&((struct sv_channel *)channel)->events, &event, completion_reported)) return -1;
    *cq = event.element.cq;
    *cq_context = (*cq)->cq_context;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents) {
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += nevents;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}
