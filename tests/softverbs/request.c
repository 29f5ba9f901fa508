/* The requester's side of a queue pair: sends what is posted, and takes the answers. The queue pair is locked. */
#include "softverbs.h"

static struct sv_send *send_at(struct sv_qp *qp, uint64_t index) { return &qp->sends[index % qp->init.cap.max_send_wr]; }

static void go_back(struct sv_qp *qp, uint64_t index, uint32_t offset) {
    for (uint64_t i = index; i < qp->sq_next; i++) qp->reads -= send_at(qp, i)->opcode == IBV_WR_RDMA_READ;
    qp->sq_next = index;
    qp->send_offset = offset;
    qp->read_offset = 0;
}

static void end_in_error(struct sv_qp *qp, enum ibv_wc_status status) {
    sv_end_send(qp, status);
    sv_fail(qp);
}

/* Whether the next request may start now; if it cannot be carried out at all it ends, behind those before it. */
static bool may_start(struct sv_qp *qp, struct sv_send *send) {
    struct sv_context *context = sv_of(qp->ibv.context);
    bool read = send->opcode == IBV_WR_RDMA_READ;
    enum ibv_wc_status status = IBV_WC_SUCCESS;
    if (read && !qp->attr.max_rd_atomic)
        status = IBV_WC_LOC_QP_OP_ERR;
    else if (!send->inlined && !sv_copy_sges(context, qp->ibv.pd, send->sges, send->count, 0, NULL, send->length, read))
        status = IBV_WC_LOC_PROT_ERR;
    if (status != IBV_WC_SUCCESS) {
        if (qp->sq_next == qp->sq_head) end_in_error(qp, status);
        return false;
    }
    if (read && qp->reads >= qp->attr.max_rd_atomic) return false;
    return !((send->flags & IBV_SEND_FENCE) && qp->reads);
}

static void fill(struct sv_qp *qp, struct sv_send *send, struct sv_packet *packet, uint32_t part, bool accounted) {
    uint8_t *payload = (uint8_t *)(packet + 1);
    bool last = qp->send_offset + part == send->length, read = send->opcode == IBV_WR_RDMA_READ;
    bool with_imm = send->opcode == IBV_WR_SEND_WITH_IMM || send->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    packet->kind = read ? SV_READ : send->opcode == IBV_WR_SEND || send->opcode == IBV_WR_SEND_WITH_IMM ? SV_SEND : SV_WRITE;
    packet->flags = (uint8_t)((last ? SV_LAST : 0) | (with_imm ? SV_IMM : 0) | (accounted ? SV_ACCOUNTED : 0));
    packet->sequence = qp->first_sequence + qp->sq_next;
    packet->remote = send->remote;
    packet->rkey = send->rkey;
    packet->total = send->length;
    packet->offset = qp->send_offset;
    packet->length = part;
    packet->imm = read ? qp->reads + 1 : send->imm;
    if (accounted || !part) return;
    if (send->inlined)
        sv_copy(payload, send->inlined + qp->send_offset, part);
    else
        sv_copy_sges(sv_of(qp->ibv.context), qp->ibv.pd, send->sges, send->count, qp->send_offset, payload, part, false);
}

void sv_transmit(struct sv_qp *qp, uint64_t now, uint32_t longest) {
    struct sv_context *context = sv_of(qp->ibv.context);
    uint64_t above = atomic_load(&context->rail->account_above), delay = atomic_load(&context->rail->send_delay_ns);
    bool sent = false;
    while (qp->ibv.state == IBV_QPS_RTS && qp->sq_next != qp->sq_tail && qp->rnr_until <= now) {
        struct sv_send *send = send_at(qp, qp->sq_next);
        bool read = send->opcode == IBV_WR_RDMA_READ;
        qp->send_from = delay && !send->inlined ? send->posted_at + delay : 0;
        if ((send->length > longest && !read) || qp->send_from > now) {
            if (longest != UINT32_MAX) sv_ring_bell(context->station);
            break;
        }
        if (!qp->send_offset && !may_start(qp, send)) break;
        bool accounted = above && send->length > above && (read || send->opcode == IBV_WR_RDMA_WRITE || send->opcode == IBV_WR_RDMA_WRITE_WITH_IMM);
        uint32_t part = read ? 0 : send->length - qp->send_offset;
        if (!accounted) part = (uint32_t)sv_min(part, SV_FRAGMENT);
        struct sv_slot *peer = sv_peer(qp);
        if (peer) {
            uint8_t *data = sv_ring_data(context->fabric, peer, &peer->requests);
            struct sv_packet *packet = sv_ring_reserve(&peer->requests, data, accounted ? 0 : part);
            if (!packet) break;
            fill(qp, send, packet, part, accounted);
            sv_send_packet(qp, peer, &peer->requests, packet);
            sent = true;
        } else {
            atomic_store(&qp->slot->lost, 1);
            SV_COUNT(context->rail, dropped, 1);
        }
        if (!qp->timer_from) qp->timer_from = now;
        qp->send_offset += part;
        if (read || qp->send_offset == send->length) {
            qp->reads += read;
            qp->send_offset = 0;
            qp->sq_next++;
        }
    }
    if (sent) sv_wake_peer(qp);
}

