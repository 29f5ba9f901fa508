#define _GNU_SOURCE
#include "verbs_queue.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define INLINE_WANTED 256u /* bytes: most launches */
#define POLLED 16
#define REPOST 32u /* receives that are posted at once */
/* 4.096 us << TIMEOUT until what was not acknowledged goes out again, RETRIES times: nearly half a second and more until a connection is given up.
 * Of seven Soft-RoCE makes no end. */
#define TIMEOUT 14
#define RETRIES 6
#define RNR_ALWAYS 7 /* a receiver that is not ready is waited for: it is never so for long */
#define RNR_TIMER 5  /* 0.06 ms */

/* ---- life */

static struct ibv_qp *make(struct verbs_queue *q) {
    struct ibv_qp *qp = NULL;
    for (uint32_t size = INLINE_WANTED; !qp; size = size > 64 ? 64 : 0) {
        struct ibv_qp_init_attr attr = {
            .send_cq = q->send_cq,
            .recv_cq = q->receive_cq,
            .cap = {.max_send_wr = VERBS_SENDS, .max_recv_wr = VERBS_RECEIVES, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = size},
            .qp_type = IBV_QPT_RC};
        qp = q->library->create_qp(q->pd, &attr);
        q->inline_most = qp ? attr.cap.max_inline_data : 0;
        if (!size) break;
    }
    return qp;
}

static void breaks(struct verbs_queue *q, const char *why) {
    uint32_t works = 0; /* the first is the cause, the others were behind it */
    if (!atomic_compare_exchange_strong(&q->broken, &works, 1)) return;
    snprintf(q->why, sizeof q->why, "the RDMA device %.60s: %.80s", q->rail->name, why);
    atomic_store(&q->broken, 2);
}

static void post_receives(struct verbs_queue *q, uint32_t n) {
    struct ibv_recv_wr wr[REPOST];
    memset(wr, 0, sizeof wr);
    for (uint32_t i = 0; i < n; i++) wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
    struct ibv_recv_wr *bad;
    int error = n ? ibv_post_recv(q->qp, wr, &bad) : 0;
    if (error) breaks(q, strerror(error));
    q->received += n;
}

bool gv_verbs_queue_open(struct verbs_queue *q, char why[GV_DEATH_TEXT]) {
    const struct verbs_library *l = q->library;
    struct ibv_context *context = q->rail->context;
    const char *what = "no completion queue";
    atomic_store(&q->broken, 0);
    atomic_store(&q->hello, false);
    atomic_store(&q->taken, 0);
    q->posted = q->done = 0;
    q->news = q->received = 0;
    q->reads_posted = q->reads_done = q->reads_ended = 0;
    atomic_store(&q->told_taken, 0);
    atomic_store(&q->told_read, 0);
    atomic_store(&q->told_pulled, 0);
    atomic_store(&q->under_way, 0);
    memset(q->note, 0, sizeof *q->note);
    q->send_cq = l->create_cq(context, VERBS_SENDS + 1, NULL, q->channel, 0);
    if (q->send_cq) q->receive_cq = l->create_cq(context, VERBS_RECEIVES + 1, NULL, q->channel, 0);
    if (q->receive_cq) {
        what = "no queue pair";
        q->qp = make(q);
    }
    if (q->qp) {
        struct ibv_qp_attr attr = {
            .qp_state = IBV_QPS_INIT, .port_num = q->rail->port, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
        int error = l->modify_qp(q->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        if (!error) {
            for (uint32_t i = 0; i < VERBS_RECEIVES; i += REPOST) post_receives(q, REPOST);
            if (!gv_verbs_queue_broken(q)) return true;
        }
        what = "a queue pair that takes no receives";
        errno = error ? error : ENOMEM;
    }
    snprintf(why, GV_DEATH_TEXT, "the RDMA device %.60s gives %s: %s", q->rail->name, what, strerror(errno));
    gv_verbs_queue_close(q);
    return false;
}

struct verbs_peer_queue gv_verbs_queue_self(const struct verbs_queue *q) {
    return (struct verbs_peer_queue){.number = q->qp->qp_num, .sequence = q->qp->qp_num * 0x9e3779u & 0xffffffu};
}

void gv_verbs_queue_connect(struct verbs_queue *q, const struct verbs_peer_rail *rail, const struct verbs_peer_queue *peer) {
    bool routed = q->rail->link_layer == IBV_LINK_LAYER_ETHERNET;
    q->reads_most = q->rail->reads_out < VERBS_READS ? q->rail->reads_out : VERBS_READS;
    if (q->reads_most > rail->reads) q->reads_most = rail->reads ? rail->reads : 1;
    q->peer_rail = rail->index % GV_VERBS_RAILS_MAX;
    uint32_t theirs = gv_verbs_rail_meets(q->rail, rail->link_layer, rail->gids);
    if (theirs == GV_VERBS_GIDS) {
        breaks(q, "the peer's port is in another network");
        return;
    }
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu = (enum ibv_mtu)(rail->mtu < q->rail->mtu ? rail->mtu : q->rail->mtu),
                               .dest_qp_num = peer->number,
                               .rq_psn = peer->sequence,
                               .max_dest_rd_atomic = q->rail->reads_in < VERBS_READS ? q->rail->reads_in : VERBS_READS,
                               .min_rnr_timer = RNR_TIMER,
                               .ah_attr = {.dlid = rail->lid, .is_global = routed, .port_num = q->rail->port}};
    if (routed) {
        memcpy(attr.ah_attr.grh.dgid.raw, rail->gids[theirs], sizeof rail->gids[theirs]);
        attr.ah_attr.grh.sgid_index = (uint8_t)q->rail->gids[q->rail->gid].index;
        attr.ah_attr.grh.hop_limit = 64;
    }
    int error = q->library->modify_qp(q->qp, &attr,
                                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                          IBV_QP_MIN_RNR_TIMER);
    if (!error) {
        attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                    .sq_psn = gv_verbs_queue_self(q).sequence,
                                    .timeout = TIMEOUT,
                                    .retry_cnt = RETRIES,
                                    .rnr_retry = RNR_ALWAYS,
                                    .max_rd_atomic = (uint8_t)q->reads_most};
        error = q->library->modify_qp(q->qp, &attr,
                                      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
    }
    if (error) breaks(q, strerror(error));
}

void gv_verbs_queue_stop(struct verbs_queue *q) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    if (q->qp) q->library->modify_qp(q->qp, &attr, IBV_QP_STATE);
}

