/* The responder's side of a queue pair: carries out what arrives. The queue pair is locked. */
#include "softverbs.h"

/* A packet towards the requester; NULL when there is no room. */
static struct sv_packet *response(struct sv_qp *qp, struct sv_slot *peer, enum sv_kind kind, uint64_t sequence, uint32_t payload) {
    uint8_t *data = sv_ring_data(sv_of(qp->ibv.context)->fabric, peer, &peer->responses);
    struct sv_packet *packet = sv_ring_reserve(&peer->responses, data, payload);
    if (!packet) return NULL;
    uint32_t bytes = packet->bytes;
    *packet = (struct sv_packet){.kind = (uint8_t)kind, .sequence = sequence, .bytes = bytes};
    return packet;
}

/* Says no to the packet. There is room: sv_responder has looked. */
static void refuse(struct sv_qp *qp, enum sv_kind kind, const struct sv_packet *request, enum ibv_wc_status status) {
    struct sv_slot *peer = sv_peer(qp);
    struct sv_packet *packet = peer ? response(qp, peer, kind, request->sequence, 0) : NULL;
    qp->acknowledge = false; /* this acknowledges what was before it */
    if (!packet) {
        sv_lose(qp);
        return;
    }
    packet->status = (uint8_t)status;
    packet->offset = request->offset;
    packet->timer = qp->attr.min_rnr_timer;
    if (kind == SV_RNR) SV_COUNT(sv_of(qp->ibv.context)->rail, rnr_naks, 1);
    sv_send_packet(qp, peer, &peer->responses, packet);
    sv_wake_peer(qp);
}

/* A receive for the message, if it has none; refuses it when there is none. */
static bool has_receive(struct sv_qp *qp, const struct sv_packet *packet) {
    struct sv_rail *rail = sv_of(qp->ibv.context)->rail;
    if (qp->receiving) return true;
    uint64_t every = atomic_load(&rail->rnr_every);
    bool withheld = every && (SV_COUNT(rail, rnr_count, 1) + 1) % every == 0;
    qp->receiving = !withheld && sv_take_receive(qp);
    if (!qp->receiving) refuse(qp, SV_RNR, packet, IBV_WC_SUCCESS);
    return qp->receiving;
}

static void next_message(struct sv_qp *qp) {
    qp->expected++;
    qp->expected_offset = 0;
    qp->acknowledge = true;
}

static void carry_out_send(struct sv_qp *qp, struct sv_packet *packet) {
    if (!has_receive(qp, packet)) return;
    uint64_t room = 0;
    for (int i = 0; i < qp->receive.count; i++) room += qp->receive.sges[i].length;
    bool fits = room >= packet->total;
    if (!fits || !sv_copy_sges(sv_of(qp->ibv.context), qp->ibv.pd, qp->receive.sges, qp->receive.count, packet->offset, (uint8_t *)(packet + 1),
                               packet->length, true)) {
        refuse(qp, SV_NAK, packet, fits ? IBV_WC_REM_OP_ERR : IBV_WC_REM_INV_REQ_ERR);
        sv_end_receive(qp, fits ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR, packet);
        sv_fail(qp);
        return;
    }
    qp->expected_offset += packet->length;
    if (!(packet->flags & SV_LAST)) return;
    next_message(qp);
    sv_end_receive(qp, IBV_WC_SUCCESS, packet);
}

static void refuse_access(struct sv_qp *qp, const struct sv_packet *packet) {
    refuse(qp, SV_NAK, packet, IBV_WC_REM_ACCESS_ERR);
    sv_fail(qp);
}

static void carry_out_write(struct sv_qp *qp, struct sv_packet *packet) {
    struct sv_context *context = sv_of(qp->ibv.context);
    bool allowed = qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE;
    if (!packet->offset) {
        allowed = !sv_nth(&context->rail->bad_rkey_at) && allowed &&
                  sv_copy_remote(context, qp->ibv.pd, packet->rkey, packet->remote, NULL, packet->total, true);
    }
    uint8_t *payload = packet->flags & SV_ACCOUNTED ? NULL : (uint8_t *)(packet + 1);
    bool with_receive = (packet->flags & SV_LAST) && (packet->flags & SV_IMM);
    if (allowed && with_receive && !has_receive(qp, packet)) return;
    if (!allowed || !sv_copy_remote(context, qp->ibv.pd, packet->rkey, packet->remote + packet->offset, payload, packet->length, true)) {
        refuse_access(qp, packet);
        return;
    }
    qp->expected_offset += packet->length;
    if (!(packet->flags & SV_LAST)) return;
    next_message(qp);
    if (with_receive) sv_end_receive(qp, IBV_WC_SUCCESS, packet);
}

