/* Queue pairs: made, changed, asked, given work. */
#include "softverbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DIRECT 4096u /* bytes of a message that the caller of ibv_post_send copies itself */

int sv_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct sv_qp *qp = (struct sv_qp *)ibv;
    const struct ibv_qp_cap *cap = &qp->init.cap;
    int error = 0;
    pthread_mutex_lock(&qp->lock);
    for (; wr && !error; wr = error ? wr : wr->next) {
        if (ibv->state == IBV_QPS_RESET || wr->num_sge < 0 || (uint32_t)wr->num_sge > cap->max_recv_sge)
            error = EINVAL;
        else if (qp->rq_posted - atomic_load(&qp->rq_freed) >= cap->max_recv_wr)
            error = ENOMEM;
        if (error) continue;
        struct sv_receive *receive = &qp->receives[qp->rq_posted++ % cap->max_recv_wr];
        receive->wr_id = wr->wr_id;
        receive->count = wr->num_sge;
        if (wr->num_sge) memcpy(receive->sges, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
        SV_COUNT(sv_of(ibv->context)->rail, receive_requests, 1);
    }
    if (error) *bad = wr;
    if (ibv->state == IBV_QPS_ERR) sv_flush(qp);
    pthread_mutex_unlock(&qp->lock);
    return error;
}

