/* The worker's end goes on in another process. The rings stay where they are, with what is in them: the client may fill them all the while. */
#include "../../wire/image_stream.h"
#include "shm.h"

void gv_shm_pause(struct gv_link *link) { gv_shm_wake_everybody((struct shm *)link); }

void gv_shm_cut(struct gv_link *link, const char *why) {
    struct shm *s = (struct shm *)link;
    pthread_mutex_lock(&s->socket_lock);
    gv_resume_cut(&s->resume, why, 0);
    pthread_mutex_unlock(&s->socket_lock);
}

void gv_shm_save(struct gv_link *link, struct gv_image_out *out) {
    struct shm *s = (struct shm *)link;
    if (gv_ring_release(&s->rx)) gv_wake_sleeper(&s->rx.control->writer_sleeps);
    gv_image_put(out, s->tx.tail);
    gv_image_put(out, s->rx.head);
    gv_image_put(out, s->bulk_tx.tail);
    gv_image_put(out, s->bulk_rx.head);
    gv_image_put(out, atomic_load(&s->parts.written));
    gv_image_put(out, s->peer_seq);
    gv_image_put(out, atomic_load(&s->sent));
    gv_image_put(out, atomic_load(&s->received));
    if (!gv_part_queue_idle(&s->parts)) gv_image_out_fail(out, "payloads to the client are under way");
}

void gv_shm_restore(struct gv_link *link, struct gv_image_in *in) {
    struct shm *s = (struct shm *)link;
    bool sound = gv_ring_writer_resume(&s->tx, gv_image_get(in, UINT64_MAX), 8);
    sound = gv_ring_reader_resume(&s->rx, gv_image_get(in, UINT64_MAX), 8) && sound;
    sound = gv_ring_writer_resume(&s->bulk_tx, gv_image_get(in, UINT64_MAX), 1) && sound;
    sound = gv_ring_reader_resume(&s->bulk_rx, gv_image_get(in, UINT64_MAX), 1) && sound;
    if (!sound) gv_image_in_fail(in, "the rings of the link are not the ones that the image speaks of");
    atomic_store(&s->parts.written, gv_image_get(in, UINT64_MAX));
    s->peer_seq = gv_image_get(in, UINT64_MAX);
    atomic_store(&s->sent, gv_image_get(in, UINT64_MAX));
    atomic_store(&s->received, gv_image_get(in, UINT64_MAX));
}
