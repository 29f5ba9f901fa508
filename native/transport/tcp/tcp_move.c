/* The worker's end goes on in another process, with the same keys. Records that the client may lack go with the image, as they went out: sealed with the same
 * numbers, so that no nonce is used for two texts. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "../../wire/image_stream.h"
#include "tcp.h"
#include "tcp_channels.h"

#define UNACKED_MOST (256ull << 20) /* bytes; a sender waits at a fourth of that */

void gv_tcp_pause(struct gv_link *link) { gv_tcp_bulk_pause(&((struct tcp *)link)->bulk); }

void gv_tcp_cut(struct gv_link *link, const char *why) {
    struct tcp *t = (struct tcp *)link;
    gv_resume_cut(&t->resume, why, 0);
    gv_tcp_bulk_cut(&t->bulk, why);
}

void gv_tcp_save(struct gv_link *link, struct gv_image_out *out) {
    struct tcp *t = (struct tcp *)link;
    while (gv_tcp_push(t) == TCP_BUSY) sched_yield(); /* all that is committed is unacknowledged from here on */
    gv_spin_lock(&t->pushing);
    const struct gv_unacked *k = &t->unacked;
    gv_image_put(out, k->dropped);
    gv_image_put(out, k->gone);
    gv_image_put(out, k->newest);
    gv_image_put(out, t->framing_out.next_seq);
    gv_image_put(out, atomic_load(&t->peer_seq));
    gv_image_put(out, atomic_load(&t->received));
    gv_image_put(out, gv_unacked_bytes(k));
    gv_image_put_bytes(out, k->data + k->front, gv_unacked_bytes(k));
    if (t->unsent.head != atomic_load(&t->control->tail)) gv_image_out_fail(out, "records to the client are under way");
    gv_spin_unlock(&t->pushing);
    gv_tcp_bulk_save(&t->bulk, out);
}

void gv_tcp_restore(struct gv_link *link, struct gv_image_in *in) {
    struct tcp *t = (struct tcp *)link;
    struct gv_unacked *k = &t->unacked;
    gv_spin_lock(&t->pushing);
    k->dropped = gv_image_get(in, UINT64_MAX);
    k->gone = gv_image_get(in, UINT64_MAX);
    k->newest = gv_image_get(in, UINT64_MAX);
    t->framing_out.next_seq = gv_image_get(in, UINT64_MAX);
    atomic_store(&t->peer_seq, gv_image_get(in, UINT64_MAX));
    atomic_store(&t->received, gv_image_get(in, UINT64_MAX));
    uint64_t size = gv_image_get(in, UNACKED_MOST);
    void *units = gv_image_get_block(in, size);
    bool good = units && gv_unacked_restore(k, units, size);
    free(units);
    atomic_store(&t->n_unacked, gv_unacked_bytes(k));
    gv_spin_unlock(&t->pushing);
    if (!good) gv_image_in_fail(in, "the records that the client may lack are damaged");
    gv_tcp_bulk_restore(&t->bulk, in);
}

/* ---- payloads ---- */

void gv_tcp_bulk_pause(struct tcp_bulk *b) {
    pthread_mutex_lock(&b->lock);
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

void gv_tcp_bulk_cut(struct tcp_bulk *b, const char *why) {
    pthread_mutex_lock(&b->attaching); /* a connection that came before is placed first */
    for (uint32_t i = 0; i < TCP_CHANNELS_MAX; i++) gv_tcp_channel_cut(b, &b->channels[i], why, 0);
    pthread_mutex_unlock(&b->attaching);
}

void gv_tcp_bulk_save(struct tcp_bulk *b, struct gv_image_out *out) {
    pthread_mutex_lock(&b->lock);
    gv_image_put(out, b->n);
    gv_image_put(out, b->queued);
    gv_image_put(out, atomic_load(&b->received));
    gv_image_put(out, b->opened_left);
    gv_image_put_bytes(out, b->opened + (b->opened_left ? b->opened_at : 0), b->opened_left);
    for (uint32_t i = 0; i < TCP_CHANNELS_MAX; i++) gv_image_put(out, b->channels[i].fresh);
    if (b->first || atomic_load(&b->peer_has) != b->queued) gv_image_out_fail(out, "payloads to the client are under way");
    pthread_mutex_unlock(&b->lock);
}

void gv_tcp_bulk_restore(struct tcp_bulk *b, struct gv_image_in *in) {
    pthread_mutex_lock(&b->lock);
    b->n = (uint32_t)gv_image_get(in, TCP_CHANNELS_MAX);
    b->queued = gv_image_get(in, UINT64_MAX);
    atomic_store(&b->handed_out, b->queued);
    atomic_store(&b->peer_has, b->queued);
    uint64_t received = gv_image_get(in, UINT64_MAX);
    atomic_store(&b->received, received);
    b->told = received;
    b->opened_left = (uint32_t)gv_image_get(in, TCP_SEALED_MOST);
    b->opened_at = 0;
    if (b->opened_left && !b->opened && !(b->opened = malloc(TCP_SEALED_MOST))) {
        gv_image_in_fail(in, "out of memory");
        b->opened_left = 0;
    }
    if (b->opened_left) gv_image_get_bytes(in, b->opened, b->opened_left);
    for (uint32_t i = 0; i < TCP_CHANNELS_MAX; i++) b->channels[i].fresh = (uint32_t)gv_image_get(in, UINT32_MAX);
    pthread_mutex_unlock(&b->lock);
}
