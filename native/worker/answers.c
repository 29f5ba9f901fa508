/* What goes back to the client. */
#include <stdio.h>
#include <string.h>

#include "state.h"

struct gv_record *worker_event(struct worker *w, uint16_t op, uint32_t ctx, uint64_t body) {
    struct gv_record *out = gv_send_begin(w->link, (uint32_t)(sizeof *out + body), NULL);
    if (!out) return NULL;
    out->op = op;
    out->flags = 0;
    out->ctx = ctx;
    return out;
}

int worker_reply(struct worker *w, const struct gv_record *record, int status, const char *text, const void *body, uint32_t size) {
    struct gv_evt_reply reply = {record->seq, status, text ? text : "", status ? NULL : body, status ? 0 : size};
    struct gv_record *out = worker_event(w, GV_OP_REPLY, 0, gv_evt_reply_size(&reply));
    if (!out) return -1;
    gv_evt_reply_encode(&reply, out + 1);
    gv_send_commit(w->link);
    gv_send_flush(w->link);
    return 0;
}

bool worker_is_sticky(int status) {
    switch (status) {
    case 214: /* ECC uncorrectable */
    case 700: /* illegal address */
    case 702: /* launch timeout */
    case 710: /* assert */
    case 714: /* hardware stack error */
    case 715: /* illegal instruction */
    case 716: /* misaligned address */
    case 717: /* invalid address space */
    case 718: /* invalid pc */
    case 719: /* launch failed */ return true;
    default: return false;
    }
}

void worker_failed(struct worker *w, const struct gv_record *record, int status, const char *text) {
    struct gv_evt_failed failed = {record->seq, record->op, status, worker_is_sticky(status), text ? text : ""};
    struct gv_record *out = worker_event(w, GV_OP_FAILED, record->ctx, gv_evt_failed_size(&failed));
    if (!out) return;
    gv_evt_failed_encode(&failed, out + 1);
    gv_send_commit(w->link);
    gv_send_flush(w->link);
}