void gv_verbs_queue_close(struct verbs_queue *q) {
    if (q->qp) q->library->destroy_qp(q->qp);
    if (q->receive_cq) q->library->destroy_cq(q->receive_cq);
    if (q->send_cq) q->library->destroy_cq(q->send_cq);
    q->qp = NULL;
    q->receive_cq = q->send_cq = NULL;
}

/* ---- sending */

/* The request that the read of this number was has come to an end: the one of number `ended` is not before it. */
static bool has_ended(const struct verbs_queue *q, uint64_t read, uint32_t ended) {
    return read < q->reads_posted && (int32_t)(ended - q->reads[read % VERBS_READS]) >= 0;
}

/* Takes completions of sends: of what carried out well only reads, and the last request of each batch, have one. They come in order. */
static void reap(struct verbs_queue *q) {
    struct ibv_wc wc[POLLED];
    for (int n; (n = ibv_poll_cq(q->send_cq, POLLED, wc)) > 0;)
        for (int i = 0; i < n; i++) {
            uint32_t ended = (uint32_t)wc[i].wr_id;
            if (wc[i].status == IBV_WC_SUCCESS) {
                q->done = ended;
                while (has_ended(q, q->reads_done, ended)) q->reads_done++;
            } else {
                breaks(q, q->library->wc_status_str(wc[i].status));
            }
            while (has_ended(q, q->reads_ended, ended)) q->reads_ended++;
        }
    atomic_store_explicit(&q->under_way, q->posted - q->done, memory_order_relaxed);
}

bool gv_verbs_queue_room(struct verbs_queue *q, uint32_t requests, uint32_t news, bool notes) {
    if (VERBS_SENDS - (q->posted - q->done) < requests + 1) reap(q); /* one more, for a note */
    uint64_t under_way = q->news - atomic_load_explicit(&q->note->taken, memory_order_relaxed), most = VERBS_RECEIVES - (notes ? 0 : VERBS_SPARE);
    return VERBS_SENDS - (q->posted - q->done) >= requests + 1 && under_way + news <= most;
}

bool gv_verbs_queue_idle(struct verbs_queue *q) {
    if (q->qp && q->posted != q->done) reap(q);
    return !q->qp || gv_verbs_queue_broken(q) || q->posted == q->done;
}

bool gv_verbs_queue_owes(const struct verbs_queue *q) {
    return atomic_load_explicit(&q->taken, memory_order_relaxed) - atomic_load_explicit(&q->told_taken, memory_order_relaxed) >= VERBS_TELL;
}

struct batch {
    struct ibv_send_wr wr[VERBS_BATCH + 1];
    struct ibv_sge part[VERBS_BATCH + 1];
    uint32_t n;
};

static void add(struct verbs_queue *q, struct batch *b, const struct verbs_write *write, uint32_t local_key) {
    struct ibv_sge *part = &b->part[b->n];
    struct ibv_send_wr *wr = &b->wr[b->n++];
    *part = (struct ibv_sge){.addr = (uintptr_t)write->from, .length = write->size, .lkey = local_key};
    *wr = (struct ibv_send_wr){.wr_id = q->posted + b->n,
                               .sg_list = part,
                               .num_sge = write->size != 0,
                               .opcode = write->tells ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
                               .send_flags = write->size <= q->inline_most ? IBV_SEND_INLINE : 0,
                               .imm_data = htonl(write->news),
                               .wr.rdma = {.remote_addr = write->to, .rkey = q->remote_key}};
    if (b->n > 1) b->wr[b->n - 2].next = wr;
}

