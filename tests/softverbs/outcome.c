/* How requests end, and the way of a packet. Throughout the queue pair is locked. */
#include "softverbs.h"

#include <string.h>

static const enum ibv_wc_opcode completed_as[] = {
    [IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
    [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
    [IBV_WR_SEND] = IBV_WC_SEND,
    [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
    [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
};

static void complete(struct sv_qp *qp, struct ibv_cq *cq, struct sv_completion completion) {
    completion.qp = qp;
    completion.wc.qp_num = qp->ibv.qp_num;
    if (completion.wc.status != IBV_WC_SUCCESS) { /* undefined then: who reads it is to see */
        completion.wc.opcode = (enum ibv_wc_opcode)0x5a;
        completion.wc.byte_len = 0x5a5a5a5a;
    }
    if (!sv_complete((struct sv_cq *)cq, completion)) sv_fail(qp);
}

void sv_end_send(struct sv_qp *qp, enum ibv_wc_status status) {
    struct sv_send *send = &qp->sends[qp->sq_head++ % qp->init.cap.max_send_wr];
    if (send->opcode == IBV_WR_RDMA_READ && qp->sq_head <= qp->sq_next) qp->reads--;
    if (qp->sq_next < qp->sq_head) qp->sq_next = qp->sq_head;
#ifdef SOFTVERBS_BREAK_FREEING
    atomic_store(&qp->sq_freed, qp->sq_head);
#endif
    if (status == IBV_WC_SUCCESS && !(send->flags & IBV_SEND_SIGNALED)) return;
    struct ibv_wc wc = {.wr_id = send->wr_id, .status = status, .opcode = completed_as[send->opcode], .byte_len = send->length};
    complete(qp, qp->ibv.send_cq, (struct sv_completion){.wc = wc, .frees = qp->sq_head});
}

void sv_end_receive(struct sv_qp *qp, enum ibv_wc_status status, const struct sv_packet *packet) {
    struct ibv_wc wc = {.wr_id = qp->receive.wr_id, .status = status, .opcode = IBV_WC_RECV};
    if (packet) {
        wc.opcode = packet->kind == SV_WRITE ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
        wc.byte_len = packet->total;
        wc.src_qp = packet->source;
        wc.imm_data = packet->imm;
        wc.wc_flags = packet->flags & SV_IMM ? IBV_WC_WITH_IMM : 0;
    }
    qp->receiving = false;
    complete(qp, qp->ibv.recv_cq, (struct sv_completion){.wc = wc});
}

bool sv_take_receive(struct sv_qp *qp) {
    if (qp->rq_taken == qp->rq_posted) return false;
    qp->receive = qp->receives[qp->rq_taken++ % qp->init.cap.max_recv_wr];
    return true;
}

void sv_set_state(struct sv_qp *qp, enum ibv_qp_state state) {
    qp->ibv.state = state;
    atomic_store(&qp->slot->state, state);
}

void sv_flush(struct sv_qp *qp) {
#ifndef SOFTVERBS_BREAK_FLUSH
    while (qp->sq_head != qp->sq_tail) sv_end_send(qp, IBV_WC_WR_FLUSH_ERR);
#endif
    if (qp->receiving) sv_end_receive(qp, IBV_WC_WR_FLUSH_ERR, NULL);
    while (sv_take_receive(qp)) sv_end_receive(qp, IBV_WC_WR_FLUSH_ERR, NULL);
}

void sv_fail(struct sv_qp *qp) {
    if (qp->ibv.state == IBV_QPS_ERR) return;
    sv_set_state(qp, IBV_QPS_ERR);
    sv_flush(qp);
}

void sv_lose(struct sv_qp *qp) {
    struct sv_context *context = sv_of(qp->ibv.context);
    struct sv_slot *peer = sv_slot(context->fabric, qp->attr.dest_qp_num);
    if (atomic_load(&peer->peer) == qp->ibv.qp_num) atomic_store(&peer->lost, 1);
    SV_COUNT(context->rail, dropped, 1);
}

struct sv_slot *sv_peer(struct sv_qp *qp) {
    struct sv_context *context = sv_of(qp->ibv.context);
    struct sv_slot *peer = sv_slot(context->fabric, qp->attr.dest_qp_num);
    uint32_t rail = atomic_load(&peer->rail);
    union ibv_gid gid = sv_gid(context->fabric, rail, qp->attr.ah_attr.grh.sgid_index); /* of the same family */
    if (atomic_load(&peer->number) != qp->attr.dest_qp_num || atomic_load(&peer->peer) != qp->ibv.qp_num) return NULL;
    if (memcmp(&gid, &qp->attr.ah_attr.grh.dgid, sizeof gid) != 0) return NULL;
    if (atomic_load(&context->rail->network) != atomic_load(&sv_rail(context->fabric, rail)->network)) return NULL;
    if (sv_rail_dead(context->rail) || sv_rail_dead(sv_rail(context->fabric, rail))) return NULL;
    uint32_t state = atomic_load(&peer->state);
    return state == IBV_QPS_RTR || state == IBV_QPS_RTS ? peer : NULL;
}

/* Takes `duration` of a link that is in use until *until, not before `from`; when it is over. */
static uint64_t occupy(_Atomic uint64_t *until, uint64_t from, uint64_t duration) {
    uint64_t busy = atomic_load(until), end;
    do {
        end = (busy > from ? busy : from) + duration;
    } while (!atomic_compare_exchange_weak(until, &busy, end));
    return end;
}

static uint64_t wire_time(struct sv_rail *rail, uint32_t bytes) {
    uint64_t rate = atomic_load(&rail->rate_mbps);
    return rate ? bytes * 8000ull / rate : 0;
}

void sv_send_packet(struct sv_qp *qp, struct sv_slot *peer, struct sv_ring *ring, struct sv_packet *packet) {
    struct sv_context *context = sv_of(qp->ibv.context);
    struct sv_rail *theirs = sv_rail(context->fabric, atomic_load(&peer->rail));
    struct sv_station *station = sv_station(context->fabric, atomic_load(&peer->station));
    uint64_t delay = atomic_load(&context->rail->delay_ns), out = wire_time(context->rail, packet->length), in = wire_time(theirs, packet->length);
    if (packet->kind == SV_READ_DATA) delay += atomic_load(&context->rail->read_delay_ns);
    packet->due = 0;
    if (delay || out || in) {
        uint64_t now = sv_now(), end = occupy(&context->station->sends_until, now, out);
        if (in) end = occupy(&station->receives_until, end - in, in);
        packet->due = end + delay;
        if (packet->length && packet->length <= SV_SMALL) SV_COUNT(context->rail, small_waits[sv_min((end - now) / 1000, SV_WAITS - 1)], 1);
    }
    packet->source = qp->ibv.qp_num;
    SV_COUNT(context->rail, packets, 1);
    SV_COUNT(context->rail, bytes, packet->length);
    if (packet->flags & SV_ACCOUNTED) SV_COUNT(context->rail, accounted_bytes, packet->length);
    sv_ring_publish(ring, packet);
}

void sv_wake_peer(struct sv_qp *qp) {
    struct sv_context *context = sv_of(qp->ibv.context);
    sv_ring_bell(sv_station(context->fabric, atomic_load(&sv_slot(context->fabric, qp->attr.dest_qp_num)->station)));
}

bool sv_arrived(struct sv_packet *packet, uint64_t now, uint64_t *wake) {
    if (packet->due <= now) return true;
    *wake = sv_min(*wake, packet->due);
    return false;
}