static void start_read(struct sv_qp *qp, struct sv_packet *packet) {
    struct sv_context *context = sv_of(qp->ibv.context);
    if (packet->imm > qp->attr.max_dest_rd_atomic) { /* an adapter refuses it when it has not answered so many */
        refuse(qp, SV_NAK, packet, IBV_WC_REM_INV_REQ_ERR);
        sv_fail(qp);
        return;
    }
    if (!(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_READ) ||
        !sv_copy_remote(context, qp->ibv.pd, packet->rkey, packet->remote, NULL, packet->total, false)) {
        refuse_access(qp, packet);
        return;
    }
    qp->read = *packet;
    qp->read_active = true;
}

/* Sends what there is room for; true when that was all. */
static bool answer_read(struct sv_qp *qp) {
    struct sv_context *context = sv_of(qp->ibv.context);
    struct sv_packet *read = &qp->read;
    struct sv_slot *peer = sv_peer(qp);
    while (peer && qp->read_active) {
        bool accounted = read->flags & SV_ACCOUNTED;
        uint32_t part = accounted ? read->total : (uint32_t)sv_min(read->total - read->offset, SV_FRAGMENT);
        struct sv_packet *packet = response(qp, peer, SV_READ_DATA, read->sequence, accounted ? 0 : part);
        if (!packet) break;
        uint8_t *payload = accounted ? NULL : (uint8_t *)(packet + 1);
        if (!sv_copy_remote(context, qp->ibv.pd, read->rkey, read->remote + read->offset, payload, part, false)) {
            qp->read_active = false;
            refuse_access(qp, read);
            break;
        }
        packet->offset = read->offset;
        packet->length = part;
        read->offset += part;
        qp->read_active = read->offset < read->total;
        packet->flags = (uint8_t)((qp->read_active ? 0 : SV_LAST) | (read->flags & SV_ACCOUNTED));
        sv_send_packet(qp, peer, &peer->responses, packet);
    }
    if (peer) {
        sv_wake_peer(qp);
    } else {
        qp->read_active = false;
        sv_lose(qp);
    }
    return !qp->read_active;
}

static void carry_out(struct sv_qp *qp, struct sv_packet *packet) {
    if (packet->source != qp->attr.dest_qp_num) return;
    if (packet->sequence < qp->expected) { /* sent again, because the answer was lost */
        if (packet->kind == SV_READ)
            start_read(qp, packet);
        else
            qp->acknowledge = true;
    } else if (packet->sequence > qp->expected || packet->offset > qp->expected_offset) {
        sv_lose(qp); /* something before it was */
    } else if (packet->offset == qp->expected_offset) {
        if (packet->kind == SV_SEND)
            carry_out_send(qp, packet);
        else if (packet->kind == SV_WRITE)
            carry_out_write(qp, packet);
        else if (packet->kind == SV_READ) {
            start_read(qp, packet);
            next_message(qp);
            qp->acknowledge = false;
        }
    }
}

static bool receives(const struct sv_qp *qp) { return qp->ibv.state == IBV_QPS_RTR || qp->ibv.state == IBV_QPS_RTS; }

bool sv_responder(struct sv_qp *qp, uint64_t now, uint64_t *wake) {
    struct sv_context *context = sv_of(qp->ibv.context);
    struct sv_ring *ring = &qp->slot->requests;
    struct sv_packet *packet;
    bool some = false;
    for (int seen = 0; seen < 32 && receives(qp); seen++) {
        struct sv_slot *peer = sv_peer(qp);
        if (peer && !sv_ring_room(&peer->responses, 0)) return some;
        if (qp->read_active && !answer_read(qp)) return some;
        packet = sv_ring_peek(ring, qp->requests);
        if (!packet || !sv_arrived(packet, now, wake)) break;
        if (sv_rail_dead(context->rail) || sv_nth(&context->rail->drop_at))
            sv_lose(qp);
        else
            carry_out(qp, packet);
        if (sv_ring_consume(ring, packet)) sv_wake_peer(qp);
        some = true;
    }
    if (qp->acknowledge && receives(qp)) {
        struct sv_slot *peer = sv_peer(qp);
        packet = peer ? response(qp, peer, SV_ACK, qp->expected - 1, 0) : NULL;
        if (peer && !packet) return some;
        qp->acknowledge = false;
        if (!peer) {
            sv_lose(qp);
        } else {
            sv_send_packet(qp, peer, &peer->responses, packet);
            sv_wake_peer(qp);
        }
    }
    return some;
}