/* Everything before `index` has been carried out; a read only when its data has come. */
static void acknowledged(struct sv_qp *qp, uint64_t index) {
    while (qp->sq_head < index) {
        if (send_at(qp, qp->sq_head)->opcode == IBV_WR_RDMA_READ) {
            atomic_store(&qp->slot->lost, 1);
            return;
        }
        sv_end_send(qp, IBV_WC_SUCCESS);
        qp->retries = qp->rnr_retries = 0;
    }
}

static void read_data(struct sv_qp *qp, struct sv_packet *packet) {
    struct sv_send *send = send_at(qp, qp->sq_head);
    if (send->opcode != IBV_WR_RDMA_READ || packet->offset != qp->read_offset) return;
    uint8_t *payload = packet->flags & SV_ACCOUNTED ? NULL : (uint8_t *)(packet + 1);
    if (!sv_copy_sges(sv_of(qp->ibv.context), qp->ibv.pd, send->sges, send->count, packet->offset, payload, packet->length, true)) {
        end_in_error(qp, IBV_WC_LOC_PROT_ERR);
        return;
    }
    qp->read_offset += packet->length;
    if (!(packet->flags & SV_LAST)) return;
    qp->read_offset = 0;
    qp->retries = qp->rnr_retries = 0;
    sv_end_send(qp, IBV_WC_SUCCESS);
}

/* InfiniBand's table of 32 times: doubling every second code. */
static uint64_t rnr_ns(unsigned code) {
    if (code == 0) return 655360000;
    return code == 1 ? 10000 : (code % 2 ? 15000ull << (code - 1) / 2 : 10000ull << code / 2);
}

static void answered(struct sv_qp *qp, struct sv_packet *packet, uint64_t now) {
    uint64_t index = packet->sequence - qp->first_sequence;
    bool begun = index == qp->sq_next && qp->send_offset; /* refused before all of it was sent */
    if (packet->source != qp->attr.dest_qp_num || index < qp->sq_head || (index >= qp->sq_next && !begun)) return;
    qp->timer_from = now;
    acknowledged(qp, index + (packet->kind == SV_ACK));
    if (packet->kind != SV_ACK && qp->sq_head == index) {
        if (packet->kind == SV_READ_DATA) read_data(qp, packet);
        if (packet->kind == SV_NAK) end_in_error(qp, packet->status);
        if (packet->kind == SV_RNR) {
            if (qp->attr.rnr_retry != 7 && qp->rnr_retries++ >= qp->attr.rnr_retry) {
                end_in_error(qp, IBV_WC_RNR_RETRY_EXC_ERR);
            } else {
                go_back(qp, index, packet->offset);
                qp->rnr_until = now + rnr_ns(packet->timer);
            }
        }
    }
    if (qp->sq_head == qp->sq_next && !qp->send_offset) {
        qp->timer_from = 0;
        atomic_store(&qp->slot->lost, 0);
    }
}

/* A device counts a retry whenever the time is over. This one only when something was lost or nobody is there, not because a machine is slow. */
static void timer(struct sv_qp *qp, uint64_t now, uint64_t *wake) {
    struct sv_context *context = sv_of(qp->ibv.context);
    if (qp->rnr_until > now) {
        *wake = sv_min(*wake, qp->rnr_until);
        return;
    }
    qp->rnr_until = 0;
    if (!qp->timer_from || !qp->attr.timeout || qp->ibv.state != IBV_QPS_RTS) return;
    uint64_t due = qp->timer_from + (4096ull << qp->attr.timeout);
    if (now >= due) {
        struct sv_slot *peer = sv_peer(qp);
        bool there = peer && sv_station_lives(sv_station(context->fabric, atomic_load(&peer->station)));
        qp->timer_from = now;
        due = now + (4096ull << qp->attr.timeout);
        if (!there || atomic_load(&qp->slot->lost)) {
#ifndef SOFTVERBS_BREAK_RETRY
            if (qp->retries++ >= qp->attr.retry_cnt) {
                end_in_error(qp, IBV_WC_RETRY_EXC_ERR);
                return;
            }
#endif
            SV_COUNT(context->rail, timeouts, 1);
            atomic_store(&qp->slot->lost, 0);
            go_back(qp, qp->sq_head, 0);
        }
    }
    *wake = sv_min(*wake, due);
}

bool sv_requester(struct sv_qp *qp, uint64_t now, uint64_t *wake) {
    struct sv_rail *rail = sv_of(qp->ibv.context)->rail;
    struct sv_ring *ring = &qp->slot->responses;
    struct sv_packet *packet;
    bool some = false;
    while (qp->ibv.state == IBV_QPS_RTS && (packet = sv_ring_peek(ring, qp->responses))) {
        if (!sv_arrived(packet, now, wake)) break;
        if (sv_rail_dead(rail) || sv_nth(&rail->drop_at))
            atomic_store(&qp->slot->lost, 1);
        else
            answered(qp, packet, now);
        if (sv_ring_consume(ring, packet)) sv_wake_peer(qp);
        some = true;
    }
    timer(qp, now, wake);
    sv_transmit(qp, now, UINT32_MAX);
    if (qp->send_from > now) *wake = sv_min(*wake, qp->send_from);
    return some;
}