/* The queue pair is locked. */
static int enqueue(struct sv_qp *qp, const struct ibv_send_wr *wr) {
    const struct ibv_qp_cap *cap = &qp->init.cap;
    uint64_t length = 0;
    if (wr->opcode > IBV_WR_RDMA_READ || wr->num_sge < 0 || (uint32_t)wr->num_sge > cap->max_send_sge) return EINVAL;
    for (int i = 0; i < wr->num_sge; i++) length += wr->sg_list[i].length;
    bool inlined = (wr->send_flags & IBV_SEND_INLINE) && wr->opcode != IBV_WR_RDMA_READ;
    if (length > 1u << 30 || (inlined && length > cap->max_inline_data)) return EINVAL;
    if (qp->sq_tail - atomic_load(&qp->sq_freed) >= cap->max_send_wr) return ENOMEM;
    size_t at = qp->sq_tail % cap->max_send_wr;
    struct sv_send *send = &qp->sends[at];
    *send = (struct sv_send){.wr_id = wr->wr_id, .imm = wr->imm_data, .length = (uint32_t)length, .opcode = wr->opcode, .flags = wr->send_flags};
    if (atomic_load(&sv_of(qp->ibv.context)->rail->send_delay_ns)) send->posted_at = sv_now();
    if (qp->init.sq_sig_all) send->flags |= IBV_SEND_SIGNALED;
    if (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM) {
        send->remote = wr->wr.rdma.remote_addr;
        send->rkey = wr->wr.rdma.rkey;
    }
    send->count = wr->num_sge;
    send->sges = qp->send_sges + at * cap->max_send_sge;
    if (wr->num_sge) memcpy(send->sges, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
    if (inlined) send->inlined = qp->send_inlined + at * cap->max_inline_data;
    for (uint64_t i = 0, filled = 0; inlined && i < (uint64_t)wr->num_sge; filled += wr->sg_list[i++].length) {
        sv_copy(send->inlined + filled, (const uint8_t *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
    }
    qp->sq_tail++;
    return 0;
}

int sv_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct sv_qp *qp = (struct sv_qp *)ibv;
    struct sv_context *context = sv_of(ibv->context);
    int error = 0;
    SV_COUNT(context->rail, doorbells, 1);
    pthread_mutex_lock(&qp->lock);
    bool ready = ibv->state == IBV_QPS_RTS || ibv->state == IBV_QPS_ERR;
    for (; wr && !error; wr = error ? wr : wr->next) {
        error = ready ? enqueue(qp, wr) : EINVAL;
        if (!error) SV_COUNT(context->rail, send_requests, 1);
    }
    if (error) *bad = wr;
    if (ibv->state == IBV_QPS_ERR)
        sv_flush(qp);
    else if (ready)
        sv_transmit(qp, sv_now(), DIRECT);
    pthread_mutex_unlock(&qp->lock);
    if (atomic_load(&context->station->sleeps_long)) sv_ring_bell(context->station);
    return error;
}

static void use(const struct ibv_qp *qp, int by) {
    atomic_fetch_add(&((struct sv_pd *)qp->pd)->users, (uint32_t)by);
    atomic_fetch_add(&((struct sv_cq *)qp->send_cq)->users, (uint32_t)by);
    atomic_fetch_add(&((struct sv_cq *)qp->recv_cq)->users, (uint32_t)by);
}

static void free_qp(struct sv_qp *qp) {
    free(qp->sends);
    free(qp->send_sges);
    free(qp->send_inlined);
    free(qp->receives);
    free(qp);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    struct sv_context *context = sv_of(pd->context);
    struct ibv_qp_cap *cap = &init->cap;
    struct sv_qp *qp = NULL;
    if (init->qp_type != IBV_QPT_RC || init->srq) {
        errno = EOPNOTSUPP;
    } else if (!init->send_cq || !init->recv_cq || cap->max_send_wr > SV_MAX_WR || cap->max_recv_wr > SV_MAX_WR || cap->max_send_sge > SV_MAX_SGE ||
               cap->max_recv_sge > SV_MAX_SGE || cap->max_inline_data > SV_MAX_INLINE) {
        errno = EINVAL;
    } else {
        qp = calloc(1, sizeof *qp);
    }
    if (!qp) return NULL;
    qp->init = *init;
    qp->sends = calloc(cap->max_send_wr + 1, sizeof *qp->sends);
    qp->send_sges = calloc((size_t)cap->max_send_wr * cap->max_send_sge + 1, sizeof *qp->send_sges);
    qp->send_inlined = calloc((size_t)cap->max_send_wr * cap->max_inline_data + 1, 1);
    qp->receives = calloc(cap->max_recv_wr + 1, sizeof *qp->receives);
    bool made = qp->sends && qp->send_sges && qp->send_inlined && qp->receives;
    qp->slot = made ? sv_slot_take(context->fabric, context->station, context->index) : NULL;
    if (!qp->slot) {
        free_qp(qp);
        return NULL;
    }
    uint32_t number = atomic_load(&qp->slot->number);
    qp->ibv = (struct ibv_qp){.context = pd->context, .qp_context = init->qp_context, .pd = pd, .send_cq = init->send_cq, .recv_cq = init->recv_cq};
    qp->ibv.handle = qp->ibv.qp_num = number;
    qp->ibv.qp_type = init->qp_type;
    qp->requests = sv_ring_data(context->fabric, qp->slot, &qp->slot->requests);
    qp->responses = sv_ring_data(context->fabric, qp->slot, &qp->slot->responses);
    pthread_mutex_init(&qp->ibv.mutex, NULL);
    pthread_cond_init(&qp->ibv.cond, NULL);
    pthread_mutex_init(&qp->lock, NULL);
    use(&qp->ibv, 1);
    sv_list_lock(context);
    qp->next = context->qps;
    context->qps = qp;
    sv_list_unlock(context);
    return &qp->ibv;
}

int ibv_destroy_qp(struct ibv_qp *ibv) {
    struct sv_qp *qp = (struct sv_qp *)ibv;
    struct sv_context *context = sv_of(ibv->context);
    sv_list_lock(context);
    struct sv_qp **link = &context->qps;
    while (*link != qp) link = &(*link)->next;
    *link = qp->next;
    sv_list_unlock(context);
    atomic_store(&qp->slot->state, IBV_QPS_RESET);
    atomic_store(&qp->slot->number, 0);
    sv_cq_forget((struct sv_cq *)ibv->send_cq, qp);
    sv_cq_forget((struct sv_cq *)ibv->recv_cq, qp);
    use(ibv, -1);
    free_qp(qp);
    return 0;
}

/* For reliable connections: from which state to which, with which attributes. */
static const struct transition {
    enum ibv_qp_state from, to;
    int needed, allowed;
} transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_MIN_RNR_TIMER},
};

static bool permitted(enum ibv_qp_state from, enum ibv_qp_state to, int mask) {
    mask &= ~IBV_QP_STATE;
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return mask == 0;
    for (size_t i = 0; i < sizeof transitions / sizeof *transitions; i++) {
        const struct transition *t = &transitions[i];
        if (t->from == from && t->to == to) return (mask & t->needed) == t->needed && !(mask & ~(t->needed | t->allowed));
    }
    return false;
}