bool gv_verbs_queue_post(struct verbs_queue *q, const struct verbs_write *writes, uint32_t n, bool note, uint64_t read) {
    struct batch b = {.n = 0};
    uint64_t said[3] = {read, atomic_load(&q->taken), atomic_load(q->pulled)};
    note = note || gv_verbs_queue_owes(q);
    const uint64_t *from = said;
    if (note && q->inline_most < sizeof said) from = memcpy(q->note_out, said, sizeof said);
    if (note) add(q, &b, &(struct verbs_write){.from = from, .to = q->note_address, .size = sizeof said}, q->out_key);
    for (uint32_t i = 0; i < n; i++) add(q, &b, &writes[i], q->out_key);
    if (!n && note) add(q, &b, &(struct verbs_write){.to = q->note_address, .tells = true, .news = verbs_news(VERBS_NOTE, 0)}, q->out_key);
    if (!b.n) return true;
    for (uint32_t i = 0; i < b.n; i++) q->news += b.wr[i].opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    b.wr[b.n - 1].send_flags |= IBV_SEND_SIGNALED;
    q->posted += b.n;
    atomic_store_explicit(&q->under_way, q->posted - q->done, memory_order_relaxed);
    if (note) {
        atomic_store_explicit(&q->told_read, read, memory_order_relaxed);
        atomic_store_explicit(&q->told_taken, said[1], memory_order_relaxed);
        atomic_store_explicit(&q->told_pulled, said[2], memory_order_relaxed);
    }
    struct ibv_send_wr *bad;
    int error = ibv_post_send(q->qp, b.wr, &bad);
    atomic_store_explicit(&q->doorbells, atomic_load_explicit(&q->doorbells, memory_order_relaxed) + 1, memory_order_relaxed);
    if (!error) return true;
    breaks(q, strerror(error));
    return false;
}

bool gv_verbs_queue_may_read(struct verbs_queue *q, uint32_t most) {
    reap(q);
    return q->reads_posted - q->reads_ended < (most < q->reads_most ? most : q->reads_most) && !gv_verbs_queue_broken(q) &&
           gv_verbs_queue_room(q, 1, 0, false);
}

uint64_t gv_verbs_queue_read(struct verbs_queue *q, void *to, uint32_t local_key, uint64_t from, uint32_t remote_key, uint32_t size) {
    struct ibv_sge part = {.addr = (uintptr_t)to, .length = size, .lkey = local_key};
    struct ibv_send_wr wr = {.wr_id = q->posted + 1,
                             .sg_list = &part,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {.remote_addr = from, .rkey = remote_key}};
    struct ibv_send_wr *bad;
    q->reads[q->reads_posted % VERBS_READS] = ++q->posted;
    q->reads_posted++;
    atomic_store_explicit(&q->under_way, q->posted - q->done, memory_order_relaxed);
    int error = ibv_post_send(q->qp, &wr, &bad);
    atomic_store_explicit(&q->doorbells, atomic_load_explicit(&q->doorbells, memory_order_relaxed) + 1, memory_order_relaxed);
    if (!error) return q->reads_posted;
    q->reads_posted--;
    breaks(q, strerror(error));
    return 0;
}

void gv_verbs_queue_arm_sends(struct verbs_queue *q) {
    if (q->qp) ibv_req_notify_cq(q->send_cq, 0);
}

/* ---- receiving */

uint32_t gv_verbs_queue_poll(struct verbs_queue *q, void (*came)(void *arg, uint32_t news, uint32_t size), void *arg) {
    struct ibv_wc wc[POLLED];
    uint32_t all = 0;
    for (int n; (n = ibv_poll_cq(q->receive_cq, POLLED, wc)) > 0;) {
        for (int i = 0; i < n; i++) {
            if (wc[i].status != IBV_WC_SUCCESS) {
                breaks(q, q->library->wc_status_str(wc[i].status));
                continue;
            }
            uint32_t news = ntohl(wc[i].imm_data);
            all++;
            if (news >> VERBS_POSITION_BITS == VERBS_HELLO)
                atomic_store(&q->hello, true);
            else
                came(arg, news, wc[i].byte_len);
        }
        if (n < POLLED) break;
    }
    if (!all) return 0;
    uint64_t taken = atomic_load(&q->taken) + all;
    /* Posted before the peer is told. */
    while (taken + VERBS_RECEIVES - q->received >= REPOST && !gv_verbs_queue_broken(q)) post_receives(q, REPOST);
    atomic_store(&q->taken, taken);
    return all;
}

void gv_verbs_queue_arm(struct verbs_queue *q) {
    if (q->qp) ibv_req_notify_cq(q->receive_cq, 0);
}

void gv_verbs_channel_drain(const struct verbs_library *library, struct ibv_comp_channel *channel) {
    struct ibv_cq *cq;
    void *arg;
    while (library->get_cq_event(channel, &cq, &arg) == 0) library->ack_cq_events(cq, 1);
}
