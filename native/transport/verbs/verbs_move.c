/* The worker's end goes on in another process: what the client may lack goes with the image, and what came and was not read. */
#include <stdlib.h>
#include <string.h>

#include "../../wire/image_stream.h"
#include "verbs.h"

void gv_verbs_pause(struct gv_link *link) { gv_verbs_wake_all((struct verbs *)link); }

void gv_verbs_cut(struct gv_link *link, const char *why) { gv_resume_cut(&((struct verbs *)link)->resume, why, 0); }

/* The bytes of a ring between two positions. */
static void save_span(const uint8_t *ring, uint64_t size, uint64_t from, uint64_t to, struct gv_image_out *out) {
    gv_image_put(out, from);
    gv_image_put(out, to);
    for (uint64_t next; from < to; from = next) {
        uint64_t offset = from & (size - 1);
        next = from - offset + size < to ? from - offset + size : to;
        gv_image_put_bytes(out, ring + offset, next - from);
    }
}

/* False: it is none. */
static bool restore_span(uint8_t *ring, uint64_t size, uint64_t *from, uint64_t *to, struct gv_image_in *in) {
    *from = gv_image_get(in, UINT64_MAX);
    *to = gv_image_get(in, UINT64_MAX);
    if (*to - *from > size) return false;
    for (uint64_t at = *from, next; at < *to; at = next) {
        uint64_t offset = at & (size - 1);
        next = at - offset + size < *to ? at - offset + size : *to;
        void *bytes = gv_image_get_block(in, next - at);
        if (!bytes) return false;
        memcpy(ring + offset, bytes, next - at);
        free(bytes);
    }
    return true;
}

void gv_verbs_save(struct gv_link *link, struct gv_image_out *out) {
    struct verbs *v = (struct verbs *)link;
    gv_verbs_close_queues(v);
    gv_ring_release(&v->rx);
    save_span(v->out->records, VERBS_RECORD_RING, atomic_load(&v->out_control->head), v->tx.tail, out);
    save_span(v->in->records, VERBS_RECORD_RING, v->rx.head, v->arrived, out);
    save_span(v->out->payloads, VERBS_BULK_RING, atomic_load(&v->bulk_out_control->head), v->bulk_tx.tail, out);
    save_span(v->in->payloads, VERBS_BULK_RING, v->bulk_rx.head, v->bulk_arrived, out);
    gv_image_put(out, atomic_load(&v->parts.written));
    gv_image_put(out, atomic_load(&v->received));
    gv_image_put(out, atomic_load(&v->pulled));
    gv_image_put(out, atomic_load(&v->loans.returned));
    if (gv_verbs_loans_out(v) || gv_verbs_part_left(v)) gv_image_out_fail(out, "payloads are under way");
    if (!gv_part_queue_idle(&v->parts)) gv_image_out_fail(out, "payloads to the client are under way");
}

static bool restore_out(struct gv_ring_writer *w, uint8_t *ring, _Atomic uint64_t *handed_over, uint64_t granularity, struct gv_image_in *in) {
    uint64_t from, to;
    if (!restore_span(ring, w->size, &from, &to, in)) return false;
    atomic_store(&w->control->head, from);
    atomic_store(&w->control->tail, to);
    atomic_store(handed_over, to);
    return gv_ring_writer_resume(w, to, granularity);
}

static bool restore_in(struct gv_ring_reader *r, uint8_t *ring, uint64_t *arrived, uint64_t granularity, struct gv_image_in *in) {
    uint64_t from, to;
    if (!restore_span(ring, r->size, &from, &to, in)) return false;
    atomic_store(&r->control->head, from);
    atomic_store(&r->control->tail, to);
    *arrived = to;
    return gv_ring_reader_resume(r, from, granularity) && to % granularity == 0;
}

void gv_verbs_restore(struct gv_link *link, struct gv_image_in *in) {
    struct verbs *v = (struct verbs *)link;
    bool sound = restore_out(&v->tx, v->out->records, &v->handed_over, 8, in) && restore_in(&v->rx, v->in->records, &v->arrived, 8, in) &&
                 restore_out(&v->bulk_tx, v->out->payloads, &v->bulk_handed_over, 1, in) &&
                 restore_in(&v->bulk_rx, v->in->payloads, &v->bulk_arrived, 1, in);
    if (!sound) gv_image_in_fail(in, "the rings of the link are damaged");
    atomic_store(&v->parts.written, gv_image_get(in, UINT64_MAX));
    atomic_store(&v->received, gv_image_get(in, UINT64_MAX));
    atomic_store(&v->pulled, gv_image_get(in, UINT64_MAX));
    v->loans.given = gv_image_get(in, UINT64_MAX);
    atomic_store(&v->loans.returned, v->loans.given);
    atomic_store(&v->loans.pulled, v->loans.given);
}