static bool valid(const struct ibv_qp_attr *attr, int mask) {
    if ((mask & IBV_QP_PORT) && attr->port_num != 1) return false;
    if ((mask & IBV_QP_PKEY_INDEX) && attr->pkey_index != 0) return false;
    if ((mask & IBV_QP_AV) && (!attr->ah_attr.is_global || attr->ah_attr.port_num != 1 || attr->ah_attr.grh.sgid_index > 1)) return false;
    if ((mask & IBV_QP_PATH_MTU) && (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > IBV_MTU_4096)) return false;
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && attr->max_rd_atomic > SV_MAX_READS) return false;
    if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && attr->max_dest_rd_atomic > SV_MAX_READS) return false;
    return !((mask & IBV_QP_TIMEOUT) && attr->timeout > 31) && !((mask & IBV_QP_RETRY_CNT) && attr->retry_cnt > 7) &&
           !((mask & IBV_QP_RNR_RETRY) && attr->rnr_retry > 7) && !((mask & IBV_QP_MIN_RNR_TIMER) && attr->min_rnr_timer > 31);
}

static void apply(struct ibv_qp_attr *to, const struct ibv_qp_attr *from, int mask) {
    if (mask & IBV_QP_ACCESS_FLAGS) to->qp_access_flags = from->qp_access_flags;
    if (mask & IBV_QP_PKEY_INDEX) to->pkey_index = from->pkey_index;
    if (mask & IBV_QP_PORT) to->port_num = from->port_num;
    if (mask & IBV_QP_AV) to->ah_attr = from->ah_attr;
    if (mask & IBV_QP_PATH_MTU) to->path_mtu = from->path_mtu;
    if (mask & IBV_QP_TIMEOUT) to->timeout = from->timeout;
    if (mask & IBV_QP_RETRY_CNT) to->retry_cnt = from->retry_cnt;
    if (mask & IBV_QP_RNR_RETRY) to->rnr_retry = from->rnr_retry;
    if (mask & IBV_QP_RQ_PSN) to->rq_psn = from->rq_psn & 0xffffff;
    if (mask & IBV_QP_SQ_PSN) to->sq_psn = from->sq_psn & 0xffffff;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC) to->max_rd_atomic = from->max_rd_atomic;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) to->max_dest_rd_atomic = from->max_dest_rd_atomic;
    if (mask & IBV_QP_MIN_RNR_TIMER) to->min_rnr_timer = from->min_rnr_timer;
    if (mask & IBV_QP_DEST_QPN) to->dest_qp_num = from->dest_qp_num;
}

static void reset(struct sv_qp *qp) {
    atomic_store(&qp->slot->peer, 0);
    sv_cq_forget((struct sv_cq *)qp->ibv.send_cq, qp);
    sv_cq_forget((struct sv_cq *)qp->ibv.recv_cq, qp);
    atomic_store(&qp->rq_freed, 0);
    atomic_store(&qp->sq_freed, 0);
    qp->rq_taken = qp->rq_posted = qp->sq_head = qp->sq_next = qp->sq_tail = qp->timer_from = qp->rnr_until = 0;
    qp->send_offset = qp->read_offset = qp->reads = qp->retries = qp->rnr_retries = qp->expected_offset = 0;
    qp->acknowledge = qp->receiving = qp->read_active = false;
    qp->attr = (struct ibv_qp_attr){0};
}

int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask) {
    struct sv_qp *qp = (struct sv_qp *)ibv;
    pthread_mutex_lock(&qp->lock);
    enum ibv_qp_state from = ibv->state, to = mask & IBV_QP_STATE ? attr->qp_state : from;
    bool sound = permitted(from, to, mask) && valid(attr, mask);
    if (sound) {
        apply(&qp->attr, attr, mask);
        if (to == IBV_QPS_RESET) reset(qp);
        if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) {
            sv_ring_clear(&qp->slot->requests);
            sv_ring_clear(&qp->slot->responses);
            qp->expected = qp->attr.rq_psn;
            atomic_store(&qp->slot->peer, qp->attr.dest_qp_num);
        }
        if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) qp->first_sequence = qp->attr.sq_psn;
        if (to == IBV_QPS_ERR)
            sv_fail(qp);
        else
            sv_set_state(qp, to);
        if (to == IBV_QPS_RTR) sv_lose(qp); /* what the peer has sent before this */
        if (to == IBV_QPS_RTS) sv_transmit(qp, sv_now(), DIRECT);
    }
    pthread_mutex_unlock(&qp->lock);
    return sound ? 0 : EINVAL;
}

int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
    struct sv_qp *qp = (struct sv_qp *)ibv;
    (void)mask;
    pthread_mutex_lock(&qp->lock);
    *attr = qp->attr;
    attr->qp_state = attr->cur_qp_state = ibv->state;
    attr->cap = qp->init.cap;
    if (init) *init = qp->init;
    pthread_mutex_unlock(&qp->lock);
    return 0;
}
